"""Builds a pure wheel from an sdist with the Python of the image, reproducibly.

The wheel is repacked: sorted, without compression, with one fixed time and a new RECORD. The build
runs in a sandbox without network access, with a fixed hash seed, time zone, umask and
SOURCE_DATE_EPOCH. An sdist that compiles code is rejected, because compiler output does not depend
on the lock alone.

Archives are not extracted on the host: `_prepare_build` writes their checked contents to a file,
from which `UNPACK_CODE` creates the files in the sandbox. A build runs third-party code. It can
write only to four folders, and its output is read with `boundary.copy_regular` after all of its
processes have ended.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imgbuild.container import sandbox
from imgbuild.errors import IntegrityError, NoSolution, WorkFailed
from imgbuild.system import decoding
from imgbuild.system.boundary import convert_read_errors, copy_regular, reads_untrusted
from imgbuild.system.process import ProcessResult
from imgbuild.system.syntax import parse_requirement
from imgbuild.wheel.archive import WheelArchive, read_wheel
from imgbuild.wheel.metadata import read_metadata
from imgbuild.wheel.sdist import read_members
from imgbuild.wheel.zipformat import ZipMember

LARGEST_WHEEL = 256 << 20  # bytes of all files of a wheel built from an sdist
PYPROJECT, PYPROJECT_LIMIT = "pyproject.toml", 1 << 20
ANSWER_LIMIT = 1 << 20
MEMORY, PROCESSES = 8 << 30, 4096  # bytes and number that a build may use

DEFAULT_REQUIRES = ("setuptools>=40.8.0", "wheel")  # the default of PEP 518
DEFAULT_BACKEND = "setuptools.build_meta:__legacy__"  # the default of PEP 517
TIME = (1980, 1, 1, 0, 0, 0)  # the first that a zip can hold
EPOCH = "315532800"  # the same in seconds
ELF = b"\x7fELF"
DECEIT = "the build of this sdist is broken or malicious; use another version"
PLACE = "/build"
WRITABLE_FOLDERS = ("source", "out", "home", "answer")  # for the build; it only reads the others
READABLE_FOLDERS = ("site", "control")
UNPACKED_FOLDERS = ("source", "site")  # written before the build starts
SHOWN_CHARACTERS = 400  # characters of an error
ANSWER = "result.json"
# The last line of a build that uses features removed from newer releases of Python.
_REMOVED_ATTRIBUTE = re.compile(
    r"AttributeError: module '(?P<owner>inspect|collections|asyncio|time|platform|os|gettext|math|"
    r"fractions|array|base64|locale|configparser|unittest|ast|typing|pkgutil|types|string)'"
    r" has no attribute '(?P<name>\w+)'|(?:ModuleNotFound|Import)Error: No module named"
    r" '(?P<module>imp|asyncore|asynchat|smtpd|distutils|cgi|pipes|telnetlib|lib2to3|parser|"
    r"formatter|symbol)(?:\.\w+)*'"
)
WHEEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+!-]{0,230}\.whl")

# A path, its size (None: a folder), whether it is executable, and its time.
UnpackedFile = tuple[str, int | None, bool, int | None]

# Both run in the sandbox under the image's Python. The list was checked before.
UNPACK_CODE = """\
import json, os
os.umask(0o022)
with open("/build/control/content", "rb") as content:
    for path, size, executable, mtime in json.load(open("/build/control/files.json")):
        place = os.path.join("/build", path)
        os.makedirs(place if size is None else os.path.dirname(place), exist_ok=True)
        if size is None:
            continue
        with open(place, "xb") as file:
            while size:
                size -= file.write(content.read(min(size, 1 << 20)))
        os.chmod(place, 0o755 if executable else 0o644)
        if mtime is not None:
            os.utime(place, (mtime, mtime))
