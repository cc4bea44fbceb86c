"""Checks options and subcommands of packages' programs in scripts."""

# A separate module: one check.
from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from pathlib import PurePath

import msgspec

from imgbuild.audit.code import hydra_files, option_files, overrides
from imgbuild.audit.code.commands import find_commands, names_pattern
from imgbuild.audit.code.model import MOST_IN_FILE, CodeFinding, CodeText
from imgbuild.audit.code.shell import Command, Word
from imgbuild.audit.code.sources import PackageSources
from imgbuild.audit.code.summaries import Summary
from imgbuild.audit.names import releases
from imgbuild.audit.source.text import dotted_name, string_list, string_value
from imgbuild.audit.source.tree import walk_tree
from imgbuild.matrix.notes import nearest_choice
from imgbuild.report import Severity
from imgbuild.system import files, yaml_data
from imgbuild.system.syntax import valid_source

FLAG, SUBCOMMAND, CHOICE, MODULE, ABSENT = "IMG301", "IMG302", "IMG303", "IMG304", "IMG305"
_MOST_NESTED = 5  # programs that run each other in a command
_ARGUMENTS = r"(?:Args|Arguments|Config|Params)$"
_ALIKE, _SAME = 0.75, 0.85  # similarity of options; _SAME applies to options in other releases
_COMPUTED_CHOICES = ()  # choices of an option with `**keywords`
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_ASSIGNMENT = re.compile(r"\w+=")
# Programs that run their remaining arguments as a command, or pass them to a container.
_WRAPPERS = frozenset(
    ("srun", "sudo", "nohup", "exec", "env", "timeout", "numactl", "nsys", "mpirun", "time")
) | frozenset(("docker", "podman", "apptainer", "singularity", "imgbuild", "uv", "xargs", "poetry"))
_CONTAINERS = frozenset(("docker", "podman", "apptainer", "singularity", "imgbuild"))
_NUMBER = re.compile(r"\d[\d.]*[smhd]?")
_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")


class PackageProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of `data/audit/code_commands.yaml`, which documents the fields."""

    names: tuple[str, ...]
    modules: tuple[str, ...]
    package: str
    files: tuple[str, ...]
    more: dict[str, tuple[str, ...]] = {}
    subcommands: tuple[str, ...] = ()
    script: bool = False
    exact: bool = False
    classes: str = _ARGUMENTS
    arguments: str = ""
    settings: tuple[str, ...] = ()


class Parser(msgspec.Struct, frozen=True):
    """The options and subcommands of a program, as far as the source shows them.

    `choices` maps options to their choices, if these are the same everywhere. `words` contains all
    strings in files that define subcommands. `valued` contains the options that require a value.
    `lacking` maps subcommands to the options that only other subcommands have.
    """

    flags: frozenset[str]
    choices: Mapping[str, tuple[str, ...]]
    words: frozenset[str]
    valued: frozenset[str]
    lacking: Mapping[str, frozenset[str]] = {}


Problem = tuple[Word, str, str, str, Severity]  # word, code, message, instead


@lru_cache(maxsize=1)
def load_programs() -> tuple[PackageProgram, ...]:
    """Load the bundled table of programs."""
    return yaml_data.load_yaml_data(
        files.data("audit/code_commands.yaml"), tuple[PackageProgram, ...]
    )


def check_command_lines(
    sources: PackageSources, texts: Sequence[CodeText], summaries: Mapping[str, Summary]
) -> Iterator[CodeFinding]:
    """Yield findings for options, subcommands and values that the programs do not accept."""
    lines = _CommandLines(sources, texts)
    names = names_pattern([*_programs_by_name(), *run_packages()])
    for text in texts:
        problems = (
            problem
            for command in find_commands(text, names, summaries.get(text.file))
            for problem in lines.find_problems(command)
        )
        for word, code, message, instead, severity in itertools.islice(problems, MOST_IN_FILE):
            yield text.finding(
                word.line,
                word.column,
                code=code,
                severity=severity,
                message=message,
                instead=instead,
            )


class _CommandLines:
    """Checks commands, and reads the parsers of each program once."""

    def __init__(self, sources: PackageSources, texts: Sequence[CodeText]) -> None:
        self._nested = 0
        self._sources = sources
        self._texts = texts
        self._set = sources.package_set
        self._parsers: dict[tuple[str, ...], Parser | None] = {}

    def find_problems(self, command: Command) -> Iterator[Problem]:
        """Yield the findings for the words of a command."""
        start = next(
            (at for at, word in enumerate(command) if not _ASSIGNMENT.match(word.text)),
            len(command),
        )
        wrapped = start < len(command) and command[start].text.rpartition("/")[2] in _WRAPPERS
        for at in range(start, len(command)):
            word = command[at]
            program = _program(word.text.rpartition("/")[2]) if word.literal else None
            if program is not None and at == start and self._sources.lacks_package(program.package):
                message = f"runs {word.text} of {program.package}, which is not in the package set"
                yield word, ABSENT, message, "", Severity.WARNING
                return
            behind = command[start:at]
            if program is not None and (
                at == start or self._is_start(program, behind, command[at + 1 :])
            ):
                yield from self._program_problems(program, command[at + 1 :])
                return
            if _PYTHON.fullmatch(word.text):
                yield from self._python_problems(command[at + 1 :])
                return
            if not wrapped:
                return

    def _is_start(self, program: PackageProgram, before: Command, words: Command) -> bool:
        """Whether a word after a launcher starts the program, judged by the surrounding words."""
        if not program.subcommands:
            return bool(words)
        parser = self._parser(program)
        if not words or parser is None:
            return False
        if words[0].text in parser.words:
            return True
        commands = (each for each in parser.words if len(each) > 1)
        likely = nearest_choice(words[0].text, commands) or _has_flags(parser, words[1:])
        return bool(likely) and _is_first(before)

    def _python_problems(self, words: Command) -> Iterator[Problem]:
        """Yield the finding for `python -m MODULE …`. Python's options may precede `-m`."""
        for at, word in enumerate(words[:-1]):
            if word.text == "-m":
                yield from self._check_module(words[at + 1], words[at + 2 :])
                return
            if not word.text.startswith("-"):
                return

    def _python_module_problems(self, words: Command) -> Iterator[Problem]:
        """Yield the findings for `-m MODULE …`, unless a script precedes it."""
        for at, word in enumerate(words[:-1]):
            if word.text.endswith(".py"):
                return
            if word.text in ("-m", "--module"):
                yield from self._check_module(words[at + 1], words[at + 2 :])
                return

    def _check_module(self, module: Word, words: Command) -> Iterator[Problem]:
        if not module.literal or not re.fullmatch(r"[\w.]+", module.text):
            return
        package = self._set.owner(module.text)
        if package is not None and self._set.exists(module.text) is False:
            version = f"{package} {self._set.version(package)}"
            message = f"runs {module.text}, which {version} does not have"
            instead = nearest_choice(module.text, self._set.modules_of(package)) or ""
            yield module, MODULE, message, instead, Severity.ERROR
            return
        top = module.text.partition(".")[0]
        if package is None and top in run_packages() and self._sources.lacks_package(top):
            if not any(text.module.partition(".")[0] == top for text in self._texts):
                message = f"runs {module.text}, but {top} is not in the package set"
                yield module, ABSENT, message, "", Severity.WARNING
            return
        for program in load_programs():
            if module.text in program.modules and not self._sources.lacks_package(program.package):
                yield from self._program_problems(program, words)
                return
        if package is not None:
            for word, code, message, instead in overrides.check_overrides(
                self._sources, package, module.text, words, self._texts
            ):
                severity = Severity.WARNING if code == overrides.TYPE else Severity.ERROR
                yield word, code, message, instead, severity

    def _program_problems(self, program: PackageProgram, words: Command) -> Iterator[Problem]:
        """Yield the findings for the words of a program, which can run another program."""
        if self._nested < _MOST_NESTED:
            self._nested += 1
            yield from self._word_problems(program, words)
            self._nested -= 1

    def _word_problems(self, program: PackageProgram, words: Command) -> Iterator[Problem]:
        parser = self._parser(program)
        if parser is None or not parser.flags:
            return
        version = f"{program.package} {self._set.version(program.package)}"
        lacking: frozenset[str] = frozenset()
        if program.subcommands and program.names:
            if not words or not words[0].literal:
                return
            first = words[0]
            if re.fullmatch(r"[a-z][\w-]*", first.text) and first.text not in parser.words:
                message = f"{version} has no command `{program.names[0]} {first.text}`"
                instead = (
                    nearest_choice(first.text, (each for each in parser.words if len(each) > 1))
                    or ""
                )
                yield first, SUBCOMMAND, message, instead, Severity.ERROR
                return
            words = words[1:] if not first.text.startswith("-") else words
            lacking = parser.lacking.get(first.text, lacking)
        flags = parser.flags - lacking
        for at, word in enumerate(words):
            if word.text == "--":
                yield from self.find_problems(words[at + 1 :])
                return
            if program.script and word.text in ("-m", "--module") and at + 1 < len(words):
                yield from self._check_module(words[at + 1], words[at + 2 :])
                return
            if program.script and word.text.endswith(".py"):
                return
            is_value = at > 0 and _normalize_flag(words[at - 1].text) in parser.valued
            if program.script and not (word.literal or is_value or _is_flag_with_value(word)):
                # The value of an option, or the script: options may belong to it.
                yield from self._python_module_problems(words[at + 1 :])
                return
            after = words[at + 1] if at + 1 < len(words) else None
            yield from _flag_problems(parser, flags, program, version, word, after)
        for each in option_files.file_options(self._texts, words, program.settings):
            problems = _flag_problems(parser, flags, program, version, each.option, each.value)
            for word, code, message, instead, severity in problems:
                key = instead.lstrip("-").replace("-", "_") if code == FLAG else instead
                yield word, code, f"{message}, which {each.place} sets", key, severity

    def _parser(self, program: PackageProgram) -> Parser | None:
        """Return the parsers of a program.

        Return None if its package, or one that defines some of the options, is not installed or not
        available.
        """
        if program.files not in self._parsers:
            self._parsers[program.files] = None
            contents = dict(self._sources.files(program.package, program.files))
            more = [self._sources.files(*each) for each in program.more.items()]
            if contents and all(more):
                named = self._sources.files(program.package, program.subcommands)
                for each in more:
                    contents.update(each)
                self._parsers[program.files] = _read_parser(contents, named, program.classes)
        return self._parsers[program.files]


