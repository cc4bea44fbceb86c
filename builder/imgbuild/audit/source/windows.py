"""Windows: where code itself says with which versions of another package it works.

Input: the source of a module. Output: `Window` values: a `raise`, a failing `assert`, a
warning or a call such as `require_version("numpy>=2")`, and the conditions under which it runs.
"""

from __future__ import annotations

import ast
import re
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement

from imgbuild.audit.source.conditions import DATA, Conditions
from imgbuild.audit.source.facts import Guard, Window
from imgbuild.audit.source.known import Branches, Guards
from imgbuild.audit.source.text import Source, dotted, string
from imgbuild.audit.source.walk import Walker

# A module without these words declares no window: most are not walked at all.
_COMPARES = re.compile(rb"__version__|[Vv]ersion\(|version\.parse|require_version")
_REFUSES = re.compile(rb"\braise\b|\bassert\b|\.warn|require_version")
_WARNERS = frozenset(("warn", "warning", "warning_once", "warn_once", "warning_advice"))
_REQUIRERS = frozenset(("require_version", "require_version_core"))
_UNSET = re.compile(r"not \(.*\bos\.(?:getenv|environ)\b.*\)|.*\bos\.(?:getenv|environ)\b.*")


Outcome = Literal["raise", "warn"]


def find(source: bytes, module: str, *, package: bool) -> tuple[Window, ...]:
    """The windows that `source` declares; none for what cannot be parsed."""
    if _COMPARES.search(source) is None or _REFUSES.search(source) is None:
        return ()
    try:
        tree = ast.parse(source.removeprefix(b"\xef\xbb\xbf"))
        reader = _Reader(Source(source), tree, module, package=package)
        reader.block(tree.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(reader.windows)


class _Exact(Conditions):
    """Conditions that lose nothing: data is unknown, and the outside of a range is a guard.

    A spec that starts with "!" is what a specifier leaves out; "==@other", "!=@other" and
    "^=@other", "!^=@other" compare with the version of another package (equal, starts with).
    """

    def read(self, test: ast.expr) -> Branches:
        """The guards of the branch where the test holds, and of the other."""
        yes, no = super().read(test)
        if (yes, no) == DATA:
            text = self.source.short(test)
            return (Guard("data", text),), (Guard("data", f"not ({text})"),)
        return _complement(yes, no), _complement(no, yes)

    def _compare(self, test: ast.Compare) -> Branches | None:
        found = super()._compare(test)
        if found is None and len(test.ops) == 1:
            left, right = (self.versions.package(one) for one in (test.left, test.comparators[0]))
            equal = isinstance(test.ops[0], ast.Eq)
            if left and right and left != right and isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
                same = (Guard("version", right, f"==@{left}"),)
                other = (Guard("version", right, f"!=@{left}"),)
                return (same, other) if equal else (other, same)
        return found

    def _call(self, test: ast.Call) -> Branches | None:
        if isinstance(test.func, ast.Attribute) and test.func.attr == "startswith" and test.args:
            package = self.versions.package(test.func.value)
            other = self.versions.package(test.args[0])
            if package and other:
                return (
                    (Guard("version", package, f"^=@{other}"),),
                    (Guard("version", package, f"!^=@{other}"),),
                )
        return super()._call(test)


def _complement(guards: Guards, other: Guards) -> Guards:
    """`guards`, or what is known of them when only the other branch is understood.

    That is the outside of a range where `other` holds clauses about one package, or data.
    """
    if len(guards) != 1 or guards[0].kind != "unknown" or not other:
        return guards
    if all(one.kind == "data" for one in other):
        return (Guard("data", guards[0].subject),)
    plain = all(one.kind == "version" and one.spec[:1] not in "!^" for one in other)
    if not plain or len({one.subject for one in other}) != 1:
        return guards
    return (Guard("version", other[0].subject, "!" + ",".join(one.spec for one in other)),)


class _Reader(Walker):
    """A walk that records what refuses and what warns."""

    def __init__(self, source: Source, tree: ast.Module, module: str, *, package: bool) -> None:
        super().__init__(source, tree, module, package=package)
        self.conditions = _Exact(source, module, self.known)
        self.windows: list[Window] = []
        self._statements[ast.Raise] = self._raise

    def _raise(self, node: ast.Raise) -> None:
        self.visit(node)
        if node.exc is not None:
            call = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            self._window(node.lineno, "raise", dotted(call).rpartition(".")[2], self.guards)

    def _assert(self, node: ast.Assert) -> Guards | None:
        held, failed = self.conditions.read(node.test)
        self._window(node.lineno, "raise", "AssertionError", self.joined(failed))
        super()._assert(node)
        return held

    def _expression(self, node: ast.Expr) -> None:
        call = node.value
        if isinstance(call, ast.Call):
            last = dotted(call.func).rpartition(".")[2]
            if last in _WARNERS:
                self._window(node.lineno, "warn", last, self.guards)
            elif last in _REQUIRERS and call.args:
                self._require(call)
        super()._expression(node)

    def _require(self, call: ast.Call) -> None:
        """`require_version("numpy>=2")` raises for anything else, and where numpy is absent."""
        try:
            wanted = Requirement(string(call.args[0]) or "")
        except InvalidRequirement:
            return
        guard = Guard("version", wanted.name.replace("-", "_"), f"!{wanted.specifier}")
        self._window(call.lineno, "raise", "ImportError", self.joined((guard,)))

    def _window(self, line: int, outcome: Outcome, name: str, guards: Guards) -> None:
        """Keep what the version of another package decides, and nothing behind that."""
        kept = tuple(one for one in guards if not _UNSET.fullmatch(one.subject))
        own = self.module.partition(".")[0]
        if kept and kept[-1].kind == "version" and kept[-1].subject != own:
            self.windows.append(Window(line, outcome, name, self.scope.name, kept))
