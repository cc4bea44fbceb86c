"""Whether guarded code runs in a world, and whether a guard hides what goes wrong in it.

Input: the guards of a fact and a world. Output: a `Course`, that is how sure it is that the
code runs, and the exceptions that are caught around it. Judgement only; `syntax` read the guards.
"""

from __future__ import annotations

import enum
import operator
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from imgbuild.audit.names import search
from imgbuild.audit.packages.views import Surroundings
from imgbuild.audit.source.facts import FIELDS, Guard, ModuleFacts


class State(enum.Enum):
    """What a world makes of one guard."""

    RUNS = "runs"
    SKIPPED = "skipped"
    DATA = "data"  # it depends on data
    UNKNOWN = "unknown"  # it depends on the world, in a way that is not understood
    HANDLED = "handled"


class Course(msgspec.Struct, frozen=True):
    """What a world makes of all guards of a fact.

    `certain`: no condition is left open. `clear`: none that asks about the world is; what depends
    on data may well run. `caught`: names of exceptions that somebody catches; "" stands for all.
    `asked`: expressions that hasattr asked for, so that reading them cannot fail.
    """

    runs: bool
    certain: bool = True
    clear: bool = True
    caught: frozenset[str] = frozenset()
    asked: frozenset[str] = frozenset()

    def catches(self, *errors: str) -> bool:
        """Whether an exception of the kind `errors[0]`, or of its listed parents, is caught."""
        return bool(self.caught & {*errors, "Exception", "BaseException", ""})


IMPORT = ("ImportError",)
MISSING = ("ModuleNotFoundError", "ImportError")
ATTRIBUTE = ("AttributeError",)
TYPE = ("TypeError",)
VALUE = ("ValueError",)


# How CPython compares `sys.version_info`, of which the last two items are "final" and 0.
_COMPARES: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_COMPARISON = re.compile(r"(<=|>=|==|!=|<|>)(\w+(?:\.\w+)*)")
_PART = re.compile(r"\[(:?)(\d+)\]")

# Kinds of guards that come to the same in every world.
_STATES = {
    "handled": State.HANDLED,
    "typing": State.SKIPPED,
    "data": State.DATA,
    "unknown": State.UNKNOWN,
}


def judge(world: Surroundings, guards: Iterable[Guard]) -> Course:
    """What `world` makes of `guards`, all of which must hold for the code to run."""
    certain = clear = True
    caught: set[str] = set()
    asked: set[str] = set()
    for guard in guards:
        state = evaluate(world, guard)
        if state is State.SKIPPED:
            return Course(runs=False)
        if state in (State.UNKNOWN, State.DATA):
            certain = False
            clear = clear and state is State.DATA
        elif state is State.HANDLED and guard.spec:
            asked.add(guard.spec)
        elif state is State.HANDLED:
            caught.update(re.split(r"[,\s|]+", guard.subject))
    return Course(True, certain, clear, frozenset(caught), frozenset(asked))


def evaluate(world: Surroundings, guard: Guard) -> State:
    """What `world` makes of one guard."""
    if guard.kind in _STATES:
        return _STATES[guard.kind]
    match guard.kind:
        case "python":
            return _held(_python(world.python, guard.subject, guard.spec))
        case "takes":
            return _held(_takes(world, guard))
        case "platform":
            return _platform(world, guard)
        case "version":
            return _held(_within(_version(world, guard.subject), guard.spec))
        case "present":
            return _held(_present(world, guard))
        case _:  # "absent"
            present = _present(world, guard)
            return _held(None if present is None else not present)


def _held(answer: bool | None) -> State:
    if answer is None:
        return State.UNKNOWN
    return State.RUNS if answer else State.SKIPPED


