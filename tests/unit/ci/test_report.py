"""What became of a target, for people and issues; the verbs `ci` and `nightly`."""

from __future__ import annotations

import json
import shlex

import pytest

from imgbuild import codec
from imgbuild.ci import report, results
from imgbuild.ci.choosing import JobPlan, SkippedTarget
from imgbuild.ci.results import StepResult
from imgbuild.errors import InputError
from tests.support import memory_registry
from tests.support.ci_jobs_sample import RUNNERS, _made, _sample, of, passed, read_settings, way
from tests.support.inprocess_project import TARGET, Command, Sample

__all__ = ["_made", "_sample"]  # fixtures


# -- reports


def test_a_target_is_what_its_jobs_are(sample, tmp_path):
    made = of(sample)
    assert report.verdict(tmp_path, made).outcome == "unfinished"
    passed(tmp_path, made.image[0])
    passed(tmp_path, made.gpu[0])
    assert report.verdict(tmp_path, made).outcome == "tested"
    passed(tmp_path, made.publish[0])
    found = report.verdict(tmp_path, made)
    assert (found.outcome, found.seconds) == ("published", 12.0)


def test_what_was_to_be_published_and_was_not_begun_is_unfinished(sample, tmp_path):
    """The machine of the job that publishes died before its first step, or there was none."""
    made = of(sample, gate="gate: [static]\nsif: true\n")
    passed(tmp_path, made.image[0])
    assert report.verdict(tmp_path, made).outcome == "tested"  # of a change under review
    found = report.verdict(tmp_path, made, published=True)
    assert (found.outcome, found.bad) == ("unfinished", True)
    assert f"{TARGET}@publish has not done gate, sign, tag" in found.error
    passed(tmp_path, made.publish[0])
    found = report.verdict(tmp_path, made, published=True)
    assert (found.outcome, found.bad) == ("unfinished", True)
    assert f"{TARGET}@x86_64-sif has not done" in found.error
    passed(tmp_path, made.sif[0])
    assert report.verdict(tmp_path, made, published=True).outcome == "published"


def test_who_waits_in_vain_is_not_the_first_that_failed(sample, tmp_path):
    made = of(sample)
    passed(tmp_path, made.image[0], "check", "audit")
    passed(tmp_path, made.publish[0], "gate", outcome="failed", error="has to wait", exit_code=1)
    assert report.verdict(tmp_path, made).outcome == "unfinished"
    passed(tmp_path, made.image[0], "smoke", outcome="failed", error="broken", exit_code=1)
    found = report.verdict(tmp_path, made)
    assert (found.outcome, found.job, found.error) == ("failed", f"{TARGET}@x86_64", "broken")


def test_a_report_is_read_by_people_and_issues(sample, tmp_path):
    made = of(sample)
    line = way(sample).repeat(made.image[0], alone=True)
    said = {
        "outcome": "failed",
        "repeat": line,
        "error": "one | two\nthree",
        "hint": "pin it",
        "exit_code": 4,
    }
    passed(tmp_path, made.image[0], "audit", **said)
    done = SkippedTarget(
        target="other", digest=sample.seal.digest, outcome="published", reason="as it is"
    )
    gone = SkippedTarget(target="third", digest="", outcome="impossible", reason="no machine")
    found = report.overview(tmp_path, JobPlan(targets=(made,), passed=(done, gone)))
    assert [one.target for one in found.wrong(strict=False)] == [TARGET]
    assert [one.target for one in found.wrong(strict=True)] == [TARGET, "third"]
    text = report.markdown(found)
    assert f"| {TARGET} | ❌ failed | `{TARGET}@x86_64` audit | one \\| two three |" in text
    assert "| other | ✅ published |" in text
    issue = report.issue(found.wrong(strict=False)[0])
    assert "exit status 4" in issue
    assert "    one | two\n    three" in issue
    assert f"    imgbuild ci run {TARGET}@x86_64 --no-push" in issue
    assert "imgbuild ci run" not in report.issue(found.targets[2])


def test_who_is_told_of_an_unfinished_target_has_the_line_of_its_first_open_job(sample, tmp_path):
    made = of(sample)
    [image], [gpu], [publish] = made.image, made.gpu, made.publish
    found = report.verdict(tmp_path, made)
    assert (found.job, found.repeat) == (image.id, f"imgbuild ci run {image.id} --no-push")
    passed(tmp_path, image)
    found = report.verdict(tmp_path, made, published=True)
    assert (found.job, found.repeat) == (gpu.id, "")  # never begun: nobody says where it lies
    line = way(sample).repeat(gpu)
    results.begin(tmp_path, gpu, line)
    found = report.verdict(tmp_path, made, published=True)
    assert (found.outcome, found.job, found.repeat) == ("unfinished", gpu.id, line)
    issue = report.issue(found)
    assert "exit status" not in issue
    assert f"    {line}\n" in issue
    assert results.begun(tmp_path, gpu).steps == gpu.steps
    passed(tmp_path, gpu)
    assert report.verdict(tmp_path, made, published=True).job == publish.id


