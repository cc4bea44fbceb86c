"""Tests that output files of a build backend cannot attack the machine."""

from __future__ import annotations

import contextlib
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import IntegrityError, NoSolution
from imgbuild.http.client import HttpClient
from imgbuild.matrix.load import load_matrix
from imgbuild.solve import sdist_wheel
from imgbuild.solve.build_root import host_root
from imgbuild.solve.sdists import host_arch
from tests.support import needs
from tests.support.local_index import sdist_bytes, wheel_bytes
from tests.support.source_code import ROOT

pytestmark = [pytest.mark.network, pytest.mark.engine]
NAME = "demo-1.0-py3-none-any.whl"
PYPROJECT = b'[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n'
# VICTIM is a file outside of the build's folder; the wheel is built from the sdist's own file.
BACKEND = """\
import contextlib, os, shutil
NAME, VICTIM, WHEEL = {name!r}, {victim!r}, "/build/source/made.whl"

def build_wheel(folder, settings=None, metadata=None):
    made = os.path.join(folder, NAME)
{body}
"""
HONEST = "    shutil.copy(WHEEL, made)\n    return NAME\n"


@pytest.fixture(scope="module", name="root")
def _root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a root folder from the user's cache."""
    needs.user_namespaces()
    matrix = load_matrix(ROOT / "matrix.yaml")
    base = msgspec.structs.replace(matrix.bases["debian-12"], packages=("python3", "usr-is-merged"))
    cached = host_root(base, matrix.image.user, host_arch(), Context(Store.open(), HttpClient()))()
    root = tmp_path_factory.mktemp("root") / "root"
    subprocess.run(["cp", "-a", cached, root], check=True)
    return root


@pytest.fixture(name="victim")
def _victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_bytes(wheel_bytes("demo", "1.0", files={"demo/secret.py": b"secret"}))
    return path


@pytest.fixture(name="build")
def _build(root: Path, tmp_path: Path, victim: Path) -> Callable[[str], Path]:
    def build(body: str) -> Path:
        backend = BACKEND.format(name=NAME, victim=str(victim), body=body)
        files = {
            "pyproject.toml": PYPROJECT,
            "own.py": backend.encode(),
            "made.whl": wheel_bytes("demo", "1.0", files={"demo/a.py": b""}),
        }
        sdist = tmp_path / "demo-1.0.tar.gz"
        sdist.write_bytes(sdist_bytes("demo", "1.0", files))
        (tmp_path / "job").mkdir()
        job = sdist_wheel.SdistJob(
            package="demo",
            version="1.0",
            sdist=sdist,
            requires=(),
            root=root,
            env={},
            folder=tmp_path / "job",
        )
        return sdist_wheel.build_wheel(job)

    return build


def test_valid_sdist_is_built(build):
    with zipfile.ZipFile(build(HONEST)) as archive:
        assert "demo/a.py" in archive.namelist()


# A link with a name that imgbuild itself writes to afterwards.
WRITTEN = (f".{NAME}.tmp", NAME, "result.json", "answer/result.json", f"wheel/{NAME}", "hooks.py")


@pytest.mark.parametrize("path", WRITTEN)
def test_link_left_by_a_build_does_not_redirect_writes(build, victim, path):
    before = victim.read_bytes()
    plant = (
        "    with contextlib.suppress(OSError):\n"
        f"        path = '/build/{path}'\n"
        "        os.makedirs(os.path.dirname(path), exist_ok=True)\n"
        "        if os.path.lexists(path): os.unlink(path)\n"
        "        os.symlink(VICTIM, path)\n"
    )
    with contextlib.suppress(IntegrityError, NoSolution):
        assert not build(plant + HONEST).is_symlink()
    assert victim.read_bytes() == before


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    os.symlink(VICTIM, made)\n    return NAME\n", "is not a readable regular file"),
        (
            "    shutil.copy(WHEEL, made)\n    os.link(made, made + '2')\n    return NAME\n",
            "has other hard links",
        ),
        ("    os.mkfifo(made)\n    return NAME\n", "is not a readable regular file"),
        ("    os.mkdir(made)\n    return NAME\n", "is not a readable regular file"),
        ("    open(made, 'wb').truncate(1 << 40)\n    return NAME\n", "more than"),
        ("    return NAME\n", "did not produce"),
        ("    return '../source/made.whl'\n", "reports '../source/made.whl' as its wheel"),
        (
            f"    os.symlink(VICTIM, '/build/home/{NAME}')\n    return '../home/{NAME}'\n",
            rf"reports '\.\./home/{NAME}' as its wheel",
        ),
        ("    return VICTIM\n", "as its wheel"),
        ("    return '.hidden.whl'\n", "as its wheel"),
        ("    shutil.copy(WHEEL, folder + '/x.whl')\n    return 'x.whl'\n", "x.whl cannot be read"),
        ("    open(made, 'wb').write(b'PK')\n    return NAME\n", "cannot be read"),
    ],
)
def test_only_a_regular_file_is_accepted_as_a_built_wheel(build, body, words):
    with pytest.raises(IntegrityError, match=words):
        build(body)


# The result file of a build, which was formerly next to its output.
PLACE = (
    "    folder = '/build/answer' if os.path.isdir('/build/answer') else '/build'\n"
    "    place = folder + '/result.json'\n"
)


@pytest.mark.parametrize(
    ("leave", "words"),
    [
        ("os.symlink(VICTIM, place)", "is not a readable regular file"),
        ("os.mkfifo(place)", "is not a readable regular file"),
        ("os.mkdir(place)", "is not a readable regular file"),
        ("open(place, 'w').write('{')", "result of its build cannot be read"),
        ("open(place, 'wb').truncate(1 << 40)", "more than"),
        ('open(place, "w").write(\'{"lacking": [], "wheel": 7}\')', "cannot be read"),
    ],
)
def test_build_result_is_read_only_from_a_regular_file(build, leave, words):
    with pytest.raises(IntegrityError, match=words):
        build(f"{PLACE}    {leave}\n    os._exit(0)\n")


@pytest.mark.parametrize(
    "line", ["-r /etc/hostname", "x @ file:///etc/hostname", "x\n-r /etc/hostname", "./local"]
)
def test_build_requirements_cannot_refer_to_local_files(build, line):
    answer = msgspec.json.encode({"lacking": [line], "wheel": None}).decode()
    leave = f"    open(place, 'w').write({answer!r})\n    os._exit(0)\n"
    with pytest.raises(IntegrityError, match="result of its build cannot be read"):
        build(PLACE + leave)


def test_build_does_not_change_the_root_of_the_next_build(build, root):
    plant = (
        "    for path in ('/usr/lib/python3/planted', '/etc/planted', '/planted'):\n"
        "        with contextlib.suppress(OSError):\n"
        "            open(path, 'w').close()\n"
    )
    build(plant + HONEST)
    assert not list(root.rglob("planted"))
