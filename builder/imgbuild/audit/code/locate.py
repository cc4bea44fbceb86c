"""Finds the column of a finding in the syntax tree."""

# A separate module: traverses a tree once.
from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from functools import cached_property

from imgbuild.audit.code.code_set import CODE, CodeSet
from imgbuild.audit.code.model import CodeText
from imgbuild.audit.code.replaced import unused_lines
from imgbuild.audit.source.tree import walk_tree
from imgbuild.report import ConflictRelation, Evidence
from imgbuild.system.syntax import parse_source


class CodeTree:
    """The syntax tree of a Python file, parsed when the first finding is located in it."""

    def __init__(self, text: CodeText, code: CodeSet) -> None:
        self._text = text
        self._code = code

    @cached_property
    def _lines(self) -> list[bytes]:
        return self._text.source.splitlines()

    def _is_import(self, line: int) -> bool:
        """Whether the statement on this line is an import at the top level, outside of any block.

        Most findings are about such imports, which can be located without a syntax tree.
        """
        text = self._lines[line - 1] if line <= len(self._lines) else b""
        return text.startswith((b"import ", b"from "))

    @cached_property
    def _tree(self) -> ast.Module:
        return parse_source(self._text.source)

    def _nodes(self, line: int) -> Iterator[ast.AST]:
        """Yield the nodes that start on a line, outer ones first."""
        waiting: deque[ast.AST] = deque([self._tree])
        while waiting:
            for node in ast.iter_child_nodes(waiting.popleft()):
                decorators = getattr(node, "decorator_list", ())  # on lines before the node's
                start = getattr(node, "lineno", 0)
                first = decorators[0].lineno if decorators else start
                if not start or first <= line <= (getattr(node, "end_lineno", 0) or start):
                    waiting.append(node)
                    if start == line:
                        yield node

    @cached_property
    def _all_statements(self) -> list[ast.stmt]:
        """All statements of the file, including nested ones."""
        statements: list[ast.stmt] = [*self._tree.body]
        for statement in statements:
            for name in ("body", "orelse", "finalbody"):
                statements += getattr(statement, name, ())
            for name in ("handlers", "cases"):
                for part in getattr(statement, name, ()):
                    statements += part.body
        return statements

    @cached_property
    def _conditional_blocks(self) -> list[tuple[int, int]]:
        """The first and last lines of blocks that may not run, except `if __name__ == …`."""
        kinds = (ast.If, ast.For, ast.While, ast.FunctionDef, ast.AsyncFunctionDef)
        return [
            (node.lineno + 1, node.end_lineno or node.lineno)
            for node in self._all_statements
            if isinstance(node, kinds) and not (isinstance(node, ast.If) and _is_main(node.test))
        ]

    def always_runs(self, line: int) -> bool:
        """Whether a line runs whenever the file runs."""
        return self._is_import(line) or not any(
            first <= line <= last for first, last in self._conditional_blocks
        )

    @cached_property
    def _tests(self) -> list[tuple[ast.If, frozenset[str]]]:
        """The `if` statements, each with the functions that its condition calls without data."""
        found = [
            (node, _called_functions(node.test))
            for node in self._all_statements
            if isinstance(node, ast.If)
        ]
        return [(node, names) for node, names in found if names]

    @cached_property
    def _functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return [node for node in self._all_statements if isinstance(node, kinds)]

    @cached_property
    def _unused_lines(self) -> tuple[range, ...]:
        return unused_lines(self._code, self._text)

    def is_unused(self, line: int) -> bool:
        """Whether a line is in a function that the file uses only with other package sets."""
        indented = line <= len(self._lines) and self._lines[line - 1][:1].isspace()
        return (
            indented
            and self._definition(line) in self._used
            and any(line in lines for lines in self._unused_lines)
        )

    def _definition(self, line: int) -> str:
        """Return the top-level function or class that contains a line, or "" if none does."""
        around = (each for each in self._tree.body if each.lineno <= line <= (each.end_lineno or 0))
        return getattr(next(around, None), "name", "")

    @cached_property
    def _used(self) -> frozenset[str]:
        """The names that the file uses outside of their definitions."""
        return frozenset(
            node.id
            for statement in self._tree.body
            for node in walk_tree(statement)
            if isinstance(node, ast.Name) and node.id != getattr(statement, "name", "")
        )

    def may_be_guarded(self, line: int) -> bool:
        """Whether a function of the user, called without data, determines if the line runs.

        The function may test for a version or name in a form that the audit does not recognize.
        """
        if self._is_import(line):
            return False
        around = {
            name
            for node, names in self._tests
            if node.lineno < line <= (node.end_lineno or 0) or self._leaves_before(node, line)
            for name in names
        }
        if not around:
            return False
        names = {node.name for node in self._functions if isinstance(node, ast.FunctionDef)}
        for node in self._all_statements:
            if isinstance(node, ast.ImportFrom) and (
                node.level or self._is_user(node.module or "")
            ):
                names.update(alias.asname or alias.name for alias in node.names)
        return not around.isdisjoint(names)

    def _is_user(self, module: str) -> bool:
        return self._code.owner(module) == CODE

    def _leaves_before(self, node: ast.If, line: int) -> bool:
        """Whether the function that contains `line` can return in `node`, before that line."""
        leaves = isinstance(node.body[-1], (ast.Return, ast.Raise, ast.Continue))
        return leaves and any(
            function.lineno < node.lineno < line <= (function.end_lineno or 0)
            for function in self._functions
        )

    def place(self, evidence: Evidence) -> tuple[int, int]:
        """Return the line and column of the subject of `evidence`, counted from 1.

        The column is 1 if the subject cannot be found.
        """
        whole = evidence.relation in (ConflictRelation.MODULE, ConflictRelation.PACKAGE)
        if whole and self._is_import(evidence.line):
            return evidence.line, 1
        name = evidence.subject.rpartition(":")[2].rpartition(".")[2].partition("(")[0]
        inner = evidence.subject.rpartition("(")[2].removesuffix(")")
        nodes = list(self._nodes(evidence.line))
        matches: list[ast.expr | ast.stmt | ast.keyword | None] = [
            _named_node(node, evidence.relation, name) for node in nodes
        ]
        if evidence.relation is ConflictRelation.KEYWORD:
            # In the call itself if the keyword is in a dictionary; another function may pass it on.
            calls = [node for node in nodes if isinstance(node, ast.Call)]
            same = [call for call in calls if _callee(call) == name]
            words = [word for call in (*same, *calls) for word in call.keywords]
            matches = [*(word for word in words if word.arg == inner), *same]
        for match in matches:
            if match is not None:
                known = match.lineno <= len(self._lines)
                line = self._lines[match.lineno - 1] if known else b""
                prefix = line[: match.col_offset].decode(errors="replace")
                return match.lineno, len(prefix) + 1
        return evidence.line, 1


