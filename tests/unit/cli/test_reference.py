"""Tests that docs/reference and docs/images match the code, and that every option is explained."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

from imgbuild.cli._app import app
from imgbuild.errors import ImgbuildError
from imgbuild.matrix.load import load_matrix
from imgbuild.matrix.select import select_targets
from tests.support.rows import each_row
from tests.support.source_code import import_script

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
REMEDY = "run tools/reference.py"


REFERENCE = import_script(ROOT / "tools/reference.py")
VERBS: dict[str, Any] = dict(REFERENCE.visible_verbs(typer.main.get_command(app)))


@functools.cache
def folders() -> dict[str, dict[str, str]]:
    """The pages of each folder in docs by name, generated once because this takes seconds."""
    made: dict[str, dict[str, str]] = REFERENCE.page_folders()
    return made


def page(name: str) -> str:
    """A page of docs/reference."""
    return folders()["reference"][name]


def test_committed_reference_pages_are_current(golden: Callable[[Path, str], None]) -> None:
    for folder, texts in folders().items():
        for name, text in texts.items():
            golden(DOCS / folder / name, text)


def test_no_obsolete_reference_page_exists() -> None:
    for folder, texts in folders().items():
        assert {path.name for path in (DOCS / folder).iterdir()} == texts.keys(), REMEDY


def test_every_recommended_target_has_a_page_that_is_linked() -> None:
    named = {
        f"{target.name}.md"
        for target in select_targets(
            load_matrix(ROOT / "matrix.yaml"), [], everything=True, arches=[]
        )
        if target.target.recommended
    }
    assert folders()["images"].keys() == named
    linked = {name for name in named if f"(images/{name})" in (DOCS / "README.md").read_text()}
    assert linked == named


def test_reference_pages_do_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("HOME", "/elsewhere")
    assert REFERENCE.page_folders() == folders()


def test_reference_check_writes_nothing_and_names_stale_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(REFERENCE, "DOCS", tmp_path)
    monkeypatch.setattr(REFERENCE, "ROOT", tmp_path)
    monkeypatch.setattr(REFERENCE, "page_folders", folders)
    assert REFERENCE.main(["--check"]) == 5
    assert "stale: reference/cli.md" in capsys.readouterr().err
    assert not (tmp_path / "reference").exists()
    assert REFERENCE.main([]) == 0
    assert REFERENCE.main(["--check"]) == 0
    (tmp_path / "reference/ci.md").write_text("by hand")
    (tmp_path / "reference/other.md").write_text("of old")
    capsys.readouterr()
    assert REFERENCE.main(["--check"]) == 5
    assert (
        capsys.readouterr().err
        == "stale: reference/other.md, reference/ci.md; run tools/reference.py\n"
    )


@each_row("verb", VERBS)
def test_every_option_and_argument_has_help(verb: str) -> None:
    command = VERBS[verb]
    assert command.help
    assert [item.name for item in command.params if not (item.help or "").strip()] == []


@each_row("verb", VERBS)
def test_every_verb_has_a_section_with_all_options(verb: str) -> None:
    _, _, rest = page("cli.md").partition(f"\n## {verb}\n")
    section = rest.partition("\n## ")[0]
    assert section.strip()
    flags = {flag for item in VERBS[verb].params for flag in (*item.opts, *item.secondary_opts)}
    missing = {flag for flag in flags if flag.startswith("--") and f"`{flag}" not in section}
    assert missing <= REFERENCE.SHARED


def test_reference_page_has_every_error_class() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", page("errors.md"), re.MULTILINE)
    assert sorted(rows) == sorted(
        (str(kind.exit_code), kind.__name__) for kind in ImgbuildError.__subclasses__()
    )


def test_reference_page_has_every_schema_key() -> None:
    for name, schema in (("matrix.md", "matrix"), ("extension.md", "extension")):
        document = json.loads((ROOT / f"{schema}.schema.json").read_text(encoding="utf-8"))
        for part in (document, *document["$defs"].values()):
            missing = [
                key for key in part.get("properties", ()) if f"| `{key}` |" not in page(name)
            ]
            assert missing == []


@pytest.mark.parametrize("name", ["matrix.md", "extension.md", "ci.md"])
def test_reference_page_explains_every_schema_key(name: str) -> None:
    rows = re.findall(r"(?m)^\| `.*\|$", page(name))
    assert rows
    assert [row for row in rows if row.endswith("|  |")] == []


def test_links_within_pages_are_valid() -> None:
    for name, text in folders()["reference"].items():
        heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}
        links = set(re.findall(r"\]\(#([^)]+)\)", text))
        assert links <= anchors, name
