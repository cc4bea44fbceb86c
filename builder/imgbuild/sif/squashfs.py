"""Creates a squashfs from a tar with mksquashfs, without root and without unpacking.

The bytes of the squashfs depend on the tar, the given time and the version of mksquashfs, but not
on the number of processors.

mksquashfs is used because it is installed on more systems than tar2sqfs. The mksquashfs 4.5.1 in
Debian 12 accepts compressor options for a tar, but the sqfstar of this version does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from imgbuild.errors import ToolMissing
from imgbuild.oci.merged import TreeNode
from imgbuild.system import process

Compressor = Literal["zstd", "gzip"]

PROGRAM = "mksquashfs"
OLDEST_VERSION = (4, 5)  # the first that reads a tar
REMEDY = "install squashfs-tools 4.5 or newer (Debian, Ubuntu: apt-get install squashfs-tools)"
# zstd at level 1 compresses CUDA's libraries as well as gzip, 40 times as fast.
OPTIONS: dict[Compressor, tuple[str, ...]] = {
    "zstd": ("-comp", "zstd", "-Xcompression-level", "1"),
    "gzip": ("-comp", "gzip"),
}
MEMORY = "256M"  # for its queues and caches; the default is a quarter of the machine's memory


class MksquashfsTool(msgspec.Struct, frozen=True):
    """The mksquashfs program of this machine, with its version."""

    program: str
    version: str


def find_mksquashfs() -> MksquashfsTool:
    """Find mksquashfs. Raises ToolMissing if it is missing or cannot read a tar."""
    program = process.find_program(PROGRAM, remedy=REMEDY)
    answer = process.run_command([program, "-version"], check=False)
    match = re.search(r"mksquashfs version (\d+)\.(\d+)(\S*)", answer.stdout + answer.stderr)
    if match is None:
        message = f"{program} does not print its version"
        raise ToolMissing(message, hint=REMEDY)
    version = "{}.{}{}".format(*match.groups())
    if (int(match[1]), int(match[2])) < OLDEST_VERSION:
        message = f"{program} {version} is too old: it cannot read tar archives"
        raise ToolMissing(message, hint=REMEDY)
    return MksquashfsTool(program=program, version=version)


def write_squashfs(
    tool: MksquashfsTool,
    chunks: Iterable[bytes],
    root: TreeNode,
    out: Path,
    *,
    compressor: Compressor,
    time: int,
    processors: int | None = None,
    offset: int = 0,
) -> None:
    """Write a squashfs of the tar `chunks` to `out`, starting at byte `offset`.

    `time`, in seconds since 1970, must not be earlier than the time of any file. `root` contains
    the owner and mode of the root folder, which is not in the tar. Raises WorkFailed if mksquashfs
    fails. Errors of `chunks` are raised unchanged.
    """
    command = [tool.program, "-", str(out), "-tar", "-noappend", "-no-progress", "-quiet"]
    command += ["-mem", MEMORY, "-offset", str(offset), *OPTIONS[compressor]]
    command += ["-root-mode", f"{root.mode:o}", "-root-uid", str(root.uid)]
    command += ["-root-gid", str(root.gid)]
    if processors is not None:
        command += ["-processors", str(processors)]
    # With a tar, 4.5.1 has no option for the time of the root folder, and uses the clock unless
    # SOURCE_DATE_EPOCH is set. That also limits the times of files, but none of them is later. (If
    # a file's time is in the future, the root folder has the current time.)
    process.feed_command(command, chunks, env={"SOURCE_DATE_EPOCH": str(time)})
