"""Reads ELF files: symbols, needed libraries, versions, RUNPATH, the numpy ABI, GPU code.

`read_elf` returns None for a file that is not ELF, is damaged or would be rejected by the dynamic
linker. A large file is read sequentially, and its first and last bytes are buffered: the section
headers are at the end, the symbol tables at the start or at the end. If a table is outside the
buffers, the stream is opened a second time and read up to the last table.

Source: System V ABI, chapters 4 and 5; Linux Standard Base, symbol versioning.
"""

from __future__ import annotations

import os
import posixpath
import re
import struct
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import msgspec

from imgbuild.audit.binaries.fatbin import FatbinScanner, cubin_arch
from imgbuild.audit.source.facts import ElfFacts, GpuCode

OLD_NUMPY, NEW_NUMPY = b"numpy.core._multiarray_umath", b"numpy._core._multiarray_umath"
_ARCH = re.compile(rb"sm_\d{2,3}[af]?(?=\0)")

KEPT_BYTES = 24 << 20  # bytes kept of each end of a file
MAGIC = b"\x7fELF"
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
DYNAMIC = struct.Struct("<qQ")
VERNEED_STRUCT = struct.Struct("<HHIII")
VERNAUX = struct.Struct("<IHHII")
VERDEF = struct.Struct("<HHHHIII")
LITTLE_64 = b"\x02\x01"
EXECUTABLE, SHARED = 2, 3
CUDA = 190
MACHINES = {62: "x86_64", 183: "arm64", CUDA: "cuda"}
STRINGS, DYNAMIC_TABLE, SYMBOLS = 3, 6, 11
DEFINED_VERSIONS, NEEDED_VERSIONS, VERSION_NUMBERS = 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
NEEDED, SONAME, RPATH, RUNPATH = 1, 14, 15, 29
LOCAL, GLOBAL = 0, 1
INTERNAL, HIDDEN = 1, 2
LARGEST_TEXT = 64 << 20  # bytes of constants that are searched


class Section(msgspec.Struct, frozen=True):
    """An entry of the section header table.

    `link` is the index of a related section.
    """

    name: int
    kind: int
    offset: int
    size: int
    link: int
    info: int

    @property
    def place(self) -> tuple[int, int]:
        """The offset and size of the section's content."""
        return self.offset, self.size


class Symbols(msgspec.Struct, frozen=True):
    """The dynamic symbols of a file."""

    undefined: tuple[str, ...] = ()
    defined: bytes = b""
    python: bool = False
    uses_python: bool = False


class MalformedElfError(Exception):
    """Raised for a file that starts with the ELF magic number but is damaged."""


def read_elf(
    opened: Callable[[], Iterator[bytes]], file: str, *, end_size: int = KEPT_BYTES
) -> ElfFacts | None:
    """Return the facts of a file, or None if the dynamic linker would reject it.

    `opened` opens a stream of the file, for large files possibly twice. `end_size` is the number of
    bytes that are buffered at each end. Returns None for a file that is not ELF, is damaged, or is
    an object file.
    """
    stream = opened()
    first = next(stream, b"")
    while MAGIC.startswith(first[:4]) and len(first) < HEADER.size and (more := next(stream, b"")):
        first += more
    head = _head(first, file)
    if head is None or head.gpu:
        return head
    ends, gpu = _scan_stream(first, stream, end_size)
    try:
        return _facts(SectionTables(ends, opened), file, head.machine, gpu)
    except (MalformedElfError, struct.error):
        return None


def read_elf_file(path: Path, file: str) -> ElfFacts | None:
    """Return the facts of a file on disk, without GPU code. Only the tables of the file are read.

    Raises OSError if the file cannot be read.
    """
    with path.open("rb") as opened:
        head = _head(opened.read(HEADER.size), file)
        if head is None or head.gpu:
            return head
        try:
            return _facts(
                SectionTables(FileRanges(opened), lambda: iter(())), file, head.machine, ()
            )
        except (MalformedElfError, struct.error):
            return None


