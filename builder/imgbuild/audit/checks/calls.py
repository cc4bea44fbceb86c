"""The check `calls`: arguments and attributes that other packages do not know.

Input: a world and its main path. Output: findings: keywords that a callable of another package
does not take, arguments that it misses, names and attributes that are read and not there, names
that are registered twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from imgbuild.audit.checks.findings import finding, ordered, place_of
from imgbuild.audit.main_path import registries
from imgbuild.audit.main_path.closure import Level, MainPath, Reached
from imgbuild.audit.main_path.guards import ATTRIBUTE, TYPE, VALUE, Course, judge
from imgbuild.audit.main_path.policy import Policy, load
from imgbuild.audit.names import search
from imgbuild.audit.names.scopes import Meaning, meaning, scopes
from imgbuild.audit.names.search import Signature
from imgbuild.audit.packages.views import Surroundings
from imgbuild.audit.source.facts import Attribute, Call, Class, ModuleFacts
from imgbuild.report import Finding, Relation
from imgbuild.values import normalize

CHECK = "calls"
Problem = tuple[Relation, str, str]  # what is wrong, the evidence's subject, the text
_CATCHERS = {
    Relation.KEYWORD: TYPE,
    Relation.ARGUMENT: TYPE,
    Relation.REGISTERED: VALUE,
    Relation.NAME: ATTRIBUTE,
    Relation.ATTRIBUTE: ATTRIBUTE,
}


def check(world: Surroundings, path: MainPath, rules: Policy | None = None) -> list[Finding]:
    """All calls and reads across packages that fail in this world."""
    rules = rules or load()
    world = path.view(world)
    found: list[Finding] = []
    for module in path.modules():
        facts = world.module(module)
        if isinstance(facts, ModuleFacts):
            found.extend(_Reader(world, path, rules, facts).findings())
    return ordered(found)


class _Reader:
    """One module's calls and reads."""

    def __init__(
        self, world: Surroundings, path: MainPath, rules: Policy, facts: ModuleFacts
    ) -> None:
        self.world = world
        self.path = path
        self.rules = rules
        self.facts = facts
        self.package = world.owner(facts.module)

    def findings(self) -> Iterator[Finding]:
        """What is wrong in this module."""
        here = scopes(self.facts)
        facts: tuple[Call | Attribute, ...] = (*self.facts.calls, *self.facts.attributes)
        for fact in facts:
            course = judge(self.world, fact.guards)
            if not course.runs:
                continue
            what = meaning(self.world, self.facts, fact)
            other = self._other(what)
            if other is None:
                continue
            how = self.path.reached(self.facts.module, here.runner(fact.scope))
            for problem in self._problems(fact, what, other, course):
                one = self._finding(fact, other, problem, how, course)
                if one is not None:
                    yield one

    def _other(self, what: Meaning) -> str | None:
        """The walked package that is used; None if it is this module's own, or not walked."""
        home = what.found.home or (what.holder.home if what.holder is not None else None)
        if home is None:
            return None
        owner = self.world.owner(home.module)
        if owner is None or owner == self.package or normalize(owner) not in self.rules.walk:
            return None
        return owner

    def _problems(
        self, fact: Call | Attribute, what: Meaning, other: str, course: Course
    ) -> Iterator[Problem]:
        version = f"{other} {self.world.version(other)}"
        if what.found.state == "absent":
            if not _asked(fact, course):
                yield _absent(what, version)
        elif isinstance(fact, Call) and what.found.state == "defined":
            signature = search.signature(self.world, what.found, bound=_bound(fact, what))
            if signature is not None:
                yield from _arguments(fact, what, signature, version)
            taken = registries.taken(self.world, self.rules, fact, what)
            if taken is not None:
                text = f"registers {taken!r} with {what.path}, where {version} has it already"
                yield Relation.REGISTERED, f"{what.path}({taken})", text

    def _finding(
        self,
        fact: Call | Attribute,
        other: str,
        problem: Problem,
        how: Reached | None,
        course: Course,
    ) -> Finding | None:
        relation, subject, text = problem
        place = place_of(self.world, self.facts, fact.line, how.entry if how else "")
        if place is None:
            return None
        error = (
            how is not None
            and how.level < Level.REMOTE
            and course.clear
            and not course.catches(*_CATCHERS[relation])
        )
        return finding(
            self.world,
            CHECK,
            place,
            relation=relation,
            other=other,
            subject=subject,
            text=text,
            error=error,
        )


def _asked(fact: Call | Attribute, course: Course) -> bool:
    """Whether hasattr made sure of what is read."""
    expression = fact.callee if isinstance(fact, Call) else fact.expression
    return any(expression == asked or expression.startswith(asked + ".") for asked in course.asked)


def _absent(what: Meaning, version: str) -> Problem:
    """A name that a module, or an attribute that a class, does not have."""
    holder = what.holder.definition if what.holder is not None else None
    if isinstance(holder, ModuleFacts):
        text = f"uses {holder.module}.{what.name}, which {version} does not have"
        return Relation.NAME, f"{holder.module}:{what.name}", text
    if isinstance(holder, Class):
        text = f"uses {what.path}, an attribute that the class of {version} does not have"
        return Relation.ATTRIBUTE, what.path, text
    module, _, name = what.path.rpartition(".")
    return Relation.NAME, f"{module}:{name}", f"uses {what.path}, which {version} does not have"


def _bound(fact: Call, what: Meaning) -> bool:
    """Whether self is passed by Python: not for `Class.method(…)`."""
    if fact.receiver or fact.callee.startswith(("super().", "self.")):
        return True
    return what.holder is None or not isinstance(what.holder.definition, Class)


def _arguments(call: Call, what: Meaning, signature: Signature, version: str) -> Iterator[Problem]:
    """Keywords that are not taken, and positional arguments too few or too many."""
    for keyword in call.keywords:
        if not signature.takes(keyword):
            text = f"passes {keyword}= to {what.path}, which {version} does not take"
            yield Relation.KEYWORD, f"{what.path}({keyword})", text
    places = [one for one in signature.parameters if one.kind != "keyword"]
    if call.star:
        return
    if call.positional > len(places) and not signature.varargs:
        text = f"passes {call.positional} arguments to {what.path}; {version} takes {len(places)}"
        yield Relation.ARGUMENT, f"{what.path}({len(places)})", text
    if call.double_star:
        return
    given = {one.name for one in places[: call.positional]} | set(call.keywords)
    for one in signature.parameters:
        if not one.default and one.name not in given:
            text = f"calls {what.path} without {one.name}, which {version} asks for"
            yield Relation.ARGUMENT, f"{what.path}({one.name})", text
