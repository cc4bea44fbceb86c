"""Adds the smoke tests that CI jobs ran to the test records of their targets."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from imgbuild.cache.store import Store
from imgbuild.ci import results
from imgbuild.ci.jobs import TargetJobs
from imgbuild.errors import InputError, LockStale
from imgbuild.project_paths import Project
from imgbuild.smoke import recording, reports
from imgbuild.smoke.recording import Recorded
from imgbuild.system.reporter import SILENT, Reporter


def record(
    project: Project,
    folder: Path,
    targets: Iterable[TargetJobs],
    store: Store,
    reporter: Reporter = SILENT,
) -> tuple[Recorded, ...]:
    """Add each tier that ran in a job of `targets`, passed or failed, to the test records.

    Runs that cannot be recorded (tests that did not start, another image than the locked one) are
    skipped with a warning.
    """
    recorded: list[Recorded] = []
    for job in (job for target_jobs in targets for job in target_jobs.all):
        if "smoke" not in job.steps or not results.has_step(folder, job, "smoke"):
            continue
        try:
            runs = reports.image_runs(folder / job.id)
            recorded += recording.record(project, runs, store)
        except (InputError, LockStale) as error:
            reporter.warn(f"{job.id}: its smoke tests are not recorded: {error.message}")
    return tuple(recorded)
