"""Builds a pure wheel from an sdist under the image's own Python; same inputs, same bytes.

The wheel is repacked: sorted, stored, one fixed time, a new RECORD. The build runs in a sandbox
without network, with a fixed hash seed, time zone, umask and clock for archives. An sdist that
compiles is refused: a compiler's output does not follow from the lock alone.

A build runs code of the sdist's author. It may write only to four folders of its own, and what it
leaves there is read with `boundary.copy_regular` after all of its processes have ended.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import os
import re
import shutil
import tarfile
import tempfile
import tomllib
import types
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imgbuild.container import sandbox
from imgbuild.errors import IntegrityError, NoSolution
from imgbuild.system.boundary import content, copy_regular, reading, reads
from imgbuild.wheel import archive as wheel_archive
from imgbuild.wheel.metadata import read_metadata

LARGEST = 256 << 20  # bytes of all files of a wheel that an sdist gave
UNPACKED, MEMBERS = 2 << 30, 200_000  # bytes and entries of an sdist
PYPROJECT_LIMIT = 1 << 20
ANSWER_LIMIT = 1 << 20
MEMORY, PROCESSES = 8 << 30, 4096  # bytes and number that a build may use

DEFAULT_REQUIRES = ("setuptools>=40.8.0", "wheel")  # PEP 518, for an sdist that says nothing
DEFAULT_BACKEND = "setuptools.build_meta:__legacy__"  # PEP 517, likewise
TIME = (1980, 1, 1, 0, 0, 0)  # the first that a zip can hold
EPOCH = "315532800"  # the same in seconds
ELF = b"\x7fELF"
DECEIT = "the build of this sdist misleads or is broken: use another version"
PLACE = "/build"
WRITABLE = ("source", "out", "home", "answer")  # for the build; it only reads the others
READABLE = ("site", "control")
ANSWER = "result.json"
WHEEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+!-]{0,230}\.whl")

# Runs inside, under the image's Python: the PEP 517 hooks, their result as JSON in a file.
HOOKS = """\
import importlib, importlib.metadata, json, os, re, sys
os.umask(0o022)
task = json.load(open("/build/control/task.json"))
os.chdir("/build/source")
sys.path[:0] = [os.path.join("/build/source", path) for path in task["backend_path"]]
module, _, attributes = task["backend"].partition(":")
backend = importlib.import_module(module)
for attribute in filter(None, attributes.split(".")):
    backend = getattr(backend, attribute)
wanted = getattr(backend, "get_requires_for_build_wheel", lambda settings: [])(None)
normal = lambda name: re.sub("[-_.]+", "-", name).lower()
found = importlib.metadata.distributions(path=["/build/site"])
there = {normal(distribution.metadata["Name"]) for distribution in found}
lacking = [line for line in wanted if normal(re.match(r"[\\w.-]+", line)[0]) not in there]
wheel = None if lacking else backend.build_wheel("/build/out", None)
json.dump({"lacking": lacking, "wheel": wheel}, open("/build/answer/result.json", "w"))
"""


class MissingRequirements(Exception):
    """The build needs more packages; `requirements` are the lines that it asks for."""

    def __init__(self, requirements: tuple[str, ...]) -> None:
        super().__init__(", ".join(requirements))
        self.requirements = requirements


class SdistResult(msgspec.Struct, frozen=True):
    """The result of the hooks: lines of missing requirements, or the wheel's name."""

    lacking: tuple[str, ...]
    wheel: str | None


class System(msgspec.Struct, frozen=True, kw_only=True):
    """`[build-system]` of an sdist."""

    requires: tuple[str, ...]
    backend: str
    backend_path: tuple[str, ...] = ()


class SdistJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is built, from what, and where: `root` is the image's root, `folder` is empty."""

    package: str
    version: str
    sdist: Path
    requires: tuple[Path, ...]
    root: Path
    env: Mapping[str, str]
    folder: Path
    interpreter: str = "/usr/bin/python3"


@reads("name")
def system(sdist: Path, name: str) -> System:
    """`[build-system]` of the sdist at `sdist`, called `name`; the defaults where it has none."""
    return _system(_read_pyproject(sdist, name) or "")


def _system(pyproject: str) -> System:
    table = tomllib.loads(pyproject).get("build-system", {})
    return System(
        requires=checked(table.get("requires", DEFAULT_REQUIRES)),
        backend=table.get("build-backend", DEFAULT_BACKEND),
        backend_path=tuple(table.get("backend-path", ())),
    )


def checked(lines: Sequence[str]) -> tuple[str, ...]:
    """`lines`, unchanged; ValueError unless each is one PEP 508 requirement without a URL.

    uv reads them as a requirements file, in which other lines name files of this machine.
    """
    for line in lines:
        if Requirement(line).url is not None or not line.isprintable():
            message = f"a build requirement is not a name with versions: {line!r}"
            raise ValueError(message)
    return tuple(lines)


