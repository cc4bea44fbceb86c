"""Finds imports of a module in a project's Python files without running them."""

from __future__ import annotations

import ast
import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path

import msgspec

from imgbuild.audit.code.code_files import files_below
from imgbuild.system.syntax import parse_source

FILES_LIMIT = 2_000
SIZE_LIMIT = 1 << 20  # bytes of a file


class ImportSite(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """An import statement. `guarded` means that it is in a function, a condition or a `try`."""

    file: str
    line: int
    guarded: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (" (only in some cases)" if self.guarded else "")


def import_sites(folder: Path, modules: frozenset[str]) -> dict[str, tuple[ImportSite, ...]]:
    """Map each module to the places below `folder` that import it or a submodule.

    Files that cannot be parsed are omitted. In very large projects, only the first 2,000 files are
    read.
    """
    sites: dict[str, list[ImportSite]] = {module: [] for module in modules}
    for path in _files(folder) if modules else ():
        try:
            data = path.read_bytes()
            if not any(module.encode() in data for module in modules):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of invalid escapes, in files of others
                tree = parse_source(data)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        name = path.relative_to(folder).as_posix()
        for module, line, guarded in _imports(tree, guarded=False):
            if module in sites:
                sites[module].append(ImportSite(file=name, line=line, guarded=guarded))
    return {module: tuple(sorted(items)) for module, items in sites.items()}


def _files(folder: Path) -> Iterator[Path]:
    modules = (
        path
        for path in files_below(folder)
        if path.suffix == ".py" and not path.is_symlink() and path.stat().st_size <= SIZE_LIMIT
    )
    return itertools.islice(modules, FILES_LIMIT)


def _imports(node: ast.AST, *, guarded: bool) -> Iterator[tuple[str, int, bool]]:
    """Yield the top-level module, the line and whether the import is guarded."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (
                (each.name.partition(".")[0], child.lineno, guarded) for each in child.names
            )
        elif isinstance(child, ast.ImportFrom) and child.level == 0 and child.module:
            yield child.module.partition(".")[0], child.lineno, guarded
        inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.If, ast.Try, ast.TryStar)
        yield from _imports(child, guarded=guarded or isinstance(child, inner))
