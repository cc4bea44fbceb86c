"""Tests pip and uv commands of users in each type of container of an image with `user_packages`.

A small image on real Debian packages contains pip and uv. The packages that users add come from a
folder of wheels.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import pytest

from imgbuild.container import engine
from imgbuild.system.files import remove_tree
from tests.support import dockerfile_project, needs, ordinary, sample_project, smoke_environment
from tests.support.local_index import LocalIndex
from tests.support.sample_project import Project
from tests.support.servers import FileSite, serve_site

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.timeout(900)]
TARGET = f"users-{uuid.uuid4().hex[:8]}"  # the name of the image in the engines
DEBIAN: dict[str, object] = {
    "kind": "debian", "suite": "bookworm", "python": "3.11", "glibc": "2.36",
    "packages": ["python3", "usr-is-merged"],
}  # fmt: skip
TOOLS: dict[str, object] = {"tools": ["jq", "python3-venv"]}  # only `STEPS` uses them
DRIVER = """\
import json, subprocess, sys
for line in json.loads(sys.argv[1]):
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    print(json.dumps([line, done.returncode, done.stdout + done.stderr]))
"""
OFFLINE = {
    "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "UV_FIND_LINKS": "/wheels", "UV_CACHE_DIR": "/scratch/uv",
    "TMPDIR": "/scratch",  # Apptainer has the /tmp of the machine
    "PYTHONPYCACHEPREFIX": "/pycache",  # shared by all containers: pip takes seconds to compile
}  # fmt: skip
UV_INSTALL = "uv pip install --no-index"
ABSENT = "!Installed in"  # no text is expected
HINT = "The packages of the image keep their versions. /opt/imgbuild/README says how"
PART = "error: helper: part of the image, which only root can change"
IN_UV_VENV = "source /scratch/uv-venv/bin/activate && "
# A command, its status, a part of its output.
STEPS = (
    ("pip install gadget", 0, "Installed in {base}. To add a package to the image itself: "),
    ("gadget", 0, "gadget 42"),
    ("python -c 'import gadget; print(gadget.__file__)'", 0, "{base}/lib/python3.11/site-packages"),
    ("python -m pip install second", 0, "Successfully installed second-1.0"),
    (f"{UV_INSTALL} third==1.0", 0, "Installed in {base}."),
    ("third && second", 0, "third 42\nsecond 42"),
    ("pip --timeout 5 -q install --dry-run second", 0, ABSENT),
    ("pip install --target /scratch/other --no-deps gadget", 0, ABSENT),
    ("uv pip --offline install --no-index --dry-run gadget", 0, ABSENT),
    ("pip -q --timeout 5 install gadget", 0, "Installed in {base}."),
    ("pip --timeout 5 uninstall -y helper", 2, PART),
    ("pip install needy", 1, HINT),
    ("python -m pip install needy", 1, "helper==0.5"),
    (f"{UV_INSTALL} needy", 1, HINT),
    ("pip uninstall -y helper", 2, PART),
    ("uv pip uninstall helper", 2, PART),
    ("pip list", 0, "gadget"),
    ("pip uninstall -y gadget second", 0, "Successfully uninstalled second-1.0"),
    ("uv pip uninstall third", 0, "- third==1.0"),
    ("python -c 'import gadget'", 1, "No module named 'gadget'"),
    ("python -c 'import helper; print(helper.__file__)'", 0, "/opt/venv/lib/"),
    ("python -m venv --system-site-packages /scratch/venv", 0, ""),
    ("/scratch/venv/bin/python -c 'import helper; print(helper.VALUE)'", 0, "42"),
    ("/scratch/venv/bin/pip install gadget && /scratch/venv/bin/gadget", 0, "gadget 42"),
    ("uv venv --system-site-packages /scratch/uv-venv", 0, ""),
    (f"{IN_UV_VENV}python -c 'import helper; print(helper.VALUE)'", 0, "42"),
    (f"{IN_UV_VENV}pip install third", 2, "hint: uv pip install PACKAGE"),
    # uv installs requirements of a package there, as described in the README.
    (f"{IN_UV_VENV}{UV_INSTALL} third==1.0 && third", 0, "third 1"),
    ("head -1 /opt/imgbuild/README && jq --version", 0, f"# {TARGET}\njq-1.6"),
)  # fmt: skip
# One of each kind, for the engines that do not run all of them.
FEW = tuple(step for step in STEPS if step[0] in (
    "pip install gadget", "gadget", f"{UV_INSTALL} third==1.0", f"{UV_INSTALL} needy",
    "pip uninstall -y helper", "python -c 'import helper; print(helper.__file__)'",
))  # fmt: skip
ROOT_STEPS = (
    ("pip install gadget && python -c 'import gadget; print(gadget.__file__)'", 0, "/opt/venv/lib"),
    (f"{UV_INSTALL} third==1.0 && third", 0, "third 42"),
    ("pip install needy", 1, HINT),
    ("pip uninstall -y gadget && uv pip uninstall helper", 0, "Successfully uninstalled gadget"),
    ("ls $PYTHONUSERBASE", 2, "No such file"),
)


@dataclass
class Image:
    """The project and name of the image, the index, and a folder of wheels."""

    project: Project
    index: str
    target: str = TARGET

    def steps(
        self,
        through: str,
        uid: int,
        steps: Sequence[tuple[str, int, str]],
        *,
        writable: bool,
        kept: bool = False,
        mode: int = 0o777,
        volumes: Sequence[str] = (),
    ) -> None:
        """Run commands in one container and check the exit status and output of each.

        `kept` keeps packages that were added before.
        """
        scratch = self.project.folder / "scratch"
        for folder in (scratch, *(() if kept else [self.project.folder / ".imgbuild-packages"])):
            remove_tree(folder)  # of another user
        scratch.mkdir()
        scratch.chmod(0o1777)
        self.project.folder.chmod(mode if writable else 0o755)
        variables = [word for pair in OFFLINE.items() for word in ("--env", "=".join(pair))]
        lines = ["echo $PYTHONUSERBASE", *(line for line, _, _ in steps)]
        done = self.project.run(
            "run", self.target, "--through", through, "--user", str(uid), *variables,
            "--volume", f"{self.project.folder}/wheels:/wheels:ro",
            "--volume", f"{self.project.folder}/pycache:/pycache",
            "--volume", f"{scratch}:/scratch", "--no-network", "--quiet",
            *(word for volume in volumes for word in ("--volume", volume)),
            "--", "python", "-c", DRIVER, json.dumps(lines),
        )  # fmt: skip
        (_, _, base), *results = (json.loads(line) for line in done.stdout.splitlines())
        assert base.startswith("/workspace/.imgbuild-packages/") == (writable and mode == 0o777)
        for (line, status, text), (_, actual, output) in zip(steps, results, strict=True):
            assert actual == status, f"{line}: status {actual}\n{output}"
            expected = text.format(base=base.strip())
            assert (expected.lstrip("!") in output) != expected.startswith("!"), f"{line}\n{output}"


def wheel(index: LocalIndex, name: str, *requires: str) -> None:
    """A package with a command that prints its name and a value of helper."""
    code = f"import helper\ndef main():\n    print({name!r}, helper.VALUE)\n".encode()
    entry = f"[console_scripts]\n{name} = {name}:main\n".encode()
    files = {f"{name}/__init__.py": code, f"{name}-1.0.dist-info/entry_points.txt": entry}
    index.wheel(name, "1.0", requires, files=files)


@pytest.fixture(scope="module", name="image")
def _image() -> Iterator[Image]:
    needs.require_root()
    index, added = sample_project.sample_index(), LocalIndex()
    pip = smoke_environment.pip_wheel()
    index.add("pip", pip.name, pip.read_bytes())
    uv = version("uv")
    index.wheel(
        "uv", uv, tag="py3-none-manylinux_2_17_x86_64", files=dockerfile_project.uv_wheel_files()
    )
    for name in ("gadget", "second", "third"):
        wheel(added, name, "helper")
    wheel(added, "needy", "helper>=1")
    added.wheel("third", "2.0")
    index.wheel("extra", "1.0", files={"extra.py": b"VALUE = 1\n"})
    added.wheel("extra", "2.0")
    added.wheel("helper", "1.0", files={"helper.py": b"VALUE = 1\n"})
    with serve_site(FileSite(files=index.site_files())) as site, ordinary.nobody_home() as folder:
        project = Project(folder / "project", site.url("simple"), cache=None)
        project.write(DEBIAN | (TOOLS if needs.is_long_run() else {}), user="imgbuild", uid=1000)
        path = project.folder / "matrix.yaml"
        text = path.read_text().replace("  small:", f"  {TARGET}:").replace(
            "  labels:", "    VIRTUAL_ENV: {value: /opt/venv, reason: tools read it}\n  labels:"
        )  # fmt: skip
        pins = f'pins: {{pip: "{pip.name.split("-")[1]}", uv: "{uv}", '
        path.write_text(text.replace("pins: {", f"user_packages: true\n    {pins}"))
        (project.folder / "wheels").mkdir()
        (project.folder / "pycache").mkdir()
        (project.folder / "pycache").chmod(0o1777)
        for item in added.published:
            (project.folder / "wheels" / item.file).write_bytes(item.data)
        project.run("lock", TARGET)
        project.run("build", TARGET)
        yield Image(project, site.url("simple"))


@pytest.mark.parametrize(
    ("through", "uid", "writable", "steps"),
    [
        ("root", 12345, False, FEW),
        pytest.param("docker", 12345, True, STEPS, marks=pytest.mark.long),
        pytest.param("root", 1000, True, STEPS, marks=pytest.mark.long),
        pytest.param("root", 12345, False, STEPS, marks=pytest.mark.long),
        # The mounts and users of Apptainer differ, which test_run_command.py has.
        pytest.param("apptainer", 12345, False, STEPS, marks=pytest.mark.long),
    ],
)
def test_user_can_add_packages_to_the_image(
    image: Image, through: str, uid: int, writable: bool, steps: Sequence[tuple[str, int, str]]
) -> None:
    if through == "root":
        needs.user_namespaces()
    else:
        getattr(needs, f"require_{through}")()
    if through == "apptainer":
        needs.require_tool("mksquashfs", "squashfs-tools")
    try:
        image.steps(through, uid, steps, writable=writable)
    finally:
        if through == "docker":
            engine.remove_image(engine.require_engine(through), f"{TARGET}:latest")
    ignored = image.project.folder / ".imgbuild-packages/.gitignore"
    if writable:
        assert ignored.read_text() == "*\n"
        assert ignored.stat().st_uid == uid


@pytest.mark.long
def test_root_can_modify_the_environment_of_the_image(image: Image) -> None:
    needs.user_namespaces()
    image.steps("root", 0, ROOT_STEPS, writable=True)


def test_error_names_the_unwritable_package_folder(image: Image) -> None:
    needs.user_namespaces()
    hint = "/proc/none: No such file or directory\nhint: set PYTHONUSERBASE to a"
    commands = ("pip install gadget", f"{UV_INSTALL} gadget")
    steps = [(f"PYTHONUSERBASE=/proc/none {command}", 2, hint) for command in commands]
    image.steps("root", 12345, steps, writable=False)


@pytest.mark.long
def test_python_without_user_site_packages_ignores_user_packages(image: Image) -> None:
    """Slurm jobs have this setting, so they use only packages of the image."""
    needs.user_namespaces()
    steps = (
        ("pip install gadget", 0, "Installed in"),
        ("PYTHONNOUSERSITE=1 python -c 'import gadget'", 1, "No module named 'gadget'"),
        ("PYTHONNOUSERSITE=1 python -c 'import helper'", 0, ""),
    )
    image.steps("root", os.getuid() + 2000, steps, writable=False)


@pytest.mark.long
def test_two_users_share_a_package_folder(image: Image) -> None:
    """The second user changes packages of the first; a sticky folder has a home for each."""
    needs.user_namespaces()
    first = [
        ("pip install gadget", 0, "Installed in {base}."),
        (f"{UV_INSTALL} third==1.0", 0, "Installed in {base}."),
    ]
    second = [
        ("gadget", 0, "gadget 42"),
        ("pip install second", 0, "Installed in {base}."),
        (f"{UV_INSTALL} third==2.0", 0, "Installed in {base}."),
        ("pip uninstall -y gadget", 0, "Successfully uninstalled gadget"),
    ]
    image.steps("root", 1000, first, writable=True)
    image.steps("root", 12345, second, writable=True, kept=True)
    image.project.folder.chmod(0o1777)
    folder = image.project.folder / ".imgbuild-packages"
    remove_tree(folder)
    folder.mkdir(mode=0o755)
    image.steps("root", 12345, first, writable=True, kept=True, mode=0o1777)


@pytest.mark.long
def test_packages_that_a_user_adds_keep_the_versions_of_the_image(image: Image) -> None:
    """An extension also has packages that constraints.txt does not list."""
    needs.user_namespaces()
    added = image.project.folder / "added/third-1.0.dist-info"
    added.mkdir(parents=True)
    (added / "METADATA").write_text("Metadata-Version: 2.1\nName: third\nVersion: 1.0\n")
    steps = [
        ("pip install third==2.0", 1, HINT),
        (f"{UV_INSTALL} third==2.0", 1, HINT),
        ("echo third==2.0 > /scratch/r.txt && uv pip sync --no-index /scratch/r.txt", 1, HINT),
    ]
    site = "/opt/venv/lib/python3.11/site-packages"
    volume = f"{added}:{site}/{added.name}:ro"
    image.steps("root", 12345, steps, writable=True, volumes=[volume])


@pytest.mark.long  # the previous test has a package like one of an extension
def test_extension_keeps_versions_of_its_packages(image: Image) -> None:
    needs.user_namespaces()
    folder = image.project.folder.parent / "ours"
    folder.mkdir()
    project = Project(folder, image.index, cache=None)
    place = ("--extends", TARGET, "--lock", str(image.project.folder))
    project.run("init", "ours", *place, "--add", "extra")
    project.run("lock", "ours")
    project.run("build", "ours")
    for name in ("wheels", "pycache"):
        (image.project.folder / name).rename(folder / name)
    try:
        Image(project, image.index, "ours").steps(
            "root",
            12345,
            [
                ("python -c 'import extra; print(extra.__file__)'", 0, "/opt/venv/lib/"),
                ("python -m pip install extra==2.0", 1, "extra==1.0"),
                ("python -m pip install needy", 1, "helper==0.5"),
                ("pip install extra==2.0", 1, HINT),
                ("python -m pip install gadget && gadget", 0, "gadget 42"),
            ],
            writable=True,
        )
    finally:
        for name in ("wheels", "pycache"):
            (folder / name).rename(image.project.folder / name)
