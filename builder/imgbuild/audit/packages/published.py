"""Facts about wheels that come with a release of imgbuild, wheels.zip (separate: a file format).

The file is a zip archive of XZ streams with MessagePack: `KIND/SHA256` has one fact about a wheel,
`modules/PACKAGE` the modules of all wheels of a package, since most are the same in many of its
versions. Its comment is the digest of the code that read the wheels; a file of other code is
ignored. A source checkout has no such file until `make facts` writes it.
"""

from __future__ import annotations

import io
import lzma
import zipfile
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path

import msgspec

from imgbuild.codec import write_bytes
from imgbuild.system.code_digest import digest_in
from imgbuild.values import Sha256

READER = "imgbuild.audit.packages.reading"
_MADE = (1980, 1, 1, 0, 0, 0)  # the oldest time of a zip file: no time is recorded
_FILTERS = ({"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 64 << 20},)
_BROKEN = (OSError, zipfile.BadZipFile, lzma.LZMAError, EOFError, NotImplementedError, ValueError)
# Module → its different facts in the versions of a package, each with the wheels it is true of.
_Versions = dict[str, list[tuple[msgspec.Raw, list[Sha256]]]]


class PublishedWheel(msgspec.Struct, frozen=True):
    """What is published about one wheel: kind → MessagePack, and module → MessagePack."""

    package: str
    kinds: Mapping[str, bytes]
    modules: Mapping[str, msgspec.Raw]


class PublishedFacts:
    """The facts in one file. Not safe for threads."""

    def __init__(self, archive: zipfile.ZipFile | None) -> None:
        self._archive = archive
        self._names = frozenset(archive.namelist()) if archive is not None else frozenset()
        self._modules: tuple[str, _Versions] = ("", {})

    @classmethod
    def open(cls, path: Path) -> PublishedFacts:
        """The facts at `path`; none if the file is absent, damaged, or read by other code."""
        try:
            archive = zipfile.ZipFile(path)
        except _BROKEN:
            return cls(None)
        if archive.comment != reader_digest():
            archive.close()
            return cls(None)
        return cls(archive)

    def __len__(self) -> int:
        return len(self._names)

    def fact(self, kind: str, sha256: Sha256) -> bytes | None:
        """The MessagePack of one fact about a wheel; None if it is missing or damaged."""
        return self._read(f"{kind}/{sha256}")

    def modules(self, package: str, sha256: Sha256) -> dict[str, msgspec.Raw]:
        """Module → MessagePack of one wheel; empty if it has none or they are damaged."""
        return {
            module: raw
            for module, versions in self._versions(package).items()
            for raw, wheels in versions
            if sha256 in wheels
        }

    def _versions(self, package: str) -> _Versions:
        if self._modules[0] != package:
            data = self._read(f"modules/{package}")
            try:
                versions = msgspec.msgpack.decode(data, type=_Versions) if data is not None else {}
            except msgspec.MsgspecError:
                versions = {}
            self._modules = (package, versions)
        return self._modules[1]

    def _read(self, name: str) -> bytes | None:
        if self._archive is None or name not in self._names:
            return None
        try:
            return lzma.decompress(self._archive.read(name))
        except _BROKEN:
            return None


def published_path() -> Path:
    """Where the facts lie in the installed package."""
    # Not by files.data, which would make cached audit reports depend on this file.
    return Path(str(resources.files("imgbuild")), "data", "facts", "wheels.zip")


@lru_cache
def published_facts() -> PublishedFacts:
    """The facts that came with this imgbuild."""
    return PublishedFacts.open(published_path())


@lru_cache
def reader_digest() -> bytes:
    """The digest of the code that reads wheels, for any version of Python.

    It can be the same for all of them: what only some can parse is not published.
    """
    return digest_in(resources.files("imgbuild"), (READER,), (0, 0)).encode()


def write_facts(path: Path, facts: Mapping[Sha256, PublishedWheel]) -> None:
    """Write the facts of wheels to `path`: the same bytes for the same facts."""
    parts: dict[str, bytes] = {}
    modules: dict[str, dict[str, dict[bytes, list[Sha256]]]] = {}
    for sha256, wheel in sorted(facts.items()):
        parts |= {f"{kind}/{sha256}": data for kind, data in wheel.kinds.items()}
        for module, raw in wheel.modules.items():
            versions = modules.setdefault(wheel.package, {}).setdefault(module, {})
            versions.setdefault(bytes(raw), []).append(sha256)
    for package, package_modules in modules.items():
        ordered: _Versions = {
            module: [(msgspec.Raw(raw), wheels) for raw, wheels in versions.items()]
            for module, versions in sorted(package_modules.items())
        }
        parts[f"modules/{package}"] = msgspec.msgpack.encode(ordered)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = reader_digest()
        for name, data in sorted(parts.items()):
            packed = lzma.compress(data, lzma.FORMAT_XZ, lzma.CHECK_CRC32, filters=_FILTERS)
            archive.writestr(zipfile.ZipInfo(name, _MADE), packed)
    write_bytes(path, buffer.getvalue())
