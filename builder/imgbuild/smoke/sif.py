"""Runs smoke tests in a SIF with a read-only root and an unnamed user, as on clusters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from imgbuild.container import apptainer
from imgbuild.oci.layout import Layout
from imgbuild.report import TierName
from imgbuild.sif import convert
from imgbuild.smoke import runner
from imgbuild.smoke.result import RunSettings, SmokeRun, completed_run
from imgbuild.smoke.runner import ImageUnderTest


def smoke_sif(
    test_image: ImageUnderTest,
    layout: Layout,
    tiers: Sequence[TierName],
    *,
    how: RunSettings = runner.DEFAULT_SETTINGS,
) -> Iterator[SmokeRun]:
    """Create a SIF of the image in `layout`, run `tiers` in it, and yield a run for each tier.

    Raises ToolMissing if Apptainer or mksquashfs is missing, and WorkFailed if the tests could not
    run.
    """
    apptainer.require_apptainer()
    reporter = test_image.reporter
    with test_image.store.scratch() as scratch:
        image = scratch / "image.sif"
        with reporter.step(f"creating a SIF of {layout.path.name}"):
            convert.convert_image(
                layout, test_image.arch, image, convert.ConvertOptions(), reporter=reporter
            )
        for smoke_run in smoke_file(test_image, image, tiers, how=how):
            yield runner.add_image_digests(layout.image(test_image.arch), smoke_run)


def smoke_file(
    test_image: ImageUnderTest,
    image: Path,
    tiers: Sequence[TierName],
    *,
    how: RunSettings = runner.DEFAULT_SETTINGS,
) -> Iterator[SmokeRun]:
    """Run `tiers` in the SIF `image`, and yield a run for each tier.

    Raises ToolMissing if Apptainer is missing, and WorkFailed if the tests could not run.
    """
    expected, image_settings = test_image.expected_content, test_image.lock.settings
    program = apptainer.require_apptainer()
    with test_image.store.scratch() as scratch:
        binds = {runner.PLACE: runner.write_tests(expected, scratch)}
        if how.model is not None:
            binds[runner.MODEL] = how.model
        for tier in tiers:
            variables, mounts = runner.machine_settings(tier)
            work = scratch / f"work-{tier}"
            work.mkdir()
            work.chmod(0o1777)
            settings = apptainer.ApptainerOptions(
                binds={**binds, **{mount.target: mount.source for mount in mounts}},
                work=work,
                workdir=image_settings.workdir,
                gpus=tier in runner.GPU_TIERS,
                user=runner.ARBITRARY_USER,
                env=variables,
            )
            command = runner.command_line(image_settings.prefix, tier, how)
            with test_image.report_step(f"smoke tests, tier {tier}, in apptainer"):
                result = apptainer.run_in_sif(program, image, command, settings)
            report = runner.read_report(result, expected, tier, reporter=test_image.reporter)
            yield completed_run(report, result, "apptainer", how, arbitrary_user=True)
