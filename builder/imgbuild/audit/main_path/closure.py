"""The main path: what runs when people use what they came for, found by following the code.

Input: a world and the policy's entry points. Output: a `MainPath`, the scopes of the world's
modules that importing and calling them reaches. A module's top level runs when it is imported, and
so does that of its parents; a function's body when it is called; making an object of a class
reaches all methods of it and of its bases, those that nothing calls by name less surely. What is
not reached is a corner.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from imgbuild.audit.main_path import policy
from imgbuild.audit.main_path.guards import IMPORT, Course, judge
from imgbuild.audit.main_path.policy import Entry, Policy
from imgbuild.audit.main_path.view import View
from imgbuild.audit.names import search
from imgbuild.audit.names.classes import ancestors
from imgbuild.audit.names.scopes import MAKERS, Scopes, meaning, scopes
from imgbuild.audit.names.search import Found
from imgbuild.audit.packages.views import Surroundings
from imgbuild.audit.source.facts import Attribute, Call, Class, Function, Import, ModuleFacts
from imgbuild.values import normalize


class Level(enum.IntEnum):
    """How sure it is that a scope runs: the lower the surer."""

    CERTAIN = 0  # no condition on the way but those that hold in this world
    LIKELY = 1  # a method of an object that is made
    POSSIBLE = 2  # it depends on data
    REMOTE = 3  # a method that nothing seen calls, of an object that is made in some cases only
    DOUBTFUL = 4  # a condition on the world is not understood, or somebody catches what goes wrong


Place = tuple[str, str]  # module and runner: "" for its top level, else a function's qualified name


class Reached(msgspec.Struct, frozen=True, array_like=True):
    """How the main path comes to a place: from which entry point, and from which place last."""

    level: Level
    entry: str
    via: Place | None = None


class MainPath:
    """The places that the entry points reach, in a world as it looks from within."""

    def __init__(
        self,
        places: dict[Place, Reached],
        corners: Iterable[str] = (),
        view: View | None = None,
        called: Iterable[Place] = (),
    ) -> None:
        self._view = view
        self._called = frozenset(called)
        self.places = places
        self._corners = frozenset(corners)

    def view(self, world: Surroundings) -> View:
        """`world` as it looks from within: the view that the path was found in, if it is its."""
        if self._view is not None and self._view.shows(world):
            return self._view
        return View(world)

    def reached(self, module: str, runner: str) -> Reached | None:
        """How the path comes to what `runner` runs in `module`; None for a corner."""
        return self.places.get((module, runner))

    def calls(self, module: str, runner: str) -> bool:
        """Whether something likely calls `runner` by its name, or users do.

        Other methods are reached because an object of their class is made: nobody need call them.
        """
        how = self.places.get((module, runner))
        return how is not None and (how.via is None or (module, runner) in self._called)

    def modules(self) -> list[str]:
        """All modules that are checked, sorted: those that the path imports, and the corners."""
        return sorted(self._corners.union(module for module, _ in self.places))


def main_path(
    world: Surroundings, rules: Policy | None = None, corners: Iterable[str] = ()
) -> MainPath:
    """Follow the entry points of `rules` (the policy of this release) through `world`.

    `corners` are modules that are checked although nothing may lead there: see `corners.survey`.
    """
    rules = rules or policy.load()
    view = View(world)
    walk = _Walk(view, rules.walk)
    for entry in rules.entries:
        if _applies(world, entry):
            walk.enter(entry)
    return MainPath(walk.places, corners, view, walk.called)


def _applies(world: Surroundings, entry: Entry) -> bool:
    """Whether the entry's package is in the world, with one of its versions."""
    package = world.owner(entry.name.partition(".")[0])
    version = world.version(package) if package is not None else None
    if version is None or not all(world.version(other) for other in entry.beside):
        return False
    return not entry.versions or policy.within(version, entry.versions)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


