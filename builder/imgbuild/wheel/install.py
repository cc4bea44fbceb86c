"""Computes the files that the installation of a wheel adds to an image.

The content of a member is a slice of the wheel, unless the installation changes the file. The rules
are from PyPA's specification of the binary distribution format, and tests compare the result with
`uv pip install`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from packaging.utils import canonicalize_name

from imgbuild.errors import IntegrityError
from imgbuild.oci.content import FileReader, content_pieces
from imgbuild.oci.tar import FileSlice, LayerMember
from imgbuild.system.boundary import convert_read_errors
from imgbuild.wheel.archive import WheelArchive, read_wheel
from imgbuild.wheel.record import (
    RecordRow,
    read_record,
    record_digest,
    record_path,
    strong_digest,
    write_record,
)
from imgbuild.wheel.scripts import (
    PLACEHOLDER,
    EntryPoint,
    entry_points,
    launcher_script,
    rewrite_shebang,
)
from imgbuild.wheel.zipformat import REMEDY, ZipMember, refuse_wheel

INSTALLER = b"imgbuild\n"
# Files that an installer writes about its own run; those in the wheel are ignored.
REPLACED_FILES = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")

# Bytecode for one version of Python, made from sources next to it. (A .pyc elsewhere is a module.)
BYTECODE = re.compile(r"(^|/)__pycache__/[^/]+\.pyc$")


class InstallScheme(msgspec.Struct, frozen=True, kw_only=True):
    """The folder for each type of file, without leading slash.

    `interpreter` is an absolute path.
    """

    prefix: str
    purelib: str
    headers: str
    interpreter: str


class _InstalledFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to install, and its path in the image.

    `digest` is as in RECORD, or None if unknown.
    """

    path: str
    content: bytes | FileSlice
    size: int
    mode: int
    digest: str | None


def install_scheme(prefix: str, python: str) -> InstallScheme:
    """Return the folders of the environment at `prefix` ("/opt/venv") for `python` ("3.11")."""
    root = prefix.strip("/")
    return InstallScheme(
        prefix=root,
        purelib=f"{root}/lib/python{python}/site-packages",
        headers=f"{root}/include/site/python{python}",
        interpreter=f"/{root}/bin/python",
    )


def installed_members(
    path: Path,
    *,
    prefix: str,
    python: str,
    omit: frozenset[str] = frozenset(),
    label: str | None = None,
) -> tuple[LayerMember, ...]:
    """Return the files that the installation of the wheel at `path` adds, sorted by path.

    `omit` are installed paths (without leading slash) to omit, also from RECORD. `label` is the
    file name of the wheel, if it differs from `path`. Raises IntegrityError if the wheel is unsafe
    or inconsistent.
    """
    with convert_read_errors(label or path.name, hint=REMEDY):
        return _installed_members(
            read_wheel(path, label=label), install_scheme(prefix, python), omit
        )


def _installed_members(
    archive: WheelArchive, places: InstallScheme, omit: frozenset[str]
) -> tuple[LayerMember, ...]:
    included = {path: file for path, file in _files(archive, places).items() if path not in omit}
    record = f"{places.purelib}/{archive.dist_info}/RECORD"
    rows = [
        RecordRow(
            path=record_path(path, places.purelib),
            digest=_digest(archive, file),
            size=file.size,
        )
        for path, file in included.items()
    ]
    rows.append(RecordRow(path=f"{archive.dist_info}/RECORD", digest="", size=None))
    included[record] = _generated_file(record, write_record(rows))
    return tuple(_member(included[name]) for name in sorted(included, key=str.encode))


def join_wheels(
    wheels: Iterable[tuple[str, Sequence[LayerMember]]], *, labels: Mapping[str, str] | None = None
) -> tuple[LayerMember, ...]:
    """Merge `wheels` (SHA-256 and members of each) into the members of a layer, sorted by path.

    If two wheels have the same file, the file of the wheel with the lower SHA-256 is kept. Raises
    IntegrityError if the contents differ, with the names of the wheels from `labels` (SHA-256 →
    file name).
    """
    owners: dict[str, tuple[str, LayerMember]] = {}
    with FileReader() as files:
        for sha256, members in sorted(wheels, key=lambda wheel: wheel[0]):
            for member in members:
                owner, other = owners.setdefault(member.path, (sha256, member))
                if other is not member and not _is_same(other, member, files):
                    names = " and ".join((labels or {}).get(key, key) for key in (owner, sha256))
                    message = f"{names} install /{member.path} with different contents"
                    hint = "add a rule under `drop` in matrix.yaml to omit one of the files"
                    raise IntegrityError(message, hint=hint)
    return tuple(owners[path][1] for path in sorted(owners, key=str.encode))


