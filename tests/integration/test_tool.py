"""Tests the scripts of the release that build and publish the container of imgbuild."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import imgbuild
from imgbuild.lock import lock_file
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import ImageReference, parse_repository
from imgbuild.values import Arch
from tests.support import ci_repository, docker_registry, needs
from tests.support.sample_project import Project

ROOT = Path(__file__).parents[2]
NAME = "imgbuild"
TAG = f"v{imgbuild.__version__}"
BOTH = "arch: [x86_64, arm64]"

# The long tests build it every night, and each release builds and tests it first.
pytestmark = [pytest.mark.long, pytest.mark.engine, pytest.mark.network, pytest.mark.disk(3)]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A checkout of this working tree with an existing environment for `make`."""
    folder = tmp_path_factory.mktemp("tool") / "checkout"
    tracked = ci_repository.git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard")
    for name in tracked.splitlines():
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    # Only for this machine: the other architecture would take as long again.
    matrix = folder / "tool/matrix.yaml"
    text = matrix.read_text()
    assert BOTH in text
    matrix.write_text(text.replace(BOTH, "arch: [x86_64]"))
    ci_repository.git(folder, "init", "--quiet", "--initial-branch=main")
    ci_repository.commit_all(folder, "as it lies")
    (folder / ".venv").mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (folder / ".venv" / name).symlink_to(Path(sys.prefix) / name)
    for name in ("made", "ready"):
        (folder / ".venv" / name).touch()
    project = Project(folder, "", cache=None)
    job_run = ci_repository.run_job(
        project, "release", "build", {"TAG": TAG}, folder / "build/scripts"
    )
    assert job_run.status == 0, job_run.said
    yield project
    shutil.rmtree(folder)


def test_tool_image_has_the_versions_of_the_constraints_file(checkout):
    lock = lock_file.read_lock(checkout.folder / "tool/images", NAME)
    pinned = dict(
        line.partition(";")[0].strip().split("==")
        for line in (ROOT / "tools/constraints.txt").read_text().splitlines()
    )
    versions = {wheel.package: wheel.version for wheel in lock.arch[Arch.X86_64].wheels}
    assert versions.pop(NAME) == imgbuild.__version__
    assert versions == {name: pinned[name] for name in versions}
    assert {"uv", "cryptography", "typer", "msgspec"} <= versions.keys()


def test_tool_image_is_built_run_and_published(checkout, tmp_path):
    docker = needs.require_docker()
    scripts = tmp_path / "scripts"
    try:
        done = ci_repository.run_job(checkout, "release", "container", {"TAG": TAG}, scripts)
        assert done.status == 0, done.said
        lists = [docker, "run", "--rm", "--entrypoint", "id", NAME, "-u"]
        assert subprocess.run(lists, capture_output=True, text=True, check=True).stdout == "1000\n"
    finally:
        subprocess.run([docker, "image", "rm", "--force", NAME], capture_output=True, check=False)
    with docker_registry.serve_registry(tmp_path / "registry") as registry:
        place = f"{registry.host}/Me/RL/imgbuild"
        env = {"TAG": TAG, "PLACE": place, "SIGN": "no"}
        done = ci_repository.run_job(checkout, "release", "image", env, scripts)
        assert done.status == 0, done.said
        repository = parse_repository(place.lower())
        client = RegistryClient(origin=True)
        assert [tag for tag in client.tags(repository) if not tag.startswith("sha256-")] == [
            imgbuild.__version__
        ]
        named = ImageReference(repository.host, repository.name, tag=imgbuild.__version__)
        index = client.manifest(named)
        target_digests = json.loads(
            (checkout.folder / "tool/images/imgbuild/digests.json").read_bytes()
        )
        assert index.descriptor.digest == target_digests["digest"]
        kinds = {
            referrer.artifact_type
            for referrer in client.referrers(repository, target_digests["digest"])
        }
        assert len(kinds) >= 2, kinds  # the lock and its provenance are next to it
