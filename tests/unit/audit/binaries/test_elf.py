"""Compares the facts of shared objects with those of pyelftools, and tests truncated files."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection
from isal import isal_zlib

from imgbuild.audit.binaries.elf import read_elf, read_elf_file, symbol_hash
from imgbuild.audit.source.facts import ElfFacts, GpuCode
from tests.support.rows import each_row

REAL = sorted(
    path
    for module in (msgspec, isal_zlib)
    if module.__file__ is not None
    for path in Path(module.__file__).parent.glob("*.so")
)


def opened(data: bytes, step: int = 1 << 16) -> Callable[[], Iterator[bytes]]:
    return lambda: (data[at : at + step] for at in range(0, len(data), step))


def section(elf: ELFFile, form: type) -> Any:
    return next(candidate for candidate in elf.iter_sections() if isinstance(candidate, form))


def oracle(path: Path) -> tuple[list[str], set[str], set[bytes], dict[str, set[str]]]:
    """The libraries, symbols and versions that pyelftools reads."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        needed = [tag.needed for tag in section(elf, DynamicSection).iter_tags("DT_NEEDED")]
        numbers = section(elf, GNUVerSymSection)
        required_versions: dict[str, set[str]] = {}
        names = {}
        for library, versions in section(elf, GNUVerNeedSection).iter_versions():
            for version in versions:
                required_versions.setdefault(library.name, set()).add(version.name)
                names[version["vna_other"]] = version.name
        undefined, defined = set(), set()
        symbols = elf.get_section_by_name(".dynsym")
        assert isinstance(symbols, SymbolTableSection)
        for place, symbol in enumerate(symbols.iter_symbols()):
            binding = symbol["st_info"]["bind"]
            if symbol["st_shndx"] != "SHN_UNDEF" and binding != "STB_LOCAL":
                defined.add(symbol_hash(symbol.name.encode()))
            elif binding == "STB_GLOBAL":
                number = numbers.get_symbol(place)["ndx"]
                version = names.get(number) if isinstance(number, int) else None
                undefined.add(f"{symbol.name}@{version}" if version else symbol.name)
        return needed, undefined, defined, required_versions


def read(data: bytes, **options: int) -> ElfFacts:
    facts = read_elf(opened(data), "a.so", **options)
    assert facts is not None
    return facts


@each_row("path", REAL, ids=lambda path: path.name)
def test_facts_read_from_a_library_match_pyelftools(path: Path) -> None:
    facts = read(path.read_bytes())
    needed, undefined, defined, required_versions = oracle(path)
    assert list(facts.needed) == needed
    assert set(facts.undefined) == undefined
    hashes = [number.to_bytes(8, "little") for number in array("Q", facts.defined)]
    assert set(hashes) == defined
    assert {
        library: set(versions) for library, versions in facts.required_versions.items()
    } == required_versions
    assert facts.python


@each_row("path", REAL, ids=lambda path: path.name)
def test_file_and_stream_readers_return_the_same_elf_facts(path: Path) -> None:
    assert read_elf_file(path, path.name) == read_elf(opened(path.read_bytes()), path.name)


@each_row("share", [0.0, 0.001, 0.5, 0.99])
def test_truncated_elf_file_has_no_facts(tmp_path: Path, share: float) -> None:
    data = REAL[0].read_bytes()
    (tmp_path / "cut.so").write_bytes(data[: int(len(data) * share)])
    assert read_elf_file(tmp_path / "cut.so", "cut.so") is None


def test_system_libraries_for_the_elf_tests_are_available() -> None:
    assert len(REAL) >= 2


@each_row("end_size", [0, 4096, 100_000, 1 << 30])
@each_row("step", [1000, 1 << 20])
def test_elf_facts_do_not_depend_on_the_read_size(end_size: int, step: int) -> None:
    data = REAL[0].read_bytes()
    assert read_elf(opened(data, step), "a.so", end_size=end_size) == read(data)


def test_stream_is_reopened_only_to_read_discarded_ranges() -> None:
    data = REAL[0].read_bytes()
    opens = 0

    def _open() -> Iterator[bytes]:
        nonlocal opens
        opens += 1
        return opened(data, 1000)()

    read_elf(_open, "a.so")
    assert opens == 1
    read_elf(_open, "a.so", end_size=1000)
    assert opens > 2


