"""Jobs as values, the choice of targets, results on disk."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import imgbuild
from imgbuild import codec
from imgbuild.ci import choosing, jobs, nightly, results, running, settings
from imgbuild.ci.choosing import JobPlan, JobQuery, TaggedImage
from imgbuild.errors import InputError, WorkFailed
from imgbuild.matrix.load import load
from imgbuild.matrix.select import select
from imgbuild.plan import seal
from imgbuild.project import Project
from imgbuild.registry.client import Client
from imgbuild.sif import push as pushing
from imgbuild.sif.convert import ConvertedImage
from imgbuild.smoke import result
from imgbuild.system.console import console
from imgbuild.values import Arch, digest_of
from tests.support.ci_jobs_sample import (
    BOTH,
    RUNNERS,
    _made,
    _place,
    _sample,
    of,
    passed,
    told,
    way,
)
from tests.support.inprocess_project import TARGET, UNLOCKED, Sample

__all__ = ["_made", "_place", "_sample"]  # fixtures


# -- settings


def test_what_the_file_leaves_out_is_the_tool_s(sample):
    bare = told(sample)
    assert bare.gate == ("static", "cpu", "gpu")
    mine = told(sample, "gate: [cpu, static]\n")
    assert mine.gate == ("static", "cpu")
    assert mine.runners == bare.runners


def test_wrong_settings_are_told_with_their_place(sample):
    with pytest.raises(InputError) as raised:
        told(sample, "gate: [static, moon]\nrunners: [{labels: [], arch: x86_64, disk: 1}]\n")
    lines = [(problem.line, problem.path) for problem in raised.value.problems]
    assert [line for line, _ in lines] == [2, 3]


def test_a_gate_is_never_empty(sample):
    with pytest.raises(InputError, match="no tier"):
        told(sample, "gate: [gpu]\n").gated((), gpu=False)


# -- jobs


def test_jobs_stand_after_those_that_they_need(sample):
    made = of(sample)
    assert [job.id for job in made.all] == [
        f"{TARGET}@x86_64", f"{TARGET}@x86_64-gpu", f"{TARGET}@publish",
    ]  # fmt: skip
    seen: set[str] = set()
    for job in made.all:
        assert set(job.needs) <= seen
        seen.add(job.id)
    [publish] = made.publish
    assert set(publish.needs) == seen - {publish.id}
    assert {job.digest for job in made.all} == {sample.seal.digest}


def test_every_architecture_is_proven_and_one_job_pushes(sample):
    found = told(sample, RUNNERS)
    made = jobs.jobs(UNLOCKED, BOTH, None, found)
    assert [("push" in job.steps) for job in made.image] == [True, False]
    assert [job.arch for job in made.gpu] == [Arch.X86_64]  # where a machine has one
    assert made.digest == ""


def test_a_sif_comes_after_the_tags_of_each_architecture(sample):
    made = jobs.jobs(UNLOCKED, BOTH, None, told(sample, RUNNERS + "sif: true\n"))
    assert [job.id for job in made.sif] == [f"{UNLOCKED}@x86_64-sif", f"{UNLOCKED}@arm64-sif"]
    assert {job.needs for job in made.sif} == {(f"{UNLOCKED}@publish",)}
    command = running.command(way(sample), made.sif[1], "sif")
    assert command[:6] == ("push", UNLOCKED, "registry.example/rl", "--sif", "--arch", "arm64")


def test_machines_fit_or_the_job_is_refused(sample):
    made = of(sample, again=True)
    assert [job.runner for job in made.all] == [("a",), ("b",), ("g",), ("a",)]
    small = RUNNERS.replace("disk: 10", "disk: 1")
    with pytest.raises(InputError, match=r"wants a machine of x86_64 with \d+ GB"):
        of(sample, small)


def test_a_gpu_tier_needs_a_machine_that_has_one(sample):
    without = "".join(f"{line}\n" for line in RUNNERS.splitlines() if "gpus" not in line)
    with pytest.raises(InputError, match="must pass tier gpu, and no machine with enough GPUs"):
        of(sample, without)
    assert of(sample, without, gate="gate: [static]\n").gpu == ()


# -- which targets


def chosen(
    sample: Sample, asked: JobQuery, published: dict[str, TaggedImage], more: str = ""
) -> JobPlan:
    """The choice among all targets of the matrix."""
    matrix = load(sample.matrix)
    selected = select(matrix, [], everything=True, arches=[])
    found = told(sample, RUNNERS + more)
    return choosing.choose(Project(matrix=sample.matrix), selected, found, asked, published)


def test_a_published_digest_has_no_jobs(sample):
    found = chosen(sample, JobQuery(), {TARGET: TaggedImage(digest=sample.seal.digest)})
    assert [one.target for one in found.targets] == [UNLOCKED]
    [one] = found.passed
    assert (one.target, one.outcome) == (TARGET, "published")
    other = chosen(sample, JobQuery(), {TARGET: TaggedImage(digest=f"sha256:{'0' * 64}")})
    assert other.passed == ()


def test_a_sif_that_a_published_target_lacks_is_made_in_a_later_night(sample):
    """Its job failed, or the night was stopped between the tag and the SIF."""
    own = sample.seal.arch[Arch.X86_64].manifest
    other = {Arch.X86_64: f"sha256:{'0' * 64}"}  # one of another image
    for sifs in ({}, other):
        there = {TARGET: TaggedImage(digest=sample.seal.digest, sifs=sifs)}
        made = chosen(sample, JobQuery(), there, "sif: true\n")
        [target] = [one for one in made.targets if one.target == TARGET]
        [job] = target.all
        assert (job.id, job.steps, job.runner) == (
            f"{TARGET}@x86_64-sif", ("gate", "pull", "sif"), ("a",),
        )  # fmt: skip
    there = {TARGET: TaggedImage(digest=sample.seal.digest, sifs={Arch.X86_64: own})}
    assert [one.outcome for one in chosen(sample, JobQuery(), there, "sif: true\n").passed] == [
        "published"
    ]


def test_the_gate_of_a_sif_opens_for_what_is_published(place, tmp_path):
    """On a machine without the results of the night that published it."""
    made = jobs.jobs(TARGET, (Arch.X86_64,), place.sample.seal, told(place.sample, "sif: true\n"))
    known = {job.id: job for job in made.all}
    here = way(place.sample, results=tmp_path / "none", registry=str(place.repository))
    [sif], [publish] = made.sif, made.publish
    status, said = running._here(running._gate, here, sif, known)
    assert (status, "has to wait" in said.error) == (WorkFailed.exit_code, True)
    place.push()
    assert running._here(running._gate, here, sif, known)[0] == 0
    assert running._here(running._gate, here, publish, known)[0] == WorkFailed.exit_code


def test_a_target_that_lacks_a_gpu_machine_alone_has_jobs_under_review():
    """So `ci report --strict` is not red for it: of this repository's own targets all have some."""
    root = Path(__file__).parents[3]
    project = Project(matrix=root / "matrix.yaml")
    selected = select(load(project.matrix), [], everything=True, arches=[])
    own = settings.read(project)
    whole, reviewed = (
        {one.target for one in choosing.choose(project, selected, one, JobQuery(), {}).passed}
        for one in (own, own.gated((), gpu=False))
    )
    assert whole > reviewed
    assert reviewed == set()


