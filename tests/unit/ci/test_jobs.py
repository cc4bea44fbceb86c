"""Tests the jobs of a pipeline, the choice of targets, and the results on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from imgbuild.ci import choosing, jobs, published, settings
from imgbuild.ci.choosing import JobPlan, JobQuery
from imgbuild.ci.published import TaggedImage
from imgbuild.cli import _ci_options
from imgbuild.errors import InputError
from imgbuild.matrix.load import load_matrix
from imgbuild.matrix.project_paths import Project
from imgbuild.matrix.select import select_targets
from imgbuild.pipeline.session import SessionOptions, open_session
from imgbuild.registry.client import RegistryClient
from imgbuild.sif import push as pushing
from imgbuild.sif.convert import ConvertedImage
from imgbuild.system.console import console
from imgbuild.values import Arch, digest_of
from tests.support.ci_jobs_sample import (
    BOTH,
    RUNNERS,
    _place,
    _sample,
    _shared_sample,
    make_jobs,
    read_settings,
)
from tests.support.inprocess_project import TARGET, UNLOCKED, SampleProject

__all__ = ["_place", "_sample", "_shared_sample"]  # fixtures


# -- settings


def test_missing_ci_settings_have_defaults(sample):
    bare = read_settings(sample)
    assert bare.gate == ("static", "cpu", "gpu")
    mine = read_settings(sample, "gate: [cpu, static]\n")
    assert mine.gate == ("static", "cpu")
    assert mine.runners == bare.runners


def test_invalid_ci_settings_are_reported_with_location(sample):
    with pytest.raises(InputError) as raised:
        read_settings(
            sample, "gate: [static, moon]\nrunners: [{labels: [], arch: x86_64, disk: 1}]\n"
        )
    lines = [(problem.line, problem.path) for problem in raised.value.problems]
    assert [line for line, _ in lines] == [2, 3]


def test_ci_settings_without_a_required_tier_are_refused(sample):
    with pytest.raises(InputError, match="no tier"):
        read_settings(sample, "gate: [gpu]\n").with_required_tiers((), gpu=False)


# -- jobs


def test_ci_jobs_are_in_dependency_order(sample):
    target_jobs = make_jobs(sample)
    assert [job.id for job in target_jobs.all_jobs] == [
        f"{TARGET}@x86_64", f"{TARGET}@x86_64-gpu", f"{TARGET}@publish",
    ]  # fmt: skip
    seen: set[str] = set()
    for job in target_jobs.all_jobs:
        assert set(job.needs) <= seen
        seen.add(job.id)
    [publish] = target_jobs.publish
    assert set(publish.needs) == seen - {publish.id}
    assert {job.digest for job in target_jobs.all_jobs} == {sample.target_digests.digest}


def test_every_architecture_is_tested_and_one_job_pushes(sample):
    target_jobs = jobs.create_jobs(UNLOCKED, BOTH, None, read_settings(sample, RUNNERS))
    assert [("push" in job.steps) for job in target_jobs.image] == [True, False]
    assert [job.arch for job in target_jobs.gpu] == [Arch.X86_64]  # if a machine has one
    assert target_jobs.digest == ""


def test_sif_jobs_run_after_each_architecture_is_tagged(sample):
    target_jobs = jobs.create_jobs(
        UNLOCKED, BOTH, None, read_settings(sample, RUNNERS + "sif: true\n")
    )
    assert [job.id for job in target_jobs.sif] == [
        f"{UNLOCKED}@x86_64-sif",
        f"{UNLOCKED}@arm64-sif",
    ]


def test_job_without_suitable_machine_is_refused(sample):
    target_jobs = make_jobs(sample, again=True)
    assert [job.runner for job in target_jobs.all_jobs] == [("a",), ("b",), ("g",), ("a",)]
    small = RUNNERS.replace("disk: 10", "disk: 1")
    with pytest.raises(InputError, match=r"requires a machine with x86_64 with \d+ GB"):
        make_jobs(sample, small)


def test_gpu_tier_requires_machine_with_gpu(sample):
    without = "".join(f"{line}\n" for line in RUNNERS.splitlines() if "gpus" not in line)
    with pytest.raises(InputError, match=r"tier gpu, but no machine in ci\.yaml has enough GPUs"):
        make_jobs(sample, without)
    assert make_jobs(sample, without, gate="gate: [static]\n").gpu == ()


# -- selection of targets


def chosen(
    sample: SampleProject, query: JobQuery, published: dict[str, TaggedImage], more: str = ""
) -> JobPlan:
    selected = select_targets(load_matrix(sample.matrix), [], everything=True, arches=[])
    ci_settings = read_settings(sample, RUNNERS + more)
    return choosing.choose_jobs(
        Project(matrix=sample.matrix), selected, ci_settings, query, published
    )


def test_target_with_a_published_digest_has_no_jobs(sample):
    job_plan = chosen(
        sample, JobQuery(), {TARGET: TaggedImage(digest=sample.target_digests.digest)}
    )
    assert [target.target for target in job_plan.targets] == [UNLOCKED]
    [passed_target] = job_plan.passed
    assert (passed_target.target, passed_target.outcome) == (TARGET, "published")
    other = chosen(sample, JobQuery(), {TARGET: TaggedImage(digest=f"sha256:{'0' * 64}")})
    assert other.passed == ()


def test_retired_target_has_jobs_only_if_it_is_requested(sample):
    row = f"  {TARGET}:\n"
    sample.edit(row, f"{row}    retired: {UNLOCKED} takes its place\n")
    read_settings(sample, RUNNERS)

    def _of(*names: str) -> list[str]:
        session = open_session(sample.matrix, SessionOptions())
        plan = settings.read_ci_settings(session.project)
        job_plan = _ci_options.choose_ci_jobs(
            session, list(names), JobQuery(), plan, None, [], everything=not names
        )
        return [target.target for target in job_plan.targets]

    assert _of() == [UNLOCKED]
    assert _of(TARGET) == [TARGET]


def test_later_run_creates_the_missing_sif_of_a_published_target(sample):
    """The SIF job failed, or the run was stopped between the tag and the SIF."""
    manifest_digest = sample.target_digests.arch[Arch.X86_64].manifest
    other = {Arch.X86_64: f"sha256:{'0' * 64}"}  # a SIF of another image
    for sifs in ({}, other):
        there = {TARGET: TaggedImage(digest=sample.target_digests.digest, sifs=sifs)}
        job_plan = chosen(sample, JobQuery(), there, "sif: true\n")
        [target] = [target for target in job_plan.targets if target.target == TARGET]
        [job] = target.all_jobs
        assert (job.id, job.steps, job.runner) == (
            f"{TARGET}@x86_64-sif", ("gate", "pull", "sif"), ("a",),
        )  # fmt: skip
    there = {
        TARGET: TaggedImage(
            digest=sample.target_digests.digest, sifs={Arch.X86_64: manifest_digest}
        )
    }
    assert [
        target.outcome for target in chosen(sample, JobQuery(), there, "sif: true\n").passed
    ] == ["published"]


def test_target_without_a_gpu_machine_has_jobs_for_pull_requests():
    """All targets of this repository have such jobs, so `ci report --strict` passes."""
    project = Project(matrix=Path(__file__).parents[3] / "matrix.yaml")
    selected = select_targets(load_matrix(project.matrix), [], everything=True, arches=[])
    ci_settings = settings.read_ci_settings(project)
    whole, reviewed = (
        {
            item.target
            for item in choosing.choose_jobs(project, selected, item, JobQuery(), {}).passed
        }
        for item in (ci_settings, ci_settings.with_required_tiers((), gpu=False))
    )
    assert whole > reviewed
    assert reviewed == set()


def test_each_target_belongs_to_one_shard(sample):
    parts = [chosen(sample, JobQuery(shard=(part, 2)), {}) for part in (1, 2)]
    names = [[target.target for target in part.targets] for part in parts]
    assert sorted(name for part in names for name in part) == sorted([TARGET, UNLOCKED])
    assert all(len(part) == 1 for part in names)


def test_target_without_machine_does_not_affect_others(sample):
    query = JobQuery(arches=(Arch.ARM64,))
    (sample.folder / "matrix.yaml").write_text(
        sample.matrix.read_text().replace("arch: [x86_64, arm64]", "arch: [arm64]")
    )
    job_plan = chosen(sample, JobQuery(), {})
    assert [target.target for target in job_plan.targets] == [TARGET]
    [passed_target] = job_plan.passed
    assert (passed_target.target, passed_target.outcome) == (UNLOCKED, "impossible")
    assert query.arches == (Arch.ARM64,)


def test_published_targets_are_read_from_registry_tags(place, tmp_path):
    done = place.push()
    selected = select_targets(load_matrix(place.sample.matrix), [], everything=True, arches=[])
    client = place.work().client
    assert published.read_published_state(client, place.repository, selected) == {
        TARGET: TaggedImage(digest=done.digest)
    }
    file = tmp_path / "x.sif"
    file.write_bytes(b"a SIF")
    image = place.sample.target_digests.arch[Arch.X86_64].manifest
    sif = ConvertedImage(
        name=TARGET, arch=Arch.X86_64, format="sif", compressor="gzip", tool="4.6", output=file,
        digest=digest_of(b"a SIF"), size=5, image=image,
    )  # fmt: skip
    pushing.push_sif(client, place.repository, sif)
    assert published.read_published_state(client, place.repository, selected, sifs=True) == {
        TARGET: TaggedImage(digest=done.digest, sifs={Arch.X86_64: image})
    }


def test_unauthorized_response_is_treated_as_an_empty_repository(place, capsys):
    """Some registries return this status for a repository that does not exist yet."""
    place.push()
    place.registry.auth, place.registry.login = "basic", ("me", "secret")
    selected = select_targets(load_matrix(place.sample.matrix), [], everything=True, arches=[])
    client = RegistryClient(first_wait=0.001, attempts=1, origin=True, reporter=console)
    assert published.read_published_state(client, place.repository, selected) == {}
    warning = " ".join(capsys.readouterr().err.split())
    assert "returned status 401 and is treated as empty" in warning
