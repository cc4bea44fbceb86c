"""Tests imgbuild installed from a wheel with a catalogue, without a checkout.

The wheel is built from the files of this checkout with a small catalogue. uv installs it from a
folder of downloaded wheels. The commands of the user run in a Debian root folder without an engine
and without a network. A server on the loopback interface has the package index and the registry of
the base.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from imgbuild.cache.facts_file import facts_path
from imgbuild.container import sandbox
from imgbuild.container.sandbox import BindMount
from imgbuild.oci import layout
from imgbuild.system.process import ProcessResult
from imgbuild.values import Arch
from tests.support import ci_repository, needs, sample_project, servers, whole_machine
from tests.support.layer_files import unpack_layer_files
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite, serve_site

ROOT = Path(__file__).parents[2]
UV = Path(sys.prefix) / "bin/uv"
SOURCES = ("LICENSE", "MANIFEST.in", "README.md", "builder", "pyproject.toml", "smoke_tests")
CATALOGUE = "imgbuild/data/catalogue/"
EPOCH = {"SOURCE_DATE_EPOCH": "1750000000"}
DEBIAN = {
    "kind": "debian", "suite": "bookworm", "python": "3.11", "glibc": "2.36",
    "packages": ["mount", "python3", "usr-is-merged"],
}  # fmt: skip
# Runs a command while a server of `files` listens on `port`: FOLDER PORT COMMAND...
SERVED = """\
import pickle, subprocess, sys
sys.path.insert(0, sys.argv[1])
from servers import FileSite, serve_site
with open(f"{sys.argv[1]}/files", "rb") as stream:
    site = FileSite(files=pickle.load(stream), port=int(sys.argv[2]))
with serve_site(site):
    sys.exit(subprocess.run(sys.argv[3:]).returncode)
"""

pytestmark = [pytest.mark.engine, pytest.mark.network]


def call(*words: object, env: Mapping[str, str] = EPOCH) -> None:
    command = list(map(str, words))
    full = {**os.environ, **env}
    done = subprocess.run(command, env=full, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A root folder of Debian with uv, a home, wheels, and a server, but without a network.

    `served` has the server's module and its files.
    """

    root: Path
    home: Path
    wheels: Path
    served: Path
    port: int

    def run(self, folder: Path, *command: object, status: int = 0) -> ProcessResult:
        """Run `command` in `folder`, which is in the home folder."""
        binds = [
            BindMount(source=self.home, target=str(self.home), writable=True),
            BindMount(source=self.wheels, target="/mnt/wheels"),
            BindMount(source=self.served, target="/mnt/served"),
            BindMount(source=UV, target="/usr/local/bin/uv"),
        ]
        env = {
            "HOME": str(self.home), "PATH": f"{self.home}/.local/bin:{sandbox.PATH}",
            "NO_COLOR": "1", "UV_DEFAULT_INDEX": f"http://localhost:{self.port}/simple",
        }  # fmt: skip
        served = ["python3", "-c", SERVED, "/mnt/served", str(self.port)]
        words = [*served, *map(str, command)]
        done = whole_machine.run_in_machine(self.root, words, folder=folder, env=env, binds=binds)
        assert done.status == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done


@dataclass(frozen=True)
class User:
    """A user of `machine` who works in `folder`, with imgbuild on the PATH."""

    machine: Machine
    folder: Path
    digest: str

    def run(self, *words: str, status: int = 0) -> ProcessResult:
        """Run `imgbuild WORDS` in the user's folder."""
        return self.machine.run(self.folder, "imgbuild", *words, status=status)

    def elsewhere(self, name: str) -> User:
        """A copy of the user that works in a new folder."""
        folder = self.machine.home / name
        folder.mkdir()
        return User(self.machine, folder, self.digest)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileSite]:
    index = sample_project.sample_index()
    index.wheel("gadget", "1.0", ["helper"], files={"gadget.py": b"from helper import VALUE\n"})
    with serve_site(FileSite(files=index.site_files())) as opened:
        yield opened


