"""Tests that errors of several git repositories are combined into one error."""

from __future__ import annotations

import pytest

from imgbuild.errors import FetchFailed, ImgbuildError, InputError
from imgbuild.resolve.repositories import refusal_error

GONE = FetchFailed("a.txt:1: tool: git cannot access the repository", hint="git ls-remote it")
OTHER = FetchFailed("a.txt:2: kit: git cannot access the repository", hint="git ls-remote kit")
BROKEN = InputError("a.txt:3: no such revision", hint="specify another")


@pytest.mark.parametrize(
    ("errors", "code"), [([GONE, OTHER], 7), ([GONE, BROKEN], 7), ([BROKEN, BROKEN], 2)]
)
def test_errors_of_several_repositories_are_raised_together(
    errors: list[ImgbuildError], code: int
) -> None:
    error = refusal_error(errors)
    assert error.exit_code == code
    assert all(f"\n  {each.message}" in error.message for each in errors)
    assert error.hint == errors[0].hint


def test_error_of_a_single_repository_is_raised_unchanged() -> None:
    assert refusal_error([BROKEN]) is BROKEN