def test_shards_share_the_targets(sample):
    parts = [chosen(sample, JobQuery(shard=(part, 2)), {}) for part in (1, 2)]
    names = [[one.target for one in part.targets] for part in parts]
    assert sorted(name for part in names for name in part) == sorted([TARGET, UNLOCKED])
    assert all(len(part) == 1 for part in names)


def test_a_target_without_a_machine_stops_no_other_one(sample):
    asked = JobQuery(arches=(Arch.ARM64,))
    (sample.folder / "matrix.yaml").write_text(
        sample.matrix.read_text().replace("arch: [x86_64, arm64]", "arch: [arm64]")
    )
    found = chosen(sample, JobQuery(), {})
    assert [one.target for one in found.targets] == [TARGET]
    [one] = found.passed
    assert (one.target, one.outcome) == (UNLOCKED, "impossible")
    assert asked.arches == (Arch.ARM64,)


def test_tags_say_what_is_published(place, tmp_path):
    done = place.push()
    selected = select(load(place.sample.matrix), [], everything=True, arches=[])
    client = place.work().client
    assert choosing.published(client, place.repository, selected) == {
        TARGET: TaggedImage(digest=done.digest)
    }
    file = tmp_path / "x.sif"
    file.write_bytes(b"a SIF")
    image = place.sample.seal.arch[Arch.X86_64].manifest
    sif = ConvertedImage(
        name=TARGET, arch=Arch.X86_64, format="sif", compressor="gzip", tool="4.6", output=file,
        digest=digest_of(b"a SIF"), size=5, image=image,
    )  # fmt: skip
    pushing.push(client, place.repository, sif)
    assert choosing.published(client, place.repository, selected, sifs=True) == {
        TARGET: TaggedImage(digest=done.digest, sifs={Arch.X86_64: image})
    }


def test_a_registry_that_does_not_say_has_nothing_published(place, capsys):
    """As some answer for a repository that does not exist yet."""
    place.push()
    place.registry.auth, place.registry.login = "basic", ("me", "secret")
    selected = select(load(place.sample.matrix), [], everything=True, arches=[])
    client = Client(first_wait=0.001, attempts=1, origin=True, reporter=console)
    assert choosing.published(client, place.repository, selected) == {}
    assert "does not say what it has (401)" in " ".join(capsys.readouterr().err.split())


