"""Runs the smoke tests in a SIF, as a cluster would: a read-only root and a user whom nobody knows.

Comes in: a lock and the layout that was built from it. Goes out: a report for each tier. The SIF is
the one that `imgbuild sif` makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from imgbuild import apptainer, driver, smoke
from imgbuild.console import console
from imgbuild.lock import Lock
from imgbuild.oci.layout import Layout
from imgbuild.sif import convert
from imgbuild.store import Store
from imgbuild.tested import How, Tested, ran
from imgbuild.values import Arch


def smoke_sif(
    lock: Lock,
    layout: Layout,
    arch: Arch,
    tiers: Sequence[smoke.Tier],
    *,
    store: Store,
    how: How = smoke.USUAL,
) -> Iterator[Tested]:
    """Run `tiers` in the image of `layout` on `arch`: a report for each.

    ToolMissing if there is no Apptainer or no mksquashfs, WorkFailed if the tests could not run.
    """
    apptainer.require()
    with store.scratch() as scratch:
        image = scratch / "image.sif"
        with console.step(f"making a SIF of {layout.path.name}"):
            convert.convert(layout, arch, image, convert.Options())
        for made in smoke_file(lock, image, arch, tiers, store=store, how=how):
            yield smoke.of_image(layout.image(arch), made)


def smoke_file(
    lock: Lock,
    image: Path,
    arch: Arch,
    tiers: Sequence[smoke.Tier],
    *,
    store: Store,
    how: How = smoke.USUAL,
) -> Iterator[Tested]:
    """Run `tiers` in the SIF `image` of the target of `lock`, on `arch`: a report for each.

    ToolMissing if there is no Apptainer, WorkFailed if the tests could not run.
    """
    expected = smoke.expectation(lock, arch)
    program = apptainer.require()
    with store.scratch() as scratch:
        binds = {smoke.PLACE: smoke.write(expected, scratch)}
        if how.model is not None:
            binds[smoke.MODEL] = how.model
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
                env=driver.chosen() if tier in smoke.GPU_TIERS else {},
            )
            command = smoke.command_line(lock.settings.prefix, tier, how)
            with console.step(f"{lock.target}: smoke tests, tier {tier}, in apptainer"):
                result = apptainer.run(program, image, command, settings)
            report = smoke.read_report(result, expected, tier)
            yield ran(report, result, "apptainer", how, stranger=True)
