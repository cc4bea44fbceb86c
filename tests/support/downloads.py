"""Downloads wheels from the default index of this machine's uv, and inputs of committed locks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from uv import find_uv_bin

from imgbuild.assemble.inputs import Inputs
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.http.client import HttpClient
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.load import load_matrix
from imgbuild.plan.plan import create_plan
from imgbuild.values import Arch, Sha256
from tests.support import needs

ROOT = Path(__file__).parents[2]


def index_words() -> list[str]:
    """The options of uv and pip for the default index."""
    command = [find_uv_bin(), "pip", "compile", "--quiet", "--no-header", "--emit-index-url", "-"]
    done = subprocess.run(command, input=b"", capture_output=True, check=True)
    return done.stdout.decode().split()


def download_wheels(folder: Path, packages: Iterable[str], *options: str) -> list[Path]:
    """Download wheels of exactly `packages` with additional `options` of pip.

    pip trusts the system's certificates.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    words = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    subprocess.run([*pip, *index_words(), *options, *words, *packages], check=True)
    return sorted(folder.glob("*.whl"))


def download_locked_wheels(target: str) -> tuple[Lock, Store, dict[Sha256, Path]]:
    """A committed lock, the user's cache, and the cached inputs of its x86_64 image by hash.

    Missing files are downloaded into the cache, as by `imgbuild build`. Keep a reference to the
    store, because other processes do not prune these files while the store exists.
    """
    lock, store = lock_file.read_lock(ROOT / "images", target), Store.open()
    layers = create_plan(lock, Arch.X86_64).layers
    required_hashes = {file.sha256 for layer in layers for file in layer.recipe.inputs}
    sizes = {wheel.sha256: wheel.size for wheel in lock.arch[Arch.X86_64].wheels}
    if absent := [key for key in required_hashes if store.file(key) is None]:
        needs.require_network()
        needs.require_disk_space(4 + sum(sizes.get(key, 0) for key in absent) / 1e9)
        Inputs(load_matrix(ROOT / "matrix.yaml"), Context(store, HttpClient())).fetch_inputs(
            lock, layers
        )
    return lock, store, {key: path for key in required_hashes if (path := store.file(key))}