"""

# Runs the PEP 517 hooks and writes their result as JSON to a file.
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
hook = getattr(backend, "prepare_metadata_for_build_wheel", None) if task["metadata"] else None
wheel = None if lacking else (hook or backend.build_wheel)("/build/out", None)
answer = {"lacking": lacking, "wheel": wheel}
if task["metadata"] and wheel:
    import pathlib, zipfile
    place = pathlib.Path("/build/out", wheel)
    if place.is_file():
        top = zipfile.Path(place).iterdir()
        place = next(entry for entry in top if entry.name.endswith(".dist-info"))
    for key, name in (("metadata", "METADATA"), ("entry_points", "entry_points.txt")):
        file = place / name
        answer[key] = file.read_text(encoding="utf-8") if file.exists() else ""
json.dump(answer, open("/build/answer/result.json", "w"))
"""


class MissingRequirements(Exception):
    """Raised if a build requires more packages. `requirements` contains requirement lines."""

    def __init__(self, requirements: tuple[str, ...]) -> None:
        super().__init__(", ".join(requirements))
        self.requirements = requirements


class SdistResult(msgspec.Struct, frozen=True):
    """The result of a backend's hooks: missing requirements, or the name of the wheel.

    For a metadata job, it also contains the texts of METADATA and entry_points.txt.
    """

    lacking: tuple[str, ...]
    wheel: str | None
    metadata: str = ""
    entry_points: str = ""


class BuildSystem(msgspec.Struct, frozen=True, kw_only=True):
    """The table `[build-system]` of an sdist."""

    requires: tuple[str, ...]
    backend: str
    backend_path: tuple[str, ...] = ()


