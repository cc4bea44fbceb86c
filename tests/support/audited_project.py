"""Creates a small project with one lock of cached wheels, for `imgbuild audit`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from imgbuild import codec
from imgbuild.cache.store import Store
from imgbuild.lock import lock_file
from imgbuild.lock.resolution import Resolution, Wheel
from imgbuild.matrix.load import load_matrix
from imgbuild.values import Arch
from tests.support import samples
from tests.support.matrix_text import VALID_MATRIX

TARGET = "cu124-vllm"


class Project:
    """A project with a matrix and a lock in the test's folder, and wheels in the cache."""

    def __init__(self, folder: Path, packages: Mapping[str, Mapping[str, str]]) -> None:
        self.folder = folder
        (folder / "matrix.yaml").write_text(VALID_MATRIX, encoding="utf-8")
        store = Store.open()
        self.wheels: dict[str, Wheel] = {}
        for package, files in packages.items():
            data = {path: text.encode() for path, text in files.items()}
            path = samples.write_wheel(folder, package, "1.0", data)
            self.wheels[package] = samples.add_to_store(store, path, package)
        store.release()
        resolution = Resolution(
            wheels=tuple(self.wheels[name] for name in sorted(self.wheels)),
            debs=(samples.deb("g++"),),
        )
        lock = lock_file.make_lock(
            load_matrix(folder / "matrix.yaml"), TARGET, {Arch.X86_64: resolution}
        )
        codec.write_document(lock_file.lock_path(folder / "images", TARGET), lock)

    def edit(self, old: str, new: str) -> None:
        """Replace a text that occurs once in the matrix."""
        path = self.folder / "matrix.yaml"
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1
        path.write_text(text.replace(old, new), encoding="utf-8")
