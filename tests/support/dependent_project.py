"""Creates the project of `inprocess_project` with wheels that depend on each other."""

from __future__ import annotations

from pathlib import Path

from imgbuild.cache.store import Store
from imgbuild.matrix.load import load_matrix
from imgbuild.values import Arch
from tests.support import inprocess_project, samples
from tests.support.inprocess_project import TARGET

NEEDS = {"trl": ["torch>=2.5", "tqdm; extra == 'bar'"], "vllm": ["torch==2.6.0", "trl[bar]"]}
PACKAGES = {**inprocess_project.PACKAGES, "tqdm": "4.67"}


def write_project(folder: Path) -> None:
    """Write matrix, lock and digests into `folder`, and the wheels into the cache."""
    inprocess_project.write_project(folder)
    store = Store.open()
    spool = folder.parent / "spool"
    spool.mkdir()
    wheels = {}
    for package, version in PACKAGES.items():
        path = samples.write_wheel(spool, package, version, requires=NEEDS.get(package, ()))
        wheels[package] = samples.add_to_store(store, path, package, version)
    matrix = load_matrix(folder / "matrix.yaml")
    inprocess_project.lock_target(folder, matrix, TARGET, wheels, (Arch.X86_64,))
    store.release()
