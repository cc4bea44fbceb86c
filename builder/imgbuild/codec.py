"""Values to canonical JSON and back.

Canonical means: UTF-8, keys in the order of the struct's fields (mappings sorted), an indentation
of two spaces, and any list or mapping that holds only scalars on one line, so that a diff of a
lock shows one line for each changed item. The last byte is a newline.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePath
from typing import Any, TypeVar

import msgspec

from imgbuild.errors import InputError, Problem
from imgbuild.system import boundary
from imgbuild.system.folder import OpenFolder

T = TypeVar("T")
LIMIT = 256 << 20  # bytes of a document


def to_builtins(value: Any) -> Any:
    """`value` as JSON types: mappings sorted by key, fields in the order of their struct."""
    return msgspec.to_builtins(value, order="deterministic", str_keys=True, enc_hook=_other)


def _other(value: object) -> str:
    """Encode types that not every release of msgspec encodes."""
    if isinstance(value, PurePath):
        return str(value)
    raise NotImplementedError


def compact(value: Any) -> bytes:
    """Canonical JSON on one line with sorted keys: for hashing and for registry documents."""
    built = to_builtins(value)
    return json.dumps(built, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def encode(value: Any) -> bytes:
    """Canonical JSON for files that people review, as the module's docstring defines it."""
    return (_block(to_builtins(value), "") + "\n").encode()


def _block(value: Any, indent: str) -> str:
    inner = indent + "  "
    if isinstance(value, dict):
        rows = [f"{_scalar(key)}: {_block(item, inner)}" for key, item in value.items()]
        opening, closing, flat = "{", "}", _flat(value.values())
    elif isinstance(value, list | tuple):  # msgspec leaves tuples as they are
        rows = [_block(item, inner) for item in value]
        opening, closing, flat = "[", "]", _flat(value)
    else:
        return _scalar(value)
    if flat:
        return opening + ", ".join(rows) + closing
    return opening + ",".join(f"\n{inner}{row}" for row in rows) + f"\n{indent}{closing}"


def _flat(items: Any) -> bool:
    return not any(isinstance(item, dict | list | tuple) and item for item in items)


def _scalar(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def decode(
    data: bytes, kind: type[T], *, file: str, what: str = "document", hint: str | None = None
) -> T:
    """Decode `data` as a `kind`; InputError, with `hint`, names `file` and the invalid key.

    `what` is what the message calls the file: "lock", "test record".
    """
    cause: Exception
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:  # ValidationError is one of these
        fault, cause = str(error), error
    except UnicodeDecodeError as error:
        fault, cause = f"a string in it is not UTF-8: {error.reason}", error
    except RecursionError as error:
        fault, cause = "lists or mappings are nested too deeply", error
    except (ValueError, OverflowError, MemoryError) as error:  # numbers that Python cannot hold
        fault, cause = str(error) or type(error).__name__, error
    message = f"{file} is not a valid {what}"
    raise InputError(message, problems=(Problem(file=file, message=fault),), hint=hint) from cause


def read(path: Path, kind: type[T], *, what: str = "document", hint: str | None = None) -> T:
    """Read the file at `path` as a `kind`; InputError if it is missing or invalid.

    `what` and `hint` as for `decode`.
    """
    try:
        data = boundary.content(path, LIMIT)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise InputError(message) from error
    return decode(data, kind, file=str(path), what=what, hint=hint)


def write(path: Path, value: Any, *, below: Path | None = None) -> bool:
    """Write `value` to `path` as `write_bytes` does; False if the file has this content already."""
    return write_bytes(path, encode(value), below=below)


def write_bytes(path: Path, data: bytes, *, below: Path | None = None) -> bool:
    """Write `data` to `path` by an atomic rename; False if the file has this content already.

    `below` is a folder above `path`, such as a project's: no link between the two is followed.
    Without it only `path` itself may not be a link. InputError if there is one, or a pipe, a device
    or a folder. Several processes may write at once: the last one wins. An OSError names `path`.
    """
    top = path.parent if below is None else below
    top.mkdir(parents=True, exist_ok=True)
    try:
        with OpenFolder.open(top) as folder:
            return folder.write(path.relative_to(top).as_posix(), data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
