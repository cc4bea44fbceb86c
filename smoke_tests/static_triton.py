"""Tests that Triton compiles its launcher and driver bindings with the gcc of the image.

On first use, Triton compiles two small C files and links them with `-lcuda`. This requires no GPU,
but libcuda.so, which the container runtime provides with the driver. This case uses a stub of
libcuda.so in a folder named by TRITON_LIBCUDA_PATH, a variable that users can also set.

With a driver that has only libcuda.so.1, linking fails with `cannot find -lcuda`. A stub in the
image would prevent the error, but would later be loaded instead of the driver. Therefore, the image
has no stub (see the case "system"), and the link libcuda.so must be created on the host.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import types
from pathlib import Path
from typing import Any

from smoke_support import expectation, finish, skip

KERNEL = """\
import triton
import triton.language as tl


@triton.jit
def add(left, right, out, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    tl.store(out + places, tl.load(left + places, inside) + tl.load(right + places, inside), inside)
"""


def stub_driver(folder: Path, sources: list[str]) -> None:
    """Create a libcuda.so.1 with the functions used in `sources`, and the link to it."""
    names = sorted(set(re.findall(r"\b(cu[A-Z]\w+)\s*\(", "\n".join(sources))))
    stub = folder / "stub.c"
    stub.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in names))
    library = folder / "libcuda.so.1"
    compiler = os.environ.get("CC", "gcc")
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
        str(stub),
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True)
    (folder / "libcuda.so").symlink_to("libcuda.so.1")


def compiled(triton: Any, capability: int) -> Any:
    """Compile the kernel for sm_90 with the ptxas of Triton, without a GPU."""
    Path("smoke_kernel.py").write_text(KERNEL)
    spec = importlib.util.spec_from_file_location("smoke_kernel", "smoke_kernel.py")
    if spec is None or spec.loader is None:
        message = "smoke_kernel.py"
        raise ImportError(message)
    kernels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernels)
    compiler = importlib.import_module("triton.compiler.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", capability, 32)
    signature = {"left": "*fp32", "right": "*fp32", "out": "*fp32", "count": "i32"}
    constants: dict[str, Any] = {"constants": {"BLOCK": 128}}
    if "constexprs" in inspect.signature(compiler.ASTSource).parameters:  # since Triton 3.3
        constants = {"constexprs": {"BLOCK": 128}}
        signature["BLOCK"] = "constexpr"
    source = compiler.ASTSource(fn=kernels.add, signature=signature, **constants)
    return triton.compile(source, target=target)


def main() -> None:
    """Compile the bindings, a kernel and its launcher, as Triton does before a first launch."""
    if "triton" not in expectation()["packages"]:
        skip("the lock has no triton")
    os.environ["TRITON_CACHE_DIR"] = str(Path("cache").absolute())
    os.environ["TRITON_LIBCUDA_PATH"] = str(Path.cwd())
    triton = importlib.import_module("triton")
    driver = importlib.import_module("triton.backends.nvidia.driver")
    text = Path(str(driver.__file__)).read_text("utf-8")
    bindings = Path(str(driver.__file__)).with_name("driver.c").read_text("utf-8")
    stub_driver(Path.cwd(), [text, bindings])
    # The linker finds the stub, the loader does not: it is opened here like the driver.
    ctypes.CDLL(str(Path("libcuda.so.1").absolute()), mode=ctypes.RTLD_GLOBAL)
    utils = driver.CudaUtils()
    kernel = compiled(triton, 90)
    if hasattr(utils, "launch"):  # since Triton 3.7: one launcher, that of the active driver
        triton.runtime.driver.set_active(types.SimpleNamespace(utils=utils))
    launcher = driver.CudaLauncher(kernel.src, kernel.metadata)
    problems = []
    if not callable(getattr(utils, "load_binary", None)) or not callable(launcher.launch):
        problems.append("Triton's compiled modules lack load_binary or launch")
    if not kernel.asm.get("cubin"):
        problems.append("Triton's ptxas produced no cubin for sm_90")
    finish(problems, f"triton {triton.__version__}: bindings, a kernel for sm_90, its launcher")


if __name__ == "__main__":
    main()
