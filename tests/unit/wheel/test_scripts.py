"""Tests parsing entry points and rewriting shebang lines of scripts."""

from __future__ import annotations

import ast

import pytest

from imgbuild.errors import IntegrityError
from imgbuild.wheel.scripts import (
    EntryPoint,
    entry_points,
    launcher_script,
    rewrite_shebang,
    shebang_lines,
)
from tests.support.rows import each_row


def test_entry_points_follow_the_specification() -> None:
    text = """
# a comment
[console_scripts]
b = pkg.mod : func [ one , two ]
A.a-b = pkg:Class.method
[gui_scripts]
c=pkg:gui
[pytest11]
d = anything: at all %s
"""
    assert entry_points(text, "w.whl") == (
        EntryPoint(name="A.a-b", module="pkg", attribute="Class.method"),
        EntryPoint(name="b", module="pkg.mod", attribute="func"),
        EntryPoint(name="c", module="pkg", attribute="gui"),
    )
    assert entry_points("", "w.whl") == ()


@each_row(
    "text",
    [
        "[console_scripts]\n../evil = a:b\n",
        "[console_scripts]\n/bin/sh = a:b\n",
        "[console_scripts]\n.. = a:b\n",
        "[console_scripts]\na\\b = a:b\n",
        "[console_scripts]\na = no reference\n",
        "[console_scripts]\na = a:b; import os\n",
        "[console_scripts]\na = a.b\n",
        "[console_scripts]\na = a:b\na = c:d\n",
        "[console_scripts]\na = a:b\n[gui_scripts]\na = c:d\n",
        "[console_scripts\na = a:b\n",
    ],
)
def test_invalid_entry_points_are_refused(text: str) -> None:
    with pytest.raises(IntegrityError, match=r"w\.whl.*entry_points\.txt"):
        entry_points(text, "w.whl")


def test_created_launcher_runs_its_function() -> None:
    entry = EntryPoint(name="x", module="pkg.mod", attribute="Class.method")
    text = launcher_script(entry, "/opt/venv/bin/python")
    assert text.startswith(b"#!/opt/venv/bin/python\n")
    (imported,) = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)]
    assert (imported.module, imported.names[0].name) == ("pkg.mod", "Class")


@pytest.mark.parametrize("interpreter", ["/with space/bin/python", "/" + "l" * 130 + "/python"])
def test_launcher_for_a_long_interpreter_path_uses_a_shell(interpreter: str) -> None:
    lines = shebang_lines(interpreter)
    assert lines.startswith(b"#!/bin/sh\n'''exec' ")
    assert f'"{interpreter}"'.encode() in lines
    ast.parse(launcher_script(EntryPoint(name="x", module="m", attribute="f"), interpreter))


@each_row(
    ("script", "expected"),
    [
        (b"#!python\nx\n", b"#!/p\nx\n"),
        (b"#!pythonw\r\nx\n", b"#!/p\nx\n"),
        (b"#!python3 -E\nx\n", b"#!/p\nx\n"),
        (b"#!python", b"#!/p"),
        (b"#!python\n\xff\0", b"#!/p\n\xff\0"),
    ],
)
def test_first_lines_of_scripts_are_rewritten(script: bytes, expected: bytes) -> None:
    assert rewrite_shebang(script, "/p") == expected
