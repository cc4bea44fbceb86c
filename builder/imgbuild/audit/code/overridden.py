"""Checks methods that users override or replace in classes of packages."""

# A separate module: one check.
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from imgbuild.audit.code import other_sets
from imgbuild.audit.code.code_set import CODE, CodeSet
from imgbuild.audit.code.model import CodeFinding, CodeText
from imgbuild.audit.code.other_sets import OtherSet
from imgbuild.audit.main_path.guards import judge_guards
from imgbuild.audit.names import classes
from imgbuild.audit.names.lookup import SameFacts, module_index
from imgbuild.audit.names.model import LookupResult
from imgbuild.audit.source.facts import Call, Class, Function, ModuleFacts
from imgbuild.report import Severity

GONE, CALLED = "IMG108", "IMG109"
# `Class.method = function`, and the same with setattr: owner, name, function. A search for the end
# of such a line is faster.
_END = re.compile(rb"\.\w+[ \t]*=[ \t]*[A-Za-z_]\w*[ \t]*(?:#.*)?$", re.MULTILINE)
_ASSIGNMENT = re.compile(
    rb"^[ \t]*([A-Za-z_]\w*(?:\.\w+)*)\.(\w+)[ \t]*=[ \t]*([A-Za-z_]\w*)[ \t]*(?:#.*)?$",
    re.MULTILINE,
)
_SET = re.compile(rb"\bsetattr\(\s*([\w.]+)\s*,\s*[\"'](\w+)[\"']\s*,\s*(\w+)\s*\)")


def check_overridden_methods(
    code: CodeSet, others: Sequence[OtherSet], modules: Iterable[str]
) -> Iterator[CodeFinding]:
    """Yield findings for methods that reject an argument of a base class, and for unused methods.

    Checks the classes in `modules`, and functions that `modules` assign to attributes of packages.
    """
    for name in modules:
        facts, text = code.module(name), code.code_by_module[name]
        if isinstance(facts, ModuleFacts):
            for definition in facts.classes:
                yield from _class_findings(code, facts, text, definition, others)
            yield from _assigned_function_findings(code, facts, text, others)


def _class_findings(
    code: CodeSet,
    facts: ModuleFacts,
    text: CodeText,
    definition: Class,
    others: Sequence[OtherSet],
) -> Iterator[CodeFinding]:
    here = LookupResult(state="defined", definition=definition, home=facts)
    chain = [each for each in classes.class_ancestors(code, here)[1:] if _is_package(code, each)]
    if not chain:
        return
    members = module_index(facts).members
    for method in definition.methods:
        entries = members.get(f"{definition.name}.{method}", ())
        function = entries[0] if len(entries) == 1 else None
        if not isinstance(function, Function) or function.decorators or method.startswith("__"):
            continue
        problem = _overridden_call_problem(code, facts, chain, method, function)
        if problem is not None:
            # A class that calls its own method may not use what calls it in the base class.
            certain = problem.used and not any(_calls(facts, definition, method))
            severity = Severity.ERROR if certain else Severity.WARNING
            yield _finding(text, function, CALLED, severity, problem.text)
        else:
            gone = _removed_method(code, facts, definition, method, others)
            if gone is not None:
                yield _finding(text, function, GONE, Severity.WARNING, gone[0], gone[1])


def _is_package(code: CodeSet, ancestor: LookupResult) -> bool:
    return ancestor.home is not None and code.owner(ancestor.home.module) not in (None, CODE)


class _Problem(NamedTuple):
    """The arguments that a base class passes to a method.

    `used` means that the passing code is called.
    """

    text: str
    used: bool


def _overridden_call_problem(
    code: CodeSet,
    facts: ModuleFacts,
    chain: Sequence[LookupResult],
    method: str,
    function: Function,
) -> _Problem | None:
    """Return the problem of a call of `method` in a base class that `function` rejects.

    `function` implements the method: it lacks a parameter, or requires one more.
    """
    for ancestor in chain:
        base, home = ancestor.definition, ancestor.home
        if not isinstance(base, Class) or home is None:
            continue
        for call in _calls(home, base, method):
            rejected = _rejected_argument(function, call)
            if rejected is None:
                continue
            course = judge_guards(code, call.guards)
            if course.runs and course.clear and not course.caught:
                package = code.owner(home.module) or ""
                version = f"{package} {code.version(package)}"
                verb, what, effect = rejected
                text = (
                    f"{function.name} {verb} {what}, which {base.name} of {version} {effect} to it"
                    f" ({home.file}:{call.line})"
                )
                caller = call.scope.split(".")[1]
                return _Problem(text, _is_called(facts, chain, caller))
    return None


