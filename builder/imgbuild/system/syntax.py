"""Parses Python source and requirements (PEP 508), in one thread at a time.

In CPython 3.11 the depth of the tree under construction is a counter of the whole interpreter. If
the garbage collector runs a finalizer meanwhile, another thread can start a second tree, and one of
the two ends with "SystemError: AST constructor recursion depth mismatch" (python/cpython#106905).
`packaging` builds such a tree for each string in a requirement's marker. Other modules may not call
what this one calls (tests/layers.py).
"""

from __future__ import annotations

import ast
import threading

from packaging.requirements import Requirement

_LOCK = threading.RLock()  # a finalizer may parse in the thread that parses


def parse_requirement(requirement_string: str) -> Requirement:
    """A requirement, its marker included. InvalidRequirement if it is none."""
    with _LOCK:
        return Requirement(requirement_string)


def parse_source(source: str | bytes) -> ast.Module:
    """The tree of a module. SyntaxError, ValueError; RecursionError, MemoryError if it is deep."""
    with _LOCK:
        return ast.parse(source)


def parse_expression(text: str) -> ast.expr:
    """The tree of one expression. Raises what `parse_source` raises."""
    with _LOCK:
        return ast.parse(text, mode="eval").body


def parse_literal(text: str) -> object:
    """The value of a literal. Raises what `parse_source` raises."""
    with _LOCK:
        value: object = ast.literal_eval(text)
        return value
