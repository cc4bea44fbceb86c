"""Tests that sh, uv, pip, Docker and Apptainer can use the rendered files."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from uv import find_uv_bin

from imgbuild.assemble import skeleton
from imgbuild.matrix.model import User
from imgbuild.oci.tar import MemberKind
from imgbuild.plan.plan import FilesRecipe, VenvRecipe
from imgbuild.render import tree
from imgbuild.values import Arch
from tests.support import dockerfile_project, needs
from tests.support.local_index import wheel_bytes
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite

PYTHON = "3.11"
LOOK = "import thewheel, sys; print(thewheel.VALUE, sys.prefix)"


@pytest.fixture(scope="module")
def site() -> FileSite:
    """The index of the project."""
    return FileSite()


@pytest.fixture(scope="module")
def project(site: FileSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A locked project with a folder of its wheels and a running index."""
    needs.require_network()  # for Debian's packages
    with dockerfile_project.locked_project(
        tmp_path_factory.mktemp("render"), sdist=True, site=site
    ) as project:
        project.run("build", TARGET, "--only", "wheels", "--output", "build/wheels/small")
        project.run("render", TARGET, "--format", "script", "--output", "small.sh")
        yield project


@pytest.fixture
def wheels(project: Project, tmp_path: Path) -> Path:
    """A copy of the wheels that a test can damage."""
    return Path(shutil.copytree(project.folder / "build/wheels/small", tmp_path / "wheels"))


def printed(*words: str | Path) -> str:
    """The stdout of a command, which must succeed."""
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def python() -> str:
    """The Python interpreter for the wheels of the lock."""
    return needs.require_tool(f"python{PYTHON}")


def run_script(
    project: Project, path: str, folder: Path, *words: Path, index: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the script to create `folder`, with `path` as PATH and access to `index` if given.

    The home folder is new, so the script uses no cache.
    """
    places = {"UV_DEFAULT_INDEX": index, "PIP_INDEX_URL": index} if index else {}
    return subprocess.run(
        ["/bin/sh", project.folder / "small.sh", folder, *words],
        env={"PATH": path, "HOME": str(folder.parent), "NO_PROXY": "*", **places},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture
def with_uv(tmp_path: Path) -> str:
    """A PATH with uv and the required Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "uv").symlink_to(find_uv_bin())
    return f"{folder}:{Path(python()).parent}:/usr/bin:/bin"


@pytest.fixture
def with_pip() -> str:
    """A PATH with a Python that can create environments, but without uv."""
    completed = subprocess.run([python(), "-c", "import ensurepip, venv"], check=False)
    if completed.returncode:
        needs.skip_or_fail(
            f"python{PYTHON} cannot create virtual environments",
            f"apt-get install python{PYTHON}-venv",
        )
    path = f"{Path(python()).parent}:/usr/bin:/bin"
    if shutil.which("uv", path=path):
        needs.skip_or_fail(
            "uv is in the folder of Python", "run the tests with a Python in another folder"
        )
    return path


def checked(venv: Path) -> None:
    """Check that the environment has the files of the lock, except for dropped files."""
    assert printed(venv / "bin/python", "-c", LOOK).strip() == f"42 {venv}"
    assert (venv / "share/tools/x.txt").read_bytes() == b"x\n"  # not the rival's
    assert (venv / "share/common.txt").read_bytes() == b"of winner\n"  # not that of tools
    site = venv / f"lib/python{PYTHON}/site-packages"
    assert "common.txt" not in (site / "tools-3.0.dist-info/RECORD").read_text()
    assert (site / "made.py").read_text() == "WORD = 'two words'\n"
    first = (venv / "bin/ascript").read_text().splitlines()[0]
    assert first in (f"#!{venv}/bin/python", "#!/bin/sh")  # where the path has a space
    assert "share/tools" not in (site / "rival-1.0.dist-info/RECORD").read_text()
    assert (site / "rival/__init__.py").exists()


