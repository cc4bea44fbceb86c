"""Finds the project or the catalogue, and the paths of `matrix.yaml`, `images/` and `build/`.

In a user's project, all files except `matrix.yaml` are in the folder `.imgbuild`, because Python
tools could mistake a folder with another name for a package.

The catalogue is the matrix, locks and test records that are installed with imgbuild. It is used if
there is no other matrix, and is read-only.
"""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

import msgspec

from imgbuild.errors import InputError
from imgbuild.system.folder import require_below

MATRIX = "matrix.yaml"
FOLDER = ".imgbuild"
UPDATE = ".imgbuild-update"  # in the folder of locks: what `imgbuild update` is about to write
JOURNAL = "journal.json"  # in it, once it is complete
CATALOGUE = Path(str(resources.files("imgbuild").joinpath("data", "catalogue")))
OWN_PROJECT = (
    "start a project with `imgbuild init --extends TARGET`, or work in a clone of imgbuild's "
    "repository"
)


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """A folder with a `matrix.yaml`. The catalogue is a project that is not `writable`.

    `staged` replaces `folder` for locks that must not take effect yet.
    """

    matrix: Path
    writable: bool = True
    staged: Path | None = None

    @property
    def root(self) -> Path:
        """The folder of the matrix."""
        return self.matrix.parent

    @property
    def code(self) -> Path:
        """The folder of the project's code, relative to the current folder, as messages show it."""
        return Path(os.path.relpath(self.root))

    @property
    def folder(self) -> Path:
        """The folder of all files except the matrix: `.imgbuild` if it exists, or the root."""
        return self.staged or _folder(self.root)

    @property
    def images(self) -> Path:
        """The folder of locks, digests and test records."""
        return self.folder / "images"

    @property
    def work(self) -> Path:
        """The folder for outputs: the matrix's folder or, for the catalogue, the current folder."""
        return self.root if self.writable else Path.cwd()

    @property
    def outputs(self) -> Path:
        """The parent folder of the folder `build`."""
        return _folder(self.work)

    def output(self, target: str) -> Path:
        """Return the default layout folder of `target`. Raises the same errors as `output_path`."""
        return self.output_path(f"build/{target}")

    def output_path(self, name: str) -> Path:
        """Return the path `name` in the folder for outputs, or in `.imgbuild` there if it exists.

        Raises InputError if the path contains a link, because a link in a checkout could redirect a
        build to another folder. Links are followed only in paths that the user specifies with
        `--output`.
        """
        return require_below(self.work, self.outputs / name)

    @property
    def is_half_updated(self) -> bool:
        """Return whether an update was interrupted while it wrote files."""
        return (self.folder / UPDATE / JOURNAL).exists()

    def locked_targets(self) -> tuple[str, ...]:
        """Return the names of the targets that have a lock."""
        return tuple(sorted(path.parent.name for path in self.images.glob("*/lock.json")))

    def require_writable(self, command: str, *, hint: str = OWN_PROJECT) -> None:
        """Raise InputError if the project is the catalogue, to which `command` cannot write."""
        if not self.writable:
            message = (
                f"{command}: no {MATRIX} in {Path.cwd()} or any parent folder, and the catalogue "
                "installed with imgbuild is read-only"
            )
            raise InputError(message, hint=hint)


def _folder(root: Path) -> Path:
    """Return `.imgbuild` in `root`, or `root`. Raises InputError if `.imgbuild` is a link."""
    inner = root / FOLDER
    if inner.is_symlink():
        message = f"{inner} is a symbolic link, so locks and outputs would be written elsewhere"
        raise InputError(message, hint="replace the link with a folder")
    return inner if inner.is_dir() else root


def catalogue_project() -> Project:
    """Return the catalogue that is installed with imgbuild."""
    return Project(matrix=CATALOGUE / MATRIX, writable=False)


def find_project(named: Path | None) -> Project:
    """Find the project of the matrix at `named`.

    By default, the matrix in the current folder or the nearest parent is used, or else the
    catalogue. Raises InputError if `named` does not exist.
    """
    if named is not None:
        path = named / MATRIX if named.is_dir() else named
        if not path.is_file():
            message = f"{path}: no such file"
            raise InputError(message, hint="pass the path of a matrix.yaml with --matrix FILE")
        if path.absolute() == CATALOGUE / MATRIX:  # as processes that imgbuild starts name it
            return catalogue_project()
        return Project(matrix=path.resolve())
    here = Path.cwd()
    for folder in (here, *here.parents):
        path = folder / MATRIX
        if path.is_file():
            return Project(matrix=path)
        if os.path.lexists(path):
            message = f"{path} is not a file, or is a link to a missing file"
            raise InputError(message, hint="remove the path, or pass another file with --matrix")
    return catalogue_project()
