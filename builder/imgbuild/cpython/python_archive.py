"""Reads the archive of a standalone build of CPython, and creates the members of its layer.

The archives have the layout of `install_only` archives of python-build-standalone: all files are
below `python/`, with bin, lib, include and licences. Only regular files, folders and symbolic links
inside this folder are accepted. As in Debian's package, tests, IDLE, Tk, static libraries, pip and
its bytecode are excluded from the layer. Owners, modes and times are constant.
"""

from __future__ import annotations

import io
import posixpath
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

import msgspec

from imgbuild.cpython import sysconfig_data
from imgbuild.errors import IntegrityError
from imgbuild.oci.reader import FILES, TarReader, open_decompressed
from imgbuild.oci.tar import FileSlice, LayerMember, MemberKind
from imgbuild.system.boundary import LimitedStream, convert_read_errors
from imgbuild.values import Arch

TOP = "python"
LARGEST_ARCHIVE = 512 << 20  # bytes of an archive; install_only archives have up to 120 MB
UNPACKED_LIMIT = 2 << 30  # bytes of all contents
ENTRY_LIMIT = 50_000
TEXT_LIMIT = 8 << 20  # bytes of a file that is rewritten
PROGRAM_LIMIT = 256 << 20  # bytes of the interpreter, about 30 MB if nothing is shared
PATH_LIMIT = 1024
HINT = "use an `install_only` archive of python-build-standalone for Linux with glibc"
OTHER_ARCHIVE_HINT = (
    "correct `version` or `archives` of the base in matrix.yaml: they are for different releases"
)
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"  # the first bytes of such files
_MUSL_MESSAGE = "is a build for musl, but the base uses glibc"
MACHINES = {Arch.X86_64: 62, Arch.ARM64: 183}  # e_machine of the ELF header
_VERSION = re.compile(
    rb'^#define\s+PY_VERSION\s+"(3\.[0-9]+\.[0-9]+(?:(?:a|b|rc)[0-9]+)?)"', re.MULTILINE
)
_PROGRAM = re.compile(r"bin/python(3\.[0-9]+)([td]*)")
_ABI = {"t": "free-threaded", "d": "debug"}  # flags in the names of programs and header folders
_MUSL = "musl"  # in the names of its dynamic linker and of `_sysconfigdata_*.py`
_LICENCE = re.compile(r"lib/python3\.[0-9]+/LICENSE\.txt|licen[cs]es/.*")
_EXCLUDED_FILES = re.compile(
    r"(?:.*/)?__pycache__(?:/.*)?|.*\.py[co]|.*\.a"
    r"|lib/python3\.[0-9]+/(?:test|idlelib|turtledemo|tkinter|site-packages)(?:/.*)?"
    r"|lib/python3\.[0-9]+/lib-dynload/_tkinter[^/]*|lib/lib(?:tcl|tk)[0-9][^/]*"
    r"|lib/(?:tcl|tk|itcl|thread|Tix)[0-9][^/]*(?:/.*)?"
    r"|lib/python3\.[0-9]+/(?:.*/)?(?:tests?|idle_test)(?:/.*)?"
    r"|bin/(?:2to3|idle|pip|pydoc)[0-9.-]*|share/(?:doc|man)(?:/.*)?"
)
# Texts that contain the installation folder of the build.
_REWRITTEN = re.compile(
    r"lib/pkgconfig/[^/]+\.pc|bin/python3?[0-9.]*-config"
    r"|lib/python3\.[0-9]+/config-[^/]+/(?:Makefile|python-config\.py)"
)
_SYSCONFIG = re.compile(r"lib/python3\.[0-9]+/_sysconfigdata_[^/]*\.py")


class StandaloneBuild(msgspec.Struct, frozen=True, kw_only=True):
    """The exact version of the Python in an archive."""

    version: str


def describe_archive(path: Path, label: str, *, python: str, arch: Arch) -> StandaloneBuild:
    """Check the archive at `path`.

    `label` is the name of the archive in errors. Raises IntegrityError if the archive is damaged or
    unsafe, has another layout, or does not contain Python `python` ("3.12") for `arch`.
    """
    headers, interpreter, paths = b"", b"", set[str]()
    header, program = f"include/python{python}/patchlevel.h", f"bin/python{python}"
    for member, content in _entries(path, label):
        paths.add(member.path)
        if member.kind is MemberKind.FILE and member.path == header:
            headers = _text(member, content, label)
        elif member.kind is MemberKind.FILE and member.path == program:
            interpreter = _text(member, content, label, PROGRAM_LIMIT)
    _refuse_other_builds(paths, python, label)
    needed = (program, f"include/python{python}/Python.h", header, f"lib/python{python}/os.py")
    for name in needed:
        if name not in paths:
            _refuse_archive(label, f"has no {TOP}/{name}")
    if not any(map(_LICENCE.fullmatch, paths)):
        _refuse_archive(
            label, "has no license: LICENSE.txt in the standard library and licenses/ are missing"
        )
    if not any(map(_SYSCONFIG.fullmatch, paths)):
        _refuse_archive(label, f"has no {TOP}/lib/python{python}/_sysconfigdata_*.py")
    _refuse_unusable(interpreter, program, paths, label, arch)
    match = _VERSION.search(headers)
    version = match[1].decode() if match is not None else ""
    if not version.startswith(f"{python}."):
        _refuse_archive(
            label, f"has Python {version or 'without a version'}, not {python}", OTHER_ARCHIVE_HINT
        )
    return StandaloneBuild(version=version)


