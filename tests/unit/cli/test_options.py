"""Tests that an option has one name, one definition and one meaning in all verbs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from imgbuild.cli import _help
from imgbuild.cli._app import app
from imgbuild.cli._verb import (
    VARYING_FLAG,
    OptionDefinition,
    OptionGroup,
    OutputOptions,
    create_verb,
)
from tests.support.inprocess_project import TARGET, Command, SampleProject
from tests.support.rows import each_row
from tests.unit.cli.test_verbs import VERBS

ROOT = Path(__file__).parents[3]


class Pair(OptionGroup, frozen=True, kw_only=True):
    left: int = 1
    right: int = 2


def _options() -> dict[str, list[tuple[str, Any]]]:
    options: dict[str, list[tuple[str, Any]]] = {}
    for name, command in VERBS.items():
        for parameter in command.params:
            for flag in (*parameter.opts, *parameter.secondary_opts):
                if flag.startswith("-"):
                    options.setdefault(flag, []).append((name, parameter))
    return options


@each_row("flag", sorted({*_options()} - {VARYING_FLAG}))
def test_option_has_the_same_definition_in_every_verb(flag: str) -> None:
    """Every verb has the same names, metavar and first help sentence of an option."""
    meanings = {
        (
            *(
                name
                for name in (*parameter.opts, *parameter.secondary_opts)
                if name != VARYING_FLAG
            ),
            _help.value_metavar(parameter),
            _first(parameter.help),
        )
        for _, parameter in _options()[flag]
    }
    assert len(meanings) == 1, (flag, [name for name, _ in _options()[flag]])


@each_row("verb", VERBS)
def test_error_for_a_missing_option_value_refers_to_the_help(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Subcommands and short forms of options are also tested."""
    flags = [
        flag
        for option in VERBS[verb].params
        if option.opts[0].startswith("-") and not option.is_flag
        for flag in option.opts
        if (verb, flag) != ("audit", "--environment")  # may have no value
    ]
    for flag in flags:
        done = Command(monkeypatch, capsys)(*verb.split(), flag, status=2)
        assert f"hint: run imgbuild help {verb}\n" in done.stderr, done.stderr