def _is_main(test: ast.expr) -> bool:
    """Whether a condition is `__name__ == "__main__"`."""
    return (
        isinstance(test, ast.Compare)
        and [type(operator) for operator in test.ops] == [ast.Eq]
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
        and isinstance(test.comparators[0], ast.Constant)
        and test.comparators[0].value == "__main__"
    )


def _called_functions(test: ast.expr) -> frozenset[str]:
    """Return the functions that a condition calls by name, with literal arguments or none."""
    return frozenset(
        node.func.id
        for node in walk_tree(test)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and all(isinstance(value, ast.Constant) for value in node.args)
        and not node.keywords
    )


def _named_node(node: ast.AST, relation: ConflictRelation, name: str) -> ast.expr | ast.stmt | None:
    """Return the part of `node` that the finding concerns.

    This is an imported name, an attribute or a call.
    """
    match relation:
        case ConflictRelation.ARGUMENT if isinstance(node, ast.Call) and _callee(node) == name:
            return node
        case ConflictRelation.MODULE | ConflictRelation.PACKAGE if isinstance(
            node, (ast.Import, ast.ImportFrom)
        ):
            return node
        case ConflictRelation.NAME if isinstance(node, ast.ImportFrom):
            return next((item for item in node.names if item.name == name), None)  # type: ignore[return-value]
        case ConflictRelation.NAME | ConflictRelation.ATTRIBUTE if isinstance(node, ast.Attribute):
            return node if node.attr == name else None
    return None


def _callee(node: ast.Call) -> str:
    """Return the last component of a callee's name. A constructor can have any name."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
