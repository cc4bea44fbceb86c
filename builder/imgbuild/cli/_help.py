"""Formats the help of commands and the list of commands, and rejects repeated options."""

from __future__ import annotations

import contextlib
import enum
import inspect
import itertools
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from imgbuild.cli._verb import FREQUENT_OPTIONS, OUTPUT, SETTINGS, WORK
from imgbuild.errors import InputError

HELP = {"help_option_names": ["--help", "-h"]}
INDENT = "  "
COLUMN = 26  # the largest column at which the text of an option begins
NO_TARGET = ""  # in place of a target: the only one of the project
ACTIVE_KEY = "active"  # the value of --environment without one
EXAMPLES = ("Example:", "Examples:")
WORDS = "imgbuild.command"  # the words after `--`, in the meta data of a context
FEW_OPTIONS = 12  # options that fit one screen
MORE_PANEL = "More options"
LAST_PANELS = (OUTPUT,)  # panels at the end; others are in the order in which options are declared


@contextlib.contextmanager
def _name_verb_in_errors(ctx: Any) -> Iterator[None]:
    """Add the context of the command to usage errors without a context."""
    try:
        yield
    except Exception as error:
        if getattr(error, "ctx", ctx) is None:
            error.ctx = ctx  # type: ignore[attr-defined]
        raise


