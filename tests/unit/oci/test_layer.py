"""Tests that layers are valid, independent of the writing mode, and match golden bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import random
import tarfile
import tracemalloc
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imgbuild.errors import IntegrityError
from imgbuild.oci.layer import LayerRecord, write_layer
from imgbuild.oci.tar import MTIME, FileSlice, LayerMember, MemberKind
from tests.support.rows import each_row


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def text(size: int) -> bytes:
    """Bytes with a moderate compression ratio."""
    words = random.Random(size).choices([b"alpha ", b"beta ", b"gamma\n", b"%d" % size], k=size)
    return b"".join(words)[:size]


def placed(folder: Path, content: bytes, *, deflate: bool, level: int = 6) -> FileSlice:
    """Write `content` into the middle of a file on disk."""
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    stream = packer.compress(content) + packer.flush() if deflate else content
    path = folder / hashlib.sha256(stream + bytes([deflate])).hexdigest()
    path.write_bytes(b"before" + stream + b"after")
    crc = zlib.crc32(content)
    return FileSlice(path=path, offset=6, length=len(stream), deflated=deflate, crc=crc)


def member(
    path: str, content: bytes | FileSlice, size: int | None = None, **more: object
) -> LayerMember:
    true = len(content) if isinstance(content, bytes) else size
    return LayerMember(path=path, content=content, size=true or 0, **more)  # type: ignore[arg-type]


def written(members: list[LayerMember]) -> tuple[bytes, LayerRecord]:
    """Return the blob, checked to be the same in all three writing modes, and its record."""
    sink = io.BytesIO()
    seen: list[int] = []
    record = write_layer(members, sink, advance=seen.append)
    blob = sink.getvalue()
    assert record.digest == f"sha256:{hashlib.sha256(blob).hexdigest()}"
    assert record.size == len(blob) == sum(seen)
    assert write_layer(reversed(members), None) == record
    trusted = io.BytesIO()
    assert write_layer(members, trusted, diff_id=record.diff_id) == record
    assert trusted.getvalue() == blob
    tar = gzip.decompress(blob)
    assert record.diff_id == f"sha256:{hashlib.sha256(tar).hexdigest()}"
    assert record.unpacked == len(tar)
    assert tar.endswith(bytes(1024))
    return blob, record


def contents(blob: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(blob), mode="r:gz") as tar:
        files = [(info.name, tar.extractfile(info)) for info in tar if info.isfile()]
        return {name: file.read() if file else b"" for name, file in files}


def test_layer_contains_every_type_of_content(tmp_path: Path) -> None:
    big, small = text(3_000_000), b"tiny"
    raw = noise(200_000)
    members = [
        member("d/spliced", placed(tmp_path, big, deflate=True), len(big)),
        member("d/inlined", placed(tmp_path, small, deflate=True), len(small)),
        member("d/stored", placed(tmp_path, raw, deflate=False), len(raw)),
        member("d/empty", placed(tmp_path, b"", deflate=True), 0),
        member("d/bytes", raw[:1000], mode=0o755),
        member("d/packed", big, pack=True),
        member("d/packed slice", placed(tmp_path, raw, deflate=False), len(raw), pack=True),
        member("e", b""),
        LayerMember(path="l", kind=MemberKind.LINK, mode=0o777, target="d/bytes"),
        LayerMember(path="m", kind=MemberKind.HARD, target="d/bytes"),
        LayerMember(path="z/f", kind=MemberKind.FOLDER, mode=0o700, uid=5, gid=6, mtime=7),
    ]
    blob, _ = written(members)
    assert contents(blob) == {
        "d/spliced": big,
        "d/inlined": small,
        "d/stored": raw,
        "d/empty": b"",
        "d/bytes": raw[:1000],
        "d/packed": big,
        "d/packed slice": raw,
        "e": b"",
    }
    with tarfile.open(fileobj=io.BytesIO(blob), mode="r:gz") as tar:
        headers = {info.name: info for info in tar}
    assert list(headers) == sorted(headers, key=str.encode)
    for folder in ("d", "z"):
        info = headers[folder]
        assert (info.type, info.mode, info.uid, info.mtime) == (tarfile.DIRTYPE, 0o755, 0, MTIME)
    folder_header = headers["z/f"]
    assert (folder_header.mode, folder_header.uid, folder_header.gid, folder_header.mtime) == (
        0o700,
        5,
        6,
        7,
    )
    assert (headers["l"].linkname, headers["m"].type) == ("d/bytes", tarfile.LNKTYPE)


def test_deflate_streams_of_wheels_are_copied_unchanged_into_layers(tmp_path: Path) -> None:
    """The blob contains the stream of the wheel unchanged, after the fixed ten bytes."""
    big = text(100_000)
    for level in (1, 9):
        part = placed(tmp_path, big, deflate=True, level=level)
        stream = part.path.read_bytes()[6 : 6 + part.length]
        blob, _ = written([member("a", part, len(big))])
        start = blob.index(stream)
        assert blob[start - 10 : start] == b"\x1f\x8b\x08" + bytes(6) + b"\xff"
        trailer = zlib.crc32(big).to_bytes(4, "little") + len(big).to_bytes(4, "little")
        assert blob[start + len(stream) :][:8] == trailer


def test_members_of_a_packed_layer_are_compressed(tmp_path: Path) -> None:
    """Headers are compressed as well; other layers are written without compression."""
    files = [member(f"d/{number:04}", b"x" * number, pack=True) for number in range(2000)]
    blob, record = written(files)
    assert record.unpacked > 2_000_000
    assert record.size < 150_000
    assert contents(blob)["d/1999"] == b"x" * 1999
    large = text(9_000_000)  # over two runs of 4 MiB
    blob, record = written(
        [member("large", placed(tmp_path, large, deflate=False), len(large), pack=True)]
    )
    assert contents(blob) == {"large": large}
    assert blob.count(b"\x1f\x8b\x08" + bytes(6) + b"\xff") == 3


@each_row("size", [0, 1, 511, 512, 65534, 65535, 65536, 131070, 131071, 1 << 20])
def test_stored_deflate_blocks_are_split_at_the_size_limit(tmp_path: Path, size: int) -> None:
    raw = noise(size)
    direct, _ = written([member("a", raw)])
    other, _ = written([member("a", placed(tmp_path, raw, deflate=False), size)])
    assert direct == other
    assert contents(direct) == {"a": raw}


def test_layer_without_members_is_valid() -> None:
    blob, record = written([])
    assert gzip.decompress(blob) == bytes(1024)
    assert record.unpacked == 1024


def test_layer_with_many_members_and_long_paths_is_readable() -> None:
    members = [
        member(f"{'p' * 90}/{number % 7}/{'n' * 150}ü{number}", b"%d" % number)
        for number in range(3000)
    ]
    blob, _ = written(members)
    assert contents(blob) == {item.path: item.content for item in members}


CONTENT = st.one_of(
    st.binary(max_size=3000),
    st.builds(lambda data, times: data * times, st.binary(max_size=200), st.integers(0, 400)),
)
NAME = st.text(
    st.characters(exclude_characters="/\0.", exclude_categories=["Cs"]), min_size=1, max_size=60
)


@settings(deadline=None, max_examples=25)
@given(
    files=st.dictionaries(
        st.lists(NAME, min_size=1, max_size=5).map(lambda parts: "/".join(["top", *parts]) + ".f"),
        st.tuples(CONTENT, st.sampled_from(["bytes", "stored", "deflated"]), st.booleans()),
        max_size=12,
    )
)
def test_arbitrary_files_of_a_layer_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, tuple[bytes, str, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("files")
    members = []
    for path, (data, way, pack) in files.items():
        content = data if way == "bytes" else placed(folder, data, deflate=way == "deflated")
        members.append(member(path, content, len(data), pack=pack))
    blob, _ = written(members)
    assert contents(blob) == {path: data for path, (data, _, _) in files.items()}


def test_memory_use_for_large_layer_files_is_bounded(tmp_path: Path) -> None:
    """Memory is bounded for 40 MB in each of the three writing modes."""
    raw = noise(1 << 20) * 40
    members = [
        member("a", placed(tmp_path, raw, deflate=False), len(raw)),
        member("b", placed(tmp_path, bytes(len(raw)), deflate=True), len(raw)),
        member("c", placed(tmp_path, raw, deflate=False), len(raw), pack=True),
    ]
    del raw
    tracemalloc.start()
    try:
        write_layer(members, None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 24 << 20


@each_row("deflate", [True, False])
@each_row("size", [10, 50_000])
def test_layer_member_with_a_wrong_size_or_crc_is_refused(
    tmp_path: Path, size: int, *, deflate: bool
) -> None:
    good = placed(tmp_path, text(size), deflate=deflate)
    wrong = FileSlice(
        path=good.path, offset=6, length=good.length, deflated=deflate, crc=good.crc ^ 1
    )
    with pytest.raises(IntegrityError, match="d/name has CRC"):
        write_layer([member("d/name", wrong, size)], None)
    with pytest.raises(IntegrityError, match="d/name has more than the expected"):
        write_layer([member("d/name", good, size - 1)], None)
    with pytest.raises(IntegrityError, match=r"d/name has \d+ bytes"):
        write_layer([member("d/name", good, size + 1)], None)


@pytest.mark.parametrize(("more", "message"), [(2, "is shorter"), (-2, "is longer")])
def test_deflate_stream_of_wrong_length_is_refused(tmp_path: Path, more: int, message: str) -> None:
    data = text(50_000)
    good = placed(tmp_path, data, deflate=True)
    wrong = FileSlice(
        path=good.path, offset=6, length=good.length + more, deflated=True, crc=good.crc
    )
    with pytest.raises(IntegrityError, match=f"d/name: the deflate stream {message}"):
        write_layer([member("d/name", wrong, len(data))], None)


def test_truncated_or_missing_layer_input_is_refused(tmp_path: Path) -> None:
    data = text(50_000)
    part = placed(tmp_path, data, deflate=True)
    part.path.write_bytes(part.path.read_bytes()[:100])
    with pytest.raises(IntegrityError, match="ends at byte 100"):
        write_layer([member("a", part, len(data))], None, diff_id="sha256:" + "0" * 64)
    part.path.unlink()
    with pytest.raises(IntegrityError, match="cannot read"):
        write_layer([member("a", part, len(data))], None)


def test_layer_file_over_8_gib_has_a_pax_size_record(tmp_path: Path) -> None:
    """The layer is not inflated, so the test does not need 9 GB."""
    path = tmp_path / "wheel"
    path.write_bytes(GOLDEN_STREAM)
    part = FileSlice(path=path, offset=0, length=len(GOLDEN_STREAM), deflated=True, crc=1)
    size, sink = (9 << 30) + 7, io.BytesIO()
    record = write_layer([member("a", part, size)], sink, diff_id="sha256:" + "0" * 64)
    blob = sink.getvalue()
    assert record.unpacked == 3 * 512 + size + -size % 512 + 1024
    head = zlib.decompressobj(31).decompress(blob)
    assert tarfile.TarInfo.frombuf(head[1024:1536], "utf-8", "strict").name == "a"
    assert b"size=9663676423\n" in head
    end = blob.index(GOLDEN_STREAM) + len(GOLDEN_STREAM)
    assert blob[end : end + 8] == b"\1\0\0\0" + (size % (1 << 32)).to_bytes(4, "little")


def test_conflicting_paths_in_a_layer_are_refused() -> None:
    with pytest.raises(IntegrityError, match="a/b appears twice in the layer"):
        write_layer([member("a/b", b"1"), member("a/b", b"1")], None)
    with pytest.raises(IntegrityError, match=r"a is a file, but a/b/c requires a folder"):
        write_layer([member("a", b"1"), member("a/b/c", b"1")], None)
    link = LayerMember(path="a", kind=MemberKind.LINK, target="b")
    with pytest.raises(IntegrityError, match="a is a symlink, but a/b requires a folder"):
        write_layer([link, member("a/b", b"1")], None)
    hard = LayerMember(path="a", kind=MemberKind.HARD, target="b")
    with pytest.raises(IntegrityError, match="a is a hard link to b"):
        write_layer([hard, member("b", b"1")], None)


# Literal digests detect an upgrade of Python, isal or deflate that changes bytes. If one of
# them changes, the format numbers of `plan` must also be raised.
GOLDEN_TEXT = b"a golden file, line after line\n" * 200
GOLDEN_STREAM = bytes.fromhex(
    ""
    ""
    ""
    ""
    ""
    ""
    ""
    ""
    "edc9c10980300c00c0bf536400970a984a215410f747700def777019e7d547ad18b36b8f9eab22c753f7c72db5d65a6badb5d65a6badb5d65a6bfd9f7e01"
)
GOLDEN = {
    "spliced": "sha256:8ca92cc7313ca0c0eab32086086f3f74914f1ae7be1a20544c19ae098d5b7d68",
    "stored": "sha256:56893f529eeba60b86e9437391f0df45431cd8b29a697647c94507a0198ce895",
    "packed": "sha256:ec7146abb9baac25edd4343a5da84076151e8ccc73153802528d7e98ceb020d5",
}


@pytest.mark.parametrize("kind", list(GOLDEN))
def test_layer_digests_match_golden_values(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "wheel"
    path.write_bytes(GOLDEN_STREAM + GOLDEN_TEXT)
    length, size, crc = len(GOLDEN_STREAM), len(GOLDEN_TEXT), zlib.crc32(GOLDEN_TEXT)
    stream = FileSlice(path=path, offset=0, length=length, deflated=True, crc=crc)
    raw = FileSlice(path=path, offset=length, length=size, deflated=False, crc=crc)
    content = stream if kind == "spliced" else raw
    members = [
        member("opt/venv/file", content, size, pack=kind == "packed"),
        member("opt/venv/bin/tool", b"#!/bin/sh\n", mode=0o755, pack=kind == "packed"),
        member("opt/venv/" + "long/" * 60 + "größe", b"2"),
        LayerMember(path="opt/link", kind=MemberKind.LINK, mode=0o777, target="venv"),
    ]
    assert written(members)[1].digest == GOLDEN[kind]
