"""Compiles kernels that SGLang compiles at first use, for sm_90 and without a GPU.

The wheel of SGLang contains the sources of these kernels. They are compiled with nvcc and the C++
compiler of the base when the first engine captures its graphs. For example, activation.cuh of
SGLang 0.5.12 does not compile with g++ 12 and nvcc 13.0.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from smoke_log import first_error
from smoke_support import finish

CAPABILITY = (9, 0)
HEAD, ROW = 64, 256  # of the tiny Qwen: the width of a head and of a layer, a cache row's bytes
OLD, NEW = "sglang.jit_kernel", "sglang.kernels.ops"  # up to 0.5.13 at least; in 0.5.23
# Module and function of SGLang that compiles a kernel, and its arguments; names of types refer to
# torch's. Functions that a version lacks are skipped.
KERNELS: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    (f"{OLD}.activation", "_jit_activation_module", ("bfloat16",)),
    (f"{OLD}.norm", "_jit_qknorm_module", (HEAD, "bfloat16")),
    (f"{OLD}.norm", "_jit_rmsnorm_module", (HEAD, "bfloat16")),
    (f"{OLD}.fused_qknorm_rope", "_jit_fused_qknorm_rope_module", (HEAD, True, False)),
    (f"{OLD}.rope", "_jit_fused_rope_module", (True, HEAD, "bfloat16")),
    (f"{OLD}.kvcache", "_jit_kvcache_module", (ROW,)),
    (f"{OLD}.clamp_position", "_jit_clamp_position_module", ("int64",)),
    (f"{OLD}.resolve_future_token_ids", "_jit_resolve_future_token_ids_module", ("int64",)),
    (f"{NEW}.layernorm.norm", "_jit_qknorm_module", (HEAD, "bfloat16")),
    (f"{NEW}.layernorm.norm", "_jit_rmsnorm_module", (HEAD, "bfloat16")),
    (f"{NEW}.attention.fused_qknorm_rope", "_jit_fused_qknorm_rope_module", (HEAD, True, False)),
    (f"{NEW}.attention.rope", "_jit_fused_rope_module", (True, HEAD, "bfloat16", "bfloat16")),
    (f"{NEW}.attention.clamp_position", "_jit_clamp_position_module", ("int64",)),
    (f"{NEW}.kvcache.kvcache", "_jit_kvcache_module", (ROW, ROW, 32)),
)
UTILITIES = (f"{OLD}.utils", "sglang.kernels.jit.utils")


def exists(module: str) -> bool:
    """Return whether a module can be found."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package above it
        return False


def kernel_builders() -> dict[str, Callable[[], Any]]:
    """Return the function that compiles each kernel in this version of SGLang."""
    import torch

    builders: dict[str, Callable[[], Any]] = {}
    for name, function, words in KERNELS:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        compiled = getattr(module, function, None)
        if compiled is not None:
            given = [getattr(torch, word) if isinstance(word, str) else word for word in words]
            called = function.removeprefix("_jit_").removesuffix("_module")
            builders[called] = functools.partial(compiled, *given)
    return builders


def main() -> None:
    """Compile each kernel for sm_90 with the function of SGLang."""
    os.environ["TVM_FFI_CACHE_DIR"] = str(Path("tvm-ffi").absolute())
    utils = importlib.import_module(next(filter(exists, UTILITIES), UTILITIES[-1]))
    kernels = kernel_builders()
    problems = [] if kernels else ["SGLang has none of the kernels of this case"]

    def _tried(name: str) -> str:
        try:
            kernels[name]()
        except Exception as error:  # noqa: BLE001  # any error of a compiler or a loader
            print(f"--- {name}\n{error}")
            return f"{name}: {first_error(str(error)) or error}"
        return ""

    with utils.override_jit_cuda_arch(*CAPABILITY), ThreadPoolExecutor(2) as pool:
        problems += [problem for problem in pool.map(_tried, kernels) if problem]
    finish(problems, f"{', '.join(kernels)} compiled for sm_90")


if __name__ == "__main__":
    main()
