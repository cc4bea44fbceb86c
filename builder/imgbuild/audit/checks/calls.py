"""Finds calls and attribute reads that fail with the installed packages or Python.

Reports keywords that a callable of another package does not accept, missing arguments, reads of
names and attributes that do not exist, and duplicate registrations of a name. For the standard
library, reports names that this Python does not have and classes that are not subscriptable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

import msgspec

from imgbuild.audit.checks import standard, values
from imgbuild.audit.checks.findings import create_finding, finding_place, sort_findings
from imgbuild.audit.main_path import registries
from imgbuild.audit.main_path.closure import Level, MainPath, Reached
from imgbuild.audit.main_path.guards import (
    ATTRIBUTE,
    OTHER_DEVICES,
    TYPE,
    VALUE,
    Course,
    judge_guards,
)
from imgbuild.audit.main_path.policy import MainPathPolicy, load_policy
from imgbuild.audit.names import classes, signatures
from imgbuild.audit.names.model import CallSignature, LookupResult, module_sources
from imgbuild.audit.names.scopes import (
    Meaning,
    find_alternatives,
    find_meaning,
    import_path,
    module_scopes,
)
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import Attribute, Call, CallValues, Class, Function, ModuleFacts
from imgbuild.audit.source.stdlib import SUBSCRIPT
from imgbuild.report import ConflictRelation, Finding
from imgbuild.system.amounts import format_count
from imgbuild.values import normalize_package

CHECK = "calls"
Problem = tuple[ConflictRelation, str, str]  # relation, subject of the evidence, text
# Problems that are the same in several classes.
_SHARED_RELATIONS = frozenset((ConflictRelation.KEYWORD, ConflictRelation.ATTRIBUTE))
_SKIPPED_COURSE = Course(runs=False)
# Problems that a test with hasattr avoids.
_TESTED_RELATIONS = frozenset(
    (ConflictRelation.NAME, ConflictRelation.ATTRIBUTE, ConflictRelation.SUBSCRIPT)
)
_CATCHING_ERRORS = {
    ConflictRelation.KEYWORD: TYPE,
    ConflictRelation.ARGUMENT: TYPE,
    ConflictRelation.SUBSCRIPT: TYPE,
    ConflictRelation.REGISTERED: VALUE,
    ConflictRelation.RESULT: VALUE,
    ConflictRelation.VALUE: VALUE,
    ConflictRelation.ANNOTATION: VALUE,
    ConflictRelation.NAME: ATTRIBUTE,
    ConflictRelation.ATTRIBUTE: ATTRIBUTE,
}


def check_calls(
    package_set: ImportablePackages, path: MainPath, rules: MainPathPolicy | None = None
) -> list[Finding]:
    """Return findings for calls and reads that fail with the installed packages or Python."""
    rules = rules or load_policy()
    package_set = path.view(package_set)
    findings: list[Finding] = []
    for facts in path.module_facts(package_set):
        findings.extend(_ModuleCalls(package_set, path, rules, facts).findings())
    return sort_findings(findings)


class _ModuleCalls:
    def __init__(
        self,
        package_set: ImportablePackages,
        path: MainPath,
        rules: MainPathPolicy,
        facts: ModuleFacts,
    ) -> None:
        self.package_set = package_set
        self.path = path
        self.rules = rules
        self.facts = facts
        self.package = package_set.owner(facts.module)

    def findings(self) -> Iterator[Finding]:
        here = module_scopes(self.facts)
        noted = normalize_package(self.package or "") in self.rules.walk
        facts: tuple[Call | Attribute, ...] = (*self.facts.calls, *self.facts.attributes)
        for fact in facts:
            how = self.path.reached(self.facts.module, here.scope_runner(fact.scope))
            if (how is None and not noted) or _is_for_other_device(fact):
                continue
            # Most have no problem, and conditions are slow to evaluate.
            problems = (*self._python_problems(fact), *self._problems(fact))
            course = judge_guards(self.package_set, fact.guards) if problems else _SKIPPED_COURSE
            if not course.runs or any(
                self._is_absent(fact.scope, expression) for expression in course.asked
            ):
                continue
            for other, problem in problems:
                if problem[0] in _TESTED_RELATIONS and _is_tested(fact, course):
                    continue
                finding = self._finding(fact, other, problem, how, course)
                if finding is not None:
                    yield finding

    @cached_property
    def _values(self) -> dict[tuple[int, str, str], list[CallValues]]:
        places: dict[tuple[int, str, str], list[CallValues]] = {}
        for each in self.facts.values:
            places.setdefault((each.line, each.callee, each.scope), []).append(each)
        return places

    @cached_property
    def _reads(self) -> dict[tuple[str, str], Attribute]:
        return {
            (attribute.scope, attribute.expression): attribute
            for attribute in self.facts.attributes
        }

    def _is_absent(self, scope: str, expression: str) -> bool:
        """Return whether `hasattr` is False for the expression.

        Only names of the standard library and of packages are evaluated.
        """
        attribute = Attribute(0, expression, scope=scope)
        if standard.missing_stdlib_name(self.package_set, self.facts, attribute) is not None:
            return True
        read = self._reads.get((scope, expression))
        return read is not None and (
            find_meaning(self.package_set, self.facts, read).found.state == "absent"
        )

    def _other_package(self, what: Meaning) -> str | None:
        """Return the package to which a reference refers, or None if it is the same package.

        For packages whose code is not followed, only names missing from modules are reported.
        """
        home = what.found.home or (what.holder.home if what.holder is not None else None)
        if home is None:
            return None
        owner = self.package_set.owner(home.module)
        if owner is None or owner == self.package:
            return None
        return (
            owner
            if normalize_package(owner) in self.rules.walk or _is_missing_from_module(what)
            else None
        )

    def _python_problems(self, fact: Call | Attribute) -> Iterator[tuple[str, Problem]]:
        """Yield the problem of a name missing in Python, unless the package may assign the name."""
        missing = standard.missing_stdlib_name(self.package_set, self.facts, fact)
        if missing is None:
            return
        module, name = missing
        python, path = f"Python {self.package_set.python}", f"{module}.{name}"
        if path.endswith(SUBSCRIPT):
            path = path.removesuffix(SUBSCRIPT)
            text = f"subscripts {path}, which is not subscriptable in {python}"
            yield "", (ConflictRelation.SUBSCRIPT, path, text)
        elif not standard.is_assigned(self.package_set, self.facts, module, name):
            text = f"uses {path}, which {python} does not have"
            yield "", (ConflictRelation.NAME, f"{module}:{name}", text)

    def _problems(self, fact: Call | Attribute) -> Iterator[tuple[str, Problem]]:
        """Yield the other package and the problem, for each name or argument that it lacks."""
        what = find_meaning(self.package_set, self.facts, fact)
        other = self._other_package(what)
        if other is not None:
            for problem in self._package_problems(fact, what, other):
                yield other, problem
        elif what.found.state == "absent":
            yield from self._inherited_problems(what)
        elif isinstance(fact, Call) and what.found.state == "defined" and fact.keywords:
            yield from self._passed_keyword_problems(fact, what)
        elif isinstance(fact, Call) and what.found.state == "unknown" and self._is_user(fact):
            yield from self._problems_in_all_classes(fact)

    def _inherited_problems(self, what: Meaning) -> Iterator[tuple[str, Problem]]:
        """Yield the member that a release removed from a package's class that the user inherits."""
        sources, holder = module_sources(self.package_set), what.holder
        if sources is None or holder is None or not isinstance(holder.definition, Class):
            return
        chain = classes.class_ancestors(self.package_set, holder)
        for base in chain:
            other = self.package_set.owner(base.home.module) if base.home is not None else None
            if other is None or other == self.package:
                continue
            if sources.is_removed(chain, what.name):
                path = f"{import_path(base)}.{what.name}"
                inherited = msgspec.structs.replace(what, holder=base, path=path)
                version = f"{other} {self.package_set.version(other)}"
                if not _is_in_subclass(self.package_set, holder, what.name):
                    yield other, _absence_problem(inherited, version)
            return

    def _is_user(self, fact: Call) -> bool:
        how = self.path.reached(
            self.facts.module, module_scopes(self.facts).scope_runner(fact.scope)
        )
        return how is not None and how.user

    def _problems_in_all_classes(self, fact: Call) -> Iterator[tuple[str, Problem]]:
        """Yield the problems of a method in every possible class of the receiver.

        These are keywords that it rejects, and a method that is missing.
        """
        each_has: list[list[tuple[str, Problem]]] = []
        alternatives = find_alternatives(self.package_set, self.facts, fact)
        is_former = any(self._is_former(what) for what in alternatives)
        for what in alternatives:
            other = self._other_package(what)
            if is_former and other is not None and what.found.state != "defined":
                problems = (
                    self._package_problems(fact, what, other) if self._is_former(what) else ()
                )
                each_has += [[(other, each)] for each in problems]
                continue
            if other is None or what.found.state == "unknown":
                return
            problems = self._package_problems(fact, what, other)
            each_has.append([(other, each) for each in problems if each[0] in _SHARED_RELATIONS])
        for other, problem in each_has[0] if each_has else ():
            name = _last_name(problem)
            if all(any(_last_name(each) == name for _, each in more) for more in each_has):
                yield other, problem

    def _is_former(self, what: Meaning) -> bool:
        """Whether a table says that a class does not have a method any more."""
        sources, holder = module_sources(self.package_set), what.holder
        if sources is None or holder is None or what.found.state != "absent":
            return False
        return sources.is_former(classes.class_ancestors(self.package_set, holder), what.name)

    def _passed_keyword_problems(self, fact: Call, what: Meaning) -> Iterator[tuple[str, Problem]]:
        """Yield the keywords that a user's code forwards to a callable that lacks them."""
        if not self._is_user(fact):
            return
        received = signatures.keyword_receiver(self.package_set, what.found, self.package_set.owner)
        home = received.home if received is not None else None
        other = self.package_set.owner(home.module) if home is not None else None
        signature = signatures.find_signature(self.package_set, what.found, bound=True)
        if received is None or other is None or signature is None:
            return
        called = Meaning(found=received, path=import_path(received))
        version = f"{other} {self.package_set.version(other)}"
        for problem in _arguments(fact, called, signature, version):
            if problem[0] is ConflictRelation.KEYWORD:
                yield other, problem

    def _package_problems(
        self, fact: Call | Attribute, what: Meaning, other: str
    ) -> Iterator[Problem]:
        version = f"{other} {self.package_set.version(other)}"
        if what.found.state == "absent":
            yield _absence_problem(what, version)
        elif isinstance(fact, Call) and what.found.state == "defined":
            bound = _is_bound(self.package_set, fact, what)
            signature = signatures.find_signature(self.package_set, what.found, bound=bound)
            problems = [] if signature is None else list(_arguments(fact, what, signature, version))
            for each in self._values.get((fact.line, fact.callee, fact.scope), ()):
                if signature is not None:
                    problems += values.check_values(self.package_set, each, what, version)
            if problems and not _is_overridden(self.package_set, what):
                yield from problems
            taken = registries.registered_name(self.package_set, self.rules, fact, what)
            if taken is not None:
                text = f"registers {taken!r} with {what.path}, but {version} already registers it"
                yield ConflictRelation.REGISTERED, f"{what.path}({taken})", text

    def _finding(
        self,
        fact: Call | Attribute,
        other: str,
        problem: Problem,
        how: Reached | None,
        course: Course,
    ) -> Finding | None:
        relation, subject, text = problem
        place = finding_place(self.package_set, self.facts, fact.line, how.entry if how else "")
        if place is None:
            return None
        error = (
            how is not None
            and how.level < Level.REMOTE
            and course.is_understood(module_scopes(self.facts).scope_runner(fact.scope))
            and not course.catches_error(*_CATCHING_ERRORS[relation])
        )
        return create_finding(
            self.package_set,
            CHECK,
            place,
            relation=relation,
            other=other,
            subject=subject,
            text=text,
            error=error,
        )


