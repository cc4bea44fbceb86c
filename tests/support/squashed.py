"""Lists the contents of a squashfs with unsquashfs, without root or a mount."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import BinaryIO

from imgbuild.oci.layout import Layout
from imgbuild.oci.merged import MergedTree
from imgbuild.oci.reader import TarReader, open_inflated
from imgbuild.sif import container
from imgbuild.values import Arch
from tests.support import needs
from tests.support.layer_files import layer_file

KINDS = {"D": "folder", "S": "symlink", "R": "file", "I": "pipe", "C": "character device",
         "B": "block device"}  # fmt: skip
START = b"# START OF DATA - DO NOT MODIFY\n"
CHUNK = 1 << 20
BITS = 0xFFFFFFFF  # numbers that it shows with a sign
# Kind, mode, owner, time; before the time a link's target, a device's numbers, size and sha256.
Facts = tuple[str, int, tuple[int, int], object, int]


def read_squashfs(path: Path, offset: int = 0) -> dict[str, Facts]:
    """Every path except the root. Each hard link has an entry."""
    unsquashfs = needs.require_tool("unsquashfs", "squashfs-tools")
    with tempfile.TemporaryDirectory() as folder:
        pipe = Path(folder, "pipe")
        os.mkfifo(pipe)
        options = ["-quiet", "-no-progress", "-offset", str(offset), "-pf", str(pipe), str(path)]
        with (
            subprocess.Popen([unsquashfs, *options], stdout=subprocess.DEVNULL) as process,
            pipe.open("rb") as stream,
        ):
            entries = _parsed(stream)
        assert process.returncode == 0
    return entries


def squashfs_offset(sif: Path) -> int:
    """The offset of the squashfs in a SIF, from the descriptor of the file system."""
    with sif.open("rb") as file:
        data = file.read(container.DATA_OFFSET)
    rows = [
        container.DESCRIPTOR.unpack_from(data, container.DESCRIPTORS_OFFSET + number * 585)
        for number in range(container.DESCRIPTORS)
    ]
    return int(next(row[5] for row in rows if row[0] == container.FILE_SYSTEM))


def merged_tree(of: Layout, arch: Arch) -> MergedTree:
    """The files of an image in a layout, with their content."""
    merged = MergedTree()
    for layer in of.image(arch).layers:
        with open_inflated(layer_file(of.blob(layer.digest))) as stream:
            merged.add(TarReader(stream, layer.digest))
    return merged


def expected_entries(tree: MergedTree) -> dict[str, Facts]:
    """The expected result of `read_squashfs` for a merged tree."""
    entries: dict[str, Facts] = {}
    for name, node in tree.iterate_paths():
        what: object = node.target or node.device
        if node.kind == "file":
            what = (node.size, node.digest.hex())
        mode = 0o777 if node.kind == "symlink" else node.mode  # a squashfs has none for a link
        entries[name] = (node.kind, mode, (node.uid, node.gid), what, node.mtime)
    return entries


def _parsed(stream: BinaryIO) -> dict[str, Facts]:
    entries: dict[str, Facts] = {}
    links: dict[str, str] = {}
    files: list[tuple[int, int, str]] = []
    while (line := stream.readline()) != START:
        assert line, "unsquashfs ended early"
        if line.startswith(b"#"):
            continue
        words = re.split(r"(?<!\\) ", os.fsdecode(line).rstrip("\n"))
        name = "/" + words[0].replace("\\ ", " ").replace("\\\\", "\\")
        if words[1] == "L":
            links[name] = "/" + words[2].replace("\\ ", " ").replace("\\\\", "\\")
            continue
        kind, time, mode, uid, gid = KINDS[words[1]], *words[2:6]
        what: object = None
        if kind == "file":
            files.append((int(words[7]), int(words[6]), name))
        elif kind == "symlink":
            what = os.fsdecode(line).rstrip("\n").partition(f" {mode} {uid} {gid} ")[2]
        elif kind.endswith("device"):
            what = (int(words[6]), int(words[7]))
        if name != "//":
            entries[name] = (
                kind,
                int(mode, 8),
                (int(uid) & BITS, int(gid) & BITS),
                what,
                int(time),
            )
    stream.readline()  # a last "#"
    at = 0
    for offset, size, name in sorted(files):
        assert offset == at, name
        kind, mode_, owner, _, time_ = entries[name]
        entries[name] = (kind, mode_, owner, (size, _hashed(stream, size)), time_)
        at += size
    return entries | {name: entries[target] for name, target in links.items()}


def _hashed(stream: BinaryIO, size: int) -> str:
    hashed = hashlib.sha256()
    while size:
        chunk = stream.read(min(size, CHUNK))
        assert chunk, "unsquashfs ended early"
        hashed.update(chunk)
        size -= len(chunk)
    return hashed.hexdigest()
