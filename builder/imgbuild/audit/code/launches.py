"""Compares launched processes with the allocated GPUs, and checks ZeRO-3."""

# A separate module: one check.
from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from imgbuild.audit.code import shell
from imgbuild.audit.code.model import CodeFinding, CodeText
from imgbuild.audit.code.named_files import find_text, parse_settings
from imgbuild.audit.code.shell import Command, Word
from imgbuild.audit.code.sources import PackageSources
from imgbuild.audit.source.tree import walk_tree
from imgbuild.report import Severity
from imgbuild.system import files, yaml_data
from imgbuild.system.syntax import valid_source

PROCESSES, ZERO3 = "IMG306", "IMG407"
# The options of each launcher with the processes of a node; of accelerate, of all nodes.
_LAUNCHERS = {
    "torchrun": ("--nproc-per-node",),
    "deepspeed": ("--num-gpus",),
    "accelerate": ("--num-processes",),
    "accelerate-launch": ("--num-processes",),
}
_DIRECTIVE = re.compile(r"^#SBATCH\s+(?P<name>--?[\w-]+)(?:[= ]\s*(?P<value>\S+))?", re.MULTILINE)
_LAST_NUMBER = re.compile(r"(?:.*:)?(\d{1,5})")
_SHORT_OPTIONS = {"-N": "--nodes", "-G": "--gpus"}


