"""Tests that listing a layer without its contents gives the result of a complete read."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imgbuild.errors import IntegrityError
from imgbuild.oci.layer import GZIP_HEADER, write_layer
from imgbuild.oci.reader import TarEntry, TarReader, open_inflated
from imgbuild.oci.tar import END, LayerMember, MemberKind, member_header
from imgbuild.sif import skim
from imgbuild.sif.flat import FlatTree, LayerSource
from imgbuild.values import sha256
from tests.support.layer_files import layer_file
from tests.support.rows import each_row
from tests.unit.oci.test_layer import member, noise, placed, text

LARGE = 300_000  # bytes: enough for a content to be passed over


def whole(path: Path) -> list[TarEntry]:
    """Return the members that a complete read of the layer yields."""
    with open_inflated(layer_file(path)) as stream:
        return list(TarReader(stream, str(path)))


def blob(folder: Path, members: list[LayerMember]) -> Path:
    path = folder / "blob"
    with path.open("wb") as sink:
        write_layer(members, sink)
    return path


def stored(data: bytes, *, level: int = 0) -> bytes:
    """Return a gzip member with the header that imgbuild writes."""
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    body = packer.compress(data) + packer.flush()
    return GZIP_HEADER + body + struct.pack("<II", zlib.crc32(data), len(data))


@pytest.fixture(name="members")
def _members(tmp_path: Path) -> list[LayerMember]:
    return [
        LayerMember(path="d", kind=MemberKind.FOLDER, mode=0o755),
        member("d/large", placed(tmp_path, text(LARGE), deflate=True), LARGE),
        member("d/larger", placed(tmp_path, text(3_000_000), deflate=True), 3_000_000),
        member("d/link", b""),
        member("d/noise", placed(tmp_path, noise(LARGE), deflate=False), LARGE),
        member("d/packed", text(LARGE), pack=True),
        member("d/raw", noise(LARGE, 1)),
        member("d/round", placed(tmp_path, text(1 << 20), deflate=True), 1 << 20),
        member("d/small", placed(tmp_path, text(900), deflate=True), 900),
        member("e" * 300, placed(tmp_path, text(70_000), deflate=True), 70_000),
    ]


def test_imgbuild_layer_is_listed_without_reading_all_content(members, tmp_path):
    path = blob(tmp_path, members)
    entries = skim.layer_entries(layer_file(path))
    assert entries == whole(path)
    assert [entry.size for entry in entries] == [each.size for each in members]


def test_large_content_of_a_layer_is_not_decompressed(members, tmp_path):
    path = blob(tmp_path, members)
    expected = whole(path)
    stream = zlib.compressobj(6, zlib.DEFLATED, -15)
    content = stream.compress(text(3_000_000)) + stream.flush()
    data = path.read_bytes()
    assert content in data
    path.write_bytes(data.replace(content, bytes(len(content))))
    with pytest.raises(IntegrityError):
        whole(path)
    assert skim.layer_entries(layer_file(path)) == expected


@each_row("cut", [1 << 30, 100_000, 512, 777])
def test_layer_of_another_tool_is_listed_without_reading_all_content(tmp_path, cut):
    """The tar is split into gzip members at arbitrary positions or at every byte."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as out:
        for name, content in (("a", text(LARGE)), ("b", b""), ("x/" * 90 + "c", noise(LARGE))):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    tar = data.getvalue()
    path = tmp_path / "blob"
    path.write_bytes(
        b"".join(gzip.compress(tar[at : at + cut], 1) for at in range(0, len(tar), cut))
    )
    assert skim.layer_entries(layer_file(path)) == whole(path)
    path.write_bytes(tar)
    assert skim.layer_entries(layer_file(path)) == whole(path)
    path.write_bytes(tar[: len(tar) // 2])
    with pytest.raises(IntegrityError, match="is truncated"):
        skim.layer_entries(layer_file(path))


@given(st.lists(st.tuples(st.integers(0, 200_000), st.sampled_from("spr")), max_size=6))
@settings(max_examples=15)
def test_layers_with_arbitrary_contents_are_listed_correctly(tmp_path_factory, content_specs):
    folder = tmp_path_factory.mktemp("skim")
    members = []
    for number, (size, kind) in enumerate(content_specs):
        content = text(size) if size else b""
        if kind == "s" and size:
            members.append(member(f"{number}", placed(folder, content, deflate=True), size))
        else:
            members.append(member(f"{number}", content, pack=kind == "p"))
    path = blob(folder, members)
    assert skim.layer_entries(layer_file(path)) == whole(path)


def misleading(behind: bytes) -> bytes:
    """Return a layer with content like the end of a gzip member, followed by `behind`."""
    fake = stored(bytes(-LARGE % 512) + behind + END)
    tail = struct.pack("<I", LARGE) + fake
    content = noise(LARGE - len(tail)) + tail
    first = member_header(LayerMember(path="file", size=LARGE))
    # Stored, so that it is unchanged: in one block, which begins after five bytes.
    return stored(first) + stored(content) + stored(bytes(-LARGE % 512) + END)


@pytest.mark.parametrize("behind", [member_header(LayerMember(path="other")), b"no header" * 100])
def test_content_that_resembles_the_end_of_a_member_is_read_as_content(tmp_path, behind):
    path = tmp_path / "blob"
    path.write_bytes(misleading(behind))
    assert [entry.path for entry in skim.layer_entries(layer_file(path))] == ["file"]
    assert skim.layer_entries(layer_file(path)) == whole(path)


def test_changed_layer_members_are_an_error(members, tmp_path, monkeypatch):
    path = blob(tmp_path, members)
    layer = LayerSource(
        path=path,
        digest=f"sha256:{sha256(path.read_bytes())}",
        size=1,
        diff_id=layer_file(path).diff_id,
    )
    first, second, *others = whole(path)
    renamed = msgspec.structs.replace(second, path="d/other")
    monkeypatch.setattr(skim, "layer_entries", lambda _: [first, renamed, *others])
    flat_tar = FlatTree()
    flat_tar.add([layer])
    with pytest.raises(IntegrityError, match="changed"):
        list(flat_tar.chunks())


def test_hash_of_layer_members_covers_all_fields():
    entry = TarEntry("a", b"0", 0o644, 1, 2, 3, 4, "", (0, 0), {"user.a": "1"})
    changes: list[dict[str, object]] = [
        {"path": "b"}, {"type": b"5"}, {"mode": 0o600}, {"uid": 9}, {"gid": 9}, {"size": 9},
        {"mtime": 9}, {"target": "x"}, {"device": (1, 1)}, {"xattrs": {"user.a": "2"}},
    ]  # fmt: skip
    values = set()
    for change in [{}, *changes]:
        seen = skim.MembersHash()
        seen.add(
            TarEntry(
                **{**{name: getattr(entry, name) for name in entry.__struct_fields__}, **change}
            )
        )
        values.add(seen.value)
    assert len(values) == 11
