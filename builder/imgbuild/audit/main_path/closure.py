"""Follows the main path: the code that runs from the policy's entry points.

The top level of a module and of its parents runs when the module is imported. The body of a
function runs when the function is called. Constructing an object reaches all methods of its class
and base classes. Methods that are never called by name are less certain. Modules that are checked
although the main path does not reach them are called corners.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from imgbuild.audit.main_path import policy
from imgbuild.audit.main_path.defaults import default_run
from imgbuild.audit.main_path.guards import IMPORT, Course, judge_guards
from imgbuild.audit.main_path.policy import MainPathEntry, MainPathPolicy
from imgbuild.audit.main_path.view import PackageSetView
from imgbuild.audit.names import classes
from imgbuild.audit.names.classes import class_ancestors
from imgbuild.audit.names.lookup import look_up
from imgbuild.audit.names.model import LookupResult, Modules
from imgbuild.audit.names.scopes import MAKERS, Scopes, find_meaning, module_scopes
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import Attribute, Call, Class, Function, Import, ModuleFacts
from imgbuild.system.syntax import is_within
from imgbuild.values import normalize_package


class Level(enum.IntEnum):
    """The certainty with which a scope runs. A lower level is more certain."""

    CERTAIN = 0  # all conditions on the path hold in this package set
    LIKELY = 1  # a method of an object that is constructed
    POSSIBLE = 2  # it depends on data
    REMOTE = 3  # a method without a known call, of an object that is constructed only in some cases
    DOUBTFUL = 4  # a condition on the package set is not understood, or exceptions are caught


Place = tuple[str, str]  # module and runner: "" for its top level, else a function's qualified name


class Reached(msgspec.Struct, frozen=True, array_like=True):
    """The entry point and the previous place from which the main path reaches a place.

    An `importing` place runs while the entry point is imported, before any call. `optional` means
    that the entry point may require packages that are not installed. `user` means that the entry
    point is user code, all of which is assumed to run.
    """

    level: Level
    entry: str
    via: Place | None = None
    importing: bool = False
    optional: bool = False
    user: bool = False


class MainPath:
    """The places that the entry points reach in a package set."""

    def __init__(
        self,
        places: dict[Place, Reached],
        corners: Iterable[str] = (),
        view: PackageSetView | None = None,
        called: Iterable[Place] = (),
        starts: Iterable[tuple[str, str]] = (),
        packages: frozenset[str] = frozenset(),
        default: Mapping[tuple[str, int], str] | None = None,
    ) -> None:
        """Start with the imports `starts`, which are pairs of a name and its entry point.

        `default` maps import statements (module and line) to an entry point. They run with the
        default configuration of this entry point.
        """
        self.default = dict(default or {})
        self.starts = tuple(starts)
        self.packages = packages
        self._view = view
        self._called = frozenset(called)
        self.places = places
        self._corners = frozenset(corners)

    def view(self, package_set: ImportablePackages) -> PackageSetView:
        """Return the view for which the path was computed.

        If it is not a view of `package_set`, return a new view.
        """
        if self._view is not None and self._view.is_of(package_set):
            return self._view
        return PackageSetView(package_set)

    def reached(self, module: str, runner: str) -> Reached | None:
        """Return how the main path reaches `runner` in `module`, or None if it does not."""
        return self.places.get((module, runner))

    def calls(self, module: str, runner: str) -> bool:
        """Return whether code or a user likely calls `runner` by name.

        Other methods are reached only because an object of the class is constructed.
        """
        how = self.places.get((module, runner))
        return how is not None and (how.via is None or (module, runner) in self._called)

    def modules(self) -> list[str]:
        """Return the names of all checked modules, including corners, sorted."""
        return sorted(self._corners.union(module for module, _ in self.places))

    def module_facts(self, modules: Modules) -> Iterator[ModuleFacts]:
        """Yield the facts about checked modules, if `modules` has them."""
        for module in self.modules():
            facts = modules.module(module)
            if isinstance(facts, ModuleFacts):
                yield facts


def main_path(
    package_set: ImportablePackages,
    rules: MainPathPolicy | None = None,
    corners: Iterable[str] = (),
) -> MainPath:
    """Follow the entry points of `rules` (default: the bundled policy) through `package_set`.

    The modules in `corners` are checked even if no entry point reaches them.
    """
    rules = rules or policy.load_policy()
    view = PackageSetView(package_set)
    walk = _PathWalk(view, rules)
    for entry in rules.entries:
        if _entry_applies(package_set, entry):
            walk.follow_entry(entry)
    starts = [
        (name, entry.name)
        for entry in rules.entries
        if not entry.optional and _entry_applies(package_set, entry, partial=package_set.partial)
        for name in (entry.name, *entry.also)
    ]
    packages = rules.walk | rules.imported
    return MainPath(walk.places, corners, view, walk.called, starts, packages, walk.default)


def _entry_applies(
    package_set: ImportablePackages, entry: MainPathEntry, *, partial: bool = False
) -> bool:
    """Return whether the package set contains the entry's package in one of the entry's versions.

    With `partial`, packages that are missing from the package set may be installed.
    """
    package = package_set.owner(entry.name.partition(".")[0])
    version = package_set.version(package) if package is not None else None
    if version is None:
        return False
    if not partial and not all(package_set.version(other) for other in entry.beside):
        return False
    return not entry.versions or is_within(version, entry.versions)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


class _BaseClasses:
    """Looks up the base classes of a class, which may call methods that the class overrides."""

    def __init__(self, bases: Iterable[LookupResult]) -> None:
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
        """Return whether a base class, or Python itself, may call a method with this name."""
        if name in self._methods or _is_private(name):
            return name in self._methods
        return self._unread or name.endswith("__") or name in self._others


class _PathWalk:
    def __init__(self, package_set: PackageSetView, rules: MainPathPolicy) -> None:
        self.package_set = package_set
        self.places: dict[Place, Reached] = {}
        self.called: set[Place] = set()
        self.default: dict[tuple[str, int], str] = {}
        self._walked = rules.walk | rules.imported
        self._imported = rules.imported
        self._owners: dict[str, str] = {}
        self._made: dict[Place, Level] = {}
        self._lookups: dict[tuple[str, str], LookupResult] = {}
        self._queue: list[Place] = []

    def follow_entry(self, entry: MainPathEntry) -> None:
        for name in (entry.name, *entry.also):
            how = Reached(Level.CERTAIN, entry.name, importing=True, optional=entry.optional)
            self._follow_start(name, how)
        run = default_run(self.package_set, entry.name)
        self.default |= dict.fromkeys(run.imports, entry.name)
        for place in sorted(run.functions):
            if self._is_walked(place[0]):
                self._mark_place(place, Reached(Level.CERTAIN, entry.name))
        while self._queue:
            batch, self._queue = self._queue, []
            self._prefetch_batch(batch)
            for place in batch:
                self._follow_place(place)

    def _prefetch_batch(self, batch: list[Place]) -> None:
        modules = sorted({module for module, _ in batch})
        self.package_set.prefetch(modules)
        targets: set[str] = set()
        for module in modules:
            facts = self.package_set.module(module)
            for line in facts.imports if isinstance(facts, ModuleFacts) else ():
                targets.update((line.module, f"{line.module}.{line.name}"))
        self.package_set.prefetch(sorted(filter(self._is_walked, targets)))

    def _follow_start(self, name: str, how: Reached) -> None:
        entry_facts = self.package_set.module(name)
        if isinstance(entry_facts, ModuleFacts):
            self._follow_module(name, how)
            return
        module, _, rest = name.rpartition(".")
        while module and self.package_set.module(module) is None:
            module = module.rpartition(".")[0]
            rest = name.removeprefix(module + ".")
        facts = self.package_set.module(module) if module else None
        if isinstance(facts, ModuleFacts):
            self._follow_module(module, how)
            called = msgspec.structs.replace(how, importing=False)
            self._follow_definition(
                classes.resolve_expression(self.package_set, facts, rest), called
            )

    # -- marking places

    def _mark_place(self, place: Place, how: Reached) -> None:
        if self._module_owner(place[0]) in self._imported and not (
            how.importing and how.level is Level.CERTAIN
        ):
            return
        previous = self.places.get(place)
        if previous is None or how.level < previous.level:
            self.places[place] = how
            self._queue.append(place)

    def _follow_module(self, name: str, how: Reached) -> None:
        at = ""
        for part in name.split("."):
            at = f"{at}.{part}" if at else part
            if self._is_walked(at):
                self._mark_place((at, ""), how)

    def _is_walked(self, module: str) -> bool:
        return self._module_owner(module) in self._walked

    def _module_owner(self, module: str) -> str:
        if module not in self._owners:
            self._owners[module] = normalize_package(self.package_set.owner(module) or "")
        return self._owners[module]

    def _follow_definition(self, lookup_result: LookupResult, how: Reached) -> None:
        if lookup_result.ambiguous:
            how = msgspec.structs.replace(how, level=Level.DOUBTFUL)
        through = msgspec.structs.replace(how, level=Level.DOUBTFUL) if lookup_result.tried else how
        for step in lookup_result.trace:
            self._follow_module(step.partition(":")[0].lstrip("*"), through)
        lookup_result = classes.follow_assignment(self.package_set, lookup_result)
        home, definition = lookup_result.home, lookup_result.definition
        if home is None or not self._is_walked(home.module):
            return
        self._follow_module(home.module, through)
        if isinstance(definition, Class):
            self._follow_construction(lookup_result, how)
        elif isinstance(definition, Function):
            place = (home.module, definition.name)
            if how.level <= Level.LIKELY:
                self.called.add(place)
            self._mark_place(place, how)

    def _follow_construction(self, lookup_result: LookupResult, how: Reached) -> None:
        """Follow the construction of an object, whose own and inherited methods may be called.

        A private method is called only by its own class, which is followed, unless the method
        overrides a method of a base class. If an object is constructed only in some cases, its
        public methods are remote until a call by name is found. Methods that a base class or Python
        itself may call are not remote.
        """
        chain = class_ancestors(self.package_set, lookup_result)
        for at, ancestor in enumerate(chain):
            home, definition = ancestor.home, ancestor.definition
            if home is None or not isinstance(definition, Class):
                continue
            place = (home.module, definition.name)
            if not self._is_walked(home.module) or self._made.get(place, 9) <= how.level:
                continue
            self._made[place] = how.level
            self._follow_module(home.module, how)
            later = msgspec.structs.replace(how, level=max(how.level, Level.LIKELY))
            remote = msgspec.structs.replace(how, level=max(how.level, Level.REMOTE))
            above = _BaseClasses(chain[at + 1 :])
            for method in module_scopes(home).class_methods(definition.name):
                name = method.rpartition(".")[2]
                if name in MAKERS:
                    self._mark_place((home.module, method), how)
                elif above.may_call(name) or (how.level <= Level.LIKELY and not _is_private(name)):
                    self._mark_place((home.module, method), later)
                elif not _is_private(name):
                    self._mark_place((home.module, method), remote)

    # -- following the effects of a place

    def _follow_place(self, place: Place) -> None:
        module, runner = place
        facts = self.package_set.module(module)
        if not isinstance(facts, ModuleFacts):
            return
        how = msgspec.structs.replace(self.places[place], via=place)
        here = module_scopes(facts)
        for name in here.scopes_run_by(runner):
            for line in here.imports.get(name, ()):
                self._follow_import(line, how)
            for fact in (*here.calls.get(name, ()), *here.attributes.get(name, ())):
                self._follow_use(facts, fact, how)
        self._follow_decorators(facts, here, runner, how)

    def _guarded_level(self, course: Course, how: Reached, *errors: str) -> Reached:
        level, runner = how.level, how.via[1] if how.via is not None else ""
        if course.catches_error(*errors) or not course.is_understood(runner):
            level = Level.DOUBTFUL
        elif not course.certain:
            level = max(level, Level.POSSIBLE)
        return msgspec.structs.replace(how, level=level)

    def _follow_import(self, line: Import, how: Reached) -> None:
        course = judge_guards(self.package_set, line.guards)
        if not course.runs:
            return
        beyond = self._guarded_level(course, how, *IMPORT)
        if how.via is not None and (how.via[0], line.line) in self.default:
            beyond = how
        self._follow_module(line.module, beyond)
        if not line.name or line.name == "*" or not self._is_walked(line.module):
            return
        lookup_result = self._look_up(line.module, line.name)
        if isinstance(lookup_result.definition, ModuleFacts) and not lookup_result.ambiguous:
            self._follow_module(lookup_result.definition.module, beyond)
        # An object imported on first use may be a dummy if one of its dependencies is missing.
        least = Level.DOUBTFUL if lookup_result.ambiguous else Level.POSSIBLE
        later = msgspec.structs.replace(beyond, level=max(beyond.level, least))
        for step in lookup_result.trace:
            self._follow_module(step.partition(":")[0].lstrip("*"), later)

    def _look_up(self, module: str, name: str) -> LookupResult:
        if (module, name) not in self._lookups:
            self._lookups[module, name] = look_up(self.package_set, module, name)
        return self._lookups[module, name]

    def _follow_use(self, facts: ModuleFacts, fact: Call | Attribute, how: Reached) -> None:
        course = judge_guards(self.package_set, fact.guards)
        if not course.runs:
            return
        beyond = self._guarded_level(course, how, *IMPORT)
        if isinstance(fact, Attribute):
            beyond = msgspec.structs.replace(beyond, level=max(beyond.level, Level.POSSIBLE))
        self._follow_definition(find_meaning(self.package_set, facts, fact).found, beyond)

    def _follow_decorators(
        self, facts: ModuleFacts, here: Scopes, runner: str, how: Reached
    ) -> None:
        if runner:
            return
        decorated: Iterable[Function | Class] = (*facts.functions, *facts.classes)
        for definition in decorated:
            if here.scope_runner(definition.name.rpartition(".")[0]):
                continue
            for text in definition.decorators:
                name = text.partition("(")[0]
                if name.replace(".", "").isidentifier():
                    self._follow_definition(
                        classes.resolve_expression(self.package_set, facts, name), how
                    )
