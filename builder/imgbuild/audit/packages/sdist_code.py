"""Writes the Python code of an sdist as a wheel, so that the audit can read it.

The sdist is not built or run, so files that a build would add are missing from the wheel.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from imgbuild.audit.packages.reading import EXCLUDED_FOLDERS
from imgbuild.cache.store import Store
from imgbuild.errors import IntegrityError
from imgbuild.lock.resolution import Wheel
from imgbuild.values import Sha256
from imgbuild.wheel.sdist import read_entries

# The hash of the wheel of an sdist; increase the number with its content.
FACT = "sdist-code-1"
MEMBERS = 100_000
LARGEST_FILE = 16 << 20  # bytes of a file
TOTAL_LIMIT = 256 << 20  # bytes of all files that are read
_EXCLUDED_FOLDERS = EXCLUDED_FOLDERS | {"doc"}  # top-level folders of sdists that are not installed
_NAME = re.compile(r"[\w.+-]+(?:/[\w.+-]+)*")


def code_wheel(
    package: str, version: str, sdist_hash: Sha256, sdist: Callable[[], Path], store: Store
) -> tuple[Wheel, Path]:
    """Return a cached wheel with the code of the sdist that has this hash.

    `sdist` returns the path of the archive, and is called only if the wheel is not cached. Raises
    IntegrityError if the archive cannot be read.
    """
    digest = (store.fact(FACT, sdist_hash) or b"").decode()
    path = store.file(digest) if digest else None
    if path is None:
        with store.scratch() as folder:
            written = folder / "code.whl"
            write_code_wheel(sdist(), written, package, version)
            with written.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            path = store.add_file(written, digest)
        store.put_fact(FACT, sdist_hash, digest.encode())
    wheel = Wheel(
        package=package,
        version=version,
        index="sdist",
        file=f"{package.replace('-', '_')}-{version}-py3-none-any.whl",
        size=path.stat().st_size,
        sha256=digest,
    )
    return wheel, path


def write_code_wheel(sdist: Path, wheel: Path, package: str, version: str) -> None:
    """Write the packages, the main module and the metadata in a .tar file to `wheel`.

    The main module is named after the package. Raises IntegrityError if the sdist cannot be read,
    is too large, or has no PKG-INFO.
    """
    files = _read_sdist(sdist)
    info = f"{package.replace('-', '_')}-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(_code(files, package.replace("-", "_"))):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        archive.writestr(zipfile.ZipInfo(f"{info}/METADATA"), _metadata(files, sdist.name))


def _read_sdist(sdist: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    total = 0
    for number, (member, content) in enumerate(read_entries(sdist, sdist.name), start=1):
        name = member.path.partition("/")[2]
        if number > MEMBERS or member.size > LARGEST_FILE or total > TOTAL_LIMIT:
            message = f"{sdist.name} is too large to read"
            raise IntegrityError(message)
        is_source = name.endswith(".py") or posixpath.basename(name) in ("PKG-INFO", "requires.txt")
        safe = _NAME.fullmatch(name) and ".." not in name.split("/")
        if is_source and safe and member.kind == "file":
            files[name] = b"".join(content())
            total += member.size
    return files


def _code(files: Mapping[str, bytes], module: str) -> Iterator[tuple[str, bytes]]:
    source = [name.removeprefix("src/") for name in files if name.startswith("src/")]
    folder = "src/" if any(name.count("/") == 1 for name in source) else ""
    packages = {
        name.partition("/")[0]
        for name in (source if folder else files)
        if name.count("/") == 1 and name.endswith("/__init__.py")
    }
    for path, data in files.items():
        name = path.removeprefix(folder)
        inside = path.startswith(folder) and name.partition("/")[0] in packages - _EXCLUDED_FOLDERS
        if name.endswith(".py") and (inside or name == f"{module}.py"):
            yield name, data


def _metadata(files: Mapping[str, bytes], sdist: str) -> bytes:
    """Return METADATA of the sdist.

    Older formats store requirements in requires.txt, from which they are added.
    """
    metadata = files.get("PKG-INFO")
    if metadata is None:
        message = f"{sdist} has no PKG-INFO"
        raise IntegrityError(message)
    beside = [files[name] for name in files if name.endswith(".egg-info/requires.txt")]
    headers, separator, text = metadata.partition(b"\n\n")
    if b"\nRequires-Dist:" in headers or not beside:
        return metadata
    lines = "".join(f"\nRequires-Dist: {line}" for line in _required_lines(beside[0].splitlines()))
    return headers + lines.encode() + separator + text


def _required_lines(lines: Iterable[bytes]) -> Iterator[str]:
    """Yield the unconditional requirements: lines of requires.txt before the first section."""
    for line in lines:
        text = line.decode("utf-8", "replace").strip()
        if text.startswith("["):
            return
        if text:
            yield text
