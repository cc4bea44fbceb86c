"""Tests that repeated options keep all values or are refused, and settings keep the last value."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from imgbuild.cli import _help
from imgbuild.cli._app import USAGE_ERRORS, app
from imgbuild.cli._verb import SETTINGS, OptionDefinition
from imgbuild.errors import InputError
from tests.support.rows import each_row
from tests.unit.cli.test_verbs import VERBS

VALUES = ("9.0", "1", "2025-01-01", "12.8", "1/2", "x86_64", "a=b", "embedded,docker", "90d", "x")


def _options() -> Iterator[tuple[str, Any]]:
    """Every option of every verb that has a value."""
    for name, command in VERBS.items():
        for option in command.params:
            if option.opts[0].startswith("-") and not option.is_flag:
                yield name, option


OPTIONS = [
    pytest.param(verb, option, id=f"{verb} {max(option.opts, key=len)}")
    for verb, option in _options()
]


def _parsed(verb: str, *words: str) -> dict[str, Any]:
    """The values that the parser of the command line reads from the words after a verb."""
    command: Any = typer.main.get_command(app)
    names = verb.split()
    for name in names:
        command = command.commands[name]
    for parameter in command.params:
        parameter.required = False
    return dict(command.make_context(f"imgbuild {verb}", list(words)).params)


def _value(verb: str, option: Any) -> str:
    """A valid value of the option."""
    for text in (*_help.parameter_choices(option), *VALUES):
        with contextlib.suppress(*USAGE_ERRORS):
            _parsed(verb, option.opts[0], text)
            return text
    raise AssertionError(option.opts)


@each_row(("verb", "option"), OPTIONS)
def test_repeated_option_is_accepted_or_refused_but_never_ignored_silently(
    verb: str, option: Any
) -> None:
    flag, value = max(option.opts, key=len), _value(verb, option)
    if option.multiple:
        assert len(_parsed(verb, flag, value, flag, value)[option.name]) == 2
        return
    if SETTINGS.isdisjoint(option.opts):
        for words in ((flag, value, flag, value), (f"{flag}={value}", flag, value)):
            with pytest.raises(InputError) as caught:
                _parsed(verb, *words)
            assert caught.value.message == (
                f"imgbuild {verb}: {flag} accepts one value, not {value} and {value}"
            )
        return
    last = _parsed(verb, flag, value)
    assert _parsed(verb, flag, value, flag, value) == last


def test_options_whose_last_value_applies_do_not_name_inputs_or_outputs() -> None:
    """The list is complete, so a new option is a setting only if it is listed here."""
    flags = {flag for flag in SETTINGS if flag.startswith("--")}
    assert flags <= {
        "--account", "--compress", "--cool-down", "--cpus-per-task", "--depth", "--gpus", "--jobs",
        "--keep-days", "--max-size", "--mem", "--nodes", "--partition", "--severity", "--share",
        "--shared", "--shm-size", "--throttle", "--time", "--timeout-factor",
    }  # fmt: skip


def test_last_value_of_a_repeated_setting_applies() -> None:
    assert _parsed("lock", "--jobs", "2", "-j3")["jobs"] == 3
    assert _parsed("lock", "-j3", "--jobs=2")["jobs"] == 2


def test_error_for_a_repeated_option_names_both_values_and_the_remedy(imgbuild) -> None:
    done = imgbuild("audit", "--environment", "A", "--environment=B")
    assert (done.status, done.stdout) == (2, "")
    assert "imgbuild audit: --environment accepts one value, not A and B" in done.stderr
    assert "run the command once for each value" in done.stderr
    done = imgbuild("build", "--help", "-o", "A", "-oB", status=0)
    done = imgbuild("build", "t", "-o", "A", "-oB", "--output", "C", status=2)
    assert "--output accepts one value, not A and B and C" in done.stderr


def test_words_of_the_user_command_are_not_parsed_as_options() -> None:
    words = ("x", "--", "prog", "--output", "1", "--output", "2")
    assert "--output" in _parsed("slurm", *words)["command"]
    assert _parsed("run", "x", "prog", "--layout", "1", "--layout", "2")["name"] == "x"


def test_option_definition_marks_settings_whose_last_value_applies() -> None:
    assert "--first-of-a-test" not in SETTINGS
    OptionDefinition("--first-of-a-test", "Names a file.")
    OptionDefinition("--second-of-a-test", "A number.", setting=True)
    assert "--first-of-a-test" not in SETTINGS
    assert "--second-of-a-test" in SETTINGS
    SETTINGS.discard("--second-of-a-test")