def _is_same(first: LayerMember, other: LayerMember, files: FileReader) -> bool:
    if first.size != other.size:
        return False
    digests = {
        record_digest(content_pieces(member.content or b"", member.size, member.path, files))
        for member in (first, other)
    }
    return len(digests) == 1


def _member(file: _InstalledFile) -> LayerMember:
    return LayerMember(path=file.path, mode=file.mode, size=file.size, content=file.content)


def _generated_file(path: str, content: bytes, *, mode: int = 0o644) -> _InstalledFile:
    return _InstalledFile(path=path, content=content, size=len(content), mode=mode, digest=None)


def _files(archive: WheelArchive, places: InstallScheme) -> dict[str, _InstalledFile]:
    text = archive.text("RECORD")
    if text is None:
        refuse_wheel(archive.label, None, f"has no {archive.dist_info}/RECORD")
    rows = read_record(text, archive.label)
    files: dict[str, _InstalledFile] = {}
    entries = entry_points(archive.text("entry_points.txt") or "", archive.label)
    launchers = {f"{places.prefix}/bin/{entry.name}": entry for entry in entries}
    for file in _sources(archive, places, rows, launchers):
        _add_file(archive, files, file)
    for path, entry in launchers.items():
        _add_file(
            archive,
            files,
            _generated_file(path, launcher_script(entry, places.interpreter), mode=0o755),
        )
    installer = f"{places.purelib}/{archive.dist_info}/INSTALLER"
    _add_file(archive, files, _generated_file(installer, INSTALLER))
    return files


def _add_file(
    archive: WheelArchive, files: dict[str, _InstalledFile], file: _InstalledFile
) -> None:
    """Add `file` to `files`. Raises IntegrityError if the path exists with different content."""
    other = files.setdefault(file.path, file)
    if other is not file and _bytes(archive, other) != _bytes(archive, file):
        refuse_wheel(archive.label, file.path, "is installed twice, with different contents")


def _bytes(archive: WheelArchive, file: _InstalledFile) -> bytes:
    with FileReader() as files:
        return b"".join(_pieces(archive, file, files))


def _pieces(archive: WheelArchive, file: _InstalledFile, files: FileReader) -> Iterator[bytes]:
    return content_pieces(file.content, file.size, f"{archive.label}: {file.path!r}", files)


def _digest(archive: WheelArchive, file: _InstalledFile) -> str:
    """Return the digest in the wheel's RECORD, or the computed digest if RECORD has none."""
    if file.digest is not None:
        return file.digest
    with FileReader() as files:
        return record_digest(_pieces(archive, file, files))


def _sources(
    archive: WheelArchive,
    places: InstallScheme,
    rows: Mapping[str, RecordRow],
    launchers: Mapping[str, EntryPoint],
) -> Iterator[_InstalledFile]:
    """Yield the files of the wheel, without scripts that launchers replace."""
    data = archive.dist_info.removesuffix(".dist-info") + ".data/"
    replaced = {f"{archive.dist_info}/{name}" for name in REPLACED_FILES}
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
            if b"".join(_first_bytes(archive, member)).startswith(PLACEHOLDER):
                content = archive.content(path) or b""
                yield _generated_file(
                    place, rewrite_shebang(content, places.interpreter), mode=mode
                )
                continue
        yield _InstalledFile(
            path=place,
            content=archive.place(member),
            size=member.size,
            mode=mode,
            digest=strong_digest(rows, path),
        )


def _first_bytes(archive: WheelArchive, member: ZipMember) -> Iterator[bytes]:
    """Yield the first bytes of the member's content, at least the length of `PLACEHOLDER`."""
    seen = 0
    for chunk in archive.chunks(member):
        yield chunk
        seen += len(chunk)
        if seen >= len(PLACEHOLDER):
            return


def _data_place(archive: WheelArchive, places: InstallScheme, inner: str) -> tuple[str, bool]:
    """Return the path in the image for a file in `.data/`, and whether the file is a script."""
    key, _, rest = inner.partition("/")
    if not rest:
        refuse_wheel(archive.label, inner, "is directly in .data/ (expected one of its folders)")
    if key in ("purelib", "platlib"):
        return f"{places.purelib}/{rest}", False
    if key == "scripts":
        return f"{places.prefix}/bin/{rest}", True
    if key == "headers":
        return f"{places.headers}/{canonicalize_name(archive.name)}/{rest}", False
    if key == "data":
        return f"{places.prefix}/{rest}", False
    return refuse_wheel(
        archive.label, inner, f"is in .data/{key}, which is not a known kind of file"
    )
