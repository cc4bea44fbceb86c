"""Every importable name of every distribution imports, each distribution in a process of its own.

The names come from RECORD, which says what is really there; top_level.txt is often absent and
sometimes wrong. First the outermost names, then every extension module: one built for another torch
(`undefined symbol`) often stays unseen by `import package`.

A crash, a hang or an error is thus the fault of one distribution, and no import hides the one that
the next should have made itself. What cannot be imported is a failure, unless allowed.json names it
with its exception and a reason; then it is reported as skipped.
"""

from __future__ import annotations

import concurrent.futures
import csv
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import Distribution
from pathlib import Path

from smoke_import import judge
from smoke_support import allowed, finish, installed


def import_names(distribution: Distribution) -> list[str]:
    """The names to import: the outermost ones, then the extension modules below them."""
    rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
    files = {tuple(row[0].split("/")) for row in rows if row}
    base = Path(str(distribution.locate_file("")))
    packages = {parts[:-1] for parts in files if parts[-1] == "__init__.py"}
    outer, extensions = set(), set()
    for parts in files:
        stem = module_stem(base.joinpath(*parts))
        if not stem or not all(part.isidentifier() for part in (*parts[:-1], stem)):
            continue
        # Folders without __init__.py are namespaces (google, nvidia): one looks below them.
        owner = next((parts[:n] for n in range(1, len(parts)) if parts[:n] in packages), None)
        name = owner or (*parts[:-1], stem)
        if name[-1] != "__main__":
            outer.add(".".join(name))
        if not parts[-1].endswith(".py"):
            extensions.add(".".join((*parts[:-1], stem)))
    return [*sorted(outer), *sorted(extensions - outer)]


def module_stem(path: Path) -> str:
    """The name that `path` is imported by; "" if it is no module."""
    if path.suffix == ".py":
        return path.stem
    for suffix in EXTENSION_SUFFIXES:
        if path.name.endswith(suffix):
            stem = path.name.removesuffix(suffix)
            # `libfoo.so` may be a plain library: an extension module has an entry point.
            if suffix != ".so" or f"PyInit_{stem}".encode() in path.read_bytes():
                return stem
            return ""
    return ""


def main() -> None:
    """All distributions, two at a time: the heavy ones wait for disk and memory."""
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