class SdistJob(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a build.

    `root` is the root folder of the image, and `folder` an empty work folder. `version` is "" if
    only the build determines it. `metadata` means that no wheel is built if the backend has a
    metadata hook.
    """

    package: str
    version: str
    sdist: Path
    requires: tuple[Path, ...]
    root: Path
    env: Mapping[str, str]
    folder: Path
    interpreter: str = "/usr/bin/python3"
    metadata: bool = False


@reads_untrusted("name")
def read_build_system(sdist: Path, name: str) -> BuildSystem:
    """Read the table `[build-system]` of the sdist at `sdist`, or return the defaults."""
    pyproject = ""
    for member, content in read_members(sdist, name):
        if member.path == PYPROJECT and member.kind == "file":
            if member.size > PYPROJECT_LIMIT:
                message = f"{name}: {PYPROJECT} has {member.size} bytes (limit {PYPROJECT_LIMIT})"
                raise IntegrityError(message, hint="use another version")
            pyproject = b"".join(content()).decode()
            break
    table = tomllib.loads(pyproject).get("build-system", {})
    return BuildSystem(
        requires=check_requirement_lines(table.get("requires", DEFAULT_REQUIRES)),
        backend=table.get("build-backend", DEFAULT_BACKEND),
        backend_path=tuple(table.get("backend-path", ())),
    )


def check_requirement_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Raise ValueError unless each line is one PEP 508 requirement without a URL.

    uv reads the lines as a requirements file, whose other lines can refer to files on this machine.
    """
    for line in lines:
        if parse_requirement(line).url is not None or not line.isprintable():
            message = f"not a valid build requirement: {line!r}"
            raise ValueError(message)
    return tuple(lines)


def build_wheel(job: SdistJob) -> Path:
    """Build and repack the wheel, and return its path in `job.folder`.

    Raises MissingRequirements if the build requires packages that `job` lacks, and NoSolution if it
    fails or its result is not a pure wheel.
    """
    result = _run_hooks(job, _prepare_build(job))
    if result.wheel is None:
        raise MissingRequirements(result.lacking)
    wheel = _fetch_wheel(job, result.wheel)
    refuse_impure(job, wheel)
    (job.folder / "wheel").mkdir()
    return repack_wheel(wheel, job.folder / "wheel" / wheel.name)


def describe_wheel(job: SdistJob) -> SdistResult:
    """Return METADATA and entry points of the wheel of `job`.

    Raises the same errors as `build_wheel`.
    """
    result = _run_hooks(job, _prepare_build(job))
    if result.wheel is None:
        raise MissingRequirements(result.lacking)
    return result


def _fetch_wheel(job: SdistJob, name: str) -> Path:
    """Copy the wheel `name` to a folder to which builds cannot write."""
    if not WHEEL_NAME.fullmatch(name):
        message = f"{job.package} {job.version}: the build reports {name[:80]!r} as its wheel"
        raise IntegrityError(message, hint=DECEIT)
    (job.folder / "made").mkdir()
    path = job.folder / "made" / name
    _copy_output(job, job.folder / "out" / name, path, LARGEST_WHEEL)
    return path


def _copy_output(job: SdistJob, source: Path, target: Path, limit: int) -> None:
    """Raise IntegrityError if an output file of the build is missing or not a regular file."""
    try:
        copy_regular(source, target, limit=limit, hint=DECEIT)
    except FileNotFoundError as error:
        message = f"{job.package} {job.version}: the build did not produce {source.name}"
        raise IntegrityError(message, hint=DECEIT) from error


def _prepare_build(job: SdistJob) -> sandbox.UntrustedUser:
    for part in (*WRITABLE_FOLDERS, *READABLE_FOLDERS):
        (job.folder / part).mkdir()
    control = job.folder / "control"
    name = f"{job.package} {job.version}"
    build = read_build_system(job.sdist, f"{name}: its sdist")
    task = {
        "backend": build.backend,
        "backend_path": list(build.backend_path),
        "metadata": job.metadata,
    }
    (control / "task.json").write_text(json.dumps(task), encoding="utf-8")
    (control / "hooks.py").write_text(HOOKS, encoding="utf-8")
    (control / "unpack.py").write_text(UNPACK_CODE, encoding="utf-8")
    with (control / "content").open("wb") as content:
        listed = [*_sdist_files(job, content), *_wheel_files(job, content)]
    (control / "files.json").write_text(json.dumps(listed), encoding="utf-8")
    user = _builder(job.folder)
    done = _run_script(job, "unpack.py", user, writable=UNPACKED_FOLDERS)
    (control / "content").unlink()
    if done.status != 0:
        last = (done.stderr or done.stdout).strip().rpartition("\n")[2]  # of a traceback, mostly
        message = f"{name} cannot be unpacked: {last[-SHOWN_CHARACTERS:]}"
        raise WorkFailed(message, hint=f"check the free space of {job.folder.parent}")
    return user


def _sdist_files(job: SdistJob, sink: IO[bytes]) -> list[UnpackedFile]:
    listed: list[UnpackedFile] = []
    for member, content in read_members(job.sdist, f"{job.package} {job.version}: its sdist"):
        path, folder = f"source/{member.path}", member.kind == "folder"
        size = None if folder else sum(sink.write(piece) for piece in content())
        listed.append((path, size, member.executable, member.mtime))
    return listed


def _wheel_files(job: SdistJob, sink: IO[bytes]) -> list[UnpackedFile]:
    """Return the importable files of the build requirements, the last one of each name."""
    chosen: dict[str, tuple[WheelArchive, ZipMember]] = {}
    for wheel in job.requires:
        archive = read_wheel(wheel)
        for path, member in archive.members.items():
            folder, _, rest = path.partition("/")
            scheme, _, below = rest.partition("/")
            if not folder.endswith(".data"):
                chosen[path] = archive, member
            elif scheme in ("purelib", "platlib") and below:
                chosen[below] = archive, member
    for path, (archive, _) in chosen.items():
        if any(str(folder) in chosen for folder in PurePosixPath(path).parents):
            message = f"{archive.label}: a parent folder of {path!r} is a file"
            raise IntegrityError(message, hint="pin another version of this build requirement")
    return [
        (f"site/{path}", sum(map(sink.write, archive.chunks(member))), False, None)
        for path, (archive, member) in sorted(chosen.items())
    ]


def _run_script(
    job: SdistJob, script: str, user: sandbox.UntrustedUser, *, writable: Sequence[str]
) -> ProcessResult:
    return sandbox.run_in_sandbox(
        sandbox.SandboxRoot(path=job.root),
        [job.interpreter, f"{PLACE}/control/{script}"],
        env={**build_environment(), **job.env},
        binds=[
            sandbox.BindMount(
                source=job.folder / part, target=f"{PLACE}/{part}", writable=part in writable
            )
            for part in (*WRITABLE_FOLDERS, *READABLE_FOLDERS)
        ],
        user=user,
        readonly=True,
    )


def _run_hooks(job: SdistJob, user: sandbox.UntrustedUser) -> SdistResult:
    name = f"{job.package} {job.version}"
    done = _run_script(job, "hooks.py", user, writable=WRITABLE_FOLDERS)
    if done.status != 0 or not os.path.lexists(job.folder / "answer" / ANSWER):
        raise build_failure(job.package, job.version, (done.stderr or done.stdout).strip())
    answer = job.folder / ANSWER
    _copy_output(job, job.folder / "answer" / ANSWER, answer, ANSWER_LIMIT)
    with convert_read_errors(f"{name}: the result of its build", hint=DECEIT):
        result = decoding.decode_json(answer.read_bytes(), SdistResult)
        return msgspec.structs.replace(result, lacking=check_requirement_lines(result.lacking))


def build_failure(package: str, version: str, output: str) -> NoSolution:
    """Return the error for a failed build with `output`.

    It states whether Python is too new. `version` is "" if only metadata was requested.
    """
    message = f"{package} {version} cannot be built from its sdist" if version else "it failed"
    tail = tuple(output.splitlines()[-12:])
    removed = _REMOVED_ATTRIBUTE.search(output.rpartition("\n")[2])
    if removed is None:
        hint = "its entry under `sdists:` in the matrix may need `env` or `requires`"
        error = NoSolution(message, reasons=tail, hint=hint)
        error.log = output
        return error
    name = removed["module"] or f"{removed['owner']}.{removed['name']}"
    reason = f"it uses {name}, which was removed from Python; this version requires an older Python"
    hint = f"exclude the package (imgbuild init --exclude {package}, or `exclude:` in the row)"
    return NoSolution(
        message, reasons=(reason, tail[-1]), hint=f"{hint}, or use a version for this Python"
    )


def _builder(folder: Path) -> sandbox.UntrustedUser:
    """Return the unprivileged user of a build, who becomes the owner of subfolders of `folder`."""
    host_id = sandbox.spare_id()
    if host_id is not None:
        for part in (*WRITABLE_FOLDERS, *READABLE_FOLDERS):
            for place, folders, names in os.walk(folder / part):
                for name in (".", *folders, *names):
                    os.chown(Path(place, name), host_id, host_id, follow_symlinks=False)
    return sandbox.UntrustedUser(host_id=host_id, memory=MEMORY, processes=PROCESSES)


def build_environment() -> dict[str, str]:
    """Return the environment variables of a build, the same on every machine."""
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


@reads_untrusted("wheel")
def refuse_impure(job: SdistJob, wheel: Path) -> None:
    """Raise NoSolution if `wheel` is platform-specific, or has machine code or a wrong version."""
    _, version, _, tags = parse_wheel_filename(wheel.name)
    reasons = []
    if any(tag.abi != "none" or tag.platform != "any" for tag in tags):
        reasons.append(f"it builds {wheel.name}, which is platform-specific")
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                if file.read(4) == ELF:
                    reasons.append(f"it contains machine code: {member.filename}")
    if job.version and version != Version(job.version):
        reasons.append(f"it builds version {version}, not {job.version}")
    if reasons:
        message = f"{job.package} {job.version} cannot be built as a pure wheel"
        hint = "only pure-Python sdists are built; pin a version that has a wheel"
        raise NoSolution(message, reasons=tuple(reasons[:8]), hint=hint)


@reads_untrusted("wheel")
def repack_wheel(wheel: Path, target: Path) -> Path:
    """Rewrite `wheel` as `target`, and return the path.

    The bytes depend only on names, contents and executable bits of the files.
    """
    with zipfile.ZipFile(wheel) as archive:
        if (size := sum(info.file_size for info in archive.infolist())) > LARGEST_WHEEL:
            message = f"{wheel.name} contains {size} bytes (limit {LARGEST_WHEEL})"
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
        f"{_quote_name(name)},{_record_hash(members[name][0])},{len(members[name][0])}"
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


def _quote_name(name: str) -> str:
    if any(character in name for character in ',"\n'):
        return '"' + name.replace('"', '""') + '"'
    return name


def wheel_metadata(wheel: Path) -> bytes:
    """Return METADATA of a wheel file."""
    with wheel.open("rb") as file:
        return read_metadata(file, wheel.name)
