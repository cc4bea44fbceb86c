"""Determines whether guarded code runs in a package set, and which exceptions are caught.

`audit.source` extracts the guards from code. This module evaluates them.
"""

from __future__ import annotations

import ast
import enum
import operator
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.audit.main_path.answers import answer_expression, parse_subject
from imgbuild.audit.names import classes, signatures
from imgbuild.audit.names.lookup import look_up, module_index
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import FIELDS, Function, Guard, ModuleFacts
from imgbuild.audit.source.text import dotted_name


class GuardState(enum.Enum):
    """Whether guarded code runs in a package set, as far as a guard determines it."""

    RUNS = "runs"
    SKIPPED = "skipped"
    DATA = "data"  # it depends on data
    UNKNOWN = "unknown"  # it depends on the package set, in an unknown form
    HANDLED = "handled"


class Course(msgspec.Struct, frozen=True):
    """The combined result of all guards of a fact in a package set.

    `certain` means that no condition is undecided. `clear` means that no condition on the package
    set is undecided, although conditions on data may be. `caught` contains the names of caught
    exceptions. "" stands for all exceptions. `asked` contains the expressions tested with hasattr,
    so reading them cannot fail.
    """

    runs: bool
    certain: bool = True
    clear: bool = True
    caught: frozenset[str] = frozenset()
    asked: frozenset[str] = frozenset()

    def is_understood(self, runner: str) -> bool:
        """Return whether no condition on the package set is undecided for the code of `runner`.

        While a module is imported (""), conditions cannot depend on user data. A condition that
        seems to depend on data is therefore one that was not recognized.
        """
        return self.clear if runner else self.certain

    def catches_error(self, *errors: str) -> bool:
        """Return whether the exception `errors[0]` with the base classes `errors[1:]` is caught."""
        return bool(self.caught & {*errors, "Exception", "BaseException", ""})


_ALWAYS_RUNS = Course(runs=True)
IMPORT = ("ImportError",)
MISSING_ERRORS = ("ModuleNotFoundError", "ImportError")
ATTRIBUTE = ("AttributeError",)
TYPE = ("TypeError",)
VALUE = ("ValueError",)


# `sys.version_info` as CPython compares it: its last two items are "final" and 0.
_COMPARISON_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_COMPARISON = re.compile(r"(<=|>=|==|!=|<|>)(\w+(?:\.\w+)*)")
_PART = re.compile(r"\[(:?)(\d+)\]")

# Devices that images do not support, by torch's names of their modules.
OTHER_DEVICES = frozenset(("hip", "hpu", "mps", "mtia", "musa", "npu", "tpu", "xpu"))

# Kinds of guards that do not depend on the package set.
_STATES = {
    "handled": GuardState.HANDLED,
    "typing": GuardState.SKIPPED,
    "data": GuardState.DATA,
    "unknown": GuardState.UNKNOWN,
}


def judge_guards(package_set: ImportablePackages, guards: Iterable[Guard]) -> Course:
    """Return whether code runs in `package_set` under `guards`, all of which must hold."""
    if guards == ():
        return _ALWAYS_RUNS
    certain = clear = True
    caught: set[str] = set()
    tested: set[str] = set()
    for guard in guards:
        state = evaluate_guard(package_set, guard)
        if state is GuardState.SKIPPED:
            return Course(runs=False)
        if state in (GuardState.UNKNOWN, GuardState.DATA):
            certain = False
            clear = clear and state is GuardState.DATA
        elif state is GuardState.HANDLED and guard.spec:
            tested.add(guard.spec)
        elif state is GuardState.HANDLED:
            caught.update(re.split(r"[,\s|]+", guard.subject))
    return Course(True, certain, clear, frozenset(caught), frozenset(tested))


