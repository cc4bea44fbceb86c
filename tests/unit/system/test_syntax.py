"""Tests that only one thread at a time parses source code and requirements."""

import ast
import gc
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from imgbuild.system.syntax import (
    is_within,
    parse_expression,
    parse_literal,
    parse_requirement,
    parse_source,
    parse_version,
)
from tests.support.rows import each_row

NUMBERS = list(range(300))  # its tree is large enough that garbage is collected while it is built
MARKER = 'python_version >= "3.9" and extra == "all"'


@pytest.fixture
def switches():
    """Switch to another thread in each garbage collection, as a finalizer may."""
    thresholds = gc.get_threshold()

    def pause(phase: str, _: object) -> None:
        time.sleep(1e-5)

    gc.callbacks.append(pause)
    gc.set_threshold(20)
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(pause)


@pytest.mark.usefixtures("switches")
@each_row(
    ("parse", "expected"),
    [
        (lambda: str(parse_requirement(f"a; {MARKER}").marker), MARKER),
        (lambda: ast.unparse(parse_source(b"a = 1")), "a = 1"),
        (lambda: ast.unparse(parse_expression("a[0]")), "a[0]"),
        (lambda: parse_literal("['a']"), ["a"]),
    ],
    ids=["requirement", "source", "expression", "literal"],
)
def test_concurrent_threads_parse_python_code_correctly(parse, expected):
    def parse_both(number: int) -> object:
        return [parse() for _ in range(50)] if number % 2 else parse_literal(str(NUMBERS))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(parse_both, range(40))) == [NUMBERS, [expected] * 50] * 20


def test_version_with_5000_digits_is_invalid() -> None:
    assert parse_version("9" * 5000) is None
    assert not is_within("9" * 5000, ">=1")
