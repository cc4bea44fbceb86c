"""imgbuild as a new user has it: a wheel, installed by uv, with a catalogue and no checkout.

The wheel is built from this checkout's files with a small catalogue in place of the real one. The
package index and the registry of its base are servers on this machine; the packages that imgbuild
itself needs come from the default index.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from imgbuild.oci import layout
from imgbuild.values import Arch
from tests.support import ci_repository, images, sample_project
from tests.support.sample_project import TARGET, Project
from tests.support.servers import Site, serve

ROOT = Path(__file__).parents[2]
UV = Path(sys.prefix) / "bin/uv"
SOURCES = ("LICENSE", "MANIFEST.in", "README.md", "builder", "pyproject.toml", "smoke_tests")
CATALOGUE = "imgbuild/data/catalogue/"
EPOCH = {"SOURCE_DATE_EPOCH": "1750000000"}

pytestmark = pytest.mark.network


def call(*words: object, env: Mapping[str, str] = EPOCH) -> None:
    command = list(map(str, words))
    full = {**os.environ, **env}
    done = subprocess.run(command, env=full, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass(frozen=True)
class User:
    """A user with an empty home, and imgbuild on the PATH."""

    home: Path
    wheel: Path
    digest: str
    env: dict[str, str]

    def run(self, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run `imgbuild WORDS` in the user's folder."""
        done = subprocess.run(
            ["imgbuild", *words], cwd=self.folder, env=self.env, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done

    @property
    def folder(self) -> Path:
        """The folder where the user works."""
        return self.home / "work"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    index = sample_project.index()
    index.wheel("gadget", "1.0", ["helper"], files={"gadget.py": b"from helper import VALUE\n"})
    with serve(Site(files=index.site_files())) as opened:
        yield opened


@pytest.fixture(scope="module")
def published(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A locked project, which becomes the catalogue."""
    folder = tmp_path_factory.mktemp("published")
    members = [
        images.text("etc/passwd", "root:x:0:0::/root:/bin/sh\n"),
        images.text("etc/group", "root:x:0:\n"),
        images.text("usr/bin/python3.11", "", mode=0o755),
    ]
    made = images.layer(folder / "blobs", members)
    layout.write(folder / "base", {Arch.X86_64: images.summary([made])}, "base")
    project = Project(folder / "project", site.url("simple"), cache=folder / "cache")
    project.write(
        sample_project.registry_base(sample_project.serve_image(site, folder / "base", "base"))
    )
    project.run("lock", TARGET)
    return project


@pytest.fixture(scope="module")
def wheel(published: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout with the small catalogue."""
    folder = tmp_path_factory.mktemp("checkout")
    tracked = ci_repository.git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard",
                                "--", *SOURCES, "images/templates")  # fmt: skip
    for name in tracked.splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    shutil.copytree(published.folder / "images", folder / "images", dirs_exist_ok=True)
    for rendered in ("Dockerfile", "files/opt/imgbuild/entrypoint"):  # follow from the lock
        path = folder / "images" / TARGET / rendered
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    shutil.copy2(published.folder / "matrix.yaml", folder)
    (folder / "ci.yaml").write_text("version: 1\n")
    call(UV, "build", "--system-certs", "--out-dir", folder / "dist", folder)
    (found,) = (folder / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def user(
    wheel: Path, site: Site, published: Project, tmp_path_factory: pytest.TempPathFactory
) -> User:
    home = tmp_path_factory.mktemp("home")
    (home / "work").mkdir()
    call(
        UV, "tool", "install", "--system-certs", "--python", sys.executable,
        "--constraints", ROOT / "tools/constraints.txt", wheel,
        env={"UV_TOOL_DIR": str(home / "tools"), "UV_TOOL_BIN_DIR": str(home / "bin")},
    )  # fmt: skip
    env = {
        "HOME": str(home), "PATH": f"{home}/bin:/usr/bin:/bin", "NO_COLOR": "1",
        "UV_DEFAULT_INDEX": site.url("simple"), "NO_PROXY": "localhost,127.0.0.1",
    }  # fmt: skip
    digest = published.read(f"{TARGET}/digests.json")["digest"]
    return User(home=home, wheel=wheel, digest=digest, env=env)


def test_the_wheel_has_what_verbs_read_and_nothing_that_follows_from_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = [
            name.removeprefix(CATALOGUE) for name in opened.namelist() if name.startswith(CATALOGUE)
        ]
    assert sorted(names) == [
        "ci.yaml",
        "images/packages.json",
        *(f"images/{TARGET}/{name}" for name in
          ("digests.json", "lock.json", "requirements-x86_64.txt")),
        "matrix.yaml",
    ]  # fmt: skip


def test_targets_are_shown_and_built_anywhere(user: User) -> None:
    catalogue = user.run("list", "-v").stderr
    assert catalogue.count("targets from the catalogue of imgbuild") == 1
    listed = user.run("list")
    assert TARGET in listed.stdout
    assert listed.stderr == ""
    assert user.digest in user.run("digest", TARGET).stdout
    assert TARGET in user.run("show", TARGET).stdout
    assert "thewheel" in user.run("show", TARGET, "--sbom", "cyclonedx").stdout
    assert "0 errors" in user.run("audit", TARGET).stdout
    user.run("build", TARGET)
    assert layout.read(user.folder / "build" / TARGET).digest == user.digest
    assert [path.name for path in user.folder.iterdir()] == ["build"]


def test_the_catalogue_is_not_written_to(user: User) -> None:
    (folder,) = user.home.glob("tools/imgbuild/lib/*/site-packages/imgbuild/data/catalogue")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    refused = user.run("lock", TARGET, status=2)
    assert "read-only" in refused.stderr
    assert "imgbuild init --extends" in refused.stderr
    assert user.run("lock", "--check", "--all").stdout.split() == [TARGET, user.digest]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_project_that_extends_a_target_is_started_locked_and_built(user: User) -> None:
    own = User(home=user.home / "own", wheel=user.wheel, digest=user.digest, env=user.env)
    own.folder.mkdir(parents=True)
    own.run("init", "ours", "--extends", TARGET, "--add", "gadget")
    first, *_ = (own.folder / "matrix.yaml").read_text().splitlines()
    place = first.removeprefix("# yaml-language-server: $schema=")
    assert json.loads((own.folder / place).read_bytes())["title"] == "imgbuild extension"
    own.run("lock", "ours")
    own.run("audit", "ours")
    built = json.loads(own.run("build", "ours", "--json").stdout)
    assert built[0]["output"] == str(own.folder / "build/ours")
    assert "gadget==1.0" in (own.folder / "images/ours/requirements-x86_64.txt").read_text()


def test_a_project_is_started_without_any_word(user: User) -> None:
    own = User(home=user.home / "plain", wheel=user.wheel, digest=user.digest, env=user.env)
    own.folder.mkdir(parents=True)
    own.run("init")
    own.run("lock", "--all")
    own.run("build", "--all")
    assert sorted(path.name for path in own.folder.iterdir()) == [
        ".gitignore", "README.md", "build", "images", "matrix.schema.json", "matrix.yaml",
        "published",
    ]  # fmt: skip
    found = layout.read(own.folder / "build/my-image")
    assert len(found.images[Arch.X86_64].layers) >= 2
