"""Reads untrusted files and responses, and converts every failure to an error with the source.

Files from indexes, registries and users can contain anything. Parsers report the errors that they
detect. This module converts all other exceptions, including exceptions from libraries.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, ParamSpec, TypeVar

from imgbuild.errors import ControlSignal, ImgbuildError, InputError, IntegrityError
from imgbuild.system.folder import CHUNK, regular_file

P = ParamSpec("P")
R = TypeVar("R")
REMEDY = "the file is damaged or malicious; download it again, or use another version"
NONSENSE = (
    "the server's response is invalid; use another server, or contact the administrator of the "
    "server"
)
LIMIT = 256 << 20  # bytes of a document
SHOWN_CHARACTERS = 200  # characters of another error's text


@contextlib.contextmanager
def convert_read_errors(place: object, *, hint: str = REMEDY) -> Iterator[None]:
    """Convert exceptions in the block to IntegrityError, with `place` in the message.

    Errors of imgbuild, signals, and errors of the operating system, such as a full disk, are raised
    unchanged. EINVAL is converted, because invalid offsets in a file cause it.
    """
    try:
        yield
    except (ImgbuildError, ControlSignal):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        text = " ".join(str(error).split())[:SHOWN_CHARACTERS]
        fault = f"{type(error).__name__}: {text}" if text else type(error).__name__
        message = f"{place} cannot be read: {fault}"
        raise IntegrityError(message, hint=hint) from error


def reads_untrusted(
    parameter: str, *, hint: str = REMEDY
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that applies `convert_read_errors`.

    The argument `parameter` of the decorated function is the place in messages.
    """

    def _decorate_reader(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def _call_reader(*args: P.args, **kwargs: P.kwargs) -> R:
            with convert_read_errors(
                signature.bind(*args, **kwargs).arguments[parameter], hint=hint
            ):
                return function(*args, **kwargs)

        return _call_reader

    return _decorate_reader


def open_regular(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Open the regular file at `path`, following links. Can be the `opener` of `open`.

    Raises IntegrityError, without blocking, for a pipe, a device or a folder. Raises OSError if the
    file cannot be opened.
    """
    try:
        return regular_file(Path(path), flags, links=True)
    except InputError as error:
        message = f"{path} is not a regular file"
        hint = "use a regular file, not a pipe, a device or a folder"
        raise IntegrityError(message, hint=hint) from error


class LimitedStream:
    """Limits a stream of decompressed data to `limit` bytes."""

    def __init__(self, source: IO[bytes], limit: int) -> None:
        self._source, self._left, self._limit = source, limit, limit

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes. Raises ValueError if the limit is exceeded."""
        data = self._source.read(size)
        self._left -= len(data)
        if self._left < 0:
            message = f"unpacked size exceeds {self._limit} bytes"
            raise ValueError(message)
        return data


def read_regular_file(path: Path, limit: int = LIMIT) -> bytes:
    """Return the bytes of the regular file at `path`.

    Raises IntegrityError if the file has more than `limit` bytes.
    """
    with open(path, "rb", opener=open_regular) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        message = f"{path} has more than {limit} bytes"
        raise IntegrityError(message, hint=REMEDY)
    return data


def copy_regular(source: Path, target: Path, *, limit: int, hint: str = REMEDY) -> None:
    """Copy the untrusted regular file `source` to the new file `target`.

    Links are followed only in the parent folders of `source`. Raises IntegrityError if `source` has
    more than `limit` bytes or other hard links, or is not a regular file. Raises OSError if it
    cannot be opened.
    """
    try:
        descriptor = regular_file(source)
    except (InputError, PermissionError) as error:
        message = f"{source.name} is not a readable regular file"
        raise IntegrityError(message, hint=hint) from error
    if os.fstat(descriptor).st_nlink != 1:
        os.close(descriptor)
        message = f"{source.name} has other hard links"
        raise IntegrityError(message, hint=hint)
    left = limit
    with os.fdopen(descriptor, "rb") as file, target.open("xb") as copy:
        while piece := file.read(min(CHUNK, left + 1)):
            left -= len(piece)
            if left < 0:
                message = f"{source.name} has more than {limit} bytes"
                raise IntegrityError(message, hint=hint)
            copy.write(piece)
