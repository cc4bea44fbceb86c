"""Merges the file systems of layers in memory, with the metadata of every path.

A tree node contains attributes to compare (type, mode, owner, link target, extended attributes,
sha256 of the content), the layer and the member. Whiteouts, hard links and links in folder paths
are handled as in `unpack`. Each path takes a few hundred bytes of memory. No files are written.
"""

from __future__ import annotations

import collections
import hashlib
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

from imgbuild.errors import IntegrityError
from imgbuild.oci.reader import TarEntry, TarReader, paths_hidden_by
from imgbuild.oci.tar import MTIME
from imgbuild.oci.tree import FOLDER_MODE, LINK_LIMIT

KINDS = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.CONTTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "symlink",
    tarfile.FIFOTYPE: "pipe",
    tarfile.CHRTYPE: "character device",
    tarfile.BLKTYPE: "block device",
}
REMEDY = "the image is damaged or malicious"
NODE_LIMIT = 1 << 21


class TreeNode:
    """A file, folder or link. A file with several hard links is a single node."""

    __slots__ = (
        "attributes", "children", "device", "digest", "gid", "kind",
        "layer", "mode", "mtime", "names", "size", "source", "target", "uid",
    )  # fmt: skip

    def __init__(
        self, kind: str, layer: int, entry: TarEntry | None = None, member: int = 0
    ) -> None:
        self.kind = kind
        self.layer = layer  # the last layer that wrote it, or something below it
        self.source = (layer, member)  # of the layer and of the member, both counted from 1
        self.mode = entry.mode if entry else FOLDER_MODE
        self.uid = entry.uid if entry else 0
        self.gid = entry.gid if entry else 0
        self.mtime = entry.mtime if entry else MTIME
        self.size = entry.size if entry else 0
        self.target = entry.target if entry and kind == "symlink" else ""
        self.device = entry.device if entry and "device" in kind else None
        self.attributes = entry.xattrs if entry and entry.xattrs else None
        self.digest = b""
        self.names = 1
        self.children: dict[str, TreeNode] | None = {} if kind == "folder" else None


