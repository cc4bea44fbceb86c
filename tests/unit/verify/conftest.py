"""Provides a signed image for the tests of `verify`."""

from __future__ import annotations

import pytest

from tests.support.signed_image import Sample


@pytest.fixture(name="sample")
def _sample(signed: Sample) -> Sample:
    return signed
