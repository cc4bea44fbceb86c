"""A tar stream to a squashfs, through the system's mksquashfs: no root, nothing unpacked.

Comes in: pieces of a tar. Goes out: the squashfs in a file, from an offset on. Its bytes follow
from the tar, the time that is given and the version of mksquashfs, not from how many processors
there are.

mksquashfs rather than tar2sqfs, which more systems lack; both take a tar since 2021. Version 4.5.1
of Debian 12 takes a compressor's options with a tar, though its sqfstar does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from imgbuild.errors import ToolMissing
from imgbuild.oci.merged import Node
from imgbuild.system import process

Compressor = Literal["zstd", "gzip"]

PROGRAM = "mksquashfs"
OLDEST = (4, 5)  # the first that reads a tar
REMEDY = "install squashfs-tools 4.5 or newer (Debian, Ubuntu: apt-get install squashfs-tools)"
# zstd at level 1 makes CUDA's libraries as small as gzip does, 40 times as fast.
OPTIONS: dict[Compressor, tuple[str, ...]] = {
    "zstd": ("-comp", "zstd", "-Xcompression-level", "1"),
    "gzip": ("-comp", "gzip"),
}
MEMORY = "256M"  # of its queues and caches; by default it takes a quarter of the machine's


class Tool(msgspec.Struct, frozen=True):
    """The mksquashfs of this machine."""

    program: str
    version: str


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """How a squashfs is made. `time`, in seconds since 1970, is none before any file's."""

    compressor: Compressor = "zstd"
    time: int
    processors: int | None = None


def find() -> Tool:
    """The mksquashfs of this machine; ToolMissing if there is none or it reads no tar."""
    program = process.find(PROGRAM, remedy=REMEDY)
    said = process.run([program, "-version"], check=False)
    found = re.search(r"mksquashfs version (\d+)\.(\d+)(\S*)", said.stdout + said.stderr)
    if found is None:
        message = f"{program} does not tell its version"
        raise ToolMissing(message, hint=REMEDY)
    version = "{}.{}{}".format(*found.groups())
    if (int(found[1]), int(found[2])) < OLDEST:
        message = f"{program} is version {version}, which reads no tar"
        raise ToolMissing(message, hint=REMEDY)
    return Tool(program=program, version=version)


def write(
    tool: Tool, chunks: Iterable[bytes], root: Node, out: Path, form: Form, *, offset: int = 0
) -> None:
    """Make `out` a file whose bytes from `offset` on are the squashfs of the tar `chunks`.

    `root` says the owner and mode of the root folder, which the tar has not. WorkFailed if
    mksquashfs fails; what `chunks` raises passes.
    """
    command = [tool.program, "-", str(out), "-tar", "-noappend", "-no-progress", "-quiet"]
    command += ["-mem", MEMORY, "-offset", str(offset), *OPTIONS[form.compressor]]
    command += ["-root-mode", f"{root.mode:o}", "-root-uid", str(root.uid)]
    command += ["-root-gid", str(root.gid)]
    if form.processors is not None:
        command += ["-processors", str(form.processors)]
    # The one time that reaches all of it: 4.5.1 takes no time for the root folder beside a tar, and
    # gives it that of the clock. No file has a later one, so no other is moved. (Where a file's is
    # in the future, the root folder's is the clock's after all.)
    process.feed(command, chunks, env={"SOURCE_DATE_EPOCH": str(form.time)})