@pytest.fixture(scope="module")
def debian(site: FileSite, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layout with Debian's Python, whose packages are in the cache of the current user."""
    folder = tmp_path_factory.mktemp("debian")
    project = Project(folder, site.url("simple"), cache=None)
    project.write(DEBIAN)
    project.run("lock", TARGET, "--keep")
    project.run("build", TARGET, "--only", "base", "--output", str(folder / "base"))
    return folder / "base"


@pytest.fixture(scope="module")
def published(site: FileSite, debian: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A locked project that is installed as the catalogue."""
    folder = tmp_path_factory.mktemp("published")
    project = Project(folder / "project", site.url("simple"), cache=folder / "cache")
    image = sample_project.serve_image(site, debian, "base")
    project.write(sample_project.registry_base(image))
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
    kind = () if needs.is_long_run() else ("--wheel",)  # without it, from an sdist
    call(UV, "build", "--system-certs", *kind, "--out-dir", folder / "dist", folder)
    (built_wheel,) = (folder / "dist").glob("*.whl")
    return built_wheel


@pytest.fixture(scope="module")
def wheels(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and its dependencies for Debian's Python 3.11.2."""
    folder = tmp_path_factory.mktemp("wheels")
    pins = folder.with_name("requirements.txt")
    call(
        UV, "pip", "compile", "--system-certs", "--quiet", "--python-version", "3.11.2",
        "--constraint", ROOT / "tools/constraints.txt", "--output-file", pins,
        ROOT / "pyproject.toml",
    )  # fmt: skip
    call(
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder,
        "--python-version", "3.11", "--only-binary", ":all:", "--requirement", pins, wheel,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def user(
    wheels: Path, site: FileSite, debian: Path, published: Project,
    tmp_path_factory: pytest.TempPathFactory,
) -> User:  # fmt: skip
    """A user with an empty home folder who has installed imgbuild."""
    needs.user_namespaces()
    folder = tmp_path_factory.mktemp("machine")
    for name in ("home", "served"):
        (folder / name).mkdir()
    base = layout.read_layout(debian)
    layers = base.image(Arch.X86_64).layers
    unpack_layer_files([base.blob(layer.digest) for layer in layers], folder / "root")
    shutil.copy2(servers.__file__, folder / "served")
    (folder / "served/files").write_bytes(pickle.dumps(site.files))
    machine = Machine(
        root=folder / "root", home=folder / "home", wheels=wheels, served=folder / "served",
        port=site.port,
    )  # fmt: skip
    install = ["uv", "tool", "install", "--offline", "--no-index", "--find-links", "/mnt/wheels"]
    machine.run(machine.home, *install, "imgbuild")
    digest = published.read(f"{TARGET}/digests.json")["digest"]
    return User(machine, machine.home, digest).elsewhere("work")


def test_imgbuild_wheel_excludes_derived_data_files(wheel: Path) -> None:
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


def test_imgbuild_wheel_has_templates(wheel: Path) -> None:
    """Projects without templates use those of the wheel."""
    here, there = ROOT / "images/templates", "imgbuild/data/templates/"
    with zipfile.ZipFile(wheel) as opened:
        packed = {name.partition(there)[2] for name in opened.namelist() if name.startswith(there)}
    assert packed == {str(path.relative_to(here)) for path in here.rglob("*") if path.is_file()}


def test_imgbuild_wheel_has_facts_of_published_files(wheel: Path) -> None:
    committed = facts_path()
    with zipfile.ZipFile(wheel) as opened:
        assert opened.read("imgbuild/data/facts/published.zip") == committed.read_bytes()


def test_installed_imgbuild_shows_and_builds_targets(user: User) -> None:
    catalogue = user.run("list", "-v").stderr
    assert catalogue.count("using targets of the catalogue of imgbuild") == 1
    listed = user.run("list")
    assert TARGET in listed.stdout
    assert listed.stderr == ""
    assert user.digest in user.run("digest", TARGET).stdout
    assert TARGET in user.run("show", TARGET).stdout
    assert "thewheel" in user.run("show", TARGET, "--sbom", "cyclonedx").stdout
    assert "0 errors" in user.run("audit", TARGET).stdout
    user.run("build", TARGET)
    ran = user.run("run", TARGET, "--", "python", "-c", "import thewheel; print(thewheel.VALUE)")
    assert ran.stdout == "42\n"
    assert layout.read_layout(user.folder / "build" / TARGET).digest == user.digest
    assert [path.name for path in user.folder.iterdir()] == ["build"]


@pytest.mark.long
def test_copied_layout_is_tested_without_a_project(user: User, published: Project) -> None:
    """The folder has only a layout and its lock, and there is no network."""
    copied = user.elsewhere("copied")
    copied.run("build", TARGET, "--output", "layout")
    lock = published.images / TARGET / "lock.json"
    shutil.copy(lock, copied.folder)
    smoke = ("smoke", "--through", "root", "--tier", "static", "--json", "layout")
    cases = {"system", "versions", "files", "imports"}
    done = copied.run(*smoke, "--lock", "lock.json", "--case", "|".join(sorted(cases)))
    (report,) = json.loads(done.stdout)
    assert {case["name"] for case in report["cases"] if case["outcome"] == "passed"} >= cases
    assert (report["target"], report["through"]) == (TARGET, "root")
    config = layout.read_layout(copied.folder / "layout").image(Arch.X86_64).config.digest
    assert report["config"] == config
    refused = copied.run(*smoke, status=2)
    assert "cannot read the lock layout/lock.json" in json.loads(refused.stdout)["message"]
    shutil.copy(lock, copied.folder / "layout")
    copied.run(*smoke, "--case", "versions")
    for words, message in (
        (("--lock", "lock.json"), "--lock requires exactly one image, not none"),
        (("a", "b", "--lock", "lock.json"), "--lock requires exactly one image, not a, b"),
        (
            (("layout"), "--lock", "lock.json", "--record"),
            "--record cannot be combined with --lock",
        ),
    ):
        refused = copied.run("smoke", *words, "--json", status=2)
        assert message in json.loads(refused.stdout)["message"]


def test_commands_do_not_modify_the_installed_catalogue(user: User) -> None:
    tools = user.machine.home / ".local/share/uv/tools"
    (folder,) = tools.glob("imgbuild/lib/*/site-packages/imgbuild/data/catalogue")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    refused = user.run("lock", TARGET, status=2)
    assert "read-only" in refused.stderr
    assert "imgbuild init --extends" in refused.stderr
    assert user.run("lock", "--check", "--all").stdout.split() == [TARGET, user.digest]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.long  # test_extend.py has a checkout
def test_project_that_extends_a_target_is_initialized_locked_and_built(user: User) -> None:
    user_project = user.elsewhere("own")
    user_project.run("init", "ours", "--extends", TARGET, "--add", "gadget")
    first, *_ = (user_project.folder / "matrix.yaml").read_text().splitlines()
    place = first.removeprefix("# yaml-language-server: $schema=")
    assert json.loads((user_project.folder / place).read_bytes())["title"] == "imgbuild extension"
    user_project.run("lock", "ours")
    user_project.run("audit", "ours")
    built = json.loads(user_project.run("build", "ours", "--json").stdout)
    folder = user_project.folder / ".imgbuild"
    assert built[0]["output"] == str(folder / "build/ours")
    assert "gadget==1.0" in (folder / "images/ours/requirements-x86_64.txt").read_text()
    ran = user_project.run("run", "--", "python", "-c", "import gadget; print(gadget.VALUE)")
    assert ran.stdout == "42\n"
    absent = "import importlib.util; print(importlib.util.find_spec('gadget'))"
    assert user_project.run("run", TARGET, "--", "python", "-c", absent).stdout == "None\n"
    assert layout.read_layout(folder / "build" / TARGET).digest == user.digest
    assert sorted(path.name for path in user_project.folder.iterdir()) == [
        ".imgbuild", "matrix.yaml",
    ]  # fmt: skip


@pytest.mark.long
def test_project_is_initialized_without_arguments(user: User) -> None:
    user_project = user.elsewhere("plain")
    user_project.run("init")
    user_project.run("lock")
    user_project.run("build")
    assert sorted(path.name for path in user_project.folder.iterdir()) == [
        ".imgbuild", "matrix.yaml",
    ]  # fmt: skip
    folder = user_project.folder / ".imgbuild"
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".json") == [
        ".gitignore", "build", "images", "published",
    ]  # fmt: skip
    assert len(layout.read_layout(folder / "build/my-image").images[Arch.X86_64].layers) >= 2