def _refuse_other_builds(paths: set[str], python: str, label: str) -> None:
    programs = [match for match in map(_PROGRAM.fullmatch, sorted(paths)) if match is not None]
    others = sorted({match[1] for match in programs})
    if others and python not in others:
        _refuse_archive(label, f"has Python {', '.join(others)}, not {python}", OTHER_ARCHIVE_HINT)
    for match in programs:
        version, flags = match.groups()
        # Such a build may also have bin/python3.13 as a link, but no headers of that name.
        if version == python and flags and f"include/python{python}/Python.h" not in paths:
            kind = " ".join(_ABI[flag] for flag in dict.fromkeys(flags))
            tag = f"cp{python.replace('.', '')}"
            what = f"has a {kind} build, {TOP}/{match[0]}, which cannot load the wheels for {tag}"
            _refuse_archive(label, what)
    if any(_MUSL in name for name in filter(_SYSCONFIG.fullmatch, paths)):
        _refuse_archive(label, _MUSL_MESSAGE)


def _refuse_unusable(
    interpreter: bytes, program: str, paths: set[str], label: str, arch: Arch
) -> None:
    machine = int.from_bytes(interpreter[18:20], "little")
    if not interpreter.startswith(b"\x7fELF\2\1") or machine != MACHINES[arch]:
        _refuse_archive(label, f"has {TOP}/{program}, which is not a program for {arch}")
    linker, libraries = _linked_libraries(interpreter, f"{label}: {TOP}/{program}")
    if _MUSL in linker:
        _refuse_archive(label, _MUSL_MESSAGE)
    for library in libraries:
        if library.startswith("libpython") and f"lib/{library}" not in paths:
            _refuse_archive(label, f"has no {TOP}/lib/{library}, which {TOP}/{program} needs")


def _linked_libraries(program: bytes, place: str) -> tuple[str, list[str]]:
    from elftools.elf.elffile import ELFFile  # imports fifty modules that few commands need

    linker, names = "", []
    with convert_read_errors(place, hint=HINT):
        segments: Iterable[Any] = ELFFile(io.BytesIO(program)).iter_segments()
        for segment in segments:
            if segment["p_type"] == "PT_INTERP":
                linker = segment.get_interp_name()
            elif segment["p_type"] == "PT_DYNAMIC":
                names += [posixpath.basename(tag.needed) for tag in segment.iter_tags("DT_NEEDED")]
    return linker, names


def archive_members(
    path: Path, label: str, *, prefix: str, python: str, spool: Path
) -> list[LayerMember]:
    """Return the layer members of the archive at `path`, below the absolute path `prefix`.

    The contents of files are written to the new file `spool`, which must exist until the layer is
    written. Raises IntegrityError like `describe_archive`.
    """
    by_path: dict[str, LayerMember] = {}
    with spool.open("wb") as sink:
        for member, content in _entries(path, label):
            if _EXCLUDED_FILES.fullmatch(member.path) is not None:
                continue
            is_file = member.kind is MemberKind.FILE
            by_path[member.path] = (
                _store_content(member, content, sink, spool, label) if is_file else member
            )
    _link(by_path, "bin/python3", f"python{python}")
    _link(by_path, "bin/python", "python3")
    _refuse_misplaced(by_path, label)
    with convert_read_errors(label, hint=HINT):
        _relocate_texts(by_path, prefix)
    below = prefix.strip("/")
    return [
        msgspec.structs.replace(member, path=f"{below}/{member.path}")
        for member in by_path.values()
    ]


