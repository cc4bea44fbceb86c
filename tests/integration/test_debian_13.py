"""Tests that a small image on Debian 13 can be locked, built and run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imgbuild.cache.store import Store
from imgbuild.container import sandbox
from imgbuild.container.root_folder import root_folder
from imgbuild.oci import layout
from imgbuild.values import Arch
from tests.support import ci_repository, needs, smoke_environment
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite, serve_site

pytestmark = [pytest.mark.long, pytest.mark.engine, pytest.mark.network]

BASE = {
    "kind": "debian", "suite": "trixie", "python": "3.13", "glibc": "2.41",
    "packages": ["gcc", "libc6-dev", "libpython3.13-dev", "python3", "usr-is-merged"],
}  # fmt: skip
LOOK = """\
import ctypes, os, sqlite3, ssl, stat, sys
import thewheel
special = [
    os.path.join(folder, name)
    for folder, _, names in os.walk("/usr")
    for name in names
    if os.lstat(os.path.join(folder, name)).st_mode & (stat.S_ISUID | stat.S_ISGID)
]
print(sys.version_info[:2], os.confstr("CS_GNU_LIBC_VERSION"), thewheel.VALUE, special)
"""


def test_debian_13_image_runs(tmp_path: Path) -> None:
    needs.user_namespaces()
    with serve_site(FileSite(files=ci_repository.index().site_files())) as site:
        project = Project(tmp_path / "project", site.url("simple"), cache=None)
        project.write(BASE, user="imgbuild", uid=1000)
        path = project.folder / "matrix.yaml"
        version = smoke_environment.pip_wheel().name.split("-")[1]
        path.write_text(path.read_text().replace("pins: {", f'pins: {{pip: "{version}", '))
        project.run("lock", TARGET)
        project.run("build", TARGET)
    built = layout.read_layout(project.folder / "build" / TARGET)
    with root_folder(built, Arch.X86_64, Store.open()) as root:
        done = sandbox.run_in_sandbox(root, ["/opt/venv/bin/python", "-c", LOOK])
    assert (done.status, done.stdout) == (0, "(3, 13) glibc 2.41 42 []\n"), done.stderr
    smoke_run = project.run("smoke", TARGET, "--through", "root", "--tier", "static", "--json")
    (report,) = json.loads(smoke_run.stdout)
    cases = {case["name"]: case["outcome"] for case in report["cases"]}
    assert cases["compiler"] == "passed"
    assert "failed" not in cases.values()
