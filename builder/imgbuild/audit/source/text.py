"""Converts nodes of syntax trees to text: dotted names, literals, type names and source."""

from __future__ import annotations

import ast
import builtins
import itertools
import re
from collections.abc import Callable, Iterator, Sequence

from imgbuild.system.syntax import parse_expression

BUILTINS = frozenset(dir(builtins))
UNKNOWN_ARGUMENT = "..."
OPERATORS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
COMPARISONS: dict[type[ast.cmpop], str] = {**OPERATORS, ast.Is: "is", ast.IsNot: "is not"}

# Annotations that do not name the class of a receiver: builtins, typing's names, containers.
_NO_TYPES = BUILTINS | frozenset(
    [
        "Any",
        "Callable",
        "Iterable",
        "Iterator",
        "Sequence",
        "Mapping",
        "MutableMapping",
        "Dict",
        "List",
        "Tuple",
        "Set",
        "FrozenSet",
        "Type",
        "Union",
        "Optional",
        "Literal",
        "Self",
        "TypeVar",
        "Generator",
        "AsyncGenerator",
        "Awaitable",
        "Coroutine",
        "None",
        "ClassVar",
        "Annotated",
        "Path",
    ]
)
_LITERAL = 40  # characters of a literal in the text of a call
_LONGEST_TEXT = 160
SURROGATE = re.compile("[\ud800-\udfff]")


def dotted_name(node: ast.AST) -> str:
    """Return the dotted text of a name or attribute ("a.b.c"), or "" for other expressions."""
    parts = []
    while type(node) is ast.Attribute:
        parts.append(node.attr)
        node = node.value
    if type(node) is not ast.Name:
        return ""
    if not parts:
        return node.id
    parts.append(node.id)
    return ".".join(reversed(parts))


def string_value(node: ast.AST | None) -> str | None:
    """Return the value of a string literal.

    Returns None for other nodes and for strings with surrogates.
    """
    if type(node) is ast.Constant and type(node.value) is str and not SURROGATE.search(node.value):
        return node.value
    return None


def string_values(node: ast.AST | None) -> list[str] | None:
    """Return the strings in a literal list, tuple or set, or in a sum of these.

    Returns None for other nodes.
    """
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        values = [string_value(item) for item in node.elts]
        return None if None in values else [item for item in values if item is not None]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = string_values(node.left), string_values(node.right)
        return None if left is None or right is None else left + right
    return None


def string_list(node: ast.AST) -> list[str] | None:
    """Return the result of `string_values`, or a list with the value of a single string literal."""
    literal = string_value(node)
    return string_values(node) if literal is None else [literal]


def type_name(node: ast.AST | None) -> str:
    """Return the class in an annotation: X for `Optional[X]`.

    Returns "" if there is no class or more than one.
    """
    if node is None:
        return ""
    text = string_value(node)
    if text is not None:
        try:
            return type_name(parse_expression(text))
        except SyntaxError:
            return ""
    if isinstance(node, ast.Subscript):
        if dotted_name(node.value).rpartition(".")[2] in ("Optional", "Final", "Required"):
            return type_name(node.slice)
        if dotted_name(node.value).rpartition(".")[2] == "Union" and isinstance(
            node.slice, ast.Tuple
        ):
            return _only_type(node.slice.elts)
        return ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _only_type([node.left, node.right])
    name = dotted_name(node)
    return "" if name.rpartition(".")[2] in _NO_TYPES else name


def _only_type(nodes: list[ast.expr]) -> str:
    """Return the only type in a union, apart from None."""
    rest = [node for node in nodes if not (isinstance(node, ast.Constant) and node.value is None)]
    return type_name(rest[0]) if len(rest) == 1 else ""


class SourceText:
    """Extracts the text of nodes from the source of a module, faster than ast.unparse."""

    def __init__(self, source: bytes) -> None:
        """Split the source into lines in the same way as the parser."""
        self.whole = source
        self._plain = source.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self.lines = self._plain.split(b"\n")
        self._starts = [0, *itertools.accumulate(len(line) + 1 for line in self.lines)]

    def text(self, node: ast.expr) -> str:
        """Return the source of a node on a single line, without whitespace at line ends."""
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        if first == last:
            cut = self.lines[first][node.col_offset : node.end_col_offset]
        else:
            pieces = [
                self.lines[first][node.col_offset :],
                *self.lines[first + 1 : last],
                self.lines[last][: node.end_col_offset],
            ]
            cut = b" ".join(piece.strip() for piece in pieces)
        return cut.decode("utf-8", "replace")

    def short_text(self, node: ast.expr) -> str:
        """Return the source of a node, shortened to 160 characters."""
        text = self.text(node)
        return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"

    def statement_lines(self, node: ast.stmt) -> bytes:
        """Return the lines of a statement."""
        last = node.end_lineno or len(self.lines)
        return self._plain[self._starts[node.lineno - 1] : self._starts[last] - 1]