class _Above:
    """The bases of a class, which may call what it defines in their stead."""

    def __init__(self, bases: Iterable[Found]) -> None:
        self._methods: set[str] = set()
        self._others: set[str] = set()
        self._unread = False
        for base in bases:
            if isinstance(base.definition, Class):
                self._methods.update(base.definition.methods)
                self._others.update(base.definition.attributes)
                self._others.update(field.name for field in base.definition.fields)
            else:
                self._unread = True

    def may_call(self, name: str) -> bool:
        """Whether a base, or Python itself, may call a method of this name."""
        if name in self._methods or _is_private(name):
            return name in self._methods
        return self._unread or name.endswith("__") or name in self._others


class _Walk:
    """One pass over a world; places are taken up again when a surer way to them is found."""

    def __init__(self, world: Surroundings, walked: frozenset[str]) -> None:
        self.world = world
        self.places: dict[Place, Reached] = {}
        self.called: set[Place] = set()
        self._walked = walked
        self._owned: dict[str, bool] = {}
        self._made: dict[Place, Level] = {}
        self._looked: dict[tuple[str, str], Found] = {}
        self._queue: list[Place] = []

    def enter(self, entry: Entry) -> None:
        """Follow one entry point to its end."""
        for name in (entry.name, *entry.also):
            self._enter(name, Reached(Level.CERTAIN, entry.name))
        while self._queue:
            batch, self._queue = self._queue, []
            self._prefetch(batch)
            for place in batch:
                self._run(place)

    def _prefetch(self, batch: list[Place]) -> None:
        """Read what a batch needs at once: its modules, and those that they import."""
        modules = sorted({module for module, _ in batch})
        self.world.prefetch(modules)
        targets: set[str] = set()
        for module in modules:
            facts = self.world.module(module)
            for line in facts.imports if isinstance(facts, ModuleFacts) else ():
                targets.update((line.module, f"{line.module}.{line.name}"))
        self.world.prefetch(sorted(filter(self._is_walked, targets)))

    def _enter(self, name: str, how: Reached) -> None:
        """Start at a module, or at a name of one."""
        found = self.world.module(name)
        if isinstance(found, ModuleFacts):
            self._module(name, how)
            return
        module, _, rest = name.rpartition(".")
        while module and self.world.module(module) is None:
            module = module.rpartition(".")[0]
            rest = name.removeprefix(module + ".")
        facts = self.world.module(module) if module else None
        if isinstance(facts, ModuleFacts):
            self._module(module, how)
            self._use(search.resolve(self.world, facts, rest), how)

    # -- marking places

    def _mark(self, place: Place, how: Reached) -> None:
        known = self.places.get(place)
        if known is None or how.level < known.level:
            self.places[place] = how
            self._queue.append(place)

    def _module(self, name: str, how: Reached) -> None:
        """Importing `name` runs its top level and that of its parents."""
        at = ""
        for part in name.split("."):
            at = f"{at}.{part}" if at else part
            if self._is_walked(at):
                self._mark((at, ""), how)

    def _is_walked(self, module: str) -> bool:
        if module not in self._owned:
            owner = self.world.owner(module)
            self._owned[module] = owner is not None and normalize(owner) in self._walked
        return self._owned[module]

    def _use(self, found: Found, how: Reached) -> None:
        """Whatever was found is called, made or named."""
        if found.ambiguous:
            how = msgspec.structs.replace(how, level=Level.DOUBTFUL)
        for step in found.trace:
            self._module(step.partition(":")[0].lstrip("*"), how)
        found = search.follow(self.world, found)
        home, definition = found.home, found.definition
        if home is None or not self._is_walked(home.module):
            return
        self._module(home.module, how)
        if isinstance(definition, Class):
            self._make(found, how)
        elif isinstance(definition, Function):
            place = (home.module, definition.name)
            if how.level <= Level.LIKELY:
                self.called.add(place)
            self._mark(place, how)

    def _make(self, found: Found, how: Reached) -> None:
        """An object of a class is made: its methods, and those of its bases, may be called.

        A private method is called by its own class, which is followed, unless it stands in for one
        of a base. A public one of an object that is made in some cases only needs two things to
        happen that nobody has seen: unless it is there for a base's sake, or Python's, it is remote
        until a call by its name is found.
        """
        chain = ancestors(self.world, found)
        for at, one in enumerate(chain):
            home, definition = one.home, one.definition
            if home is None or not isinstance(definition, Class):
                continue
            place = (home.module, definition.name)
            if not self._is_walked(home.module) or self._made.get(place, 9) <= how.level:
                continue
            self._made[place] = how.level
            self._module(home.module, how)
            later = msgspec.structs.replace(how, level=max(how.level, Level.LIKELY))
            remote = msgspec.structs.replace(how, level=max(how.level, Level.REMOTE))
            above = _Above(chain[at + 1 :])
            for method in scopes(home).methods(definition.name):
                name = method.rpartition(".")[2]
                if name in MAKERS:
                    self._mark((home.module, method), how)
                elif above.may_call(name) or (how.level <= Level.LIKELY and not _is_private(name)):
                    self._mark((home.module, method), later)
                elif not _is_private(name):
                    self._mark((home.module, method), remote)

    # -- following what a place does

    def _run(self, place: Place) -> None:
        module, runner = place
        facts = self.world.module(module)
        if not isinstance(facts, ModuleFacts):
            return
        how = msgspec.structs.replace(self.places[place], via=place)
        here = scopes(facts)
        for name in here.run_by(runner):
            for line in here.imports.get(name, ()):
                self._follow_import(line, how)
            for fact in (*here.calls.get(name, ()), *here.attributes.get(name, ())):
                self._follow_use(facts, fact, how)
        self._follow_decorators(facts, here, runner, how)

    def _beyond(self, course: Course, how: Reached, *errors: str) -> Reached:
        """How sure what lies behind a guarded step is."""
        level = how.level
        if course.catches(*errors) or not course.clear:
            level = Level.DOUBTFUL
        elif not course.certain:
            level = max(level, Level.POSSIBLE)
        return Reached(level, how.entry, how.via)

    def _follow_import(self, line: Import, how: Reached) -> None:
        course = judge(self.world, line.guards)
        if not course.runs:
            return
        beyond = self._beyond(course, how, *IMPORT)
        self._module(line.module, beyond)
        if not line.name or line.name == "*" or not self._is_walked(line.module):
            return
        found = self._lookup(line.module, line.name)
        if isinstance(found.definition, ModuleFacts) and not found.ambiguous:
            self._module(found.definition.module, beyond)
        # What is taken on first use may be a stand-in where something it needs is missing.
        least = Level.DOUBTFUL if found.ambiguous else Level.POSSIBLE
        later = msgspec.structs.replace(beyond, level=max(beyond.level, least))
        for step in found.trace:
            self._module(step.partition(":")[0].lstrip("*"), later)

    def _lookup(self, module: str, name: str) -> Found:
        """`names.lookup`, remembered: the same names are imported in a thousand places."""
        if (module, name) not in self._looked:
            self._looked[module, name] = search.lookup(self.world, module, name)
        return self._looked[module, name]

    def _follow_use(self, facts: ModuleFacts, fact: Call | Attribute, how: Reached) -> None:
        course = judge(self.world, fact.guards)
        if not course.runs:
            return
        beyond = self._beyond(course, how, *IMPORT)
        if isinstance(fact, Attribute):
            beyond = Reached(max(beyond.level, Level.POSSIBLE), beyond.entry, beyond.via)
        self._use(meaning(self.world, facts, fact).found, beyond)

    def _follow_decorators(
        self, facts: ModuleFacts, here: Scopes, runner: str, how: Reached
    ) -> None:
        """Decorators of top-level functions and classes run when the module is imported."""
        if runner:
            return
        decorated: Iterable[Function | Class] = (*facts.functions, *facts.classes)
        for one in decorated:
            if here.runner(one.name.rpartition(".")[0]):
                continue
            for text in one.decorators:
                name = text.partition("(")[0]
                if name.replace(".", "").isidentifier():
                    self._use(search.resolve(self.world, facts, name), how)
