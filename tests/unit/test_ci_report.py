"""What became of a target, for people and issues; the verbs `ci` and `nightly`."""

from __future__ import annotations

import json

import pytest

from imgbuild import codec
from imgbuild.ci import report
from imgbuild.ci.choosing import Chosen, Passed
from imgbuild.errors import InputError
from tests import registries
from tests.unit.ci_world import RUNNERS, _made, _world, of, passed, told
from tests.unit.cli_project import TARGET, Command, World

__all__ = ["_made", "_world"]  # fixtures


# -- reports


def test_a_target_is_what_its_jobs_are(world, tmp_path):
    made = of(world)
    assert report.verdict(tmp_path, made).outcome == "unfinished"
    passed(tmp_path, made.image[0])
    passed(tmp_path, made.gpu[0])
    assert report.verdict(tmp_path, made).outcome == "proven"
    passed(tmp_path, made.publish[0])
    found = report.verdict(tmp_path, made)
    assert (found.outcome, found.seconds) == ("published", 12.0)


def test_who_waits_in_vain_is_not_the_first_that_failed(world, tmp_path):
    made = of(world)
    passed(tmp_path, made.image[0], "check", "audit")
    passed(tmp_path, made.publish[0], "gate", outcome="failed", error="has to wait", exit_code=1)
    assert report.verdict(tmp_path, made).outcome == "unfinished"
    passed(tmp_path, made.image[0], "smoke", outcome="failed", error="broken", exit_code=1)
    found = report.verdict(tmp_path, made)
    assert (found.outcome, found.job, found.error) == ("failed", f"{TARGET}@x86_64", "broken")


def test_a_report_is_read_by_people_and_issues(world, tmp_path):
    made = of(world)
    said = {"outcome": "failed", "error": "one | two\nthree", "hint": "pin it", "exit_code": 4}
    passed(tmp_path, made.image[0], "audit", **said)
    done = Passed(target="other", digest=world.seal.digest, outcome="published", reason="as it is")
    gone = Passed(target="third", digest="", outcome="impossible", reason="no machine")
    found = report.overview(tmp_path, Chosen(targets=(made,), passed=(done, gone)))
    assert [one.target for one in found.bad] == [TARGET, "third"]
    text = report.markdown(found)
    assert f"| {TARGET} | ❌ failed | `{TARGET}@x86_64` audit | one \\| two three |" in text
    assert "| other | ✅ published |" in text
    issue = report.issue(found.bad[0])
    assert "exit status 4" in issue
    assert "    one | two\n    three" in issue
    assert f"imgbuild ci run {TARGET}@x86_64" in issue
    assert "imgbuild ci run" not in report.issue(found.bad[1])


# -- the command line


@pytest.fixture(name="command")
def _command(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    registries.alone(monkeypatch, world.folder)
    return Command(monkeypatch, capsys)


def test_jobs_fit_a_matrix_of_actions(world, command):
    told(world, RUNNERS)
    output = world.folder / "output"
    output.write_text("before=1\n")
    done = command("ci", "jobs", TARGET, "--no-gpu", "--actions", str(output), "--json")
    document = codec.decode(done.stdout.encode(), Chosen, file="stdout")
    before, targets, alone = output.read_text().splitlines()
    assert before == "before=1"
    [target] = json.loads(targets.removeprefix("targets="))
    assert target["target"] == TARGET
    assert target["gpu"] == []
    assert [job["id"] for job in json.loads(alone.removeprefix("jobs="))] == [f"{TARGET}@x86_64"]
    assert [one.target for one in document.targets] == [TARGET]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("jobs", TARGET, "--shard", "3/2"), "--shard 3/2 is no part"),
        (("run", f"{TARGET}@moon", "--no-push", "--no-gpu"), f"{TARGET} has no job {TARGET}@moon"),
        (("run", f"{TARGET}@x86_64", "--no-push", "--keyless"), "--no-push: nothing goes"),
        (("run", "a@b", "--registry", "h/n", "--key", "k", "--keyless"), "two ways to sign"),
        (("run", f"{TARGET}@x86_64", "--no-gpu"), "no registry is named"),
    ],
)
def test_what_cannot_be_meant_is_refused(world, command, words, message):
    told(world, RUNNERS)
    done = command("ci", *words)
    assert done.status == InputError.exit_code
    assert message in " ".join(done.stderr.split())


def test_a_night_needs_a_registry(command):
    done = command("nightly", "--all")
    assert done.status == InputError.exit_code
    assert "no registry is named" in done.stderr
