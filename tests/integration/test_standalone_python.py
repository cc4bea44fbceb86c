"""Tests that an image with a standalone Python is locked from a server, built and run.

The archive contains the interpreter of this machine, which the Debian packages of the base lack.
The long test also uses each version installed by pyenv and compiles an extension in the image.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.cache.store import Store
from imgbuild.container import sandbox
from imgbuild.container.root_folder import root_folder
from imgbuild.oci import layout
from imgbuild.values import Arch
from tests.support import ci_repository, needs, sample_project, smoke_environment, standalone_python
from tests.support.local_index import sdist_bytes
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite, serve_site

pytestmark = [pytest.mark.engine, pytest.mark.network]
ARCHIVE = "cpython-{}+20260101-x86_64-unknown-linux-gnu-install_only.tar.gz"
LIBRARIES = ["libbz2-1.0", "libcrypt1", "libdb5.3", "libexpat1", "libffi8", "liblzma5",
             "libncursesw6", "libnsl2", "libreadline8", "libsqlite3-0", "libssl3", "libtirpc3",
             "libuuid1", "zlib1g"]  # fmt: skip
LOOK = """\
import json, sys, sysconfig, os, sourced, thewheel
print(json.dumps([
    thewheel.VALUE, sourced.BUILT_BY, sys.prefix, sys.base_prefix, os.path.realpath(sys.executable),
    sysconfig.get_config_var("CC").split()[0], os.path.exists("/usr/bin/python3"),
]))
"""
# Files that users other than root can change, with a setuid or setgid bit, or other owners.
FILES = """\
import json, os, stat
from pathlib import Path
infos = {str(path): path.lstat() for path in Path("/opt/python").rglob("*")}
print(json.dumps([
    sorted(path for path, info in infos.items() if not stat.S_ISLNK(info.st_mode) and
        (info.st_mode & 0o6022 or (info.st_uid, info.st_gid) != (0, 0))),
    os.path.exists("/opt/python/lib/python3.11/LICENSE.txt"),
]))
"""
EXTENSION = """\
import ctypes, pathlib, sqlite3, ssl, subprocess, sys, sysconfig
source = pathlib.Path("/tmp/demo.c")
source.write_text('''#include <Python.h>
static struct PyModuleDef demo = {PyModuleDef_HEAD_INIT, "demo"};
PyMODINIT_FUNC PyInit_demo(void) { return PyModule_Create(&demo); }
''')
module = "/tmp/demo" + sysconfig.get_config_var("EXT_SUFFIX")
compiler = sysconfig.get_config_var("LDSHARED").split()
include = "-I" + sysconfig.get_paths()["include"]
subprocess.run([*compiler, "-fPIC", include, str(source), "-o", module], check=True)
subprocess.run([sys.executable, "-c", "import demo; print(demo.__name__)"], check=True, cwd="/tmp")
"""


# A build backend of an sdist: the wheel contains the version of the Python that built it.
PYPROJECT = b"""\
[build-system]
requires = []
build-backend = "own"
backend-path = ["."]
"""
BACKEND = b"""\
import sys, sysconfig, zipfile

