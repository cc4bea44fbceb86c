"""Generates scripts for entry points, and rewrites shebang lines."""

# A separate module: a file format.
from __future__ import annotations

import configparser
import re

import msgspec

from imgbuild.wheel.zipformat import refuse_wheel

GROUPS = ("console_scripts", "gui_scripts")
SHEBANG_LIMIT = 127  # bytes after which Linux cuts the first line (256 since 5.1)
PLACEHOLDER = b"#!python"
REFERENCE = re.compile(
    r"(?P<module>[\w.]+)\s*:\s*(?P<attribute>[\w.]+)\s*(\[[^\]]*\]\s*)?", flags=re.UNICODE
)
LAUNCHER = """\
{shebang}
import sys

from {module} import {name}

if __name__ == "__main__":
    sys.exit({attribute}())
"""


class EntryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A script to generate: `name` in `bin/` calls the dotted `attribute` of `module`."""

    name: str
    module: str
    attribute: str


def entry_points(text: str, label: str) -> tuple[EntryPoint, ...]:
    """Parse the console and GUI scripts in `entry_points.txt`, sorted by name.

    Raises IntegrityError, with the wheel name `label`, if the file is invalid or a script is
    outside `bin/`.
    """
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    try:
        parser.read_string(text)
    except configparser.Error as error:
        reason = str(error).replace("\n", " ")
        refuse_wheel(label, "entry_points.txt", f"cannot be read: {reason}")
    scripts: dict[str, EntryPoint] = {}
    for group in GROUPS:
        for name, value in parser.items(group) if parser.has_section(group) else ():
            if name in scripts:
                refuse_wheel(label, "entry_points.txt", f"lists the script {name!r} twice")
            scripts[name] = _entry_point(name, value, label)
    return tuple(scripts[name] for name in sorted(scripts))


def _entry_point(name: str, value: str, label: str) -> EntryPoint:
    if name in (".", "..") or re.search(r"[/\\\x00-\x1f\x7f-\x9f]", name):
        refuse_wheel(
            label, "entry_points.txt", f"the script name {name!r} is not a plain file name"
        )
    match = REFERENCE.fullmatch(value.strip())
    if match is None:
        refuse_wheel(
            label, "entry_points.txt", f"invalid {name!r}: {value!r} (expected MODULE:NAME)"
        )
    return EntryPoint(name=name, module=match["module"], attribute=match["attribute"])


def shebang_lines(interpreter: str) -> bytes:
    """Return the shebang, on one or more lines, that selects `interpreter`, an absolute path."""
    if " " not in interpreter and len(interpreter) + 2 <= SHEBANG_LIMIT:
        return f"#!{interpreter}".encode()
    # Valid for both sh and Python: sh runs it, and for Python it is a string.
    return f"#!/bin/sh\n'''exec' \"{interpreter}\" \"$0\" \"$@\"\n' '''".encode()


def launcher_script(entry: EntryPoint, interpreter: str) -> bytes:
    """Return the script that calls the function of `entry`."""
    text = LAUNCHER.format(
        shebang=shebang_lines(interpreter).decode(),
        module=entry.module,
        name=entry.attribute.partition(".")[0],
        attribute=entry.attribute,
    )
    return text.encode()


def rewrite_shebang(script: bytes, interpreter: str) -> bytes:
    """Replace the first line of `script`, which starts with `PLACEHOLDER`.

    Options such as `-E` are removed, as in pip and uv.
    """
    _, newline, rest = script.partition(b"\n")
    return shebang_lines(interpreter) + newline + rest