# -- the command line


@pytest.fixture(name="command")
def _command(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    memory_registry.alone(monkeypatch, sample.folder)
    return Command(monkeypatch, capsys)


def test_jobs_fit_a_matrix_of_actions(sample, command):
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
    assert [one.target for one in document.targets] == [TARGET]


def test_a_report_of_a_night_asks_for_what_is_published(sample, command):
    read_settings(sample, RUNNERS)
    chosen = command("ci", "jobs", TARGET, "--gate", "static", "--json").stdout
    (sample.folder / "jobs.json").write_text(chosen)
    [target] = codec.decode(chosen.encode(), JobPlan, file="stdout").targets
    passed(sample.folder / "build/ci", target.image[0])
    words = ("ci", "report", "--jobs-file", "jobs.json", "--issues", "issues")
    assert command(*words).status == 0
    assert not (sample.folder / "issues").exists()
    assert command(*words, "--expect-published").status == 1
    assert (sample.folder / f"issues/{TARGET}.md").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("jobs", TARGET, "--shard", "3/2"), "--shard 3/2: not a part"),
        (("run", f"{TARGET}@moon", "--no-push", "--no-gpu"), f"{TARGET} has no job {TARGET}@moon"),
        (("run", f"{TARGET}@x86_64", "--no-push", "--keyless"), "--no-push cannot be combined"),
        (("run", "a@b", "--registry", "h/n", "--sign-key", "k", "--keyless"), "cannot be combined"),
        (("run", f"{TARGET}@x86_64", "--no-gpu"), "no repository is named"),
        (
            ("run", f"{TARGET}@x86_64", "--no-push", "--through", "here"),
            "not the active environment",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(sample, command, words, message):
    read_settings(sample, RUNNERS)
    done = command("ci", *words)
    assert done.status == InputError.exit_code
    assert message in " ".join(done.stderr.split())


def test_the_line_that_a_gate_hints_at_runs(sample, command):
    read_settings(sample, RUNNERS)
    folder = sample.folder / "build/ci"
    made = of(sample, gate="gate: [static, gpu]\n")
    [image], [gpu] = made.image, made.gpu
    passed(folder, image, registry="registry.example/rl")
    passed(folder, gpu, "pull", "smoke")  # and not its gate
    (sample.folder / "ci.yaml").unlink()
    words = ("--registry", "registry.example/rl", "--gate", "static", "--gate", "gpu")
    done = command("ci", "run", f"{TARGET}@publish", *words)
    assert done.status == 1
    result = codec.read(results.place(folder, f"{TARGET}@publish", "gate", "json"), StepResult)
    _, _, line = result.hint.partition("run it first: imgbuild ")
    again = command(*shlex.split(line))
    assert (again.status, again.stdout.strip()) == (0, f"{gpu.id} passed"), again.stderr
    assert "--no-push" not in way(sample).repeat(made.publish[0], alone=True)


def test_a_report_is_of_the_last_night_or_of_what_is_asked(sample, command):
    read_settings(sample, RUNNERS)
    chosen = command("ci", "jobs", TARGET, "--gate", "static", "--json").stdout
    [target] = codec.decode(chosen.encode(), JobPlan, file="stdout").targets
    passed(sample.folder / "build/ci", target.image[0])
    assert command("ci", "report", "--json").status == 1  # of all targets and tiers
    asked = json.loads(command("ci", "report", "--gate", "static", "--json").stdout)
    said = {one["target"]: one["outcome"] for one in asked["targets"]}
    assert said.pop(TARGET) == "tested"
    assert set(said.values()) == {"unfinished"}
    (sample.folder / "build/ci/jobs.json").write_text(chosen)
    assert command("ci", "report").status == 0


def test_what_no_machine_can_prove_is_red_if_asked_for(sample, command):
    read_settings(sample, RUNNERS)
    gone = SkippedTarget(target="third", digest="", outcome="impossible", reason="no machine")
    codec.write(sample.folder / "jobs.json", JobPlan(targets=(), passed=(gone,)))
    words = ("ci", "report", "--jobs-file", "jobs.json", "--issues", "issues")
    done = command(*words, "--summary", "page")
    assert done.status == 0
    assert "| third | ⚠️ impossible |  | no machine |" in (sample.folder / "page").read_text()
    assert command(*words, "--strict").status == 1
    assert (sample.folder / "issues/third.md").exists()


def test_a_night_needs_a_registry(command):
    done = command("ci", "nightly", "--all")
    assert done.status == InputError.exit_code
    assert "no repository is named" in done.stderr
