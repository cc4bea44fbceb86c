"""Finds the files of a user's code: Python, notebooks, shell scripts, YAML, JSON, Dockerfiles."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from imgbuild.audit.code import heredocs, notebooks
from imgbuild.audit.code.model import CodeText
from imgbuild.errors import InputError
from imgbuild.system.control_characters import shown_path

# Folders of tools, of environments and of results; and any whose name begins with a dot.
_SKIPPED_FOLDERS = frozenset(
    ("__pycache__", "node_modules", "build", "dist", "venv", "env", "site-packages", "wandb")
)
_KINDS = {
    ".py": "python",
    ".ipynb": "python",
    ".sh": "shell",
    ".bash": "shell",
    ".slurm": "shell",
    ".sbatch": "shell",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
}
LARGEST_FILE = 4 << 20  # bytes of a file that is read; larger ones are data
LARGEST_JSON = 64 << 10
_SHELL = re.compile(rb"#!.*\b(?:ba|z|da|k)?sh\b")
_PYTHON = re.compile(rb"#!.*\bpython")


def find_files(paths: Iterable[Path], *, deadline: float = math.inf) -> tuple[CodeText, ...]:
    """Return the files in `paths` and their subfolders, without duplicates.

    Raises InputError for a path that does not exist. Raises TimeoutError after `deadline`, which is
    a value of `time.monotonic()`.
    """
    texts: dict[Path, CodeText] = {}
    places = _Places()
    for path in paths:
        if not path.exists():
            message = f"{path}: no such file or folder"
            raise InputError(message, hint="pass a file or folder that contains your code")
        if not path.is_file() and not path.is_dir():
            message = f"{path}: not a file or a folder"
            raise InputError(message, hint="write the code to a file, and pass the file")
        for file in [path] if path.is_file() else files_below(path):
            if time.monotonic() > deadline:
                raise TimeoutError
            if not file.is_file():  # a broken or circular link, or a pipe
                continue
            resolved = places.resolve(file)
            if resolved not in texts:
                text = _read_code_file(file, places, named=file is path)
                if text is not None:
                    texts[resolved] = text
    return tuple(texts.values())


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below `folder`, sorted, without folders that contain no user code."""
    for current, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if name not in _SKIPPED_FOLDERS
            and not name.startswith(".")
            and not name.endswith(".egg-info")
            and not Path(current, name, "pyvenv.cfg").exists()
        )
        yield from (Path(current, name) for name in sorted(files))


def _kind(path: Path, start: bytes) -> str:
    """Return the type of a file, from its name or first line.

    Return "" for other types.
    """
    name = path.name
    if name.split(".", 1)[0] in ("Dockerfile", "Containerfile") or path.suffix == ".Dockerfile":
        return "dockerfile"
    if path.suffix in _KINDS:
        return _KINDS[path.suffix]
    if _SHELL.match(start):
        return "shell"
    return "python" if _PYTHON.match(start) else ""


def _read_code_file(path: Path, places: _Places, *, named: bool) -> CodeText | None:
    """Return the text of a file, or None if it is not code.

    Raises InputError for an unreadable path that the user passed.
    """
    try:
        largest = LARGEST_JSON if path.suffix == ".json" else LARGEST_FILE
        if path.stat().st_size > largest:
            if named:
                message = f"{path}: larger than {largest >> 10} KiB, the limit for a code file"
                raise InputError(message, hint="pass a code file, or the folder of your project")
            return None
        with path.open("rb") as file:
            start = file.read(128).removeprefix(b"\xef\xbb\xbf")
            kind = _kind(path, start)
            source = start + file.read() if kind else b""
    except OSError as error:
        if named:
            message = f"{path}: {error.strerror or error}"
            raise InputError(message, hint="change its permissions, or omit it") from error
        return None
    if not kind:
        if named:
            message = f"{path}: not Python, a notebook, a shell script, a Dockerfile, YAML or JSON"
            raise InputError(message, hint="pass a code file, or the folder of your project")
        return None
    cells: tuple[int, ...] = ()
    commands, broken = b"", ""
    if path.suffix == ".ipynb":
        try:
            source, commands, cells = notebooks.notebook_module(source)
        except ValueError as error:
            source, broken = b"", str(error)
    embedded = heredocs.python_module(source) if kind == "shell" else b""
    if kind != "python" and not embedded:
        return CodeText(file=shown_path(str(path)), kind=kind, source=source)
    root, module = places.module(path)
    if embedded:  # no code imports it
        kind, source, commands, module = "python", embedded, source, ""
    return CodeText(
        file=shown_path(str(path)),
        kind=kind,
        source=source,
        commands=commands,
        module=module,
        package=path.name == "__init__.py",
        root=root,
        cells=cells,
        broken=broken,
    )


class _Places:
    """Finds the real paths of files, and the names under which Python imports them, by folder."""

    def __init__(self) -> None:
        self._folders: dict[Path, Path] = {}
        self._packages: dict[Path, tuple[str, tuple[str, ...]]] = {}

    def resolve(self, path: Path) -> Path:
        """Return the path of a file without symbolic links."""
        if path.is_symlink():
            return path.resolve()
        folder = path.parent
        if folder not in self._folders:
            self._folders[folder] = folder.resolve()
        return self._folders[folder] / path.name

    def module(self, path: Path) -> tuple[str, str]:
        """Return the folder from which Python imports a file, and its dotted name there."""
        folder = self.resolve(path).parent
        if folder not in self._packages:
            self._packages[folder] = _package(folder)
        root, parents = self._packages[folder]
        parts = parents if path.name == "__init__.py" else (*parents, path.stem)
        return root, shown_path(".".join(parts))


def _package(folder: Path) -> tuple[str, tuple[str, ...]]:
    """Return the folder from which Python imports a package, and the parts of its name there."""
    parts: list[str] = []
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    return str(folder), tuple(parts)


def fork_texts(folder: Path, package: str) -> tuple[CodeText, ...]:
    """Return the modules of `package` in a checkout.

    Raises InputError if the folder contains none.
    """
    name = package.replace("-", "_")
    texts = tuple(text for text in find_files([folder]) if text.module.partition(".")[0] == name)
    if not texts:
        message = f"{folder} has no module {name}"
        raise InputError(message, hint=f"pass a checkout that contains {name}/__init__.py")
    return texts
