"""Provides fixtures for unit tests: folders, an in-process project and a signed image."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from imgbuild.cache.store import Store
from imgbuild.lock import published
from imgbuild.matrix import load
from tests.support import inprocess_project, memory_folders, signed_image
from tests.support.inprocess_project import Command, SampleProject


@pytest.fixture(name="tmp_path_factory", scope="session")
def _tmp_path_factory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[pytest.TempPathFactory]:
    """Create temporary folders in memory if it has enough room."""
    if not memory_folders.has_room():
        yield tmp_path_factory
        return
    with memory_folders.memory_path_factory(request.session) as factory:
        yield factory


@pytest.fixture(scope="session", autouse=True)
def _parsed_matrices() -> Iterator[None]:
    """Read an unchanged matrix only once, because each command spends 40 ms on it."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (load, published):
            patch.setattr(module, "parse_yaml", lru_cache(maxsize=4)(module.parse_yaml))
            patch.setattr(module, "convert_document", lru_cache(maxsize=4)(module.convert_document))
        yield


@pytest.fixture(name="imgbuild")
def _imgbuild(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line, in this process."""
    return Command(monkeypatch, capsys)


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Store:
    """An empty cache."""
    return Store.open(tmp_path / "cache")


@pytest.fixture(name="sample")
def _sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SampleProject:
    """A locked project in the current folder, with a separate cache."""
    return inprocess_project.write_project(inprocess_project.enter_folder(tmp_path, monkeypatch))


@pytest.fixture(name="whole", scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[signed_image.Sample]:
    """A pushed and signed image for each file of tests."""
    yield from signed_image.create_signed_image(tmp_path_factory.mktemp("verifying"))


@pytest.fixture(name="signed")
def _signed(
    whole: signed_image.Sample, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> signed_image.Sample:
    """The pushed and signed image of `whole`."""
    return signed_image.reset_sample(whole, monkeypatch, tmp_path)
