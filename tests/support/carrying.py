"""A small target, built and locked, and packed by tools/gpu_pack.py for a GPU machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from imgbuild import codec
from imgbuild.lock import lock
from imgbuild.oci import layout
from imgbuild.oci.layout import Layout
from tests.support import needs, smoke_environment

REPOSITORY = Path(__file__).parents[2]


def tool(name: str, *words: object) -> subprocess.CompletedProcess[str]:
    """A script of tools/ with these words."""
    command = [sys.executable, "-B", str(REPOSITORY / "tools" / name), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def build(folder: Path) -> Layout:
    """Build the target `small` below `folder`: build/small, its lock in images/small."""
    needs.root()
    needs.tool("zstd")
    folder.chmod(0o755)  # the smoke tests' user enters it
    (folder / "wheels").mkdir()
    wheels = smoke_environment.good(folder / "wheels")
    built = smoke_environment.make_layout(folder, wheels)
    (folder / "build").mkdir()
    built.path.rename(folder / "build/small")
    locked = lock.lock_path(folder / "images", "small")
    locked.parent.mkdir(parents=True)
    codec.write(locked, smoke_environment.make_lock_of(wheels))
    return layout.read(folder / "build/small")


def places(folder: Path) -> tuple[object, ...]:
    """The options that say where the target of `folder` lies."""
    return ("--layouts", folder / "build", "--images", folder / "images")


def pack(folder: Path, *words: object) -> Path:
    """The carried folder of the target of `folder`: carry/images, carry/loads."""
    done = tool("gpu_pack.py", folder / "carry", "small", *places(folder), "--level", 1, *words)
    assert done.returncode == 0, done.stderr
    return folder / "carry"
