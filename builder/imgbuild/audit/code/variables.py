"""Environment variables that users set: unread ones, invalid values (separate: one check)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import NamedTuple

import msgspec

from imgbuild.audit.code import shell
from imgbuild.audit.code.model import CodeFinding, CodeText
from imgbuild.audit.code.sources import PackageSources
from imgbuild.audit.names import releases
from imgbuild.audit.packages.library import pack, unpack
from imgbuild.audit.source.text import dotted, string
from imgbuild.cache.store import Store
from imgbuild.report import Severity
from imgbuild.system import files, yaml_data
from imgbuild.system.code_digest import code_digest
from imgbuild.system.syntax import parse_source
from imgbuild.values import sha256

UNREAD, VALUE = "IMG201", "IMG202"
KEPT = "code-variables"
NEARLY = 0.88  # similarity of a variable's name to one that is read
_LINE = re.compile(
    r"^\s*(?:-\s*)?(?:ENV\s+)?[\"']?([A-Z][A-Z0-9_]+)[\"']?\s*[:=]\s*[\"']?([^\"'#]*)"
)
_NAMED = re.compile(r"^\s*-?\s*name:\s*[\"']?([A-Z][A-Z0-9_]+)[\"']?\s*$")
_ASSIGNED = re.compile(r"(?:^|,)([A-Z][A-Z0-9_]*)=([^,]*)")
_CHOICES = re.compile(
    rb"env_with_choices\(\s*[\"'](\w+)[\"'],\s*[^,\[\]]+,\s*\[([^\]]*)\]", re.DOTALL
)
_USES = re.compile(rb"environ|getenv|putenv")  # what a Python file sets or reads variables by
_QUOTED = re.compile(rb"[\"']([^\"']*)[\"']")


class Prefix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The packages that read variables with a prefix; `complete`: only in Python."""

    packages: tuple[str, ...]
    complete: bool


