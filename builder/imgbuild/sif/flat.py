"""Merges layers into one tar, with whiteouts and hard links applied.

The tar contains each path once: first folders, links and devices, then files in the order of the
layers. No file is written, and each path takes a few hundred bytes of memory.

Layers are read twice: first for names (`skim`), then for contents. Two passes are necessary,
because a path can lead through a link in a lower layer, and a hard link can refer to a file that
another layer hides. The first pass checks the digests of the layers. The second pass checks their
diff IDs, and compares their members with those in the first pass.
"""

# A separate module: an algorithm.
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
from imgbuild.oci.merged import MergedTree, TreeNode
from imgbuild.oci.reader import XATTR, LayerFile, TarEntry, TarReader, open_inflated
from imgbuild.oci.tar import END, padding_size
from imgbuild.sif import skim
from imgbuild.sif.skim import MembersHash
from imgbuild.system.files import require_readable
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import Bytes, Digest, digest_of_file

TYPES = {
    "file": tarfile.REGTYPE,
    "folder": tarfile.DIRTYPE,
    "symlink": tarfile.SYMTYPE,
    "pipe": tarfile.FIFOTYPE,
    "character device": tarfile.CHRTYPE,
    "block device": tarfile.BLKTYPE,
}
TIME_LIMIT = (1 << 32) - 1  # seconds: the latest time of a squashfs
ATTRIBUTES = ("user.", "trusted.", "security.")  # prefixes of attributes in a squashfs
READERS = 2  # layers that are inflated at once, each in its own thread
REMEDY = "remove the layout and build or pull the image again"


class LayerSource(msgspec.Struct, frozen=True, kw_only=True):
    """A layer: a file with digest, size and diff ID, or an uncompressed tar in `data`."""

    path: Path = Path()
    digest: Digest = ""
    diff_id: Digest = ""
    size: Bytes = 0
    data: bytes = b""

    @property
    def file(self) -> LayerFile:
        """The layer as a layer file."""
        return LayerFile(path=self.path, diff_id=self.diff_id)


class FlatTree:
    """The merged tree of several layers. Call `add` with all layers, then `chunks`."""

    def __init__(self) -> None:
        self.tree = MergedTree()
        self._layers: list[LayerSource] = []
        self._seen: list[int] = []  # the hash of the members of each layer

    def add(self, layers: Sequence[LayerSource], *, reporter: Reporter = SILENT_REPORTER) -> None:
        """Add `layers` on top, bottom layer first. Raises IntegrityError if a layer is damaged."""
        total = sum(layer.size for layer in layers)
        with (
            reporter.progress("reading the names of all files", total) as bar,
            ThreadPoolExecutor(READERS) as pool,
        ):
            for layer, entries in zip(layers, pool.map(_entries, layers), strict=True):
                seen = MembersHash()
                for entry in entries:
                    seen.add(entry)
                self._seen.append(seen.value)
                self.tree.add_headers(entries)
                bar.advance(layer.size)
        self._layers += layers

    @property
    def size(self) -> Bytes:
        """The size of all files in bytes. A file with several hard links is counted once."""
        return sum(node.size for node, _ in self._files().values())

    @property
    def newest_time(self) -> int:
        """The latest modification time of all paths, in seconds since 1970."""
        return max((_time(node) for _, node in self.tree.iterate_paths()), default=0)

    @property
    def lost_attributes(self) -> dict[str, str]:
        """The first path for each extended attribute that a squashfs cannot store."""
        first_paths: dict[str, str] = {}
        for path, node in self.tree.iterate_paths():
            for name in node.attributes or ():
                if not name.startswith(ATTRIBUTES):
                    first_paths.setdefault(name, path)
        return first_paths

    def chunks(self, advance: Callable[[int], object] = lambda _: None) -> Iterator[bytes]:
        """Yield the tar, without the root folder.

        `advance` is called with the number of bytes in each chunk.
        """
        others: dict[int, str] = {}
        for path, node in self.tree.iterate_paths():
            if node.kind == "folder":
                yield _header(path, node)
            elif node.kind != "file":
                yield _header(path, node, others.get(id(node)))
                others.setdefault(id(node), path)
        files = self._files()
        for number, (layer, first) in enumerate(zip(self._layers, self._seen, strict=True), 1):
            seen = MembersHash()
            with _open_layer(layer) as stream:
                reader = TarReader(stream, str(layer.path))
                for member, entry in enumerate(reader, 1):
                    seen.add(entry)
                    node_paths = files.pop((number, member), None)
                    if node_paths is not None:
                        if node_paths[0].size != entry.size:
                            _refuse_changed(layer)
                        yield from _file(reader, *node_paths, advance)
            if seen.value != first:
                _refuse_changed(layer)
        yield END

    def _files(self) -> dict[tuple[int, int], tuple[TreeNode, list[str]]]:
        files_by_source: dict[tuple[int, int], tuple[TreeNode, list[str]]] = {}
        for path, node in self.tree.iterate_paths():
            if node.kind == "file":
                files_by_source.setdefault(node.source, (node, []))[1].append(path)
        return files_by_source


