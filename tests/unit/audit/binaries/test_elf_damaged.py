"""Tests that reading damaged shared objects raises no error."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given, settings
from hypothesis import strategies as st
from isal import _isal

from imgbuild.audit.binaries.elf import SECTION, Section, read_elf
from imgbuild.audit.source.facts import ElfFacts

SMALL = Path(_isal.__file__)  # 16 kB, with all the tables that a larger one has
DATA = SMALL.read_bytes()
FACTS = read_elf(lambda: iter([DATA]), "a.so")


def places() -> dict[str, tuple[int, Section]]:
    headers = {}
    with SMALL.open("rb") as file:
        elf = ELFFile(file)
        for number, section in enumerate(elf.iter_sections()):
            at = elf["e_shoff"] + number * elf["e_shentsize"]
            row = SECTION.unpack_from(DATA, at)
            headers[section.name] = at, Section(row[0], row[1], row[4], row[5], row[6], row[7])
    return headers


PLACES = places()
TABLES = (".dynamic", ".dynsym", ".dynstr", ".gnu.version", ".gnu.version_r")


def read(data: bytes, end_size: int = 1 << 20, step: int = 1 << 16) -> ElfFacts | None:
    def _opened() -> Iterator[bytes]:
        return (data[at : at + step] for at in range(0, len(data), step))

    return read_elf(_opened, "a.so", end_size=end_size)


def changed(offset: int, form: str, *values: int, data: bytes = DATA) -> bytes:
    patch = struct.pack(form, *values)
    return data[:offset] + patch + data[offset + len(patch) :]


def filled(name: str, byte: bytes, *, keep: int = 0) -> bytes:
    offset, size = PLACES[name][1].place
    return DATA[: offset + keep] + byte * (size - keep) + DATA[offset + size :]


def test_undamaged_elf_library_is_read() -> None:
    assert FACTS is not None
    assert FACTS.python
    assert FACTS.required_versions["libc.so.6"]
    assert set(TABLES) <= set(PLACES)


@pytest.mark.parametrize("keep", [1, 40])
def test_unterminated_string_table_has_no_facts(keep: int) -> None:
    assert read(filled(".dynstr", b"x", keep=keep)) is None


def test_string_offset_beyond_table_has_no_facts() -> None:
    """The offsets of a symbol and of a needed library are changed."""
    symbol = PLACES[".dynsym"][1].offset + 24
    dynamic = PLACES[".dynamic"][1].offset
    assert read(changed(symbol, "<I", 0xFFFFFFFF)) is None
    assert read(changed(dynamic + 8, "<Q", (1 << 64) - 1)) is None


def test_verneed_count_larger_than_file_has_no_facts() -> None:
    """The entries link to themselves and have a count of four billion."""
    header, needs = PLACES[".gnu.version_r"]
    endless = changed(header + 44, "<I", 0xFFFFFFFF)  # sh_info: how many entries
    endless = changed(needs.offset + 12, "<I", 0, data=endless)  # vn_next
    assert read(endless) is None
    assert read(changed(needs.offset + 2, "<H", 0xFFFF)) is None  # vn_cnt


def test_verdef_count_larger_than_file_has_no_facts() -> None:
    header, _ = PLACES[".gnu.version_r"]
    table = changed(header + 4, "<I", 0x6FFFFFFD)  # needed versions, read as defined ones
    assert read(changed(header + 44, "<I", 0xFFFFFFFF, data=table)) is None


def test_version_table_at_the_address_of_the_symbol_table_is_ignored() -> None:
    """The symbols at the address of the version table are still read."""
    header, _ = PLACES[".gnu.version"]
    other = changed(header + 24, "<QQ", PLACES[".dynsym"][1].offset, 8)
    facts = read(other)
    assert facts is not None
    assert FACTS is not None
    assert facts.defined == FACTS.defined
    assert read(other, end_size=64, step=1000) == facts


def test_section_beyond_end_of_file_has_no_facts() -> None:
    header, _ = PLACES[".dynsym"]
    assert read(changed(header + 24, "<QQ", 1 << 62, 1 << 62)) is None


SPOTS = st.one_of(
    st.integers(0, len(DATA) - 1),
    *(
        st.integers(section.offset, section.offset + section.size - 1)
        for section in (PLACES[name][1] for name in TABLES)
    ),
    *(st.integers(header, header + SECTION.size - 1) for header, _ in PLACES.values()),
)
PATCHES = st.one_of(
    st.binary(min_size=1, max_size=16),
    st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\xff" * 4, b"\0" * 4, b"\1\0\0\0\0\0\0\0"]),
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(SPOTS, PATCHES), max_size=6),
    st.one_of(st.just(len(DATA)), st.integers(0, len(DATA))),
    st.sampled_from([64, 4096, 1 << 20]),
    st.sampled_from([100, 4096, 1 << 16]),
)
def test_random_damage_of_an_elf_file_raises_no_error(
    patches: list[tuple[int, bytes]], length: int, end_size: int, step: int
) -> None:
    data = bytearray(DATA)
    for spot, patch in patches:
        data[spot : spot + len(patch)] = patch
    facts = read(bytes(data[:length]), end_size, step)
    assert facts is None or facts.file == "a.so"
    if length == len(DATA) and not patches:
        assert facts == FACTS
