"""Tests reading the members of an sdist, and errors for refused archives."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from imgbuild.errors import IntegrityError
from imgbuild.oci.reader import ZSTD
from imgbuild.wheel import sdist
from imgbuild.wheel.sdist import SdistMember
from tests.support.rows import each_row

TOP = "demo-1.0"


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", pax: dict[str, str] | None = None
) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.pax_headers = kind, link, pax or {}
    return member


def packed(*members: tarfile.TarInfo, data: bytes = b"") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", encoding="utf-8") as tar:
        for member in members:
            member.size = len(data) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def zipped(*names: str, mode: int = 0o100644) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in names:
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, mode << 16
            archive.writestr(info, b"x = 1\n")
    return stream.getvalue()


def read(folder: Path, data: bytes) -> list[tuple[SdistMember, bytes]]:
    path = folder / "demo-1.0.tar.gz"
    path.write_bytes(data)
    return [
        (member, b"".join(content()) if member.kind == "file" else b"")
        for member, content in sdist.read_members(path, "demo 1.0")
    ]


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_sdist_in_tar_format_is_read(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    tool = entry(f"./{TOP}/bin/tool")
    tool.mode, tool.mtime = 0o755, 1_500_000_000
    members = (entry(f"./{TOP}", tarfile.DIRTYPE), tool, entry(f"{TOP}/empty/", tarfile.DIRTYPE))
    assert read(tmp_path, compress(packed(*members, data=b"x"))) == [
        (SdistMember(path="bin/tool", kind="file", size=1, executable=True, mtime=1_500_000_000),
         b"x"),
        (SdistMember(path="empty", kind="folder", mtime=0), b""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("compress", "name"),
    [(bz2.compress, "bzip2"), (lzma.compress, "xz"), (lambda data: ZSTD + data, "zstd")],
)
def test_error_names_the_unsupported_compression_of_an_sdist(
    tmp_path: Path, compress: Callable[[bytes], bytes], name: str
) -> None:
    data = compress(packed(entry(f"{TOP}/x"), data=b"x"))
    with pytest.raises(IntegrityError, match=f"^demo 1.0 is compressed with {name}, ") as caught:
        read(tmp_path, data)
    assert caught.value.hint == sdist.REMEDY


def test_sdist_in_zip_format_is_read(tmp_path: Path) -> None:
    listed = read(tmp_path, zipped(f"{TOP}/setup.py", f"{TOP}/demo/a.py"))
    assert [(member.path, data) for member, data in listed] == [
        ("setup.py", b"x = 1\n"),
        ("demo/a.py", b"x = 1\n"),
    ]
    folder = SdistMember(path="demo", kind="folder", size=6)
    assert read(tmp_path, zipped(f"{TOP}/demo/", mode=0o040755)) == [(folder, b"")]


LONG = "/".join(["d" * 247] * 17)
BAD = {
    "link": (packed(entry(f"{TOP}/x", tarfile.SYMTYPE, "/etc")), f"'{TOP}/x' is a link to '/etc'"),
    "hard link": (packed(entry(f"{TOP}/x", tarfile.LNKTYPE, "y")), f"'{TOP}/x' is a link to 'y'"),
    "inner link": (packed(entry(f"{TOP}/x", tarfile.SYMTYPE, "y")), f"'{TOP}/x' is a link"),
    "device": (packed(entry(f"{TOP}/x", tarfile.CHRTYPE)), "but a device"),
    "pipe": (packed(entry(f"{TOP}/x", tarfile.FIFOTYPE)), "but a pipe"),
    "unknown": (packed(entry(f"{TOP}/x", b"V")), "not a file or a folder"),
    "sparse": (packed(entry(f"{TOP}/x", tarfile.GNUTYPE_SPARSE)), f"'{TOP}/x' is sparse"),
    "sparse by header": (
        packed(entry("GNUSparse.0/x", pax={"GNU.sparse.major": "1", "GNU.sparse.name": "true"})),
        "'true' is sparse",
    ),
    "absolute": (packed(entry("/etc/x")), "'/etc/x' is an absolute path"),
    "above": (packed(entry(f"{TOP}/../../x")), "contains `..`"),
    "long path": (packed(entry(f"{TOP}/{LONG}")), "a path of more than 3840"),
    "long path of a link": (packed(entry(f"{TOP}/{LONG}", tarfile.SYMTYPE, "y")), "is a link"),
    "long name": (packed(entry(f"{TOP}/{'n' * 256}")), "a name of more than 255 bytes"),
    "deep": (packed(entry(f"{TOP}/{'d/' * 100}x")), "more than 100 folders"),
    "twice": (packed(entry(f"{TOP}/x"), entry(f"{TOP}/./x")), "twice"),
    "through a file": (packed(entry(f"{TOP}/x"), entry(f"{TOP}/x/y")), "whose path is also a file"),
    "file over a folder": (packed(entry(f"{TOP}/x/y"), entry(f"{TOP}/x")), "twice"),
    "folder over a file": (
        packed(entry(f"{TOP}/x"), entry(f"{TOP}/x", tarfile.DIRTYPE)), "whose path is also a file",
    ),
    "two tops": (packed(entry(f"{TOP}/x"), entry("other/x")), f"'other/x' is not in '{TOP}'"),
    "file at the top": (packed(entry("setup.py")), "one top-level folder"),
    "zip link": (zipped(f"{TOP}/x", mode=0o120777), f"'{TOP}/x' is a link"),
    "zip above": (zipped(f"{TOP}/../../x"), "contains `..`"),
    "zip absolute": (zipped("/etc/x"), "absolute"),
    "zip long": (zipped(f"{TOP}/{LONG}"), "a path of more than 3840"),
    "zip backslash": (zipped(f"{TOP}/a\\..\\x"), "backslash"),
    "zip device": (zipped(f"{TOP}/x", mode=0o020600), "not a file or a folder"),
}  # fmt: skip


@each_row("name", BAD)
def test_error_names_an_unsupported_member_of_an_sdist(tmp_path: Path, name: str) -> None:
    data, words = BAD[name]
    with pytest.raises(IntegrityError) as caught:
        read(tmp_path, data)
    assert caught.value.message.startswith("demo 1.0: ")
    assert words in caught.value.message
    assert len(caught.value.message) < 500


@each_row(
    "data", [b"", b"\x1f\x8b\0", b"BZh9junk", b"PK\5\6", b"PK\3\4", bytes(700), b"no archive" * 99]
)
def test_file_that_is_not_an_archive_is_refused_as_sdist(tmp_path: Path, data: bytes) -> None:
    if data == bytes(700):  # an empty tar
        assert read(tmp_path, data) == []
        return
    with pytest.raises(IntegrityError, match=r"demo 1\.0"):
        read(tmp_path, data)


@pytest.mark.parametrize(("limit", "value"), [("LARGEST", 3), ("MEMBERS", 1)])
def test_oversized_sdists_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    data = packed(entry(f"{TOP}/x"), entry(f"{TOP}/y"), data=b"22")
    assert len(read(tmp_path, data)) == 2
    monkeypatch.setattr(sdist, limit, value)
    with pytest.raises(IntegrityError, match="2 entries of 4 bytes"):
        read(tmp_path, data)


def test_sdist_names_that_are_not_utf_8_are_kept(tmp_path: Path) -> None:
    member = entry(f"{TOP}/caf\udce9.txt")
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as tar:
        tar.addfile(member)
    assert [listed.path for listed, _ in read(tmp_path, stream.getvalue())] == ["caf\udce9.txt"]