def evaluated_text(node: ast.expr, is_local: Callable[[str], bool]) -> str:
    """Return the text of a name, call or comparison, in the format that `main_path.answers` reads.

    Literal arguments of calls are included, and `...` stands for other arguments: "f(1, x=...)".
    Returns "" for other expressions, and if the expression contains a local name of a function.
    """
    if isinstance(node, ast.Compare):
        operands = [evaluated_text(item, is_local) for item in (node.left, *node.comparators)]
        signs = [COMPARISONS.get(type(sign), "") for sign in node.ops]
        if not all(operands) or not all(signs):
            return ""
        return " ".join([operands[0], *map(" ".join, zip(signs, operands[1:], strict=True))])
    if isinstance(node, ast.Subscript):
        owner, key = evaluated_text(node.value, is_local), _argument(node.slice)
        return f"{owner}[{key}]" if owner and key != UNKNOWN_ARGUMENT else ""
    if isinstance(node, (ast.Constant, ast.Tuple)):
        items = node.elts if isinstance(node, ast.Tuple) else [node]
        texts = [_argument(item) for item in items]
        return "" if UNKNOWN_ARGUMENT in texts else ast.unparse(node)
    name = dotted_name(node.func if isinstance(node, ast.Call) else node)
    if not name or is_local(name.partition(".")[0]):
        return ""
    return f"{name}({', '.join(_arguments(node))})" if isinstance(node, ast.Call) else name


def _arguments(node: ast.Call) -> Iterator[str]:
    yield from map(_argument, node.args)
    for keyword in node.keywords:
        text = _argument(keyword.value)
        yield f"{keyword.arg}={text}" if keyword.arg is not None else UNKNOWN_ARGUMENT


def _argument(node: ast.expr) -> str:
    text = repr(node.value) if isinstance(node, ast.Constant) and node.value is not ... else ""
    return text if 0 < len(text) <= _LITERAL else UNKNOWN_ARGUMENT


def empty_collection(node: ast.expr) -> bool:
    """Return whether an expression is an empty collection: `[]`, `dict()`."""
    if isinstance(node, ast.Call):
        last = dotted_name(node.func) in ("dict", "frozenset", "list", "set", "tuple")
        return last and not node.args and not node.keywords
    if isinstance(node, ast.Dict):
        return not node.keys
    return isinstance(node, (ast.List, ast.Tuple)) and not node.elts


def never_continues(block: Sequence[ast.stmt]) -> bool:
    """Return whether the end of a block is never reached."""
    if not block:
        return False
    last = block[-1]
    if isinstance(last, (ast.Return, ast.Raise, ast.Continue, ast.Break)):
        return True
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return dotted_name(last.value.func) in (
            "sys.exit",
            "exit",
            "quit",
            "os._exit",
            "pytest.skip",
        )
    if isinstance(last, (ast.Try, ast.TryStar)):
        bodies = [last.orelse or last.body, *(handler.body for handler in last.handlers)]
        return never_continues(last.finalbody) or all(map(never_continues, bodies))
    return isinstance(last, ast.If) and never_continues(last.body) and never_continues(last.orelse)


def string_pattern(node: ast.expr, module: str) -> str | None:
    """Return a string expression with "*" for computed parts, or None if it is not a string."""
    text = string_value(node)
    if text is not None:
        return text
    if isinstance(node, ast.JoinedStr):
        parts = [
            string_value(part) if isinstance(part, ast.Constant) else _formatted_part(part, module)
            for part in node.values
        ]
        return "".join(part or "*" for part in parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = string_pattern(node.left, module), string_pattern(node.right, module)
        return None if left is None and right is None else (left or "*") + (right or "*")
    return module if dotted_name(node) == "__name__" else None


def _formatted_part(part: ast.expr, module: str) -> str:
    name = dotted_name(part.value) if isinstance(part, ast.FormattedValue) else ""
    return module if name in ("__name__", "__package__") else "*"
