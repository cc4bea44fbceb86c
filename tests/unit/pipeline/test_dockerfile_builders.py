"""When an image that another builder made is looked at again, and when it is built anew.

BuildKit alone is played: it leaves the base as the image, so that no engine is needed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from imgbuild.container import buildkit
from imgbuild.container.buildkit import Order
from imgbuild.errors import ToolMissing
from imgbuild.oci import layout
from tests.support import inprocess_project
from tests.support.inprocess_project import TARGET, Command, Sample

ALONE = ("--offline", "--jobs", "1")
PAIR = ("diff", TARGET, "--builders", "embedded,docker", *ALONE)
IMAGES = Path("images") / TARGET


class Player:
    """BuildKit, which builds what it is told and counts."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.version: str | None = "docker 28.5.2, buildx 0.29.1"
        self.orders: list[Order] = []
        patch.setattr(buildkit, "version", self._version)
        patch.setattr(buildkit, "build", self._build)

    def _version(self, builder: str | None) -> str:
        if self.version is None:
            message = "docker does not answer"
            raise ToolMissing(message)
        return self.version if builder is None else f"{builder} of {self.version}"

    def _build(self, order: Order, out: Path, **_: object) -> None:
        assert (order.context / "Dockerfile").is_file()
        assert layout.read(order.base).digest == order.digest
        shutil.copytree(order.base, out)
        self.orders.append(order)


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sample:
    folder = tmp_path / "a project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(inprocess_project.PACKAGES, "uv", "0.7.13")
    return inprocess_project.make(folder)


@pytest.fixture
def player(monkeypatch: pytest.MonkeyPatch) -> Player:
    return Player(monkeypatch)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def test_what_is_current_is_not_built_again(sample, player, command):
    assert command("render", TARGET).status == 0
    command(*PAIR)
    command(*PAIR)
    assert len(player.orders) == 1
    assert not player.orders[0].dated  # times are not compared
    assert player.orders[0].context == sample.folder / IMAGES


def test_what_was_built_to_be_used_is_compared_too(sample, player, command):
    assert command("build", TARGET, "--builder", "docker", *ALONE).status == 0
    command(*PAIR)
    assert [order.dated for order in player.orders] == [True]
    assert not (sample.folder / "build/compare").exists()


def test_every_input_counts(sample, player, command):
    def _builds() -> int:
        before = len(player.orders)
        command(*PAIR)
        return len(player.orders) - before

    command("render", TARGET)
    assert _builds() == 1
    dockerfile = IMAGES / "Dockerfile"
    text = dockerfile.read_text()
    dockerfile.write_text(text + "RUN touch /more\n")
    assert (
        _builds() == 0
    )  # it does not follow from the lock: what would is built, and that is there
    templates = Path("images/templates")
    templates.mkdir()
    (templates / "last.j2").write_text("# another last part\n")
    assert _builds() == 1
    assert _builds() == 0
    shutil.rmtree(templates)
    dockerfile.write_text(text)
    assert _builds() == 1
    (IMAGES / ".dockerignore").write_text("*.txt\n")
    assert _builds() == 1
    (IMAGES / ".dockerignore").unlink()
    assert _builds() == 1
    player.version = "docker 29.0.0, buildx 0.29.1"
    assert _builds() == 1
    place = Path("build/compare/docker") / TARGET
    shutil.rmtree(place / "blobs")
    assert _builds() == 1


def test_where_no_builder_answers_its_version_is_not_asked_for(sample, player, command):
    command("render", TARGET)
    command(*PAIR)
    player.version = None
    assert "does not answer" not in command(*PAIR).stderr
    shutil.rmtree("build/compare")
    assert "does not answer" in command(*PAIR).stderr


def test_notes_say_who_built_what(sample, player, command):
    command("render", TARGET)
    command("build", TARGET, "--builder", "docker", "--buildx-builder", "farm", *ALONE)
    notes = json.loads((Path("build/docker") / TARGET / "index.json").read_text())
    notes = notes["manifests"][0]["annotations"]
    assert notes["dev.imgbuild.builder-version"] == "farm of docker 28.5.2, buildx 0.29.1"
    assert notes["dev.imgbuild.buildx-builder"] == "farm"
    assert notes["dev.imgbuild.sealed"] == sample.seal.digest
    command(*PAIR)  # the farm's version is asked for, not the default builder's
    assert len(player.orders) == 1
    player.version = "docker 29.0.0, buildx 0.29.1"
    command(*PAIR)
    assert [order.builder for order in player.orders] == ["farm", None]