class VerbCommand(TyperCommand):
    """A command of imgbuild, with the common format of help and errors."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the command."""
        formatter.write("\n".join(help_lines(self, ctx)) + "\n")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments.

        Raises InputError for a repeated option that accepts only one value.
        """
        with _name_verb_in_errors(ctx):
            if not ctx.resilient_parsing:
                _refuse_second_values(self, ctx, args)
            return super().parse_args(ctx, args)


class RunCommand(VerbCommand):
    """A command of imgbuild that runs a command line in a container. The target comes first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Options after the command are passed to it, as in `docker run`."""
        place = command_place(self.params, args)
        words = args if place is None else [*args[:place], "--", *args[place:]]
        if place is None and "--" in args and not names_target(self.params, args):
            mark = args.index("--")
            words = [*args[:mark], NO_TARGET, *args[mark:]]
        return super().parse_args(ctx, words)


class RenderCommand(VerbCommand):
    """A command of imgbuild that accepts any number of targets, and a command line after `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments before `--`, and store those after it in `ctx.meta`."""
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[WORDS] = tuple(args[place + 1 :])
        return super().parse_args(ctx, args[:place])


class AuditCommand(VerbCommand):
    """A command whose option --environment can be used without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Without a value, --environment means the active environment."""
        words = []
        for word, after in zip(args, [*args, "-"][1:], strict=True):
            words.append(word)
            if word == "--environment" and after.startswith("-"):
                words.append(ACTIVE_KEY)
        return super().parse_args(ctx, words)


class VerbGroup(TyperGroup):
    """A command with subcommands, or the whole program."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help: the description, and one line for each command."""
        formatter.write("\n".join(group_listing(self, ctx)) + "\n")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the command line."""
        with _name_verb_in_errors(ctx):
            return super().parse_args(ctx, args)

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield the panel, name and summary of each listed command."""
        for name, each in self.commands.items():
            if not each.hidden:
                yield getattr(each, "rich_help_panel", None) or "Commands", name, verb_summary(each)


def _refuse_second_values(command: VerbCommand, ctx: Any, args: Sequence[str]) -> None:
    *_, order = command.make_parser(ctx).parse_args(args=list(args))
    options: list[Any] = [each for each in order if each.opts[0].startswith("-")]
    if any(option.is_eager for option in options):  # --help comes first
        return
    for option in dict.fromkeys(options):
        single = not (option.multiple or option.is_flag) and SETTINGS.isdisjoint(option.opts)
        if single and options.count(option) > 1:
            flag = max(option.opts, key=len)
            values = " and ".join(given_values(option.opts, args)) or "several"
            message = f"{ctx.command_path}: {flag} accepts one value, not {values}"
            raise InputError(
                message, hint="specify one value, or run the command once for each value"
            )


def given_values(flags: Sequence[str], args: Sequence[str]) -> list[str]:
    """Return the values that `args` contains for the option with the names `flags`."""
    words = iter(itertools.takewhile(lambda word: word != "--", args))
    values = []
    for word in words:
        if word in flags:
            values.append(next(words, ""))
            continue
        for flag in flags:
            joined = f"{flag}=" if flag.startswith("--") else flag
            if word.startswith(joined):
                values.append(word.removeprefix(joined))
    return values


def register_verb(
    app: typer.Typer,
    name: str,
    function: Callable[..., None],
    *,
    cls: type[VerbCommand] = VerbCommand,
) -> None:
    """Register a command in `app`, with the help options of all commands."""
    app.command(name, cls=cls, context_settings=HELP)(function)


def create_command(function: Callable[..., None], *, cls: type[VerbCommand] = VerbCommand) -> Any:
    """Convert `function` to a command of typer."""
    single = typer.Typer(add_completion=False)
    register_verb(single, function.__name__, function, cls=cls)
    return typer.main.get_command(single)


def create_group(app: typer.Typer) -> Any:
    """Convert `app` to a group of commands of typer."""
    return typer.main.get_group(app)


def command_place(options: Sequence[Any], words: Sequence[str]) -> int | None:
    """Return the index in `words` of the first word that belongs to the user's command.

    The command starts with the second argument, or with the first if --target precedes it. Returns
    None if there is no command, or if `--` precedes it.
    """
    positional, named = 0, False
    for place, word in _words_before_mark(options, words):
        if word.startswith("-") and word != "-":
            named = named or _is_target_option(word)
            continue
        positional += 1
        if positional == (1 if named else 2):
            return place
    return None


def names_target(options: Sequence[Any], words: Sequence[str]) -> bool:
    """Return whether an option or a positional argument before `--` specifies a target."""
    return any(
        _is_target_option(word) or word == "-" or not word.startswith("-")
        for _, word in _words_before_mark(options, words)
    )


def _words_before_mark(options: Sequence[Any], words: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the words before `--` with their indexes, except for values of options."""
    valued = {flag for each in options if not getattr(each, "is_flag", True) for flag in each.opts}
    place = 0
    while place < len(words) and words[place] != "--":
        yield place, words[place]
        place += 2 if words[place] in valued else 1


def _is_target_option(word: str) -> bool:
    return word.startswith("-t") or word.partition("=")[0] == "--target"


def help_lines(command: Any, ctx: Any) -> Iterator[str]:
    """Yield the help of a command: usage, description, arguments, options by panel, and examples.

    If the command has more than `FEW_OPTIONS` options, the most used options are listed first.
    """
    description, examples = _split_examples(command.help or "")
    yield from _usage(command, ctx)
    yield ""
    yield from _wrap_help_text(description)
    arguments, options = _parameters(command)
    if arguments:
        yield from _section("Arguments", arguments)
    often = [each for each in options if FREQUENT_OPTIONS & {*each.opts, *each.secondary_opts}]
    first = often if len(options) > FEW_OPTIONS else []
    panels: dict[str, list[Any]] = {WORK: first, MORE_PANEL: []}
    for each in options:
        panel = each.rich_help_panel or WORK
        if each not in first:
            panels.setdefault(MORE_PANEL if first and panel == WORK else panel, []).append(each)
    for panel in [*(name for name in panels if name not in LAST_PANELS), *LAST_PANELS]:
        if panels.get(panel):
            yield from _section(panel, panels[panel])
    if examples:
        yield ""
        yield from _wrap_help_text(examples)


def _split_examples(text: str) -> tuple[str, str]:
    plain = inspect.cleandoc(text)
    start = re.search(rf"^({'|'.join(EXAMPLES)})$", plain, re.MULTILINE)
    return (plain, "") if start is None else (plain[: start.start()], plain[start.start() :])


def group_listing(group: Any, ctx: Any) -> Iterator[str]:
    """Yield the help of a group, with its commands by panel."""
    path = ctx.command_path
    yield f"Usage: {path} [OPTIONS] COMMAND ..."
    yield ""
    yield from _wrap_help_text(inspect.cleandoc(group.help or ""))
    panels: dict[str, list[tuple[str, str]]] = {}
    for panel, name, text in group.rows():
        panels.setdefault(panel, []).append((name, text))
    widest = max(len(name) for rows in panels.values() for name, _ in rows)
    for panel, rows in panels.items():
        yield ""
        yield f"{panel}:"
        for name, text in rows:
            head = f"{INDENT}{name.ljust(widest)}  "
            yield from textwrap.wrap(
                head + text,
                _help_width(),
                subsequent_indent=" " * len(head),
                break_on_hyphens=False,
            )
    options = [each for each in group.params if not each.hidden]
    names = [flag for each in options for flag in each.opts if "completion" not in flag]
    yield ""
    if names:
        yield f"Options: {', '.join([*names, '--install-completion', '--help'])}"
    verb = path.partition(" ")[2]
    yield f"Help for a command: imgbuild help {verb + ' ' if verb else ''}COMMAND"


def verb_summary(command: Any) -> str:
    """Return the first line of the help of a command, without the final period."""
    return str(command.help or "").strip().splitlines()[0].removesuffix(".")


def value_metavar(parameter: Any) -> str:
    """Return the metavar of a parameter: by default, the choices or the name; "" for a flag."""
    if getattr(parameter, "is_flag", False):
        return ""
    if parameter.metavar:
        return str(parameter.metavar)
    return "|".join(parameter_choices(parameter)) or str(parameter.name).upper()


def parameter_choices(parameter: Any) -> list[str]:
    """Return the choices of a parameter, or [] if it accepts any value."""
    values = getattr(parameter.type, "choices", ())
    return [str(each.value if isinstance(each, enum.Enum) else each) for each in values]


def option_flags(option: Any) -> str:
    """Return the names of an option: the long name first, and the negative name after a slash."""
    names = sorted(option.opts, key=lambda name: -len(name))
    value = value_metavar(option)
    words = [f"{names[0]} {value}".rstrip(), *names[1:]]
    return "/".join([", ".join(words), *option.secondary_opts])


def parameter_help(option: Any) -> str:
    """Return the help of a parameter, and the default value unless the help text contains it."""
    words = " ".join((option.help or "").split())
    default = option.default
    default = default.value if isinstance(default, enum.Enum) else default
    if option.required and option.opts[0].startswith("-"):
        return f"{words} Required."
    if option.secondary_opts and isinstance(default, bool):
        default = (option.opts if default else option.secondary_opts)[0]
    if default in (None, False, 0, "0", (), [], "") or callable(default):
        return words
    return f"{words} Default: {default}."


def _usage(command: Any, ctx: Any) -> Iterator[str]:
    arguments, _ = _parameters(command)
    words = [ctx.command_path, "[OPTIONS]"]
    for each in arguments:
        word = value_metavar(each)
        words.append(word if each.required or word.startswith("-- ") else f"[{word}]")
    yield f"Usage: {' '.join(words)}"


def _parameters(command: Any) -> tuple[list[Any], list[Any]]:
    given = [each for each in command.params if not each.hidden]
    arguments = [each for each in given if not each.opts[0].startswith("-")]
    return arguments, [each for each in given if each not in arguments]


def _section(title: str, parameters: Sequence[Any]) -> Iterator[str]:
    yield ""
    yield f"{title}:"
    for each in parameters:
        head = option_flags(each) if each.opts[0].startswith("-") else value_metavar(each)
        yield from _row(f"{INDENT}{head}", parameter_help(each))


def _row(head: str, words: str) -> Iterator[str]:
    lines = textwrap.wrap(words, _help_width() - COLUMN, break_on_hyphens=False) or [""]
    if len(head) > COLUMN - 2:
        yield head
    else:
        yield f"{head.ljust(COLUMN)}{lines.pop(0)}".rstrip()
    yield from (" " * COLUMN + line for line in lines)


def _wrap_help_text(words: str) -> Iterator[str]:
    paragraphs = words.strip().split("\n\n")
    for number, paragraph in enumerate(paragraphs):
        example = paragraph.startswith("    ")
        if number and not (example and paragraphs[number - 1].startswith(("    ", *EXAMPLES))):
            yield ""
        if example:
            yield from _fold_example(paragraph[2:])
        else:
            plain = " ".join(paragraph.replace("**", "").split())
            yield from textwrap.wrap(plain, _help_width(), break_on_hyphens=False)


def _fold_example(example: str) -> Iterator[str]:
    while len(example) > _help_width():
        cut = example.rfind(" ", 4, _help_width() - 1)
        if cut < 0:
            break
        yield f"{example[:cut]} \\"
        example = f"      {example[cut + 1 :]}"
    yield example


def _help_width() -> int:
    return min(shutil.get_terminal_size().columns, 100)
