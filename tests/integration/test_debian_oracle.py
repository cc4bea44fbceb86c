"""Compares the Debian bases with roots in which mmdebstrap installed the same packages.

Paths, types, modes, owners, link targets, contents and times must be equal, except for the lists in
tests/support/debian_differences.py. Every entry of these lists must occur in a complete base. The
comparison is a long test, as are the programs of a part of each base. In every test run,
test_main_job.py runs the complete Debian 12.

The facts about an installed root depend only on its packages, the command and the version of
mmdebstrap. They are stored in the cache of the user until one of these changes.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from imgbuild.cache.context import Context
from imgbuild.cache.download import FileRequest, fetch_all
from imgbuild.cache.store import Store
from imgbuild.container.sandbox import SandboxRoot, run_in_sandbox
from imgbuild.deb import apt, debian_root, table
from imgbuild.http.client import HttpClient
from imgbuild.lock.resolution import Deb
from imgbuild.matrix.load import load_matrix
from imgbuild.matrix.model import DebianBase
from imgbuild.oci.layer import write_layer
from imgbuild.oci.reader import LayerFile
from imgbuild.oci.tar import MTIME
from imgbuild.oci.unpack import unpack_layers
from imgbuild.plan.plan import DebianRecipe
from imgbuild.values import Arch
from tests.support import needs
from tests.support.debian_differences import (
    ONLY_OURS,
    ONLY_OURS_OF,
    ONLY_REAL,
    ONLY_REAL_EMPTY,
    ONLY_REAL_OF,
    OTHER_CONTENT_OF,
    OTHER_OWNER,
)

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.disk(3)]

REPOSITORY = Path(__file__).parent.parent.parent
MATRIX = load_matrix(REPOSITORY / "matrix.yaml")
# Whole bases, and a part of each that is assembled quickly.
WHOLE = [pytest.param(name, marks=pytest.mark.long) for name in ("debian-12", "debian-13")]
# Many other tests build and run Debian 12.
PARTS = [
    pytest.param(f"{name}, a part", marks=pytest.mark.long) for name in ("debian-12", "debian-13")
]
PACKAGES = ("apt", "ca-certificates", "python3", "usr-is-merged")
whole = pytest.mark.parametrize("base", WHOLE, indirect=True, scope="module")


class Facts(NamedTuple):
    """The compared properties of a path. `names` is the number of hard links."""

    mode: int
    owner: str
    names: int
    time: int
    target: str
    sha256: str


class Roots(NamedTuple):
    """The paths of an installed root and of an assembled root."""

    real: dict[str, Facts]
    ours: dict[str, Facts]


class Locked(NamedTuple):
    """The locked and cached packages of a base for one architecture."""

    debs: tuple[Deb, ...]
    paths: dict[str, Path]


@pytest.fixture(scope="module", params=[*WHOLE, *PARTS])
def base(request: pytest.FixtureRequest) -> DebianBase:
    name, part, _ = request.param.partition(",")
    debian_base = MATRIX.bases[name]
    assert isinstance(debian_base, DebianBase)
    debian_base = msgspec.structs.replace(
        debian_base, security=None
    )  # mmdebstrap is given one suite
    if not part:
        return debian_base
    return msgspec.structs.replace(debian_base, packages=PACKAGES)


def locked(base: DebianBase, arch: Arch) -> Locked:
    store, http = Store.open(), HttpClient()
    debs = apt.resolve_debs(base, arch, Context(store, http)).debs

    def want(deb: Deb) -> FileRequest:
        return FileRequest(deb, lambda: apt.deb_urls(deb, base))

    paths = fetch_all(
        [want(deb) for deb in debs], Context(store, http), title=f"Debian packages, {arch}"
    )
    return Locked(debs, paths)


def assembled(base: DebianBase, arch: Arch, folder: Path) -> Path:
    """The assembled root on disk, unpacked from the layer file."""
    resolution = locked(base, arch)
    recipe = DebianRecipe(arch=arch, suite=base.suite, debs=resolution.debs, user=MATRIX.image.user)
    members = debian_root.base_members(recipe, resolution.paths, folder / "spool")
    with (folder / "layer").open("wb") as sink:
        record = write_layer(members, sink)
    shutil.rmtree(folder / "spool")
    (folder / "ours").mkdir()
    unpack_layers([LayerFile(path=folder / "layer", diff_id=record.diff_id)], folder / "ours")
    (folder / "layer").unlink()
    return folder / "ours"


def installed(base: DebianBase, debs: Sequence[Deb], folder: Path) -> dict[str, Facts]:
    """A root in which apt installed the packages of the base and ran all scripts."""
    left_out = table.dpkg_configuration(table.load_table(base.suite)).decode().splitlines()
    options = [f"--dpkgopt={line}" for line in left_out if line.startswith("path-")]
    if base.suite == "bookworm":  # base-files has these links since Debian 13
        options.append("--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr")
    words = [
        *("--mode=root", "--variant=essential", "--dpkgopt=force-unsafe-io"),
        f"--include={','.join(base.packages)}",
        *options,
        base.suite,
    ]
    program = needs.require_tool("mmdebstrap")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    inputs = [version.stdout, words, MTIME, sorted(deb.sha256 for deb in debs), _source()]
    key = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = cache / "imgbuild-tests/mmdebstrap" / f"{key}.json"
    if not kept.exists():
        mirror = f"deb {apt.archive_mirrors(base)[0]} {base.suite} {' '.join(base.components)}"
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(MTIME)}
        done = subprocess.run(
            [program, *words, str(folder / "real"), mirror],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.with_suffix(".new").write_text(json.dumps(facts(folder / "real")))
        kept.with_suffix(".new").rename(kept)
        shutil.rmtree(folder / "real")
    return {path: Facts(*values) for path, values in json.loads(kept.read_text()).items()}


def _source() -> str:
    """The source code of `facts`, whose results are cached."""
    return "".join(inspect.getsource(item) for item in (Facts, facts, content))


@pytest.fixture(scope="module")
def ours(base: DebianBase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    needs.require_root()
    folder = tmp_path_factory.mktemp("debian")
    yield assembled(base, Arch.X86_64, folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def roots(base: DebianBase, ours: Path) -> Roots:
    debs = locked(base, Arch.X86_64).debs
    return Roots(installed(base, debs, ours.parent), facts(ours, user=MATRIX.image.user.name))


def facts(folder: Path, user: str = "") -> dict[str, Facts]:
    """All paths of a root, without lines of `user`, who belongs to no package."""
    rows = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            state, inner = path.lstat(), str(path.relative_to(folder))
            plain, link = stat.S_ISREG(state.st_mode), stat.S_ISLNK(state.st_mode)
            rows[inner] = Facts(
                mode=state.st_mode,
                owner=f"{state.st_uid}:{state.st_gid}",
                names=state.st_nlink,
                time=int(state.st_mtime),
                target=str(path.readlink()) if link else "",
                sha256=hashlib.sha256(content(path, inner, user)).hexdigest() if plain else "",
            )
    return rows


def content(path: Path, inner: str, user: str) -> bytes:
    """The content of a file; the diversions of dpkg are sorted because their order is arbitrary."""
    data = path.read_bytes()
    if user and inner in {"etc/passwd", "etc/group", "etc/shadow", "etc/gshadow"}:
        lines = data.splitlines(keepends=True)
        assert sum(line.startswith(f"{user}:".encode()) for line in lines) == 1
        return b"".join(line for line in lines if not line.startswith(f"{user}:".encode()))
    if inner != "var/lib/dpkg/diversions":
        return data
    rows = zip(*[iter(data.splitlines())] * 3, strict=True)
    return b"\n".join(b" ".join(row) for row in sorted(rows))


def accepted(path: str, *lists: dict[str, str]) -> bool:
    return any(re.fullmatch(pattern, path) for patterns in lists for pattern in patterns)


@whole
def test_root_has_the_same_paths_as_a_debootstrap_root(base: DebianBase, roots: Roots) -> None:
    real, mine = roots
    missing = {
        path
        for path in real.keys() - mine.keys()
        if not accepted(path, ONLY_REAL, ONLY_REAL_OF[base.suite])
        and not (accepted(path, ONLY_REAL_EMPTY) and not stat.S_ISREG(real[path].mode))
    }
    assert missing == set()
    added = mine.keys() - real.keys()
    suite_patterns = ONLY_OURS_OF[base.suite]
    assert {path for path in added if not accepted(path, ONLY_OURS, suite_patterns)} == set()


@whole
def test_file_types_modes_owners_and_link_targets_match_debootstrap(
    base: DebianBase, roots: Roots
) -> None:
    mode_mask = ~0 if table.load_table(base.suite).set_id else ~(stat.S_ISUID | stat.S_ISGID)
    faults = []
    for path in sorted(roots.real.keys() & roots.ours.keys()):
        real, mine = roots.real[path], roots.ours[path]
        mode = real.mode & mode_mask if stat.S_ISREG(real.mode) else real.mode
        if mode != mine.mode and not accepted(path, OTHER_OWNER):
            faults.append(f"{path}: {stat.filemode(mode)}, ours {stat.filemode(mine.mode)}")
        if real.owner != mine.owner and not accepted(path, OTHER_OWNER):
            faults.append(f"{path}: of {real.owner}, ours of {mine.owner}")
        if real.target and mine.target and real.target != mine.target:
            faults.append(f"{path}: to {real.target}, ours to {mine.target}")
        if stat.S_ISREG(real.mode) and real.names != mine.names:
            faults.append(f"{path}: {real.names} names, ours {mine.names}")
    assert faults == []


@whole
def test_file_contents_and_times_match_debootstrap(base: DebianBase, roots: Roots) -> None:
    faults, compared = [], 0
    for path in sorted(roots.real.keys() & roots.ours.keys()):
        real, mine = roots.real[path], roots.ours[path]
        if not (real.sha256 and mine.sha256):
            continue
        if mine.sha256 != real.sha256 and not accepted(path, OTHER_CONTENT_OF[base.suite]):
            faults.append(f"{path}: other content")
        if mine.time not in (real.time, MTIME):
            faults.append(f"{path}: of {real.time}, ours of {mine.time}")
        compared += 1
    assert faults == []
    assert compared > 5000


@pytest.mark.long
@whole
def test_every_accepted_difference_from_debootstrap_occurs(base: DebianBase, roots: Roots) -> None:
    real, mine, suite = roots.real, roots.ours, base.suite
    for patterns, paths in (
        ({**ONLY_REAL, **ONLY_REAL_OF[suite], **ONLY_REAL_EMPTY}, real.keys() - mine.keys()),
        ({**ONLY_OURS, **ONLY_OURS_OF[suite]}, mine.keys() - real.keys()),
        ({**OTHER_CONTENT_OF[suite], **OTHER_OWNER}, real.keys() & mine.keys()),
    ):
        for pattern in patterns:
            assert any(re.fullmatch(pattern, path) for path in paths), pattern


def inside(folder: Path, *command: str, network: bool = False) -> str:
    done = run_in_sandbox(SandboxRoot(path=folder), command, network=network)
    assert done.status == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


def test_loader_cache_equals_the_output_of_ldconfig(ours: Path) -> None:
    inside(ours, "ldconfig", "-X", "-C", "/root/cache")
    cache = ours / "root/cache"
    assert cache.read_bytes() == (ours / "etc/ld.so.cache").read_bytes()
    cache.unlink()


def test_libraries_of_all_programs_in_the_image_are_found(ours: Path) -> None:
    script = "for f in /usr/bin/* /usr/sbin/* /usr/lib/x86_64-linux-gnu/*.so*; do ldd $f; done 2>&1"
    lines = inside(ours, "sh", "-c", script).splitlines()
    assert sum("=>" in line for line in lines) > 300
    assert [line for line in lines if "not found" in line] == []


C_PROGRAM = """
#include <Python.h>
#include <stdio.h>
int main(void) { printf("%s\\n", PY_VERSION); return 0; }
"""

CXX_PROGRAM = """
#include <cstdio>
#include <vector>
int main() { std::vector<int> v(3); printf("%zu", v.size()); }
"""


@whole
def test_compilers_of_the_image_work(base: DebianBase, ours: Path) -> None:
    script = f"""
