"""Finds GPUs, and the libraries of the NVIDIA driver for use in a root folder.

Engines mount the driver into containers. For a root folder, imgbuild mounts the host's folder with
libcuda.so.1, a folder with links to other files of the driver, and the GPU devices.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from imgbuild.container.sandbox import BindMount
from imgbuild.errors import WorkFailed
from imgbuild.system import process, programs

DEVICES = Path("/dev")
NODES = ("nvidia*", "dri", "gdrdrv", "dxg")  # devices that CUDA opens; dxg is that of WSL
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
SETTINGS = ("NCCL_", "NVSHMEM_", "TORCH_SYMM_MEM_", "VLLM_ALLREDUCE_", "FLASHINFER_EXTRA_")
GPU = re.compile(r"\d+|(GPU|MIG)-.+")  # a number or an ID; Slurm also sets NoDevFiles
LIBRARY = "libcuda.so.1"
OWN_LIBRARIES = ("libcuda.", "libcudadebugger.", "libnvidia-", "libnvcuvid.", "libnvoptix.")
PLACES = ("/usr/local/nvidia/lib64", "/run/opengl-driver/lib", "/usr/lib/wsl/lib")
CONTAINER_FOLDER = "/run/imgbuild"
PROGRAM = "nvidia-smi"  # engines mount it too, and sglang.check_env and vllm collect-env start it
REMEDY = "install the driver, or choose another tier"


class DriverFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The mounts of the driver, and the variables with library paths for the loader."""

    binds: tuple[BindMount, ...]
    env: dict[str, str]


def chosen_gpus() -> dict[str, str]:
    """Return CUDA_VISIBLE_DEVICES of this process as a dictionary. It is empty if unset."""
    value = os.environ.get(VISIBLE_VARIABLE)
    return {} if value is None else {VISIBLE_VARIABLE: value}


def gpu_variables() -> dict[str, str]:
    """Return the variables that select GPUs or configure NCCL, such as NCCL_NVLS_ENABLE."""
    shared = {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)}
    return {**chosen_gpus(), **shared}


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs in /dev, limited by CUDA_VISIBLE_DEVICES."""
    device_count = sum(
        bool(re.fullmatch(r"nvidia\d+", path.name)) for path in DEVICES.glob("nvidia*")
    )
    value = os.environ.get(VISIBLE_VARIABLE)
    if value is None:
        return device_count
    return min(device_count, sum(bool(GPU.fullmatch(name.strip())) for name in value.split(",")))


def driver_files(scratch: Path) -> DriverFiles:
    """Find this machine's driver for a root folder. Links are created in the folder `scratch`.

    Raises WorkFailed if no driver is installed.
    """
    folder = driver_library_folder()
    if folder is None:
        places = ", ".join(PLACES)
        message = f"{LIBRARY} not found in the loader's cache or in {places}"
        raise WorkFailed(message, hint=REMEDY)
    links = scratch / "driver"
    links.mkdir()
    for path in sorted(folder.glob("lib*.so*")):
        if path.name.startswith(OWN_LIBRARIES):
            (links / path.name).symlink_to(f"{CONTAINER_FOLDER}/host/{path.name}")
    if not (links / "libcuda.so").is_symlink():
        (links / "libcuda.so").symlink_to(LIBRARY)  # Triton links with -lcuda
    place = f"{CONTAINER_FOLDER}/driver"
    nodes = sorted(path for pattern in NODES for path in DEVICES.glob(pattern))
    program = programs.find_on_path(PROGRAM)
    return DriverFiles(
        binds=(
            BindMount(source=folder, target=f"{CONTAINER_FOLDER}/host"),
            BindMount(source=links, target=place),
            *(BindMount(source=path, target=str(path)) for path in nodes),
            *([BindMount(source=Path(program), target=f"/usr/bin/{PROGRAM}")] if program else []),
        ),
        # For the loader, Triton, and gcc when FlashInfer links a compiled kernel with -lcuda.
        env={"LD_LIBRARY_PATH": place, "TRITON_LIBCUDA_PATH": place, "LIBRARY_PATH": place},
    )


def driver_library_folder() -> Path | None:
    """Find the folder of the driver's libraries in the loader's cache or in `PLACES`."""
    answer = process.run_command(["/sbin/ldconfig", "-p"], check=False)
    return _first_with_library(
        [*_listed_folders(answer.stdout), *(Path(place) for place in PLACES)]
    )


def _listed_folders(text: str) -> list[Path]:
    """Return the folders of the 64-bit library from the output `text` of `ldconfig -p`."""
    rows = [row for row in text.splitlines() if row.strip().startswith(f"{LIBRARY} (libc6,")]
    return [Path(row.rpartition("=> ")[2].strip()).parent for row in rows]


def _first_with_library(folders: Iterable[Path]) -> Path | None:
    for folder in folders:
        path = folder / LIBRARY
        if path.exists():
            return path.resolve().parent
    return None
