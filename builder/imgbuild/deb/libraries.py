"""Creates `/etc/ld.so.cache` with the same bytes as `ldconfig`.

Missing links from SONAMEs to libraries are created, too. Layout and order are as in glibc 2.33 and
later (elf/cache.c). The order is essential, because the dynamic linker uses binary search.
"""

# A separate module: a file format.
from __future__ import annotations

import functools
import io
import posixpath
import struct
from collections.abc import Iterable
from typing import Any

import msgspec

from imgbuild.deb.tree import DebTree
from imgbuild.oci.tar import LayerMember, MemberKind
from imgbuild.values import Arch

MAGIC = b"glibc-ld.so.cache1.1"
HEADER = struct.Struct("<20sIIB3xI12x")  # magic, entries, bytes of strings, flags, extension offset
ENTRY = struct.Struct("<iIIIQ")  # flags, name, path, OS version, hardware capabilities
EXTENSION = struct.Struct("<IIIIII")  # magic, sections; tag, flags, offset, size of the one section
EXTENSION_MAGIC = 0xEAA42174
LITTLE_ENDIAN = 2
FLAGS = {Arch.X86_64: 0x0303, Arch.ARM64: 0x0A03}  # libc6 in the low byte, the ABI above it
CONFIGURATION = "etc/ld.so.conf"


class FoundLibrary(msgspec.Struct, frozen=True):
    """A library in a folder: the name for lookups, the file, and whether the file is a link."""

    name: str
    file: str
    link: bool


def library_cache(tree: DebTree, arch: Arch, version: str) -> tuple[bytes, list[LayerMember]]:
    """Return the cache for `tree`, and the links that `ldconfig` would create.

    `version` is the version of libc-bin.
    """
    entries: list[tuple[str, str]] = []
    links: list[LayerMember] = []
    for folder in library_folders(tree, arch):
        for library in _libraries(tree, folder):
            if not library.link and library.file != library.name:
                path = f"{folder}/{library.name}"
                if path not in tree:
                    links.append(
                        LayerMember(
                            path=path, kind=MemberKind.LINK, mode=0o777, target=library.file
                        )
                    )
            entries.append((library.name, f"/{folder}/{library.name}"))
    return encode_cache(sorted(entries, key=_order, reverse=True), arch, version), links


def library_folders(tree: DebTree, arch: Arch) -> list[str]:
    """Return the folders that `ldconfig` searches: configured folders, then default folders.

    A folder that has several paths is listed once.
    """
    configured = _configured_folders(tree, CONFIGURATION)
    builtin = [f"lib/{arch.triplet}", f"usr/lib/{arch.triplet}", "lib", "usr/lib"]
    result: dict[str, str] = {}
    for folder in (*configured, *builtin):
        member = tree.resolve_member(folder)
        if member is not None and member.kind is MemberKind.FOLDER:
            result.setdefault(member.path, folder.strip("/"))
    return list(result.values())


def encode_cache(entries: list[tuple[str, str]], arch: Arch, version: str) -> bytes:
    """Return the cache file for `entries` (name and path), which are in cache order."""
    offsets, strings = _strings({text for entry in entries for text in entry})
    base = HEADER.size + len(entries) * ENTRY.size
    rows = b"".join(
        ENTRY.pack(FLAGS[arch], base + offsets[name], base + offsets[path], 0, 0)
        for name, path in entries
    )
    end = base + len(strings)
    start = end + -end % 4
    # The line of the generator is part of the file written by the base's ldconfig.
    upstream = version.split("-", maxsplit=1)[0]
    line = f"ldconfig (Debian GLIBC {version}) stable release version {upstream}".encode()
    head = HEADER.pack(MAGIC, len(entries), len(strings), LITTLE_ENDIAN, start)
    extension = EXTENSION.pack(EXTENSION_MAGIC, 1, 0, 0, start + EXTENSION.size, len(line))
    return head + rows + strings + bytes(start - end) + extension + line


