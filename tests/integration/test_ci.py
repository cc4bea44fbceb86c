"""Scripts of `ci script` and of the workflows: a small project, a real registry, real images.

One pin is changed, pushed, tagged; a target that fails its smoke tests gets no tag and an issue;
an interrupted script continues where it was stopped.
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
from dataclasses import dataclass
from pathlib import Path

import pytest

from imgbuild.attest.signing import forms
from imgbuild.registry.client import Client
from imgbuild.registry.reference import Reference, parse_repository
from tests.support import ci_repository, docker_registry, needs
from tests.support.ci_repository import BROKEN, CAUSE, OTHER, Ran
from tests.support.docker_registry import OwnRegistry
from tests.support.sample_project import TARGET, Project
from tests.support.servers import Site, serve

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.timeout(1200)]
ARCH = "x86_64"


@dataclass
class Sample:
    """The project, the registry, and where scripts write."""

    project: Project
    registry: OwnRegistry
    base: str
    folder: Path

    def place(self, name: str) -> str:
        """A repository of the registry."""
        return f"{self.registry.host}/{name}"

    def tags(self, name: str) -> dict[str, str]:
        """The tags of a repository that are a target's, and what each names."""
        repository = parse_repository(self.place(name))
        client = Client(origin=True)
        found = [tag for tag in client.tags(repository) if not tag.startswith("sha256-")]
        done = {}
        for tag in found:
            named = client.resolve(Reference(repository.host, repository.name, tag=tag))
            assert named is not None
            done[tag] = named.digest
        return done

    def digest(self, target: str) -> str:
        """The digest that the seal has."""
        text: str = self.project.read(f"{target}/digests.json")["digest"]
        return text

    def job(self, workflow: str, job: str, **env: str) -> Ran:
        """Run the scripts of a workflow's job."""
        return ci_repository.run_job(self.project, workflow, job, env, self.folder / workflow / job)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    needs.user_namespaces()
    folder = tmp_path_factory.mktemp("ci")
    with (
        serve(Site(files=ci_repository.index().site_files())) as site,
        docker_registry.serve(folder / "registry") as registry,
    ):
        project = ci_repository.make(folder / "project", site.url("simple"))
        base = ci_repository.git(project.folder, "rev-parse", "HEAD")
        yield Sample(project, registry, base, folder / "scripts")


def script(sample: Sample, *words: str) -> Path:
    """A script of `ci script` with these arguments."""
    text = sample.project.run("ci", "script", "--through", "root", *words).stdout
    sample.folder.mkdir(exist_ok=True)
    path = sample.folder / "job.sh"
    path.write_text(text)
    return path


