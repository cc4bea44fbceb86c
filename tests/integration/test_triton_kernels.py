"""The real Triton takes kernels from the wheel of what two runs of it compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from imgbuild.precompile import triton
from imgbuild.values import Arch
from tests.support import downloads, needs, samples, smoke_environment

pytestmark = [pytest.mark.network, pytest.mark.disk(3), pytest.mark.timeout(900)]
RELEASE = "3.6.0"
KERNEL = """\
import triton
import triton.language as tl


@triton.jit
def add(left, right, out, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    tl.store(out + places, tl.load(left + places, inside) + tl.load(right + places, inside), inside)
"""
# For a GPU that is not here. With a second word nothing may be compiled.
COMPILE = """\
import hashlib, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler.compiler import ASTSource
import kernel

def refuse(*words, **named):
    sys.exit("it is compiled")

if len(sys.argv) > 2:
    CUDABackend.make_cubin = refuse
signature = {"left": "*fp32", "right": "*fp32", "out": "*fp32", "count": "i32"}
signature["BLOCK"] = "constexpr"
source = ASTSource(fn=kernel.add, signature=signature, constexprs={"BLOCK": int(sys.argv[1])})
made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
print(hashlib.sha256(made.asm["cubin"]).hexdigest())
"""


class Sample:
    """An environment with Triton, and a folder for its caches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (27, 28)]
        options = [*platforms, "--python-version=3.11"]
        found = downloads.wheels(folder / "wheels", [f"triton=={RELEASE}"], *options)
        self.site = smoke_environment.make_venv(folder / "venv", found)
        for path in (self.site / "triton/backends/nvidia/bin").iterdir():
            path.chmod(0o755)
        (self.site / "kernel.py").write_text(KERNEL)

    def compile(self, block: int, cache: str, *more: str, **env: str) -> str:
        """What compiling the kernel says, the cache being in `cache`."""
        done = subprocess.run(
            [self.folder / "venv/bin/python", "-c", COMPILE, str(block), *more],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder),
                "TRITON_CACHE_DIR": str(self.folder / cache / "triton"),
                **env,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip() or done.stderr


@pytest.fixture(scope="module", name="sample")
def _sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    needs.network()
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the wheel of Triton is Python 3.11's")
    return Sample(tmp_path_factory.mktemp("triton"))


def test_a_kernel_of_the_wheel_is_not_compiled_again(sample):
    made = [sample.compile(128, cache) for cache in ("first", "second")]
    assert made[0] == made[1]
    assert len(made[0]) == 64, made[0]
    lock = samples.lock(samples.wheel("triton", RELEASE))
    pair = (sample.folder / "first", sample.folder / "second")
    wheel = triton.take(lock, Arch.X86_64, pair, sample.folder / "made")
    assert [kernel.name for kernel in wheel.kernels] == ["add"]
    assert wheel.kernels[0].differs == ()
    install = [find_uv_bin(), "pip", "install", "--quiet", "--offline", "--no-deps", "--no-index"]
    python = f"--python={sample.folder / 'venv/bin/python'}"
    subprocess.run([*install, python, sample.folder / "made" / wheel.file], check=True)

    manager = {triton.VARIABLE: f"{triton.MODULE}:Cache"}
    none = {**manager, triton.VARIABLE: "triton.runtime.cache:FileCacheManager"}
    assert "it is compiled" in sample.compile(128, "empty", "never")
    assert "it is compiled" in sample.compile(128, "empty", "never", **none)  # as the docs say
    assert sample.compile(128, "moved/here", "never", **manager) == made[0]
    [group] = (sample.folder / "moved/here").rglob("__grp__*")
    assert str(sample.folder / "moved/here/triton") in group.read_text()  # not of where it was
    assert "it is compiled" in sample.compile(256, "moved/here", "never", **manager)
    other = sample.compile(256, "moved/here", **manager)  # what the wheel lacks, as before
    assert len(other) == 64
    assert other != made[0]
    assert sample.compile(256, "moved/here", "never", **manager) == other
