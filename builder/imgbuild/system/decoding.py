"""Decodes and converts values to types, which msgspec analyzes in one thread at a time.

msgspec analyzes a Struct when it is first used as a type, and stores the result in the class before
it is complete. Another thread that uses the same type meanwhile ends the process with a
segmentation fault (msgspec 0.22.0). Other modules must not pass types to msgspec directly
(tests/layers.py, tests/integration/test_decoding.py).
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_LOCK = threading.RLock()  # the analysis may import modules
_analyzed: set[object] = set()


def decode_json(data: bytes | str, kind: type[T]) -> T:
    """Decode JSON. Raises msgspec.DecodeError, or ValueError if a string is not UTF-8."""
    _analyze(kind)
    return msgspec.json.decode(data, type=kind)


def decode_msgpack(data: bytes, kind: type[T]) -> T:
    """Decode MessagePack. Raises the same errors as `decode_json`."""
    _analyze(kind)
    return msgspec.msgpack.decode(data, type=kind)


def convert(value: Any, kind: type[T], *, from_attributes: bool = False) -> T:
    """Convert a value of builtin types. Raises msgspec.ValidationError."""
    _analyze(kind)
    return msgspec.convert(value, kind, from_attributes=from_attributes)


def _analyze(kind: object) -> None:
    if kind not in _analyzed:
        with _LOCK:
            msgspec.msgpack.Decoder(kind)
            _analyzed.add(kind)
