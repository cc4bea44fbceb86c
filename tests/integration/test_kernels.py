"""Kernels are compiled in an image without a GPU, and FlashInfer takes them from the wheel."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from imgbuild.cache.store import Store
from imgbuild.container import run_in_image
from imgbuild.container.request import ContainerRequest, Mount
from imgbuild.container.root_folder import root_folder
from imgbuild.errors import WorkFailed
from imgbuild.matrix.model import Flashinfer
from imgbuild.oci import layout
from imgbuild.precompile import flashinfer
from imgbuild.values import Arch
from tests.support import needs, samples, smoke_environment

ROOT = Path(__file__).parents[2]
TARGET = "cu130-vllm"
FUNCTION = "flashinfer.jit.quantization:gen_quantization_module"  # one of the smallest
ASKS = """\
from flashinfer.jit.quantization import gen_quantization_module
spec = gen_quantization_module()
print(spec.is_aot, spec.get_library_path())
"""


def imgbuild(folder: Path, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in `folder`, on TARGET for x86_64."""
    command = [sys.executable, "-m", "imgbuild", verb, TARGET, "--arch", "x86_64", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_an_image_without_a_compiler_tells_so(tmp_path):
    needs.user_namespaces()
    (tmp_path / "wheels").mkdir()
    built = smoke_environment.make_layout(tmp_path, smoke_environment.good(tmp_path / "wheels"))
    source = samples.matrix(
        flashinfer=Flashinfer(mode="jit", reason="tested"), cuda="13.0", pins={"torch": "2.11.0"}
    )
    lock = samples.lock(samples.wheel("flashinfer-python", "0.6.12"), of=source)
    with pytest.raises(WorkFailed, match=r"No such file or directory: 'gcc'") as caught:
        flashinfer.compile_twice(
            lock, built, Arch.X86_64, flashinfer.SAMPLING, ["9.0"],
            store=Store.open(tmp_path / "cache"), out=tmp_path / "out",
        )  # fmt: skip
    assert caught.value.hint == "look into the image: imgbuild run small -- sh"
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.network
@pytest.mark.disk(26)
@pytest.mark.timeout(2400)
def test_kernels_of_a_real_image(tmp_path):
    needs.user_namespaces()
    shutil.copytree(ROOT / "images", tmp_path / "images")
    shutil.copy(ROOT / "matrix.yaml", tmp_path)
    imgbuild(tmp_path, "build")
    done = imgbuild(
        tmp_path, "precompile", "flashinfer", "--gpu", "9.0", "--function", FUNCTION, "--json"
    )
    made = json.loads(done.stdout)
    assert [each["name"] for each in made["kernels"]] == ["quantization"]
    assert "flashinfer-jit-cache: wheels" in done.stderr
    with zipfile.ZipFile(tmp_path / "wheels" / made["file"]) as archive:
        archive.extractall(tmp_path / "site")
    built = layout.read(tmp_path / "build" / TARGET)
    with root_folder(built, Arch.X86_64, Store.open()) as root:
        asked = run_in_image.run_in_root(
            root,
            run_in_image.running(built, Arch.X86_64),
            ContainerRequest(
                command=("/opt/venv/bin/python", "-c", ASKS),
                env={"PYTHONPATH": "/site", "FLASHINFER_CUDA_ARCH_LIST": "9.0"},
                mounts=(Mount(source=tmp_path / "site", target="/site"),),
                network=False,
            ),
        )
    assert asked.stdout.split() == [
        "True",
        "/site/flashinfer_jit_cache/jit_cache/quantization/quantization.so",
    ], asked.stderr