def evaluate_guard(package_set: ImportablePackages, guard: Guard) -> GuardState:
    """Return whether code under `guard` runs in `package_set`."""
    if guard.kind in _STATES:
        return _STATES[guard.kind]
    match guard.kind:
        case "python":
            return _guard_state(_python(package_set.python, guard.subject, guard.spec))
        case "takes":
            return _guard_state(_has_parameter(package_set, guard))
        case "result":
            return _result(package_set, guard)
        case "platform":
            return _platform(package_set, guard)
        case "version":
            return _guard_state(_is_within(_version(package_set, guard.subject), guard.spec))
        case "present":
            return _guard_state(_is_importable(package_set, guard))
        case _:  # "absent"
            present = _is_importable(package_set, guard)
            return _guard_state(None if present is None else not present)


def _guard_state(answer: bool | None) -> GuardState:
    if answer is None:
        return GuardState.UNKNOWN
    return GuardState.RUNS if answer else GuardState.SKIPPED


def _platform(package_set: ImportablePackages, guard: Guard) -> GuardState:
    subject = guard.subject.lower()
    here = {
        "linux",
        "posix",
        package_set.arch,
        {"arm64": "aarch64"}.get(package_set.arch, package_set.arch),
    }
    others = {"win32", "windows", "nt", "darwin", "cygwin", "x86_64", "amd64", "aarch64", "arm64"}
    others |= OTHER_DEVICES
    if subject not in here | others:
        return GuardState.UNKNOWN
    matches = subject in here or (subject == "amd64" and "x86_64" in here)
    return _guard_state(matches != guard.spec.startswith("!"))


def _is_importable(package_set: ImportablePackages, guard: Guard) -> bool | None:
    """Return whether the subject can be imported, in one of the versions if any are given."""
    if "," in guard.subject:
        every = [
            _is_importable(package_set, Guard("present", subject, guard.spec))
            for subject in re.split(r",\s*", guard.subject)
        ]
        return False if False in every else None if None in every else True
    module, _, name = guard.subject.partition(":")
    if name:
        state = look_up(package_set, module, name).state
        return None if state == "unknown" else state == "defined"
    version = _version(package_set, guard.subject)
    if version is None:
        is_present = package_set.exists(guard.subject.replace("-", "_"))
        if is_present and "." not in guard.subject and package_set.owner(guard.subject) is None:
            return True if not guard.spec else None
        if not is_present:
            return None if is_present is None or package_set.partial else False
        return True if not guard.spec else None
    if "." in guard.subject and not package_set.exists(guard.subject):
        return package_set.exists(guard.subject)
    return _is_within(version, guard.spec) if guard.spec else True


def _has_parameter(package_set: ImportablePackages, guard: Guard) -> bool | None:
    """Return whether a callable has a parameter, or a dataclass a field, with this name."""
    module, scope, expression = guard.subject.split(":")
    name = guard.spec.removeprefix("!")
    facts = package_set.module(module)
    if not isinstance(facts, ModuleFacts):
        return None
    owner = expression.removesuffix(FIELDS)
    called = owner.removesuffix(".__init__")
    lookup_result = classes.resolve_expression(package_set, facts, called, scope=scope)
    if owner != expression:
        state = (
            classes.find_member(package_set, lookup_result, name).state
            if lookup_result.state == "defined"
            else "unknown"
        )
        has = None if state == "unknown" else state == "defined"
    else:
        shown = signatures.parameter_names(package_set, lookup_result)
        has = None if shown is None else name in shown
    return None if has is None else has != guard.spec.startswith("!")


# Package set → states of the results of its functions; None while one is being found.
_results: WeakKeyDictionary[ImportablePackages, dict[Guard, GuardState | None]] = (
    WeakKeyDictionary()
)


def guard_results(package_set: ImportablePackages) -> dict[Guard, GuardState | None]:
    """Return the states of guards of kind "result" that were determined, which can be extended."""
    return _results.setdefault(package_set, {})


def _result(package_set: ImportablePackages, guard: Guard) -> GuardState:
    """Judge whether a function returns a true value, based on the guards of its returns."""
    memory = guard_results(package_set)
    if guard not in memory:
        same = _guard_in_definition(package_set, guard)
        if same != guard:  # the function itself, for all modules that call it in the same form
            memory[guard] = _result(package_set, same)
            return memory[guard] or GuardState.UNKNOWN
        memory[guard] = None  # a recursive function is unknown
        memory[guard] = _returned_state(package_set, guard)
    return memory[guard] or GuardState.UNKNOWN