def build_wheel(folder, settings=None, metadata=None):
    info = "sourced-1.0.dist-info/"
    files = {
        "sourced.py": f"BUILT_BY = {[sys.base_prefix, sysconfig.get_config_var('prefix')]}",
        info + "METADATA": "Metadata-Version: 2.1\\nName: sourced\\nVersion: 1.0\\n",
        info + "WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        info + "RECORD": "",
    }
    with zipfile.ZipFile(f"{folder}/sourced-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return "sourced-1.0-py3-none-any.whl"
"""


def base(python: str, url: str, packages: list[str]) -> dict[str, object]:
    """A base with the archive at `url`."""
    return {
        "kind": "debian", "suite": "bookworm", "glibc": "2.36", "packages": packages,
        "python": {"version": python, "from": "standalone", "archives": {"x86_64": url}},
    }  # fmt: skip


def run(folder: Path, code: str) -> str:
    """The output of the Python of the image in the layout `folder`."""
    with root_folder(layout.read_layout(folder), Arch.X86_64, Store.open()) as root:
        done = sandbox.run_in_sandbox(root, ["/opt/venv/bin/python", "-c", code])
    assert done.status == 0, done.stderr
    return done.stdout


@pytest.fixture(name="project")
def _project(tmp_path: Path) -> Iterator[Project]:
    """A project with the packed interpreter of this machine, and a package without a wheel."""
    needs.user_namespaces()
    index = sample_project.sample_index()
    source = sdist_bytes("sourced", "1.0", {"pyproject.toml": PYPROJECT, "own.py": BACKEND})
    index.add("sourced", "sourced-1.0.tar.gz", source)
    files = index.site_files()
    name = ARCHIVE.format("3.11.2")
    files[f"archives/{name.replace('+', '%2B')}"] = standalone_python.debian_archive()
    with serve_site(FileSite(files=files)) as site:
        project = Project(tmp_path / "project", site.url("simple"), cache=None)
        url = site.url(f"archives/{name.replace('+', '%2B')}")
        project.write(base("3.11", url, ["usr-is-merged", *LIBRARIES]), user="imgbuild", uid=1000)
        path = project.folder / "matrix.yaml"
        text = path.read_text().replace("pins: {", 'pins: {sourced: "1.0", ')
        path.write_text(f"{text}sdists: {{sourced: {{reason: it has no wheel}}}}\n")
        yield project


@pytest.mark.long  # unit/lock/test_standalone.py has the layers
def test_image_with_a_standalone_python_is_built(project: Project, tmp_path: Path) -> None:
    path = project.folder / "matrix.yaml"
    text = path.read_text()
    path.write_text(text.replace("libsqlite3-0", "libc6"))
    refused = project.run("lock", TARGET, status=4)
    assert "linked to libsqlite3.so.0, which neither its archive nor the base" in refused.stderr
    assert "add the Debian package libsqlite3-0, which has libsqlite3.so.0" in refused.stderr
    assert not (project.images / TARGET / "lock.json").exists()
    path.write_text(text)
    project.run("lock", TARGET)
    lock = json.loads((project.images / TARGET / "lock.json").read_text())
    locked = lock["arch"]["x86_64"]["python"]
    assert locked["file"] == ARCHIVE.format("3.11.2")
    assert locked["version"].startswith("3.11.")
    project.run("build", TARGET, "--output", str(tmp_path / "one"))
    prefix = "/opt/python"
    assert json.loads(run(tmp_path / "one", LOOK)) == [
        42, [prefix, prefix], "/opt/venv", prefix, f"{prefix}/bin/python3.11", "cc", False
    ]  # fmt: skip
    assert json.loads(run(tmp_path / "one", FILES)) == [[], True]
    shown = project.run("show", TARGET, "--layers").stdout
    assert f"CPython {locked['version']}" in shown
    project.run("site", "--output", str(tmp_path / "site"))
    page = (tmp_path / "site" / "targets" / f"{TARGET}.html").read_text()
    assert f"CPython {locked['version']} of a standalone build" in page
    sbom = json.loads(project.run("show", TARGET, "--sbom", "cyclonedx").stdout)
    (part,) = (part for part in sbom["components"] if part["name"] == "cpython")
    assert part["version"] == locked["version"]
    assert part["hashes"] == [{"alg": "SHA-256", "content": locked["sha256"]}]
    listed = json.loads(project.run("list", "--python", "3.11", "--json").stdout)
    assert [row["target"] for row in listed] == [TARGET]
    assert json.loads(project.run("list", "--python", "3.12,3.11", "--json").stdout) == listed
    refused = project.run("list", "--python", "3.12", status=3)
    assert "the bases have Python 3.11; a base can use another Python" in refused.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    "folder",
    ["/usr", *map(str, sorted(Path("/root/.pyenv/versions").glob("3.1[0-2].*")))],
)
def test_image_with_standalone_python_passes_static_tests_and_compiles_extensions(
    folder: str, tmp_path: Path
) -> None:
    needs.user_namespaces()
    packed = (
        standalone_python.debian_archive()
        if folder == "/usr"
        else standalone_python.pyenv_archive(Path(folder))
    )
    python = "3.11" if folder == "/usr" else ".".join(Path(folder).name.split(".")[:2])
    name = "python.tar.gz"
    with serve_site(FileSite(files={**ci_repository.index().site_files(), name: packed})) as site:
        project = Project(tmp_path / "project", site.url("simple"), cache=None)
        packages = ["gcc", "libc6-dev", "usr-is-merged", *LIBRARIES]
        project.write(base(python, site.url(name), packages), user="imgbuild", uid=1000)
        path = project.folder / "matrix.yaml"
        version = smoke_environment.pip_wheel().name.split("-")[1]
        path.write_text(path.read_text().replace("pins: {", f'pins: {{pip: "{version}", '))
        project.run("lock", TARGET)
        project.run("build", TARGET)
    assert run(project.folder / "build" / TARGET, EXTENSION) == "demo\n"
    smoke_run = project.run("smoke", TARGET, "--through", "root", "--tier", "static", "--json")
    (report,) = json.loads(smoke_run.stdout)
    cases = {case["name"]: case["outcome"] for case in report["cases"]}
    assert cases["compiler"] == "passed"
    assert "failed" not in cases.values()
