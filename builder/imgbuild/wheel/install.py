"""What a wheel looks like once installed: the members that it adds to an image.

Comes in: a wheel, the prefix of a virtual environment, the Python version. Goes out: members whose
content is a slice of the wheel wherever installing does not change it. The rules are those of the
binary distribution format; `uv pip install` of the same wheels is the oracle of the tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from packaging.utils import canonicalize_name

from imgbuild.errors import IntegrityError
from imgbuild.oci.content import Files, pieces
from imgbuild.oci.tar import Member, Slice
from imgbuild.wheel.archive import Archive, read
from imgbuild.wheel.record import Row, digest, known_digest, read_record, relative, write_record
from imgbuild.wheel.scripts import PLACEHOLDER, EntryPoint, entry_points, launcher, rewritten
from imgbuild.wheel.zipformat import ZipMember, refuse

INSTALLER = b"imgbuild\n"
# Written by installers about how they were called; what a wheel says there is not true here.
REPLACED = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")

# Made by one Python of one version from sources that lie beside it. (A .pyc elsewhere is a module.)
BYTECODE = re.compile(r"(^|/)__pycache__/[^/]+\.pyc$")


class Scheme(msgspec.Struct, frozen=True, kw_only=True):
    """Where the kinds of files go. Paths without leading slash; `interpreter` is absolute."""

    prefix: str
    purelib: str
    headers: str
    interpreter: str


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the wheel, where it goes, and what is known of it."""

    path: str
    content: bytes | Slice
    size: int
    mode: int
    digest: str | None


def scheme(prefix: str, python: str) -> Scheme:
    """The paths of a virtual environment at `prefix` ("/opt/venv") for `python` ("3.11")."""
    root = prefix.strip("/")
    return Scheme(
        prefix=root,
        purelib=f"{root}/lib/python{python}/site-packages",
        headers=f"{root}/include/site/python{python}",
        interpreter=f"/{root}/bin/python",
    )


def installed(
    path: Path,
    *,
    prefix: str,
    python: str,
    omit: frozenset[str] = frozenset(),
    label: str | None = None,
) -> tuple[Member, ...]:
    """The files that installing the wheel at `path` adds, sorted by path; no folders.

    `omit` holds installed paths to leave out, without leading slash; they leave RECORD too. `label`
    is the wheel's file name where `path` is not called so. IntegrityError for a wheel that is
    unsafe or contradicts itself.
    """
    archive = read(path, label=label)
    places = scheme(prefix, python)
    kept = {path: file for path, file in _files(archive, places).items() if path not in omit}
    record = f"{places.purelib}/{archive.dist_info}/RECORD"
    rows = [
        Row(
            path=relative(path, places.purelib),
            digest=_digest(archive, file),
            size=file.size,
        )
        for path, file in kept.items()
    ]
    rows.append(Row(path=f"{archive.dist_info}/RECORD", digest="", size=None))
    kept[record] = _generated(record, write_record(rows))
    return tuple(_member(kept[name]) for name in sorted(kept, key=str.encode))


def joined(
    wheels: Iterable[tuple[str, Sequence[Member]]], *, labels: Mapping[str, str] | None = None
) -> tuple[Member, ...]:
    """The members of several wheels, each with its sha256, in one layer, sorted by path.

    A path that two wheels ship with the same bytes is kept once, as the lower sha256 has it;
    IntegrityError, naming the wheels by `labels`, if the bytes differ.
    """
    found: dict[str, tuple[str, Member]] = {}
    with Files() as files:
        for sha256, members in sorted(wheels, key=lambda wheel: wheel[0]):
            for member in members:
                owner, other = found.setdefault(member.path, (sha256, member))
                if other is not member and not _same(other, member, files):
                    names = " and ".join((labels or {}).get(key, key) for key in (owner, sha256))
                    message = f"{names} both install /{member.path}, with different contents"
                    hint = "say in matrix.yaml, under `drop`, which package's file is left out"
                    raise IntegrityError(message, hint=hint)
    return tuple(found[path][1] for path in sorted(found, key=str.encode))


def _same(one: Member, other: Member, files: Files) -> bool:
    if one.size != other.size:
        return False
    digests = {
        digest(pieces(member.content or b"", member.size, member.path, files))
        for member in (one, other)
    }
    return len(digests) == 1