def _platform(world: Surroundings, guard: Guard) -> State:
    """An image is Linux on one architecture with NVIDIA's GPUs; other words are not understood."""
    wanted = guard.subject.lower()
    here = {"linux", "posix", world.arch, {"arm64": "aarch64"}.get(world.arch, world.arch)}
    others = {"win32", "windows", "nt", "darwin", "cygwin", "x86_64", "amd64", "aarch64", "arm64"}
    others |= {"hip", "hpu", "mps", "musa", "npu", "tpu", "xpu"}
    if wanted not in here | others:
        return State.UNKNOWN
    matches = wanted in here or (wanted == "amd64" and "x86_64" in here)
    return _held(matches != guard.spec.startswith("!"))


def _present(world: Surroundings, guard: Guard) -> bool | None:
    """Whether the subject can be imported (and is one of the versions, if any are named)."""
    if "," in guard.subject:
        every = [
            _present(world, Guard("present", subject, guard.spec))
            for subject in re.split(r",\s*", guard.subject)
        ]
        return False if False in every else None if None in every else True
    module, _, name = guard.subject.partition(":")
    if name:
        state = search.lookup(world, module, name).state
        return None if state == "unknown" else state == "defined"
    version = _version(world, guard.subject)
    if version is None:
        found = world.exists(guard.subject.replace("-", "_"))
        if found and "." not in guard.subject and world.owner(guard.subject) is None:
            return True if not guard.spec else None
        if not found:
            return None if found is None or world.partial else False
        return True if not guard.spec else None
    if "." in guard.subject and not world.exists(guard.subject):
        return world.exists(guard.subject)
    return _within(version, guard.spec) if guard.spec else True


def _takes(world: Surroundings, guard: Guard) -> bool | None:
    """Whether a callable has a parameter, or a dataclass a field, of this name."""
    module, scope, expression = guard.subject.split(":")
    name = guard.spec.removeprefix("!")
    facts = world.module(module)
    if not isinstance(facts, ModuleFacts):
        return None
    owner = expression.removesuffix(FIELDS)
    found = search.resolve(world, facts, owner.removesuffix(".__init__"), scope=scope)
    if owner != expression:
        state = search.member(world, found, name).state if found.state == "defined" else "unknown"
        has = None if state == "unknown" else state == "defined"
    else:
        shown = search.parameters(world, found)
        has = None if shown is None else name in shown
    return None if has is None else has != guard.spec.startswith("!")


def _version(world: Surroundings, subject: str) -> str | None:
    """The version of the package called `subject`, or of the one that brings that module."""
    version = world.version(subject)
    if version is None:
        owner = world.owner(subject.replace("-", "_"))
        version = world.version(owner) if owner is not None else None
    return version


@lru_cache(maxsize=4096)
def _within(version: str | None, spec: str) -> bool | None:
    """Whether `version` fits `spec`; None if either cannot be read."""
    if version is None:
        return None
    try:
        return SpecifierSet(spec).contains(Version(version), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return None


@lru_cache(maxsize=1024)
def _python(python: str, part: str, spec: str) -> bool | None:
    """What CPython answers; None where that hangs on a micro release which nobody named."""
    found, taken = _COMPARISON.fullmatch(spec), _PART.fullmatch(part)
    if found is None or (part and taken is None):
        return None
    items = tuple(int(item) if item.isdigit() else item for item in found[2].split("."))
    major, minor, *named = Version(python).release
    highest = max((item for item in items if isinstance(item, int)), default=0)
    answers = set()
    for micro in named[:1] or range(highest + 2):
        version: tuple[int | str, ...] = (major, minor, micro, "final", 0)
        have, wanted = (version, items) if taken is None else _taken(version, items, taken)
        try:
            answers.add(_COMPARES[found[1]](have, wanted))
        except TypeError:
            return None
    return answers.pop() if len(answers) == 1 else None


def _taken(
    version: tuple[int | str, ...], items: tuple[int | str, ...], part: re.Match[str]
) -> tuple[object, object]:
    """A slice or an item of the version, and what it is compared with."""
    place = int(part[2])
    if part[1]:
        return version[:place], items
    return (version[place], items[0]) if place < len(version) else ("", 0)