@each_row("data", [b"", b"\x7fELF", b"import os\n", b"PK\3\4" + bytes(100)])
def test_file_that_is_not_elf_has_no_facts(data: bytes) -> None:
    assert read_elf(opened(data), "a.py") is None


def test_relocatable_object_file_has_no_elf_facts() -> None:
    data = bytearray(REAL[0].read_bytes())
    data[16:18] = struct.pack("<H", 1)
    assert read_elf(opened(bytes(data)), "a.o") is None


@each_row("share", [0.01, 0.3, 0.6, 0.99])
def test_truncated_elf_stream_has_no_facts(share: float) -> None:
    data = REAL[0].read_bytes()
    assert read_elf(opened(data[: int(len(data) * share)]), "a.so") is None


def test_corrupt_elf_header_bytes_raise_no_error() -> None:
    data = REAL[0].read_bytes()
    for place in range(16, 64):
        broken = data[:place] + b"\xff" + data[place + 1 :]
        facts = read_elf(opened(broken, 1 << 20), "a.so")
        assert facts is None or facts.file == "a.so"


# -- GPU code


def entry(kind: int, arch: int, *, flags: int = 0x11, ptx: tuple[int, int] = (8, 4)) -> bytes:
    """An entry of a fat binary. Kind 1 is PTX, and kind 2 is machine code."""
    payload = bytes(24)
    major, minor = ptx
    head = struct.pack("<HHIQIIHHI", kind, 0x101, 64, len(payload), 0, 0, minor, major, arch)
    return head + struct.pack("<QQQQ", 0, flags, 0, 0) + payload


def fatbin(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def with_code(*parts: bytes) -> bytes:
    """A library of this machine with GPU code between its sections."""
    data = REAL[0].read_bytes()
    return data + b"".join(parts)


def codes(data: bytes, step: int = 1 << 16) -> tuple[GpuCode, ...]:
    facts = read_elf(opened(data, step), "a.so")
    assert facts is not None
    return facts.gpu


CODE = (
    fatbin(entry(2, 80), entry(2, 90, flags=0x100011), entry(1, 90)),
    bytes(40),
    fatbin(entry(2, 80), entry(2, 100, flags=0x200011)),
)
FOUND = (
    GpuCode("compute_90", "8.4", 1),
    GpuCode("sm_100f", "", 1),
    GpuCode("sm_80", "", 2),
    GpuCode("sm_90a", "", 1),
)


@each_row("step", [7, 16, 63, 1 << 20])
def test_gpu_code_that_spans_several_read_chunks_is_found(step: int) -> None:
    assert codes(with_code(*CODE), step) == FOUND


def test_fatbin_magic_number_without_header_is_ignored() -> None:
    lone = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 40)
    assert codes(with_code(lone, bytes(200))) == ()
    assert codes(with_code(lone, bytes(200), *CODE)) == FOUND


def test_library_without_gpu_code_has_no_architectures() -> None:
    assert codes(REAL[0].read_bytes()) == ()


@each_row(
    ("flags", "abi", "arch"),
    [
        (0x6005A04, 8, "sm_90"),
        (0x6006402, 8, "sm_100"),
        (0x0F00670C, 8, "sm_103"),
        (0x5A055A, 7, "sm_90"),
    ],
)
def test_cubin_architecture_is_read_from_elf_flags(flags: int, abi: int, arch: str) -> None:
    head = b"\x7fELF\x02\x01\x01" + bytes([0x41, abi]) + bytes(7)
    data = head + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 0, flags, 64, 0, 0, 0, 0, 0)
    facts = read_elf(opened(data), "kernel.cubin")
    assert facts == ElfFacts(file="kernel.cubin", machine="cuda", gpu=(GpuCode(arch),))


def test_assembler_architectures_are_read_from_strings() -> None:
    data = bytearray(REAL[0].read_bytes())
    with REAL[0].open("rb") as file:
        constants = ELFFile(file).get_section_by_name(".rodata")
        assert constants is not None
    names = b"\0.target sm_90\0sm_100a\0sm_103x\0sm_9"
    data[constants["sh_offset"] : constants["sh_offset"] + len(names)] = names
    libraries = [read_elf(opened(bytes(data)), file) for file in ("bin/ptxas-blackwell", "a.so")]
    assert [library.ptxas_architectures for library in libraries if library] == [
        ("sm_100a", "sm_90"),
        (),
    ]
