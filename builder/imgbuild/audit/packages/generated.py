"""Reads the protobuf versions with which code in a wheel was generated."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from imgbuild.audit.packages.content import WheelContent

# The kind of these facts in the cache and in the file of published facts. Increase the number when
# the reader returns other facts for the same bytes; `make facts` writes the file again.
KIND = "generated-1"
_SUFFIX = "_pb2.py"
_CALL = re.compile(
    rb"ValidateProtobufRuntimeVersion\(\s*[\w.]+\s*"
    rb",\s*(\d{1,6})\s*,\s*(\d{1,6})\s*,\s*(\d{1,6})\s*,\s*['\"]([^'\"]*)['\"]"
)


class GeneratedCode(msgspec.Struct, frozen=True, array_like=True):
    """A file that compares the version of protobuf with `version` and `suffix` ("-rc1")."""

    file: str
    line: int
    version: tuple[int, int, int]
    suffix: str = ""


def generated_files(files: Iterable[str]) -> list[str]:
    """The files of a wheel that protobuf generated, selected by file name."""
    return [file for file in files if file.endswith(_SUFFIX)]


def read_generated(content: WheelContent) -> tuple[GeneratedCode, ...]:
    """The generated files of a wheel that check the protobuf version (protobuf 5.26 or newer)."""
    sources = content.read(generated_files(content.members()))
    return tuple(
        GeneratedCode(
            file,
            source.count(b"\n", 0, call.start()) + 1,
            (int(call[1]), int(call[2]), int(call[3])),
            call[4].decode("utf-8", "replace"),
        )
        for file, source in sorted(sources.items())
        if (call := _CALL.search(source)) is not None
    )
