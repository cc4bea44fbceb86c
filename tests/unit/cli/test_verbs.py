"""Tests that every verb has the shared options, and help with an example that can be typed."""

from __future__ import annotations

import inspect
import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from imgbuild.cli import _app, _help
from imgbuild.cli._app import REMOVED, app
from tests.support.inprocess_project import Command
from tests.support.rows import each_row

ROOT = Path(__file__).parents[3]
SHARED = {"json": ("--json",), "quiet": ("--quiet", "-q"), "verbose": ("--verbose", "-v")}
EXAMPLE = re.compile(r"^ {4,}(.*\bimgbuild .*)$", re.MULTILINE)


def verbs(of: Any, above: str = "") -> dict[str, Any]:
    """Every verb and subcommand of the command line by its full name."""
    commands: dict[str, Any] = {}
    for name, command in of.commands.items():
        if hasattr(command, "commands"):
            commands |= verbs(command, f"{above}{name} ")
        else:
            commands[f"{above}{name}"] = command
    return commands


def shared(verb: str) -> dict[str, tuple[str, ...]]:
    """The flags of the options that all verbs share. `run -v` is --volume, as in Docker."""
    return SHARED | {"verbose": ("--verbose",)} if verb in ("run", "shell") else SHARED


VERBS = verbs(typer.main.get_command(app))


def test_all_verbs_are_tested() -> None:
    assert {"build", "lock", "run", "cache info", "cache verify"} <= set(VERBS)
    assert len(VERBS) > 14


@each_row("verb", VERBS)
def test_every_verb_has_the_shared_options(verb: str) -> None:
    options = {option.name: (tuple(option.opts), option.default) for option in VERBS[verb].params}
    for name, flags in shared(verb).items():
        assert options.get(name) == (flags, False)


@each_row("verb", VERBS)
def test_help_of_a_verb_shows_options_and_an_example(
    imgbuild: Command, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = imgbuild(*verb.split(), "--help")
    assert (done.status, done.stderr) == (0, "")
    for flags in shared(verb).values():
        assert all(flag in done.stdout for flag in flags)
    assert "Example" in done.stdout
    examples = EXAMPLE.findall(inspect.getdoc(VERBS[verb].callback) or "")
    assert examples
    shown = done.stdout.replace(" \\\n      ", " ")  # a folded line can be pasted into a shell
    assert all(f"\n  {example.strip()}\n" in shown for example in examples)
    all_flags = {
        flag for option in VERBS[verb].params for flag in (*option.opts, *option.secondary_opts)
    }
    for example in examples:
        words = shlex.split(re.sub(r'^.*\$\(|\)"?$|\|.*$', "", example), comments=True)
        assert " ".join(words).startswith(f"imgbuild {verb}"), example
        command_words = itertools.takewhile(lambda word: word != "--", words)
        assert {word for word in command_words if word.startswith("-")} <= all_flags, example
        given = list(itertools.takewhile(lambda word: word not in (">", ">>", "&&"), words))
        # As typed: each option with a value has a valid one.
        assert VERBS[verb].make_context(verb, given[1 + len(verb.split()) :]), example


def test_verbs_in_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.partition("## Verbs")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([a-z]+)`", row)}
    program: Any = typer.main.get_command(app)
    visible = {name for name, command in program.commands.items() if not command.hidden}
    assert named
    assert named <= visible


@pytest.mark.parametrize(("verb", "replacement"), REMOVED.items())
def test_error_for_a_removed_verb_names_the_replacement(
    imgbuild: Command, verb: str, replacement: str
) -> None:
    done = imgbuild(*verb.split(), "cu124-vllm")
    assert (done.status, verb in VERBS) == (2, False)
    assert done.stderr.endswith(f"hint: use imgbuild {replacement} instead\n")
    assert replacement in VERBS
    assert f"`imgbuild {verb}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@each_row("name", _app.VERBS)
def test_main_help_has_a_summary_of_each_verb(name: str) -> None:
    assert _app.VERBS[name].summary == _help.verb_summary(_app.LazyCommands()[name])
