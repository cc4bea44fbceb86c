"""Creates links, pipes and devices that a checkout or shared folder can have instead of files."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path


def _device(path: Path) -> None:
    """A device with endless content, or a pipe for an ordinary user."""
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))


OBSTACLES: dict[str, Callable[[Path], object]] = {"pipe": os.mkfifo, "folder": Path.mkdir}
if os.geteuid() == 0:
    OBSTACLES["device"] = _device


def outside_folder(tmp_path: Path) -> Path:
    """A folder with files that must not be changed."""
    folder = tmp_path / "outside"
    (folder / "deep").mkdir(parents=True, exist_ok=True)
    (folder / "c.json").write_bytes(b"mine")
    (folder / "deep/notes").write_bytes(b"mine")
    return folder


def folder_state(folder: Path) -> dict[str, bytes]:
    """The regular files below `folder` and their content."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
