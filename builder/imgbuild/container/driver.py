"""The GPUs of this machine, and the driver's libraries, shown to a root folder that has none.

An engine's runtime brings the driver into a container; a root folder is shown the host's own: the
folder that holds libcuda.so.1, and a folder of links to those of its files that are the driver's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from imgbuild.container.sandbox import Bind
from imgbuild.errors import WorkFailed
from imgbuild.system import process

DEVICES = Path("/dev")
VISIBLE = "CUDA_VISIBLE_DEVICES"
GPU = re.compile(r"\d+|(GPU|MIG)-.+")  # a number or an id; Slurm also says NoDevFiles
LIBRARY = "libcuda.so.1"
OWN = ("libcuda.", "libcudadebugger.", "libnvidia-", "libnvcuvid.", "libnvoptix.")
PLACES = ("/usr/local/nvidia/lib64", "/run/opengl-driver/lib", "/usr/lib/wsl/lib")
SHOWN = "/run/imgbuild"
REMEDY = "install the driver, or name another tier"


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox needs besides: folders, and variables by which the loader finds them."""

    binds: tuple[Bind, ...]
    env: dict[str, str]


def chosen() -> dict[str, str]:
    """The variable that says which GPUs are meant, if it is set: on a shared node Slurm does."""
    value = os.environ.get(VISIBLE)
    return {} if value is None else {VISIBLE: value}


def gpus() -> int:
    """How many GPUs of NVIDIA's may be used here: those in /dev, of them those that are chosen."""
    found = sum(bool(re.fullmatch(r"nvidia\d+", path.name)) for path in DEVICES.glob("nvidia*"))
    value = os.environ.get(VISIBLE)
    if value is None:
        return found
    return min(found, sum(bool(GPU.fullmatch(name.strip())) for name in value.split(",")))


def shown(scratch: Path) -> Shown:
    """The driver of this machine; links to it are made in the folder `scratch`.

    WorkFailed if there is none: a tier for GPUs without a driver tests nothing.
    """
    folder = libraries()
    if folder is None:
        message = f"this machine has no {LIBRARY}: not in the loader's cache, nor in a usual place"
        raise WorkFailed(message, hint=REMEDY)
    links = scratch / "driver"
    links.mkdir()
    for path in sorted(folder.glob("lib*.so*")):
        if path.name.startswith(OWN):
            (links / path.name).symlink_to(f"{SHOWN}/host/{path.name}")
    if not (links / "libcuda.so").is_symlink():
        (links / "libcuda.so").symlink_to(LIBRARY)  # what Triton's -lcuda looks for
    place = f"{SHOWN}/driver"
    return Shown(
        binds=(Bind(source=folder, target=f"{SHOWN}/host"), Bind(source=links, target=place)),
        # The loader, Triton, and gcc where FlashInfer links a compiled kernel with -lcuda.
        env={"LD_LIBRARY_PATH": place, "TRITON_LIBCUDA_PATH": place, "LIBRARY_PATH": place},
    )


def libraries() -> Path | None:
    """The folder of the driver's libraries: the loader's own answer first, then usual places."""
    answer = process.run(["/sbin/ldconfig", "-p"], check=False)
    return _first([*_listed(answer.stdout), *(Path(place) for place in PLACES)])


def _listed(text: str) -> list[Path]:
    """The folders in which `ldconfig -p` lists the library for 64 bits."""
    rows = [row for row in text.splitlines() if row.strip().startswith(f"{LIBRARY} (libc6,")]
    return [Path(row.rpartition("=> ")[2].strip()).parent for row in rows]


def _first(folders: Iterable[Path]) -> Path | None:
    """The first of `folders` that holds the library, links resolved."""
    for folder in folders:
        path = folder / LIBRARY
        if path.exists():
            return path.resolve().parent
    return None
