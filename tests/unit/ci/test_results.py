"""Tests reading the results of jobs, and their first error, from the files of a script."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from imgbuild.ci import results
from imgbuild.ci.results import FirstError
from tests.support.ci_jobs_sample import (
    _sample,
    _shared_sample,
    make_jobs,
    write_ended_step,
    write_passed_job,
)
from tests.support.rows import each_row

__all__ = ["_sample", "_shared_sample"]  # fixtures


def test_job_result_counts_only_for_its_digest(sample, tmp_path):
    [job] = make_jobs(sample).image
    write_passed_job(tmp_path, job)
    assert results.read_result(tmp_path, job).passed
    other = msgspec.structs.replace(job, digest=f"sha256:{'0' * 64}")
    assert not results.read_result(tmp_path, other).is_started


def test_job_that_has_not_ended_has_not_passed(sample, tmp_path):
    [job] = make_jobs(sample).image
    for step in job.steps:
        write_ended_step(tmp_path, job, step)
    result = results.read_result(tmp_path, job)
    assert (result.passed, result.failed, result.is_started) == (False, "", True)
    write_ended_step(tmp_path, job, "smoke", 3)
    result = results.read_result(tmp_path, job)
    assert (result.passed, result.failed, result.exit_code) == (False, "smoke", 3)


def test_damaged_result_file_is_ignored(sample, tmp_path):
    [job] = make_jobs(sample).image
    write_passed_job(tmp_path, job)
    results.result_path(tmp_path, job.id, "job.json").write_text("{")
    assert not results.read_result(tmp_path, job).passed


def error(folder: Path, answer: object, status: int = 1) -> FirstError:
    place = results.result_path(folder, "t@x86_64", "audit.answer.json")
    place.parent.mkdir()
    place.write_text(answer if isinstance(answer, str) else json.dumps(answer))
    return results.first_error(folder, "t@x86_64", "audit", status)


def test_command_error_is_the_first_error(tmp_path):
    answer = {"error": "LockStale", "message": "stale", "hint": "lock it"}
    assert error(tmp_path, answer) == FirstError(error="stale", hint="lock it")


@each_row("answer", ["", "[]", "[{", '{"a": 1}'])
def test_log_file_is_named_if_the_command_printed_no_message(tmp_path, answer):
    first_error = error(tmp_path, answer, 3)
    assert first_error.error == "exited with status 3 without a message"
    assert first_error.hint == f"see {tmp_path}/t@x86_64/audit.log"


def test_signal_that_ended_a_step_is_named(tmp_path):
    first_error = error(tmp_path, "", 137)
    assert first_error == FirstError(
        error="killed by signal 9", hint="check whether the machine ran out of memory"
    )


def test_first_failed_test_is_the_first_error(tmp_path):
    cases = [
        {"name": "versions", "outcome": "passed", "message": ""},
        {"name": "vllm", "outcome": "failed", "message": "no output", "log": "a\nlast line\n"},
        {"name": "ray", "outcome": "failed", "message": "later"},
    ]
    reports = [{"target": "t", "arch": "arm64", "tier": "gpu", "cases": cases, "findings": []}]
    assert error(tmp_path, reports).error == "arm64 gpu: vllm: no output; last error: last line"


def test_first_audit_error_is_the_first_error(tmp_path):
    findings = [
        {"severity": "warning", "message": "so"},
        {"severity": "error", "message": "gone", "where": "a.py:1", "remedy": "pin"},
    ]
    reports = [{"target": "t", "arch": "x86_64", "tier": "", "cases": [], "findings": findings}]
    assert error(tmp_path, reports, 4) == FirstError(error="x86_64: gone (a.py:1)", hint="pin")


def test_counted_vulnerabilities_are_the_first_error(tmp_path):
    reports = [{"target": "t", "arch": "arm64", "counted": ["vllm/CVE-1", "glibc/CVE-2"]}]
    message = "arm64: known vulnerabilities: vllm/CVE-1, glibc/CVE-2"
    assert error(tmp_path, reports) == FirstError(error=message, hint="run imgbuild cves t")
