"""Tests reading valid wheels, and that invalid wheels are refused with their name and a hint."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from imgbuild.errors import IntegrityError
from imgbuild.wheel import archive
from tests.support.rows import each_row
from tests.support.wheels import (
    FILE,
    LINK,
    PROGRAM,
    Entry,
    deflate_bytes,
    minimal_metadata,
    valid_entries,
    write_forged_zip,
    write_wheel,
)

TEXT = b"one line of text, and again one line of text\n" * 20


def read_contents(wheel: archive.WheelArchive) -> None:
    """Decompress every file of `wheel`, which checks its CRC and size."""
    for member in wheel.members.values():
        for _ in wheel.chunks(member):
            pass


def refused(path: Path, *words: str) -> None:
    """Check that reading `path` fails with a message that contains `words`, name and remedy."""
    with pytest.raises(IntegrityError) as caught:
        read_contents(archive.read_wheel(path))
    assert path.name in caught.value.message
    assert caught.value.hint
    for word in words:
        assert word in caught.value.message, caught.value.message


def test_valid_wheel_is_read(tmp_path: Path) -> None:
    files = {"demo/__init__.py": b"", "demo/data.txt": TEXT, "demo/raw": os.urandom(5000)}
    path = write_wheel(tmp_path, files, modes={"demo/raw": PROGRAM})
    wheel = archive.read_wheel(path)
    read_contents(wheel)
    assert (wheel.name, wheel.version, wheel.label) == ("demo", "1.0", path.name)
    assert wheel.headers("METADATA")["Version"] == "1.0"
    assert wheel.text("no such file") is None
    for name, data in files.items():
        assert wheel.content(name) == data
        member = wheel.members[name]
        assert (member.size, member.crc) == (len(data), zlib.crc32(data))
    assert wheel.members["demo/raw"].mode == PROGRAM
    # The offset is where the stream starts: inflated from there by zlib, it is the content.
    place = wheel.place(wheel.members["demo/data.txt"])
    stream = path.read_bytes()[place.offset : place.offset + place.length]
    assert zlib.decompress(stream, -15) == TEXT


def test_stored_members_folders_and_modes_of_a_wheel_are_read(tmp_path: Path) -> None:
    path = write_forged_zip(
        tmp_path,
        valid_entries(
            Entry(name=b"demo/", method=0, mode=0o40755),
            Entry(name=b"./demo//a.txt", data=TEXT, method=0),
            Entry(name=b"demo/dos", data=b"x", mode=PROGRAM, system=0),
        ),
    )
    wheel = archive.read_wheel(path)
    read_contents(wheel)
    assert wheel.content("demo/a.txt") == TEXT
    assert wheel.members["demo/dos"].mode == 0
    assert "demo" not in wheel.members


def test_error_for_a_stored_wheel_has_the_file_name(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, {})
    stored = path.rename(tmp_path / ("0" * 64))
    assert archive.read_wheel(stored).label == "0" * 64
    assert archive.read_wheel(stored, label=path.name).label == path.name
    with pytest.raises(IntegrityError, match=r"other-1\.0-py3-none-any\.whl.*demo 1\.0"):
        archive.read_wheel(stored, label="other-1.0-py3-none-any.whl")


@each_row("signature", [b"", b"PK\7\x08"])
@each_row("layout", ["<LLL", "<LQQ"])
def test_wheel_with_data_descriptors_is_read(tmp_path: Path, signature: bytes, layout: str) -> None:
    stream = deflate_bytes(TEXT)
    descriptor = signature + struct.pack(layout, zlib.crc32(TEXT), len(stream), len(TEXT))
    entry = Entry(name=b"a", data=TEXT, flags=8, local_sizes=(0, 0, 0), descriptor=descriptor)
    wheel = archive.read_wheel(write_forged_zip(tmp_path, valid_entries(entry)))
    read_contents(wheel)
    assert wheel.content("a") == TEXT
    entry.descriptor = signature + struct.pack(layout, 1, len(stream), len(TEXT))
    refused(write_forged_zip(tmp_path, valid_entries(entry)), "'a'", "descriptor")
    entry.descriptor = b""
    refused(write_forged_zip(tmp_path, valid_entries(entry)), "'a'", "descriptor")


def test_wheel_in_zip64_format_is_read(tmp_path: Path) -> None:
    full = 0xFFFFFFFF
    stream = deflate_bytes(TEXT)
    wide = struct.pack("<HHQQ", 1, 16, len(TEXT), len(stream))
    entry = Entry(
        name=b"a",
        data=TEXT,
        local_sizes=(zlib.crc32(TEXT), full, full),
        central_sizes=(zlib.crc32(TEXT), full, full),
        local_extra=wide,
        central_extra=wide,
    )
    wheel = archive.read_wheel(write_forged_zip(tmp_path, valid_entries(entry), zip64=True))
    read_contents(wheel)
    assert wheel.content("a") == TEXT
    entry.local_extra = struct.pack("<HHQQ", 1, 16, len(TEXT) + 1, len(stream))
    refused(write_forged_zip(tmp_path, valid_entries(entry), zip64=True), "'a'", "not match")
    entry.local_extra = b""
    refused(write_forged_zip(tmp_path, valid_entries(entry), zip64=True), "'a'", "zip64 field")


def test_wheel_in_zip64_format_with_many_members_is_read(tmp_path: Path) -> None:
    files = {f"demo/{number}": b"" for number in range(66_000)}
    assert len(archive.read_wheel(write_wheel(tmp_path, files)).members) == 66_003


def test_streamed_wheel_in_zip64_format_is_read(tmp_path: Path) -> None:
    """Python's zipfile writes the wheel in zip64 format to a stream that cannot seek."""

    class Sink:
        def __init__(self) -> None:
            self.data = bytearray()

        def write(self, data: bytes) -> int:
            self.data += data
            return len(data)

        def flush(self) -> None:
            pass

    sink = Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as wheel:  # type: ignore[call-overload]
        for entry in valid_entries(Entry(name=b"demo/a", data=TEXT)):
            with wheel.open(entry.name.decode(), "w", force_zip64=True) as file:
                file.write(entry.data)
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    path.write_bytes(sink.data)
    parsed = archive.read_wheel(path)
    read_contents(parsed)
    assert parsed.content("demo/a") == TEXT


