"""Tests the configuration of an image for running a command."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from imgbuild.container import run_in_image
from imgbuild.errors import IntegrityError
from imgbuild.oci.layout import Layout
from imgbuild.pipeline.build import build_all
from imgbuild.pipeline.session import SessionOptions, find_built_layout, open_session
from imgbuild.values import Arch
from tests.support import inprocess_project
from tests.support.inprocess_project import TARGET, SampleProject

ARCH = Arch.X86_64


@pytest.fixture(name="built_sample")
def _built_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[SampleProject, Layout]:
    """A project with the built image of its target."""
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "project"
    folder.mkdir()
    sample = inprocess_project.write_project(folder)
    session = open_session(folder, SessionOptions(offline=True))
    build_all(session, session.select_targets([TARGET]), None)
    return sample, find_built_layout(session, TARGET, None)


def test_configuration_of_a_command_matches_the_lock(
    built_sample: tuple[SampleProject, Layout],
) -> None:
    sample, layout = built_sample
    settings = sample.lock.settings
    config = run_in_image.command_config(layout, ARCH)
    assert config.env == tuple(f"{name}={value}" for name, value in sorted(settings.env.items()))
    assert (config.entrypoint, config.command) == (settings.entrypoint, settings.cmd)
    assert config.workdir == settings.workdir


def test_invalid_image_configuration_is_an_error(
    built_sample: tuple[SampleProject, Layout],
) -> None:
    _, layout = built_sample
    image = layout.image(ARCH)
    configuration = msgspec.structs.replace(image.configuration, config={"Env": "PATH=/bin"})
    broken = msgspec.structs.replace(image, configuration=configuration)
    with pytest.raises(IntegrityError, match="invalid image configuration for x86_64"):
        run_in_image.command_config(msgspec.structs.replace(layout, images={ARCH: broken}), ARCH)
