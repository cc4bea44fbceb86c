"""Where a project keeps its things: `matrix.yaml`, the folder `images` beside it, the outputs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from imgbuild.errors import InputError

MATRIX = "matrix.yaml"


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """A folder with a matrix."""

    matrix: Path

    @property
    def root(self) -> Path:
        """The folder of the matrix."""
        return self.matrix.parent

    @property
    def images(self) -> Path:
        """The folder of locks and seals."""
        return self.root / "images"

    def output(self, target: str) -> Path:
        """Where the layout of `target` goes unless the user names another place."""
        return self.root / "build" / target

    def sealed(self) -> tuple[str, ...]:
        """The targets that have a lock."""
        return tuple(sorted(path.parent.name for path in self.images.glob("*/lock.json")))


def find(named: Path | None) -> Project:
    """The project of the matrix at `named`, else of the nearest one in this folder or above."""
    if named is not None:
        path = named / MATRIX if named.is_dir() else named
        if not path.is_file():
            message = f"{path}: no such file"
            raise InputError(message, hint="name a matrix with --matrix FILE")
        return Project(matrix=path.resolve())
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / MATRIX).is_file():
            return Project(matrix=folder / MATRIX)
    message = f"no {MATRIX} in {here} or above"
    raise InputError(message, hint="run inside a checkout, or name a matrix with --matrix FILE")
