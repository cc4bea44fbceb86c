"""Prepares a cache folder for several users."""

# A separate module: a security boundary.
from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from imgbuild.errors import InputError
from imgbuild.system.folder import OpenFolder, is_shared, make_own, make_private
from imgbuild.system.reporter import Reporter

_PART = re.compile(r"user-[0-9]+")


def prepare_cache(root: Path, reporter: Reporter) -> tuple[Path, Path | None]:
    """Create the cache at `root`. Returns this user's folder, and the shared folder or None.

    Raises InputError if another user can modify the cache.
    """
    if is_shared(root):
        folder = make_own(root, f"user-{os.geteuid()}")
        make_private(folder)
        return folder, root
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    if not make_private(root):
        reporter.warn(
            f"removed the write permission of other users from {root}; to share the cache, run as "
            f"its owner: chmod 1777 {root}"
        )
    return root, None


def open_files_of_others(shared: Path, current: Path, name: str) -> Iterator[BinaryIO]:
    """Yield open files `name` from other users' caches in `shared`.

    Their contents are not trusted.
    """
    with OpenFolder.open(shared) as folder:
        for part in folder.names():
            if _PART.fullmatch(part) and part != current.name:
                with contextlib.suppress(FileNotFoundError, PermissionError, InputError):
                    descriptor = folder.file(f"{part}/{name}")
                    with os.fdopen(descriptor, "rb") as file:
                        yield file