def _is_flag_with_value(word: Word) -> bool:
    """Whether a word is `--option=value`, whose value may be a variable."""
    flag, equals, _ = word.text.partition("=")
    return bool(equals) and _FLAG.fullmatch(flag) is not None


@lru_cache(maxsize=1)
def run_packages() -> frozenset[str]:
    """Return the packages whose modules command lines run."""
    return frozenset({*(program.package for program in load_programs()), *hydra_files.PROGRAMS})


@lru_cache(maxsize=1)
def _programs_by_name() -> Mapping[str, PackageProgram]:
    return {name: program for program in load_programs() for name in program.names}


def _program(name: str) -> PackageProgram | None:
    return _programs_by_name().get(name)


def _is_first(before: Command) -> bool:
    """Whether only a launcher with options, or a container image, precedes a program."""
    last = before[-1].text
    if last == "--" or last in _WRAPPERS:
        return True
    if not _CONTAINERS.isdisjoint(word.text.rpartition("/")[2] for word in before):
        return not last.startswith("-") and any(part in last for part in (".sif", ".sqsh", "/"))
    texts = [word.text for word in before if word.text not in _WRAPPERS]
    pairs = zip(["", *texts], [*texts, "-"], strict=True)
    ends = last.startswith("-") and "=" not in last  # the word is the value of an option
    return not ends and all(
        text.startswith("-") or "=" in text or _NUMBER.fullmatch(text) or previous.startswith("-")
        for previous, text in pairs
    )


def _has_flags(parser: Parser, words: Command) -> bool:
    """Whether options follow the program, and the program accepts all of them."""
    flags = [word.text.partition("=")[0] for word in words if word.text.startswith("--")]
    return bool(flags) and all(_normalize_flag(flag) in parser.flags for flag in flags)


def _normalize_flag(flag: str) -> str:
    """Return an option with dashes instead of underscores, for comparison."""
    return flag.lstrip("-").replace("_", "-")


def _flag_problems(
    parser: Parser,
    flags: frozenset[str],
    program: PackageProgram,
    version: str,
    word: Word,
    after: Word | None,
) -> Iterator[Problem]:
    """Yield the problem of an option that is not in `flags`, or of its value."""
    flag, equals, value = word.text.partition("=")
    if not _FLAG.fullmatch(flag) or not flag.startswith("--") or not (word.literal or equals):
        return
    name = _normalize_flag(flag).partition(".")[0]
    if name not in flags:
        bare = name.removeprefix("no-")
        begins = not program.exact and any(each.startswith(name) for each in flags)
        if begins or bare in flags:
            return  # argparse takes a beginning that is unique, and --no-… for a switch
        known = releases.argument_existence(program.arguments, name.replace("-", "_"))
        when = known.change(version.partition(" ")[2]) if known is not None else ""
        near = nearest_choice(name, flags) or ""
        if SequenceMatcher(None, name, near).ratio() < (_SAME if when else _ALIKE):
            near = ""
        instead = f"--{near.replace('-', '_') if '_' in flag else near}" if near else ""
        when = when or ("other commands have it" if name in parser.flags else "")
        message = f"{version} has no option {flag}{f' ({when})' if when else ''}"
        yield word, FLAG, message, instead, Severity.ERROR
        return
    if not equals and after is not None and after.literal:
        value = after.text
    listed = parser.choices.get(name)
    if listed and value and not value.startswith("-") and word.literal and value not in listed:
        message = f"{flag} of {version} does not accept {value}"
        place = word if equals else after or word
        yield place, CHOICE, message, f"one of {', '.join(listed)}", Severity.ERROR