def test_install_script_creates_an_environment_with_uv(project, wheels, with_uv, tmp_path):
    done = run_script(project, with_uv, tmp_path / "my venv", wheels)
    assert done.returncode == 0, done.stderr
    assert "packages as the lock has them" in done.stderr
    checked(tmp_path / "my venv")
    shown = subprocess.run(
        ["/bin/sh", "-c", '. "$0/environment.sh"; env', tmp_path / "my venv"],
        env={"HOME": "/home/me"}, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert "FLASHINFER_WORKSPACE_BASE=/home/me/.cache/imgbuild" in shown
    assert "LANG=C.UTF-8" in shown


@pytest.mark.long  # pip also installs in the next tests
def test_install_script_creates_an_environment_with_pip(project, wheels, with_pip, tmp_path):
    done = run_script(project, with_pip, tmp_path / "venv", wheels)
    assert done.returncode == 0, done.stderr
    checked(tmp_path / "venv")


@pytest.mark.parametrize("path", ["with_uv", pytest.param("with_pip", marks=pytest.mark.long)])
def test_install_script_builds_packages_without_wheels(project, path, request, tmp_path):
    """The build has the variables of the matrix and the locked build requirements."""
    done = run_script(
        project, request.getfixturevalue(path), tmp_path / "venv", index=project.index_url
    )
    assert done.returncode == 0, done.stdout + done.stderr
    checked(tmp_path / "venv")


@pytest.mark.parametrize("path", ["with_uv", pytest.param("with_pip", marks=pytest.mark.long)])
def test_install_script_checks_build_requirements_by_hash(
    project, site, path, request, monkeypatch, tmp_path
):
    """The index has a modified build backend with the same name, which must not run."""
    code = f"open({str(tmp_path / 'ran')!r}, 'w')\n".encode() + dockerfile_project.MAKER
    wheel, page = "packages/maker-1.0-py3-none-any.whl", "simple/maker/"
    other = wheel_bytes("maker", "1.0", files={"maker.py": code})
    old, new = (hashlib.sha256(data).hexdigest().encode() for data in (site.files[wheel], other))
    assert old in site.files[page]
    monkeypatch.setitem(site.files, page, site.files[page].replace(old, new))
    monkeypatch.setitem(site.files, wheel, other)
    done = run_script(
        project, request.getfixturevalue(path), tmp_path / "venv", index=project.index_url
    )
    assert done.returncode != 0
    assert re.search(r"maker(.|\n)*hash|hash(.|\n)*maker", (done.stdout + done.stderr).lower())
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("path", ["with_uv", pytest.param("with_pip", marks=pytest.mark.long)])
def test_install_script_refuses_a_wheel_with_a_wrong_hash(project, wheels, path, request, tmp_path):
    wheel = wheels / "helper-0.5-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    done = run_script(project, request.getfixturevalue(path), tmp_path / "venv", wheels)
    assert done.returncode != 0
    assert "hash" in (done.stdout + done.stderr).lower()


def test_install_script_does_not_modify_an_existing_folder(project, wheels, with_uv, tmp_path):
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv/mine").write_text("mine")
    done = run_script(project, with_uv, tmp_path / "venv", wheels)
    assert done.returncode == 1
    assert "is there already" in done.stderr
    assert [path.name for path in (tmp_path / "venv").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        ('"thewheel": "1.0"', '"thewheel": "1.1"', "thewheel 1.0, the lock has 1.1"),
        ('f"import {module}"', 'f"import {module}, no_such"', "No module named 'no_such'"),
    ],
)
def test_install_script_reports_unmet_preconditions(
    project, wheels, with_uv, tmp_path, old, new, result
):
    text = (project.folder / "small.sh").read_text()
    assert text.count(old) == 1
    (tmp_path / "small.sh").write_text(text.replace(old, new))
    changed = Project(tmp_path, project.index_url, cache=None)
    done = run_script(changed, with_uv, tmp_path / "venv", wheels)
    assert done.returncode == 1
    assert result in done.stderr