class MergedTree:
    """The merged file system of layers. Each call of `add` applies a layer on top."""

    def __init__(self) -> None:
        self.root = TreeNode("folder", 0)
        self._layers = 0
        self._member = 0
        self._nodes = 0
        # Names that the current layer wrote, by the folder's children: two names may share a node.
        self._own: dict[int, tuple[dict[str, TreeNode], set[str]]] = {}

    def add(
        self,
        reader: TarReader,
        *,
        advance: Callable[[int], object] = lambda _: None,
        also: Callable[[str], Callable[[bytes], object] | None] = lambda _: None,
    ) -> None:
        """Apply the members of a layer.

        `advance` is called with the number of content bytes read. `also` is called with the path of
        each file ("/etc/passwd"), and returns None or a function to call with the content.
        """
        self._begin_layer()
        for entry in reader:
            node = self._apply_entry(entry)
            if node is not None and node.kind == "file" and entry.type != tarfile.LNKTYPE:
                path = "/".join(_parts(entry.path))
                _feed_content(node, reader, advance, also(f"/{path}"))

    def add_headers(self, entries: Iterable[TarEntry]) -> None:
        """Apply the headers of a layer's members, without reading contents."""
        self._begin_layer()
        for entry in entries:
            self._apply_entry(entry)

    def find_node(self, path: str) -> TreeNode | None:
        """Return the node at `path`, or None.

        Links are followed in its folders, but not at the end.
        """
        *above, last = _parts(path) or ("",)
        folder = self._resolve_folders(tuple(above), make=False)
        return (folder[-1].children or {}).get(last) if folder else None

    def iterate_paths(self) -> Iterator[tuple[str, TreeNode]]:
        """Yield every path except the root, each folder before its content."""
        todo = [("", self.root)]
        while todo:
            path, node = todo.pop()
            if path:
                yield path, node
            below = node.children or {}
            todo += [(f"{path}/{name}", below[name]) for name in sorted(below, reverse=True)]

    # -- one member

    def _begin_layer(self) -> None:
        self._layers += 1
        self._member = 0
        self._own.clear()

    def _apply_entry(self, entry: TarEntry) -> TreeNode | None:
        """Apply a member. Returns the node, or None for a folder or a whiteout."""
        self._member += 1
        parts = _parts(entry.path)
        hidden = paths_hidden_by(parts, self._names)
        if hidden is not None:
            self._apply_whiteout(hidden)
        elif KINDS.get(entry.type) == "folder":
            self._folder(parts, entry)
        elif parts:
            parent = self._parent(parts[:-1])
            node = self._node(entry)
            self._place(parent, parts[-1], node)
            return node
        return None

    def _node(self, entry: TarEntry) -> TreeNode:
        if entry.type == tarfile.LNKTYPE:
            *above, last = _parts(entry.target) or ("",)
            folder = self._resolve_folders(tuple(above), make=False)
            node = folder[-1].children.get(last) if folder and folder[-1].children else None
            if node is None or node.kind == "folder":
                message = f"{entry.path!r} is a hard link to {entry.target!r}, which is not a file"
                raise IntegrityError(message, hint=REMEDY)
            node.names += 1
            return node
        kind = KINDS.get(entry.type)
        if kind is None:
            message = f"{entry.path!r} has the unknown type {entry.type!r}"
            raise IntegrityError(message, hint="use a Linux image")
        return TreeNode(kind, self._layers, entry, self._member)

    def _folder(self, parts: tuple[str, ...], entry: TarEntry) -> None:
        node = TreeNode("folder", self._layers, entry, self._member)
        if not parts:
            node.children, self.root = self.root.children, node
            return
        parent = self._parent(parts[:-1])
        old = (parent.children or {}).get(parts[-1])
        if old is not None and old.kind == "folder":
            node.children = old.children
        self._place(parent, parts[-1], node)

    def _place(self, parent: TreeNode, name: str, node: TreeNode) -> None:
        node.layer = self._layers
        children = parent.children if parent.children is not None else {}
        self._nodes += 1
        if self._nodes > NODE_LIMIT:
            _refuse_entry((name,), f"exceeds the limit of {NODE_LIMIT} paths")
        self._own.setdefault(id(children), (children, set()))[1].add(name)
        old = children.get(name)
        if old is not None and old is not node:
            old.names -= 1
        elif old is node:
            node.names -= 1
        children[sys.intern(name)] = node

    def _names(self, parts: tuple[str, ...]) -> list[str]:
        folder = self._resolve_folders(parts, make=False)
        return list(folder[-1].children or ()) if folder else []

    def _apply_whiteout(self, hidden: Iterable[tuple[str, ...]]) -> None:
        for *above, name in hidden:
            folder = self._resolve_folders(tuple(above), make=False)
            below = (folder[-1].children if folder else None) or {}
            if name in below:
                self._hide_entries(below, name)

    def _hide_entries(self, siblings: dict[str, TreeNode], name: str) -> None:
        """Remove entries of lower layers under `name`, and keep entries of this layer."""
        node = siblings[name]
        for child in list(node.children or ()):
            self._hide_entries(node.children or {}, child)
        if node.kind == "folder":
            mine = node.layer == self._layers
        else:
            mine = name in self._own.get(id(siblings), (siblings, ()))[1]
        if not mine:
            node.names -= 1
            del siblings[name]

    # -- folders

    def _parent(self, parts: tuple[str, ...]) -> TreeNode:
        """Return the folder at `parts`, created if missing, and mark it as part of this layer."""
        walked = self._resolve_folders(parts, make=True)
        for node in walked:
            node.layer = self._layers
        return walked[-1]

    def _resolve_folders(self, parts: tuple[str, ...], *, make: bool) -> list[TreeNode]:
        """Return the folders from the root to `parts`, with links resolved.

        Returns [] if one is missing.
        """
        stack = [self.root]
        todo = collections.deque(parts)
        links = 0
        while todo:
            part = todo.popleft()
            if part == "..":
                del stack[max(1, len(stack) - 1) :]
                continue
            node = (stack[-1].children or {}).get(part)
            if node is None:
                if not make:
                    return []
                node = TreeNode("folder", self._layers)
                self._place(stack[-1], part, node)
            if node.kind == "folder":
                stack.append(node)
                continue
            if node.kind != "symlink":
                _refuse_entry(parts, f"has the parent {part}, which is a {node.kind}")
            links += 1
            if links > LINK_LIMIT:
                _refuse_entry(parts, "has too many levels of symbolic links")
            if node.target.startswith("/"):
                del stack[1:]
            todo.extendleft(
                piece for piece in reversed(node.target.split("/")) if piece not in ("", ".")
            )
        return stack


def _feed_content(
    node: TreeNode,
    reader: TarReader,
    advance: Callable[[int], object],
    also: Callable[[bytes], object] | None,
) -> None:
    hashed = hashlib.sha256()
    for chunk in reader.content():
        hashed.update(chunk)
        advance(len(chunk))
        if also is not None:
            also(chunk)
    node.digest = hashed.digest()


def _parts(path: str) -> tuple[str, ...]:
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts or "\0" in path:
        _refuse_entry(parts, "points outside the image")
    return parts


def _refuse_entry(parts: tuple[str, ...], text: str) -> NoReturn:
    message = f"{'/'.join(parts)!r} {text}"
    raise IntegrityError(message, hint=REMEDY)
