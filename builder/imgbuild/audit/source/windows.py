"""Finds version windows: code that raises or warns for some versions of a package.

A window is a `raise`, a failing `assert`, a warning or a call such as
`require_version("numpy>=2")`, with the conditions under which it runs.
"""

from __future__ import annotations

import ast
import re
from typing import Literal

from imgbuild.audit.source.conditions import DATA, ConditionReader
from imgbuild.audit.source.facts import Guard, VersionWindow
from imgbuild.audit.source.name_values import Branches, Guards, NameValues
from imgbuild.audit.source.statements import StatementReader
from imgbuild.audit.source.text import SourceText, dotted_name, string_value
from imgbuild.system.syntax import parse_source, valid_requirement

# A module without these words has no window: most need not be parsed.
_COMPARISON = re.compile(rb"__version__|[Vv]ersion\(|version\.parse|require_version")
_REFUSAL = re.compile(rb"\braise\b|\bassert\b|\.warn|require_version")
_WARNERS = frozenset(("warn", "warning", "warning_once", "warn_once", "warning_advice"))
_REQUIRERS = frozenset(("require_version", "require_version_core"))
_PREFIX_OPERATORS = ("^=", "!^=")
_UNSET_CONDITION = re.compile(
    r"not \(.*\bos\.(?:getenv|environ)\b.*\)|.*\bos\.(?:getenv|environ)\b.*"
)


Outcome = Literal["raise", "warn"]


def read_windows(source: bytes, module: str, *, package: bool) -> tuple[VersionWindow, ...]:
    """Return the windows declared in `source`, or () if it cannot be parsed."""
    if _COMPARISON.search(source) is None or _REFUSAL.search(source) is None:
        return ()
    try:
        tree = parse_source(source.removeprefix(b"\xef\xbb\xbf"))
        reader = _WindowReader(source, tree, module, package=package)
        reader.statements.read_block(tree.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(reader.windows)


class _WindowReader:
    """Records statements that raise or warn, with the guards under which they run.

    The guards are complete: conditions on data and complements of ranges are included. A spec that
    starts with "!" is the complement of a specifier. "==@other", "!=@other", "^=@other" and
    "!^=@other" compare with the version of another package (equal, starts with).
    """

    def __init__(self, source: bytes, tree: ast.Module, module: str, *, package: bool) -> None:
        self.conditions = ConditionReader(SourceText(source), module, NameValues(tree.body, source))
        self.conditions.refine = self._refine_branches
        self.statements = StatementReader(self.conditions, package=package)
        self.statements.watchers = {
            ast.Raise: self._read_raise,
            ast.Assert: self._read_assert,
            ast.Expr: self._read_expression,
        }
        self.expressions = self.statements.expressions
        self.windows: list[VersionWindow] = []

    def _refine_branches(self, test: ast.expr, branches: Branches) -> Branches:
        branches = self._two_versions(test) or branches
        if branches == DATA:
            text = self.conditions.source.short_text(test)
            return (Guard("data", text),), (Guard("data", f"not ({text})"),)
        yes, no = branches
        return _complement_guards(yes, no), _complement_guards(no, yes)

    def _two_versions(self, test: ast.expr) -> Branches | None:
        """Return the guards of a comparison of two packages' versions.

        Examples are `x == y` and `x.startswith(y)`.
        """
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            left, right = test.comparators[0], test.left
            if not isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
                return None
            signs = ("==", "!=") if isinstance(test.ops[0], ast.Eq) else ("!=", "==")
        elif isinstance(test, ast.Call) and isinstance(test.func, ast.Attribute) and test.args:
            if test.func.attr != "startswith":
                return None
            left, right = test.func.value, test.args[0]
            signs = _PREFIX_OPERATORS
        else:
            return None
        package, other = map(self.conditions.versions.package, (left, right))
        if not package or not other or (package == other and signs != _PREFIX_OPERATORS):
            return None
        yes, no = (Guard("version", package, f"{sign}@{other}") for sign in signs)
        return (yes,), (no,)

    def _read_raise(self, node: ast.Raise) -> None:
        if node.exc is not None:
            call = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            self._record_window(
                node.lineno, "raise", dotted_name(call).rpartition(".")[2], self.expressions.guards
            )

    def _read_assert(self, node: ast.Assert) -> None:
        failed = self.conditions.read(node.test)[1]
        guards = self.expressions.add_current_guards(failed)
        self._record_window(node.lineno, "raise", "AssertionError", guards)

    def _read_expression(self, node: ast.Expr) -> None:
        call = node.value
        if isinstance(call, ast.Call):
            last = dotted_name(call.func).rpartition(".")[2]
            if last in _WARNERS:
                self._record_window(node.lineno, "warn", last, self.expressions.guards)
            elif last in _REQUIRERS and call.args:
                self._read_requirement(call)

    def _read_requirement(self, call: ast.Call) -> None:
        """Record `require_version("numpy>=2")`, which raises unless numpy is compatible."""
        requirement = valid_requirement(string_value(call.args[0]) or "")
        if requirement is None:
            return
        guard = Guard("version", requirement.name.replace("-", "_"), f"!{requirement.specifier}")
        self._record_window(
            call.lineno, "raise", "ImportError", self.expressions.add_current_guards((guard,))
        )

    def _record_window(self, line: int, outcome: Outcome, name: str, guards: Guards) -> None:
        """Record a window if its last guard in the function tests another package's version."""
        scope = self.expressions.scope
        retained = tuple(guard for guard in guards if not _UNSET_CONDITION.fullmatch(guard.subject))
        within = [guard for guard in guards[scope.guarded :] if guard in retained]
        package = self.conditions.module.partition(".")[0]
        if within and within[-1].kind == "version" and within[-1].subject != package:
            self.windows.append(VersionWindow(line, outcome, name, scope.name, retained))


def _complement_guards(guards: Guards, other: Guards) -> Guards:
    """Return `guards`, or the complement of `other` if only the other branch was recognized.

    A complement exists if `other` is a version range of one package, or depends on data.
    """
    if len(guards) != 1 or guards[0].kind != "unknown" or not other:
        return guards
    if all(guard.kind == "data" for guard in other):
        return (Guard("data", guards[0].subject),)
    plain = all(guard.kind == "version" and guard.spec[:1] not in "!^" for guard in other)
    if not plain or len({guard.subject for guard in other}) != 1:
        return guards
    return (Guard("version", other[0].subject, "!" + ",".join(guard.spec for guard in other)),)
