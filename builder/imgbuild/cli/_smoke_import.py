"""Adds smoke tests that ran on other machines to the test records (`imgbuild smoke --import`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from imgbuild.cache.store import Store
from imgbuild.cli._output import print_result
from imgbuild.matrix.project_paths import Project
from imgbuild.smoke import recording, reports
from imgbuild.smoke.recording import RecordedResult
from imgbuild.system.console import console


def record_runs(paths: Sequence[Path], project: Project) -> None:
    """Add the runs in `paths` to images/TARGET/smoke.json. If one is rejected, add none."""
    runs = [each for path in paths for each in reports.image_runs(path)]
    recorded = recording.record_runs(project, runs, Store.open())
    report_changes(recorded)
    lines = [f"{each.target} {each.arch} {each.tier} {each.result}" for each in recorded]
    print_result(recorded, lines)


def report_changes(recorded: Sequence[RecordedResult]) -> None:
    """Print the changed test records, and the commands that update files generated from records."""
    for path in dict.fromkeys(each.file for each in recorded):
        runs = [each for each in recorded if each.file == path]
        fresh = sum(each.new for each in runs)
        console.info(f"{path}: {fresh} new, {len(runs) - fresh} already recorded")
    if any(each.new for each in recorded):
        console.info("commit the test records")
