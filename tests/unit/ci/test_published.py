"""What is left of a job when all of it has passed: what a registry has, and what it lost since."""

from __future__ import annotations

from pathlib import Path

import pytest

from imgbuild.attest import bundle
from imgbuild.attest.signing import pushed
from imgbuild.attest.signing.keys import PrivateKey, load_private
from imgbuild.ci import results, running
from imgbuild.ci.context import RunContext
from imgbuild.ci.jobs import CiJob, TargetJobs
from imgbuild.sif import push as pushing
from imgbuild.sif.convert import ConvertedImage
from imgbuild.values import Arch, digest_of
from tests.support import memory_registry
from tests.support.ci_jobs_sample import RUNNERS, _place, of, passed, read_settings, way
from tests.support.inprocess_project import TARGET, Command
from tests.support.registry_project import Place

__all__ = ["_place"]  # a fixture
LOOKS = {"check", "size"}


def all_passed(
    place: Place, folder: Path, **more: object
) -> tuple[RunContext, TargetJobs, dict[str, CiJob]]:
    """The jobs of the target, of which every step has passed; with a SIF and a key."""
    here = way(
        place.sample, RUNNERS, results=folder, registry=str(place.repository), key=folder / "key",
        **more,
    )  # fmt: skip
    own = of(place.sample, RUNNERS + "sif: true\n", gate="gate: [static]\n")
    known = here.jobs_of(own)
    for job in known.values():
        passed(folder, job, registry=job.registry)
    return here, own, known


def test_a_push_is_done_while_the_registry_has_the_digest(place, tmp_path):
    here, own, known = all_passed(place, tmp_path)
    image = known[own.image[0].id]
    assert running.due_steps(here, image) == {*LOOKS, "push"}
    assert not running.is_done(here, image)
    done = place.push()
    asked = len(place.registry.requests)
    assert running.due_steps(here, image) == LOOKS
    assert [one.method for one in place.registry.requests[asked:]] == ["HEAD"]
    assert running.is_done(here, image)
    place.work().client.delete(place.repository, done.digest)
    assert running.due_steps(here, image) == {*LOOKS, "push"}


def test_what_was_pushed_elsewhere_is_not_pushed(place, tmp_path):
    here, own, _ = all_passed(place, tmp_path)
    place.push()
    [image] = own.image
    there = way(place.sample, results=tmp_path, registry=f"{place.repository}/other")
    assert running.due_steps(here, here.jobs_of(own)[image.id]) == LOOKS
    assert running.due_steps(there, there.jobs_of(own)[image.id]) == {*LOOKS, "push"}


def test_a_registry_that_does_not_say_has_nothing(place, tmp_path):
    here, own, known = all_passed(place, tmp_path)
    place.push()
    place.registry.auth, place.registry.login = "basic", ("me", "secret")
    assert running.due_steps(here, known[own.image[0].id]) == {*LOOKS, "push"}


def test_tags_are_looked_at_each_time(place, tmp_path):
    here, own, known = all_passed(place, tmp_path)
    place.push()
    publish = known[own.publish[0].id]
    assert "tag" in running.due_steps(here, publish)
    assert not running.is_done(here, publish)


def private(folder: Path) -> PrivateKey:
    """A key that is made for the test."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    made = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "key").write_bytes(made)
    return load_private(folder / "key")


def test_a_signature_is_made_again_where_it_is_lost(place, tmp_path):
    here, own, known = all_passed(place, tmp_path)
    publish = known[own.publish[0].id]
    place.push()
    assert running.due_steps(here, publish) == {"gate", "sign", "tag"}
    sample, work = place.sample, place.work()
    lock = bundle.of(sample.lock, sample.seal, work.project)
    arches = tuple(sample.lock.arch)
    pushed.sign_pushed(work.client, place.repository, lock, work.project, arches, private(tmp_path))
    assert running.due_steps(here, publish) == {"gate", "tag"}


def test_a_sif_of_another_image_is_none(place, tmp_path):
    here, own, known = all_passed(place, tmp_path)
    place.push()
    sif = known[own.sif[0].id]
    assert running.due_steps(here, sif) == {"gate", "pull", "sif"}  # no image is on this disk
    file = tmp_path / "x.sif"
    file.write_bytes(b"a SIF")
    made = ConvertedImage(
        name=TARGET, arch=Arch.X86_64, format="sif", compressor="gzip", tool="4.6", output=file,
        digest=digest_of(b"a SIF"), size=5, image=place.sample.seal.arch[Arch.X86_64].manifest,
    )  # fmt: skip
    pushing.push(place.work().client, place.repository, made)
    assert running.due_steps(here, sif) == {"gate"}
    assert running.is_done(here, sif)
    place.work().client.delete(place.repository, f"{TARGET}-x86_64-sif")
    assert not running.is_done(here, sif)


def test_a_night_does_what_the_registry_lost(place, tmp_path, monkeypatch):
    here, own, _ = all_passed(place, tmp_path)
    begun: list[str] = []

    def _run(way: RunContext, job: CiJob, known: object) -> results.JobResult:
        begun.append(job.id)
        return results.read_job(way.results, job)

    monkeypatch.setattr(running, "run_job", _run)
    running.run_target(here, own)
    every = [f"{TARGET}@{name}" for name in ("x86_64", "publish", "x86_64-sif")]
    assert begun == every
    begun.clear()
    place.push()
    running.run_target(here, own)
    assert begun == every[1:]


# -- results of another time


def test_what_is_to_be_done_has_no_result_until_it_is(place, tmp_path):
    here, own, known = all_passed(place, tmp_path)
    place.push()
    image = known[own.image[0].id]
    passed(tmp_path, image, "smoke", outcome="failed", error="of last night", exit_code=1)
    results.place(tmp_path, image.id, "smoke", "answer.json").write_text("[]")
    done = running.run_job(here, image, known, until="check")
    assert done.failed is None
    assert [one.step for one in done.steps] == ["audit", "push"]  # the image is not on this disk
    assert not results.place(tmp_path, image.id, "smoke", "answer.json").exists()


# -- SIFs of what is published


@pytest.fixture(name="command")
def _command(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    memory_registry.alone(monkeypatch, place.sample.folder)
    return Command(monkeypatch, capsys)


def test_a_sif_needs_no_machine_with_a_gpu(place, command):
    """`ci jobs` names the job where the target is published; then `ci run` does it."""
    read_settings(place.sample, "gate: [static, gpu]\nsif: true\nrunners: []\n")
    words = (f"{TARGET}@x86_64-sif", "--registry", str(place.repository))
    done = command("ci", "run", *words)
    assert (done.status, f"ci run {TARGET}@publish" in done.stderr) == (1, True), done.stderr