set -e
cd /tmp
printf '%s' '{C_PROGRAM}' >a.c
cc -O2 -I/usr/include/python{base.python} a.c -o a -lpthread -ldl && ./a
printf '%s' '{CXX_PROGRAM}' >b.cc
c++ -std=c++17 -fopenmp b.cc -o b && ./b
printf 'int f(void) {{ return 7; }}' >c.c
gcc -shared -fPIC c.c -o libc_.so
python3 -c 'import ctypes; print(ctypes.CDLL("/tmp/libc_.so").f())'
"""
    version, *rest = inside(ours, "sh", "-c", script).split()
    assert version.startswith(f"{base.python}.")
    assert "".join(rest) == "37"


@whole
def test_programs_of_the_image_run(ours: Path) -> None:
    for command in (
        "git --version",
        "curl --version",
        "ninja --version",
        "make --version",
        "ps --version",
        "less --version",
        "tini --version",
        "ssh -V",
        "awk 1 /etc/shells",
        "which cc c++ c89 c99 cpp pager awk",
        "id imgbuild",
        "perl -e 1",
    ):
        inside(ours, "sh", "-c", command)


@whole
def test_python_of_the_image_runs_with_its_modules(base: DebianBase, ours: Path) -> None:
    program = """
import bz2, ctypes.util, curses, grp, hashlib, lzma, pwd, readline, socket, sqlite3, ssl
import time, uuid, zlib, zoneinfo
assert time.localtime().tm_zone == "UTC"
assert zoneinfo.ZoneInfo("Asia/Shanghai")
assert ctypes.util.find_library("numa") == "libnuma.so.1"
assert ctypes.util.find_library("ibverbs") == "libibverbs.so.1"
assert pwd.getpwnam("imgbuild").pw_dir and grp.getgrnam("rdma").gr_gid == 102
assert socket.getservbyname("https") == 443 and socket.gethostbyname("localhost") == "127.0.0.1"
context = ssl.create_default_context()
print(len(context.get_ca_certs()))
"""
    if "python3-distutils" in base.packages:
        program = f"import distutils{program}"
    assert int(inside(ours, "python3", "-c", program)) > 100


def test_openssl_finds_certificates_of_the_image_by_hash(ours: Path) -> None:
    script = (
        "cd /usr/share/ca-certificates/mozilla && for c in *.crt; do openssl verify -no-CAfile "
    )
    script += '-no-CAstore -CApath /etc/ssl/certs "$c"; done'
    lines = inside(ours, "sh", "-c", script).splitlines()
    assert len(lines) > 100
    assert {line.rsplit(": ", 1)[1] for line in lines} == {"OK"}


def test_dpkg_and_apt_report_no_problems_in_the_image(base: DebianBase, ours: Path) -> None:
    assert inside(ours, "dpkg", "--audit") == ""
    inside(ours, "apt-get", "check")
    listed = inside(ours, "dpkg-query", "--show", "--showformat", "${Package} ${Version}\\n")
    expected = [f"{deb.package} {deb.version}" for deb in locked(base, Arch.X86_64).debs]
    assert listed.splitlines() == expected
    # Missing files are excluded intentionally; no file has other content.
    faults = run_in_sandbox(SandboxRoot(path=ours), ["dpkg", "--verify"]).stdout.splitlines()
    suite_table = table.load_table(base.suite)
    left_out, back = table.excluded_pattern(suite_table), table.included_pattern(suite_table)
    for line in faults:
        path = line.split()[-1].lstrip("/")
        assert line.startswith("missing"), line
        assert left_out.match(path), line
        assert not back.match(path), line


@whole
def test_packages_can_be_added_to_the_image_with_apt(
    base: DebianBase, ours: Path, tmp_path: Path
) -> None:
    """Packages from this machine's mirror are added to a copy; their scripts and triggers run."""
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", str(ours), str(copy)], check=True)
    mirror = apt.archive_mirrors(base)[0]
    (copy / "etc/apt/sources.list").write_text(f"deb {mirror} {base.suite} main\n")
    (copy / "etc/apt/sources.list.d/debian.sources").unlink(missing_ok=True)
    for path in (Path("/etc/resolv.conf"), Path("/etc/hosts")):
        if path.exists():
            (copy / path.relative_to("/")).write_bytes(path.read_bytes())
    script = "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y nano libjemalloc2"
    inside(copy, "sh", "-c", script, network=True)
    assert inside(copy, "readlink", "-f", "/usr/bin/editor").strip() == "/usr/bin/nano"
    assert "libjemalloc.so.2" in inside(copy, "ldconfig", "-p")
    assert not (copy / "usr/share/man/man1/nano.1.gz").exists()
    shutil.rmtree(copy)


@whole
def test_arm64_root_is_consistent_with_ldconfig(base: DebianBase, tmp_path: Path) -> None:
    """The root is assembled without emulation; the check runs ldconfig for arm64."""
    needs.require_root()
    emulator = needs.require_emulator("aarch64")
    ours = assembled(base, Arch.ARM64, tmp_path)
    machines = set()
    for path, row in facts(ours).items():
        if row.sha256:
            with (ours / path).open("rb") as file:
                head = file.read(20)
            if head[:4] == b"\x7fELF" and "/gcc/" not in path:
                machines.add(int.from_bytes(head[18:20], "little"))
    assert machines == {183}
    assert not (ours / "lib64").exists()
    command = [emulator, "-L", str(ours), str(ours / "sbin/ldconfig"), "-r", str(ours)]
    subprocess.run([*command, "-X", "-C", "/root/cache"], check=True)
    assert (ours / "root/cache").read_bytes() == (ours / "etc/ld.so.cache").read_bytes()
    shutil.rmtree(ours)
