"""RECORD: the list of a wheel's files with their hashes, read and written.

Paths are relative to site-packages, as the specification has them (`../../../bin/tool`).
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import posixpath
from collections.abc import Iterable, Mapping

import msgspec

from imgbuild.wheel.zipformat import refuse

STRONG = ("sha256", "sha384", "sha512")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of RECORD. `digest` is `sha256=…` or empty; `size` in bytes or None."""

    path: str
    digest: str
    size: int | None


def read_record(text: str, label: str) -> dict[str, Row]:
    """The rows of a wheel's RECORD by path; IntegrityError names what cannot be read."""
    rows: dict[str, Row] = {}
    try:
        lines = list(csv.reader(io.StringIO(text), strict=True))
    except csv.Error as error:
        refuse(label, "RECORD", f"cannot be read: {error}")
    for fields in lines:
        if not fields:
            continue
        if len(fields) != 3 or not (fields[2] == "" or fields[2].isdecimal()):
            refuse(label, "RECORD", f"{','.join(fields)!r} is not PATH,HASH,SIZE")
        path, digest, size = fields
        row = Row(path=path, digest=digest, size=int(size) if size else None)
        if rows.setdefault(path, row) != row:
            refuse(label, "RECORD", f"has two different lines for {path!r}")
    return rows


def known_digest(rows: Mapping[str, Row], path: str) -> str | None:
    """The digest that RECORD gives for `path`, if it is of a kind that installers may use."""
    row = rows.get(path)
    if row is None or row.digest.partition("=")[0] not in STRONG:
        return None
    return row.digest


def relative(path: str, site_packages: str) -> str:
    """An installed path as RECORD names it; neither has a leading slash."""
    if path.startswith(site_packages + "/"):
        return path[len(site_packages) + 1 :]
    return posixpath.relpath("/" + path, "/" + site_packages)


def digest(pieces: Iterable[bytes]) -> str:
    """SHA-256 of the joined `pieces` as RECORD writes it: URL-safe base64 without padding."""
    total = hashlib.sha256()
    for piece in pieces:
        total.update(piece)
    return "sha256=" + base64.urlsafe_b64encode(total.digest()).rstrip(b"=").decode()


def write_record(rows: Iterable[Row]) -> bytes:
    """The text of RECORD, sorted by the bytes of the path, with plain newlines."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in sorted(rows, key=lambda row: row.path.encode()):
        writer.writerow((row.path, row.digest, "" if row.size is None else row.size))
    return out.getvalue().encode()
