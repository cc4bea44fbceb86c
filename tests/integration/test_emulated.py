"""Tests that the arm64 image of cu130-vllm, built on x86_64, runs under qemu-user."""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import needs

ROOT = Path(__file__).parents[2]
FORMATS = Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")
SCRIPT = r"""
set -e
uname -m
ldconfig -p
printf '#include <stdio.h>\nint main(void) { puts("compiled and run"); return 0; }\n' >/tmp/a.c
gcc -o /tmp/a /tmp/a.c && /tmp/a
python - <<'END'
import torch, trl, vllm
from trl import GRPOTrainer
from vllm import LLM
print("torch", torch.__version__, float(torch.eye(3).sum()))
print("trl", trl.__version__)
print("vllm", vllm.__version__)
END
"""

pytestmark = [pytest.mark.network, pytest.mark.engine, pytest.mark.disk(22)]


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_arm64_image_compiles_and_imports(tmp_path):
    if platform.machine() != "aarch64" and not FORMATS.exists():
        needs.skip_or_fail("the kernel cannot start arm64 programs", needs.INSTALL)
    out = tmp_path / "cu130-vllm"
    base = [sys.executable, "-m", "imgbuild"]
    arch = ["cu130-vllm", "--arch", "arm64"]
    subprocess.run([*base, "build", *arch, "--output", str(out)], cwd=ROOT, check=True)
    done = subprocess.run(
        [*base, "run", *arch, "--layout", str(out), "--through", "root", "--no-network", "--",
         "sh", "-c", SCRIPT],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    shutil.rmtree(out)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "aarch64"
    assert any("libc.so.6" in line and "AArch64" in line for line in lines)
    assert "compiled and run" in lines
    assert "torch 2.11.0+cu130 3.0" in lines
    assert "trl 1.9.2" in lines
    assert "vllm 0.24.0" in lines
