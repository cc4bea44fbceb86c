"""Checks the library of the NVIDIA driver for doctor.py."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# CUDA_ERROR_NO_DEVICE, and CUDA_ERROR_UNKNOWN of a library without its kernel module.
NO_GPU = (100, 999)


class Finding(NamedTuple):
    """A checked property. `severity` is note, warning or error."""

    check: str
    severity: str
    message: str
    remedy: str = ""


def driver(gpus: int) -> Iterator[Finding]:
    """Check that the driver's library loads, is not a stub, detects the GPUs and can be linked."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        if gpus:
            yield Finding(
                "driver", "error", f"libcuda.so.1 cannot be loaded: {error}",
                "apptainer: --nv; docker: --gpus all; else bind its folder, and add it to"
                " LD_LIBRARY_PATH and TRITON_LIBCUDA_PATH",
            )  # fmt: skip
        else:
            yield Finding("driver", "note", "no driver, and no GPU was requested")
        return
    place = _loaded("libcuda.so")
    if not all(hasattr(library, name) for name in ("cuInit", "cuDeviceGetCount")):
        yield Finding(
            "driver", "error" if gpus else "warning",
            f"{place} is not a driver library: it has no cuInit",
            "remove its folder from LD_LIBRARY_PATH, or bind the node's driver library",
        )  # fmt: skip
        return
    if "/stubs/" in place or library.cuInit(0) == 34:  # CUDA_ERROR_STUB_LIBRARY
        yield Finding(
            "driver", "error", f"{place} is a stub for linking, not the driver",
            "remove the stubs folder from LD_LIBRARY_PATH; use LIBRARY_PATH for linking",
        )  # fmt: skip
        return
    count = ctypes.c_int(0)
    status = library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count))
    if not gpus and status in NO_GPU:
        yield Finding("driver", "note", f"{place} detects no GPU, and none was requested")
    elif status or count.value < gpus:
        why = f" (CUDA error {status})" if status else ""
        yield Finding(
            "driver", "error", f"{place} detects {count.value} GPUs{why}, {gpus} were requested",
            "check CUDA_VISIBLE_DEVICES and nvidia-smi on the node; Slurm: --gpus-per-node",
        )  # fmt: skip
    else:
        yield Finding("driver", "note", f"{place} detects {count.value} GPUs")
    yield from _link(Path(place).parent)


def _loaded(name: str) -> str:
    rows = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    return next((row.split()[-1] for row in rows if f"/{name}" in row), name)


def _link(folder: Path) -> Iterator[Finding]:
    """Check whether `gcc -lcuda` finds the library, which Triton and FlashInfer link."""
    compiler = shutil.which(os.environ.get("CC", "gcc"))
    if compiler is None:
        return
    with tempfile.TemporaryDirectory() as work:
        source = Path(work, "empty.c")
        source.write_text("int nothing(void) { return 0; }\n", "ascii")
        command = [compiler, "-shared", str(source), "-o", str(Path(work, "empty.so")), "-lcuda"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=5)
    if done.returncode:
        yield Finding(
            "link with -lcuda", "warning", f"cannot find -lcuda; the driver is in {folder}",
            f"set LIBRARY_PATH and TRITON_LIBCUDA_PATH to {folder}; if it has only libcuda.so.1,"
            " to another folder with a link libcuda.so to it",
        )  # fmt: skip