def _is_for_other_device(fact: Call | Attribute) -> bool:
    """Return whether a name is for a device other than an NVIDIA GPU: `torch.xpu.empty_cache`."""
    expression = fact.callee if isinstance(fact, Call) else fact.expression
    return not OTHER_DEVICES.isdisjoint(expression.split("."))


def _last_name(problem: Problem) -> tuple[ConflictRelation, str]:
    """Return the relation of a problem, and the name of the keyword or member."""
    return problem[0], re.split(r"[.(]", problem[1].removesuffix(")"))[-1]


def _is_missing_from_module(what: Meaning) -> bool:
    holder = what.holder.definition if what.holder is not None else None
    return what.found.state == "absent" and isinstance(holder, ModuleFacts)


def _is_tested(fact: Call | Attribute, course: Course) -> bool:
    expression = fact.callee if isinstance(fact, Call) else fact.expression
    return any(
        expression == tested or expression.startswith(tested + ".") for tested in course.asked
    )


def _absence_problem(what: Meaning, version: str) -> Problem:
    holder = what.holder.definition if what.holder is not None else None
    if isinstance(holder, ModuleFacts):
        text = f"uses {holder.module}.{what.name}, which {version} does not have"
        return ConflictRelation.NAME, f"{holder.module}:{what.name}", text
    if isinstance(holder, Class):
        text = f"uses {what.path}, but its class in {version} does not have this attribute"
        return ConflictRelation.ATTRIBUTE, what.path, text
    module, _, name = what.path.rpartition(".")
    return (
        ConflictRelation.NAME,
        f"{module}:{name}",
        f"uses {what.path}, which {version} does not have",
    )


