"""Wheels from the default index of this machine's uv."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from uv import find_uv_bin


def index_words() -> list[str]:
    """The options by which uv, and pip too, would be told of that index."""
    command = [find_uv_bin(), "pip", "compile", "--quiet", "--no-header", "--emit-index-url", "-"]
    done = subprocess.run(command, input=b"", capture_output=True, check=True)
    return done.stdout.decode().split()


def wheels(folder: Path, packages: Iterable[str], *options: str) -> list[Path]:
    """Wheels of exactly `packages`, without what they need; `options` are further ones of pip's.

    pip trusts the system's certificates, as all else here does.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    words = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    subprocess.run([*pip, *index_words(), *options, *words, *packages], check=True)
    return sorted(folder.glob("*.whl"))