def _guard_in_definition(package_set: ImportablePackages, guard: Guard) -> Guard:
    """Return an equivalent guard for the module that defines the function, or `guard` itself."""
    module, scope, text = guard.subject.split(":", 2)
    facts, call = package_set.module(module), parse_subject(text)
    if not isinstance(facts, ModuleFacts) or not isinstance(call, ast.Call) or "..." in text:
        return guard
    name = dotted_name(call.func)
    if scope or len(module_index(facts).top.get(name.partition(".")[0], ())) != 1:
        return guard
    values = (*call.args, *(keyword.value for keyword in call.keywords))
    if not all(isinstance(value, ast.Constant) for value in values):
        return guard
    result = classes.resolve_expression(package_set, facts, name)
    function, home = result.definition, result.home
    if not isinstance(function, Function) or home is None or result.ambiguous or result.tried:
        return guard
    if "." in function.name or result.owner is not None or home.module == module:
        return guard
    own = ast.Call(ast.Name(function.name), call.args, call.keywords)
    return Guard(guard.kind, f"{home.module}::{ast.unparse(own)}", guard.spec)


def _returned_state(package_set: ImportablePackages, guard: Guard) -> GuardState:
    return_value = answer_expression(package_set, guard.subject)
    if return_value is not None:
        return _guard_state(return_value != bool(guard.spec))
    module, scope, text = guard.subject.split(":", 2)
    facts, call = package_set.module(module), parse_subject(text)
    if not isinstance(facts, ModuleFacts) or not isinstance(call, ast.Call):
        return GuardState.UNKNOWN
    lookup_result = classes.resolve_expression(
        package_set, facts, dotted_name(call.func), scope=scope
    )
    if not isinstance(lookup_result.definition, Function) or lookup_result.ambiguous:
        return GuardState.UNKNOWN
    guards = lookup_result.definition.falsy if guard.spec else lookup_result.definition.truthy
    states = {evaluate_guard(package_set, condition) for condition in guards}
    if GuardState.SKIPPED in states:
        return GuardState.SKIPPED
    if not states or not states <= {GuardState.RUNS, GuardState.DATA}:
        return GuardState.UNKNOWN
    return GuardState.DATA if GuardState.DATA in states else GuardState.RUNS


def _version(package_set: ImportablePackages, subject: str) -> str | None:
    """Return the version of the package `subject`, or of the package with the module `subject`."""
    version = package_set.version(subject)
    if version is None:
        owner = package_set.owner(subject.replace("-", "_"))
        version = package_set.version(owner) if owner is not None else None
    return version


@lru_cache(maxsize=4096)
def _is_within(version: str | None, spec: str) -> bool | None:
    if version is None:
        return None
    try:
        return SpecifierSet(spec).contains(Version(version), prereleases=True)
    except ValueError:
        return None


@lru_cache(maxsize=1024)
def _python(python: str, part: str, spec: str) -> bool | None:
    """Return the result of comparing `sys.version_info`.

    Returns None if the result depends on the micro version.
    """
    match, taken = _COMPARISON.fullmatch(spec), _PART.fullmatch(part)
    if match is None or (part and taken is None):
        return None
    items = tuple(int(item) if item.isdigit() else item for item in match[2].split("."))
    major, minor, *named = Version(python).release
    highest = max((item for item in items if isinstance(item, int)), default=0)
    answers = set()
    for micro in named[:1] or range(highest + 2):
        version: tuple[int | str, ...] = (major, minor, micro, "final", 0)
        have, expected = (
            (version, items) if taken is None else _version_slice(version, items, taken)
        )
        try:
            answers.add(_COMPARISON_OPERATORS[match[1]](have, expected))
        except TypeError:
            return None
    return answers.pop() if len(answers) == 1 else None


def _version_slice(
    version: tuple[int | str, ...], items: tuple[int | str, ...], part: re.Match[str]
) -> tuple[object, object]:
    """Return a slice or an item of `version`, and the value with which it is compared."""
    place = int(part[2])
    if part[1]:
        return version[:place], items
    return (version[place], items[0]) if place < len(version) else ("", 0)
