"""Reads and writes RECORD of a wheel, which lists files with hashes and sizes.

Paths are relative to site-packages (`../../../bin/tool`).
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import posixpath
import re
from collections.abc import Iterable, Mapping

import msgspec

from imgbuild.wheel.zipformat import refuse_wheel

SIZE = re.compile(r"[0-9]{0,20}")
STRONG_HASHES = ("sha256", "sha384", "sha512")


class RecordRow(msgspec.Struct, frozen=True, kw_only=True):
    """A line of RECORD. `digest` is `sha256=…` or empty, and `size` is in bytes or None."""

    path: str
    digest: str
    size: int | None


def read_record(text: str, label: str) -> dict[str, RecordRow]:
    """Return the rows of a wheel's RECORD by path. Raises IntegrityError for an invalid line."""
    rows: dict[str, RecordRow] = {}
    try:
        lines = list(csv.reader(io.StringIO(text), strict=True))
    except csv.Error as error:
        refuse_wheel(label, "RECORD", f"cannot be read: {error}")
    for fields in lines:
        if not fields:
            continue
        if len(fields) != 3 or not SIZE.fullmatch(fields[2]):
            refuse_wheel(
                label, "RECORD", f"invalid line: {','.join(fields)!r} (expected PATH,HASH,SIZE)"
            )
        path, digest, size = fields
        row = RecordRow(path=path, digest=digest, size=int(size) if size else None)
        if rows.setdefault(path, row) != row:
            refuse_wheel(label, "RECORD", f"has two different lines for {path!r}")
    return rows


def strong_digest(rows: Mapping[str, RecordRow], path: str) -> str | None:
    """Return the digest of `path` in RECORD, or None if it is missing or weaker than SHA-256."""
    row = rows.get(path)
    if row is None or row.digest.partition("=")[0] not in STRONG_HASHES:
        return None
    return row.digest


def record_path(path: str, site_packages: str) -> str:
    """Return the path in RECORD of the installed file `path`.

    Both arguments have no leading slash.
    """
    if path.startswith(site_packages + "/"):
        return path[len(site_packages) + 1 :]
    return posixpath.relpath("/" + path, "/" + site_packages)


def record_digest(pieces: Iterable[bytes]) -> str:
    """Return the SHA-256 of the joined `pieces` as in RECORD: URL-safe base64 without padding."""
    total = hashlib.sha256()
    for piece in pieces:
        total.update(piece)
    return "sha256=" + base64.urlsafe_b64encode(total.digest()).rstrip(b"=").decode()


def write_record(rows: Iterable[RecordRow]) -> bytes:
    """Return the content of RECORD: `rows` in byte order of the paths, with Unix newlines."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in sorted(rows, key=lambda row: row.path.encode()):
        writer.writerow((row.path, row.digest, "" if row.size is None else row.size))
    return out.getvalue().encode()
