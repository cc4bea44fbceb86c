"""Finds GPUs, and the libraries of the NVIDIA driver for use in a root folder.

Engines mount the driver into containers. For a root folder, imgbuild mounts the folder of
libcuda.so.1 on the host, a folder with links to other files of the driver, and the GPU devices,
which a sandbox lacks.
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
NODES = ("nvidia*", "dri", "gdrdrv", "dxg")  # devices that CUDA opens; dxg is that of WSL
VISIBLE = "CUDA_VISIBLE_DEVICES"
SETTINGS = ("NCCL_", "NVSHMEM_", "TORCH_SYMM_MEM_", "VLLM_ALLREDUCE_", "FLASHINFER_EXTRA_")
GPU = re.compile(r"\d+|(GPU|MIG)-.+")  # a number or an ID; Slurm also sets NoDevFiles
LIBRARY = "libcuda.so.1"
OWN = ("libcuda.", "libcudadebugger.", "libnvidia-", "libnvcuvid.", "libnvoptix.")
PLACES = ("/usr/local/nvidia/lib64", "/run/opengl-driver/lib", "/usr/lib/wsl/lib")
SHOWN = "/run/imgbuild"
REMEDY = "install the driver, or choose another tier"


class DriverFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The mounts of the driver, and variables with library paths for the loader."""

    binds: tuple[Bind, ...]
    env: dict[str, str]


def chosen() -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES of this process, if it is set, for example by Slurm."""
    value = os.environ.get(VISIBLE)
    return {} if value is None else {VISIBLE: value}


def settings() -> dict[str, str]:
    """Variables for the selected GPUs and for communication between GPUs (NCCL_NVLS_ENABLE, …)."""
    shared = {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)}
    return {**chosen(), **shared}


def gpus() -> int:
    """The number of usable NVIDIA GPUs: GPUs in /dev, limited by CUDA_VISIBLE_DEVICES."""
    device_count = sum(
        bool(re.fullmatch(r"nvidia\d+", path.name)) for path in DEVICES.glob("nvidia*")
    )
    value = os.environ.get(VISIBLE)
    if value is None:
        return device_count
    return min(device_count, sum(bool(GPU.fullmatch(name.strip())) for name in value.split(",")))


def driver_files(scratch: Path) -> DriverFiles:
    """The driver of this machine for a root folder. Links are created in the folder `scratch`.

    Raises WorkFailed if there is no driver.
    """
    folder = libraries()
    if folder is None:
        places = ", ".join(PLACES)
        message = f"{LIBRARY} not found in the loader's cache or in {places}"
        raise WorkFailed(message, hint=REMEDY)
    links = scratch / "driver"
    links.mkdir()
    for path in sorted(folder.glob("lib*.so*")):
        if path.name.startswith(OWN):
            (links / path.name).symlink_to(f"{SHOWN}/host/{path.name}")
    if not (links / "libcuda.so").is_symlink():
        (links / "libcuda.so").symlink_to(LIBRARY)  # Triton links with -lcuda
    place = f"{SHOWN}/driver"
    nodes = sorted(path for pattern in NODES for path in DEVICES.glob(pattern))
    return DriverFiles(
        binds=(
            Bind(source=folder, target=f"{SHOWN}/host"),
            Bind(source=links, target=place),
            *(Bind(source=path, target=str(path)) for path in nodes),
        ),
        # For the loader, Triton, and gcc when FlashInfer links a compiled kernel with -lcuda.
        env={"LD_LIBRARY_PATH": place, "TRITON_LIBCUDA_PATH": place, "LIBRARY_PATH": place},
    )


def libraries() -> Path | None:
    """The folder of the driver's libraries, found in the loader's cache or in `PLACES`."""
    answer = process.run(["/sbin/ldconfig", "-p"], check=False)
    return _first([*_listed(answer.stdout), *(Path(place) for place in PLACES)])


def _listed(text: str) -> list[Path]:
    """The folders of the 64-bit library in the output of `ldconfig -p`."""
    rows = [row for row in text.splitlines() if row.strip().startswith(f"{LIBRARY} (libc6,")]
    return [Path(row.rpartition("=> ")[2].strip()).parent for row in rows]


def _first(folders: Iterable[Path]) -> Path | None:
    """The first of `folders` that contains the library, with resolved links."""
    for folder in folders:
        path = folder / LIBRARY
        if path.exists():
            return path.resolve().parent
    return None
