"""Reads the program's source: its modules, their imports and their calls."""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "builder" / "imgbuild"


def tracked_files(*patterns: str) -> list[Path]:
    """The existing files that match a pattern and that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--"]
    listed = subprocess.run([*command, *patterns], cwd=ROOT, capture_output=True, check=True)
    names = sorted(set(listed.stdout.decode().split("\0")) - {""})
    return [ROOT / name for name in names if (ROOT / name).is_file()]


@functools.cache
def parse_file(path: Path) -> ast.Module:
    """The syntax tree of a file, parsed once for all tests.

    All trees together have 1.5 million nodes. They are excluded from garbage collection, which
    would take four times as long as parsing.
    """
    gc.disable()
    try:
        return ast.parse(path.read_text(), str(path))
    finally:
        gc.freeze()
        gc.enable()


@functools.cache
def all_nodes(tree: ast.Module) -> list[ast.AST]:
    """All nodes of a file, cached because `ast.walk` takes longer than parsing."""
    return list(ast.walk(tree))


@functools.cache
def package_modules() -> dict[str, ast.Module]:
    """Each module of the package, by its name below imgbuild ("" is the package itself).

    Programs in `data`, which run in images, are excluded.
    """
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] == "data":
            continue
        trees[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = parse_file(path)
    return trees


def module_path(name: str) -> Path:
    """Return the file of a module in `package_modules`, or the `__init__.py` of a folder."""
    path = PACKAGE.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def module_imports(tree: ast.Module) -> list[tuple[str, int]]:
    """The dotted name and line of every import in a module, also in functions.

    `from a import b` yields "a.b", because b can be a module.
    """
    names = []
    for node in all_nodes(tree):
        if isinstance(node, ast.Import):
            names += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return names


def internal_imports(name: str, trees: dict[str, ast.Module]) -> set[str]:
    """The modules of imgbuild that module `name` imports."""
    names = set()
    for dotted, _ in module_imports(trees[name]):
        if dotted.split(".")[0] != "imgbuild":
            continue
        parts = dotted.split(".")[1:]
        # The longest prefix that is a module; the other parts are names in it.
        while parts and ".".join(parts) not in trees:
            parts.pop()
        names.add(".".join(parts))
    return names - {name}


@functools.cache
def called_names(tree: ast.Module) -> list[tuple[str, int]]:
    """The plain or dotted name and line of every call in a module."""
    names = []
    for node in all_nodes(tree):
        if isinstance(node, ast.Call):
            with contextlib.suppress(RecursionError):  # a chain of calls, not a name
                names.append((ast.unparse(node.func), node.lineno))
    return names


def import_script(path: Path) -> ModuleType:
    """A script outside the package, imported as a module with a unique name."""
    spec = importlib.util.spec_from_file_location(f"script {path}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses search for it
    spec.loader.exec_module(module)
    return module