def compare_names(left: str, right: str) -> int:
    """Compare library names like glibc: digits are compared as numbers, and sort last.

    Returns a negative number, 0 or a positive number.
    """
    name, other = left.encode() + b"\0", right.encode() + b"\0"
    i = j = 0
    while name[i]:
        if chr(name[i]).isdigit() and chr(other[j]).isdigit():
            first, i = _number(name, i)
            second, j = _number(other, j)
            if first != second:
                return first - second
        elif chr(name[i]).isdigit() or chr(other[j]).isdigit():
            return 1 if chr(name[i]).isdigit() else -1
        elif name[i] != other[j]:
            return name[i] - other[j]
        else:
            i, j = i + 1, j + 1
    return name[i] - other[j]


def _compare_entries(left: tuple[str, str], right: tuple[str, str]) -> int:
    return compare_names(left[0], right[0])


_order = functools.cmp_to_key(_compare_entries)


def read_soname(data: bytes) -> str | None:
    """Return the SONAME of the ELF file `data`, or "" if it has none.

    Returns None if the file is not a shared object.
    """
    from elftools.common.exceptions import ELFError  # imports fifty modules that few commands need
    from elftools.elf.elffile import ELFFile

    try:
        segments: Iterable[Any] = ELFFile(io.BytesIO(data)).iter_segments("PT_DYNAMIC")
        for segment in segments:
            for tag in segment.iter_tags("DT_SONAME"):
                return str(tag.soname)
            return ""
    except (ELFError, struct.error):
        return None
    return None


def _configured_folders(tree: DebTree, path: str) -> list[str]:
    """Return the folders in an ld.so.conf and in the files that its `include` lines match."""
    if tree.resolve_member(path) is None:
        return []
    result = []
    for line in tree.read(path).decode().splitlines():
        words = line.partition("#")[0].split()
        if len(words) == 2 and words[0] == "include":
            folder, _, pattern = posixpath.join("/etc", words[1]).rpartition("/")
            suffix = pattern.removeprefix("*")
            for member in tree.members_below(folder):
                if member.path.endswith(suffix):
                    result += _configured_folders(tree, member.path)
        elif words:
            result.append(words[0].strip("/"))
    return result


def _libraries(tree: DebTree, folder: str) -> list[FoundLibrary]:
    chosen: dict[str, FoundLibrary] = {}
    for member in tree.members_below(folder):
        file = posixpath.basename(member.path)
        real = tree.resolve_member(member.path)
        if not _has_library_name(file) or real is None or real.kind is not MemberKind.FILE:
            continue
        name = read_soname(tree.read(member.path))
        if name is None:
            continue
        name = name or file
        # A link counts as one if it has the SONAME's name or is the linker's `libx.so`; any other
        # link counts as a separate file.
        link = member.kind is MemberKind.LINK and (
            file == name or (file.endswith(".so") and name.startswith(file))
        )
        name = file if link else name
        existing = chosen.get(name)
        better = existing is None or (not link and existing.link)
        if existing is not None and link == existing.link:
            better = compare_names(existing.file, file) < 0
        if better:
            chosen[name] = FoundLibrary(name, file, link)
    return list(chosen.values())


def _has_library_name(file: str) -> bool:
    return file.startswith(("lib", "ld-")) and ".so" in file and not file.endswith("-gdb.py")


def _strings(texts: set[str]) -> tuple[dict[str, int], bytes]:
    """Return a string table in glibc's format: a suffix of another string shares its bytes."""
    ends = sorted((text.encode() for text in texts), key=functools.cmp_to_key(_compare_by_end))
    offsets: dict[str, int] = {}
    table = bytearray()
    previous, start = b"", 0
    for text in ends:
        if table and previous.endswith(text):
            start = start + len(previous) - len(text)
        else:
            start = len(table)
            table += text + b"\0"
        offsets[text.decode()] = start
        previous = text
    return offsets, bytes(table)


def _compare_by_end(left: bytes, right: bytes) -> int:
    for byte, other in zip(reversed(left), reversed(right), strict=False):
        if byte != other:
            return other - byte
    return len(right) - len(left)  # the longer one first, so that the shorter can share its suffix


def _number(text: bytes, start: int) -> tuple[int, int]:
    end = start
    while chr(text[end]).isdigit():
        end += 1
    return int(text[start:end]), end
