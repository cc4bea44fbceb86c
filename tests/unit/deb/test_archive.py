from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from imgbuild.deb.archive import read_deb
from imgbuild.errors import IntegrityError
from imgbuild.oci.tar import MTIME, FileSlice, LayerMember, MemberKind
from tests.support import debs
from tests.support.rows import each_row


def everything(path: str, kind: MemberKind) -> bool:
    del path, kind
    return True


def content(member: LayerMember) -> bytes:
    assert isinstance(member.content, FileSlice)
    assert not member.content.deflated
    data = member.content.path.read_bytes()
    return data[member.content.offset : member.content.offset + member.content.length]


MEMBERS = [
    debs.folder("./"),
    debs.folder("./usr/", 0o755),
    debs.file("./usr/a", b"alpha" * 1000, 0o4755),
    debs.file("./usr/b", b"", 0o640, gid=42),
    debs.file("./usr/c", b"gamma"),
    debs.symlink("./usr/link", "../a"),
    debs.hardlink("./usr/hard", "./usr/a", 0o4755),
]


@pytest.mark.parametrize("packing", [".xz", ".gz", ""])
def test_debian_package_is_read(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "demo.deb"
    scripts = {"postinst": "#!/bin/sh\n", "md5sums": "x"}
    debs.write_deb(path, "demo", MEMBERS, control=scripts, packing=packing, Depends="libc6")
    package = read_deb(path, tmp_path / "spool", everything)
    assert (package.name, package.control["Depends"]) == ("demo", "libc6")
    assert package.files == {"postinst": b"#!/bin/sh\n", "md5sums": b"x"}
    assert package.listing == ("", "usr", "usr/a", "usr/b", "usr/c", "usr/link", "usr/hard")
    by_path = {member.path: member for member in package.members}
    assert list(by_path) == list(package.listing[1:])
    assert by_path["usr"].mtime == MTIME
    assert content(by_path["usr/a"]) == b"alpha" * 1000
    assert by_path["usr/a"].mode == 0o4755
    assert by_path["usr/a"].mtime == debs.TIME
    assert content(by_path["usr/b"]) == b""
    assert (by_path["usr/b"].gid, by_path["usr/b"].mode) == (42, 0o640)
    assert content(by_path["usr/c"]) == b"gamma"
    assert (by_path["usr/link"].kind, by_path["usr/link"].target) == (MemberKind.LINK, "../a")
    assert (by_path["usr/hard"].kind, by_path["usr/hard"].target) == (MemberKind.HARD, "usr/a")


def test_skipped_debian_package_members_are_listed_but_not_stored(tmp_path: Path) -> None:
    path = tmp_path / "demo.deb"
    debs.write_deb(path, "demo", MEMBERS)
    package = read_deb(path, tmp_path / "spool", lambda path, kind: path != "usr/a" and bool(kind))
    assert "usr/a" in package.listing
    assert "usr/a" not in {member.path for member in package.members}
    assert (tmp_path / "spool").read_bytes() == b"gamma"


@each_row(
    ("member", "message"),
    [
        (debs.file("../etc/passwd"), "points outside the root"),
        (debs.file("./usr/../../x"), "points outside the root"),
        (debs.file("/etc/passwd"), "points outside the root"),
        (
            (debs.tar_header("./dev/null", kind=tarfile.CHRTYPE), b""),
            "is sparse, or not a file, folder or link",
        ),
        (
            (debs.tar_header("./fifo", kind=tarfile.FIFOTYPE), b""),
            "is sparse, or not a file, folder or link",
        ),
        (
            (debs.tar_header("./ping", xattrs={"SCHILY.xattr.security.capability": "x"}), b""),
            "extended attributes",
        ),
    ],
)
def test_unsafe_members_of_a_debian_package_are_refused(
    tmp_path: Path, member: tuple[tarfile.TarInfo, bytes], message: str
) -> None:
    path = tmp_path / "demo.deb"
    debs.write_deb(path, "demo", [member])
    with pytest.raises(IntegrityError, match=message) as caught:
        read_deb(path, tmp_path / "spool", everything)
    assert str(path) in caught.value.message
    assert caught.value.hint


def test_debian_package_with_zstd_compression_is_refused_with_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "demo.deb"
    debs.write_deb(path, "demo", packing=".zst")
    with pytest.raises(IntegrityError, match=r"data\.tar\.zst has a compression"):
        read_deb(path, tmp_path / "spool", everything)


def test_truncated_debian_package_is_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole.deb"
    debs.write_deb(whole, "demo", MEMBERS)
    data = whole.read_bytes()
    for length in range(0, len(data) - 1, 37):
        path = tmp_path / "cut.deb"
        path.write_bytes(data[:length])
        with pytest.raises(IntegrityError):
            read_deb(path, tmp_path / "spool", everything)


def test_flipped_byte_in_a_debian_package_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "demo.deb"
    debs.write_deb(path, "demo", MEMBERS)
    data = bytearray(path.read_bytes())
    data[-40] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="damaged"):
        read_deb(path, tmp_path / "spool", everything)


def test_file_name_in_a_debian_package_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "demo.deb"
    header = bytearray(debs.tar_bytes([debs.file("./usr/caf_")]))
    header[header.index(b"_")] = 0xE9
    total = sum(header[:148]) + 8 * 32 + sum(header[156:512])
    header[148:156] = f"{total:06o}\0 ".encode()
    control = debs.tar_bytes([debs.file("./control", debs.control_text("demo").encode())])
    path.write_bytes(
        debs.ar_bytes(
            {"debian-binary": b"2.0\n", "control.tar": control, "data.tar": bytes(header)}
        )
    )
    with pytest.raises(IntegrityError, match=r"data\.tar is damaged"):
        read_deb(path, tmp_path / "spool", everything)


def test_file_that_is_not_a_debian_package_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "demo.deb"
    path.write_bytes(b"<html>404</html>")
    with pytest.raises(IntegrityError, match="no ar header"):
        read_deb(path, tmp_path / "spool", everything)
    path.write_bytes(debs.ar_bytes({"debian-binary": b"3.0\n"}))
    with pytest.raises(IntegrityError, match="not a Debian package of format 2"):
        read_deb(path, tmp_path / "spool", everything)
    path.write_bytes(debs.ar_bytes({"debian-binary": b"2.0\n"}))
    with pytest.raises(IntegrityError, match=r"no control\.tar"):
        read_deb(path, tmp_path / "spool", everything)
