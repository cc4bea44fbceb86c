"""A pushed and signed image for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import signed_image
from tests.support.signed_image import Sample


@pytest.fixture(name="whole", scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    yield from signed_image.make(tmp_path_factory.mktemp("verifying"))


@pytest.fixture(name="sample")
def _sample(whole: Sample, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sample:
    return signed_image.use(whole, monkeypatch, tmp_path)
