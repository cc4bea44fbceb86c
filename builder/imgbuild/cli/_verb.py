"""Declares commands and their options, including the options that all commands have.

A command is a function with the decorator `create_verb`. A parameter whose type is an `OptionGroup`
stands for all options of the group, which are passed as one value. Every command has the options
`--json`, `--quiet` and `--verbose`, which configure the console.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from imgbuild.system.console import console
from imgbuild.values import is_number

TARGETS_PANEL = "Targets"
OUTPUT = "Output options"
WORK = "Options"
REGISTRY = "Registries"
CONTAINER = "The container"

LONGEST_CHOICES = 18  # digits of a number
VARYING_FLAG = "-v"  # --verbose; in `run`, as in Docker, --volume
_defined_options: dict[str, tuple[str, str]] = {}  # a flag → names and meaning
FREQUENT_OPTIONS: set[str] = set()  # the options that the short help shows
SETTINGS: set[str] = set()  # the options of which the last value is used


def _whole_number(least: int, value: object) -> int:
    text = str(value)  # typer passes the default as well
    if not is_number(text) or int(text[:LONGEST_CHOICES]) < least:
        message = f"{text!r} is not a whole number of at least {least}"
        raise typer.BadParameter(message)
    if len(text) > LONGEST_CHOICES:
        message = f"the number {text[:LONGEST_CHOICES]}… is too large"
        raise typer.BadParameter(message)
    return int(text)


class OptionDefinition:
    """An option: names, help, and the parser of the value.

    Only -v can be defined twice. For any other name, a second definition raises ValueError. To add
    a sentence for one command, such as a default, call the definition: `OUTPUT_PATH("Default:
    stdout.")`.

    An option whose type is a list collects all values. For a `setting`, such as a number of
    processes, the last value is used. For other options, a second value is an error, because one
    value would be ignored.
    """

    def __init__(
        self,
        names: str,
        help: str,  # noqa: A002 - as typer has it
        *,
        metavar: str | None = None,
        panel: str = WORK,
        often: bool = False,
        setting: bool = False,
        **more: Any,
    ) -> None:
        """Define an option. `names` is separated by spaces: "--output -o"."""
        self._names = names.split()
        self._help = help
        if "min" in more:  # typer's own type of such options accepts digits of every script
            more["parser"] = functools.partial(_whole_number, more.pop("min"))
        self._more = {"metavar": metavar, "rich_help_panel": panel, **more}
        flags = {flag for name in self._names for flag in name.split("/")}
        long = " ".join(name for name in self._names if name.startswith("--"))
        for flag in flags - {VARYING_FLAG}:
            if _defined_options.setdefault(flag, (long, help)) != (long, help):
                message = f"{flag} is defined twice"
                raise ValueError(message)
        if often:
            FREQUENT_OPTIONS.update(flags)
        if setting:
            SETTINGS.update(flags)

    def __call__(self, note: str = "", *, panel: str | None = None) -> Any:
        """Create the option for a command. `note` is an additional sentence of the help."""
        more = self._more if panel is None else {**self._more, "rich_help_panel": panel}
        return typer.Option(*self._names, help=f"{self._help} {note}".strip(), **more)


def option(names: str, help: str, **more: Any) -> Any:  # noqa: A002 - as typer has it
    """Define an option that has the same help in every command."""
    return OptionDefinition(names, help, **more)()


class OptionGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Options that commands share. Each field is an option or argument."""


class OutputOptions(OptionGroup, frozen=True, kw_only=True):
    """The options of every command."""

    json: Annotated[
        bool, option("--json", "Write the result to stdout as JSON.", panel=OUTPUT, often=True)
    ] = False
    quiet: Annotated[
        bool, option("--quiet -q", "Print only warnings and errors.", panel=OUTPUT)
    ] = False
    verbose: Annotated[
        bool,
        option(
            "--verbose -v",
            "Print the commands that are run and the cache entries that are used.",
            panel=OUTPUT,
        ),
    ] = False


class RunOutput(OutputOptions, frozen=True, kw_only=True):
    """The options of every command except -v, for commands in which -v means --volume."""

    verbose: Annotated[
        bool,
        option(
            "--verbose",
            "Print the commands that are run and the cache entries that are used.",
            panel=OUTPUT,
        ),
    ] = False


G = TypeVar("G", bound=OptionGroup)


def create_verb(
    function: Callable[..., None], *, output: type[OutputOptions] = OutputOptions
) -> Callable[..., None]:
    """Convert `function` for typer: replace each group in the signature with its options."""
    signature = inspect.signature(function, eval_str=True)
    groups: dict[str, type[OptionGroup]] = {}
    flat: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if isinstance(parameter.annotation, type) and issubclass(parameter.annotation, OptionGroup):
            groups[parameter.name] = parameter.annotation
            flat += group_parameters(parameter.annotation)
        else:
            flat.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    flat += group_parameters(output)
    flat = [each.replace(annotation=_unparsed_annotation(each.annotation)) for each in flat]

    @functools.wraps(function)
    def _run_verb(**given: Any) -> None:
        configure_console(take_group(output, given))
        values = {name: take_group(group, given) for name, group in groups.items()}
        function(**values, **given)

    _run_verb.__signature__ = signature.replace(parameters=flat)  # type: ignore[attr-defined]
    _run_verb.__annotations__ = {parameter.name: parameter.annotation for parameter in flat} | {
        "return": None
    }
    return _run_verb


def _unparsed_annotation(annotation: Any) -> Any:
    """Remove the parser from `annotation`, because typer would parse values a second time."""
    meta = getattr(annotation, "__metadata__", ())
    if meta and meta[0].parser is not None and str(annotation.__origin__).startswith("list["):
        return Annotated[list[Any] | None, *meta]
    return annotation


def configure_console(output: OutputOptions) -> None:
    """Configure the console according to `output`."""
    console.configure(verbosity=-1 if output.quiet else int(output.verbose), json=output.json)


def group_parameters(group: type[OptionGroup]) -> list[inspect.Parameter]:
    """Convert the options of `group` to parameters of a function."""
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.required else field.default,
            annotation=field.type,
        )
        for field in msgspec.structs.fields(group)
    ]


def take_group(group: type[G], given: dict[str, Any]) -> G:
    """Create a `group` from values in `given`, and remove the values from `given`."""
    return group(**{name: given.pop(name) for name in group.__struct_fields__ if name in given})