def _rejected_argument(function: Function, call: Call) -> tuple[str, str, str] | None:
    """Return what a method does not accept of a call of `self.METHOD`, or requires in addition.

    These are the verb, the argument, and what the call does with it.
    """
    names = {each.name for each in function.parameters if each.kind != "positional"}
    lacking = [name for name in call.keywords if name not in names and not function.varkw]
    if lacking:
        return "does not accept", lacking[0], "passes"
    places = [each for each in function.parameters if each.kind != "keyword"][1:]  # without self
    if call.star:
        return None
    if call.positional > len(places) and not function.varargs:
        count = f"{call.positional} argument{'s' if call.positional > 1 else ''}"
        return "does not accept", count, "passes"
    given = {each.name for each in places[: call.positional]} | set(call.keywords)
    for parameter in function.parameters[1:]:
        if not parameter.default and parameter.name not in given and not call.double_star:
            return "requires", parameter.name, "does not pass"
    return None


def _is_called(facts: ModuleFacts, chain: Sequence[LookupResult], method: str) -> bool:
    """Whether Python, one of the classes or the user's file calls a method of a base class."""
    return (
        method.startswith("__")
        or any(call.callee.endswith(f".{method}") for call in facts.calls)
        or any(
            any(_calls(each.home, each.definition, method))
            for each in chain
            if isinstance(each.definition, Class) and each.home is not None
        )
    )


def _calls(home: ModuleFacts, base: Class, method: str) -> Sequence[Call]:
    """Return the calls of `self.METHOD` in the methods of a class."""
    return _self_calls_by_method(SameFacts(home)).get((base.name, method), ())


@lru_cache(maxsize=1024)
def _self_calls_by_method(home: SameFacts) -> Mapping[tuple[str, str], Sequence[Call]]:
    """Map each class and method to the calls of `self.METHOD` in the class."""
    table: dict[tuple[str, str], list[Call]] = {}
    for call in home.facts.calls:
        owner, _, method = call.callee.partition(".")
        around = call.scope
        while owner == "self" and "." in around and "." not in method:
            around = around.rpartition(".")[0]
            table.setdefault((around, method), []).append(call)
    return table


def _removed_method(
    code: CodeSet,
    facts: ModuleFacts,
    definition: Class,
    method: str,
    others: Sequence[OtherSet],
) -> tuple[str, str] | None:
    """Return message and remedy for a method that no base class has any more.

    Return None if a base class has `method`, or if no base class in another target has it.
    """
    for base in definition.bases:
        gone = _version_without_name(code, classes.full_name(facts, base), method, others)
        if gone is not None:
            name = f"{definition.name}.{method}"
            return f"{name} overrides a method that {gone[0]} does not have", gone[1]
    return None


def _version_without_name(
    code: CodeSet, path: str, name: str, others: Sequence[OtherSet]
) -> tuple[str, str] | None:
    """Return the version of a package that lacks a name, and a remedy.

    Return None unless another target's version has the name.
    """
    package = code.owner(path)
    if package is None or package == CODE:
        return None
    if classes.find_member(code, other_sets.resolve_path(code, path), name).state != "absent":
        return None
    for other in others:
        having = other.versions.get(package)
        if having in (None, code.version(package)):
            continue
        if other_sets.has_member(other.open(), path, name):
            remedy = f"{package} {having} has it (target {other.target})"
            return f"{package} {code.version(package)}", remedy
    return None


def _assigned_function_findings(
    code: CodeSet, facts: ModuleFacts, text: CodeText, others: Sequence[OtherSet]
) -> Iterator[CodeFinding]:
    """Yield findings for functions that are assigned to names which the package removed."""
    defined = {each.name for each in facts.functions} | {each.name for each in facts.classes}
    imported = {line.bound for line in facts.imports}
    starts = [text.source.rfind(b"\n", 0, end.start()) + 1 for end in _END.finditer(text.source)]
    assigned = filter(None, (_ASSIGNMENT.match(text.source, start) for start in starts))
    for match in (*assigned, *_SET.finditer(text.source)):
        owner, name, value = (group.decode() for group in match.groups())
        is_function_of_file = value in defined and owner.partition(".")[0] in imported
        path = classes.full_name(facts, owner) if is_function_of_file else ""
        # A module may get a name for code that expects it.
        if not isinstance(other_sets.resolve_path(code, path).definition, Class):
            continue
        tested = re.search(rb"hasattr\([^\n]+[\"']%b[\"']" % name.encode(), text.source)
        gone = _version_without_name(code, path, name, others) if tested is None else None
        if gone is not None:
            line = text.source.count(b"\n", 0, match.start(1)) + 1
            column = match.start(1) - text.source.rfind(b"\n", 0, match.start(1))
            message = f"replaces {owner}.{name}, which {gone[0]} does not have or call"
            yield text.finding(
                line, column, code=GONE, severity=Severity.WARNING, message=message, remedy=gone[1]
            )


@lru_cache(maxsize=1)
def _lines(source: bytes) -> list[str]:
    return source.decode(errors="replace").splitlines()


def _finding(
    text: CodeText,
    function: Function,
    code: str,
    severity: Severity,
    message: str,
    remedy: str = "",
) -> CodeFinding:
    lines = _lines(text.source)
    definition = lines[function.line - 1] if function.line <= len(lines) else ""
    column = len(definition) - len(definition.lstrip()) + 1
    return text.finding(
        function.line, column, code=code, severity=severity, message=message, remedy=remedy
    )
