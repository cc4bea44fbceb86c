"""Tests the scripts of `ci script` and of the workflows with a real registry and real images.

A pin of a small project is changed, and the image is pushed and tagged. A target that fails its
smoke tests gets no tag and an issue. An interrupted script resumes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.attest.signing import forms
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import ImageReference, Repository, parse_repository
from tests.support import ci_repository, docker_registry, needs
from tests.support.ci_repository import (
    BROKEN,
    CAUSE,
    OTHER,
    Sample,
    ci_script,
    run_script,
    step_states,
)
from tests.support.sample_project import TARGET
from tests.support.servers import FileSite, serve_site

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.timeout(1200)]
ARCH = "x86_64"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    needs.user_namespaces()
    folder = tmp_path_factory.mktemp("ci")
    with (
        serve_site(FileSite(files=ci_repository.index().site_files())) as site,
        docker_registry.serve_registry(folder / "registry") as registry,
    ):
        project = ci_repository.create_project(folder / "project", site.url("simple"))
        base = ci_repository.git(project.folder, "rev-parse", "HEAD")
        yield Sample(project, registry, base, folder / "scripts")


def test_interrupted_ci_script_resumes_without_repeating_steps(sample):
    path = ci_script(sample, "--all", "--registry", sample.place("rl"))
    begun = sample.project.folder / f"build/ci/{OTHER}@{ARCH}/audit.json"
    with subprocess.Popen(
        ["bash", str(path)], env=sample.project.environment(), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        while running.poll() is None and not begun.exists():
            time.sleep(0.05)
        os.killpg(running.pid, signal.SIGINT)  # as Ctrl-C does
        _, messages = running.communicate()
    assert running.returncode == 130, messages
    assert "interrupted; run this script again to continue" in messages
    before, request_count = step_states(sample), len(sample.registry.received_requests())
    assert before[f"{TARGET}@publish tag"][0] == 0
    assert f"{OTHER}@{ARCH} job" not in before
    assert TARGET in sample.tags("rl")
    assert OTHER not in sample.tags("rl")

    messages = run_script(sample, path, status=1)
    assert f"ci: {TARGET}@{ARCH}: published\n" in messages
    assert f"ci: {OTHER}@{ARCH}: audit has passed before\n" in messages
    assert f"ci: {OTHER}@publish passed\n" in messages
    assert f"ci: {BROKEN}@{ARCH}: smoke failed with exit status 1\n" in messages
    assert f"ci: {BROKEN}@publish waits for {BROKEN}@{ARCH}\n" in messages
    after = step_states(sample)
    assert {
        name for name in before if name.startswith(TARGET) and after[name] != before[name]
    } == set()
    put = [
        request.path for request in sample.registry.writes(request_count) if request.method == "PUT"
    ]
    assert not [path for path in put if f"/manifests/{TARGET}" in path]
    tags = sample.tags("rl")
    assert [tags[name] for name in (TARGET, OTHER)] == [*map(sample.digest, (TARGET, OTHER))]
    assert not [tag for tag in tags if tag.startswith(BROKEN)]
    assert not list((sample.project.folder / "build").glob("*/oci-layout"))  # several are dropped

    targets = json.loads(sample.project.run("ci", "report", "--json", status=1).stdout)["targets"]
    outcomes = {target["target"]: target for target in targets}
    assert {name: target["outcome"] for name, target in outcomes.items()} == {
        TARGET: "published", OTHER: "published", BROKEN: "failed",
    }  # fmt: skip
    assert (outcomes[BROKEN]["job"], outcomes[BROKEN]["step"]) == (f"{BROKEN}@{ARCH}", "smoke")
    assert CAUSE in outcomes[BROKEN]["error"]


def test_ci_script_for_another_lock_publishes_nothing(sample):
    path = ci_script(sample, BROKEN, "--registry", sample.place("stale"))
    path.write_text(path.read_text().replace(sample.digest(BROKEN), f"sha256:{'0' * 64}"))
    writes = len(sample.registry.writes())
    messages = run_script(sample, path, status=5)
    assert f"{BROKEN} was locked again; write this script anew" in messages
    assert len(sample.registry.writes()) == writes


def test_ci_script_without_a_results_folder_does_nothing(sample, tmp_path):
    (tmp_path / "file").touch()
    path = ci_script(sample, OTHER, "--no-push", "--results", str(tmp_path / "file/results"))
    assert "ci: " not in run_script(sample, path, status=2)


@pytest.mark.long
def test_ci_script_runs_only_the_jobs_for_its_machine(sample):
    path = ci_script(sample, OTHER, "--registry", sample.place("machines"), "--all-published")
    text = path.read_text()
    begin = f"begin {OTHER}@{ARCH} {sample.digest(OTHER)}"
    path.write_text(re.sub(rf"(?m)^({begin} \w+) x86_64", r"\1 aarch64", text))
    shutil.rmtree(sample.project.folder / f"build/ci/{OTHER}@{ARCH}")
    messages = run_script(sample, path, status=1)
    assert f"{OTHER}@{ARCH} needs a machine of aarch64; run this script there" in messages
    assert f"{OTHER}@publish waits for {OTHER}@{ARCH}" in messages
    other = sample.folder / "other.sh"  # of that machine
    other.write_text(re.sub(rf"(?ms)^begin {OTHER}@publish .*?finish$", "", text))
    run_script(sample, other)
    messages = run_script(sample, path)
    assert f"{OTHER}@{ARCH} has passed on another machine" in messages
    assert sample.tags("machines")[OTHER] == sample.digest(OTHER)


def test_second_run_of_a_ci_script_repeats_only_failed_steps(sample):
    command = ("ci", "jobs", "--all", "--skip-published", sample.place("rl"), "--json")
    chosen = json.loads(sample.project.run(*command).stdout)
    assert [target["target"] for target in chosen["targets"]] == [BROKEN]
    assert {target["target"]: target["outcome"] for target in chosen["passed"]} == {
        TARGET: "published", OTHER: "published",
    }  # fmt: skip


@pytest.fixture(scope="module")
def changed(sample: Sample) -> Sample:
    """The sample after a change of one pin."""
    ci_repository.change_pin(sample.project, TARGET, "2.0")
    return sample


@pytest.mark.long  # the other tests of workflows run single jobs
def test_pull_request_builds_only_the_changed_target(changed):
    job_run = changed.job("images", "jobs", BASE=changed.base)
    assert job_run.status == 0, job_run.said
    jobs = {job["id"]: job for job in job_run.outputs["jobs"]}
    assert list(jobs) == [f"{TARGET}@{ARCH}", f"{TARGET}@arm64-again"]
    assert jobs[f"{TARGET}@{ARCH}"]["runner"] == ["a-machine"]
    assert jobs[f"{TARGET}@{ARCH}"]["digest"] == changed.digest(TARGET)
    assert "thewheel 1.0 → 2.0" in job_run.summary
    writes = len(changed.registry.writes())
    for name in jobs:
        done = changed.job("images", "image", JOB=name)
        assert done.status == 0, done.said
    assert len(changed.registry.writes()) == writes
    green = changed.job("images", "green")
    assert green.status == 0, green.said
    assert f"| {TARGET} | ✅ tested |" in green.summary
    assert f"| {BROKEN} | ✅ unchanged |" in green.summary


@pytest.mark.long  # the first test publishes and reports by a script
def test_nightly_ci_run_publishes_and_reports_targets(changed, tmp_path):
    place = changed.place("rl")
    job_run = changed.job("nightly", "jobs", REGISTRY=place)
    assert job_run.status == 0, job_run.said
    targets = {target["target"]: target for target in job_run.outputs["targets"]}
    assert set(targets) == {TARGET, BROKEN}
    before = step_states(changed)
    [image] = targets[TARGET]["image"]
    done = changed.job("target", "image", JOB=image["id"], REGISTRY=place)
    assert done.status == 0, done.said
    after = step_states(changed)
    # Results of the change under review for the same digest on this machine are kept.
    assert after[f"{TARGET}@{ARCH} smoke"] == before[f"{TARGET}@{ARCH} smoke"]
    assert changed.tags("rl")[TARGET] != changed.digest(TARGET)  # pushed, not tagged
    [publish] = targets[TARGET]["publish"]
    done = changed.job("target", "publish", JOB=publish["id"], REGISTRY=place, SIGN="no")
    assert done.status == 0, done.said
    assert changed.tags("rl")[TARGET] == changed.digest(TARGET)

    [publish] = targets[BROKEN]["publish"]
    done = changed.job("target", "publish", JOB=publish["id"], REGISTRY=place, SIGN="no")
    assert done.status == 1, done.said
    assert f"{BROKEN}@publish waits for {BROKEN}@{ARCH}" in done.said
    assert BROKEN not in changed.tags("rl")
    report(changed, tmp_path, place)


def test_nightly_ci_run_fails_if_a_published_target_has_a_new_error(changed):
    done = changed.job("nightly", "audit")
    assert done.status == 0, done.said
    assert f"{TARGET} {ARCH}: 0 errors" in done.summary
    path = changed.project.folder / "images/constraints.yaml"
    line = '{package: thewheel, versions: "==1.0", needs: "helper<0.1", check: imports}'
    path.write_text(f"version: 1\nconstraints:\n  - {line}\n")
    done = changed.job("nightly", "audit")
    path.unlink()
    assert done.status == 4, done.said
    assert f"the audit found errors in {OTHER} {ARCH}\n" in done.said
    assert "error: thewheel 1.0 requires helper<0.1" in done.summary


def report(sample: Sample, folder: Path, place: str) -> None:
    """Run the report scripts with a stub of the GitHub CLI that records its arguments."""
    program = folder / "gh"
    program.write_text(
        '#!/bin/sh\necho "$@" >> "$0.log"\n[ "$2" != list ] || cat "$0.number" || true\n'
    )
    program.chmod(0o755)
    env = {"PATH": ci_repository.path_with_programs(folder), "GH_TOKEN": "none", "GH_REPO": "me/rl"}
    env["REGISTRY"] = place
    done = sample.job("nightly", "report", **env)
    assert done.status == 1, done.said
    assert f"| {TARGET} | ✅ published |" in done.summary
    assert f"| {BROKEN} | ❌ failed | `{BROKEN}@{ARCH}` smoke |" in done.summary
    assert f"$ docker pull {place}:{TARGET}\n" in done.summary
    digest = sample.digest(TARGET)
    assert f"$ apptainer pull {TARGET}.sif docker://{place}@{digest}\n" in done.summary
    assert f":{BROKEN}" not in done.summary.partition("## Images to pull")[2]
    call_log = (folder / "gh.log").read_text()
    expected = f"issue create --title nightly: {BROKEN} --body-file build/issues/{BROKEN}.md"
    assert [line for line in call_log.splitlines() if "create" in line] == [expected]
    assert CAUSE in (sample.project.folder / f"build/issues/{BROKEN}.md").read_text()
    [tested] = sample.project.read(f"{TARGET}/smoke.json")["runs"]
    [failed] = sample.project.read(f"{BROKEN}/smoke.json")["runs"]
    assert (tested["tier"], tested["result"], failed["result"]) == ("static", "pass", "fail")
    assert CAUSE in json.dumps(failed)
    (folder / "gh.number").write_text("7\n")
    sample.job("nightly", "report", **env)
    assert (
        f"issue comment 7 --body-file build/issues/{BROKEN}.md" in (folder / "gh.log").read_text()
    )


@pytest.fixture
def scratch_sample(changed: Sample) -> Iterator[Sample]:
    """The sample, whose ci.yaml and environment are restored after the test."""
    path, env = changed.project.folder / "ci.yaml", dict(changed.project.env)
    text = path.read_text()
    yield changed
    path.write_text(text)
    changed.project.env.clear()
    changed.project.env.update(env)


def tell(sample: Sample, more: str = "", **other: str) -> None:
    """Write ci.yaml with `more`, after replacing parts with `other`."""
    text = ci_repository.SETTINGS + more
    for old, new in other.items():
        text = re.sub(rf"{old}: (\d+|\[.*\])", f"{old}: {new}", text)
    (sample.project.folder / "ci.yaml").write_text(text)


def test_pull_request_fails_if_no_machine_is_suitable(scratch_sample):
    tell(scratch_sample, disk="1")
    job_run = scratch_sample.job("images", "jobs", BASE=scratch_sample.base)
    assert (job_run.status, job_run.outputs["jobs"]) == (0, [])
    green = scratch_sample.job("images", "green")
    assert green.status == 1, green.said
    assert f"| {TARGET} | ⚠️ impossible |" in green.summary


def results_of(sample: Sample, target: str) -> dict[str, tuple[int, int]]:
    """The results of the audits and tests of a target."""
    return {
        name: state
        for name, state in step_states(sample).items()
        if name.startswith(f"{target}@") and name.split(" ")[1] in ("audit", "smoke")
    }


@pytest.mark.long
def test_tag_that_was_moved_is_restored(scratch_sample):
    place, before = scratch_sample.place("rl"), results_of(scratch_sample, OTHER)
    scratch_sample.project.run("registry", "tag", f"{place}@{scratch_sample.digest(TARGET)}", OTHER)
    assert scratch_sample.tags("rl")[OTHER] == scratch_sample.digest(TARGET)
    run_script(scratch_sample, ci_script(scratch_sample, OTHER, "--registry", place))
    assert scratch_sample.tags("rl")[OTHER] == scratch_sample.digest(OTHER)
    assert results_of(scratch_sample, OTHER) == before
    assert (scratch_sample.project.folder / "build" / OTHER / "oci-layout").exists()  # one is kept


GPU = "  - {labels: [a-gpu], arch: x86_64, disk: 20, gpus: 1}\n"
SLURM = ("--on", "slurm", "--sbatch=--gpus-per-node=0")


@pytest.mark.long  # the first test has a failing tier before it
def test_no_tag_is_set_if_a_tier_fails_after_the_push(scratch_sample):
    """The GPU tier runs on a Slurm node without a GPU, so it fails."""
    scratch_sample.project.env.update(needs.require_slurm())
    tell(scratch_sample, GPU)
    gate = ("--gate", "static", "--gate", "gpu")
    messages = run_script(
        scratch_sample,
        ci_script(
            scratch_sample, OTHER, "--registry", scratch_sample.place("gated"), *gate, *SLURM
        ),
        status=1,
    )
    assert f"{OTHER}@{ARCH} passed" in messages
    assert f"{OTHER}@{ARCH}-gpu: smoke failed with exit status 1" in messages
    assert f"{OTHER}@publish waits for {OTHER}@{ARCH}-gpu" in messages
    assert scratch_sample.tags("gated") == {}
    client, place = RegistryClient(origin=True), parse_repository(scratch_sample.place("gated"))
    answer = client.resolve(
        ImageReference(place.host, place.name, digest=scratch_sample.digest(OTHER))
    )
    assert answer is not None
    jobs = scratch_sample.project.run("ci", "jobs", OTHER, *gate, "--json").stdout
    (scratch_sample.folder / "jobs.json").write_text(jobs)
    words = ("ci", "report", "--jobs-file", str(scratch_sample.folder / "jobs.json"), "--json")
    [answer] = json.loads(scratch_sample.project.run(*words, status=1).stdout)["targets"]
    assert (answer["job"], answer["step"]) == (f"{OTHER}@{ARCH}-gpu", "smoke")
    assert answer["error"]


# Read first by every Python process: `ci script` assumes that the static tier needs a GPU. The tier
# itself runs as usual.
STATIC = """\
import sys
if "ci" in sys.orig_argv:
    from imgbuild.ci import jobs, settings
    jobs.GPU_TIERS = settings.GPU_TIERS = {"static": 1}
