"""Groups the facts about a module by scope, and finds the definitions of expressions.

Determines which statements run when the module is imported or one of its functions is called, and
the definitions of expressions such as "super().__init__" and "self.llm.generate".
"""

from __future__ import annotations

import itertools
from typing import TypeVar
from weakref import WeakKeyDictionary

import msgspec

from imgbuild.audit.names import classes, receivers
from imgbuild.audit.names.model import LookupResult, Modules
from imgbuild.audit.source.facts import Attribute, Call, Class, Function, Import, ModuleFacts

Fact = TypeVar("Fact", Import, Call, Attribute)
_MOST_SCOPES = 8192
UNKNOWN_RESULT = LookupResult(state="unknown")
MAKERS = ("__init__", "__new__", "__post_init__")  # methods that constructing an object calls


class Scopes:
    """The facts about a module, grouped by scope."""

    def __init__(self, facts: ModuleFacts) -> None:
        self.facts = facts
        self.classes = {definition.name: definition for definition in facts.classes}
        self.functions: dict[str, list[Function]] = {}
        for function in facts.functions:
            self.functions.setdefault(function.name, []).append(function)
        self.imports = _sort_by_scope(facts.imports)
        self.calls = _sort_by_scope(facts.calls)
        self.attributes = _sort_by_scope(facts.attributes)
        self._runners: dict[str, str] = {}
        self._names = sorted({*self.imports, *self.calls, *self.attributes})

    def scope_runner(self, scope: str) -> str:
        """Return the function that runs the statements of `scope`, or "" if the import does.

        A class body runs with the enclosing scope. Nested functions are assumed to be called.
        """
        if scope not in self._runners:
            names = itertools.accumulate(scope.split("."), "{}.{}".format) if scope else ()
            runner = next((name for name in names if name not in self.classes), "")
            self._runners[scope] = runner
        return self._runners[scope]

    def scopes_run_by(self, runner: str) -> list[str]:
        """Return the scopes whose statements run when `runner` is called, or at import ("")."""
        if not runner:
            return [name for name in self._names if not self.scope_runner(name)]
        prefix = runner + "."
        return [name for name in self._names if name == runner or name.startswith(prefix)]

    def class_methods(self, owner: str) -> list[str]:
        """Return the qualified names of a class's functions."""
        prefix = owner + "."
        return [
            name
            for name in self.functions
            if name.startswith(prefix) and "." not in name.removeprefix(prefix)
        ]

    def is_method(self, runner: str) -> bool:
        """Return whether `runner` is a method that the construction of an object does not call."""
        owner, _, name = runner.rpartition(".")
        return owner in self.classes and name not in MAKERS

    def class_around(self, scope: str) -> Class | None:
        """Return the innermost class whose body contains `scope`."""
        while scope:
            if scope in self.classes:
                return self.classes[scope]
            scope = scope.rpartition(".")[0]
        return None


def _sort_by_scope(facts: tuple[Fact, ...]) -> dict[str, list[Fact]]:
    table: dict[str, list[Fact]] = {}
    for fact in facts:
        table.setdefault(fact.scope, []).append(fact)
    return table


# By the identity of facts, which their scopes keep alive: their content is slow to hash.
_scopes: dict[int, Scopes] = {}


def module_scopes(facts: ModuleFacts) -> Scopes:
    """Return the cached scopes of a module."""
    found = _scopes.get(id(facts))
    if found is None:
        if len(_scopes) >= _MOST_SCOPES:
            del _scopes[next(iter(_scopes))]
        found = _scopes[id(facts)] = Scopes(facts)
    return found


class Meaning(msgspec.Struct, frozen=True):
    """The meaning of a call or read: the definition `found`, as member `name` of `holder`.

    `holder` is a class or module. `path` is the path under which the reading module imports the
    object ("vllm.SamplingParams"), or "". With `bound`, the holder is the class of an object.
    """

    found: LookupResult = UNKNOWN_RESULT
    holder: LookupResult | None = None
    name: str = ""
    path: str = ""
    bound: bool = False