def step(project: Project, wheels: Path, venv: Path) -> subprocess.CompletedProcess[str]:
    """Install a package like a step of the Dockerfile, with the same variables."""
    folder = project.folder / "images" / TARGET
    places = {"/run/wheels": wheels, "/run/installer": folder, "/opt/venv": venv}
    env = {"PATH": "/usr/bin:/bin", "HOME": str(venv)}
    for line in (folder / "Dockerfile").read_text().splitlines():
        if line.startswith(("ARG UV_", "ARG PYTHON")):
            name, _, value = line.removeprefix("ARG ").partition("=")
            for old, new in places.items():
                value = value.replace(old, str(new))
            env[name] = value
    assert len(env) > 10
    subprocess.run([find_uv_bin(), "venv", "--quiet", "--python", python(), venv], check=True)
    command = [find_uv_bin(), "pip", "install", "--no-deps", "helper==0.5"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_install_step_of_the_dockerfile_installs_only_locked_packages(project, wheels, tmp_path):
    done = step(project, wheels, tmp_path / "good")
    assert done.returncode == 0, done.stderr
    left = {path.name for path in (tmp_path / "good").rglob("*")}
    assert "helper.py" in left
    assert not left & {"INSTALLER", "REQUESTED", "direct_url.json", "__pycache__"}
    wheel = wheels / "helper-0.5-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    refused = step(project, wheels, tmp_path / "bad")
    assert refused.returncode != 0
    assert "Hash mismatch" in refused.stderr


def test_uv_installs_pylock(project, tmp_path):
    project.run("render", TARGET, "--format", "pylock", "--output", str(tmp_path / "pylock.toml"))
    venv = tmp_path / "venv"
    subprocess.run([find_uv_bin(), "venv", "--quiet", "--python", python(), venv], check=True)
    install = [find_uv_bin(), "pip", "install", "--preview", "--python", venv / "bin/python"]
    command = [*install, "--no-cache", "-r", "pylock.toml"]
    subprocess.run(command, cwd=tmp_path, env=project.environment(), check=True)
    assert printed(venv / "bin/python", "-c", LOOK).split()[0] == "42"


def test_shell_steps_create_the_files_of_the_image_layers(tmp_path):
    """The steps run in a folder of the test, with the plain paths in the scripts of the image."""
    root = tmp_path / "ro ot"
    files_recipe = FilesRecipe(
        user=User(name="me", uid=1, gid=1, home=f"{root}/home/me"),
        workdir=f"{root}/work", cache=f"{tmp_path}/cache", links={f"{root}/venv/lib/a b": "c d"},
    )  # fmt: skip
    venv = VenvRecipe(prefix=f"{tmp_path}/venv", python=PYTHON, interpreter="/usr/bin/python3")
    members = [*skeleton.venv_members(venv), *skeleton.files_members(files_recipe)]
    # The entry point has the same path in every image, so it is left to the builders' tests.
    mine = {Arch.X86_64: [member for member in members if not member.path.startswith("opt/")]}
    for name, content in tree.source_files(mine).items():
        (tmp_path / "context" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "context" / name).write_bytes(content)
    steps = tree.create_tree(mine).steps(str(tmp_path / "context"), owners=False)
    subprocess.run(["/bin/sh", "-euc", "umask 022; " + " && ".join(steps)], check=True)
    for member in mine[Arch.X86_64]:
        path = Path("/" + member.path)
        if member.kind is MemberKind.LINK:
            assert str(path.readlink()) == member.target
        elif member.kind is MemberKind.FOLDER:
            assert path.stat().st_mode & 0o7777 == member.mode
        else:
            assert (path.read_bytes(), path.stat().st_mode & 0o777) == (member.content, member.mode)


@pytest.mark.engine
def test_docker_builds_the_online_dockerfile_from_its_folder(project, tmp_path):
    """The base is from a registry by digest, and the wheels from the index. No step has network."""
    docker, registry, skopeo = (
        needs.require_buildx(),
        needs.require_registry(),
        needs.require_tool("skopeo"),
    )
    name = f"{registry.replace('127.0.0.1', 'localhost')}/render-test"
    project.run("build", TARGET, "--only", "base", "--output", "build/base/small")
    subprocess.run(
        [skopeo, "copy", "--quiet", "--dest-tls-verify=false",
         f"oci:{project.folder}/build/base/small", f"docker://{registry}/render-test:base"],
        check=True,
    )  # fmt: skip
    folder = tmp_path / "online"
    project.run("render", TARGET, "--online", "--registry", name, "--output", str(folder))
    tag = f"imgbuild-online-{os.getpid()}"
    command = [docker, "buildx", "build", "--network", "none", "--no-cache", "--load", "--tag", tag]
    subprocess.run([*command, str(folder)], check=True)
    try:
        ran = printed(docker, "run", "--rm", "--network", "none", tag, "python", "-c", LOOK)
    finally:
        printed(docker, "image", "rm", "--force", tag)
    assert ran.split() == ["42", "/opt/venv"]


@pytest.mark.long  # the test of Docker runs the same steps
@pytest.mark.engine
def test_steps_of_the_definition_file_run_in_the_base_image(project, tmp_path):
    """The steps run in the base without a network, as in Apptainer."""
    docker = needs.require_docker()
    archive, tag = tmp_path / "base.tar", f"imgbuild-definition-{os.getpid()}"
    project.run(
        "build", TARGET, "--only", "base", "--format", "docker-archive", "--output", str(archive)
    )
    project.run("render", TARGET, "--format", "apptainer", "--output", "small.def")
    text = (project.folder / "small.def").read_text()
    steps = text.partition("\n%post\n")[2].partition("\n%environment\n")[0]
    (tmp_path / "steps").write_text(steps)
    loaded = printed(docker, "load", "--quiet", "--input", archive).split()[-1]
    printed(docker, "tag", loaded, tag)
    binds = {
        project.folder / "build/wheels/small": "/mnt",
        project.folder / "images/small": "/run/files",
        tmp_path / "steps": "/run/steps",
    }
    command = [docker, "run", "--rm", "--network", "none"]
    for source, place in binds.items():
        command += ["--volume", f"{source}:{place}:ro"]
    command += [tag, "sh", "-c"]
    look = "cd /opt/venv; cat share/common.txt share/tools/x.txt; bin/python -c"
    look += " 'import made, rival, thewheel; print(made.WORD, thewheel.VALUE)'"
    try:
        ran = printed(*command, f"cp -r /run/files /imgbuild && sh /run/steps >&2 && {look}")
        other = subprocess.run(
            [*command, "uname() { echo riscv64; }; . /run/steps"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        printed(docker, "image", "rm", "--force", tag, loaded)
    assert ran == "of winner\nx\ntwo words 42\n"
    assert other.returncode == 1
    assert "this definition file is for x86_64, and here is riscv64" in other.stderr


@pytest.mark.long  # the previous test runs the same steps
@pytest.mark.apptainer
def test_apptainer_builds_definition_file(project, tmp_path):
    apptainer = needs.require_apptainer()
    project.run("build", TARGET, "--only", "base", "--output", "build/base/small")
    project.run("render", TARGET, "--format", "apptainer", "--output", "small.def")
    image = tmp_path / "small.sif"
    bind = f"{project.folder}/build/wheels/small:/mnt"
    fast = ["--mksquashfs-args", "-comp zstd -Xcompression-level 1"]
    subprocess.run(
        [apptainer, "build", *fast, "--bind", bind, image, "small.def"],
        cwd=project.folder,
        check=True,
    )
    command = [apptainer, "--quiet", "run", "--no-privs", "--cleanenv", image]
    assert printed(*command, "python", "-c", LOOK).split() == ["42", "/opt/venv"]
    assert f"dev.imgbuild.target: {TARGET}" in printed(apptainer, "inspect", "--labels", image)


def test_lock_renders_files_and_lock_check_reports_stale_files(project, tmp_path):
    project.run("render", TARGET, "--check")
    dockerfile = project.folder / "images" / TARGET / "Dockerfile"
    text = dockerfile.read_text()
    dockerfile.write_text(text.replace("no-deps", "with-deps"))
    stray = project.folder / "images" / TARGET / "files/stray"
    stray.write_text("")
    try:
        refused = project.run("render", TARGET, "--check", status=5).stderr
        assert f"{dockerfile} does not match the lock" in refused
        assert "files/stray is not used by the Dockerfile, so it can be removed" in refused
        assert "imgbuild render --all" in refused
        project.run("render", TARGET)
        assert dockerfile.read_text() == text
        assert stray.exists(), "imgbuild did not create this file"
        assert "files/stray" in project.run("render", TARGET, "--check", status=5).stderr
    finally:
        stray.unlink()
        project.run("render", TARGET)
    project.run("render", TARGET, "--check")
