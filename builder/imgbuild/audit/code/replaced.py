"""Finds functions that a file does not use with a package set."""

# A separate module: reads files again.
from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from imgbuild.audit.code.code_set import CodeSet
from imgbuild.audit.code.model import CodeText
from imgbuild.audit.main_path.guards import judge_guards
from imgbuild.audit.source.module import read_module

# A part of all conditions that the audit may recognize as false, or as being about packages.
_CONDITION = re.compile(rb"version|has|avail|find_spec|support|signature|except", re.IGNORECASE)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def unused_lines(code: CodeSet, text: CodeText) -> tuple[range, ...]:
    """Return the lines of top-level functions and classes that may be unused with this package set.

    All their uses in the file are in other such functions, or under conditions on versions that are
    false or unknown, such as `if version < "0.20"`. The functions are implementations for other
    versions.
    """
    if _CONDITION.search(text.source) is None:
        return ()
    defined: dict[str, Definition] = {}
    uses: dict[str, list[str]] = {}  # name → the names around its uses that run
    for name, scope, runs in _uses(code, text, defined):
        around = scope.partition(".")[0]
        if around != name:
            uses.setdefault(name, []).extend([around] if runs else [])
    unused: set[str] = set()
    while True:
        more = {name for name, around in uses.items() if unused.issuperset(around)} - unused
        if not more:
            return tuple(
                range(defined[name].lineno, (defined[name].end_lineno or 0) + 1) for name in unused
            )
        unused |= more


def _uses(
    code: CodeSet, text: CodeText, defined: dict[str, Definition]
) -> Sequence[tuple[str, str, bool]]:
    """Return the uses of top-level definitions: name, scope, and whether the code certainly runs.

    The definitions are added to `defined`. Each use is changed to a call, because the source reader
    finds conditions of calls.
    """

    def _call_definitions(tree: ast.Module) -> None:
        defined.update({node.name: node for node in tree.body if isinstance(node, Definition)})
        _CallReplacer(frozenset(defined)).visit(tree)

    facts = read_module(
        text.source, text.module, text.file, package=text.package, look=_call_definitions
    )
    courses = [
        (call, judge_guards(code, call.guards)) for call in facts.calls if call.callee in defined
    ]
    return [(call.callee, call.scope, course.runs and course.clear) for call, course in courses]


class _CallReplacer(ast.NodeTransformer):
    """Replaces uses of names by calls without arguments."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace a use by a call."""
        if node.id in self._names and isinstance(node.ctx, ast.Load):
            return ast.copy_location(ast.Call(func=node, args=[], keywords=[]), node)
        return node