class Values(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The source of a variable's values in the code: `what` describes them."""

    name: str
    package: str
    files: tuple[str, ...]
    pattern: str
    what: str


class VariableTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `data/audit/code_variables.yaml`."""

    prefixes: dict[str, Prefix]
    values: tuple[Values, ...]


class VariableSetting(msgspec.Struct, frozen=True):
    """A variable that a file sets; `value` is None if it is not literal."""

    name: str
    value: str | None
    line: int
    column: int


class FileVariables(NamedTuple):
    """The variables that a file reads, and those that it sets."""

    read: set[str]
    settings: list[VariableSetting]


@lru_cache(maxsize=1)
def load() -> VariableTable:
    """The bundled table."""
    return yaml_data.load(files.data("audit/code_variables.yaml"), VariableTable)


def check(
    sources: PackageSources, texts: Sequence[CodeText], store: Store
) -> Iterator[CodeFinding]:
    """Variables that no package reads, and values that the package does not list."""
    table = load()
    prefixes = tuple(table.prefixes)
    mentioned = [text for text in texts if any(each.encode() in text.source for each in prefixes)]
    settings: list[tuple[CodeText, VariableSetting]] = []
    read_by_code: set[str] = set()
    for text in mentioned:
        read, assigned = _of_text(text, store)
        read_by_code |= read
        settings += [(text, each) for each in assigned if each.name.startswith(prefixes)]
    for text, setting in settings:
        prefix = max((each for each in prefixes if setting.name.startswith(each)), key=len)
        finding = None
        if setting.name not in read_by_code:
            finding = _unread(sources, table.prefixes[prefix], prefix, setting)
        finding = finding or _value(sources, table, setting)
        if finding is not None:
            code, message, instead = finding
            yield text.finding(
                setting.line,
                setting.column,
                code=code,
                severity=Severity.WARNING,
                message=message,
                instead=instead if code == UNREAD else "",
                remedy=f"use {instead}" if instead else "",
            )


def _unread(
    sources: PackageSources, reading: Prefix, prefix: str, setting: VariableSetting
) -> tuple[str, str, str] | None:
    """The finding for a variable that none of the packages reads."""
    package_set = sources.package_set
    readers = [name for name in reading.packages if package_set.version(name) is not None]
    names = _read_names(sources, readers, prefix)
    if names is None or not names or setting.name in names:
        return None
    near = get_close_matches(setting.name, names, n=1, cutoff=NEARLY)
    if not reading.complete or reading.packages[0] not in readers:
        near = [name for name in near if _is_typo(setting.name, name)]
        if not near:
            return None
    version = f"{readers[0]} {package_set.version(readers[0])}"
    known = releases.variable(setting.name)
    of_reader = known is not None and known.package == readers[0]
    when = known.change(package_set.version(readers[0]) or "") if known and of_reader else ""
    message = f"sets {setting.name}, which {version} does not read{f' ({when})' if when else ''}"
    return UNREAD, message, near[0] if near else ""


def _is_typo(name: str, other: str) -> bool:
    """Whether two names differ by one letter: missing, added, replaced, or two transposed."""
    short, long = sorted((name, other), key=len)
    pairs = zip(short, long, strict=False)
    start = next((at for at, pair in enumerate(pairs) if len(set(pair)) > 1), len(short))
    first, second = short[start:], long[start:]
    if any(letter.isdigit() for letter in (*first[:1], *second[:1])):
        return False
    if len(long) > len(short):
        return first == second[1:]
    exchanged = first[:2] == second[:2][::-1] and first[2:] == second[2:]
    return exchanged or first[1:] == second[1:]


def _read_names(
    sources: PackageSources, readers: Iterable[str], prefix: str
) -> frozenset[str] | None:
    """The names with a prefix in the sources of packages; None if sources are not available."""
    names: set[str] = set()
    for package in readers:
        read = sources.variables(package, prefix)
        if read is None:
            return None
        names |= read
    return frozenset(names)


def _value(
    sources: PackageSources, table: VariableTable, setting: VariableSetting
) -> tuple[str, str, str] | None:
    """The finding for a value that is not listed in the code."""
    if not setting.value:
        return None
    for each in table.values:
        if each.name == setting.name and sources.package_set.version(each.package):
            read = sources.files(each.package, each.files).values()
            source = "".join(content.decode(errors="replace") for content in read)
            values = set(re.findall(each.pattern, source))
            # A value may also be compared in another form: FLASHMLA, "flashmla".
            word = setting.value.replace("_", "").lower()
            if values and setting.value not in values and word not in source.lower():
                version = f"{each.package} {sources.package_set.version(each.package)}"
                message = f"{setting.value} is not {each.what} of {version}"
                return VALUE, f"{setting.name}: {message}", f"one of {', '.join(sorted(values))}"
    for content in sources.files("vllm", ("vllm/envs.py",)).values():
        for name, listed in _CHOICES.findall(content):
            values = {value.decode() for value in _QUOTED.findall(listed)}
            if name.decode() == setting.name and setting.value.lower() not in map(
                str.lower, values
            ):
                message = f"{setting.name}: {setting.value} is not an allowed value"
                return VALUE, message, f"one of {', '.join(sorted(values))}"
    return None


# -- variables that files set and read


def _of_text(text: CodeText, store: Store) -> FileVariables:
    """The variables of a file; those of Python are cached."""
    if text.kind != "python":
        return _of_file(text)
    key = f"{code_digest(__name__)} {sha256(text.source)}"
    data = store.fact(KEPT, key)
    kept = unpack(data, FileVariables) if data is not None else None
    if kept is None:
        kept = _of_file(text)
        store.put_fact(KEPT, key, pack(kept))
    return kept


def _of_file(text: CodeText) -> FileVariables:
    """The variables that a file reads, and those that it sets."""
    if text.kind == "python":
        if not _USES.search(text.source):
            return FileVariables(set(), [])
        tree = _tree(text)
        return _of_python(tree) if tree is not None else FileVariables(set(), [])
    source = text.source.decode(errors="replace")
    if text.kind in ("shell", "dockerfile"):
        read = set(re.findall(r"\$\{?([A-Z][A-Z0-9_]+)", source))
        settings = _of_shell(source) if text.kind == "shell" else _of_lines(source)
        return FileVariables(read, list(settings))
    return FileVariables(set(), list(_of_lines(source)))


def _of_shell(source: str) -> Iterator[VariableSetting]:
    for command in shell.commands(source):
        for word in command:
            for match in _ASSIGNED.finditer(word.text.removeprefix("--env=").removeprefix("-e")):
                value = match[2] if word.literal else None
                yield VariableSetting(match[1], value, word.line, word.column)


def _of_lines(source: str) -> Iterator[VariableSetting]:
    """The variables in YAML and Dockerfiles: `NAME: value`, `NAME=value`, `- name: NAME`."""
    for number, line in enumerate(source.splitlines(), 1):
        match = _LINE.match(line) or _NAMED.match(line)
        if match is not None:
            value = match[2].strip() if match.re is _LINE else ""
            literal = value if value and not value.startswith("$") else None
            yield VariableSetting(match[1], literal, number, match.start(1) + 1)


def _of_python(tree: ast.Module) -> FileVariables:
    read: set[str] = set()
    settings: list[VariableSetting] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and dotted(node.value).endswith("environ"):
            name = string(node.slice)
            if name and isinstance(node.ctx, ast.Load):
                read.add(name)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and dotted(target.value).endswith("environ"):
                    settings += _setting(target.slice, node.value)
        elif isinstance(node, ast.Call):
            callee = dotted(node.func)
            if callee.endswith(("environ.setdefault", "os.putenv")) and len(node.args) > 1:
                settings += _setting(node.args[0], node.args[1])
            elif callee.endswith(("environ.get", "getenv", "environ.pop")) and node.args:
                name = string(node.args[0])
                read |= {name} if name else set()
            elif callee.endswith("environ.update"):
                settings += _updated(node)
    return FileVariables(read, settings)


def _updated(node: ast.Call) -> Iterator[VariableSetting]:
    for argument in node.args:
        if isinstance(argument, ast.Dict):
            for key, value in zip(argument.keys, argument.values, strict=True):
                if key is not None:
                    yield from _setting(key, value)


def _setting(key: ast.expr, value: ast.expr) -> Iterator[VariableSetting]:
    name = string(key)
    if name:
        yield VariableSetting(name, string(value), key.lineno, key.col_offset + 1)


def _tree(text: CodeText) -> ast.Module | None:
    """The syntax tree of a Python file; None if it cannot be parsed."""
    try:
        return parse_source(text.source.removeprefix(b"\xef\xbb\xbf"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
