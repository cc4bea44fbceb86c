"""Creates Debian packages with arbitrary control texts, members and faults."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from imgbuild.lock.resolution import Deb
from imgbuild.values import sha256

TIME = 1_600_000_000
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".xz": lzma.compress,
    ".gz": gzip.compress,
    "": bytes,
    ".zst": lambda data: b"\x28\xb5" + data,
}


def tar_header(
    name: str,
    *,
    kind: bytes = tarfile.REGTYPE,
    mode: int = 0o644,
    target: str = "",
    gid: int = 0,
    xattrs: Mapping[str, str] | None = None,
) -> tarfile.TarInfo:
    """The header of one member of data.tar."""
    header = tarfile.TarInfo(name)
    header.type, header.mode, header.linkname, header.gid, header.mtime = (
        kind,
        mode,
        target,
        gid,
        TIME,
    )
    header.pax_headers = dict(xattrs or {})
    return header


def folder(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return tar_header(name, kind=tarfile.DIRTYPE, mode=mode), b""


def file(
    name: str, data: bytes = b"", mode: int = 0o644, gid: int = 0
) -> tuple[tarfile.TarInfo, bytes]:
    header = tar_header(name, mode=mode, gid=gid)
    header.size = len(data)
    return header, data


def symlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return tar_header(name, kind=tarfile.SYMTYPE, target=target), b""


def hardlink(name: str, target: str, mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    return tar_header(name, kind=tarfile.LNKTYPE, target=target, mode=mode), b""


def control_text(package: str, version: str = "1.0-1", **fields: str) -> str:
    rows = {"Package": package, "Version": version, "Architecture": "amd64", **fields}
    return "".join(f"{name.replace('_', '-')}: {value}\n" for name, value in rows.items())


def write_deb(
    path: Path,
    package: str,
    members: Sequence[tuple[tarfile.TarInfo, bytes]] = (),
    *,
    version: str = "1.0-1",
    control: Mapping[str, str] | None = None,
    packing: str = ".xz",
    **fields: str,
) -> Deb:
    """Write a package. `control` contains scripts and other control files."""
    texts = {"control": control_text(package, version, **fields), **(control or {})}
    parts = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": lzma.compress(
            tar_bytes([file(f"./{name}", text.encode(), 0o755) for name, text in texts.items()])
        ),
        f"data.tar{packing}": PACKERS[packing](tar_bytes(members)),
    }
    data = ar_bytes(parts)
    path.write_bytes(data)
    return Deb(
        file=f"pool/main/{path.name}",
        size=len(data),
        sha256=sha256(data),
        package=package,
        version=version,
        arch="amd64",
    )


def tar_bytes(members: Sequence[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for header, data in members:
            archive.addfile(header, io.BytesIO(data))
    return buffer.getvalue()


def ar_bytes(parts: Mapping[str, bytes]) -> bytes:
    result = b"!<arch>\n"
    for name, data in parts.items():
        result += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
        result += data + b"\n" * (len(data) % 2)
    return result
