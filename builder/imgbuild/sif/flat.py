"""The layers of an image as one tar stream: what a container would see, and nothing else.

Comes in: layers, bottom first, each a file or a few bytes. Goes out: the tree that they make, and
then a tar with each path once: folders first, then links and devices, then files in the order in
which the layers hold them. Nothing is written to disk; a few hundred bytes a path are in memory.

Layers are read twice: once for names (`skim`), once for content. From the top down one reading
would do if nothing in a layer depended on those below; but a path may lead through a link that a
lower layer has, and a hard link may name a file that another layer then hides. Both are right only
when all names are known. Layers are checked against their digests on the first reading, and on the
second their members against those of the first.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NoReturn

import msgspec

from imgbuild.errors import IntegrityError
from imgbuild.oci.merged import Merged, Node
from imgbuild.oci.tar import END, padding
from imgbuild.oci.unpack import XATTR, Entry, Reader, inflated
from imgbuild.sif import skim
from imgbuild.sif.skim import Seen
from imgbuild.system.console import console
from imgbuild.values import Bytes, Digest, digest_of_file

TYPES = {
    "file": tarfile.REGTYPE,
    "folder": tarfile.DIRTYPE,
    "symlink": tarfile.SYMTYPE,
    "pipe": tarfile.FIFOTYPE,
    "character device": tarfile.CHRTYPE,
    "block device": tarfile.BLKTYPE,
}
TIME_LIMIT = (1 << 32) - 1  # seconds: what a squashfs can hold
ATTRIBUTES = ("user.", "trusted.", "security.")  # names of those that a squashfs can hold
READERS = 2  # layers that are inflated at once, each by a thread of its own
REMEDY = "remove the layout and build or pull the image again"


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer of an image: a file and what its manifest says of it, or `data`, a plain tar."""

    path: Path = Path()
    digest: Digest = ""
    size: Bytes = 0
    data: bytes = b""


class Flat:
    """The tree of some layers. `add` all of them, then read `chunks`."""

    def __init__(self) -> None:
        self.tree = Merged()
        self._layers: list[Layer] = []
        self._seen: list[int] = []  # of each layer what `Seen` says of its members

    def add(self, layers: Sequence[Layer]) -> None:
        """Put `layers`, bottom first, on top of what is there; IntegrityError if one is damaged."""
        total = sum(layer.size for layer in layers)
        with (
            console.progress("reading the names of all files", total) as bar,
            ThreadPoolExecutor(READERS) as pool,
        ):
            for layer, entries in zip(layers, pool.map(_entries, layers), strict=True):
                seen = Seen()
                for entry in entries:
                    seen.add(entry)
                self._seen.append(seen.value)
                self.tree.add_headers(entries)
                bar.advance(layer.size)
        self._layers += layers

    @property
    def size(self) -> Bytes:
        """The bytes of all files, each counted once."""
        return sum(node.size for node, _ in self._files().values())

    @property
    def newest(self) -> int:
        """The time of the newest path, in seconds since 1970."""
        return max((_time(node) for _, node in self.tree.walk()), default=0)

    @property
    def lost(self) -> dict[str, str]:
        """Attributes that no squashfs holds, each with the first path that has it."""
        found: dict[str, str] = {}
        for path, node in self.tree.walk():
            for name in node.attributes or ():
                if not name.startswith(ATTRIBUTES):
                    found.setdefault(name, path)
        return found

    def chunks(self, advance: Callable[[int], object] = lambda _: None) -> Iterator[bytes]:
        """The tar, but for the root folder itself; `advance` is told how much content went by."""
        others: dict[int, str] = {}
        for path, node in self.tree.walk():
            if node.kind == "folder":
                yield _header(path, node)
            elif node.kind != "file":
                yield _header(path, node, others.get(id(node)))
                others.setdefault(id(node), path)
        files = self._files()
        for number, (layer, due) in enumerate(zip(self._layers, self._seen, strict=True), 1):
            seen = Seen()
            with _opened(layer) as stream:
                reader = Reader(stream, str(layer.path))
                for member, entry in enumerate(reader, 1):
                    seen.add(entry)
                    found = files.pop((number, member), None)
                    if found is not None:
                        if found[0].size != entry.size:
                            _changed(layer)
                        yield from _file(reader, *found, advance)
            if seen.value != due:
                _changed(layer)
        yield END

    def _files(self) -> dict[tuple[int, int], tuple[Node, list[str]]]:
        """Files by the member that holds their content, each with all its names."""
        found: dict[tuple[int, int], tuple[Node, list[str]]] = {}
        for path, node in self.tree.walk():
            if node.kind == "file":
                found.setdefault(node.source, (node, []))[1].append(path)
        return found


def _entries(layer: Layer) -> list[Entry]:
    """The members of a layer, which is what its digest says."""
    if layer.data:
        return list(Reader(io.BytesIO(layer.data), str(layer.path)))
    _check(layer)
    return skim.entries(layer.path)


def _changed(layer: Layer) -> NoReturn:
    message = f"{layer.path} has changed while it was read"
    raise IntegrityError(message, hint=REMEDY)


def _check(layer: Layer) -> None:
    try:
        with layer.path.open("rb") as file:
            found = digest_of_file(file)
    except OSError as error:
        message = f"cannot read {layer.path}: {error.strerror}"
        raise IntegrityError(message, hint=REMEDY) from error
    if found != layer.digest:
        message = f"{layer.path} has the digest {found}; the manifest says {layer.digest}"
        raise IntegrityError(message, hint=REMEDY)


@contextlib.contextmanager
def _opened(layer: Layer) -> Iterator[BinaryIO]:
    if layer.data:
        yield io.BytesIO(layer.data)
        return
    with inflated(layer.path) as stream:
        yield stream


def _file(
    reader: Reader, node: Node, names: Sequence[str], advance: Callable[[int], object]
) -> Iterator[bytes]:
    """A file under its first name, with its content, and a hard link for each of the others."""
    first, *others = names
    yield _header(first, node)
    for chunk in reader.content():
        yield chunk
        advance(len(chunk))
    yield bytes(padding(node.size))
    for name in others:
        yield _header(name, node, first)


def _time(node: Node) -> int:
    return min(node.mtime, TIME_LIMIT)


def _header(path: str, node: Node, same: str | None = None) -> bytes:
    """The header of `node` at `path`; `same` is the name under which it stands already."""
    info = tarfile.TarInfo(path.lstrip("/"))
    info.type = TYPES[node.kind] if same is None else tarfile.LNKTYPE
    info.mode, info.uid, info.gid, info.mtime = node.mode, node.uid, node.gid, _time(node)
    info.size = node.size if info.type == tarfile.REGTYPE else 0
    info.linkname = node.target if same is None else same.lstrip("/")
    info.devmajor, info.devminor = node.device or (0, 0)
    # Long and odd names as GNU has them: of a link's target that stands in a PAX header, mksquashfs
    # 4.5.1 takes the first slash away. Attributes are PAX's own; links are said to have none.
    if same is None and node.kind != "symlink" and (attributes := _attributes(node)):
        info.pax_headers = attributes
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _attributes(node: Node) -> dict[str, str]:
    """Those of a node's attributes that a squashfs can hold, as PAX names them."""
    return {
        XATTR + name: text
        for name, text in (node.attributes or {}).items()
        if name.startswith(ATTRIBUTES)
    }