def _is_bound(package_set: ImportablePackages, fact: Call, what: Meaning) -> bool:
    """Return whether self is passed implicitly, unlike in `Class.method(…)`."""
    if (
        what.holder is None
        or what.bound
        or fact.receiver
        or fact.callee.startswith(("super().", "self."))
    ):
        return True
    return not isinstance(classes.follow_assignment(package_set, what.holder).definition, Class)


def _is_overridden(package_set: ImportablePackages, what: Meaning) -> bool:
    holder, method = what.holder, what.found.definition
    if holder is None or holder.exact or holder.home is None or not isinstance(method, Function):
        return False
    if any("abstractmethod" in decorator for decorator in method.decorators):
        return True
    return _is_in_subclass(package_set, holder, what.name)


def _is_in_subclass(package_set: ImportablePackages, holder: LookupResult, name: str) -> bool:
    """Return whether a class with the base `holder` defines a member."""
    if holder.home is None:
        return False
    owner = getattr(holder.definition, "name", "")
    package = holder.home.module.partition(".")[0]
    for module in (holder.home.module, *package_set.mentioning(package, name)):
        facts = package_set.module(module)
        for definition in facts.classes if isinstance(facts, ModuleFacts) else ():
            bases = [base.partition("[")[0].rpartition(".")[2] for base in definition.bases]
            if owner in bases and (name in definition.methods or name in definition.attributes):
                return True
    return False


def _arguments(
    call: Call, what: Meaning, signature: CallSignature, version: str
) -> Iterator[Problem]:
    """Yield the problems of a call: rejected keywords, too few or too many positional arguments."""
    for keyword in call.keywords:
        if not signature.accepts_keyword(keyword):
            text = f"passes {keyword}= to {what.path}, which {version} does not accept"
            yield ConflictRelation.KEYWORD, f"{what.path}({keyword})", text
    places = [parameter for parameter in signature.parameters if parameter.kind != "keyword"]
    if call.star:
        return
    if call.positional > len(places) and not signature.varargs:
        passed = format_count(call.positional, "argument")
        text = f"passes {passed} to {what.path}; {version} accepts {len(places)}"
        yield ConflictRelation.ARGUMENT, f"{what.path}({len(places)})", text
    if call.double_star:
        return
    given = {parameter.name for parameter in places[: call.positional]} | set(call.keywords)
    lacking = [
        parameter.name
        for parameter in signature.parameters
        if not parameter.default and parameter.name not in given
    ]
    if lacking:
        text = f"calls {what.path} without {', '.join(lacking)}, which {version} requires"
        yield ConflictRelation.ARGUMENT, f"{what.path}({lacking[0]})", text
