"""Reads the results of jobs from the scripts of `imgbuild ci script`, and finds the first errors.

`JOB/STEP.json` contains the state of a step, `JOB/job.json` the state of the job, and
`JOB/STEP.answer.json` the `--json` output of the step's command.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from imgbuild import codec
from imgbuild.cache.store import Store
from imgbuild.ci.jobs import CiJob, TargetJobs
from imgbuild.errors import InputError, LockStale
from imgbuild.matrix.project_paths import Project
from imgbuild.smoke import recording, reports
from imgbuild.smoke.recording import RecordedResult
from imgbuild.system import boundary
from imgbuild.system.reporter import SILENT_REPORTER, Reporter

LONGEST_MESSAGE = 2000  # characters of an error in a report; the log has the full text
SIGNALS = 128  # a shell's exit status of a killed command is this plus the signal


class StepState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a step or job for an image.

    A passed step with the same `key` is not repeated.
    """

    digest: str
    key: str
    exit_code: int
    seconds: float = 0.0


class FirstError(msgspec.Struct, frozen=True, kw_only=True):
    """The first error of a step, and the remedy."""

    error: str
    hint: str = ""


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a job. `failed` is the failed step, or ""."""

    job: CiJob
    passed: bool
    failed: str
    exit_code: int = 0
    seconds: float = 0.0

    @property
    def is_started(self) -> bool:
        """Whether a step has ended."""
        return self.passed or self.failed != "" or self.seconds > 0


def result_path(folder: Path, job: str, name: str) -> Path:
    """Return the path of the file `name` of a job."""
    return folder / job / name


def read_result(folder: Path, job: CiJob) -> JobResult:
    """Return the result of `job` for its current digest, from the files in `folder`."""
    steps: dict[str, StepState] = {
        step: state for step in job.steps if (state := _state(folder, job, step)) is not None
    }
    failed = next((step for step, state in steps.items() if state.exit_code != 0), "")
    whole = _state(folder, job, "job")
    return JobResult(
        job=job,
        passed=not failed and whole is not None and whole.exit_code == 0,
        failed=failed,
        exit_code=steps[failed].exit_code if failed else 0,
        seconds=sum(state.seconds for state in steps.values()),
    )


def _state(folder: Path, job: CiJob, name: str) -> StepState | None:
    """Return the state in a file, or None if it is missing, damaged, or for another image."""
    path = result_path(folder, job.id, f"{name}.json")
    if not path.exists():
        return None
    try:
        state = codec.read_document(path, StepState)
    except InputError:
        return None
    return state if state.digest == job.digest else None


def first_error(folder: Path, job: str, step: str, exit_code: int) -> FirstError:
    """Return the first error of a failed step, based on the `--json` output of its command.

    The first available error is used: the error of the command, the first failed test, the first
    error of an audit, the vulnerabilities, or the exit code and the path of the log.
    """
    path = result_path(folder, job, f"{step}.answer.json")
    try:
        document = msgspec.json.decode(boundary.read_regular_file(path))
    except (OSError, msgspec.DecodeError):
        document = None
    error = _error_in_document(document)
    if error is not None:
        return error
    log = result_path(folder, job, f"{step}.log")
    if exit_code > SIGNALS:
        number = exit_code - SIGNALS
        hint = "check whether the machine ran out of memory" if number == 9 else f"see {log}"
        return FirstError(error=f"killed by signal {number}", hint=hint)
    return FirstError(error=f"exited with status {exit_code} without a message", hint=f"see {log}")


def _error_in_document(document: Any) -> FirstError | None:
    if isinstance(document, dict) and isinstance(document.get("message"), str):
        return FirstError(
            error=_shorten(document["message"]), hint=_shorten(document.get("hint") or "")
        )
    for report in document if isinstance(document, list) else ():
        if not isinstance(report, dict):
            continue
        where = f"{report.get('arch', '')} {report.get('tier', '')}".strip()
        for case in _dicts(report.get("cases")):
            if case.get("outcome") == "failed":
                text = f"{where}: {case.get('name')}: {case.get('message')}"
                last = _last_line(case.get("log") or "")
                return FirstError(
                    error=_shorten(text if last in text else f"{text}; last error: {last}")
                )
        for finding in _dicts(report.get("findings")):
            if finding.get("severity") == "error":
                text = f"{where}: {finding.get('message')} ({finding.get('where')})"
                return FirstError(error=_shorten(text), hint=_shorten(finding.get("remedy") or ""))
        if counted := report.get("counted"):  # of `imgbuild cves`
            text = f"{where}: known vulnerabilities: {', '.join(map(str, counted))}"
            return FirstError(
                error=_shorten(text), hint=f"run imgbuild cves {report.get('target')}"
            )
    return None


def _dicts(items: Any) -> Sequence[dict[str, Any]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}…"


def record_results(
    project: Project,
    folder: Path,
    targets: Iterable[TargetJobs],
    store: Store,
    reporter: Reporter = SILENT_REPORTER,
) -> tuple[RecordedResult, ...]:
    """Add the passed and failed tiers in the jobs of `targets` to the test records.

    Runs that cannot be recorded, because the tests did not start or the image is not the locked
    image, are skipped with a warning.
    """
    recorded: list[RecordedResult] = []
    for job in (job for target_jobs in targets for job in target_jobs.all_jobs):
        if "smoke" not in job.steps or _state(folder, job, "smoke") is None:
            continue
        try:
            runs = reports.image_runs(folder / job.id)
            recorded += recording.record_runs(project, runs, store)
        except (InputError, LockStale) as error:
            reporter.warn(f"{job.id}: cannot record its smoke tests: {error.message}")
    return tuple(recorded)
