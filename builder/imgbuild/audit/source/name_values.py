"""What the names of a module hold, as far as conditions care, and where each name means what.

Comes in: bindings, in the order of the source. Goes out: what a name holds at this place. Names
follow the rules of Python: a function sees the names around it that it does not bind itself, a
class's names end with its body, and a name that is bound in different ways is unknown.
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

# Guards that say what must be installed for a branch to run; others do not outlive the branch.
_LASTING = frozenset(("version", "present", "absent", "python", "platform", "takes"))
_DECLARED = re.compile(
    rb"\b(?:global|nonlocal)[ \t\\\r\n]+([^\s,\\;#]+(?:[ \t\\\r\n]*,[^,;#\n]+)*)"
)


class NameValue(msgspec.Struct, frozen=True):
    """What a name holds. Of a name about which nothing is known all fields are as below.

    `truthy` and `falsy` are what must hold where the value counts as true, and as false; None if it
    never does. `blank` is None, of which the rest says nothing; `plain` any literal. `about` says
    that it was made of a version in a way that is not understood: conditions on it are unknown.
    """

    package: str = ""  # the version of this package
    literal: str = ""  # this version, or any string
    module: str = ""  # this module
    holder: str = ""  # the parameters of this callable
    truthy: Guards | None = ()
    falsy: Guards | None = ()
    blank: bool = False
    plain: bool = False
    about: bool = False

    @property
    def sides(self) -> tuple[bool, bool]:
        """Whether its being true, and its being false, say anything of what is installed."""
        if self.about or self.package:
            return True, True
        return _speaks(self.truthy), _speaks(self.falsy)

    @property
    def other(self) -> bool:
        """Whether it is known to be no answer to a question, whatever the name is."""
        constant = self.plain and (self.truthy is None or self.falsy is None)
        return constant or bool(self.literal or self.module or self.holder)

    @property
    def flag(self) -> Branches | None:
        """What the name stands for as a condition; None if for nothing."""
        return (self.truthy or (), self.falsy or ()) if self.truthy or self.falsy else None


UNKNOWN = NameValue()
State = dict[str, NameValue]


class FlowPath(msgspec.Struct, frozen=True):
    """One way through a statement: what names hold at its end, and under which guards it runs."""

    state: State
    guards: Guards = ()
    fallback: bool = False  # it runs only where the first path fails


class Frame:
    """The names of one scope that is being read."""

    __slots__ = (
        "_sites", "body", "declared", "expressions", "given", "held", "kind", "line", "parent"
    )  # fmt: skip

    def __init__(
        self,
        kind: Literal["module", "class", "function", "inner"],
        parent: Frame | None,
        body: Sequence[ast.AST] = (),
        line: int = 0,
        names: Iterable[str] = (),
        *,
        expressions: bool = True,
    ) -> None:
        """A scope whose `names` are bound from its start; "inner" is that of a comprehension.

        `expressions` says that those of this module may bind names (`:=`).
        """
        self.kind = kind
        self.parent = parent
        self.body = body
        self.expressions = expressions
        self.line = line
        self.given = frozenset(names)
        self.held: State = dict.fromkeys(self.given, UNKNOWN)
        self.declared: set[str] = set()
        self._sites: dict[str, list[BindingSite]] | None = None

    def sites(self, name: str) -> list[BindingSite]:
        """The places in this scope that bind a name."""
        if self._sites is None:
            self._sites = binding_sites(self.body, expressions=self.expressions)
        return self._sites.get(name, [])


class NameValues:
    """What names hold, scope by scope."""

    def __init__(self, body: Sequence[ast.AST] = (), source: bytes = b"") -> None:
        """For a module of these statements and this text."""
        self._expressions = b":=" in source or not source
        self.frame = Frame("module", None, body, expressions=self._expressions)
        # Names that some function binds for a scope around it.
        self.elsewhere = {
            name.strip(b" \t\\\r").decode("utf-8", "replace")
            for found in _DECLARED.findall(source)
            for name in found.split(b",")
        }
        # Attributes that hold and functions that give what says something of what is installed, by
        # their last names, as whose they are is not told: whether what they are being true says it,
        # and being false.
        self.speaking: dict[str, tuple[bool, bool]] = {}

    # Scopes

    def enter(
        self,
        kind: Literal["class", "function", "inner"],
        body: Sequence[ast.AST],
        line: int,
        names: Iterable[str] = (),
    ) -> None:
        """Begin a scope."""
        self.frame = Frame(kind, self.frame, body, line, names, expressions=self._expressions)

    def leave(self) -> None:
        """End a scope: what was said in it says nothing outside."""
        self.frame = self.frame.parent or self.frame

    def declare(self, names: Collection[str]) -> None:
        """`global` or `nonlocal`: the names are bound here, and elsewhere."""
        self.frame.declared.update(names)
        self.frame.held.update(dict.fromkeys(names, UNKNOWN))

    # Names

    def bind(self, name: str, held: NameValue = UNKNOWN) -> None:
        """A name is bound anew; what it held before is forgotten."""
        self.frame.held[name] = held
        if self.frame.kind == "class":
            self.speaks(name, held)

    def speaks(self, name: str, held: NameValue) -> None:
        """An attribute is assigned, or a function of this name returns, what is held."""
        if held.plain and held.flag is None:
            return
        yes, no = held.sides
        before = self.speaking.get(name, (True, True))
        self.speaking[name] = (yes and before[0], no and before[1])

    def bind_within(self, name: str, held: NameValue) -> None:
        """A name is bound inside an expression, which may not run: what it held may stay."""
        frame = self.frame
        while frame.kind == "inner" and frame.parent is not None:
            frame = frame.parent
        before = frame.held.get(name)
        frame.held[name] = held if before is None else _either(held, before)

    def held(self, name: str) -> NameValue:
        """What a name holds at this place."""
        frame: Frame | None = self.frame
        passed: list[Frame] = []
        line = 0  # that of the outermost function between here and the name, which runs later
        while frame is not None:
            visible = frame.kind != "class" or frame is self.frame
            found = frame.held.get(name) if visible else None
            if found is not None:
                if found is UNKNOWN or any(one.sites(name) for one in passed):
                    return UNKNOWN
                return found if self._sure(name, found, frame, line) else UNKNOWN
            if frame.kind == "function":
                line = frame.line
            if frame.kind != "class":
                passed.append(frame)
            frame = frame.parent
        return UNKNOWN

    def own(self, name: str) -> bool:
        """Whether a name is a parameter or a local of a value of its own, whatever it is called.

        What is imported or defined, and what the module binds, is taken by its name.
        """
        frame = self.frame
        while frame.parent is not None:
            if name in frame.given:
                return True
            places = frame.sites(name) if frame.kind != "class" or frame is self.frame else []
            if places:
                return not all(site.given for site in places)
            frame = frame.parent
        return False

    def _sure(self, name: str, found: NameValue, frame: Frame, line: int) -> bool:
        """Whether no other binding of a name in its scope has a say in what it holds here."""
        if name in self.elsewhere and (line or name not in frame.declared):
            return False
        return not line or all(
            site.line < line or (site.module and site.module == found.module)
            for site in frame.sites(name)
        )

    # Ways through statements

    def state(self) -> State:
        """What the names of this scope hold, to come back to."""
        return dict(self.frame.held)

    def turn(self, state: State) -> State:
        """Go on with another state; what the names held until here."""
        before, self.frame.held = self.frame.held, dict(state)
        return before

    def join(self, *paths: FlowPath) -> None:
        """Go on where any of these paths may have led here; nothing changes if there is none."""
        if not paths:
            return
        state = dict(paths[0].state)
        for name in {name for path in paths for name in path.state}:
            found = [path.state.get(name) for path in paths]
            if any(one is not found[0] for one in found):
                state[name] = self._joined(name, paths)
        self.frame.held = state
        if self.frame.kind == "class":
            for name, held in state.items():
                self.speaks(name, held)

    def _joined(self, name: str, paths: Sequence[FlowPath]) -> NameValue:
        bound = [(path, path.state[name]) for path in paths if name in path.state]
        if len(bound) < len(paths) and self.frame.kind == "class":
            return UNKNOWN  # where the class does not bind it, the name is that of the module
        first, held = bound[0]
        if len(bound) == 1:  # the other ways do not bind it, so that nothing reads it there
            return held
        conditions = {one for _, one in bound if one.truthy and one.falsy}
        whole = held if held in conditions else None
        held = _under(held, first.guards)
        for path, other in bound[1:]:
            more = _under(other, path.guards)
            if held.plain and _without(other.package, first.guards):
                held = _either(more, held, fallback=True)
            else:
                fallback = path.fallback or _without(held.package, path.guards)
                held = _either(held, more, fallback=fallback)
            if not (path.fallback and other.plain):
                whole = None
        if whole is not None:
            return msgspec.structs.replace(held, truthy=whole.truthy, falsy=whole.falsy)
        if conditions and held.flag is None:
            no = Guard("unknown", f"not ({name})")
            return msgspec.structs.replace(held, truthy=(Guard("unknown", name),), falsy=(no,))
        return held

    def repeated(self, body: Sequence[ast.AST]) -> None:
        """At the start of a loop names may hold what its end left in them."""
        for name in self._others(body):
            self.frame.held[name] = UNKNOWN

    def interrupted(self, body: Sequence[ast.AST], before: State) -> None:
        """After a loop or a `try`, which may end anywhere within its body."""
        for name, count in self._others(body).items():
            if count > 1 or self.frame.held[name] == before.get(name):
                self.frame.held[name] = UNKNOWN

    def _others(self, body: Sequence[ast.AST]) -> dict[str, int]:
        """The names of which something is known, and how often statements bind them to more."""
        known = {name: one for name, one in self.frame.held.items() if one is not UNKNOWN}
        if not known:
            return {}
        bound = binding_sites(body, expressions=self._expressions)
        return {
            name: len(bound[name])
            for name, held in known.items()
            if any(not site.module or site.module != held.module for site in bound.get(name, ()))
        }


def _speaks(guards: Guards | None) -> bool:
    return guards is None or any(guard.kind in _LASTING for guard in guards)


def _under(held: NameValue, guards: Guards) -> NameValue:
    """What is held on a path that runs only under guards: its being true says that they hold."""
    lasting = tuple(guard for guard in guards if guard.kind in _LASTING)
    if not lasting:
        return held
    return msgspec.structs.replace(
        held, truthy=_and(held.truthy, lasting), falsy=_and(held.falsy, lasting)
    )


def _and(guards: Guards | None, more: Guards) -> Guards | None:
    return None if guards is None else tuple(dict.fromkeys(guards + more))


def _or(one: Guards | None, other: Guards | None) -> Guards | None:
    """What holds in either case."""
    if one is None or other is None:
        return other if one is None else one
    return tuple(guard for guard in one if guard in other)


def _either(one: NameValue, other: NameValue, *, fallback: bool = False) -> NameValue:
    """What a name holds that holds one or the other; a literal in the place of what failed is none.

    None says nothing of the rest: what reads a version out of it fails.
    """
    if other.blank or (fallback and other.plain):
        main = one
    elif one.blank:
        main = other
    else:
        main = NameValue(
            package=_same(one.package, other.package),
            literal=_same(one.literal, other.literal),
            module=_same(one.module, other.module),
            holder=_same(one.holder, other.holder),
            about=one.package != other.package,
        )
    truthy, falsy = _or(one.truthy, other.truthy), _or(one.falsy, other.falsy)
    return msgspec.structs.replace(
        main,
        truthy=truthy,
        falsy=falsy,
        blank=one.blank and other.blank,
        plain=one.plain and other.plain,
        about=main.about or one.about or other.about,
    )


def _without(package: str, guards: Guards) -> bool:
    """Whether a path runs only where a package is absent."""
    return any(
        guard.kind == "absent" and package == guard.subject.partition(".")[0].partition(":")[0]
        for guard in guards
    )


def _same(one: str, other: str) -> str:
    return one if one == other else ""
