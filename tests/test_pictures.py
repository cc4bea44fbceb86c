"""Tests that the pictures in docs/pictures match the current output of the commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.source_code import ROOT, import_script

PICTURES = import_script(ROOT / "tools/pictures.py")


@pytest.mark.parametrize("name", PICTURES.PICTURES)
def test_pictures_are_current_and_load_no_external_resources(
    name: str, golden: Callable[[Path, str], None]
) -> None:
    text = PICTURES.draw_picture(PICTURES.PICTURES[name])
    golden(PICTURES.FOLDER / name, text)
    assert re.findall(r"(?:href|src|url)\W+\w+://|@import|<script", text) == []


def test_each_picture_is_shown_with_its_command_as_text() -> None:
    pages = [
        path.read_text(encoding="utf-8")
        for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    ]
    for name, picture in PICTURES.PICTURES.items():
        links = [page for page in pages if f"pictures/{name})" in page]
        assert links, name
        assert all(f"![`{picture.command}`" in page for page in links), name
        assert shlex.split(picture.command)[0] == "imgbuild"
    assert {path.name for path in PICTURES.FOLDER.glob("*.svg")} == set(PICTURES.PICTURES)
