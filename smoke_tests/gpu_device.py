"""Tests that the driver responds and has enough GPUs. Other GPU cases require this case."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

import smoke_gpu
from smoke_support import finish

COMPUTE_MAJOR, COMPUTE_MINOR = 75, 76  # CUdevice_attribute
VERSION = Path("/proc/driver/nvidia/version")  # of the kernel module; also visible in containers


def driver_call(library: ctypes.CDLL, function: str, *arguments: object) -> None:
    """Call a function of the driver. On an error, end the case with the name of the error."""
    status = getattr(library, function)(*arguments)
    if status != 0:
        name = ctypes.c_char_p()
        library.cuGetErrorName(status, ctypes.byref(name))
        sys.exit(f"error: {function}: {(name.value or b'').decode()} ({status})")


def devices() -> list[str]:
    """Return a description of each GPU, from the driver."""
    library = ctypes.CDLL("libcuda.so.1")
    driver_call(library, "cuInit", 0)
    version, count = ctypes.c_int(), ctypes.c_int()
    driver_call(library, "cuDriverGetVersion", ctypes.byref(version))
    driver_call(library, "cuDeviceGetCount", ctypes.byref(count))
    print(f"the driver supports CUDA {version.value // 1000}.{version.value % 1000 // 10}")
    descriptions = []
    for number in range(count.value):
        device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
        driver_call(library, "cuDeviceGet", ctypes.byref(device), number)
        driver_call(library, "cuDeviceGetName", name, len(name), device)
        driver_call(library, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        parts = []
        for attribute in (COMPUTE_MAJOR, COMPUTE_MINOR):
            value = ctypes.c_int()
            driver_call(library, "cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
            parts.append(str(value.value))
        descriptions.append(f"{name.value.decode()} sm_{''.join(parts)} {memory.value >> 20} MiB")
    return descriptions


def release() -> str:
    """Return the release of the driver, such as 580.159.04, or "" if unknown."""
    text = VERSION.read_text("utf-8") if VERSION.exists() else ""
    match = re.search(r"Kernel Module .*?(\d+\.[\d.]+)", text)
    return match[1] if match else ""


def main(count: int) -> None:
    """Check that at least `count` GPUs respond."""
    smoke_gpu.require(count, every=True)
    if release():
        print(f"the driver is {release()}")
    descriptions = devices()
    problems = (
        []
        if len(descriptions) >= count
        else [f"the driver has {len(descriptions)} GPU(s): {count} needed"]
    )
    finish(problems, "; ".join(descriptions))


if __name__ == "__main__":
    main(int(sys.argv[1]))