def run(sample: Sample, path: Path, status: int = 0) -> str:
    """Run a script, which must end with this exit status; its messages."""
    done = subprocess.run(
        ["bash", str(path)], cwd="/", env=sample.project.environment(), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    return done.stderr


def states(sample: Sample) -> dict[str, tuple[int, int]]:
    """The exit code of each step that ended, and when its file was written."""
    paths = sorted((sample.project.folder / "build/ci").glob("*/*.json"))
    found = {}
    for path in paths:
        document = json.loads(path.read_bytes())  # none is half written
        if isinstance(document, dict) and "exit_code" in document and "key" in document:
            name = f"{path.parent.name} {path.stem}"
            found[name] = (document["exit_code"], path.stat().st_mtime_ns)
    return found


def test_a_script_is_interrupted_continues_and_repeats_nothing(sample):
    path = script(sample, "--all", "--registry", sample.place("rl"))
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
    before, asked = states(sample), len(sample.registry.asked())
    assert before[f"{TARGET}@publish tag"][0] == 0
    assert f"{OTHER}@{ARCH} job" not in before
    assert TARGET in sample.tags("rl")
    assert OTHER not in sample.tags("rl")

    messages = run(sample, path, status=1)
    assert f"ci: {TARGET}@{ARCH}: published\n" in messages
    assert f"ci: {OTHER}@{ARCH}: audit has passed before\n" in messages
    assert f"ci: {OTHER}@publish passed\n" in messages
    assert f"ci: {BROKEN}@{ARCH}: smoke failed with exit status 1\n" in messages
    assert f"ci: {BROKEN}@publish waits for {BROKEN}@{ARCH}\n" in messages
    after = states(sample)
    assert {
        name for name in before if name.startswith(TARGET) and after[name] != before[name]
    } == set()
    put = [one.path for one in sample.registry.writes(asked) if one.method == "PUT"]
    assert not [path for path in put if f"/manifests/{TARGET}" in path]
    named = sample.tags("rl")
    assert {tag: named[tag] for tag in (TARGET, OTHER)} == {
        TARGET: sample.digest(TARGET), OTHER: sample.digest(OTHER),
    }  # fmt: skip
    assert not [tag for tag in named if tag.startswith(BROKEN)]
    assert not list((sample.project.folder / "build").glob("*/oci-layout"))  # several are dropped

    found = json.loads(sample.project.run("ci", "report", "--json", status=1).stdout)["targets"]
    said = {one["target"]: one for one in found}
    assert {name: one["outcome"] for name, one in said.items()} == {
        TARGET: "published", OTHER: "published", BROKEN: "failed",
    }  # fmt: skip
    assert (said[BROKEN]["job"], said[BROKEN]["step"]) == (f"{BROKEN}@{ARCH}", "smoke")
    assert CAUSE in said[BROKEN]["error"]


def test_a_script_for_another_lock_publishes_nothing(sample):
    path = script(sample, BROKEN, "--registry", sample.place("stale"))
    path.write_text(path.read_text().replace(sample.digest(BROKEN), f"sha256:{'0' * 64}"))
    messages = run(sample, path, status=5)
    assert f"{BROKEN} was locked again; write this script anew" in messages
    assert sample.tags("stale") == {}


def test_nothing_is_left_to_do_but_what_failed(sample):
    command = ("ci", "jobs", "--all", "--skip-published", sample.place("rl"), "--json")
    chosen = json.loads(sample.project.run(*command).stdout)
    assert [one["target"] for one in chosen["targets"]] == [BROKEN]
    assert {one["target"]: one["outcome"] for one in chosen["passed"]} == {
        TARGET: "published", OTHER: "published",
    }  # fmt: skip


@pytest.fixture(scope="module")
def changed(sample: Sample) -> Sample:
    """The same sample after a pin of one target was changed."""
    ci_repository.pin(sample.project, TARGET, "2.0")
    return sample


def test_a_change_under_review_builds_one_target(changed):
    said = changed.job("images", "jobs", BASE=changed.base)
    assert said.status == 0, said.said
    jobs = {job["id"]: job for job in said.outputs["jobs"]}
    assert list(jobs) == [f"{TARGET}@{ARCH}", f"{TARGET}@arm64-again"]
    assert jobs[f"{TARGET}@{ARCH}"]["runner"] == ["a-machine"]
    assert jobs[f"{TARGET}@{ARCH}"]["digest"] == changed.digest(TARGET)
    assert "thewheel 1.0 → 2.0" in said.summary
    writes = len(changed.registry.writes())
    for name in jobs:
        done = changed.job("images", "image", JOB=name)
        assert done.status == 0, done.said
    assert len(changed.registry.writes()) == writes
    green = changed.job("images", "green")
    assert green.status == 0, green.said
    assert f"| {TARGET} | ✅ tested |" in green.summary
    assert f"| {BROKEN} | ✅ unchanged |" in green.summary


def test_a_night_publishes_that_one_and_reports_the_other(changed, tmp_path):
    place = changed.place("rl")
    said = changed.job("nightly", "jobs", REGISTRY=place)
    assert said.status == 0, said.said
    targets = {one["target"]: one for one in said.outputs["targets"]}
    assert set(targets) == {TARGET, BROKEN}
    before = states(changed)
    [image] = targets[TARGET]["image"]
    done = changed.job("target", "image", JOB=image["id"], REGISTRY=place)
    assert done.status == 0, done.said
    after = states(changed)
    # What the change under review has tested, for the same digest and on this machine, stays.
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
    report(changed, tmp_path)


def report(sample: Sample, folder: Path) -> None:
    """The report's scripts, with a program in the place of GitHub's that writes down its words."""
    program = folder / "gh"
    program.write_text(
        '#!/bin/sh\necho "$@" >> "$0.log"\n[ "$2" != list ] || cat "$0.number" || true\n'
    )
    program.chmod(0o755)
    env = {"PATH": ci_repository.with_programs(folder), "GH_TOKEN": "none", "GH_REPO": "me/rl"}
    done = sample.job("nightly", "report", **env)
    assert done.status == 1, done.said
    assert f"| {TARGET} | ✅ published |" in done.summary
    assert f"| {BROKEN} | ❌ failed | `{BROKEN}@{ARCH}` smoke |" in done.summary
    asked = (folder / "gh.log").read_text()
    made = f"issue create --title nightly: {BROKEN} --body-file build/issues/{BROKEN}.md"
    assert [line for line in asked.splitlines() if "create" in line] == [made]
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
def own(changed: Sample) -> Iterator[Sample]:
    """The same sample; what a test makes of ci.yaml and the environment is undone after it."""
    path, env = changed.project.folder / "ci.yaml", dict(changed.project.env)
    text = path.read_text()
    yield changed
    path.write_text(text)
    changed.project.env.clear()
    changed.project.env.update(env)


def tell(sample: Sample, more: str = "", **other: str) -> None:
    """Write ci.yaml, with `more`, and `other` in the place of words that it has."""
    text = ci_repository.SETTINGS + more
    for old, new in other.items():
        text = re.sub(rf"{old}: (\d+|\[.*\])", f"{old}: {new}", text)
    (sample.project.folder / "ci.yaml").write_text(text)


def test_a_change_that_no_machine_can_build_is_not_green(own):
    tell(own, disk="1")
    said = own.job("images", "jobs", BASE=own.base)
    assert (said.status, said.outputs["jobs"]) == (0, [])
    green = own.job("images", "green")
    assert green.status == 1, green.said
    assert f"| {TARGET} | ⚠️ impossible |" in green.summary


def tested(sample: Sample, target: str) -> dict[str, tuple[int, int]]:
    """The results of the audits and tests of a target."""
    return {
        name: state
        for name, state in states(sample).items()
        if name.startswith(f"{target}@") and name.split(" ")[1] in ("audit", "smoke")
    }


def test_a_moved_tag_is_put_back(own):
    place, before = own.place("rl"), tested(own, OTHER)
    own.project.run("registry", "tag", f"{place}@{own.digest(TARGET)}", OTHER)
    assert own.tags("rl")[OTHER] == own.digest(TARGET)
    run(own, script(own, OTHER, "--registry", place))
    assert own.tags("rl")[OTHER] == own.digest(OTHER)
    assert tested(own, OTHER) == before
    assert (own.project.folder / "build" / OTHER / "oci-layout").exists()  # one is kept


GPU = "  - {labels: [a-gpu], arch: x86_64, disk: 20, gpus: 1}\n"
SLURM = ("--on", "slurm", "--sbatch=--gpus-per-node=0")


def test_a_tier_that_fails_after_the_push_leaves_a_digest_and_no_tag(own):
    """The tier for GPUs, which no machine of the tests has, on a node of a real Slurm."""
    own.project.env.update(needs.slurm())
    tell(own, GPU)
    gate = ("--gate", "static", "--gate", "gpu")
    messages = run(
        own, script(own, OTHER, "--registry", own.place("gated"), *gate, *SLURM), status=1
    )
    assert f"{OTHER}@{ARCH} passed" in messages
    assert f"{OTHER}@{ARCH}-gpu: smoke failed with exit status 1" in messages
    assert f"{OTHER}@publish waits for {OTHER}@{ARCH}-gpu" in messages
    assert own.tags("gated") == {}
    client, place = Client(origin=True), parse_repository(own.place("gated"))
    found = client.resolve(Reference(place.host, place.name, digest=own.digest(OTHER)))
    assert found is not None
    [run_] = json.loads(own.project.run("ci", "report", "--json", status=1).stdout)["targets"][:1]
    assert run_["target"] == BROKEN
    answer = own.project.folder / f"build/ci/{OTHER}@{ARCH}-gpu/smoke.answer.json"
    assert [report["tier"] for report in json.loads(answer.read_bytes())] == ["gpu"]


# Read first by every Python that starts: `ci script` takes the static tier for one that needs a
# GPU. The tier itself is run as ever.
STATIC = """\
import sys
if "ci" in sys.orig_argv:
    from imgbuild.ci import jobs, script, settings
    jobs.GPU_TIERS = settings.GPU_TIERS = {"static": 1}
"""


def test_a_tier_that_passes_on_a_node_leads_to_the_tag(own, tmp_path):
    """From the push over a real Slurm to the tag, by a tier that no GPU is needed for."""
    (tmp_path / "sitecustomize.py").write_text(STATIC)
    own.project.env.update(needs.slurm(), PYTHONPATH=str(tmp_path))
    tell(own, GPU)
    words = ("--registry", own.place("passed"), "--gate", "static")
    messages = run(own, script(own, OTHER, *words, *SLURM))
    assert f"{OTHER}@{ARCH}-static passed" in messages
    assert own.tags("passed")[OTHER] == own.digest(OTHER)


def test_a_sif_lies_beside_the_published_image(own):
    """Its image has passed; that there is no machine for a tier of now keeps no SIF away."""
    needs.tool("mksquashfs", "squashfs-tools")
    tell(own, "sif: true\n", gate="[static, gpu]")
    path = script(own, f"{TARGET}@{ARCH}-sif", "--registry", own.place("rl"))
    assert f"{TARGET}@{ARCH}-sif passed" in run(own, path)
    assert f"{TARGET}-{ARCH}-sif" in own.tags("rl")


def test_what_is_published_with_a_key_is_signed_before_it_has_a_tag(own, tmp_path):
    """By the key's other half a arbitrary_user's `verify` accepts it, and so does the real cosign.

    Where the registry is made anew, the same script puts all of it there again.
    """
    secret, public = tmp_path / "key.pem", tmp_path / "key.pub"
    openssl = needs.tool("openssl")
    curve = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
    subprocess.run([openssl, "genpkey", *curve, "-out", str(secret)], check=True)
    subprocess.run([openssl, "pkey", "-in", secret, "-pubout", "-out", public], check=True)
    bare, name = f"{own.place('rl')}:{OTHER}", f"{own.place('signed')}:{OTHER}"
    assert signature(own, bare, public, status=9) == "failed"
    before = tested(own, OTHER)
    path = script(own, OTHER, "--registry", own.place("signed"), "--sign-key", str(secret))
    for _ in range(2):
        asked = len(own.registry.asked())
        run(own, path)
        put = [one.path for one in own.registry.writes(asked) if one.method == "PUT"]
        tags = [at for at, path in enumerate(put) if f"/signed/manifests/{OTHER}" in path]
        made = f"/v2/signed/manifests/{forms.tag(own.digest(OTHER), forms.SIGNATURES)}"
        assert (len(tags), f"/v2/signed/manifests/{own.digest(OTHER)}" in put) == (2, True)
        assert put.index(made) < min(tags)
        assert signature(own, name, public) == "passed"
        assert tested(own, OTHER) == before
        trusted = ("--key", str(public), "--insecure-ignore-tlog")
        subprocess.run([needs.tool("cosign"), "verify", *trusted, name], check=True)
        shutil.rmtree(own.registry.storage / "docker/registry/v2/repositories/signed")


def signature(sample: Sample, name: str, key: Path, status: int = 0) -> str:
    """What `verify` says of the signature of an image."""
    done = sample.project.run("verify", name, "--key", str(key), "--json", status=status)
    found = {each["name"]: each["outcome"] for each in json.loads(done.stdout)["checks"]}
    outcome: str = found["signature"]
    return outcome