def _read_parser(contents: Mapping[str, bytes], named: Mapping[str, bytes], classes: str) -> Parser:
    """Return the parser with the options in `contents` and in the fields of their `classes`.

    The strings of all other files are also included.
    """
    flags: set[str] = {"help", "version", "config"}
    choices: dict[str, set[tuple[str, ...] | None]] = {}
    words: set[str] = set()
    valued: set[str] = set()
    fields: set[str] = set()
    sources = {path: valid_source(source) for path, source in {**named, **contents}.items()}
    trees = {path: tree for path, tree in sources.items() if tree is not None}
    literals = dict(_literals(trees.values()))
    annotated = _annotated_names(trees.values())
    nodes = {path: walk_tree(tree) for path, tree in trees.items()}
    for path, below in nodes.items():
        for node in below:
            text = string_value(node) if isinstance(node, ast.expr) else None
            if text is not None and path in named:
                words.add(text)
            if path in named and isinstance(node, ast.FunctionDef) and _is_command(node):
                words.update((node.name, node.name.replace("_", "-")))
            if text is not None and _FLAG.fullmatch(text):
                flags.add(_normalize_flag(text))
            elif isinstance(node, ast.ClassDef) and (
                re.search(classes, node.name) or _has_annotated_field(node, annotated)
            ):
                for item in node.body:
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                        flags.add(_normalize_flag(item.target.id))
                        listed = _allowed_strings(item.annotation, literals)
                        if listed and node.name.endswith(("Args", "Arguments")):
                            fields.add(_normalize_flag(item.target.id))
                            choices.setdefault(_normalize_flag(item.target.id), set()).add(listed)
            elif isinstance(node, ast.Call) and node.args:
                valued.update(_valued_options(node))
                _add_choices(node, choices)
    for name in fields:  # the keywords `**kwargs["field"]` of its option are made from it
        choices[name].discard(_COMPUTED_CHOICES)
    same = {name: next(iter(each)) for name, each in choices.items() if len(each) == 1}
    plain = {name: listed for name, listed in same.items() if listed}
    options = frozenset(flags)
    lacking = _lacking_options(nodes, options, classes)
    return Parser(options, plain, frozenset(words), frozenset(valued), lacking)


def _lacking_options(
    nodes: Mapping[str, Sequence[ast.AST]], options: frozenset[str], classes: str
) -> Mapping[str, frozenset[str]]:
    """Map the subcommands that a file of the same name defines to the options that they lack.

    The file assigns the classes whose fields are the options to `dataclass_types`.
    """
    commands = {path: names for path in nodes if (names := _option_classes(nodes[path]))}
    if not commands:
        return {}
    flags: set[str] = set()
    definitions: dict[str, list[ast.ClassDef]] = {}
    for node in itertools.chain.from_iterable(nodes.values()):
        text = string_value(node) if isinstance(node, ast.expr) else None
        if text is not None and _FLAG.fullmatch(text):
            flags.add(_normalize_flag(text))
        elif isinstance(node, ast.ClassDef):
            definitions.setdefault(node.name, []).append(node)
    fields = {
        _normalize_flag(field)
        for name, nodes_of_class in definitions.items()
        if re.search(classes, name)
        for field in itertools.chain.from_iterable(map(_field_names, nodes_of_class))
    }
    lacking: dict[str, frozenset[str]] = {}
    for path, names in commands.items():
        own = [_inherited_fields(definitions, name) for name in names]
        if None not in own:
            known = frozenset().union(*filter(None, own))
            lacking[PurePath(path).stem] = frozenset(fields - flags - known) & options
    return lacking


def _option_classes(nodes: Iterable[ast.AST]) -> list[str]:
    """Return the classes in `dataclass_types = (A, B)`."""
    for node in nodes:
        if isinstance(node, ast.Assign) and dotted_name(node.targets[0]) == "dataclass_types":
            elements = node.value.elts if isinstance(node.value, ast.Tuple) else []
            return [dotted_name(each) for each in elements]
    return []


