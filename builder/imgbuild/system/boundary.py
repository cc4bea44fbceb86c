"""Reads untrusted files and answers: any failure of a reader becomes one error that names it.

Files from indexes and registries, and what users name, may hold anything. Readers refuse what they
know to be wrong in their own words; whatever else goes wrong with such input, in libraries too,
ends here and not as a traceback.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

from imgbuild.errors import ImgbuildError, InputError, IntegrityError, Signal
from imgbuild.system.folder import CHUNK, regular_file

P = ParamSpec("P")
R = TypeVar("R")
REMEDY = "it is damaged or was made to mislead: get it again, or use another version"
NONSENSE = "the server does not answer as it should: try another one, or ask its owner"
LIMIT = 256 << 20  # bytes of a document
SHOWN = 200  # characters of another error's text


@contextlib.contextmanager
def reading(place: object, *, hint: str = REMEDY) -> Iterator[None]:
    """Raise any failure as IntegrityError that names `place`, with `hint`.

    Own errors and signals pass, and errors of the operating system, such as a full disk; but not
    EINVAL, which an offset in the input gives that no file can have.
    """
    try:
        yield
    except (ImgbuildError, Signal):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        text = " ".join(str(error).split())[:SHOWN]
        fault = f"{type(error).__name__}: {text}" if text else type(error).__name__
        message = f"{place} cannot be read: {fault}"
        raise IntegrityError(message, hint=hint) from error


def reads(parameter: str, *, hint: str = REMEDY) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function that reads what the argument `parameter` names: see `reading`."""

    def _decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def _reading(*args: P.args, **kwargs: P.kwargs) -> R:
            with reading(signature.bind(*args, **kwargs).arguments[parameter], hint=hint):
                return function(*args, **kwargs)

        return _reading

    return _decorate


def regular(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of the file at `path`, for `open(opener=…)` too; links are followed.

    IntegrityError for a pipe, a device or a folder, without waiting for a writer; OSError if it
    cannot be opened.
    """
    try:
        return regular_file(Path(path), flags, links=True)
    except InputError as error:
        message = f"{path} is not a regular file"
        hint = "name a file, not a pipe, a device or a folder"
        raise IntegrityError(message, hint=hint) from error


def content(path: Path, limit: int = LIMIT) -> bytes:
    """The bytes of the regular file at `path`; IntegrityError if there are more than `limit`."""
    with open(path, "rb", opener=regular) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        message = f"{path} has more than {limit} bytes"
        raise IntegrityError(message, hint=REMEDY)
    return data


def copy_regular(source: Path, target: Path, *, limit: int, hint: str = REMEDY) -> None:
    """Copy `source`, a file from someone who is not trusted, to `target`, which is new.

    IntegrityError unless `source` is a regular file under one name, no link, of at most `limit`
    bytes. The folders on its path are not checked. OSError if it cannot be opened.
    """
    try:
        descriptor = regular_file(source)
    except (InputError, PermissionError) as error:
        message = f"{source.name} is not a regular file that can be read"
        raise IntegrityError(message, hint=hint) from error
    if os.fstat(descriptor).st_nlink != 1:
        os.close(descriptor)
        message = f"{source.name} is not a regular file with one name"
        raise IntegrityError(message, hint=hint)
    left = limit
    with os.fdopen(descriptor, "rb") as file, target.open("xb") as copy:
        while piece := file.read(min(CHUNK, left + 1)):
            left -= len(piece)
            if left < 0:
                message = f"{source.name} has more than {limit} bytes"
                raise IntegrityError(message, hint=hint)
            copy.write(piece)
