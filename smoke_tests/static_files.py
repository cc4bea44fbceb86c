"""Tests that every file in a RECORD exists with its size, and that every file is in a RECORD.

A script in several RECORDs must have the size in one of them, because a script of a user's package
replaces a script with the same name.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Collection
from importlib.metadata import Distribution
from pathlib import Path

from smoke_support import finish, installed, site_packages


def record(distribution: Distribution) -> list[list[str]]:
    """Return the rows of RECORD with path, hash and size."""
    text = distribution.read_text("RECORD")
    return [] if text is None else [row for row in csv.reader(text.splitlines()) if row]


def main() -> None:
    """Compare the RECORDs with the folder."""
    root = site_packages()
    problems = []
    owned: dict[str, list[tuple[str, str]]] = {}  # path → packages with the sizes in their RECORDs
    for name, distribution in installed():
        rows = record(distribution)
        if not rows:
            problems.append(f"{name}: no RECORD")
        base = str(distribution.locate_file(""))
        for path, _, size in rows:
            full = os.path.normpath(os.path.join(base, path))
            owned.setdefault(full, []).append((f"{name}: {path}", size))
    for full, entries in owned.items():
        try:
            actual = str(Path(full).stat().st_size)
        except OSError as error:
            problems += [f"{where}: {error.strerror}" for where, _ in entries]
            continue
        if Path(full).parent.name == "bin":
            compared = [] if actual in {size for _, size in entries} else entries[:1]
        else:
            compared = entries
        problems += [
            f"{where}: {actual} bytes, expected {size} from RECORD"
            for where, size in compared
            if size not in ("", actual)
        ]
    for folder, folders, names in os.walk(root):
        folders[:] = [item for item in folders if item != "__pycache__"]
        problems += [text for item in names if (text := foreign_file(f"{folder}/{item}", owned))]
        links = (f"{folder}/{item}" for item in [*folders, *names])
        problems += [f"{link}: a broken link" for link in links if not Path(link).exists()]
    finish(problems, f"{len(owned)} files, all complete and owned by a distribution")


def foreign_file(path: str, owned: Collection[str]) -> str:
    """Return a problem if `path` is in no RECORD and is no link that matrix.yaml declares."""
    if path in owned or Path(path).is_symlink():
        return ""
    return f"{path}: in no RECORD"


if __name__ == "__main__":
    main()
