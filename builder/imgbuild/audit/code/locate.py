"""Finds the column of a finding in the syntax tree."""

# A separate module: traverses a tree once.
from __future__ import annotations

import ast
import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate

from imgbuild.audit.code.code_set import CODE, CodeSet
from imgbuild.audit.code.model import CodeText
from imgbuild.audit.code.replaced import unused_lines
from imgbuild.audit.source.tree import walk_tree
from imgbuild.report import ConflictRelation, Evidence
from imgbuild.system import files, yaml_data
from imgbuild.system.syntax import parse_source

_OF_KEYWORDS = (ConflictRelation.KEYWORD, ConflictRelation.VALUE, ConflictRelation.ANNOTATION)
_BLOCKS = frozenset(("body", "orelse", "finalbody"))
_ASSIGNED = re.compile(rb"\.(\w+)\s*=(?!=)")
_ASSIGNED_NAME = re.compile(rb"(?<!\w)(?!self\b|cls\b)\w+\.(\w+)\s*=(?!=)")
_IMPORTED_ROOT = re.compile(rb"^[ \t]*(?:import|from)[ \t]+(\w+)", re.MULTILINE)
_IN_ATTR_CALL = re.compile(rb"attr\([^\n]([^\n]*)")  # hasattr, setattr
_QUOTED = re.compile(rb"[\"'](\w+)(?=[\"'])")
_QUOTED_ROOT = re.compile(rb"[\"'](\w+)(?=[.\"'])")


@lru_cache(maxsize=1)
def replaced_packages() -> Mapping[str, tuple[str, ...]]:
    """Return package → packages whose classes and functions its import replaces."""
    return yaml_data.load_yaml_data(
        files.data("audit/replaced_packages.yaml"), dict[str, tuple[str, ...]]
    )


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
            for node in _children_around(waiting.popleft(), line):
                start = getattr(node, "lineno", 0)
                first = _first_line(node)
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
    def _conditional_lines(self) -> frozenset[int]:
        """The lines of blocks that may not run, except `if __name__ == …`."""
        kinds = (ast.If, ast.For, ast.While, ast.FunctionDef, ast.AsyncFunctionDef)
        return _covered_lines(
            (node.lineno + 1, node.end_lineno or node.lineno)
            for node in self._all_statements
            if isinstance(node, kinds) and not (isinstance(node, ast.If) and _is_main(node.test))
        )

    def always_runs(self, line: int) -> bool:
        """Whether a line runs whenever the file runs."""
        return self._is_import(line) or line not in self._conditional_lines

    @cached_property
    def _functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return [node for node in self._all_statements if isinstance(node, kinds)]

    def concerns_parameter(self, evidence: Evidence) -> bool:
        """Whether an attribute is missing on a parameter of the function that contains the line."""
        if evidence.relation is not ConflictRelation.ATTRIBUTE:
            return False
        name = evidence.subject.rpartition(".")[2]
        receivers = {
            node.value.id
            for node in self._nodes(evidence.line)
            if isinstance(node, ast.Attribute)
            and node.attr == name
            and isinstance(node.value, ast.Name)
        }
        return any(
            argument.arg in receivers and argument.annotation is not None
            for function in self._functions
            if function.lineno <= evidence.line <= (function.end_lineno or 0)
            for argument in (
                *function.args.posonlyargs,
                *function.args.args,
                *function.args.kwonlyargs,
            )
        )

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
        body = self._tree.body
        around = (each for each in _around(body, line) if each.lineno <= line)
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
        return line in self._guarded_lines

    @cached_property
    def _guarded_lines(self) -> frozenset[int]:
        """The lines in or after `if` statements that call functions of the user without data.

        Lines after the statement, in the same function, count if its body leaves the function.
        """
        functions = sorted((node.lineno, node.end_lineno or 0) for node in self._functions)
        ends = [*accumulate((end for _, end in functions), max)]
        blocks = []
        for node in self._all_statements:
            if not isinstance(node, ast.If) or self._user_names.isdisjoint(
                _called_functions(node.test)
            ):
                continue
            last = node.end_lineno or 0
            before = bisect_left(functions, (node.lineno,))
            if before and isinstance(node.body[-1], (ast.Return, ast.Raise, ast.Continue)):
                last = max(last, ends[before - 1])
            blocks.append((node.lineno + 1, last))
        return _covered_lines(blocks)

    @cached_property
    def _user_names(self) -> frozenset[str]:
        """The functions of the file, and the names that it imports from other files of the user."""
        names = {node.name for node in self._functions if isinstance(node, ast.FunctionDef)}
        for node in self._all_statements:
            if isinstance(node, ast.ImportFrom) and (
                node.level or self._is_user(node.module or "")
            ):
                names.update(alias.asname or alias.name for alias in node.names)
        return frozenset(names)

    def _is_user(self, module: str) -> bool:
        return self._code.owner(module) == CODE

    @cached_property
    def _assigned_attributes(self) -> frozenset[bytes]:
        """The attributes that the file assigns or tests."""
        source = self._text.source
        calls = (_QUOTED.findall(rest) for rest in _IN_ATTR_CALL.findall(source))
        return frozenset((*_ASSIGNED.findall(source), *(name for names in calls for name in names)))

    @cached_property
    def _assigned_names(self) -> frozenset[bytes]:
        """The attributes that the file assigns to other names than self: `np.float_ = …`."""
        return frozenset(_ASSIGNED_NAME.findall(self._text.source))

    @cached_property
    def _replaced_packages(self) -> frozenset[str]:
        """The packages whose classes an import in the file replaces."""
        roots = set(_IMPORTED_ROOT.findall(self._text.source))
        replaced = replaced_packages()
        return frozenset(
            name for root in roots for name in replaced.get(root.decode(errors="replace"), ())
        )

    @cached_property
    def _registered_roots(self) -> frozenset[bytes]:
        source = self._text.source
        return frozenset(_QUOTED_ROOT.findall(source) if b"sys.modules" in source else ())

    def is_replaced(self, evidence: Evidence) -> bool:
        """Whether a file replaces modules or functions of the package, or assigns the name.

        For an attribute of an object, a test with `hasattr` is enough.
        """
        root, _, name = evidence.subject.replace(":", ".").partition(".")
        last = name.rpartition(".")[2].encode()
        if evidence.relation is ConflictRelation.ATTRIBUTE:
            replaced = last in self._assigned_attributes
        elif evidence.relation is ConflictRelation.NAME:
            replaced = last in self._assigned_names
        elif evidence.relation in (*_OF_KEYWORDS, ConflictRelation.ARGUMENT):
            replaced = evidence.other in self._replaced_packages
        else:
            replaced = False
        return replaced or root.encode() in self._registered_roots

    @cached_property
    def changes_search_path(self) -> bool:
        """Whether the file uses an attribute of `sys.path`."""
        return b"sys.path." in self._text.source

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
        if evidence.relation in _OF_KEYWORDS:
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


