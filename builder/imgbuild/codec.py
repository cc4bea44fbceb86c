"""Converts values to canonical JSON and back, and reads and writes files.

Canonical JSON is encoded in UTF-8 and indented by two spaces, and ends with a newline. Keys have
the order of the struct's fields; mappings are sorted. A list or mapping that contains only scalars
is on one line, so that a diff of a lock has one line for each changed item.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from imgbuild.errors import InputError, InputProblem
from imgbuild.system import boundary, decoding, files
from imgbuild.system.folder import OpenFolder

T = TypeVar("T")
LIMIT = boundary.LIMIT
SEARCH_LIMIT = 16 << 20  # bytes of an invalid document in which the invalid text is searched for
SHOWN_CHARACTERS = 200  # characters of an invalid text in a message
ESCAPE = "backslashreplace"  # the error handler for unpaired surrogates; \\udc80 is valid JSON
# json.dumps would create an encoder for each value.
_SCALAR = json.JSONEncoder(ensure_ascii=False)
_COMPACT = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def to_builtins(value: Any) -> Any:
    """Convert `value` to JSON types. Mappings are sorted, and fields have the struct's order."""
    return msgspec.to_builtins(value, order="deterministic", str_keys=True, enc_hook=_encode_other)


def _encode_other(value: object) -> str:
    """Encode types that some releases of msgspec do not support."""
    if isinstance(value, PurePath):
        return str(value)
    raise NotImplementedError


def encode_compact(value: Any) -> bytes:
    """Encode `value` as canonical JSON on one line with sorted keys, for hashes and registries."""
    return _COMPACT.encode(to_builtins(value)).encode("utf-8", ESCAPE)


def encode(value: Any) -> bytes:
    """Encode `value` as canonical JSON with line breaks, for files that people review."""
    return (_block(to_builtins(value), "") + "\n").encode("utf-8", ESCAPE)


def _block(value: Any, indent: str) -> str:
    inner = indent + "  "
    if isinstance(value, dict):
        rows = [f"{_SCALAR.encode(key)}: {_block(item, inner)}" for key, item in value.items()]
        opening, closing, flat = "{", "}", _is_flat(value.values())
    elif isinstance(value, list | tuple):  # msgspec leaves tuples as they are
        rows = [_block(item, inner) for item in value]
        opening, closing, flat = "[", "]", _is_flat(value)
    else:
        return _SCALAR.encode(value)
    if flat:
        return opening + ", ".join(rows) + closing
    return opening + ",".join(f"\n{inner}{row}" for row in rows) + f"\n{indent}{closing}"


def _is_flat(items: Any) -> bool:
    return not any(isinstance(item, dict | list | tuple) and item for item in items)


def decode(
    data: bytes, kind: type[T], *, file: str, what: str = "document", hint: str | None = None
) -> T:
    """Decode `data` as a `kind`.

    `what` is the type of the file in messages, such as "lock" or "test record".

    Raises InputError with `hint` and a message with `file`, the key and the value.
    """
    cause: Exception
    problem: InputProblem | None = None
    try:
        return decoding.decode_json(data, kind)
    except msgspec.DecodeError as error:  # ValidationError is one of these
        fault, cause = str(error), error
        if isinstance(error, msgspec.ValidationError) and len(data) <= SEARCH_LIMIT:
            problem = _first_misfit(data, kind, file)
    except UnicodeDecodeError as error:
        fault, cause = f"a string in the file is not UTF-8: {error.reason}", error
    except RecursionError as error:
        fault, cause = "lists or mappings are nested too deeply", error
    except (ValueError, OverflowError, MemoryError) as error:  # numbers that Python cannot hold
        fault, cause = str(error) or type(error).__name__, error
    message = f"{file} is not a valid {what}"
    problem = problem or InputProblem(file=file, message=fault)
    raise InputError(message, problems=(problem,), hint=hint) from cause


def _first_misfit(data: bytes, kind: type[T], file: str) -> InputProblem | None:
    """Return the first text in `data` that does not match the pattern of its type, or None.

    Errors of msgspec do not contain the value or the keys of mappings.
    """
    try:
        return _misfit(msgspec.json.decode(data), inspect.type_info(kind), (), file)
    except (ValueError, OverflowError, MemoryError, RecursionError):  # msgspec's are ValueErrors
        return None  # in the part after the invalid text; the error of the typed decoder is used


def _misfit(
    value: object, kind: inspect.Type, path: tuple[str | int, ...], file: str
) -> InputProblem | None:
    expected = None
    while isinstance(kind, inspect.Metadata):
        expected = (kind.extra_json_schema or {}).get("description", expected)
        kind = kind.type
    parts: list[tuple[object, inspect.Type, tuple[str | int, ...]]] = []
    match kind, value:
        case inspect.StrType(pattern=str(pattern)), str() if not re.search(pattern, value):
            return InputProblem(
                file=file,
                path=dotted_path(path),
                message="the text does not have the expected format",
                value=value if len(value) <= SHOWN_CHARACTERS else f"{value[:SHOWN_CHARACTERS]}…",
                expected=expected,
            )
        case inspect.StructType(), dict():
            parts += [(value[field.encode_name], field.type, (*path, field.encode_name))
                      for field in kind.fields if field.encode_name in value]  # fmt: skip
        case inspect.DictType(), dict():
            parts += [(key, kind.key_type, (*path, key)) for key in value]
            parts += [(item, kind.value_type, (*path, key)) for key, item in value.items()]
        case inspect.VarTupleType(), list():
            parts += [(item, kind.item_type, (*path, at)) for at, item in enumerate(value)]
        case inspect.UnionType(), str() | dict() | list():
            parts += [(value, each, path) for each in kind.types]
    return next(filter(None, (_misfit(*part, file) for part in parts)), None)


def dotted_path(path: Sequence[str | int]) -> str:
    """Format the path of a value in a document, such as targets.cu124-vllm.arch[0]."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_document(
    path: Path, kind: type[T], *, what: str = "document", hint: str | None = None
) -> T:
    """Read the file at `path` as a `kind`.

    `what` and `hint` are used as in `decode`.

    Raises InputError if the file is missing or invalid.
    """
    with files.require_readable(path):
        data = boundary.read_regular_file(path, LIMIT)
    return decode(data, kind, file=str(path), what=what, hint=hint)


def write_document(path: Path, value: Any, *, below: Path | None = None) -> bool:
    """Write `value` to `path`. Returns False if the file already has this content."""
    return write_bytes(path, encode(value), below=below)


def write_bytes(path: Path, data: bytes, *, below: Path | None = None) -> bool:
    """Write `data` to `path` with an atomic rename. Returns False if nothing changed.

    `below` is a parent folder of `path`, such as the folder of a project. Symbolic links below this
    folder are not followed. Without `below`, only a link at `path` is rejected. If several
    processes write at the same time, the last write remains. Raises InputError for a link, pipe,
    device or folder, and OSError with `path`.
    """
    top = path.parent if below is None else below
    top.mkdir(parents=True, exist_ok=True)
    try:
        with OpenFolder.open(top) as folder:
            return folder.write(path.relative_to(top).as_posix(), data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