class RejectedOption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of `data/audit/code_zero3.yaml`, which documents the fields."""

    argument: str
    package: str
    files: tuple[str, ...]
    text: str
    value: bool | None = None


@lru_cache(maxsize=1)
def load_rejected_options() -> tuple[RejectedOption, ...]:
    """Load the bundled table of options."""
    return yaml_data.load_yaml_data(files.data("audit/code_zero3.yaml"), tuple[RejectedOption, ...])


class SlurmGpus(msgspec.Struct, frozen=True):
    """The resources that a Slurm script requests. `line` is the line that requests GPUs."""

    gpus: int
    nodes: int
    line: int


def requested_gpus(source: str) -> SlurmGpus | None:
    """Return the GPUs that the `#SBATCH` lines of a script request.

    Return None if they contain no number.
    """
    given: dict[str, tuple[int, int]] = {}
    for match in _DIRECTIVE.finditer(source):
        name, value = _SHORT_OPTIONS.get(match["name"], match["name"]), match["value"] or ""
        if name == "--gres" and not value.startswith("gpu"):
            continue
        number = _LAST_NUMBER.fullmatch(value)
        if name == "--gres" and value == "gpu":
            given[name] = (1, source.count("\n", 0, match.start()) + 1)
        elif number is not None:
            given[name] = (int(number[1]), source.count("\n", 0, match.start()) + 1)
    nodes = given.get("--nodes", (1, 0))[0]
    for name in ("--gpus-per-node", "--gres"):
        if name in given:
            return SlurmGpus(given[name][0], nodes, given[name][1])
    if "--gpus" in given and nodes:
        return SlurmGpus(-(-given["--gpus"][0] // nodes), nodes, given["--gpus"][1])
    if "--gpus-per-task" in given and "--ntasks-per-node" in given:
        count, line = given["--gpus-per-task"]
        return SlurmGpus(count * given["--ntasks-per-node"][0], nodes, line)
    return None


def check_launches(sources: PackageSources, texts: Sequence[CodeText]) -> Iterator[CodeFinding]:
    """Yield findings for launchers that start more processes than there are GPUs.

    Options that ZeRO-3 rejects are also reported.
    """
    rejected: set[tuple[str, str]] = set()
    for text in texts:
        source = (text.source if text.kind == "shell" else text.commands).decode(errors="replace")
        if not any(name in source for name in _LAUNCHERS):
            continue
        gpus = requested_gpus(source)
        for command in shell.shell_commands(source):
            launch = _find_launch(command)
            if launch is None:
                continue
            name, words = launch
            settings = _settings(texts, words)
            if gpus is not None:
                yield from _processes(text, gpus, name, words, settings)
            script = next((word.text for word in words if word.text.endswith(".py")), "")
            python = find_text(texts, script) if script else None
            if python is not None and _stage(texts, words, settings) == 3:
                for finding in _rejected_option_findings(sources, python):
                    if (key := (finding.where, finding.message)) not in rejected:
                        rejected.add(key)
                        yield finding


def _find_launch(command: Command) -> tuple[str, Command] | None:
    """Return the launcher that a command starts, and the words after it.

    The command can start the launcher directly or through a wrapper.
    """
    for at, word in enumerate(command):
        name = word.text.rpartition("/")[2]
        if name == "accelerate" and (len(command) <= at + 1 or command[at + 1].text != "launch"):
            continue
        if word.literal and name in _LAUNCHERS:
            return name, command[at + 1 :]
    return None


def _value(words: Sequence[Word], name: str) -> tuple[str, Word] | None:
    """Return the value and the word of an option. Dashes and underscores are equivalent."""
    for at, word in enumerate(words):
        if word.text.endswith(".py"):
            return None  # what follows belongs to the script
        option, equals, value = word.text.partition("=")
        if option.replace("_", "-") != name:
            continue
        if equals:
            return value, word
        return (words[at + 1].text, words[at + 1]) if at + 1 < len(words) else None
    return None


def _content(text: CodeText | None) -> Mapping[str, Any]:
    """Return the settings in a YAML or JSON file, or an empty mapping for other files."""
    content = parse_settings(text) if text is not None else None
    return content if isinstance(content, Mapping) else {}


def _settings(texts: Sequence[CodeText], words: Command) -> Mapping[str, Any]:
    """Return the accelerate configuration to which a command refers."""
    given = _value(words, "--config-file")
    return _content(find_text(texts, given[0])) if given is not None else {}


def _processes(
    text: CodeText, gpus: SlurmGpus, name: str, words: Command, settings: Mapping[str, Any]
) -> Iterator[CodeFinding]:
    given = _value(words, _LAUNCHERS[name][0])
    number = given[0] if given is not None else settings.get("num_processes")
    machines = _value(words, "--num-machines")
    nodes: Any = machines[0] if machines is not None else settings.get("num_machines", 1)
    if not str(number).isdecimal() or not str(nodes).isdecimal() or not words:
        return
    count = int(str(number))
    if name.startswith("accelerate"):
        count = -(-count // max(int(str(nodes)), 1))
    if count <= gpus.gpus:
        return
    word = given[1] if given is not None else words[0]
    yield text.finding(
        word.line,
        word.column,
        code=PROCESSES,
        severity=Severity.WARNING,
        message=f"starts {count} processes per node, but line {gpus.line} requests {gpus.gpus}"
        f" GPU{'s' * (gpus.gpus != 1)} per node",
        remedy=f"start {gpus.gpus * int(str(nodes)) if name.startswith('acc') else gpus.gpus}, or"
        f" request {count} GPUs",
    )


def _stage(texts: Sequence[CodeText], words: Command, settings: Mapping[str, Any]) -> object:
    """Return the ZeRO stage in the configuration of a command.

    Return None if there is no stage or it is unknown.
    """
    of_accelerate = settings.get("deepspeed_config")
    files_named = [each.text.partition("=")[2] or each.text for each in words]
    if isinstance(of_accelerate, Mapping):
        if "zero_stage" in of_accelerate:
            return of_accelerate["zero_stage"]
        files_named.insert(0, str(of_accelerate.get("deepspeed_config_file", "")))
    for name in files_named:
        if name.endswith(".json") and (text := find_text(texts, name)) is not None:
            zero = _content(text).get("zero_optimization")
            if isinstance(zero, Mapping):
                return zero.get("stage")
    return None


def _rejected_option_findings(sources: PackageSources, text: CodeText) -> Iterator[CodeFinding]:
    """Yield findings for options in a script that the installed versions reject with ZeRO-3."""
    tree = valid_source(text.source)
    if tree is None:
        return
    for option in load_rejected_options():
        places = [
            each.value
            for node in walk_tree(tree)
            if isinstance(node, ast.Call)
            for each in node.keywords
            if each.arg == option.argument and _is_rejected(option, each.value)
        ]
        if not places:
            continue
        contents = sources.files(option.package, option.files).values()
        if any(re.search(option.text.encode(), content) for content in contents):
            version = f"{option.package} {sources.package_set.version(option.package)}"
            for value in places:
                yield text.finding(
                    value.lineno,
                    value.col_offset + 1,
                    code=ZERO3,
                    severity=Severity.ERROR,
                    message=f"{version} rejects {option.argument}={ast.unparse(value)[:60]}"
                    " with ZeRO stage 3, which this script's launcher configures",
                    remedy=f"remove {option.argument}, or use stage 2",
                )


def _is_rejected(option: RejectedOption, value: ast.expr) -> bool:
    """Whether a literal value is rejected. False for an expression that is not a literal."""
    if option.value is not None:
        return isinstance(value, ast.Constant) and value.value is option.value
    constant = isinstance(value, ast.Constant) and value.value is not None
    return constant or isinstance(value, ast.Dict)
