"""Garbage of a real registry: two revisions of a lock, pushed and mirrored, and somebody's image.

What `gc` says that deletion frees is what docker-registry's own garbage collection frees then, but
for a few kilobytes of documents.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_history import git
from tests.integration.test_mirror import BOTH, base
from tests.support import docker_registry, images, needs, sample_project
from tests.support.docker_registry import OwnRegistry
from tests.support.sample_project import TARGET, Project
from tests.support.servers import Site, serve

pytestmark = pytest.mark.engine
DAYS = ("20260101", "20260201")


@dataclass
class Sample:
    """A project with two committed revisions of its lock, and what was pushed of each."""

    project: Project
    registry: OwnRegistry
    digests: list[str]

    @property
    def images(self) -> str:
        return f"{self.registry.host}/team/rl"

    @property
    def inputs(self) -> str:
        return f"{self.registry.host}/team/inputs"

    def gc(self, place: str, *options: str, status: int = 0) -> dict[str, Any]:
        """The sweep of one repository."""
        done = self.project.run("registry", "gc", place, "--json", *options, status=status)
        found: list[dict[str, Any]] = json.loads(done.stdout)
        assert len(found) == 1
        return found[0]

    def tags(self, place: str) -> set[str]:
        """The tags of a repository, as another program reads them."""
        return set(json.loads(skopeo("list-tags", f"docker://{place}"))["Tags"])


def skopeo(verb: str, *arguments: str) -> str:
    """Run skopeo against a registry without TLS."""
    side = "--dest-tls-verify=false" if verb == "copy" else "--tls-verify=false"
    done = subprocess.run(
        [needs.tool("skopeo"), verb, side, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def collect(registry: OwnRegistry) -> None:
    """The registry's own garbage collection, which wants nobody to push meanwhile."""
    command = [docker_registry.program(), "garbage-collect", str(registry.folder / "config.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    """What all tests begin with; none of them changes it."""
    folder = tmp_path_factory.mktemp("gc")
    with (
        pytest.MonkeyPatch.context() as patch,
        docker_registry.serve(folder / "registry") as registry,
        serve(Site(files=sample_project.index().site_files())) as site,
    ):
        patch.setenv("GIT_CEILING_DIRECTORIES", str(folder))
        project = Project(folder / "project", site.url("simple"), cache=folder / "cache")
        below = {"kind": "registry", "image": base(folder, site), "python": "3.11",
                 "glibc": "2.36", "interpreter": "/usr/bin/python3.11"}  # fmt: skip
        made = Sample(project, registry, [])
        for version, day in zip(("1.0", "2.0"), DAYS, strict=True):
            project.write(below, thewheel=version, arches=BOTH)
            if version == "1.0":
                git(project.folder, "init", "--quiet")
            project.run("lock", TARGET)
            git(project.folder, "add", "images", "matrix.yaml")
            git(project.folder, "commit", "--quiet", "--message", f"thewheel {version}")
            project.run("push", TARGET, made.images, "--date", day)
            project.run("registry", "mirror", "push", TARGET, made.inputs)
            made.digests.append(project.run("digest", TARGET).stdout.strip())
        theirs = images.tiny(folder / "theirs")
        skopeo("copy", "--quiet", f"oci:{theirs}:tiny", f"docker://{made.images}:theirs")
        yield made


@pytest.fixture
def sample(pushed: Sample, tmp_path: Path) -> Iterator[Sample]:
    """The same in a registry of the test's own."""
    with docker_registry.serve(tmp_path / "registry") as registry:
        shutil.copytree(pushed.registry.storage, registry.storage)
        yield Sample(pushed.project, registry, pushed.digests)


def test_what_two_revisions_name_is_all_kept(sample):
    for place in (sample.images, sample.inputs):
        sweep = sample.gc(place, "--revisions", "2")
        assert sweep["garbage"] == []
        assert sweep["size"] == 0
    assert sample.gc(sample.images)["kept"]["not this project's"] == 1
    done = sample.project.run("registry", "gc", sample.registry.host, "--json")
    assert [one["repository"] for one in json.loads(done.stdout)] == [sample.inputs, sample.images]


def test_what_the_last_revision_does_not_name_goes_and_frees_what_was_said(sample, tmp_path):
    old, new = sample.digests
    found = sample.gc(sample.images, "--revisions", "1")
    (entry,) = found["garbage"]
    assert (entry["digest"], entry["kind"], entry["target"]) == (old, "index", TARGET)
    assert entry["tags"] == [f"{TARGET}-{DAYS[0]}"]
    assert entry["unnamed_since"]
    assert len(entry["manifests"]) >= 1 + len(BOTH)
    assert sample.gc(sample.images, "--revisions", "1", "--keep-tags", f"*-{DAYS[0]}")["size"] == 0
    assert sample.gc(sample.images, "--revisions", "1", "--older-than", "36500d")["garbage"] == []
    artifacts = sample.gc(sample.inputs, "--revisions", "1")
    assert {(one["kind"], one["target"]) for one in artifacts["garbage"]} == {("inputs", TARGET)}
    assert len(artifacts["garbage"]) == len(BOTH)
    assert sample.tags(sample.images) >= {TARGET, "theirs", *(f"{TARGET}-{day}" for day in DAYS)}

    before = sum(sample.registry.blobs().values())
    for place in (sample.images, sample.inputs):
        assert sample.gc(place, "--revisions", "1", "--delete")["deleted"]
        assert sample.gc(place, "--revisions", "1")["garbage"] == []
    assert f"{TARGET}-{DAYS[0]}" not in sample.tags(sample.images)
    collect(sample.registry)
    left = sample.registry.blobs()
    # Without the API for referrers each attachment writes their list anew, under the same tag. The
    # older lists have no tag, no API shows them, and they still name what was attached.
    gone = [one for sweep in (found, artifacts) for entry in sweep["garbage"]
            for one in entry["manifests"]]  # fmt: skip
    held_by_lists = sum(left.get(digest, 0) for digest in gone)
    assert held_by_lists < 10_000
    freed = before - sum(left.values())
    assert freed + held_by_lists == found["size"] + artifacts["size"]
    assert freed > held_by_lists

    pulled = tmp_path / "pulled"
    sample.project.run("pull", f"{sample.images}:{TARGET}", "--output", str(pulled))
    assert images.verified(pulled).digest == new
    skopeo("copy", "--quiet", "--src-tls-verify=false", f"docker://{sample.images}:theirs",
           f"dir:{tmp_path / 'theirs-again'}")  # fmt: skip
    sample.project.run("registry", "mirror", "status", TARGET, sample.inputs)


def test_what_was_pushed_without_a_tag_is_found_by_the_history(sample):
    """A registry lists no manifest without a tag; old seals say what to ask for."""
    old = sample.digests[0]
    # Both days name one image now, so that the old one has no tag left.
    sample.project.run("registry", "tag", f"{sample.images}:{TARGET}", f"{TARGET}-{DAYS[0]}")
    (entry,) = sample.gc(sample.images, "--revisions", "1")["garbage"]
    assert (entry["digest"], entry["tags"]) == (old, [])


def test_a_shallow_clone_deletes_nothing(sample, tmp_path):
    clone = tmp_path / "clone"
    origin = f"file://{sample.project.folder}"
    git(tmp_path, "clone", "--quiet", "--depth", "1", origin, str(clone))
    project = Project(clone, sample.project.index_url, cache=tmp_path / "cache")
    done = project.run("registry", "gc", sample.images, "--delete", status=2)
    assert "is a shallow clone" in done.stderr
    assert "git fetch --unshallow" in done.stderr
    done = project.run("registry", "gc", sample.images)
    assert "is a shallow clone" in done.stderr
    assert sample.tags(sample.images) >= {f"{TARGET}-{day}" for day in DAYS}
