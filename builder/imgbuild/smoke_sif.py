"""Runs the smoke tests in a SIF, as a cluster would: a read-only root and a user whom nobody knows.

Comes in: a lock and the layout that was built from it. Goes out: a report for each tier. The SIF is
the one that `imgbuild sif` makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from imgbuild import apptainer, smoke
from imgbuild.console import console
from imgbuild.lock import Lock
from imgbuild.oci.layout import Layout
from imgbuild.sif import convert
from imgbuild.store import Store
from imgbuild.tested import Tested, ran
from imgbuild.values import Arch


def smoke_sif(
    lock: Lock,
    layout: Layout,
    arch: Arch,
    tiers: Sequence[smoke.Tier],
    *,
    store: Store,
    patience: float = 1.0,
    model: Path | None = None,
) -> list[Tested]:
    """Run `tiers` in the image of `layout` on `arch`: a report for each.

    ToolMissing if there is no Apptainer or no mksquashfs, WorkFailed if the tests could not run.
    """
    apptainer.require()
    with store.scratch() as scratch:
        image = scratch / "image.sif"
        with console.step(f"making a SIF of {layout.path.name}"):
            convert.convert(layout, arch, image, convert.Options())
        made = smoke_file(lock, image, arch, tiers, store=store, patience=patience, model=model)
    return [smoke.of_image(layout.image(arch), each) for each in made]


def smoke_file(
    lock: Lock,
    image: Path,
    arch: Arch,
    tiers: Sequence[smoke.Tier],
    *,
    store: Store,
    patience: float = 1.0,
    model: Path | None = None,
) -> list[Tested]:
    """Run `tiers` in the SIF `image` of the target of `lock`, on `arch`: a report for each.

    ToolMissing if there is no Apptainer, WorkFailed if the tests could not run.
    """
    expected = smoke.expectation(lock, arch)
    program = apptainer.require()
    made = []
    with store.scratch() as scratch:
        binds = {smoke.PLACE: smoke.write(expected, scratch)}
        if model is not None:
            binds[smoke.MODEL] = model
        for tier in tiers:
            work = scratch / f"work-{tier}"
            work.mkdir()
            work.chmod(0o1777)
            settings = apptainer.Running(
                binds=binds,
                work=work,
                workdir=lock.settings.workdir,
                gpus=tier in smoke.GPU_TIERS,
                user=smoke.STRANGER,
            )
            place = smoke.MODEL if model else None
            command = smoke.test_command(lock.settings.prefix, tier, patience, place, smoke.PLACE)
            with console.step(f"{lock.target}: smoke tests, tier {tier}, in apptainer"):
                result = apptainer.run(program, image, command, settings)
            report = smoke.read_report(result, expected, tier)
            made.append(ran(report, result, "apptainer", stranger=True))
    return made