# -- results


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
        running.require(here, publish, known)
    for job in (*made.image, *made.gpu):
        passed(tmp_path, job)
    running.require(here, publish, known)
    passed(tmp_path, made.gpu[0], "smoke", outcome="failed", error="no device")
    with pytest.raises(WorkFailed, match="gpu failed at smoke: no device"):
        running.require(here, publish, known)


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
        running.require(here, more.publish[0], known)
    assert running.due_steps(here, more.image[0]) == {"check", "size", "smoke", "build"}
    assert not results.read_job(tmp_path, results.begun(tmp_path, more.image[0])).passed
    passed(tmp_path, more.image[0], "smoke")
    running.require(here, few.publish[0], {job.id: job for job in few.all})  # more is enough


def test_without_a_tier_for_every_machine_nothing_is_tested_before_the_gpu(sample):
    [image] = of(sample, gate="gate: [gpu]\n").image
    assert "smoke" not in image.steps
    assert "--verify" not in running.command(way(sample), image, "build")
    [again] = of(sample, again=True).again
    assert "--verify" in running.command(way(sample), again, "build")


@pytest.mark.parametrize(
    ("config", "tiers", "open_"),
    [("sealed", ("static", "cpu"), True), ("sealed", ("static",), False),
     ("", ("static", "cpu"), False), (f"sha256:{'0' * 64}", ("static", "cpu"), False)],
)  # fmt: skip
def test_tests_count_that_ran_in_the_sealed_image(sample, tmp_path, config, tiers, open_):
    [job] = of(sample).image
    here = way(sample, results=tmp_path)
    own = sample.seal.arch[Arch.X86_64].config if config == "sealed" else config
    reports = [result.Tested(target=TARGET, arch="x86_64", tier=tier, config=own) for tier in tiers]
    codec.write(results.place(tmp_path, job.id, "smoke", "answer.json"), reports)
    status, said = running._here(running._tested, here, job, {})
    assert (status == 0) is open_
    assert open_ or "does not say that it ran in" in said.error


@pytest.mark.parametrize(
    ("answer", "log", "status", "error", "hint"),
    [
        (b'{"message": "no room", "hint": "make room"}', "error: other\n", 1, "no room",
         "make room"),
        (b"", "one\nerror: first\nhint: do it\nerror: second\n", 1, "first", "do it"),
        (b"", "Traceback (most recent call last):\n  File x\nKeyError: 'a'\n", 1, "KeyError: 'a'",
         ""),
        (b"", "a\nb\n\n", 3, "b", ""),
        (b"", "", 3, "it ended with status 3 and said nothing", ""),
        (b"", "half\n", -9, "killed by SIGKILL; its last line: half",
         "a kernel short of memory kills so"),
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


# -- commands


def test_steps_are_verbs_that_one_can_paste(sample):
    made = of(sample)
    [job], [gpu], [publish] = made.image, made.gpu, made.publish
    here = way(sample, key=Path("/a/key"), through="root", plain_http=("h:1",))
    matrix = ("--matrix", str(sample.matrix))
    plain = ("--plain-http", "h:1")
    place = f"registry.example/rl@{sample.seal.digest}"
    assert running.command(here, job, "check") == ("lock", "--check", TARGET, *matrix, "--json")
    assert running.command(here, job, "smoke") == (
        "smoke", TARGET, "--arch", "x86_64", "--tier", "static", "--tier", "cpu",
        "--through", "root", *matrix, "--json",
    )  # fmt: skip
    assert running.command(here, gpu, "smoke")[4:6] == ("--tier", "gpu")
    assert "--digest-only" in running.command(here, job, "push")
    assert running.command(here, publish, "sign") == (
        "sign", place, "--target", TARGET, "--sign-key", "/a/key", *matrix, *plain, "--json",
    )  # fmt: skip
    assert running.command(here, publish, "tag") == (
        # The target's own tag last: where it is, a later night has nothing left to do.
        "registry", "tag", place, f"{TARGET}-20261121", TARGET, *plain, "--json",
    )  # fmt: skip


def test_nothing_is_pushed_without_a_registry_nor_signed_without_a_key(sample):
    made = of(sample)
    known = running.known(way(sample, registry=""), made)
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
    status, said = running._here(running._size, here, job, {})
    assert status == 1
    assert "is 2.5 MB to pull; its budget is 2 MB" in said.error
    wide = way(sample, RUNNERS + "budget: {'cu13*': 2, '*': 9}\n")
    assert running._here(running._size, wide, job, {})[0] == 0


def test_another_machine_is_told_what_this_one_was(sample):
    here = way(sample, RUNNERS, arches=(Arch.X86_64,), through="root", timeout_factor=2.0)
    words = nightly.run_command(here)[3:]
    assert words == (
        "ci", "run", "--matrix", str(sample.matrix),
        "--results", str(sample.folder / "build/ci"), "--registry", "registry.example/rl",
        "--arch", "x86_64",
        "--gate", "static", "--gate", "cpu", "--gate", "gpu",
        "--through", "root", "--timeout-factor", "2.0",
    )  # fmt: skip