@each_row(
    ("name", "word"),
    [
        (b"../evil", "contains `..`"),
        (b"demo/../../evil", "contains `..`"),
        (b"demo/..", "contains `..`"),
        (b"/etc/passwd", "absolute"),
        (b"demo\\evil", "backslash"),
        (b"C:evil", "drive"),
        (b"demo/a\0b", "control"),
        (b"demo/a\nb", "control"),
        (b"demo/\x7f", "control"),
        ("demo/\x85".encode(), "control"),
        (b"./.", "empty path"),
        (b"demo/" + b"n" * 256, "255 bytes"),
        (b"demo/caf\xe9", "UTF-8"),
    ],
)
def test_unsafe_paths_in_a_wheel_are_refused(tmp_path: Path, name: bytes, word: str) -> None:
    flags = 1 << 11 if b"\xc2" in name else 0
    path = write_forged_zip(tmp_path, valid_entries(Entry(name=name, data=b"x", flags=flags)))
    refused(path, word, repr(name.decode(errors="backslashreplace")).strip("'\"")[:6])


@pytest.mark.parametrize("target", [b"/etc/passwd", b"../../evil", b"x/../../../evil"])
def test_links_out_of_a_wheel_are_refused(tmp_path: Path, target: bytes) -> None:
    path = write_forged_zip(
        tmp_path, valid_entries(Entry(name=b"demo/link", data=target, mode=LINK))
    )
    refused(path, "'demo/link'", target.decode(), "link")


def test_links_inside_a_wheel_become_files(tmp_path: Path) -> None:
    path = write_forged_zip(
        tmp_path, valid_entries(Entry(name=b"demo/link", data=b"../x", mode=LINK))
    )
    assert archive.read_wheel(path).content("demo/link") == b"../x"


@each_row("mode", [0o020644, 0o010644, 0o140755, 0o060644, 0o040755])
def test_special_files_in_a_wheel_are_refused(tmp_path: Path, mode: int) -> None:
    refused(
        write_forged_zip(tmp_path, valid_entries(Entry(name=b"dev", mode=mode))),
        "'dev'",
        f"{mode:o}",
    )


@pytest.mark.parametrize("second", [b"a", b"./a", b".//a"])
def test_duplicate_wheel_members_are_refused(tmp_path: Path, second: bytes) -> None:
    path = write_forged_zip(
        tmp_path, valid_entries(Entry(name=b"a", data=b"1"), Entry(name=second, data=b"2"))
    )
    refused(path, "twice", repr(second.decode()))


@pytest.mark.parametrize("other", [b"a/b", b"a/", b"a/b/c"])
def test_wheel_with_a_file_in_place_of_a_folder_is_refused(tmp_path: Path, other: bytes) -> None:
    folder = other.endswith(b"/")
    second = Entry(name=other, method=0 if folder else 8, mode=0o40755 if folder else FILE)
    refused(
        write_forged_zip(tmp_path, valid_entries(Entry(name=b"a", data=b"1"), second)),
        "'a'",
        "folder",
    )


def test_wheel_folder_entry_with_content_is_refused(tmp_path: Path) -> None:
    path = write_forged_zip(tmp_path, valid_entries(Entry(name=b"a/", data=b"1", mode=0o40755)))
    refused(path, "'a/'", "folder")