def _covered_lines(blocks: Iterable[tuple[int, int]]) -> frozenset[int]:
    """Return the lines of blocks, which are given by their first and last lines."""
    lines: set[int] = set()
    end = 0
    for first, last in sorted(blocks):
        lines.update(range(max(first, end + 1), last + 1))
        end = max(end, last)
    return frozenset(lines)


def _first_line(node: ast.AST) -> int:
    """Return the first line of a node or its decorators, which precede it. 0: it has no lines."""
    decorators = getattr(node, "decorator_list", ())
    return decorators[0].lineno if decorators else getattr(node, "lineno", 0)


def _around(body: Sequence[ast.stmt], line: int) -> Sequence[ast.stmt]:
    """Return the statements of a block that extend over a line."""
    first = bisect_left(body, line, key=lambda each: each.end_lineno or each.lineno)
    return body[first : bisect_right(body, line, first, key=_first_line)]


def _children_around(node: ast.AST, line: int) -> Iterator[ast.AST]:
    """Yield the children of a node, without statements that do not extend over a line."""
    for name in node._fields:
        part = getattr(node, name, None)
        if isinstance(part, ast.AST):
            yield part
        elif isinstance(part, list):
            children = _around(part, line) if name in _BLOCKS else part
            yield from (child for child in children if isinstance(child, ast.AST))


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
        case ConflictRelation.ARGUMENT | ConflictRelation.RESULT if (
            isinstance(node, ast.Call) and _callee(node) == name
        ):
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
