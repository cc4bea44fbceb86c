"""Tracks the values of names at each place in a module, as far as conditions depend on them.

Names follow the scoping rules of Python: a function sees the names of enclosing scopes that it does
not bind itself, and the names of a class are visible only in its body. A name with several
different bindings has an unknown value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import msgspec

from imgbuild.audit.source.facts import Guard
from imgbuild.audit.source.scopes import BindingSite, binding_sites

Guards = tuple[Guard, ...]
Branches = tuple[Guards, Guards]

# Guards on what must be installed for a branch to run; only these are kept after the branch.
_LASTING_GUARDS = frozenset(
    ("version", "present", "absent", "python", "platform", "takes", "result")
)
_DECLARATION = re.compile(
    rb"\b(?:global|nonlocal)[ \t\\\r\n]+([^\s,\\;#]+(?:[ \t\\\r\n]*,[^,;#\n]+)*)"
)


# Without any of these, no expression of a module is the version of a package.
_VERSION_WORDS = (
    *(b"__version__", b"VERSION", b"ersion(", b"parse(", b"distribution("),
    *(b"ersion (", b"parse (", b"distribution ("),
)


class NameValue(msgspec.Struct, frozen=True):
    """The value of a name. If the value is unknown, all fields have their defaults.

    `truthy` and `falsy` are the guards that apply if the value is true or false. They are None if
    the value is never true or never false. `is_none` is set for None, and `is_literal` for any
    literal. A `derived` value was computed from a version in an unrecognized way, so conditions on
    it are unknown.
    """

    package: str = ""  # the version of this package
    literal: str = ""  # this version, or any string
    module: str = ""  # this module
    parameters_of: str = ""  # the parameters of this callable
    truthy: Guards | None = ()
    falsy: Guards | None = ()
    is_none: bool = False
    is_literal: bool = False
    derived: bool = False

    @property
    def is_informative(self) -> tuple[bool, bool]:
        """Whether a true value depends on installed packages, and whether a false value does."""
        if self.derived or self.package:
            return True, True
        return _is_informative(self.truthy), _is_informative(self.falsy)

    @property
    def as_condition(self) -> Branches | None:
        """The guards of a name that is used as a condition, or None if it has no guards."""
        return (self.truthy or (), self.falsy or ()) if self.truthy or self.falsy else None


UNKNOWN_VALUE = NameValue()
NONE_VALUE = NameValue(truthy=None, is_none=True, is_literal=True)
ScopeState = dict[str, NameValue]


GuardedValue = tuple[Guards, NameValue]


class FlowPath(msgspec.Struct, frozen=True):
    """A path through a statement: its guards, and the values of names at its end."""

    state: ScopeState
    guards: Guards = ()
    fallback: bool = False  # it runs only if the first path fails


class ScopeFrame:
    """The names of a scope while it is read."""

    __slots__ = (
        "_sites",
        "body",
        "declared",
        "expressions",
        "kind",
        "line",
        "parameters",
        "parent",
        "results",
        "values"
    )  # fmt: skip

    def __init__(
        self,
        kind: Literal["module", "class", "function", "inner"],
        parent: ScopeFrame | None,
        body: Sequence[ast.AST] = (),
        line: int = 0,
        names: Iterable[str] = (),
        *,
        expressions: bool = True,
    ) -> None:
        """Create a scope in which `names` are bound from the start. "inner" is a comprehension.

        `expressions` is False if no expression in the module binds names (`:=`).
        """
        self.kind = kind
        self.parent = parent
        self.body = body
        self.expressions = expressions
        self.line = line
        self.parameters = frozenset(names)
        self.values: ScopeState = dict.fromkeys(self.parameters, UNKNOWN_VALUE)
        self.declared: set[str] = set()
        # Of a function: the values that it returns, each with the guards within the function.
        self.results: list[GuardedValue] = []
        self._sites: dict[str, list[BindingSite]] | None = None

    def binding_sites(self, name: str) -> list[BindingSite]:
        """Return the places in this scope where a name is bound."""
        if self._sites is None:
            self._sites = binding_sites(self.body, expressions=self.expressions)
        return self._sites.get(name, [])


def literal_value(value: object) -> NameValue:
    """Return the value of a literal."""
    return NameValue(
        literal=value if isinstance(value, str) else "",
        truthy=() if value else None,
        falsy=None if value else (),
        is_none=value is None,
        is_literal=True,
    )


class NameValues:
    """Tracks the values of names by scope."""

    def __init__(self, body: Sequence[ast.AST] = (), source: bytes = b"") -> None:
        self._expressions = b":=" in source or not source
        self.frame = ScopeFrame("module", None, body, expressions=self._expressions)
        # Names that some function binds for a scope around it.
        declares = b"global" in source or b"nonlocal" in source
        self.elsewhere = {
            name.strip(b" \t\\\r").decode("utf-8", "replace")
            for declaration in (_DECLARATION.findall(source) if declares else ())
            for name in declaration.split(b",")
        }
        # Attributes and functions whose values depend on what is installed, by their last names as
        # their owners are unknown: whether a true value does, and whether a false one does.
        self.answers: dict[str, tuple[bool, bool]] = {}
        # Whether a value may depend on the version of a package.
        self.versioned = not source or any(word in source for word in _VERSION_WORDS)

    # Scopes

    def enter_scope(
        self,
        kind: Literal["class", "function", "inner"],
        body: Sequence[ast.AST],
        line: int,
        names: Iterable[str] = (),
    ) -> None:
        """Start a new scope, such as a function body."""
        self.frame = ScopeFrame(kind, self.frame, body, line, names, expressions=self._expressions)

    def leave_scope(self) -> None:
        """Leave the current scope, whose values are not visible outside."""
        self.frame = self.frame.parent or self.frame

    def declare_names(self, names: Collection[str]) -> None:
        """Record the names in a `global` or `nonlocal` statement, which several scopes may bind."""
        self.frame.declared.update(names)
        self.frame.values.update(dict.fromkeys(names, UNKNOWN_VALUE))

    # Names

    def bind_name(self, name: str, name_value: NameValue = UNKNOWN_VALUE) -> None:
        """Bind a name to a new value."""
        self.frame.values[name] = name_value
        self.versioned = self.versioned or bool(name_value.package) or name_value.derived
        if self.frame.kind == "class":
            self.add_answer(name, name_value)

    def add_answer(self, name: str, name_value: NameValue) -> None:
        """Record the value of an attribute, or the result of a function, under its name."""
        if name_value.is_literal and name_value.as_condition is None:
            return
        yes, no = name_value.is_informative
        before = self.answers.get(name, (True, True))
        yes, no = self.answers[name] = (yes and before[0], no and before[1])
        self.versioned = self.versioned or (yes and no)

    def bind_conditionally(self, name: str, name_value: NameValue) -> None:
        """Bind a name in an expression that may not run, so the name may keep its value."""
        frame = self.frame
        while frame.kind == "inner" and frame.parent is not None:
            frame = frame.parent
        before = frame.values.get(name)
        self.versioned = self.versioned or bool(name_value.package) or name_value.derived
        frame.values[name] = name_value if before is None else _merge_values(name_value, before)

    def value(self, name: str) -> NameValue:
        """Return the value of a name at the current place."""
        frame: ScopeFrame | None = self.frame
        passed: list[ScopeFrame] = []
        line = 0  # that of the outermost function between here and the name, which runs later
        while frame is not None:
            visible = frame.kind != "class" or frame is self.frame
            name_value = frame.values.get(name) if visible else None
            if name_value is not None:
                if name_value is UNKNOWN_VALUE or any(
                    inner.binding_sites(name) for inner in passed
                ):
                    return UNKNOWN_VALUE
                return (
                    name_value
                    if self._is_only_binding(name, name_value, frame, line)
                    else UNKNOWN_VALUE
                )
            if frame.kind == "function":
                line = frame.line
            if frame.kind != "class":
                passed.append(frame)
            frame = frame.parent
        return UNKNOWN_VALUE

    def is_local(self, name: str) -> bool:
        """Return whether a name is a parameter or local variable, which can have any meaning.

        Names of imports, definitions and module variables are assumed to have their usual meaning.
        """
        frame = self.frame
        while frame.parent is not None:
            if name in frame.parameters:
                return True
            places = (
                frame.binding_sites(name) if frame.kind != "class" or frame is self.frame else []
            )
            if places:
                return not all(site.definition for site in places)
            frame = frame.parent
        return False

    def _is_only_binding(
        self, name: str, name_value: NameValue, frame: ScopeFrame, line: int
    ) -> bool:
        """Return whether this binding alone determines the current value of a name."""
        if name in self.elsewhere and (line or name not in frame.declared):
            return False
        return not line or all(
            site.line < line or (site.module and site.module == name_value.module)
            for site in frame.binding_sites(name)
        )

    # Paths through statements

    def state(self) -> ScopeState:
        """Return a copy of the values in the current scope, for `restore`."""
        return dict(self.frame.values)

    def restore(self, state: ScopeState) -> ScopeState:
        """Set the values to `state`, and return the previous values."""
        before, self.frame.values = self.frame.values, dict(state)
        return before

    def join(self, *paths: FlowPath) -> None:
        """Continue after one of `paths`. Without paths, nothing changes."""
        if not paths:
            return
        first = paths[0].state
        state = dict(first)
        different: set[str] = set()
        for path in paths[1:]:
            other = path.state
            different.update(first.keys() - other.keys())
            different.update(name for name in other if other[name] is not first.get(name))
        for name in different:
            state[name] = self._joined_value(name, paths)
        self.frame.values = state
        if self.frame.kind == "class":
            for name, name_value in state.items():
                self.add_answer(name, name_value)

    def _joined_value(self, name: str, paths: Sequence[FlowPath]) -> NameValue:
        bound = [(path, path.state[name]) for path in paths if name in path.state]
        if len(bound) < len(paths) and self.frame.kind == "class":
            return UNKNOWN_VALUE  # where the class does not bind it, the name is that of the module
        first, name_value = bound[0]
        if len(bound) == 1:  # the other paths do not bind it, so nothing reads it there
            return name_value
        conditions = {value for _, value in bound if value.truthy and value.falsy}
        whole = name_value if name_value in conditions else None
        name_value = _add_guards(name_value, first.guards)
        for path, other in bound[1:]:
            more = _add_guards(other, path.guards)
            if name_value.is_literal and _runs_without(other.package, first.guards):
                name_value = _merge_values(more, name_value, fallback=True)
            else:
                fallback = path.fallback or _runs_without(name_value.package, path.guards)
                name_value = _merge_values(name_value, more, fallback=fallback)
            if not (path.fallback and other.is_literal):
                whole = None
        if whole is not None:
            return msgspec.structs.replace(name_value, truthy=whole.truthy, falsy=whole.falsy)
        if conditions and name_value.as_condition is None:
            no = Guard("unknown", f"not ({name})")
            return msgspec.structs.replace(
                name_value, truthy=(Guard("unknown", name),), falsy=(no,)
            )
        return name_value

    def enter_loop(self, body: Sequence[ast.AST]) -> None:
        """Start a loop, in which names can have values from the end of the loop body."""
        for name in self._rebound_names(body):
            self.frame.values[name] = UNKNOWN_VALUE

    def end_interruptible_block(self, body: Sequence[ast.AST], before: ScopeState) -> None:
        """End a loop or `try`, which may be left at any point of the body."""
        for name, count in self._rebound_names(body).items():
            if count > 1 or self.frame.values[name] == before.get(name):
                self.frame.values[name] = UNKNOWN_VALUE

    def _rebound_names(self, body: Sequence[ast.AST]) -> dict[str, int]:
        """Return the names with known values that `body` rebinds, with the number of bindings."""
        values = self.frame.values
        if not any(name_value is not UNKNOWN_VALUE for name_value in values.values()):
            return {}
        bound = binding_sites(body, expressions=self._expressions)
        return {
            name: len(sites)
            for name, sites in bound.items()
            if values.get(name, UNKNOWN_VALUE) is not UNKNOWN_VALUE
            and any(not site.module or site.module != values[name].module for site in sites)
        }


def _is_informative(guards: Guards | None) -> bool:
    return guards is None or any(guard.kind in _LASTING_GUARDS for guard in guards)


def _add_guards(name_value: NameValue, guards: Guards) -> NameValue:
    """Return a value that is assigned on a path with `guards`, which are added to its guards."""
    lasting = tuple(guard for guard in guards if guard.kind in _LASTING_GUARDS)
    if not lasting:
        return name_value
    return msgspec.structs.replace(
        name_value,
        truthy=_combine_guards(name_value.truthy, lasting),
        falsy=_combine_guards(name_value.falsy, lasting),
    )


def _combine_guards(guards: Guards | None, more: Guards) -> Guards | None:
    return None if guards is None else tuple(dict.fromkeys(guards + more))


def _common_guards(first: Guards | None, other: Guards | None) -> Guards | None:
    if first is None or other is None:
        return other if first is None else first
    return tuple(guard for guard in first if guard in other)


def _merge_values(first: NameValue, other: NameValue, *, fallback: bool = False) -> NameValue:
    """Return the value of a name that has one of two values.

    None is ignored, and so is a literal on a `fallback` path, because reading a version from either
    fails.
    """
    if other.is_none or (fallback and other.is_literal):
        main = first
    elif first.is_none:
        main = other
    else:
        main = NameValue(
            package=_equal_or_empty(first.package, other.package),
            literal=_equal_or_empty(first.literal, other.literal),
            module=_equal_or_empty(first.module, other.module),
            parameters_of=_equal_or_empty(first.parameters_of, other.parameters_of),
            derived=first.package != other.package,
        )
    truthy, falsy = (
        _common_guards(first.truthy, other.truthy),
        _common_guards(first.falsy, other.falsy),
    )
    return msgspec.structs.replace(
        main,
        truthy=truthy,
        falsy=falsy,
        is_none=first.is_none and other.is_none,
        is_literal=first.is_literal and other.is_literal,
        derived=main.derived or first.derived or other.derived,
    )


def _runs_without(package: str, guards: Guards) -> bool:
    """Return whether a path runs only if a package is missing."""
    return any(
        guard.kind == "absent" and package == guard.subject.partition(".")[0].partition(":")[0]
        for guard in guards
    )


def _equal_or_empty(first: str, other: str) -> str:
    return first if first == other else ""
