"""Tests reports of target outcomes as tables and issues, and the `ci` commands."""

from __future__ import annotations

import json

import pytest

from imgbuild import codec
from imgbuild.ci import report, results
from imgbuild.ci.choosing import JobPlan, SkippedTarget
from imgbuild.errors import InputError
from tests.support import memory_registry
from tests.support.ci_jobs_sample import (
    RUNNERS,
    _sample,
    _shared_sample,
    make_jobs,
    read_settings,
    write_ended_step,
    write_passed_job,
)
from tests.support.inprocess_project import TARGET, Command, SampleProject

__all__ = ["_sample", "_shared_sample"]  # fixtures


# -- reports


def test_outcome_of_a_target_depends_on_its_jobs(sample, tmp_path):
    target_jobs = make_jobs(sample)
    assert report.target_outcome(tmp_path, target_jobs).outcome == "unfinished"
    write_passed_job(tmp_path, target_jobs.image[0])
    write_passed_job(tmp_path, target_jobs.gpu[0])
    assert report.target_outcome(tmp_path, target_jobs).outcome == "tested"
    write_passed_job(tmp_path, target_jobs.publish[0])
    verdict = report.target_outcome(tmp_path, target_jobs)
    assert (verdict.outcome, verdict.seconds) == ("published", 12.0)


def test_target_whose_publish_job_has_not_started_is_unfinished(sample, tmp_path):
    """The machine of the publish job failed before the first step or did not exist."""
    target_jobs = make_jobs(sample, gate="gate: [static]\nsif: true\n")
    write_passed_job(tmp_path, target_jobs.image[0])
    assert (
        report.target_outcome(tmp_path, target_jobs).outcome == "tested"
    )  # for a change under review
    verdict = report.target_outcome(tmp_path, target_jobs, published=True)
    assert (verdict.outcome, verdict.needs_attention) == ("unfinished", True)
    assert verdict.error == f"not run: {TARGET}@publish, {TARGET}@x86_64-sif"
    assert verdict.repeat.startswith(f"imgbuild ci script {TARGET}@publish --registry ")
    write_passed_job(tmp_path, target_jobs.publish[0])
    verdict = report.target_outcome(tmp_path, target_jobs, published=True)
    assert (verdict.outcome, verdict.job) == ("unfinished", f"{TARGET}@x86_64-sif")
    write_passed_job(tmp_path, target_jobs.sif[0])
    assert report.target_outcome(tmp_path, target_jobs, published=True).outcome == "published"


def test_ci_report_is_printed_as_table_markdown_and_issue(sample, tmp_path):
    target_jobs = make_jobs(sample)
    [image] = target_jobs.image
    write_ended_step(tmp_path, image, "check")
    write_ended_step(tmp_path, image, "audit", 4)
    document = {"message": "one | two\nthree", "hint": "pin it"}
    codec.write_document(results.result_path(tmp_path, image.id, "audit.answer.json"), document)
    done = SkippedTarget(
        target="other", digest=sample.target_digests.digest, outcome="published", reason="as it is"
    )
    gone = SkippedTarget(target="third", digest="", outcome="impossible", reason="no machine")
    overview = report.job_overview(tmp_path, JobPlan(targets=(target_jobs,), passed=(done, gone)))
    assert [target.target for target in overview.outcomes_needing_attention(strict=False)] == [
        TARGET
    ]
    assert [target.target for target in overview.outcomes_needing_attention(strict=True)] == [
        TARGET,
        "third",
    ]
    text = report.overview_markdown(overview)
    assert f"| {TARGET} | ❌ failed | `{TARGET}@x86_64` audit | one \\| two three |" in text
    assert "| other | ✅ published |" in text
    issue = report.issue_text(overview.outcomes_needing_attention(strict=False)[0])
    assert "exit status 4" in issue
    assert "    one | two\n    three" in issue
    line = f"imgbuild ci script {TARGET}@x86_64 --no-push > job.sh && bash job.sh"
    assert f"    {line}\n" in issue
    assert "imgbuild ci script" not in report.issue_text(overview.targets[2])


# -- the command line