def find_meaning(modules: Modules, facts: ModuleFacts, fact: Call | Attribute) -> Meaning:
    """Return the definition to which a call or attribute refers."""
    expression = fact.callee if isinstance(fact, Call) else fact.expression
    first, _, rest = expression.partition(".")
    if first == "super()":
        return _member(modules, _base(modules, facts, fact.scope), rest)
    if fact.receiver:
        holder = _receiver(modules, facts, fact.receiver, fact.scope)
        called = isinstance(fact, Call)
        return _member(modules, holder, expression.rpartition(".")[2], called=called)
    if first in ("self", "cls"):
        around = _enclosing_class(facts, fact.scope)
        called = isinstance(fact, Call)
        return _member(modules, around, rest, called=called) if rest else Meaning(found=around)
    lookup_result = _first_part(modules, facts, first, fact.scope)
    bound = False
    if rest and fact.scope:  # the function PROGRAM knows the types of names in its statements
        assigned, lookup_result = lookup_result, receivers.assigned_object(modules, lookup_result)
        bound = lookup_result is not assigned
    step = Meaning(found=lookup_result, path=import_path(lookup_result))
    parts = rest.split(".") if rest else []
    for at, part in enumerate(parts, 1):
        if step.found.state != "defined":
            break
        called = at == len(parts) and isinstance(fact, Call)
        step = _member(modules, step.found, part, called=called)
        if bound:
            step = msgspec.structs.replace(step, bound=True)
    return step


def find_alternatives(
    modules: Modules, facts: ModuleFacts, fact: Call | Attribute
) -> list[Meaning]:
    """Return the definitions for each possible class of a receiver, or [] for a single class."""
    if not fact.receiver.endswith("()"):
        return []
    expression = fact.callee if isinstance(fact, Call) else fact.expression
    holders = receivers.receiver_classes(modules, facts, fact.receiver, scope=fact.scope)
    name, called = expression.rpartition(".")[2], isinstance(fact, Call)
    return [_member(modules, holder, name, called=called) for holder in holders]


# Package set → results of its expressions. The modules of a package set never change.
_cached_meanings: WeakKeyDictionary[Modules, dict[tuple[object, ...], LookupResult]] = (
    WeakKeyDictionary()
)


def _first_part(modules: Modules, facts: ModuleFacts, name: str, scope: str) -> LookupResult:
    memory = _cached_meanings.setdefault(modules, {})
    key = (facts.module, name, scope)
    if key not in memory:
        memory[key] = classes.resolve_expression(modules, facts, name, scope=scope)
    return memory[key]


def _receiver(modules: Modules, facts: ModuleFacts, receiver: str, scope: str) -> LookupResult:
    memory = _cached_meanings.setdefault(modules, {})
    key = (facts.module, receiver, scope, "class")
    if key not in memory:
        memory[key] = receivers.receiver_class(modules, facts, receiver, scope=scope)
    return memory[key]


def _member(modules: Modules, holder: LookupResult, name: str, *, called: bool = False) -> Meaning:
    if holder.state != "defined" or "." in name:
        return Meaning()
    lookup_result = classes.find_member(modules, holder, name, called=called)
    prefix = import_path(holder)
    if not holder.trace and lookup_result.owner is not None and lookup_result.home is not None:
        prefix = (
            f"{lookup_result.home.module}.{lookup_result.owner.name}"  # what a class here inherits
        )
    return Meaning(found=lookup_result, holder=holder, name=name, path=f"{prefix}.{name}")


def import_path(lookup_result: LookupResult) -> str:
    """Return the dotted path under which a module imports the definition."""
    if isinstance(lookup_result.definition, ModuleFacts):
        return lookup_result.definition.module
    if lookup_result.trace:
        return lookup_result.trace[0].lstrip("*").replace(":", ".")
    if lookup_result.home is not None and lookup_result.definition is not None:
        return f"{lookup_result.home.module}.{lookup_result.definition.name}"
    return ""


def _enclosing_class(facts: ModuleFacts, scope: str) -> LookupResult:
    around = module_scopes(facts).class_around(scope)
    return (
        UNKNOWN_RESULT
        if around is None
        else LookupResult(state="defined", definition=around, home=facts)
    )


def _base(modules: Modules, facts: ModuleFacts, scope: str) -> LookupResult:
    """Return the class to which super() refers.

    It is known only if the enclosing class has exactly one base.
    """
    around = module_scopes(facts).class_around(scope)
    if around is None or len(around.bases) != 1:
        return UNKNOWN_RESULT
    outer = around.name.rpartition(".")[0]
    return classes.resolve_expression(modules, facts, around.bases[0], scope=outer)
