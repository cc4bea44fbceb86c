"""Tests reading attachments with other tools, and rebuilding images from attachments.

A small project in a git repository is pushed to Debian's docker-registry. This registry has no
referrers API, so attachments are found by the tag that the specification defines.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from imgbuild.attest import provenance
from imgbuild.attest.provenance import Commit
from imgbuild.attest.sbom import packages
from imgbuild.matrix.project_paths import find_project
from imgbuild.oci import layout
from imgbuild.oci.documents import MANIFEST, Descriptor
from imgbuild.registry import artifact_store
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import parse_repository
from imgbuild.values import Arch, sha256
from tests.support import docker_registry, images, needs, sample_project
from tests.support.docker_registry import OwnRegistry
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite, serve_site
from tests.unit.attest.sbom.test_document import valid_cyclonedx, valid_spdx
from tests.unit.attest.test_provenance import valid as valid_provenance

ROOT = Path(__file__).parents[2]
CYCLONEDX, SPDX = "application/vnd.cyclonedx+json", "application/spdx+json"
STATEMENT, LOCK = "application/vnd.in-toto+json", "application/vnd.imgbuild.lock.v1+json"

pytestmark = pytest.mark.engine


@dataclass
class Shop:
    """The project, the registry, and the output of the push."""

    project: Project
    registry: OwnRegistry
    pushed: dict[str, Any]

    @property
    def place(self) -> str:
        """The repository."""
        return f"{self.registry.host}/rl"

    def raw(self, what: str) -> bytes:
        """A manifest as read by skopeo."""
        command = ("inspect", "--raw", "--tls-verify=false", f"docker://{self.place}{what}")
        return run(needs.require_tool("skopeo"), *command).stdout

    def referrers(self, digest: str) -> dict[str, dict[str, Any]]:
        """The descriptors of the attachments of `digest` by artifact type."""
        manifests = json.loads(self.raw(f":{digest.replace(':', '-')}"))["manifests"]
        assert len({item["artifactType"] for item in manifests}) == len(manifests)
        return {item["artifactType"]: item for item in manifests}

    def files(self, digest: str, kind: str, folder: Path) -> dict[str, bytes]:
        """The files of an attachment, by the names that `oras pull` would use."""
        artifact = self.referrers(digest)[kind]["digest"]
        place = f"docker://{self.place}@{artifact}"
        run(needs.require_tool("skopeo"), "copy", "--src-tls-verify=false", place, f"dir:{folder}")
        manifest = json.loads((folder / "manifest.json").read_bytes())
        assert manifest["artifactType"] == kind
        assert manifest["subject"]["digest"] == digest
        return {
            layer["annotations"]["org.opencontainers.image.title"]: (
                folder / layer["digest"].removeprefix("sha256:")
            ).read_bytes()
            for layer in manifest["layers"]
        }


def run(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run a command that must succeed."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done


def git(folder: Path, *words: str) -> str:
    """The output of git, with a fixed user name."""
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return run(needs.require_tool("git"), *identity, *words, cwd=folder).stdout.decode().strip()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("inside")
    images.python_base(folder, tuple(Arch))
    with (
        serve_site(FileSite(files=sample_project.sample_index().site_files())) as site,
        docker_registry.serve_registry(folder / "registry") as registry,
    ):
        base = sample_project.registry_base(
            sample_project.serve_image(site, folder / "base", "base")
        )
        project = Project(folder / "project", site.url("simple"), cache=folder / "cache")
        project.env = {"GITHUB_ACTIONS": ""}  # the project is not the one that CI has checked out
        project.write(base, arches=("x86_64", "arm64"))
        project.run("lock", TARGET)
        git(project.folder, "init", "--quiet")
        git(project.folder, "remote", "add", "origin", "https://me:secret@host.example/me/it.git")
        git(project.folder, "add", ".")
        git(project.folder, "commit", "--quiet", "--message", "locked")
        place = f"{registry.host}/rl"
        (pushed,) = json.loads(project.run("push", TARGET, place, "--json").stdout)
        yield Shop(project, registry, pushed)


@pytest.mark.long
def test_attachments_are_listed_by_registry_tools(shop):
    assert set(shop.referrers(shop.pushed["digest"])) == {STATEMENT, LOCK}
    for digest in shop.pushed["arch"].values():
        assert set(shop.referrers(digest)) == {CYCLONEDX, SPDX, STATEMENT, LOCK}


@pytest.mark.long  # test_sboms_of_local_target_are_valid has other SBOMs
@pytest.mark.parametrize("arch", list(Arch))
def test_sboms_are_valid_and_list_image_contents(shop, tmp_path, arch: Arch):
    digest = shop.pushed["arch"][arch]
    (data,) = shop.files(digest, CYCLONEDX, tmp_path / "one").values()
    valid_cyclonedx(data)
    sbom_file = json.loads(data)
    assert sbom_file["metadata"]["component"]["version"] == digest
    listed = {item["name"]: item["version"] for item in sbom_file["components"]
              if item.get("purl", "").startswith("pkg:pypi/")}  # fmt: skip
    locked = shop.project.read(f"{TARGET}/lock.json")["arch"][arch]["wheels"]
    assert listed == {wheel["package"]: wheel["version"] for wheel in locked}
    needed = {item["ref"]: item.get("dependsOn", []) for item in sbom_file["dependencies"]}
    assert needed["wheel/thewheel"] == ["wheel/helper"]
    (data,) = shop.files(digest, SPDX, tmp_path / "other").values()
    valid_spdx(data)


def test_provenance_has_commit_and_no_secrets(shop, tmp_path):
    (data,) = shop.files(shop.pushed["digest"], STATEMENT, tmp_path / "one").values()
    predicate = valid_provenance(data)
    head = git(shop.project.folder, "rev-parse", "HEAD")
    needed = {
        dependency["name"]: dependency
        for dependency in predicate["buildDefinition"]["resolvedDependencies"]
    }
    assert needed["repository"] == {
        "name": "repository",
        "uri": "git+https://host.example/me/it.git",
        "digest": {"gitCommit": head},
    }
    lock = (shop.project.folder / "images" / TARGET / "lock.json").read_bytes()
    assert needed["lock.json"]["digest"]["sha256"] == hashlib.sha256(lock).hexdigest()
    subject_digests = {subject["digest"]["sha256"] for subject in json.loads(data)["subject"]}
    assert subject_digests == {
        digest.removeprefix("sha256:")
        for digest in (shop.pushed["digest"], *shop.pushed["arch"].values())
    }


def test_second_push_from_another_git_commit_writes_nothing(shop):
    (shop.project.folder / "README").write_text("words")
    git(shop.project.folder, "add", ".")
    git(shop.project.folder, "commit", "--quiet", "--message", "words")
    before = len(shop.registry.received_requests())
    shop.project.run("push", TARGET, shop.place)
    assert shop.registry.writes(before) == []
    assert len(shop.registry.received_requests()) > before


def test_image_is_rebuilt_only_from_its_inputs(shop, tmp_path):
    """Without a checkout and with an empty cache, only the reference and two servers are used."""
    here = Project(tmp_path / "here", shop.project.index_url, cache=tmp_path / "cache")
    here.folder.mkdir()
    reference = f"{shop.place}:{TARGET}"
    (built_image,) = json.loads(
        here.run("build", "--from", reference, "--arch", "all", "--json").stdout
    )
    assert built_image["digest"] == shop.pushed["digest"]
    assert built_image["arch"] == shop.pushed["arch"]
    assert layout.read_layout(here.folder / "build" / TARGET).digest == shop.pushed["digest"]
    # The folder written by `oras pull` works as well, and needs no registry.
    for name, data in shop.files(shop.pushed["digest"], LOCK, tmp_path / "lock").items():
        (here.folder / name).write_bytes(data)
    shutil.rmtree(here.folder / "build")
    (built_image,) = json.loads(
        here.run("build", "--from", ".", "--arch", "all", "--offline", "--json").stdout
    )
    assert built_image["digest"] == shop.pushed["digest"]


def test_uncommitted_lock_has_no_commit_in_provenance(shop, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(shop.project.folder, folder)
    head = git(folder, "rev-parse", "HEAD")
    commit = provenance.build_details(find_project(folder), TARGET, {}).commit
    assert commit == Commit(id=head, uri="git+https://host.example/me/it.git")
    (folder / "README").write_text("what no image is made of")
    assert provenance.build_details(find_project(folder), TARGET, {}).commit == commit
    with (folder / "matrix.yaml").open("a") as file:
        file.write("# a thought\n")
    assert provenance.build_details(find_project(folder), TARGET, {}).commit is None
    git(folder, "add", "matrix.yaml")  # staged is not committed
    assert provenance.build_details(find_project(folder), TARGET, {}).commit is None
    shutil.rmtree(folder / ".git")
    assert provenance.build_details(find_project(folder), TARGET, {}).commit is None


# -- the images of this repository


def test_sboms_of_local_target_are_valid(tmp_path: Path):
    project = Project(ROOT, "", cache=tmp_path / "cache")
    for form, check in (("cyclonedx", valid_cyclonedx), ("spdx", valid_spdx)):
        folder = tmp_path / form
        sbom_files = json.loads(
            project.run(
                "show", "cu130-sglang", "--sbom", form, "--output", str(folder), "--json"
            ).stdout
        )
        for item in sbom_files:
            check(Path(item["output"]).read_bytes())


def test_every_locked_file_has_metadata():
    """An SBOM has no metadata for files that were not read."""
    project = find_project(ROOT / "matrix.yaml")
    recorded = packages.read_packages(project.images).packages
    unknown = set()
    for target in project.locked_targets():
        lock = json.loads((project.images / target / "lock.json").read_bytes())
        for resolution in lock["arch"].values():
            items = [*resolution["wheels"], *resolution.get("debs", ())]
            items += [{**built_wheel["wheel"]} for built_wheel in resolution.get("built", ())]
            unknown |= {item["file"] for item in items if item["sha256"] not in recorded}
    assert unknown == set()


def test_sif_of_a_pushed_image_matches_the_target(shop, tmp_path):
    """The lock is read from the registry, regardless of other attachments."""
    needs.require_tool("mksquashfs", "squashfs-tools")
    place = f"{shop.registry.host}/for-sif"
    shop.project.run("build", TARGET)
    (pushed,) = json.loads(shop.project.run("push", TARGET, place, "--json").stdout)
    digest = pushed["arch"]["x86_64"]
    subject = Descriptor(MANIFEST, digest, len(shop.raw(f"@{digest}")))
    artifact_store.attach_artifact(
        RegistryClient(), parse_repository(place), subject, LOCK, listed_first(subject)
    )
    target_options, folder, pulled = (
        ["--arch", "x86_64", "--output", str(tmp_path / f"{name}.sif")]
        for name in ("own", "folder", "pulled")
    )
    shop.project.run("build", TARGET, "--format", "sif", *target_options)
    shop.project.run("build", "--from", f"build/{TARGET}", "--format", "sif", *folder)
    assert (tmp_path / "own.sif").read_bytes() == (tmp_path / "folder.sif").read_bytes()
    done = shop.project.run("build", "--from", f"{place}:{TARGET}", "--format", "sif", *pulled)
    assert "has no digests.json" in " ".join(done.stderr.split())
    assert (tmp_path / "own.sif").read_bytes() == (tmp_path / "pulled.sif").read_bytes()
    lock = (shop.project.folder / "images" / TARGET / "lock.json").read_bytes()
    assert lock in (tmp_path / "pulled.sif").read_bytes()


def listed_first(subject: Descriptor) -> dict[str, artifact_store.ArtifactFile]:
    """Attach an invalid lock that the registry lists before the valid lock."""
    for number in range(1 << 16):
        part = artifact_store.ArtifactFile(
            data=f"{{}}{' ' * number}".encode(), media_type="application/json"
        )
        files = {"lock.json": part}
        if sha256(artifact_store.artifact_manifest(subject, LOCK, files)).startswith("000"):
            return files
    raise AssertionError