@pytest.fixture(name="command")
def _command(
    sample: SampleProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    memory_registry.isolate_logins(monkeypatch, sample.folder)
    return Command(monkeypatch, capsys)


def test_ci_jobs_are_a_valid_matrix_for_github_actions(sample, command):
    read_settings(sample, RUNNERS)
    output = sample.folder / "output"
    output.write_text("before=1\n")
    done = command("ci", "jobs", TARGET, "--no-gpu", "--actions", str(output), "--json")
    document = codec.decode(done.stdout.encode(), JobPlan, file="stdout")
    before, targets, alone = output.read_text().splitlines()
    assert before == "before=1"
    [target] = json.loads(targets.removeprefix("targets="))
    assert target["target"] == TARGET
    assert target["gpu"] == []
    assert [job["id"] for job in json.loads(alone.removeprefix("jobs="))] == [f"{TARGET}@x86_64"]
    assert [planned.target for planned in document.targets] == [TARGET]


def test_nightly_report_requires_published_images(sample, command):
    read_settings(sample, RUNNERS)
    chosen = command("ci", "jobs", TARGET, "--gate", "static", "--json").stdout
    (sample.folder / "jobs.json").write_text(chosen)
    [target] = codec.decode(chosen.encode(), JobPlan, file="stdout").targets
    write_passed_job(sample.folder / "build/ci", target.image[0])
    words = ("ci", "report", "--jobs-file", "jobs.json", "--issues", "issues")
    assert command(*words).status == 0
    assert not (sample.folder / "issues").exists()
    assert command(*words, "--expect-published").status == 1
    assert (sample.folder / f"issues/{TARGET}.md").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("jobs", TARGET, "--shard", "3/2"), "--shard 3/2: not a valid shard"),
        (
            ("script", f"{TARGET}@moon", "--no-push", "--no-gpu"),
            f"{TARGET} has no job {TARGET}@moon; specify one of:",
        ),
        (("script", TARGET, "--no-push", "--keyless"), "--no-push cannot be combined"),
        (
            ("script", TARGET, "--registry", "h/n", "--sign-key", "k", "--keyless"),
            "cannot be combined",
        ),
        (("script", TARGET, "--no-gpu"), "no repository is specified to push images to"),
        (
            ("script", TARGET, f"{TARGET}@publish", "--no-push"),
            "jobs and targets cannot be combined",
        ),
        (("script", f"{TARGET}@publish", "--no-push"), "but no registry is specified"),
        (("script", TARGET, "--no-push", "--through", "here"), "not the active environment"),
        (("script", TARGET, "--no-push", "--partition", "gpu"), "Slurm options require --on slurm"),
        (("report",), "contains no results for targets of the matrix"),
    ],
)
def test_invalid_ci_report_options_are_refused(sample, command, words, message):
    read_settings(sample, RUNNERS)
    done = command("ci", *words)
    assert done.status == InputError.exit_code
    assert message in " ".join(done.stderr.replace("hint: ", "; ").split()).replace(" ;", ";")


def test_report_lists_only_targets_with_results(sample, command):
    read_settings(sample, RUNNERS + "gate: [static]\n")
    [image] = make_jobs(sample, RUNNERS + "gate: [static]\n").image
    write_passed_job(sample.folder / "build/ci", image)
    done = command("ci", "report", "--json", status=0)
    assert [
        (target["target"], target["outcome"]) for target in json.loads(done.stdout)["targets"]
    ] == [(TARGET, "tested")]


def test_strict_report_fails_for_target_without_machine(sample, command):
    read_settings(sample, RUNNERS)
    gone = SkippedTarget(target="third", digest="", outcome="impossible", reason="no machine")
    codec.write_document(sample.folder / "jobs.json", JobPlan(targets=(), passed=(gone,)))
    words = ("ci", "report", "--jobs-file", "jobs.json", "--issues", "issues")
    command(*words, "--summary", "page", status=0)
    assert "| third | ⚠️ impossible |  | no machine |" in (sample.folder / "page").read_text()
    assert command(*words, "--strict").status == 1
    assert (sample.folder / "issues/third.md").exists()
