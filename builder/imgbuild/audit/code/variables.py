"""Checks the names and values of environment variables that users set."""

# A separate module: one check.
from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches

from imgbuild.audit.code.model import MOST_IN_FILE, CodeFinding, CodeText
from imgbuild.audit.code.sources import PackageSources
from imgbuild.audit.code.summaries import Summary
from imgbuild.audit.code.variable_settings import (
    VariablePrefix,
    VariableSetting,
    VariableTable,
    file_variables,
    load_variable_table,
)
from imgbuild.audit.names import releases
from imgbuild.report import Severity

UNREAD, VALUE = "IMG201", "IMG202"
NEAR_SIMILARITY = 0.88  # similarity of a variable's name to one that is read
_CHOICES = re.compile(
    rb"env_with_choices\(\s*[\"'](\w+)[\"'],\s*[^,\[\]]+,\s*\[([^\]]*)\]", re.DOTALL
)
_NUMBERS = re.compile(rb"\b(int|float)\(\s*os\.(?:getenv|environ\.get)\(\s*[\"'](\w+)[\"']")
_QUOTED = re.compile(rb"[\"']([^\"']*)[\"']")


def check_variables(
    sources: PackageSources, texts: Sequence[CodeText], summaries: Mapping[str, Summary]
) -> Iterator[CodeFinding]:
    """Yield findings for variables that no package reads, and for values that are not accepted."""
    table = load_variable_table()
    prefixes = tuple(table.prefixes)
    settings: list[tuple[CodeText, VariableSetting]] = []
    read_by_code: set[str] = set()
    for text in texts:
        summary = summaries.get(text.file)
        read, assigned = summary.variables if summary is not None else file_variables(text)
        read_by_code |= read
        named = (each for each in assigned if each.name.startswith(prefixes))
        settings += [(text, each) for each in itertools.islice(named, MOST_IN_FILE)]
    for text, setting in settings:
        prefix = max((each for each in prefixes if setting.name.startswith(each)), key=len)
        finding = None
        if setting.name not in read_by_code:
            finding = _unread_problem(sources, table.prefixes[prefix], prefix, setting)
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


def _unread_problem(
    sources: PackageSources, reading: VariablePrefix, prefix: str, setting: VariableSetting
) -> tuple[str, str, str] | None:
    """Return the finding for a variable that no package reads."""
    package_set = sources.package_set
    readers = [name for name in reading.packages if package_set.version(name) is not None]
    names = _read_names(sources, readers, prefix)
    if names is None or not names or setting.name in names:
        return None
    near = get_close_matches(setting.name, names, n=1, cutoff=NEAR_SIMILARITY)
    if not reading.complete or reading.packages[0] not in readers:
        near = [name for name in near if _is_typo(setting.name, name)]
        if not near:
            return None
    version = f"{readers[0]} {package_set.version(readers[0])}"
    known = releases.variable_existence(setting.name)
    of_reader = known is not None and known.package == readers[0]
    when = known.change(package_set.version(readers[0]) or "") if known and of_reader else ""
    message = f"sets {setting.name}, which {version} does not read{f' ({when})' if when else ''}"
    return UNREAD, message, near[0] if near else ""


def _is_typo(name: str, other: str) -> bool:
    """Whether two names differ only by one letter, or by two swapped letters.

    The letter is missing, added or replaced.
    """
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
    """Return the names with a prefix in the sources of packages.

    Return None if the sources are not available.
    """
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
    """Return the finding for a value that the code does not list."""
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
        finding = _choice_problem(content, setting) or _number_problem(content, setting)
        if finding is not None:
            return finding
    return None


def _choice_problem(source: bytes, setting: VariableSetting) -> tuple[str, str, str] | None:
    """Return the finding for a value that is not among the choices in vLLM's table of variables."""
    for name, listed in _CHOICES.findall(source):
        values = {value.decode() for value in _QUOTED.findall(listed)}
        allowed = map(str.lower, values)
        if name.decode() == setting.name and (setting.value or "").lower() not in allowed:
            message = f"{setting.name}: {setting.value} is not an allowed value"
            return VALUE, message, f"one of {', '.join(sorted(values))}"
    return None


def _number_problem(source: bytes, setting: VariableSetting) -> tuple[str, str, str] | None:
    """Return the finding for a value that vLLM's table cannot convert with `int` or `float`."""
    for kind, name in _NUMBERS.findall(source):
        convert = int if kind == b"int" else float
        if name.decode() == setting.name and not _converts(convert, setting.value or ""):
            what = "an integer" if convert is int else "a number"
            return VALUE, f"{setting.name}: {setting.value} is not a number", what
    return None


def _converts(convert: Callable[[str], object], value: str) -> bool:
    try:
        convert(value)
    except ValueError:
        return False
    return True