def archive_programs(
    path: Path, label: str, python: str
) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield the interpreter, shared libraries, and extension modules of the standard library.

    Each item is a path in the layer and a function that reads the content. An item is valid until
    the next item. Raises IntegrityError like `describe_archive`.
    """
    version = re.escape(python)
    libraries = re.compile(
        rf"bin/python{version}|lib/[^/]+\.so[^/]*|lib/python{version}/(?:.*/)?[^/]+\.so"
    )
    for member, content in _entries(path, label):
        if _EXCLUDED_FILES.fullmatch(member.path) is not None:
            continue
        if member.kind is MemberKind.FILE and libraries.fullmatch(member.path) is not None:
            yield member.path, partial(_text, member, content, label, PROGRAM_LIMIT)


_Content = Callable[[], Iterator[bytes]]


def _entries(path: Path, label: str) -> Iterator[tuple[LayerMember, _Content]]:
    """Yield the members below `python/`, each with a reader that is valid until the next member."""
    with path.open("rb") as file:
        start = file.read(4)
    if start == _ZSTD:
        _refuse_archive(
            label, "is compressed with zstd, like `full` archives, but only gzip is supported"
        )
    if not start.startswith(_GZIP):
        _refuse_archive(label, "is not a gzip file")
    seen: set[str] = set()
    total = 0
    limit = UNPACKED_LIMIT + (ENTRY_LIMIT << 12)
    with convert_read_errors(label, hint=HINT), open_decompressed(path) as stream:
        reader = TarReader(cast("BinaryIO", LimitedStream(stream, limit)), label, hint=HINT)
        for count, entry in enumerate(reader, start=1):
            total += entry.size
            if count > ENTRY_LIMIT or total > UNPACKED_LIMIT:
                _refuse_archive(
                    label, f"has {count} entries of {total} bytes, which exceeds the limits"
                )
            parts = [part for part in entry.path.split("/") if part not in ("", ".")]
            shown = repr(entry.path[:PATH_LIMIT])
            if entry.path.startswith("/") or ".." in parts or not entry.path.isprintable():
                _refuse_archive(label, f"has an unsafe path: {shown}")
            if len(entry.path) > PATH_LIMIT:
                _refuse_archive(label, f"has a path of {len(entry.path)} characters: {shown}")
            if parts[:1] != [TOP] or (len(parts) == 1 and entry.type != tarfile.DIRTYPE):
                _refuse_archive(label, f"has {shown}, which is not below {TOP}/")
            name = "/".join(parts[1:])
            if name in seen and entry.type != tarfile.DIRTYPE:
                _refuse_archive(label, f"has {shown} twice")
            seen.add(name)
            if entry.type == tarfile.DIRTYPE:
                continue  # the layer writer adds all folders
            if entry.type == tarfile.SYMTYPE:
                target = _link_target(name, entry.target, label)
                link = LayerMember(path=name, kind=MemberKind.LINK, mode=0o777, target=target)
                yield link, reader.content
            elif entry.type in FILES:
                mode = 0o755 if entry.mode & 0o100 else 0o644
                yield LayerMember(path=name, mode=mode, size=entry.size, pack=True), reader.content
            else:
                _refuse_archive(
                    label, f"contains {shown}, which is not a file, folder or symbolic link"
                )


def _link_target(name: str, target: str, label: str) -> str:
    led = posixpath.normpath(posixpath.join(TOP, posixpath.dirname(name), target))
    if target.startswith("/") or not target.isprintable() or not led.startswith(f"{TOP}/"):
        _refuse_archive(label, f"has a link {name!r} to {target[:PATH_LIMIT]!r}, outside of {TOP}/")
    return target


def _text(member: LayerMember, content: _Content, label: str, limit: int = TEXT_LIMIT) -> bytes:
    if member.size > limit:
        _refuse_archive(label, f"has {member.path} of {member.size} bytes (limit {limit})")
    return b"".join(content())


def _store_content(
    member: LayerMember, content: _Content, sink: BinaryIO, spool: Path, label: str
) -> LayerMember:
    if _REWRITTEN.fullmatch(member.path) or _SYSCONFIG.fullmatch(member.path):
        return msgspec.structs.replace(member, content=_text(member, content, label))
    offset, crc = sink.tell(), 0
    for piece in content():
        sink.write(piece)
        crc = zlib.crc32(piece, crc)
    part = FileSlice(path=spool, offset=offset, length=member.size, deflated=False, crc=crc)
    return msgspec.structs.replace(member, content=part)


def _refuse_misplaced(by_path: dict[str, LayerMember], label: str) -> None:
    for name in by_path:
        above = posixpath.dirname(name)
        while above:
            if above in by_path:
                _refuse_archive(label, f"has {name!r} below {above!r}, which is not a folder")
            above = posixpath.dirname(above)


def _link(by_path: dict[str, LayerMember], path: str, target: str) -> None:
    by_path.setdefault(
        path, LayerMember(path=path, kind=MemberKind.LINK, mode=0o777, target=target)
    )


def _relocate_texts(by_path: dict[str, LayerMember], prefix: str) -> None:
    """Replace the build folder in text files with `prefix`, and compilers with the image's."""
    built_at = sysconfig_data.INSTALL_PREFIX
    for name in filter(_SYSCONFIG.fullmatch, sorted(by_path)):
        source = by_path[name].content
        if isinstance(source, bytes):
            values, built_at = sysconfig_data.read_sysconfig(source)
            by_path[name] = _replace_content(
                by_path[name], sysconfig_data.encode_sysconfig(values, built_at, prefix)
            )
    for name in filter(_REWRITTEN.fullmatch, sorted(by_path)):
        source = by_path[name].content
        if isinstance(source, bytes):
            text = source.decode("utf-8", "surrogateescape")
            moved = sysconfig_data.relocate_text(text, built_at, prefix)
            by_path[name] = _replace_content(
                by_path[name], moved.encode("utf-8", "surrogateescape")
            )


def _replace_content(member: LayerMember, content: bytes) -> LayerMember:
    return msgspec.structs.replace(member, content=content, size=len(content))


def _refuse_archive(label: str, what: str, hint: str = HINT) -> NoReturn:
    message = f"{label} {what}"
    raise IntegrityError(message, hint=hint)
