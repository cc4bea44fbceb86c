"""Apptainer: makes a SIF of an image that lies in a layout, and runs commands in it.

Comes in: a layout. Goes out: a SIF, and what commands in it left. It is run as on a cluster: the
root is read-only, the user is whoever calls, nothing of the home or the environment comes along.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild import run as processes
from imgbuild.console import console
from imgbuild.oci.layout import INDEX_FILE, MARKER, MARKER_TEXT, Layout
from imgbuild.values import Arch

REMEDY = "install Apptainer 1.4 or newer (https://apptainer.org), or leave --through out"
# gzip, the default, takes 40 times as long.
SQUASHFS = "-comp zstd -Xcompression-level 1"


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """How a command is run in a SIF.

    `binds` are folders of this machine by the place where they are seen, read-only. `work` becomes
    /tmp and the home: the memory that Apptainer gives for them holds 64 MB. `user`, a user and a
    group id, is for callers who are root: in the container they are that one.
    """

    binds: Mapping[str, Path] = {}
    work: Path
    workdir: str = "/"
    gpus: bool = False
    user: tuple[int, int] | None = None


def require() -> str:
    """The command; ToolMissing if there is none."""
    return processes.find("apptainer", remedy=REMEDY)


def convert(program: str, layout: Layout, arch: Arch, out: Path) -> Path:
    """The image of `layout` on `arch` as a SIF in the new folder `out`."""
    single = out / "layout"
    single.mkdir(parents=True)
    # It takes a folder that holds one image, and knows no architecture of another.
    index = {"schemaVersion": 2, "manifests": [layout.image(arch).manifest]}
    (single / INDEX_FILE).write_bytes(codec.encode(index))
    (single / MARKER).write_bytes(MARKER_TEXT)
    (single / "blobs").symlink_to(layout.path.resolve() / "blobs")
    image = out / "image.sif"
    command = [program, "build", "--disable-cache", "--mksquashfs-args", SQUASHFS]
    with console.step(f"making a SIF of {layout.path.name}"):
        processes.run([*command, str(image), f"oci:{single}"])
    return image


def run(program: str, image: Path, command: Sequence[str], settings: Running) -> processes.Result:
    """Run `command` through the entry point of `image`; its status is not judged."""
    # Without --no-eval a shell expands the words of the command before the entry point is run.
    words = [program, "--quiet", "run", "--containall", "--no-eval", "--no-privs"]
    words += ["--workdir", str(settings.work), "--pwd", settings.workdir]
    for place, source in settings.binds.items():
        words += ["--bind", f"{source}:{place}:ro"]
    if settings.gpus:
        words.append("--nv")
    if settings.user is not None and os.geteuid() == 0:
        uid, gid = settings.user
        words += ["--security", f"uid:{uid}", "--security", f"gid:{gid}"]
    return processes.run([*words, str(image), *command], check=False)
