"""Results of jobs on disk: which count, and what the first error is."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import msgspec
import pytest

import imgbuild
from imgbuild import codec
from imgbuild.ci import results, running, steps
from imgbuild.errors import InputError, WorkFailed
from imgbuild.plan import seal
from imgbuild.smoke import result
from imgbuild.values import Arch
from tests.support.ci_jobs_sample import (
    RUNNERS,
    _made,
    _place,
    _sample,
    of,
    passed,
    way,
)
from tests.support.inprocess_project import TARGET

__all__ = ["_made", "_place", "_sample"]  # fixtures


def test_a_result_counts_for_its_digest_and_its_imgbuild_alone(sample, tmp_path):
    [job] = of(sample).image
    passed(tmp_path, job, "audit")
    assert results.read_step(tmp_path, job, "audit") is not None
    other = msgspec.structs.replace(job, digest=f"sha256:{'0' * 64}")
    assert results.read_step(tmp_path, other, "audit") is None
    passed(tmp_path, job, "audit", tool="0.0")
    assert imgbuild.__version__ != "0.0"
    assert results.read_step(tmp_path, job, "audit") is None
    results.place(tmp_path, job.id, "audit", "json").write_text("{")
    assert results.read_step(tmp_path, job, "audit") is None


def test_steps_that_passed_are_not_due_again(sample, tmp_path):
    [job] = of(sample).image
    here = way(sample, RUNNERS, results=tmp_path)
    assert running.due_steps(here, job) == set(job.steps)
    passed(tmp_path, job)
    assert running.due_steps(here, job) == {"check", "size"}
    passed(tmp_path, job, "smoke", outcome="failed", exit_code=1)
    # The image that is to be tested is not on this disk, so it is built again.
    assert running.due_steps(here, job) == {"check", "size", "build", "smoke"}


def test_a_gate_opens_when_all_has_passed(sample, tmp_path):
    made = of(sample)
    known = {job.id: job for job in made.all}
    here = way(sample, results=tmp_path)
    [publish] = made.publish
    with pytest.raises(WorkFailed, match=f"{TARGET}@x86_64 has not done check, audit"):
        steps.require(here, publish, known)
    for job in (*made.image, *made.gpu):
        passed(tmp_path, job)
    steps.require(here, publish, known)
    passed(tmp_path, made.gpu[0], "smoke", outcome="failed", error="no device")
    with pytest.raises(WorkFailed, match="gpu failed at smoke: no device"):
        steps.require(here, publish, known)


def test_a_gate_stays_shut_for_tiers_that_never_ran(sample, tmp_path):
    """Tiers that were not asked for when the tests ran, by another --gate or an older ci.yaml."""
    few = of(sample, gate="gate: [static]\n")
    for job in few.image:
        results.begin(tmp_path, job)
        passed(tmp_path, job)
    more = of(sample, gate="gate: [static, cpu]\n")
    known = {job.id: job for job in more.all}
    here = way(sample, results=tmp_path)
    with pytest.raises(WorkFailed, match=f"{TARGET}@x86_64 has not done smoke"):
        steps.require(here, more.publish[0], known)
    assert running.due_steps(here, more.image[0]) == {"check", "size", "smoke", "build"}
    assert not results.read_job(tmp_path, results.begun(tmp_path, more.image[0])).passed
    passed(tmp_path, more.image[0], "smoke")
    steps.require(here, few.publish[0], {job.id: job for job in few.all})  # more is enough


def test_without_a_tier_for_every_machine_nothing_is_tested_before_the_gpu(sample):
    [image] = of(sample, gate="gate: [gpu]\n").image
    assert "smoke" not in image.steps
    assert "--verify" not in steps.command(way(sample), image, "build")
    [again] = of(sample, again=True).again
    assert "--verify" in steps.command(way(sample), again, "build")


@pytest.mark.parametrize(
    ("config", "tiers", "open_"),
    [("sealed", ("static", "cpu"), True), ("sealed", ("static",), False),
     ("", ("static", "cpu"), False), (f"sha256:{'0' * 64}", ("static", "cpu"), False)],
)  # fmt: skip
def test_tests_count_that_ran_in_the_sealed_image(sample, tmp_path, config, tiers, open_):
    [job] = of(sample).image
    here = way(sample, results=tmp_path)
    own = sample.seal.arch[Arch.X86_64].config if config == "sealed" else config
    reports = [
        result.SmokeRun(target=TARGET, arch="x86_64", tier=tier, config=own) for tier in tiers
    ]
    codec.write(results.place(tmp_path, job.id, "smoke", "answer.json"), reports)
    refused = pytest.raises(WorkFailed, match="does not say that it ran in")
    with contextlib.nullcontext() if open_ else refused:
        steps.check(here, job, "smoke", {})


@pytest.mark.parametrize(
    ("answer", "log", "status", "error", "hint"),
    [
        (b'{"message": "no room", "hint": "make room"}', "error: other\n", 1, "no room",
         "make room"),
        (b"", "one\nerror: first\nhint: do it\nerror: second\n", 1, "first", "do it"),
        (b"", "Traceback (most recent call last):\n  File x\nKeyError: 'a'\n", 1, "KeyError: 'a'",
         ""),
        (b"", "a\nb\n\n", 3, "b", ""),
        (b"", "", 3, "ended with status 3 and no message", ""),
        (b"", "half\n", -9, "killed by SIGKILL; its last line: half",
         "the kernel may have been out of memory"),
    ],
)  # fmt: skip
def test_the_first_real_error_is_found(answer, log, status, error, hint):
    said = results.first_error(answer, log, status)
    assert (said.error, said.hint) == (error, hint)


def test_the_first_test_that_failed_is_the_error():
    cases = [
        {"name": "versions", "outcome": "passed", "message": ""},
        {"name": "vllm", "outcome": "failed", "message": "no output", "log": "a\nlast line\n"},
        {"name": "ray", "outcome": "failed", "message": "later"},
    ]
    reports = [{"target": "t", "arch": "arm64", "tier": "gpu", "cases": cases, "findings": []}]
    said = results.first_error(json.dumps(reports).encode(), "error: else\n", 1)
    assert said == results.FirstError(error="arm64 gpu: vllm: no output; at last: last line")


def test_the_first_error_of_an_audit_is_the_error():
    findings = [
        {"severity": "warning", "message": "so"},
        {"severity": "error", "message": "gone", "where": "a.py:1", "remedy": "pin"},
    ]
    reports = [{"target": "t", "arch": "x86_64", "tier": "", "cases": [], "findings": findings}]
    said = results.first_error(json.dumps(reports).encode(), "", 4)
    assert said == results.FirstError(error="x86_64: gone (a.py:1)", hint="pin")


def test_vulnerabilities_that_count_are_the_error():
    reports = [{"target": "t", "arch": "arm64", "counted": ["vllm/CVE-1", "glibc/CVE-2"]}]
    said = results.first_error(json.dumps(reports).encode(), "", 4)
    error = "arm64: known vulnerabilities: vllm/CVE-1, glibc/CVE-2"
    assert said == results.FirstError(error=error, hint="imgbuild cves t")


# -- commands


def test_known_vulnerabilities_are_looked_for_where_the_settings_say_so(sample, tmp_path):
    assert "cves" not in of(sample).image[0].steps
    text = RUNNERS + "cves: {severity: critical, ignore_unfixed: true}\n"
    [job] = of(sample, text).image
    assert job.steps[:4] == ("check", "audit", "cves", "size")
    here = way(sample, text, results=tmp_path, offline=True)
    assert steps.command(here, job, "cves") == (
        "cves", TARGET, "--arch", "x86_64", "--severity", "critical", "--ignore-unfixed",
        "--matrix", str(sample.matrix), "--offline",
        "--json",
    )  # fmt: skip
    passed(tmp_path, job)
    # An advisory of today may be about an image of last week.
    assert running.due_steps(here, job) == {"check", "cves", "size"}
    short = way(sample, RUNNERS + "cves: {}\n")
    assert steps.command(short, job, "cves")[3:6] == ("x86_64", "--severity", "high")


def test_steps_are_verbs_that_one_can_paste(sample):
    made = of(sample)
    [job], [gpu], [publish] = made.image, made.gpu, made.publish
    here = way(sample, key=Path("/a/key"), through="root", plain_http=("h:1",))
    matrix = ("--matrix", str(sample.matrix))
    plain = ("--plain-http", "h:1")
    place = f"registry.example/rl@{sample.seal.digest}"
    assert steps.command(here, job, "check") == ("lock", "--check", TARGET, *matrix, "--json")
    assert steps.command(here, job, "smoke") == (
        "smoke", TARGET, "--arch", "x86_64", "--tier", "static", "--tier", "cpu",
        "--through", "root", *matrix, "--json",
    )  # fmt: skip
    assert steps.command(here, gpu, "smoke")[4:6] == ("--tier", "gpu")
    assert "--digest-only" in steps.command(here, job, "push")
    assert steps.command(here, publish, "sign") == (
        "sign", place, "--target", TARGET, "--sign-key", "/a/key", *matrix, *plain, "--json",
    )  # fmt: skip
    assert steps.command(here, publish, "tag") == (
        # The target's own tag last: where it is, a later night has nothing left to do.
        "registry", "tag", place, f"{TARGET}-20261121", TARGET, *plain, "--json",
    )  # fmt: skip


def test_nothing_is_pushed_without_a_registry_nor_signed_without_a_key(sample):
    made = of(sample)
    known = way(sample, registry="").jobs_of(made)
    assert "push" not in known[f"{TARGET}@x86_64"].steps
    assert "sign" not in known[f"{TARGET}@publish"].steps
    with pytest.raises(InputError, match="none is named"):
        running.run_job(way(sample, registry=""), known[f"{TARGET}@publish"], known)


def test_an_image_over_its_budget_fails(sample, tmp_path):
    [job] = of(sample).image
    large = msgspec.structs.replace(sample.seal.arch[Arch.X86_64], size=2_500_000)
    sealed = msgspec.structs.replace(sample.seal, arch={Arch.X86_64: large})
    codec.write(seal.seal_path(sample.folder / "images", TARGET), sealed)
    here = way(sample, RUNNERS + "budget: {'cu124*': 2, '*': 9}\n", results=tmp_path)
    with pytest.raises(WorkFailed, match=r"is 2\.5 MB to pull; its budget is 2 MB"):
        steps.check(here, job, "size", {})
    wide = way(sample, RUNNERS + "budget: {'cu13*': 2, '*': 9}\n")
    steps.check(wide, job, "size", {})


def test_another_machine_is_told_what_this_one_was(sample):
    here = way(sample, RUNNERS, arches=(Arch.X86_64,), through="root", timeout_factor=2.0)
    words = here.elsewhere()
    assert words == (
        "ci", "run", "--matrix", str(sample.matrix),
        "--results", str(sample.folder / "build/ci"), "--registry", "registry.example/rl",
        "--arch", "x86_64",
        "--gate", "static", "--gate", "cpu", "--gate", "gpu",
        "--through", "root", "--timeout-factor", "2.0",
    )  # fmt: skip
