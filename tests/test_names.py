"""Tests that identifiers describe their values and that docstrings name existing items."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.source_code import ROOT, all_nodes, package_modules, parse_file, tracked_files

FILLER = re.compile(
    r"_?(?:found|one|own|made|said|asked|held|known|wanted|due|kept|told|stands)(?:_|$)"
)
LARGEST_SHARE = 0.02  # of functions; 0 to 0.006 in packaging, pip, requests, rich, typer, installer
# Terms that were specific to the authors; docs and code use other terms.
PRIVATE_WORDS = frozenset(
    (
        *("seal", "seals", "sealed", "shelf", "shelves", "book", "books", "bench", "benches"),
        *("workshop", "workshops", "wished", "carried", "vouched", "bill", "bills"),
    )
)
MOST_RENAMING_IMPORTS = 10
# What a docstring may name in backticks though the module's code has no such identifier: names of
# files and functions that the code reads or writes elsewhere.
NAMED_ELSEWHERE = frozenset(("gid_map", "uid_map", "_import_structure", "show"))
WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
BACKTICKED = re.compile(r"`([a-z_][a-z0-9_]*)`")
Definition = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def trees(*patterns: str) -> dict[Path, ast.Module]:
    """The tracked Python files that match."""
    return {path: parse_file(path) for path in tracked_files(*patterns)}


def functions(tree: ast.Module) -> Iterator[Definition]:
    """All functions and methods, including nested ones."""
    for node in all_nodes(tree):
        if isinstance(node, Definition):
            yield node


def names_in(function: Definition) -> Iterator[str]:
    """The names of a function, its parameters and variables, excluding nested functions."""
    yield function.name
    arguments = function.args
    for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        yield parameter.arg
    for extra in (arguments.vararg, arguments.kwarg):
        if extra is not None:
            yield extra.arg
    nodes: list[ast.AST] = list(function.body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, Definition):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        nodes.extend(ast.iter_child_nodes(node))


def identifiers(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every name that a module binds or passes, with its line."""
    for node in all_nodes(tree):
        if isinstance(node, Documented):
            yield node.name, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


@pytest.mark.parametrize("folder", ["builder", "tests", "tools", "lab", "smoke_tests"])
def test_few_functions_have_names_with_filler_words(folder: str) -> None:
    every, fillers = 0, []
    for path, tree in trees(f"{folder}/*.py").items():
        for function in functions(tree):
            every += 1
            names = sorted({name for name in names_in(function) if FILLER.match(name)})
            if names:
                fillers.append(f"{path.relative_to(ROOT)}:{function.lineno} {', '.join(names)}")
    assert len(fillers) <= LARGEST_SHARE * every, "\n".join(fillers)


def test_identifiers_use_the_terms_of_the_documentation() -> None:
    wrong = sorted(
        {
            f"{path.relative_to(ROOT)}:{line} {name}"
            for path, tree in trees("*.py").items()
            for name, line in identifiers(tree)
            if PRIVATE_WORDS & {word.lower() for word in WORDS.findall(name)}
        }
    )
    assert not wrong, "\n".join(wrong)


def test_docstrings_name_existing_identifiers() -> None:
    wrong = []
    for path, tree in trees("builder/*.py", "tools/*.py", "lab/*.py").items():
        docstrings = {
            node: text
            for node in all_nodes(tree)
            if isinstance(node, Documented) and (text := ast.get_docstring(node, clean=False))
        }
        code = path.read_text()
        for text in docstrings.values():
            code = code.replace(text, "")
        there = set(re.findall(r"\w+", code))
        wrong += [
            f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: `{name}`"
            for node, text in docstrings.items()
            for name in BACKTICKED.findall(text)
            if name not in there | NAMED_ELSEWHERE
            and not keyword.iskeyword(name)
            and not re.fullmatch(r"__\w+__", name)
        ]
    assert not wrong, "\n".join(wrong)


def test_few_imports_rename_a_module_of_imgbuild() -> None:
    known = package_modules()
    renaming = [
        f"{name}: {alias.name} as {alias.asname}"
        for name, tree in known.items()
        for node in all_nodes(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if alias.asname and alias.asname != alias.name
        and _dotted(node, alias).removeprefix("imgbuild.") in known
    ]  # fmt: skip
    assert len(renaming) <= MOST_RENAMING_IMPORTS, "\n".join(renaming)


def _dotted(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    return f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name


def test_filler_words_in_identifiers_are_detected() -> None:
    source = (
        "def f(found, *, kept_parts=()):\n"
        "    own = [one for one in found]\n"
        "    try: pass\n"
        "    except OSError as said: pass\n"
        "    return lambda wanted: wanted\n"
    )
    (function,) = functions(ast.parse(source))
    names = {name for name in names_in(function) if FILLER.match(name)}
    assert names == {"found", "kept_parts", "own", "one", "said", "wanted"}