def _head(first: bytes, file: str) -> ElfFacts | None:
    """Return facts from the first bytes of a file, or None if it is not ELF.

    The field `gpu` is set for GPU programs.
    """
    if not first.startswith(MAGIC) or len(first) < HEADER.size or first[4:6] != LITTLE_64:
        return None
    _, kind, machine, *_, flags = HEADER.unpack_from(first)[:8]
    name = MACHINES.get(machine, f"machine {machine}")
    if machine == CUDA:
        return ElfFacts(file=file, machine=name, gpu=(GpuCode(cubin_arch(flags, first[8])),))
    return ElfFacts(file=file, machine=name) if kind in (EXECUTABLE, SHARED) else None


class FileRanges:
    """Reads ranges of bytes from an open file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = file.seek(0, os.SEEK_END)
        self.head = self.read(0, HEADER.size)

    def read(self, offset: int, size: int) -> bytes:
        """Return the bytes of a range. Raises MalformedElfError if the range exceeds the file."""
        if offset + size > self._size:
            raise MalformedElfError
        self._file.seek(offset)
        return self._file.read(size)


class StreamEnds:
    """Buffers the first and last bytes of a stream."""

    def __init__(self, end_size: int) -> None:
        self._kept = max(end_size, HEADER.size)
        self.head = bytearray()
        self.size = 0
        self._pieces: deque[bytes] = deque()
        self._held = 0

    def feed(self, piece: bytes) -> None:
        """Add the next piece of the stream."""
        self.size += len(piece)
        if len(self.head) < self._kept:
            self.head += piece
            return
        self._pieces.append(piece)
        self._held += len(piece)
        while self._held - len(self._pieces[0]) >= self._kept:
            self._held -= len(self._pieces.popleft())

    def join(self) -> None:
        """Join the pieces at the end of the stream. Call this method after the last piece."""
        self._pieces = deque([b"".join(self._pieces)])

    def read(self, offset: int, size: int) -> bytes | None:
        """Return the bytes of a range, or None if the range is not buffered.

        Raises MalformedElfError if the range exceeds the stream.
        """
        if offset + size > self.size:
            raise MalformedElfError
        if offset + size <= len(self.head):
            return bytes(memoryview(self.head)[offset : offset + size])
        start = self.size - self._held
        if offset >= start:
            return self._pieces[0][offset - start : offset - start + size]
        if start <= len(self.head):  # the range crosses from one to the other
            data = bytes(memoryview(self.head)[offset:]) + self._pieces[0]
            return data[:size]
        return None


def _scan_stream(
    first: bytes, stream: Iterable[bytes], end_size: int
) -> tuple[StreamEnds, tuple[GpuCode, ...]]:
    ends, scanner = StreamEnds(end_size), FatbinScanner()
    ends.feed(first)
    scanner.feed(first)
    for piece in stream:
        ends.feed(piece)
        scanner.feed(piece)
    ends.join()
    return ends, scanner.gpu_codes()


class SectionTables:
    """The sections of a file. The content of a section is read on demand."""

    def __init__(
        self, ends: StreamEnds | FileRanges, opened: Callable[[], Iterator[bytes]]
    ) -> None:
        self._ends = ends
        self._opened = opened
        header = HEADER.unpack_from(ends.head)
        offset, size, count, names = header[6], header[11], header[12], header[13]
        if count and size != SECTION.size:
            raise MalformedElfError
        place = (offset, size * count)
        table = self.content([place])[place] if count else b""
        self.sections = [
            Section(row[0], row[1], row[4], row[5], row[6], row[7])
            for row in SECTION.iter_unpack(table)
        ]
        self._names = names

    def first_of_type(self, kind: int) -> Section | None:
        """Return the first section of a type."""
        return next((section for section in self.sections if section.kind == kind), None)

    def section_named(self, name: bytes) -> Section | None:
        """Return the section with this name."""
        if self._names >= len(self.sections):
            return None
        names = self.sections[self._names]
        text = self.read(names)
        return next(
            (section for section in self.sections if text.startswith(name + b"\0", section.name)),
            None,
        )

    def read(self, section: Section) -> bytes:
        """Return the content of a section."""
        return self.content([section.place])[section.place]

    def read_constants(self) -> bytes:
        """Return the content of .rodata, or b"" if the section is missing or too large."""
        section = self.section_named(b".rodata")
        return self.read(section) if section is not None and section.size <= LARGEST_TEXT else b""

    def content(self, ranges: Iterable[tuple[int, int]]) -> dict[tuple[int, int], bytes]:
        """Return the bytes of `ranges`, each given as (offset, size).

        The stream is reopened for ranges that were not buffered.
        """
        contents: dict[tuple[int, int], bytes] = {}
        missing: dict[tuple[int, int], bytearray] = {}
        for offset, size in ranges:
            data = self._ends.read(offset, size)
            if data is None:
                missing[offset, size] = bytearray()
            else:
                contents[offset, size] = data
        if not missing:
            return contents
        end = max(offset + size for offset, size in missing)
        at = 0
        for piece in self._opened():
            for (offset, size), parts in missing.items():
                begin, stop = max(offset - at, 0), offset + size - at
                if begin < len(piece) and stop > 0:
                    parts.extend(piece[begin:stop])
            at += len(piece)
            if at >= end:
                break
        return contents | {place: bytes(parts) for place, parts in missing.items()}


def _facts(tables: SectionTables, file: str, machine: str, gpu: tuple[GpuCode, ...]) -> ElfFacts:
    dynamic, symbols = tables.first_of_type(DYNAMIC_TABLE), tables.first_of_type(SYMBOLS)
    # Constants are read of few files: those of a large one may take a second pass over it.
    assembles = assembler_architectures(tables.read_constants()) if is_assembler(file) else ()
    if dynamic is None or dynamic.link >= len(tables.sections):
        return ElfFacts(file=file, machine=machine, gpu=gpu, ptxas_architectures=assembles)
    strings = tables.sections[dynamic.link]
    kinds = (VERSION_NUMBERS, NEEDED_VERSIONS, DEFINED_VERSIONS)
    numbers, needs, defines = (tables.first_of_type(kind) for kind in kinds)
    sections = (dynamic, symbols, strings, numbers, needs, defines)
    content = tables.content([section.place for section in sections if section is not None])
    text = content[strings.place]
    entries = _dynamic_entries(content[dynamic.place], text)
    by_library = _needed_versions(content[needs.place], needs.info, text) if needs else {}
    offers = _defined_versions(content[defines.place], defines.info, text) if defines else ()
    symbol_facts = Symbols()
    if symbols is not None:
        names = {
            number: version
            for versions in by_library.values()
            for number, version in versions.items()
        }
        table = content[numbers.place] if numbers else b""
        symbol_facts = _symbols(content[symbols.place], text, table, names)
    paths = entries[RUNPATH] or entries[RPATH]
    return ElfFacts(
        file=file,
        machine=machine,
        soname=next(iter(entries[SONAME]), ""),
        needed=tuple(entries[NEEDED]),
        runpath=tuple(path for line in paths for path in line.split(":") if path),
        required_versions={
            library: tuple(sorted(set(versions.values())))
            for library, versions in sorted(by_library.items())
        },
        defined_versions=offers,
        undefined=symbol_facts.undefined,
        defined=symbol_facts.defined,
        gpu=gpu,
        ptxas_architectures=assembles,
        numpy=numpy_api(tables.read_constants()) if symbol_facts.uses_python else 0,
        python=symbol_facts.python,
    )


def _bytes(text: bytes, offset: int) -> bytes:
    end = text.find(b"\0", offset)
    if end < 0:
        raise MalformedElfError
    return text[offset:end]


def _string(text: bytes, offset: int) -> str:
    return _bytes(text, offset).decode("utf-8", "replace")


def _dynamic_entries(data: bytes, text: bytes) -> dict[int, list[str]]:
    strings: dict[int, list[str]] = {NEEDED: [], SONAME: [], RPATH: [], RUNPATH: []}
    for tag, value in DYNAMIC.iter_unpack(data):
        if tag == 0:
            break
        if tag in strings:
            strings[tag].append(_string(text, value))
    return strings


def _needed_versions(data: bytes, count: int, text: bytes) -> dict[str, dict[int, str]]:
    """Map each library to its required symbol versions by index, including weak ones."""
    by_library: dict[str, dict[int, str]] = {}
    at = 0
    left = len(data) // VERNAUX.size  # the number of entries that fit into the section
    for _ in range(count):
        _, needs, library, first, step = VERNEED_STRUCT.unpack_from(data, at)
        place = at + first
        left -= needs + 1
        if left < 0:
            raise MalformedElfError
        versions = by_library.setdefault(_string(text, library), {})
        for _ in range(needs):
            _, _, number, name, after = VERNAUX.unpack_from(data, place)
            versions[number & 0x7FFF] = _string(text, name)
            place += after
        at += step
    return by_library


def _defined_versions(data: bytes, count: int, text: bytes) -> tuple[str, ...]:
    versions = []
    at = 0
    if count > len(data) // VERDEF.size:
        raise MalformedElfError
    for _ in range(count):
        _, flags, _, _, _, first, step = VERDEF.unpack_from(data, at)
        if not flags & 1:  # the base version is the file's own name
            (name,) = struct.unpack_from("<I", data, at + first)
            versions.append(_string(text, name))
        at += step
    return tuple(sorted(versions))


def _symbols(data: bytes, text: bytes, numbers: bytes, names: Mapping[int, str]) -> Symbols:
    versions = array("H")
    versions.frombytes(numbers[: len(numbers) // 2 * 2])
    undefined: set[bytes] = set()
    hashes: set[bytes] = set()
    python = False
    for place, (start, info, other, section, _, _) in enumerate(SYMBOL.iter_unpack(data)):
        binding = info >> 4
        if binding == LOCAL or other & 3 in (INTERNAL, HIDDEN):
            continue
        name = _bytes(text, start)
        if section != 0:
            hashes.add(symbol_hash(name))
            python = python or name.startswith(b"PyInit_")
        elif binding == GLOBAL and name:
            version = names.get(versions[place] & 0x7FFF) if place < len(versions) else None
            undefined.add(name + b"@" + version.encode() if version else name)
    return Symbols(
        undefined=tuple(name.decode("utf-8", "replace") for name in sorted(undefined)),
        defined=_pack_hashes(hashes),
        python=python,
        uses_python=any(name.startswith((b"Py", b"_Py")) for name in undefined),
    )


def symbol_hash(name: bytes) -> bytes:
    """Return the eight-byte hash under which `ElfFacts.defined` stores a symbol."""
    return blake2b(name, digest_size=8).digest()


def _pack_hashes(hashes: Iterable[bytes]) -> bytes:
    numbers = array("Q", sorted(int.from_bytes(digest, "little") for digest in hashes))
    return numbers.tobytes()


def numpy_api(constants: bytes) -> int:
    """Return the version of numpy's C API that a library uses: 2, 1, or 0 for none.

    The version is derived from names of numpy's core module.
    """
    if NEW_NUMPY in constants:
        return 2
    return 1 if OLD_NUMPY in constants else 0


def is_assembler(file: str) -> bool:
    """Return whether a program is an assembler for GPU code: ptxas, or Triton's ptxas-blackwell."""
    return posixpath.basename(file).startswith("ptxas")


def assembler_architectures(constants: bytes) -> tuple[str, ...]:
    """Return the architectures that an assembler supports, such as "sm_90a".

    ptxas contains each value of the option --gpu-name at the end of a string, because equal
    suffixes are stored once. It also contains names of GPUs that are no longer supported (tried:
    ptxas 12.4, 12.8 and 12.9).
    """
    return tuple(sorted({name.decode() for name in _ARCH.findall(constants)}))
