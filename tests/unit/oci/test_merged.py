"""Compares layers merged in memory with the same layers unpacked to disk."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
import tempfile
import tracemalloc
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from imgbuild.errors import IntegrityError, WorkFailed
from imgbuild.oci.merged import MergedTree
from imgbuild.oci.reader import TarReader
from imgbuild.system.files import remove_tree
from tests.support.layer_files import unpack_layer_files

KINDS = {
    "folder": tarfile.DIRTYPE,
    "link": tarfile.SYMTYPE,
    "hard": tarfile.LNKTYPE,
    "pipe": tarfile.FIFOTYPE,
    "file": tarfile.REGTYPE,
}
MODES = {stat.S_IFDIR: "folder", stat.S_IFLNK: "symlink", stat.S_IFIFO: "pipe",
         stat.S_IFREG: "file"}  # fmt: skip
NAMES = ("a", "b", "c", ".wh.a", ".wh.b", ".wh..wh..opq")
Given = tuple[str, str, str, int]  # path, kind, content or target, mode
paths = st.lists(st.sampled_from(("a", "b", "c")), max_size=2).map("/".join)
entries = st.builds(
    lambda folder, name, kind, value, mode: (
        f"{folder}/{name}".lstrip("/"),
        "file" if name.startswith(".wh.") else kind,
        value if kind in ("link", "hard") else value.replace("/", ""),
        mode,
    ),
    paths,
    st.sampled_from(NAMES),
    st.sampled_from((*KINDS, "file", "folder")),
    st.sampled_from(("a", "b", "a/b", "/a", "/b/c", "../c", "c/a")),
    st.sampled_from((0o755, 0o700, 0o4755, 0o1777)),
)
layers = st.lists(st.lists(entries, max_size=7), min_size=1, max_size=4)


def layer(given_: list[Given]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as out:
        for path, kind, value, mode in given_:
            info = tarfile.TarInfo(path)
            info.type, info.mode = KINDS[kind], mode
            content = value.encode() if kind == "file" else b""
            info.size = len(content)
            if kind in ("link", "hard"):
                info.linkname = value
            out.addfile(info, io.BytesIO(content))
    return data.getvalue()


def merged(*stack: list[Given]) -> MergedTree:
    tree = MergedTree()
    for given_ in stack:
        tree.add(TarReader(io.BytesIO(layer(given_)), "test"))
    return tree


def facts(tree: MergedTree) -> dict[str, tuple[object, ...]]:
    """Return the compared attributes of each path, and the first name of hard-linked files."""
    first: dict[int, str] = {}
    rows: dict[str, tuple[object, ...]] = {}
    for path, node in tree.iterate_paths():
        mode = None if node.kind == "symlink" else node.mode
        same = first.setdefault(id(node), path) if node.kind != "folder" else path
        rows[path] = (node.kind, mode, node.target, node.digest.hex(), same)
    return rows


def on_disk(root: Path) -> dict[str, tuple[object, ...]]:
    """Return the same attributes of a folder on disk."""
    first: dict[int, str] = {}
    rows: dict[str, tuple[object, ...]] = {}
    walked = [
        os.path.join(base, name) for base, folders, files in os.walk(root)
        for name in (*folders, *files)
    ]  # fmt: skip
    parts = {location: tuple(os.path.relpath(location, root).split("/")) for location in walked}
    for location in sorted(walked, key=lambda each: parts[each]):
        seen = os.lstat(location)
        kind = MODES[stat.S_IFMT(seen.st_mode)]
        path = "/" + "/".join(parts[location])
        mode = None if kind == "symlink" else stat.S_IMODE(seen.st_mode)
        target = str(Path(location).readlink()) if kind == "symlink" else ""
        digest = hashlib.sha256(Path(location).read_bytes()).hexdigest() if kind == "file" else ""
        same = first.setdefault(seen.st_ino, path) if kind != "folder" else path
        rows[path] = (kind, mode, target, digest, same)
    return rows


# A folder replaced by a link, and a folder addressed through that link.
GONE = [("a/a", "folder", "", 0o700), ("a", "link", "b", 0o755), ("a/a/a", "folder", "", 0o755)]
BEHIND = [("a", "link", "b", 0o755), ("a/c", "folder", "", 0o700), ("a", "file", "", 0o644)]
# A folder in place of the link by which it is addressed.
THROUGH = [("a/a", "link", "/a", 0o755), ("a/a/a", "folder", "", 0o755)]
# A whiteout after the folder in the same layer: lower content is removed, the folder kept.
LATE = [[("a/a", "folder", "", 0o755)], [("a", "folder", "", 0o755), (".wh.a", "file", "", 0o644)]]
# A hard link to a file removed by a whiteout of the same layer: one of two names is kept.
SHARED = [
    [("a", "link", "b", 0o755), ("b", "folder", "", 0o755)],
    [("b/a", "hard", "a", 0o755), (".wh.a", "file", "", 0o644)],
]


@settings(max_examples=40)
@given(layers)
@example([GONE])
@example([BEHIND])
@example([THROUGH])
@example(LATE)
@example(SHARED)
def test_merged_layers_have_the_same_files_as_unpacked_layers(stack: list[list[Given]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        blobs = []
        for number, given_ in enumerate(stack):
            blobs.append(folder / f"{number}.tar")
            blobs[-1].write_bytes(layer(given_))
        try:
            unpack_layer_files(blobs, folder / "root")
        except (IntegrityError, WorkFailed):
            return  # not possible on a disk: a hard link to a folder, to itself
        else:
            assert facts(merged(*stack)) == on_disk(folder / "root")
        finally:
            remove_tree(folder / "root")


def test_memory_use_of_merged_layers_per_path_is_bounded() -> None:
    """The comparison of two large images depends on the memory for each path."""
    folders = 50
    stack = [
        [(f"opt/venv/lib/python3.11/site-packages/package_{number}/module_{part}.py",
          "file", f"{number} {part} " * 100, 0o644) for part in range(100)]
        for number in range(folders)
    ]  # fmt: skip
    data = layer([each for part in stack for each in part])
    tree = MergedTree()
    tracemalloc.start()
    try:
        tree.add(TarReader(io.BytesIO(data), "test"))
        taken, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    paths = sum(1 for _ in tree.iterate_paths())
    assert paths == folders * 101 + 5
    assert taken / paths < 700
    assert most - taken < 2 << 20  # content is not kept