@each_row(
    ("entry", "word"),
    [
        (Entry(name=b"a", data=TEXT, crc=7), "CRC"),
        (Entry(name=b"a", data=TEXT, method=0, crc=7), "CRC"),
        (Entry(name=b"a", data=TEXT, size=len(TEXT) + 1), "expected"),
        (Entry(name=b"a", data=TEXT, size=len(TEXT) - 1), "more than the expected"),
        (Entry(name=b"a", data=TEXT, size=0), "more than the expected"),
        (Entry(name=b"a", data=b"", size=1), "expected"),
        (Entry(name=b"a", data=TEXT, method=0, size=len(TEXT) - 1), "sizes differ"),
        (Entry(name=b"a", data=TEXT, stream=deflate_bytes(TEXT) + b"more"), "is shorter"),
        (Entry(name=b"a", data=TEXT, stream=deflate_bytes(TEXT)[:-1]), "is longer"),
        (Entry(name=b"a", data=TEXT, stream=b"\xff" * 50), "not a valid deflate"),
        (Entry(name=b"a", data=b"", stream=b""), "cannot inflate"),
        (Entry(name=b"a", data=TEXT, flags=1), "encrypted"),
        (Entry(name=b"a", data=TEXT, flags=1 << 6), "encrypted"),
        (Entry(name=b"a", data=TEXT, flags=1 << 13), "encrypted"),
        (Entry(name=b"a", data=TEXT, flags=1 << 5), "flags"),
        (Entry(name=b"a", data=TEXT, method=9), "method 9"),
        (Entry(name=b"a", data=TEXT, method=12), "method 12"),
        (Entry(name=b"a", data=TEXT, method=14), "method 14"),
        (Entry(name=b"a", data=TEXT, method=93), "method 93"),
        (Entry(name=b"a", data=TEXT, local_name=b"b"), "a different name"),
        (Entry(name=b"a", data=TEXT, local_name=b"ab"), "a different name"),
        (Entry(name=b"a", data=TEXT, local_flags=1 << 11), "different flags"),
        (Entry(name=b"a", data=TEXT, local_method=0), "a different compression method"),
        (Entry(name=b"a", data=TEXT, local_sizes=(1, 2, 3)), "not match"),
        (Entry(name=b"a", data=TEXT, flags=8, local_sizes=(1, 0, 0)), "not match"),
        (Entry(name=b"a", data=TEXT, after=b"hidden"), "unexpected bytes"),
        (Entry(name=b"a", data=TEXT, start=5), "no local header"),
        (Entry(name=b"a", central_extra=struct.pack("<HHBL", 0x7075, 6, 1, 0) + b"b"), "second"),
        (Entry(name=b"a", data=b"x", size=5000), "bomb"),
    ],
)
def test_wheel_with_inconsistent_headers_is_refused(
    tmp_path: Path, entry: Entry, word: str
) -> None:
    refused(write_forged_zip(tmp_path, valid_entries(entry)), "'a'", word)


def test_wheel_with_overlapping_members_is_refused(tmp_path: Path) -> None:
    """Two entries share one local header, as zip bombs do to reuse data."""
    again = Entry(name=b"b", data=TEXT, start=0, absent=True)
    refused(
        write_forged_zip(tmp_path, valid_entries(Entry(name=b"a", data=TEXT), again)),
        "'b'",
        "overlaps",
    )
    donor = write_forged_zip(tmp_path, [Entry(name=b"b", data=b"y", method=0)]).read_bytes()
    outer = Entry(name=b"a", data=donor[: donor.index(b"PK\1\2")], method=0)
    inside = Entry(name=b"b", data=b"y", method=0, start=31, absent=True)
    refused(write_forged_zip(tmp_path, valid_entries(outer, inside)), "'a'", "overlap")


def test_zip_bombs_are_refused(tmp_path: Path) -> None:
    zeros = bytes(64 << 20)
    refused(write_wheel(tmp_path, {"zeros": zeros}), "bomb")
    # A too small size in the directory is detected as soon as it is exceeded.
    entry = Entry(name=b"a", data=b"", stream=deflate_bytes(zeros), size=1000, crc=0)
    with pytest.raises(IntegrityError, match=r"more than the expected 1000 bytes"):
        read_contents(archive.read_wheel(write_forged_zip(tmp_path, valid_entries(entry))))


@each_row(
    ("forged", "word"),
    [
        ({"before": b"#!/bin/sh\n"}, "10 unexpected bytes before"),
        ({"between": b"hidden"}, "unexpected bytes"),
        ({"after": b"x"}, "end record"),
        ({"count": 3}, "entries"),
        ({"count": 5}, "entries"),
    ],
)
def test_wheel_with_bytes_between_members_is_refused(
    tmp_path: Path, forged: dict[str, Any], word: str
) -> None:
    refused(write_forged_zip(tmp_path, valid_entries(Entry(name=b"a")), **forged), word)


