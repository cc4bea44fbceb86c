"""Runs the smoke tests in a SIF, as on a cluster: a read-only root, and a user without a name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from imgbuild.cache.store import Store
from imgbuild.container import apptainer
from imgbuild.lock.lock_file import Lock
from imgbuild.oci.layout import Layout
from imgbuild.report import Tier
from imgbuild.sif import convert
from imgbuild.smoke import runner
from imgbuild.smoke.result import RunSettings, SmokeRun, ran
from imgbuild.system.reporter import SILENT, Reporter
from imgbuild.values import Arch


def smoke_sif(
    lock: Lock,
    layout: Layout,
    arch: Arch,
    tiers: Sequence[Tier],
    *,
    store: Store,
    how: RunSettings = runner.USUAL,
    reporter: Reporter = SILENT,
) -> Iterator[SmokeRun]:
    """Run `tiers` in a SIF of the image of `layout` on `arch`, and yield a report for each.

    ToolMissing if there is no Apptainer or no mksquashfs, WorkFailed if the tests could not run.
    """
    apptainer.require()
    with store.scratch() as scratch:
        image = scratch / "image.sif"
        with reporter.step(f"making a SIF of {layout.path.name}"):
            convert.convert(layout, arch, image, convert.ConvertOptions(), reporter=reporter)
        for smoke_run in smoke_file(
            lock, image, arch, tiers, store=store, how=how, reporter=reporter
        ):
            yield runner.of_image(layout.image(arch), smoke_run)


def smoke_file(
    lock: Lock,
    image: Path,
    arch: Arch,
    tiers: Sequence[Tier],
    *,
    store: Store,
    how: RunSettings = runner.USUAL,
    reporter: Reporter = SILENT,
) -> Iterator[SmokeRun]:
    """Run `tiers` in the SIF `image` of the target of `lock`, and yield a report for each.

    ToolMissing if there is no Apptainer, WorkFailed if the tests could not run.
    """
    expected = runner.expectation(lock, arch)
    program = apptainer.require()
    with store.scratch() as scratch:
        binds = {runner.PLACE: runner.write(expected, scratch)}
        if how.model is not None:
            binds[runner.MODEL] = how.model
        for tier in tiers:
            variables, mounts = runner.machine(tier)
            work = scratch / f"work-{tier}"
            work.mkdir()
            work.chmod(0o1777)
            settings = apptainer.ApptainerOptions(
                binds={**binds, **{mount.target: mount.source for mount in mounts}},
                work=work,
                workdir=lock.settings.workdir,
                gpus=tier in runner.GPU_TIERS,
                user=runner.ARBITRARY_USER,
                env=variables,
            )
            command = runner.command_line(lock.settings.prefix, tier, how)
            with reporter.step(f"{lock.target}: smoke tests, tier {tier}, in apptainer"):
                result = apptainer.run(program, image, command, settings)
            report = runner.read_report(result, expected, tier, reporter=reporter)
            yield ran(report, result, "apptainer", how, arbitrary_user=True)
