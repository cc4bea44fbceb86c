"""Parses Python source, requirements (PEP 508) and versions (PEP 440), in one thread at a time.

CPython 3.11 has only one counter per interpreter for the depth of a syntax tree under construction.
If the garbage collector runs a finalizer during the construction, another thread can start a second
tree. One of these threads then fails with "SystemError: AST constructor recursion depth mismatch"
(python/cpython#106905). `packaging` builds a syntax tree for each string in a requirement's marker.
Other modules must not call these parsers directly (tests/layers.py).
"""

from __future__ import annotations

import ast
import functools
import threading
from collections.abc import Iterable, Mapping

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

_LOCK = threading.RLock()  # a finalizer may parse in the thread that parses


def parse_requirement(requirement_string: str) -> Requirement:
    """Parse a requirement with its marker. Raises InvalidRequirement if it is invalid."""
    with _LOCK:
        return Requirement(requirement_string)


@functools.lru_cache(maxsize=20_000)  # the same METADATA is read for each target and each lookup
def valid_requirement(line: str) -> Requirement | None:
    """Parse a requirement. Returns None if it is invalid.

    The returned object is shared and must not be changed.
    """
    try:
        return parse_requirement(line)
    except InvalidRequirement:
        return None


def marker_applies(
    marker: Marker | None, markers: Mapping[str, str], extras: Iterable[str] = ("",)
) -> bool:
    """Return whether a marker is true on a machine with `markers`, for at least one of `extras`."""
    return marker is None or any(marker.evaluate({**markers, "extra": each}) for each in extras)


def is_within(version: str | None, spec: str | SpecifierSet) -> bool:
    """Return whether `version` matches `spec`, including pre-releases.

    Returns False if either is invalid.
    """
    try:
        specifiers = SpecifierSet(spec) if isinstance(spec, str) else spec
        return specifiers.contains(Version(version or ""), prereleases=True)
    except ValueError:  # also raised by Python for a number of 5,000 digits
        return False


def parse_version(text: str | None) -> Version | None:
    """Parse a version (PEP 440). Returns None if it is invalid."""
    try:
        return Version(text or "")
    except ValueError:  # also raised by Python for a number of 5,000 digits
        return None


def parse_source(source: str | bytes) -> ast.Module:
    """Parse a module.

    Raises SyntaxError or ValueError or, for deep nesting, RecursionError or MemoryError.
    """
    with _LOCK:
        return ast.parse(source)


def valid_source(source: str | bytes) -> ast.Module | None:
    """Parse a module. Returns None if it is invalid."""
    try:
        return parse_source(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def parse_expression(text: str) -> ast.expr:
    """Parse an expression. Raises the same errors as `parse_source`."""
    with _LOCK:
        return ast.parse(text, mode="eval").body


def parse_literal(text: str) -> object:
    """Evaluate a literal. Raises the same errors as `parse_source`."""
    with _LOCK:
        value: object = ast.literal_eval(text)
        return value
