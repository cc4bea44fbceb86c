"""Tests that `imgbuild run` finds, builds or refuses the image of a target."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import msgspec
import pytest

from imgbuild.container.request import ContainerRequest
from imgbuild.errors import InputError, LockStale
from imgbuild.pipeline import run_target
from imgbuild.pipeline.build import restrict_to_native
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.session import Session, SessionOptions, open_session
from imgbuild.system.console import console
from imgbuild.values import Arch
from tests.support.inprocess_project import TARGET, UNLOCKED, SampleProject

ARCH = Arch.X86_64


@pytest.fixture(name="session")
def _session(sample: SampleProject) -> Session:
    return open_session(sample.folder, SessionOptions(offline=True))


def test_run_builds_a_missing_image(
    session: Session, sample: SampleProject, capsys: pytest.CaptureFixture[str]
) -> None:
    console.configure(verbosity=0, json=False)
    target_image = run_target.find_run_target(session, TARGET, None)
    assert (target_image.layout, target_image.arches) == (None, (ARCH,))
    built_layout = run_target.build_if_missing(session, target_image, ARCH)
    assert built_layout.image(ARCH).manifest.digest == sample.target_digests.arch[ARCH].manifest
    result = capsys.readouterr().err
    assert f"building {TARGET}, which is not built; nothing to download" in result
    again = run_target.find_run_target(session, TARGET, None)
    assert again.layout == built_layout
    assert run_target.build_if_missing(session, again, ARCH) == built_layout
    assert "building it" not in capsys.readouterr().err


def test_image_configuration_is_available_before_the_build(
    session: Session, sample: SampleProject
) -> None:
    target_image = run_target.find_run_target(session, TARGET, None)
    before = target_image.config(ARCH)
    run_target.build_if_missing(session, target_image, ARCH)
    assert run_target.find_run_target(session, TARGET, None).config(ARCH) == before
    assert before.workdir == sample.lock.settings.workdir


def test_run_rebuilds_an_image_that_differs_from_the_lock(session: Session) -> None:
    place = run_target.build_if_missing(
        session, run_target.find_run_target(session, TARGET, None), ARCH
    ).path
    (place / "index.json").unlink()
    assert run_target.find_run_target(session, TARGET, None).layout is None


def test_run_uses_a_built_image_whose_lock_is_stale(
    session: Session, sample: SampleProject
) -> None:
    built_layout = run_target.build_if_missing(
        session, run_target.find_run_target(session, TARGET, None), ARCH
    )
    sample.edit("as_of: 2025-06-20", "as_of: 2025-06-21")
    changed = open_session(sample.folder, SessionOptions())
    target_image = run_target.find_run_target(changed, TARGET, None)
    assert (target_image.layout, target_image.locked) == (built_layout, None)
    assert run_target.build_if_missing(changed, target_image, ARCH) == built_layout


def test_run_without_image_and_lock_is_an_error(session: Session) -> None:
    with pytest.raises(LockStale):
        run_target.find_run_target(session, UNLOCKED, None)
    with pytest.raises(InputError, match="elsewhere"):
        run_target.find_run_target(session, TARGET, Path("elsewhere"))


def test_run_reports_the_download_size_of_missing_inputs(
    session: Session, sample: SampleProject
) -> None:
    inputs = open_inputs(session)
    measure = run_target.download_size
    assert measure(sample.lock, sample.target_digests, ARCH, inputs.store) == 0
    wheel = sample.wheels["trl"]
    inputs.drop_files([wheel.sha256])
    assert measure(sample.lock, sample.target_digests, ARCH, inputs.store) == wheel.size


def test_apptainer_command_is_printed_without_a_sif(
    session: Session, sample: SampleProject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console.configure(verbosity=0, json=False)
    target_image = run_target.find_run_target(session, TARGET, None)
    invocation = run_target.engine_command(
        target_image,
        ARCH,
        ContainerRequest(command=("true",)),
        through="apptainer",
        kernel_cache=True,
    )
    manifest = sample.target_digests.arch[ARCH].manifest.removeprefix("sha256:")
    kernels = tmp_path / "cache/kernels" / manifest
    assert f"--bind={kernels}:/var/cache/imgbuild" in invocation.command
    assert not kernels.exists()
    assert invocation.command[-2:] == (f"{target_image.place}.sif", "true")
    assert f"imgbuild build {TARGET} --format sif" in capsys.readouterr().err
    with pytest.raises(InputError, match="more than one command"):
        run_target.engine_command(
            target_image, ARCH, ContainerRequest(), through="root", kernel_cache=False
        )


def test_run_mounts_the_kernel_cache_for_an_image_in_a_layout(
    session: Session, tmp_path: Path
) -> None:
    console.configure(verbosity=0, json=False)
    built_layout = run_target.build_if_missing(
        session, run_target.find_run_target(session, TARGET, None), ARCH
    )
    image = built_layout.image(ARCH)
    folders = [f"{name}=/var/cache/imgbuild/{name}" for name in run_target.BELOW_CACHE]
    settings = {**image.settings, "Env": [*cast("list[str]", image.settings["Env"]), *folders]}
    configuration = msgspec.structs.replace(image.configuration, config=settings)
    images = {ARCH: msgspec.structs.replace(image, configuration=configuration)}
    target_image = msgspec.structs.replace(
        run_target.find_run_target(session, TARGET, built_layout.path),
        layout=msgspec.structs.replace(built_layout, images=images),
    )
    invocation = run_target.engine_command(
        target_image,
        ARCH,
        ContainerRequest(command=("true",)),
        through="apptainer",
        kernel_cache=True,
    )
    manifest = built_layout.image(ARCH).manifest.digest.removeprefix("sha256:")
    bind = f"--bind={tmp_path}/cache/kernels/{manifest}:/var/cache/imgbuild"
    assert bind in invocation.command


@pytest.mark.parametrize(
    ("machine", "arches"),
    [("aarch64", (Arch.ARM64,)), ("amd64", (ARCH,)), ("riscv64", tuple(Arch))],
)
def test_build_defaults_to_the_architecture_of_the_machine(
    session: Session, machine: str, arches: tuple[Arch, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    [both] = session.select_targets([UNLOCKED])
    assert both.arches == tuple(Arch)
    assert restrict_to_native(both).arches == arches
    [single] = session.select_targets([TARGET])
    assert restrict_to_native(single).arches == (ARCH,)
