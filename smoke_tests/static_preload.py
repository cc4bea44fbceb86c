"""The loader finds what the library needs that verl's SGLang server preloads.

verl starts SGLang under `torch_memory_saver.configure_subprocess()`, which names a library in
LD_PRELOAD. It has no RUNPATH, and is loaded before Python: torch has not loaded the CUDA runtime
yet. Where the loader does not find that by itself, no program starts ("error while loading shared
libraries"). The driver's library is not looked for: the container runtime brings it.
"""

from __future__ import annotations

import importlib
import subprocess

from smoke_support import finish

STEM = "torch_memory_saver_hook_mode_preload"
DRIVER = "libcuda.so.1"


def main() -> None:
    """Ask the loader which libraries it does not find."""
    utils = importlib.import_module("torch_memory_saver.utils")
    library = utils.get_binary_path_from_package(STEM)
    asked = subprocess.run(
        ["ldd", str(library)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    lacking = [line.split()[0] for line in asked if line.endswith("=> not found")]
    problems = [
        f"{library.name} needs {name}, which the loader does not find"
        for name in lacking
        if name != DRIVER
    ]
    finish(problems, f"the loader finds what {library.name} needs")


if __name__ == "__main__":
    main()
