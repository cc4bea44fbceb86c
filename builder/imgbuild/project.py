"""The paths of a project: `matrix.yaml`, the folder `images` next to it, and the outputs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from imgbuild.errors import InputError

MATRIX = "matrix.yaml"


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """A folder with a `matrix.yaml`."""

    matrix: Path

    @property
    def root(self) -> Path:
        """The folder of the matrix."""
        return self.matrix.parent

    @property
    def images(self) -> Path:
        """The folder of locks, digests and test records."""
        return self.root / "images"

    def output(self, target: str) -> Path:
        """The default folder for the OCI layout of `target`."""
        return self.root / "build" / target

    def sealed(self) -> tuple[str, ...]:
        """The targets that have a lock."""
        return tuple(sorted(path.parent.name for path in self.images.glob("*/lock.json")))


def find(named: Path | None) -> Project:
    """The project of the matrix at `named`, or of the first one in this folder or its parents.

    InputError if there is none.
    """
    if named is not None:
        path = named / MATRIX if named.is_dir() else named
        if not path.is_file():
            message = f"{path}: no such file"
            raise InputError(message, hint="pass the path of a matrix.yaml with --matrix FILE")
        return Project(matrix=path.resolve())
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / MATRIX).is_file():
            return Project(matrix=folder / MATRIX)
    message = f"no {MATRIX} in {here} or any parent folder"
    raise InputError(message, hint="run it in a project, or pass --matrix FILE")
