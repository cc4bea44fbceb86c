"""Tests tar headers with Python's tarfile and a parser of the raw fields."""

from __future__ import annotations

import io
import tarfile

from hypothesis import given
from hypothesis import strategies as st

from imgbuild.oci.tar import (
    BLOCK,
    END,
    MTIME,
    LayerMember,
    MemberKind,
    member_header,
    padding_size,
    sort_key,
)
from tests.support.rows import each_row

TYPES = {
    MemberKind.FILE: tarfile.REGTYPE,
    MemberKind.FOLDER: tarfile.DIRTYPE,
    MemberKind.LINK: tarfile.SYMTYPE,
    MemberKind.HARD: tarfile.LNKTYPE,
}


def read_back(member: LayerMember) -> tarfile.TarInfo:
    with tarfile.open(fileobj=io.BytesIO(member_header(member) + END)) as tar:
        info = tar.next()
    assert info is not None
    return info


def test_tar_header_has_the_ustar_fields() -> None:
    block = member_header(LayerMember(path="opt/venv/bin/tool", mode=0o755, size=10))
    assert len(block) == BLOCK
    assert block[:17] == b"opt/venv/bin/tool"
    assert block[17:100] == bytes(83)
    assert block[100:148] == b"0000755\x000000000\x000000000\x0000000000012\x0002263523000\x00"
    assert int(block[136:147], 8) == MTIME
    assert block[148:156] == b"%06o\0 " % (sum(block) - sum(block[148:156]) + 8 * 32)
    assert block[156:157] == b"0"
    assert block[257:265] == b"ustar\x0000"
    assert block[265:329] == bytes(64)  # owner names
    assert block[329:345] == b"0000000\x000000000\x00"
    assert block[345:] == bytes(167)


@each_row(
    ("path", "blocks"),
    [
        ("a" * 100, 1),
        ("a" * 101, 3),
        ("p" * 155 + "/" + "n" * 100, 1),
        ("p" * 156 + "/" + "n" * 100, 3),
        ("p" * 155 + "/" + "n" * 101, 3),
        ("p/" * 60 + "n" * 90, 1),
        ("p/" * 200 + "n", 3),
        ("/".join(["n" * 99] * 10), 4),
        ("bücher/größe.txt", 3),
        ("ü" * 300, 4),
    ],
)
def test_long_and_non_ascii_paths_are_encoded_in_tar_headers(path: str, blocks: int) -> None:
    """A PAX header (two blocks or more) exists only if ustar cannot represent the path."""
    member = LayerMember(path=path)
    assert len(member_header(member)) == blocks * BLOCK
    assert read_back(member).name == path
    folder = LayerMember(path=path, kind=MemberKind.FOLDER)
    assert read_back(folder).name == path
    assert read_back(folder).isdir()


@each_row("target", ["x", "t" * 100, "t" * 101, "../ziel/größe"])
@each_row("kind", [MemberKind.LINK, MemberKind.HARD])
def test_links_are_encoded_in_tar_headers(kind: MemberKind, target: str) -> None:
    info = read_back(LayerMember(path="a/link", kind=kind, target=target))
    assert (info.type, info.linkname, info.size) == (TYPES[kind], target, 0)


@each_row("size", [0, 1, 8**11 - 1, 8**11, 1 << 40])
def test_valid_sizes_are_encoded_in_tar_headers(size: int) -> None:
    member = LayerMember(path="a", size=size)
    assert read_back(member).size == size
    assert len(member_header(member)) == (BLOCK if size < 8**11 else 3 * BLOCK)


def test_large_owner_ids_and_unusual_times_are_encoded_in_tar_headers() -> None:
    info = read_back(LayerMember(path="a", uid=8**7, gid=8**7 - 1, mtime=-5))
    assert (info.uid, info.gid, info.mtime) == (8**7, 8**7 - 1, -5)


@each_row("length", [*range(80, 105), *range(975, 1000)])
def test_length_of_a_pax_record_includes_its_own_digits(length: int) -> None:
    assert read_back(LayerMember(path="ü" + "a" * length)).name == "ü" + "a" * length


NAMES = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=80
).filter(lambda name: name not in (".", ".."))


@given(
    path=st.lists(NAMES, min_size=1, max_size=8).map("/".join),
    kind=st.sampled_from(MemberKind),
    mode=st.integers(0, 0o7777),
    uid=st.integers(0, 1 << 31),
    gid=st.integers(0, 1 << 31),
    size=st.integers(0, 1 << 50),
    target=NAMES,
)
def test_arbitrary_tar_member_is_read_back_unchanged(
    path: str, kind: MemberKind, mode: int, uid: int, gid: int, size: int, target: str
) -> None:
    link = target if kind in (MemberKind.LINK, MemberKind.HARD) else ""
    member = LayerMember(path=path, kind=kind, mode=mode, uid=uid, gid=gid, size=size, target=link)
    info = read_back(member)
    assert (info.name, info.type, info.mode) == (path, TYPES[kind], mode)
    assert (info.uid, info.gid, info.mtime, info.linkname) == (uid, gid, MTIME, link)
    assert info.size == (size if kind is MemberKind.FILE else 0)
    assert (info.uname, info.gname) == ("", "")


def test_tar_members_are_padded_and_ordered() -> None:
    assert [padding_size(size) for size in (0, 1, 511, 512, 513)] == [0, 511, 1, 0, 511]
    paths = ["a", "a-b", "a/b", "ab", "a\U00010000", "a\uffff"]
    members = sorted((LayerMember(path=path) for path in paths), key=sort_key)
    # By bytes, not by the code units of another encoding.
    assert [m.path for m in members] == ["a", "a-b", "a/b", "ab", "a\uffff", "a\U00010000"]
