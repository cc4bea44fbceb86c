"""Reads facts from a wheel: its index, modules and shared objects.

`ReaderProcesses` reads the modules of local wheels in parallel if there are many.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from email.parser import HeaderParser
from functools import partial
from pathlib import Path

import msgspec

from imgbuild.audit.packages.content import LocalContent, RemoteContent, WheelContent
from imgbuild.audit.packages.installed import InstalledContent
from imgbuild.audit.source.facts import FACTS_FORMAT, ElfFacts, ModuleFacts
from imgbuild.errors import FetchFailed, IntegrityError
from imgbuild.index.remote_wheel import RangeClient
from imgbuild.system import decoding
from imgbuild.system.boundary import convert_read_errors
from imgbuild.system.code_digest import code_digest
from imgbuild.system.syntax import valid_requirement
from imgbuild.system.workers import WorkerPool
from imgbuild.values import normalize_package

PARALLEL_MINIMUM = 4 << 20  # bytes of source from which on processes are started
RUNNING_BYTES = 256 << 10  # bytes of source from which on running processes are used
SHARE = 1 << 20  # bytes of source in one task, at most
# Top-level modules in wheels that are not imported by that name.
EXCLUDED_FOLDERS = frozenset(
    ("test", "tests", "testing", "docs", "examples", "benchmarks", "scripts")
)
_NEVER_ELF = (".py", ".pyi", ".txt", ".json", ".h", ".hpp", ".cuh", ".cu", ".md", ".html", ".js")
_SMALLEST_ELF = 64
_DATA = re.compile(r"[^/]+\.data/(?:purelib|platlib)/")
_NEWLINE = re.compile(r"\r\n|\r|\n")


def reader_version() -> str:
    """Return the part of a cache key that changes when the reading code changes."""
    return f"{FACTS_FORMAT} {code_digest(__name__)[:16]}"


class WheelMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The requirements in METADATA.

    `lines` contains the line numbers of `requires` in the file, and `python_line` is the line
    number of `requires_python`. If unknown, they are empty and 0.
    """

    name: str
    version: str
    requires: tuple[str, ...] = ()
    requires_python: str = ""
    extras: tuple[str, ...] = ()
    lines: tuple[int, ...] = ()
    python_line: int = 0


class WheelIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of the files in a wheel, and its METADATA."""

    files: dict[str, int]
    metadata: WheelMetadata


def open_content(where: Path | str, label: str, http: RangeClient | None = None) -> WheelContent:
    """Open the wheel at `where`, a file (Path) or a URL (str).

    A Path can also be the `.dist-info` folder of an installed package. `label` is used in error
    messages.
    """
    if isinstance(where, Path):
        if where.is_dir():
            return InstalledContent(where, label)
        return LocalContent(where, label)
    if http is None:
        message = f"{label} is not in the cache, and downloads are disabled"
        raise FetchFailed(
            message, hint="run the command without --offline, or fetch the wheel first"
        )
    return RemoteContent(where, label, http)


def read_index(content: WheelContent) -> WheelIndex:
    """Return the files and METADATA of a wheel.

    Raises IntegrityError unless there is exactly one METADATA file.
    """
    members = content.members()
    paths = [name for name in members if is_metadata(name)]
    if len(paths) != 1:
        message = f"{content.label}: expected one .dist-info/METADATA, found {len(paths)}"
        raise IntegrityError(message)
    text = content.read(paths)[paths[0]].decode("utf-8", "replace")
    return WheelIndex(
        files={name: member.size for name, member in sorted(members.items())},
        metadata=parse_metadata(text),
    )


def is_metadata(file: str) -> bool:
    """Return whether a member of a wheel is METADATA."""
    return file.endswith(".dist-info/METADATA") and file.count("/") == 1


def parse_metadata(text: str) -> WheelMetadata:
    """Parse the text of a METADATA file."""
    headers = HeaderParser().parsestr(text)
    requires = tuple(" ".join(line.split()) for line in headers.get_all("Requires-Dist", []))
    requires_python = headers.get("Requires-Python", "").strip()
    lines = _header_lines(text, "Requires-Dist")
    return WheelMetadata(
        name=headers.get("Name", ""),
        version=headers.get("Version", ""),
        requires=requires,
        requires_python=requires_python,
        extras=tuple(extra.strip() for extra in headers.get_all("Provides-Extra", [])),
        lines=lines if len(lines) == len(requires) else (),
        python_line=next(iter(_header_lines(text, "Requires-Python")), 0) if requires_python else 0,
    )


def required_packages(metadata: WheelMetadata | None) -> tuple[str, ...]:
    """Return the packages that METADATA requires, regardless of markers, or () for None."""
    requirements = map(valid_requirement, metadata.requires if metadata is not None else ())
    return tuple(normalize_package(each.name) for each in requirements if each is not None)


def _header_lines(text: str, header: str) -> tuple[int, ...]:
    """Return the lines on which headers with this name start.

    Headers end at the first empty line.
    """
    numbers = []
    for number, line in enumerate(_NEWLINE.split(text), 1):
        if not line:
            break
        if line.lower().startswith(f"{header.lower()}:"):
            numbers.append(number)
    return tuple(numbers)


def read_modules(content: WheelContent, files: Mapping[str, str]) -> dict[str, ModuleFacts]:
    """Read the facts about the modules in `files`, which maps modules to files."""
    from imgbuild.audit.source import module, windows

    sources = content.read(files.values())
    modules = {}
    for name, file in files.items():
        package = file.endswith("/__init__.py")
        with convert_read_errors(f"{content.label}: {file!r}"):
            facts = module.read_module(sources[file], name, file, package=package)
            declared = windows.read_windows(sources[file], name, package=package)
        modules[name] = msgspec.structs.replace(facts, windows=declared) if declared else facts
    return modules


def read_elf_facts(content: WheelContent) -> tuple[ElfFacts, ...]:
    """Return all shared objects and programs in a wheel, sorted by path.

    GPU code of installed packages is omitted, because a search for it would read all bytes.
    """
    from imgbuild.audit.binaries.elf import read_elf, read_elf_file

    elf_facts = []
    for file, member in sorted(content.members().items()):
        if member.size >= _SMALLEST_ELF and not file.endswith(_NEVER_ELF):
            with convert_read_errors(f"{content.label}: {file!r}"):
                if isinstance(content, InstalledContent):
                    facts = read_elf_file(content.file(file), file)
                else:
                    facts = read_elf(partial(content.chunks, file), file)
            if facts is not None:
                elf_facts.append(facts)
    return tuple(elf_facts)


def assembler_files(files: Iterable[str]) -> tuple[str, ...]:
    """Return the assemblers for GPU code among `files`, selected by file name."""
    from imgbuild.audit.binaries.elf import is_assembler

    return tuple(file for file in files if is_assembler(file))


def read_assemblers(content: WheelContent, files: Iterable[str]) -> tuple[ElfFacts, ...]:
    """Return the facts about the assemblers `files` of a wheel."""
    from imgbuild.audit.binaries.elf import read_elf

    read = (read_elf(partial(content.chunks, file), file) for file in sorted(files))
    return tuple(facts for facts in read if facts is not None and facts.ptxas_architectures)


def find_modules(files: Iterable[str]) -> dict[str, str]:
    """Map each module that Python can import from a wheel with these files to its file.

    As in Python, a package takes precedence over an extension module of the same name, and an
    extension module over a source file.
    """
    modules: dict[str, str] = {}
    for file in files:
        name = module_name(file)
        if name is not None and (name not in modules or _rank(file) < _rank(modules[name])):
            modules[name] = file
    return modules


# A file whose module has only ASCII letters, as most have.
_PLAIN_FILE = re.compile(r"(?:[A-Za-z_]\w*/)*+[A-Za-z_]\w*\.py", re.ASCII)


def _rank(file: str) -> int:
    return 0 if file.endswith("/__init__.py") else 1 if file.endswith(".so") else 2


def installed_path(file: str) -> str:
    """Return the path of a wheel member relative to site-packages."""
    return _DATA.sub("", file, count=1) if ".data/" in file else file


def module_name(file: str) -> str | None:
    """Return the module that the wheel member `file` contains, or None."""
    if not file.endswith((".py", ".so")):  # most files of large wheels
        return None
    if _PLAIN_FILE.fullmatch(file):
        return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    path = installed_path(file)
    if path.endswith(".py"):
        stem = path.removesuffix(".py").removesuffix("/__init__")
    else:
        folder, slash, base = path.rpartition("/")
        stem = f"{folder}{slash}{base.partition('.')[0]}"
    parts = stem.split("/")
    return ".".join(parts) if all(map(str.isidentifier, parts)) else None


class ReadRequest(msgspec.Struct, frozen=True):
    """A request to read modules from a wheel.

    `files` maps modules to files, and `sizes` maps files to sizes in bytes.
    """

    content: WheelContent
    files: Mapping[str, str]
    sizes: Mapping[str, int]


class ReaderProcesses:
    """Reads files in processes, which are started for the first large task and ended by `close`."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._pool: WorkerPool | None = None

    def modules(self, requests: Sequence[ReadRequest]) -> list[dict[str, ModuleFacts]]:
        """Return the result of `read_modules` for each request, in order."""
        local = [request for request in requests if request.content.path is not None]
        total = sum(request.sizes[file] for request in local for file in request.files.values())
        if self._processes < 2 or total < (
            PARALLEL_MINIMUM if self._pool is None else RUNNING_BYTES
        ):
            return [read_modules(request.content, request.files) for request in requests]
        pool = self._start_workers()
        tasks = [
            [
                pool.submit_call(_modules_task, path, request.content.label, share)
                for share in _shares(request, min(SHARE, total // (2 * self._processes)))
            ]
            if (path := request.content.path) is not None
            else []
            for request in requests
        ]
        results: list[dict[str, ModuleFacts]] = []
        for request, shares in zip(requests, tasks, strict=True):
            if request.content.path is None:
                results.append(read_modules(request.content, request.files))
                continue
            results.append({})
            for share in shares:
                results[-1].update(decoding.decode_msgpack(share.result(), _MODULES))
        return results

    def elf_facts(self, contents: Sequence[WheelContent]) -> list[tuple[ElfFacts, ...]]:
        """Return the shared objects of each of `contents`, all of which must be local, in order."""
        if self._processes < 2 or len(contents) < 2:
            return [read_elf_facts(content) for content in contents]
        pool = self._start_workers()
        # The largest first, so that no process is left with it at the end.
        tasks = {
            content.label: pool.submit_call(_elf_facts_task, content.path, content.label)
            for content in sorted(contents, key=_bytes, reverse=True)
            if content.path is not None
        }
        return [
            decoding.decode_msgpack(tasks[content.label].result(), tuple[ElfFacts, ...])
            for content in contents
        ]

    def close(self) -> None:
        """End the processes and drop unfinished tasks."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _start_workers(self) -> WorkerPool:
        if self._pool is None:
            self._pool = WorkerPool(self._processes)
        return self._pool


_MODULES = dict[str, ModuleFacts]


def _modules_task(path: Path, label: str, files: dict[str, str]) -> bytes:
    return msgspec.msgpack.encode(read_modules(open_content(path, label), files))


def _elf_facts_task(path: Path, label: str) -> bytes:
    return msgspec.msgpack.encode(read_elf_facts(open_content(path, label)))


def _bytes(content: WheelContent) -> int:
    return sum(member.size for member in content.members().values())


def _shares(request: ReadRequest, most: int) -> list[dict[str, str]]:
    shares: list[dict[str, str]] = [{}]
    size = 0
    for name, file in request.files.items():
        if size > most:
            shares.append({})
            size = 0
        shares[-1][name] = file
        size += request.sizes[file]
    return shares