def _entries(layer: LayerSource) -> list[TarEntry]:
    if layer.data:
        return list(TarReader(io.BytesIO(layer.data), str(layer.path)))
    _check_layer(layer)
    return skim.layer_entries(layer.file)


def _refuse_changed(layer: LayerSource) -> NoReturn:
    message = f"{layer.path} changed while it was read"
    raise IntegrityError(message, hint=REMEDY)


def _check_layer(layer: LayerSource) -> None:
    with (
        require_readable(layer.path, IntegrityError, hint=REMEDY),
        layer.path.open("rb") as file,
    ):
        actual = digest_of_file(file)
    if actual != layer.digest:
        message = f"{layer.path} has the digest {actual} (expected {layer.digest})"
        raise IntegrityError(message, hint=REMEDY)


@contextlib.contextmanager
def _open_layer(layer: LayerSource) -> Iterator[BinaryIO]:
    if layer.data:
        yield io.BytesIO(layer.data)
        return
    with open_inflated(layer.file) as stream:
        yield stream


def _file(
    reader: TarReader, node: TreeNode, names: Sequence[str], advance: Callable[[int], object]
) -> Iterator[bytes]:
    """Yield the tar of a file: its content at the first path, and hard links at the other paths."""
    first, *others = names
    yield _header(first, node)
    for chunk in reader.content():
        yield chunk
        advance(len(chunk))
    yield bytes(padding_size(node.size))
    for name in others:
        yield _header(name, node, first)


def _time(node: TreeNode) -> int:
    return min(node.mtime, TIME_LIMIT)


def _header(path: str, node: TreeNode, same: str | None = None) -> bytes:
    """Return the header of `node` at `path`, or of a hard link to the earlier path `same`."""
    info = tarfile.TarInfo(path.lstrip("/"))
    info.type = TYPES[node.kind] if same is None else tarfile.LNKTYPE
    info.mode, info.uid, info.gid, info.mtime = node.mode, node.uid, node.gid, _time(node)
    info.size = node.size if info.type == tarfile.REGTYPE else 0
    info.linkname = node.target if same is None else same.lstrip("/")
    info.devmajor, info.devminor = node.device or (0, 0)
    # GNU headers for long and unusual names: mksquashfs 4.5.1 drops the first slash of a link's
    # target in a PAX header. Attributes need PAX; those of links are omitted for that reason.
    if same is None and node.kind != "symlink" and (attributes := _attributes(node)):
        info.pax_headers = attributes
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _attributes(node: TreeNode) -> dict[str, str]:
    """Return the attributes that a squashfs can store, with their PAX names."""
    return {
        XATTR + name: text
        for name, text in (node.attributes or {}).items()
        if name.startswith(ATTRIBUTES)
    }