def _read_pyproject(sdist: Path, name: str) -> str | None:
    if name.endswith(".zip"):
        with zipfile.ZipFile(sdist) as archive:
            found = [one for one in archive.infolist() if _is_pyproject(one.filename)]
            if not found:
                return None
            _check_size(found[0].file_size, name)
            return archive.read(found[0]).decode()
    with tarfile.open(sdist, encoding="utf-8") as tar:
        for member in tar:
            if _is_pyproject(member.name) and (file := tar.extractfile(member)) is not None:
                _check_size(member.size, name)
                return file.read().decode()
    return None


def _check_size(size: int, name: str) -> None:
    if not 0 <= size <= PYPROJECT_LIMIT:
        message = f"{name}: pyproject.toml has {size} bytes (limit {PYPROJECT_LIMIT})"
        raise IntegrityError(message, hint="use another version")


def _is_pyproject(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return len(parts) == 2 and parts[1] == "pyproject.toml"


def build(job: SdistJob) -> Path:
    """Build and repack; the wheel's path in `job.folder`.

    MissingRequirements if the build asks for what `job` lacks; NoSolution if it fails or no
    pure wheel comes out.
    """
    _prepare(job)
    result = _run_hooks(job)
    if result.wheel is None:
        raise MissingRequirements(result.lacking)
    made = _fetched(job, result.wheel)
    refuse_impure(job, made)
    (job.folder / "wheel").mkdir()
    return repack(made, job.folder / "wheel" / made.name)


def _fetched(job: SdistJob, name: str) -> Path:
    """A copy of the wheel `name` in a folder that no build could write to."""
    if not WHEEL_NAME.fullmatch(name):
        message = f"{job.package} {job.version}: its build names {name[:80]!r} as its wheel"
        raise IntegrityError(message, hint=DECEIT)
    (job.folder / "made").mkdir()
    made = job.folder / "made" / name
    _take(job, job.folder / "out" / name, made, LARGEST)
    return made


def _take(job: SdistJob, source: Path, target: Path, limit: int) -> None:
    """Copy a file that the build left; IntegrityError if it is missing, or anything but a file."""
    try:
        copy_regular(source, target, limit=limit, hint=DECEIT)
    except FileNotFoundError as error:
        message = f"{job.package} {job.version}: its build did not make {source.name}"
        raise IntegrityError(message, hint=DECEIT) from error


def _tarfile() -> types.ModuleType:
    """`tarfile` with the filters of PEP 706: Python has them since 3.11.4, Debian 12 has 3.11.2."""
    if hasattr(tarfile, "data_filter"):
        return tarfile
    return importlib.import_module("backports.tarfile")


def _prepare(job: SdistJob) -> None:
    for part in (*WRITABLE, *READABLE, "unpacked"):
        (job.folder / part).mkdir()
    unpacked = job.folder / "unpacked"
    name = f"{job.package} {job.version}: its sdist"
    with reading(name):
        _unpack(job.sdist, unpacked, name)
    tops = sorted(unpacked.iterdir())
    if len(tops) != 1 or not tops[0].is_dir():
        message = f"{name} has {len(tops)} entries at its top, expected one folder"
        raise IntegrityError(message)
    (job.folder / "source").rmdir()
    tops[0].rename(job.folder / "source")
    for wheel in job.requires:
        unpack_wheel(wheel, job.folder / "site")


def _check_total(name: str, count: int, total: int) -> None:
    if count > MEMBERS or total > UNPACKED:
        message = f"{name} holds {count} entries of {total} bytes (limits {MEMBERS}, {UNPACKED})"
        raise IntegrityError(message, hint="use another version, or pin one that has a wheel")


def _unpack(sdist: Path, folder: Path, name: str) -> None:
    """Unpack the archive `sdist`, called `name`; IntegrityError if it holds too much."""
    if zipfile.is_zipfile(sdist):
        with zipfile.ZipFile(sdist) as archive:
            sizes = [member.file_size for member in archive.infolist()]
            _check_total(name, len(sizes), sum(sizes))
            archive.extractall(folder)  # noqa: S202  # it drops ".."
        return
    tarfiles = _tarfile()
    count = total = 0

    def _inside(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
        nonlocal count, total
        count, total = count + 1, total + max(member.size, 0)
        _check_total(name, count, total)
        return tarfiles.data_filter(member, path)  # type: ignore[no-any-return]  # PEP 706

    with tarfiles.open(sdist, encoding="utf-8") as tar:
        tar.extractall(folder, filter=_inside)  # noqa: S202  # as above


@reads("wheel")
def unpack_wheel(wheel: Path, site: Path) -> None:
    """Make the modules of `wheel` importable from the folder `site`."""
    wheel_archive.read(wheel)  # which refuses unsafe paths and what unpacks to too much
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)  # noqa: S202  # as above
    for data in sorted(site.glob("*.data")):
        for scheme in ("purelib", "platlib"):
            if (data / scheme).is_dir():
                shutil.copytree(data / scheme, site, dirs_exist_ok=True)
        shutil.rmtree(data)


def _run_hooks(job: SdistJob) -> SdistResult:
    name = f"{job.package} {job.version}"
    pyproject = job.folder / "source" / "pyproject.toml"
    with reading(f"{name}: pyproject.toml"):
        there = pyproject.exists()
        asked = _system(content(pyproject, PYPROJECT_LIMIT).decode() if there else "")
    task = {"backend": asked.backend, "backend_path": list(asked.backend_path)}
    control = job.folder / "control"
    (control / "task.json").write_text(json.dumps(task), encoding="utf-8")
    (control / "hooks.py").write_text(HOOKS, encoding="utf-8")
    done = sandbox.run(
        sandbox.Root(path=job.root),
        [job.interpreter, f"{PLACE}/control/hooks.py"],
        env={**environment(), **job.env},
        binds=[
            sandbox.Bind(
                source=job.folder / part, target=f"{PLACE}/{part}", writable=part in WRITABLE
            )
            for part in (*WRITABLE, *READABLE)
        ],
        user=_builder(job.folder),
        readonly=True,
    )
    if done.status != 0 or not os.path.lexists(job.folder / "answer" / ANSWER):
        tail = tuple((done.stderr or done.stdout).strip().splitlines()[-12:])
        message = f"{name} cannot be built from its sdist"
        hint = "its entry under sdists: in the matrix may need env or requires"
        raise NoSolution(message, reasons=tail, hint=hint)
    answer = job.folder / ANSWER
    _take(job, job.folder / "answer" / ANSWER, answer, ANSWER_LIMIT)
    with reading(f"{name}: the result of its build", hint=DECEIT):
        result = msgspec.json.decode(answer.read_bytes(), type=SdistResult)
        return msgspec.structs.replace(result, lacking=checked(result.lacking))


def _builder(folder: Path) -> sandbox.Confined:
    """The user of a build, never root, to whom the parts of `folder` then belong."""
    host_id = sandbox.spare_id()
    if host_id is not None:
        for part in (*WRITABLE, *READABLE):
            for place, folders, names in os.walk(folder / part):
                for name in (".", *folders, *names):
                    os.chown(Path(place, name), host_id, host_id, follow_symlinks=False)
    return sandbox.Confined(host_id=host_id, memory=MEMORY, processes=PROCESSES)


def environment() -> dict[str, str]:
    """The environment of a build: the same on every machine."""
    return {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": f"{PLACE}/home",
        "TMPDIR": f"{PLACE}/home",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONPATH": f"{PLACE}/site",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "SOURCE_DATE_EPOCH": EPOCH,
    }


@reads("wheel")
def refuse_impure(job: SdistJob, wheel: Path) -> None:
    """NoSolution if `wheel` is for one platform, has machine code, or another version."""
    _, version, _, tags = parse_wheel_filename(wheel.name)
    reasons = []
    if any(tag.abi != "none" or tag.platform != "any" for tag in tags):
        reasons.append(f"it builds {wheel.name}, which is for one platform")
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                if file.read(4) == ELF:
                    reasons.append(f"it holds machine code: {member.filename}")
    if version != Version(job.version):
        reasons.append(f"it builds version {version}, not {job.version}")
    if reasons:
        message = f"{job.package} {job.version} does not yield a pure wheel"
        hint = "only pure-Python sdists are built; pin a version that has a wheel"
        raise NoSolution(message, reasons=tuple(reasons[:8]), hint=hint)


@reads("wheel")
def repack(wheel: Path, target: Path) -> Path:
    """Write `wheel` to `target`: its bytes follow from names, contents and executable bits."""
    with zipfile.ZipFile(wheel) as archive:
        if (size := sum(info.file_size for info in archive.infolist())) > LARGEST:
            message = f"{wheel.name} holds {size} bytes (limit {LARGEST})"
            raise IntegrityError(message, hint="only small pure-Python sdists are built")
        members = {
            info.filename: (archive.read(info), bool(info.external_attr >> 16 & 0o111))
            for info in archive.infolist()
            if not info.is_dir()
        }
    (record,) = (
        name for name in members if name.endswith(".dist-info/RECORD") and name.count("/") == 1
    )
    names = sorted((name for name in members if name != record), key=str.encode)
    lines = [
        f"{_quoted(name)},{_record_hash(members[name][0])},{len(members[name][0])}"
        for name in names
    ]
    members[record] = ("".join(f"{line}\n" for line in (*lines, f"{record},,")).encode(), False)
    with (
        tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name in (*names, record):
            data, executable = members[name]
            info = zipfile.ZipInfo(name, TIME)
            info.create_system = 3
            info.external_attr = (0o100755 if executable else 0o100644) << 16
            archive.writestr(info, data)
    Path(temporary.name).replace(target)
    return target


def _record_hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"


def _quoted(name: str) -> str:
    if any(character in name for character in ',"\n'):
        return '"' + name.replace('"', '""') + '"'
    return name


def metadata(wheel: Path) -> bytes:
    """METADATA of the wheel at `wheel`."""
    with wheel.open("rb") as file:
        return read_metadata(file, wheel.name)