def _annotated_names(trees: Iterable[ast.Module]) -> frozenset[str]:
    """Return the names of `typing.Annotated` in these files: imported, or assigned in one."""
    names: set[str] = set()
    for node in itertools.chain.from_iterable(tree.body for tree in trees):
        if isinstance(node, ast.ImportFrom):
            names.update(
                each.asname or each.name for each in node.names if each.name == "Annotated"
            )
        elif isinstance(node, ast.Assign) and dotted_name(node.value) in names:
            names.update(each.id for each in node.targets if isinstance(each, ast.Name))
    return frozenset(names)


def _has_annotated_field(definition: ast.ClassDef, annotated: frozenset[str]) -> bool:
    """Whether a field of a class has metadata: `a: Annotated[T, …]`."""
    return any(
        isinstance(each, ast.AnnAssign)
        and isinstance(each.annotation, ast.Subscript)
        and dotted_name(each.annotation.value) in annotated
        for each in definition.body
    )


def _field_names(definition: ast.ClassDef) -> Iterator[str]:
    for each in definition.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id


def _inherited_fields(
    definitions: Mapping[str, Sequence[ast.ClassDef]], name: str, below: tuple[str, ...] = ()
) -> frozenset[str] | None:
    """Return the options from the fields of a class and its bases, or None if a base is unknown.

    Several files can define classes with one name: `below` prevents an endless recursion.
    """
    if name not in definitions or name in below:
        return None
    fields: set[str] = set()
    for definition in definitions[name]:
        fields.update(map(_normalize_flag, _field_names(definition)))
        for base in map(dotted_name, definition.bases):
            more = _inherited_fields(definitions, base, (*below, name))
            if more is None:
                return None
            fields |= more
    return frozenset(fields)


def _literals(trees: Iterable[ast.Module]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the top-level names that are bound to a `Literal[…]` of strings, with the strings."""
    for tree in trees:
        for node in tree.body:
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            listed = _allowed_strings(node.value, {}) if isinstance(node, ast.Assign) else ()
            if isinstance(target, ast.Name) and listed:
                yield target.id, listed


def _allowed_strings(node: ast.expr, literals: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the strings that an annotation allows, besides None.

    The result is empty if it allows other values.
    """
    if isinstance(node, ast.BinOp):
        parts = [each for each in (node.left, node.right) if not _is_none(each)]
        return _allowed_strings(parts[0], literals) if len(parts) == 1 else ()
    if isinstance(node, ast.Subscript):
        last = dotted_name(node.value).rpartition(".")[2]
        if last == "Optional":
            return _allowed_strings(node.slice, literals)
        return tuple(string_list(node.slice) or ()) if last == "Literal" else ()
    return literals.get(dotted_name(node).rpartition(".")[2], ())


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_command(node: ast.FunctionDef) -> bool:
    """Whether click or typer turns a function into a command with the name of the function."""
    names = [ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list]
    return any(name.rpartition(".")[2] in ("command", "group") for name in names)


def _valued_options(node: ast.Call) -> Iterator[str]:
    """Yield the options of an `add_argument` call that require a value."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr != "add_argument":
        return
    given = {word.arg for word in node.keywords}
    if given.isdisjoint(("nargs", None)) and ("type" in given or "action" not in given):
        names = filter(None, map(string_value, node.args))
        yield from (_normalize_flag(name) for name in names if name.startswith("-"))


def _add_choices(node: ast.Call, choices: dict[str, set[tuple[str, ...] | None]]) -> None:
    """Record the literal `choices=[…]` of an `add_argument` call.

    Record None if the choices are not literals.
    """
    names = [text for item in node.args if (text := string_value(item)) and text.startswith("--")]
    if not names or not isinstance(node.func, ast.Attribute) or node.func.attr != "add_argument":
        return
    given = next((word.value for word in node.keywords if word.arg == "choices"), None)
    listed: tuple[str, ...] | None = None
    if isinstance(given, (ast.List, ast.Tuple)):
        texts = [string_value(item) for item in given.elts]
        listed = tuple(text for text in texts if text) if all(texts) else None
    if any(word.arg == "type" for word in node.keywords):
        listed = None
    if any(word.arg is None for word in node.keywords):
        listed = _COMPUTED_CHOICES
    for name in names:
        choices.setdefault(_normalize_flag(name), set()).add(listed)