@each_row("verb", VERBS)
def test_error_for_a_misspelled_choice_lists_choices_and_suggests_the_nearest(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in VERBS[verb].params:
        given = _help.parameter_choices(option) if option.opts[0].startswith("-") else []
        if option.name == "arch":
            continue
        for choice in given:
            wrong = f"{choice}{choice[-1]}".upper()
            done = Command(monkeypatch, capsys)(*verb.split(), option.opts[0], wrong, status=2)
            text = " ".join(done.stderr.split())
            assert f"'{wrong}' is not one of {', '.join(map(repr, given))}" in text
            assert f"Did you mean {choice}?" in text


def test_help_of_the_through_option_lists_the_accepted_values() -> None:
    for name, option in _options()["--through"]:
        if name.startswith("ci "):
            continue
        words = set(re.findall(r"docker|podman|apptainer|root|here", option.help))
        assert words == set(_help.parameter_choices(option)), name


def _first(text: str) -> str:
    return text.partition(". ")[0].rstrip(".")


def test_options_are_defined_consistently() -> None:
    """Each name of an option has one meaning, defined by `option` or `OptionDefinition`."""
    named = [
        path.name
        for path in (ROOT / "builder/imgbuild/cli").glob("*.py")
        if "typer.Option(" in path.read_text(encoding="utf-8")
    ]
    assert sorted(named) == ["_app.py", "_verb.py"]


def test_second_definition_of_an_option_is_refused() -> None:
    with pytest.raises(ValueError, match="--json is defined twice"):
        OptionDefinition("--json", "Something else.")


def test_option_groups_become_options_of_a_verb() -> None:
    seen: list[object] = []

    @create_verb
    def both(pair: Pair, third: int = 3) -> None:
        seen.append((pair, third))

    both(left=5, right=6, third=7, json=False, quiet=False, verbose=False)
    assert seen == [(Pair(left=5, right=6), 7)]
    names = [*Pair.__struct_fields__, "third", *OutputOptions.__struct_fields__]
    assert list(typer.main.get_command(_typer(both)).params[0].opts) == ["--left"]
    assert [parameter.name for parameter in typer.main.get_command(_typer(both)).params][
        : len(names)
    ] == names


def _typer(function: Any) -> typer.Typer:
    typer_app = typer.Typer(add_completion=False)
    typer_app.command()(function)
    return typer_app


# The verbs and their groups; () is the program.
NAMES = [tuple(name.split()) for name in VERBS]
HELPED = sorted({name[:end] for name in NAMES for end in range(len(name) + 1)})


@pytest.fixture
def imgbuild(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("COLUMNS", "80")
    return Command(monkeypatch, capsys)


@pytest.mark.parametrize("words", HELPED, ids=" ".join)
def test_help_fits_80_columns(words: tuple[str, ...], imgbuild: Command) -> None:
    text = imgbuild("help", *words).stdout
    assert text == imgbuild(*words, "--help").stdout == imgbuild(*words, "-h").stdout
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert "<" not in text
    assert "[[" not in text


@pytest.mark.parametrize("verb", VERBS)
def test_first_help_panel_has_few_options_and_the_panels_have_all_options(
    verb: str, imgbuild: Command
) -> None:
    text = imgbuild(*verb.split(), "--help").stdout
    _, _, rest = text.partition("\nOptions:\n")
    first = rest.partition("\n\n")[0].splitlines()
    assert sum(line.startswith("  -") for line in first) <= _help.FEW_OPTIONS
    for option in VERBS[verb].params:
        if option.opts[0].startswith("-"):
            flags = _help.option_flags(option)
            assert len(re.findall(rf"^  {re.escape(flags)}(?= |$)", text, re.MULTILINE)) == 1, flags


def test_main_help_lists_every_verb_in_its_group(imgbuild: Command) -> None:
    lines = imgbuild("--help").stdout.splitlines()
    assert len(lines) <= 54
    program: Any = typer.main.get_command(app)
    for name, command in program.commands.items():
        assert any(line.split()[:1] == [name] for line in lines) is not command.hidden, name


def test_unknown_option_error_explains_double_dash_before_a_command(
    imgbuild: Command, sample: SampleProject
) -> None:
    done = imgbuild("run", TARGET, "--verson", status=2)
    hint = "to pass options to the command, run imgbuild run TARGET -- COMMAND"
    assert f"hint: {hint}; for help, run imgbuild help run" in done.stderr
    assert sample.matrix.is_file()


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SampleProject:
    from tests.support import inprocess_project as cli_project

    monkeypatch.chdir(tmp_path)
    return cli_project.write_project(tmp_path)


@each_row(
    ("words", "place"),
    [
        ([], None),
        (["rollout"], None),
        (["rollout", "python", "-c", "print(1)"], 1),
        (["rollout", "-v", "/a:/b", "-q", "ls", "-v"], 4),
        (["--env", "A=1", "--gpus=2", "rollout", "ls"], 4),
        (["--target", "rollout", "-e", "A", "ls", "-l"], 4),
        (["--target=rollout", "ls", "-l"], 1),
        (["-trollout", "-", "-l"], 1),
        (["rollout", "--", "ls", "-l"], None),
        (["rollout", "--unknown", "ls"], 2),
    ],
)
def test_user_command_of_run_begins_after_the_target(words: list[str], place: int | None) -> None:
    assert _help.command_place(VERBS["run"].params, words) == place


RUN = ("run", "--through", "root", "--dry-run")


@pytest.mark.parametrize("words", [RUN, ("slurm",)])
def test_target_is_accepted_as_argument_or_option(
    words: tuple[str, ...],
    imgbuild: Command,
    sample: SampleProject,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HOME", str(sample.folder))  # a missing folder is reported once a day
    positional, named = (imgbuild(*words, *more) for more in ((TARGET,), ("--target", TARGET)))
    assert (positional.status, positional.stdout) == (named.status, named.stdout)
    assert positional.stderr == named.stderr
    several = imgbuild(*words, "-t", TARGET, "-t", "other")
    assert (several.status, "only one target can be specified" in several.stderr) == (2, True)
    assert sample.matrix.is_file()


def test_gpus_option_accepts_a_number_or_all(imgbuild: Command) -> None:
    assert "not a valid number of GPUs" in imgbuild("run", TARGET, "--gpus", "some").stderr
