"""Every importable name of every distribution imports, each distribution in a process of its own.

The names come from RECORD, which lists what is installed; top_level.txt is often absent and
sometimes wrong. First the outermost names, and modules inside packages that top_level.txt has too,
such as code that protobuf generated; then every extension module: one built for another torch
(`undefined symbol`) is often not loaded by `import package`.

So each crash, hang or error belongs to one distribution, and an import of one distribution cannot
hide that another one lacks it. What cannot be imported is a failure, unless allowed.json names it
with its exception and a reason; then it is reported as skipped.
"""

from __future__ import annotations

import concurrent.futures
import csv
import mmap
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import Distribution
from pathlib import Path

from smoke_import import judge
from smoke_support import allowed, finish, installed


def import_names(distribution: Distribution) -> list[str]:
    """The names to import: the outermost and the declared ones, then the extension modules."""
    rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
    base = str(distribution.locate_file(""))
    places = {
        path: place for row in rows if row and (place := place_of(path := f"{base}/{row[0]}"))
    }
    packages = {parts[:-1] for parts in places.values() if parts[-1] == "__init__.py"}
    declared = {
        line.strip().replace("/", ".")
        for line in (distribution.read_text("top_level.txt") or "").splitlines()
    }
    outer, extensions = set(), set()
    for path, parts in places.items():
        stem = module_stem(Path(path))
        if not stem or not all(part.isidentifier() for part in (*parts[:-1], stem)):
            continue
        # Folders without __init__.py are namespaces (google, nvidia): their contents are listed.
        owner = next((parts[:n] for n in range(1, len(parts)) if parts[:n] in packages), None)
        name = owner or (*parts[:-1], stem)
        if name[-1] != "__main__":
            outer.add(".".join(name))
            outer |= {".".join((*parts[:-1], stem))} & declared if stem != "__init__" else set()
        if not parts[-1].endswith(".py"):
            extensions.add(".".join((*parts[:-1], stem)))
    return [*sorted(outer), *sorted(extensions - outer)]


def place_of(path: str) -> tuple[str, ...]:
    """The parts of `path` below the folder of sys.path that it is in; () if it is in none.

    The deepest folder counts: a .pth file may add one inside site-packages, whose modules
    break if they are imported by their longer name.
    """
    path = os.path.normpath(path)
    above = [folder for folder in sys.path if folder and path.startswith(f"{folder.rstrip('/')}/")]
    folder = max(above, key=len, default="")
    return tuple(path[len(folder) :].strip("/").split("/")) if folder else ()


def module_stem(path: Path) -> str:
    """The name that `path` is imported by; "" if it is no module."""
    if path.suffix == ".py":
        return path.stem
    for suffix in EXTENSION_SUFFIXES:
        if path.name.endswith(suffix):
            # An extension module has an init function; without one it is a plain library.
            stem = path.name.removesuffix(suffix)
            return stem if holds(path, f"PyInit_{stem}\0".encode()) else ""
    return ""


def holds(path: Path, words: bytes) -> bool:
    """Whether the file at `path`, which may be large, holds `words`."""
    try:
        with (
            path.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return content.find(words) >= 0
    except (OSError, ValueError):  # absent (the case "files" says so) or empty
        return False


def main() -> None:
    """Import all distributions, two at a time, since large ones wait for disk and memory."""
    waivers = allowed("imports")
    work = {name: import_names(distribution) for name, distribution in installed()}
    importable = {name: names for name, names in work.items() if names}
    print("no importable name:", ", ".join(sorted(work.keys() - importable.keys())) or "none")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = {
            name: pool.submit(judge, f"import {name}", name, names, waivers)
            for name, names in sorted(importable.items())
        }
    problems = [f"{name} does not import" for name, job in jobs.items() if not job.result()]
    if not importable:
        problems.append("nothing to import")
    names = sum(map(len, importable.values()))
    finish(problems, f"{names} names of {len(importable)} distributions")


if __name__ == "__main__":
    main()