def test_wheel_with_a_prefix_and_unchanged_offsets_is_refused(tmp_path: Path) -> None:
    path = write_forged_zip(tmp_path, valid_entries(Entry(name=b"a")))
    path.write_bytes(b"#!/bin/sh\n" + path.read_bytes())
    refused(path, "its directory ends at byte")


def test_wheel_with_two_end_records_is_refused(tmp_path: Path) -> None:
    other = write_forged_zip(tmp_path, valid_entries(Entry(name=b"other"))).read_bytes()
    path = write_forged_zip(tmp_path, valid_entries(Entry(name=b"a")), comment=other)
    refused(path, "more than one end record")
    empty = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0, 0, 0, 0, 0)
    refused(
        write_forged_zip(tmp_path, valid_entries(Entry(name=b"a")), comment=empty),
        "more than one end record",
    )
    # A signature alone is enough to make readers differ.
    path = write_forged_zip(tmp_path, valid_entries(Entry(name=b"a")), comment=b"..PK\5\6..")
    refused(path, "more than one end record")


def test_wheel_with_an_inconsistent_zip64_end_record_is_refused(tmp_path: Path) -> None:
    path = write_forged_zip(tmp_path, valid_entries(Entry(name=b"a")), zip64=True)
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\5\6")
    data[at + 8 : at + 12] = struct.pack("<HH", 2, 2)
    path.write_bytes(data)
    refused(path, "not match")
    locator = data.rindex(b"PK\6\7")
    data[at + 8 : at + 12] = b"\xff" * 4
    data[locator + 8 : locator + 16] = struct.pack("<Q", 0)
    path.write_bytes(data)
    refused(path, "locator")


@pytest.mark.parametrize("data", [b"", b"PK\5\6", b"no zip at all" * 100])
def test_file_that_is_not_a_zip_archive_is_refused_as_wheel(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    path.write_bytes(data)
    refused(path, "not a zip file")


def test_missing_wheel_file_is_an_error(tmp_path: Path) -> None:
    refused(tmp_path / "demo-1.0-py3-none-any.whl", "cannot read")


def test_wheel_truncated_at_any_byte_is_refused(tmp_path: Path) -> None:
    whole = write_forged_zip(tmp_path, valid_entries(Entry(name=b"a", data=TEXT))).read_bytes()
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(IntegrityError):
            read_contents(archive.read_wheel(path))


def test_wheel_must_have_exactly_one_dist_info_folder(tmp_path: Path) -> None:
    refused(write_forged_zip(tmp_path, [Entry(name=b"a")]), ".dist-info", "none")
    second = Entry(name=b"other-1.0.dist-info/METADATA", data=minimal_metadata("other", "1.0"))
    refused(
        write_forged_zip(tmp_path, valid_entries(second)), "demo-1.0.dist-info, other-1.0.dist-info"
    )
    odd = [Entry(name=b"demo.dist-info/METADATA", data=minimal_metadata("demo", "1.0"))]
    refused(write_forged_zip(tmp_path, odd), "NAME-VERSION")


@each_row(
    ("file", "data", "word"),
    [
        ("METADATA", minimal_metadata("other", "1.0"), "other 1.0"),
        ("METADATA", minimal_metadata("demo", "1.1"), "demo 1.1"),
        ("METADATA", b"\xff\xfe", "UTF-8"),
        ("WHEEL", b"Wheel-Version: 2.0\n", "'2.0'"),
        ("WHEEL", b"Generator: x\n", "Wheel-Version"),
    ],
)
def test_wheel_with_contradicting_metadata_is_refused(
    tmp_path: Path, file: str, data: bytes, word: str
) -> None:
    refused(write_wheel(tmp_path, {f"demo-1.0.dist-info/{file}": data}), word)


@pytest.mark.parametrize("missing", [b"METADATA", b"WHEEL"])
def test_wheel_without_metadata_is_refused(tmp_path: Path, missing: bytes) -> None:
    remaining = [entry for entry in valid_entries() if not entry.name.endswith(missing)]
    refused(write_forged_zip(tmp_path, remaining), missing.decode())


def test_package_names_are_normalized_for_comparison(tmp_path: Path) -> None:
    data = {"My_Demo-1.0.dist-info/METADATA": minimal_metadata("my.demo", "1.0.0")}
    assert archive.read_wheel(write_wheel(tmp_path, data, name="My_Demo")).name == "My_Demo"


def test_invalid_wheel_file_name_is_refused(tmp_path: Path) -> None:
    refused(write_wheel(tmp_path, {}).rename(tmp_path / "demo.whl"), "file name")