def _member(file: _File) -> Member:
    return Member(path=file.path, mode=file.mode, size=file.size, content=file.content)


def _generated(path: str, content: bytes, *, mode: int = 0o644) -> _File:
    return _File(path=path, content=content, size=len(content), mode=mode, digest=None)


def _files(archive: Archive, places: Scheme) -> dict[str, _File]:
    """Everything but RECORD, by its path in the image."""
    text = archive.text("RECORD")
    if text is None:
        refuse(archive.label, None, f"has no {archive.dist_info}/RECORD")
    rows = read_record(text, archive.label)
    files: dict[str, _File] = {}
    entries = entry_points(archive.text("entry_points.txt") or "", archive.label)
    launchers = {f"{places.prefix}/bin/{entry.name}": entry for entry in entries}
    for file in _sources(archive, places, rows, launchers):
        _add(archive, files, file)
    for path, entry in launchers.items():
        _add(archive, files, _generated(path, launcher(entry, places.interpreter), mode=0o755))
    installer = f"{places.purelib}/{archive.dist_info}/INSTALLER"
    _add(archive, files, _generated(installer, INSTALLER))
    return files


def _add(archive: Archive, files: dict[str, _File], file: _File) -> None:
    """Add `file`; two sources of one path must have the same bytes."""
    other = files.setdefault(file.path, file)
    if other is not file and _bytes(archive, other) != _bytes(archive, file):
        refuse(archive.label, file.path, "would be written twice, with different contents")


def _bytes(archive: Archive, file: _File) -> bytes:
    with Files() as files:
        return b"".join(_pieces(archive, file, files))


def _pieces(archive: Archive, file: _File, files: Files) -> Iterator[bytes]:
    return pieces(file.content, file.size, f"{archive.label}: {file.path!r}", files)


def _digest(archive: Archive, file: _File) -> str:
    """As the wheel's RECORD has it, or else computed."""
    if file.digest is not None:
        return file.digest
    with Files() as files:
        return digest(_pieces(archive, file, files))


def _sources(
    archive: Archive,
    places: Scheme,
    rows: Mapping[str, Row],
    launchers: Mapping[str, EntryPoint],
) -> Iterator[_File]:
    """The wheel's own files, placed; a script gives way to the launcher of its name."""
    data = archive.dist_info.removesuffix(".dist-info") + ".data/"
    replaced = {f"{archive.dist_info}/{name}" for name in REPLACED}
    for path, member in archive.members.items():
        if path in replaced or BYTECODE.search(path):
            continue
        mode = 0o755 if member.mode & 0o111 else 0o644
        place, is_script = f"{places.purelib}/{path}", False
        if path.startswith(data):
            place, is_script = _data_place(archive, places, path.removeprefix(data))
        if is_script:
            if place in launchers:
                continue
            mode = 0o755
            if b"".join(_start(archive, member)).startswith(PLACEHOLDER):
                content = archive.content(path) or b""
                yield _generated(place, rewritten(content, places.interpreter), mode=mode)
                continue
        yield _File(
            path=place,
            content=archive.place(member),
            size=member.size,
            mode=mode,
            digest=known_digest(rows, path),
        )


def _start(archive: Archive, member: ZipMember) -> Iterator[bytes]:
    """The first piece of the member's content, long enough to tell `PLACEHOLDER`."""
    seen = 0
    for chunk in archive.chunks(member):
        yield chunk
        seen += len(chunk)
        if seen >= len(PLACEHOLDER):
            return


def _data_place(archive: Archive, places: Scheme, inner: str) -> tuple[str, bool]:
    """Where a file of `.data/` goes, and whether it is a script."""
    key, _, rest = inner.partition("/")
    if not rest:
        refuse(archive.label, inner, "lies in .data/ and in none of its folders")
    if key in ("purelib", "platlib"):
        return f"{places.purelib}/{rest}", False
    if key == "scripts":
        return f"{places.prefix}/bin/{rest}", True
    if key == "headers":
        return f"{places.headers}/{canonicalize_name(archive.name)}/{rest}", False
    if key == "data":
        return f"{places.prefix}/{rest}", False
    return refuse(archive.label, inner, f"lies in .data/{key}, which is no known kind of file")
