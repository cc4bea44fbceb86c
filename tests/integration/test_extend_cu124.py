"""Tests an extension of cu124-vllm with packages, system packages and a file.

The tests use the cache of the user, so only the first run downloads.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.lock import lock_file
from imgbuild.plan import image_digests
from imgbuild.values import Arch
from tests.support import images, needs

ROOT = Path(__file__).parents[2]
TARGET = "cu124-vllm"
OWN = "ours"
SCRIPT = """\
#!/bin/sh
jq --version
python -c 'import einx, einops, torch; print(einx.__name__, torch.__version__)'
"""

pytestmark = [
    pytest.mark.long, pytest.mark.network, pytest.mark.disk(25), pytest.mark.timeout(1800),
]  # fmt: skip


def imgbuild(folder: Path, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    done = subprocess.run(
        [sys.executable, "-m", "imgbuild", *arguments],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A locked repository that adds einx, jq and a script."""
    folder = tmp_path_factory.mktemp("extend")
    (folder / "train.sh").write_text(SCRIPT)
    (folder / "train.sh").chmod(0o755)
    imgbuild(
        folder, "init", OWN, "--extends", TARGET, "--lock", str(ROOT), "--add", "einx",
        "--system", "jq", "--file", "train.sh:/opt/team/train.sh",
    )  # fmt: skip
    imgbuild(folder, "lock", OWN)
    yield folder
    shutil.rmtree(folder)


def test_published_layers_keep_digests(ours: Path) -> None:
    lock = lock_file.read_lock(ROOT / "images", TARGET)
    below = image_digests.read_digests(ROOT / "images", lock).arch[Arch.X86_64].layers
    extension_lock = lock_file.read_lock(ours / ".imgbuild/images", OWN)
    layers = (
        image_digests.read_digests(ours / ".imgbuild/images", extension_lock)
        .arch[Arch.X86_64]
        .layers
    )
    assert layers[: len(below)] == below
    assert sum(layer.size for layer in layers[len(below) :]) < 2_000_000
    added = extension_lock.extends.arch[Arch.X86_64] if extension_lock.extends is not None else None
    assert added is not None
    assert added.wheels == ("einx", "frozendict")
    assert "jq" in added.debs


def test_extension_is_audited_with_published_packages(ours: Path) -> None:
    (report,) = json.loads(imgbuild(ours, "audit", OWN, "--json").stdout)
    assert report["target"] == OWN
    assert [finding for finding in report["findings"] if finding["severity"] == "error"] == []


def test_extended_image_runs(ours: Path) -> None:
    needs.user_namespaces()
    out = ours / "image"
    imgbuild(ours, "build", OWN, "--output", str(out))
    assert images.verify_layout(out).digest == imgbuild(ours, "digest", OWN).stdout.strip()
    ran = imgbuild(
        ours, "run", OWN, "--layout", str(out), "--through", "root", "--", "/opt/team/train.sh"
    )
    assert ran.stdout == "jq-1.6\neinx 2.6.0+cu124\n"


def test_added_package_that_requires_a_different_torch_is_refused(tmp_path: Path) -> None:
    imgbuild(
        tmp_path, "init", OWN, "--extends", TARGET, "--lock", str(ROOT), "--add",
        "torch-tensorrt==2.7.0",
    )  # fmt: skip
    result = imgbuild(tmp_path, "lock", OWN, status=8).stderr
    assert "torch-tensorrt cannot be added to cu124-vllm" in result
    assert "cu124-vllm has torch 2.6.0" in result
    assert "torch-tensorrt 2.7.0 requires torch<2.8.0,>=2.7.0 (its METADATA)" in result
