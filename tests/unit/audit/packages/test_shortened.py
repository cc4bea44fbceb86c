"""Tests that published sources keep their line numbers without docstrings and comments."""

import ast
import inspect

import pytest

from imgbuild.audit.packages import library
from imgbuild.audit.packages.shortened import shorten_source

SOURCE = '''\
"""The module.

With é and "quotes"."""; import os
class A:
    """One line."""
    x = 1  # a comment
    # another one: é
    y = "# no comment"
    "no docstring"
    def f(self): "short"; return """text
of two lines"""
    async def g(self):
        """Long.

        text
        """
'''


def places(source: bytes) -> list[tuple[str, int]]:
    tree = ast.walk(ast.parse(source))
    return [(type(node).__name__, getattr(node, "lineno", 0)) for node in tree]


@pytest.mark.parametrize("text", [SOURCE, inspect.getsource(library)])
def test_shortened_source_keeps_the_lines_of_statements(text: str) -> None:
    source = text.encode()
    assert places(shorten_source(source)) == places(source)
    assert len(shorten_source(source)) < len(source)


def test_shortened_source_lacks_only_docstrings_and_comments() -> None:
    text = shorten_source(SOURCE.encode()).decode()
    assert "import os" in text
    assert "# no comment" in text
    assert "    x = 1\n" in text
    assert "no docstring" in text
    assert "of two lines" in text
    for word in ("The module", "quotes", "One line", "short", "Long", "another", "a comment"):
        assert word not in text


@pytest.mark.parametrize("source", [b"def f(:\n", b'"""\xff"""\n', b""])
def test_source_that_cannot_be_parsed_is_not_shortened(source: bytes) -> None:
    assert shorten_source(source) == source
