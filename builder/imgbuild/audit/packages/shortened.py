"""Removes docstrings and comments, but no lines, from source."""

# A separate module: one transformation.
from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator

from imgbuild.audit.source.tree import walk_tree
from imgbuild.system.syntax import parse_source

_OWNERS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def shorten_source(source: bytes) -> bytes:
    """Return `source` without docstrings and comments. Docstrings become empty strings.

    If `source` cannot be parsed, it is returned unchanged.
    """
    try:
        tree = parse_source(source.decode())
        return _drop_comments(_drop_docstrings(source, tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return source


def _drop_comments(source: bytes) -> bytes:
    lines = [line.decode() for line in source.splitlines(keepends=True)]  # at line feeds alone
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type == tokenize.COMMENT:
            row = token.start[0] - 1
            head, tail = lines[row][: token.start[1]], lines[row][token.end[1] :]
            lines[row] = head.rstrip() + tail
    return "".join(lines).encode()


def _drop_docstrings(source: bytes, tree: ast.Module) -> bytes:
    lines = source.splitlines(keepends=True)
    for node in _docstrings(tree):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        head, tail = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
        if first == last:
            lines[first] = head + b'""' + tail
        else:
            lines[first] = head + b'"""\n'
            lines[first + 1 : last] = [b"\n"] * (last - first - 1)
            lines[last] = b'"""' + tail
    return b"".join(lines)


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in walk_tree(tree):
        if isinstance(node, _OWNERS) and node.body and isinstance(node.body[0], ast.Expr):
            value = node.body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value
