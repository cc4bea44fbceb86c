"""Runs a test for all rows of a table and lists all failing rows.

Each case of `pytest.mark.parametrize` is a separate test, which takes about 4 ms of processor time
in a parallel run. A row takes only the time of its check.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

WIDTH = 200  # of a row's values in a message
SECONDS = 240  # of all rows; other unit tests may take 60 seconds
PARAMETERS = type(pytest.param())


def each_row(
    names: str | Sequence[str],
    rows: Iterable[Any],
    ids: Callable[[Any], Any] | Iterable[Any] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator like `pytest.mark.parametrize`, for rows that take a few milliseconds.

    Each row has a new `tmp_path` and `monkeypatch`, and an empty `capsys`. The rows share all other
    fixtures.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = list(_labelled(keys, list(rows), ids))
    assert table, "the table has no rows"

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def test(**fixtures: Any) -> None:
            failed: list[tuple[str, BaseException]] = []
            for number, (label, values) in enumerate(table):
                try:
                    with _renewed(fixtures, number) as given:
                        function(**given, **dict(zip(keys, values, strict=True)))
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - raised below
                    failed.append((label, error))
                    if str(error).startswith("Timeout"):  # pytest-timeout stops once a test
                        break
            _raise(failed, len(table))

        signature = inspect.signature(function)
        fixtures = [each for name, each in signature.parameters.items() if name not in keys]
        test.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        timed: Callable[..., None] = pytest.mark.timeout(SECONDS)(test)
        return timed

    return decorate


def _labelled(
    keys: list[str], rows: list[Any], ids: Callable[[Any], Any] | Iterable[Any] | None
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The label and the values of each row. A row from `pytest.param` can have a label."""
    labels = [None] * len(rows) if ids is None or callable(ids) else list(ids)
    for row, label in zip(rows, labels, strict=True):
        given = getattr(row, "id", None) if isinstance(row, PARAMETERS) else label
        values = row if isinstance(row, PARAMETERS) or len(keys) > 1 else (row,)
        values = tuple(getattr(values, "values", values))
        if given is None and callable(ids):
            given = "-".join(str(ids(value)) for value in values)
        yield str(given or ", ".join(map(repr, values)))[:WIDTH], values


@contextlib.contextmanager
def _renewed(fixtures: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """The fixtures of one row."""
    given = dict(fixtures)
    if "tmp_path" in given:
        folder: Path = given["tmp_path"] / f"row{number}"
        folder.mkdir()
        given["tmp_path"] = folder
    if "capsys" in given:
        given["capsys"].readouterr()
    with pytest.MonkeyPatch.context() as patch:
        if "monkeypatch" in given:
            given["monkeypatch"] = patch
        yield given


def _raise(failed: list[tuple[str, BaseException]], count: int) -> None:
    """Raise the only failure with its row, or an error that lists all failures."""
    if len(failed) == 1:
        label, error = failed[0]
        error.add_note(f"row: {label}")
        raise error
    if failed:
        listed = "\n".join(
            f"row {label}: {type(error).__name__}: {error}" for label, error in failed
        )
        message = f"{len(failed)} of {count} rows fail:\n{listed}"
        raise AssertionError(message) from failed[0][1]
