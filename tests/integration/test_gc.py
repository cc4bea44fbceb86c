"""Tests the removal of old images from a real registry shared with another project."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_mirror import BOTH, base
from tests.support import docker_registry, images, needs, sample_project
from tests.support.docker_registry import OwnRegistry
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite, serve_site

pytestmark = pytest.mark.engine
DAYS = ("20260101", "20260201")


@dataclass
class Sample:
    """A project whose target was locked and pushed twice."""

    project: Project
    registry: OwnRegistry
    digests: list[str]

    @property
    def images(self) -> str:
        return f"{self.registry.host}/team/rl"

    def gc(self, place: str, *options: str, status: int = 0) -> dict[str, Any]:
        """The sweep of one repository."""
        done = self.project.run("registry", "gc", place, "--json", *options, status=status)
        sweep: dict[str, Any] = json.loads(done.stdout)
        return sweep

    def tags(self, place: str) -> set[str]:
        """The tags of a repository, as read by another program."""
        return set(json.loads(skopeo("list-tags", f"docker://{place}"))["Tags"])


def skopeo(verb: str, *arguments: str) -> str:
    """Run skopeo against a registry without TLS."""
    side = "--dest-tls-verify=false" if verb == "copy" else "--tls-verify=false"
    done = subprocess.run(
        [needs.require_tool("skopeo"), verb, side, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def collect(registry: OwnRegistry) -> None:
    """Run the garbage collection of the registry; no push may run meanwhile."""
    command = [
        docker_registry.registry_program(),
        "garbage-collect",
        str(registry.folder / "config.yml"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    """The initial state, which no test modifies."""
    folder = tmp_path_factory.mktemp("gc")
    with (
        docker_registry.serve_registry(folder / "registry") as registry,
        serve_site(FileSite(files=sample_project.sample_index().site_files())) as site,
    ):
        project = Project(folder / "project", site.url("simple"), cache=folder / "cache")
        below = {"kind": "registry", "image": base(folder, site), "python": "3.11",
                 "glibc": "2.36", "interpreter": "/usr/bin/python3.11"}  # fmt: skip
        sample = Sample(project, registry, [])
        for version, day in zip(("1.0", "2.0"), DAYS, strict=True):
            project.write(below, thewheel=version, arches=BOTH)
            project.run("lock", TARGET)
            project.run("push", TARGET, sample.images)
            project.run("registry", "tag", f"{sample.images}:{TARGET}", f"{TARGET}-{day}")
            sample.digests.append(project.run("digest", TARGET).stdout.strip())
        theirs = images.write_tiny_image(folder / "theirs")
        skopeo("copy", "--quiet", f"oci:{theirs}:tiny", f"docker://{sample.images}:theirs")
        yield sample


@pytest.fixture
def sample(pushed: Sample, tmp_path: Path) -> Iterator[Sample]:
    """A copy of the sample in a separate registry."""
    with docker_registry.serve_registry(tmp_path / "registry") as registry:
        shutil.copytree(pushed.registry.storage, registry.storage)
        yield Sample(pushed.project, registry, pushed.digests)


@pytest.mark.long  # unit/publish/test_gc.py has the rules
def test_images_with_a_lock_or_another_tag_are_kept(sample):
    assert sample.gc(sample.images, "--keep-days", "36500")["old"] == []
    (old,) = sample.gc(sample.images)["old"]
    # The newest image has an old day, too, but is in a current lock; the other has no date.
    assert (old["digest"], old["tags"]) == (sample.digests[0], [f"{TARGET}-{DAYS[0]}"])
    assert sample.gc(sample.images)["kept"] >= 2
    sample.project.run("registry", "tag", f"{sample.images}:{TARGET}-{DAYS[0]}", "paper-2026")
    assert sample.gc(sample.images)["old"] == []


@pytest.mark.long  # unit/publish/test_gc.py deletes images
def test_deletion_frees_only_blobs_of_the_old_image(sample, tmp_path):
    before = sample.registry.blobs()
    index = json.loads(skopeo("inspect", "--raw", f"docker://{sample.images}@{sample.digests[0]}"))
    assert sample.gc(sample.images, "--delete")["deleted"]
    assert sample.gc(sample.images)["old"] == []
    assert f"{TARGET}-{DAYS[0]}" not in sample.tags(sample.images)
    collect(sample.registry)
    left = sample.registry.blobs()
    assert (
        not {sample.digests[0], *(manifest["digest"] for manifest in index["manifests"])}
        & left.keys()
    )
    assert sum(left.values()) < sum(before.values())

    pulled = tmp_path / "pulled"
    sample.project.run("pull", f"{sample.images}:{TARGET}", "--output", str(pulled))
    assert images.verify_layout(pulled).digest == sample.digests[1]
    skopeo("copy", "--quiet", "--src-tls-verify=false", f"docker://{sample.images}:theirs",
           f"dir:{tmp_path / 'theirs-again'}")  # fmt: skip