"""


@pytest.mark.long  # the previous test runs the same steps up to the tier
def test_tag_is_set_after_a_tier_passes_on_a_slurm_node(scratch_sample, tmp_path):
    """A tier that requires no GPU runs on a real Slurm between the push and the tag."""
    (tmp_path / "sitecustomize.py").write_text(STATIC)
    scratch_sample.project.env.update(needs.require_slurm(), PYTHONPATH=str(tmp_path))
    tell(scratch_sample, GPU)
    words = ("--registry", scratch_sample.place("passed"), "--gate", "static")
    messages = run_script(scratch_sample, ci_script(scratch_sample, OTHER, *words, *SLURM))
    assert f"{OTHER}@{ARCH}-static passed" in messages
    assert scratch_sample.tags("passed")[OTHER] == scratch_sample.digest(OTHER)


@pytest.mark.long  # test_sif_apptainer.py pushes one by itself
def test_sif_is_pushed_to_repository_of_image(scratch_sample):
    """The image has passed, so the SIF is pushed although no machine can run a tier."""
    needs.require_tool("mksquashfs", "squashfs-tools")
    tell(scratch_sample, "sif: true\n", gate="[static, gpu]")
    path = ci_script(
        scratch_sample, f"{TARGET}@{ARCH}-sif", "--registry", scratch_sample.place("rl")
    )
    assert f"{TARGET}@{ARCH}-sif passed" in run_script(scratch_sample, path)
    assert f"{TARGET}-{ARCH}-sif" in scratch_sample.tags("rl")


@pytest.mark.long  # unit/ci/test_script.py has the order of the steps
def test_image_is_signed_before_its_tag_is_set(scratch_sample, tmp_path):
    """`verify` with the public key and the real cosign accept the signature."""
    sample = scratch_sample
    secret, public = tmp_path / "key.pem", tmp_path / "key.pub"
    openssl = needs.require_tool("openssl")
    curve = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
    subprocess.run([openssl, "genpkey", *curve, "-out", str(secret)], check=True)
    subprocess.run([openssl, "pkey", "-in", secret, "-pubout", "-out", public], check=True)
    assert signature(sample, f"{sample.place('rl')}:{OTHER}", public, status=9) == "failed"
    before = results_of(sample, OTHER)
    place = sample.place("signed")
    path = ci_script(sample, OTHER, "--registry", place, "--sign-key", str(secret))
    request_count = len(sample.registry.received_requests())
    run_script(sample, path)
    requests = sample.registry.writes(request_count)
    put = [request.path for request in requests if request.method == "PUT"]
    tags = [at for at, path in enumerate(put) if f"/signed/manifests/{OTHER}" in path]
    assert len(tags) == 2
    assert f"/v2/signed/manifests/{sample.digest(OTHER)}" in put
    repository = Repository(sample.registry.host, "signed")
    bundles = RegistryClient().referrers(repository, sample.digest(OTHER), forms.BUNDLE)
    places = [put.index(f"/v2/signed/manifests/{bundle.digest}") for bundle in bundles]
    assert places
    assert max(places) < min(tags)
    assert signature(sample, f"{place}:{OTHER}", public) == "passed"
    assert results_of(sample, OTHER) == before
    trusted = ("--key", str(public), "--insecure-ignore-tlog")
    subprocess.run(
        [
            needs.require_tool("cosign", "cosign of Debian sid"),
            "verify",
            *trusted,
            f"{place}:{OTHER}",
        ],
        check=True,
    )


def signature(sample: Sample, name: str, key: Path, status: int = 0) -> str:
    """The result of `verify` for the signature of an image."""
    done = sample.project.run("verify", name, "--key", str(key), "--json", status=status)
    outcomes = {each["name"]: each["outcome"] for each in json.loads(done.stdout)["checks"]}
    outcome: str = outcomes["signature"]
    return outcome
