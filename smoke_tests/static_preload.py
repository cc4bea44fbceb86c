"""Tests that the dynamic loader finds every dependency of the library that SGLang preloads.

With `enable_memory_saver`, which verl sets, SGLang starts its processes under
`torch_memory_saver.configure_subprocess()`, which sets LD_PRELOAD. The library has no RUNPATH and
is loaded before Python, and therefore before torch loads the CUDA runtime. If a dependency is
missing, the process does not start ("error while loading shared libraries"). libcuda.so.1 is
ignored, because the container runtime provides it.
"""

from __future__ import annotations

import importlib
import subprocess

from smoke_support import finish

STEM = "torch_memory_saver_hook_mode_preload"
DRIVER = "libcuda.so.1"


def main() -> None:
    """Report the libraries that the loader does not find."""
    utils = importlib.import_module("torch_memory_saver.utils")
    library = utils.get_binary_path_from_package(STEM)
    ldd_lines = subprocess.run(
        ["ldd", str(library)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    lacking = [line.strip() for line in ldd_lines if "not found" in line and DRIVER not in line]
    problems = [f"the loader cannot load {library.name}: {line}" for line in lacking]
    finish(problems, f"the loader finds all dependencies of {library.name}")


if __name__ == "__main__":
    main()
