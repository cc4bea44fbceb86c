"""Tests that nvcc has the image's CUDA version and compiles a kernel with the image's headers.

FlashInfer and SGLang compile kernels at first use with $CUDA_HOME/bin/nvcc. The wheels of nvcc and
of the runtime, which contains the headers, are resolved separately. If their CUDA versions differ,
the first engine on a GPU fails, because nvcc does not compile its kernels, or the driver rejects
them.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from smoke_support import expectation, finish, skip

KERNEL = """\
#include <cuda_runtime.h>
#if CUDART_VERSION != RELEASE
#error "cuda_runtime.h is of another CUDA than nvcc"
#elif __has_include(<cuda/std/version>)
#include <cuda/std/version>
#endif
extern "C" __global__ void twice(float *numbers) { numbers[threadIdx.x] *= 2; }
"""
ARCHITECTURE = "sm_90"  # of an H100 or H200; nvcc needs none here


def locked(start: str) -> dict[str, str]:
    """Return the versions of distributions named `start`, with or without a CUDA suffix."""
    packages: dict[str, str] = expectation()["packages"]
    return {name: packages[name] for name in packages if re.fullmatch(rf"{start}(-cu\d+)?", name)}


def release(version: str) -> str:
    """Return the major and minor number of a version."""
    return ".".join(version.split(".")[:2])


def number(release: str) -> int:
    """Return the number of a release in CUDA's headers: 13000 for 13.0."""
    major, minor = release.split(".")
    return int(major) * 1000 + int(minor) * 10


def main() -> None:
    """Check nvcc's release, and compile a kernel that includes headers of the runtime and CCCL."""
    if not locked("nvidia-cuda-nvcc"):
        skip("the lock has no nvcc")
    home = os.environ.get("CUDA_HOME") or "unset CUDA_HOME"
    nvcc = Path(home) / "bin/nvcc"
    if not nvcc.exists():
        finish([f"the lock has nvcc, but {nvcc} does not exist"], "")
    process = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True, check=True)
    print(process.stdout)
    match = re.search(r"release (\d+\.\d+)", process.stdout)
    if match is None:
        finish(["nvcc does not print its release"], "")
    nvcc_release = match[1]
    problems = [
        f"nvcc is from CUDA {nvcc_release}, {name} from {release(version)}: compiled kernels "
        "would not run"
        for name, version in locked("nvidia-cuda-runtime").items()
        if release(version) != nvcc_release
    ]
    if problems:
        finish(problems, "")
    source, cubin = Path("smoke_kernel.cu"), Path("smoke_kernel.cubin")
    source.write_text(KERNEL)
    command = [str(nvcc), "-cubin", f"-arch={ARCHITECTURE}", f"-DRELEASE={number(nvcc_release)}"]
    done = subprocess.run([*command, str(source), "-o", str(cubin)], check=False)
    if done.returncode != 0:
        problems.append(f"nvcc failed to compile a kernel: status {done.returncode}")
    elif cubin.read_bytes()[:4] != b"\x7fELF":
        problems.append("nvcc produced no cubin")
    finish(problems, f"nvcc of CUDA {nvcc_release} compiled a kernel for {ARCHITECTURE}")


if __name__ == "__main__":
    main()
