"""Tests that a script of `ci script` is safe to run in an untrusted folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.ci_jobs_sample import _sample, _shared_sample, job_script, make_jobs
from tests.support.inprocess_project import SampleProject
from tests.support.traps import Traps

__all__ = ["_sample", "_shared_sample"]  # fixtures


def test_ci_script_commands_import_nothing_from_the_current_folder(
    sample: SampleProject, tmp_path: Path
) -> None:
    planted = Traps(tmp_path / "flags")
    planted.plant(sample.folder)
    head, _, _ = job_script(sample, make_jobs(sample)).partition("\nresults=")
    command = ["bash", "-c", f'{head}\n"${{imgbuild[@]}}" --version']
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert planted.triggered() == {}
    assert done.stdout.startswith("imgbuild "), done.stderr
