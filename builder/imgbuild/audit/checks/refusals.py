"""Code that raises while a module is imported, for what is installed or absent.

Statements, calls and decorators are evaluated with the arguments that they are given. A refusal is
found only if every way through the code ends in an exception that it raises itself.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import msgspec

from imgbuild.audit.checks.findings import FindingPlace, place_of
from imgbuild.audit.main_path.answers import evaluator
from imgbuild.audit.main_path.closure import Level, MainPath
from imgbuild.audit.main_path.evaluation import PART, Evaluation, Evaluator
from imgbuild.audit.main_path.guards import MISSING, judge
from imgbuild.audit.main_path.sources import ModuleTree
from imgbuild.audit.main_path.values import CallFrame, FunctionValue
from imgbuild.audit.names import search
from imgbuild.audit.names.scopes import meaning, scopes
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import Function, Guard, ModuleFacts
from imgbuild.audit.source.text import dotted
from imgbuild.values import normalize

_Run = Callable[[Evaluation], object]


class ImportRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """An exception while `place` is imported, because `cause` is as it is.

    `raised` is the name of the exception, `at` the file and line of its `raise`.
    """

    place: FindingPlace
    raised: str
    at: str
    cause: str


def refusals(package_set: ImportablePackages, path: MainPath) -> Iterator[ImportRefusal]:
    """The refusals of modules that importing an entry point certainly imports."""
    view = path.view(package_set)
    for module in path.modules():
        how = path.reached(module, "")
        facts = view.module(module)
        if how is None or how.level is not Level.CERTAIN or not how.importing or how.optional:
            continue
        if isinstance(facts, ModuleFacts):
            yield from _of_module(view, facts, how.entry)


def _imports(package_set: ImportablePackages, facts: ModuleFacts, module: str) -> bool:
    """Whether the module imports `module` itself, outside of functions, and fails without it."""
    for line in facts.imports:
        if not line.scope and f"{line.module}.".startswith(f"{module}."):
            course = judge(package_set, line.guards)
            if course.runs and not course.catches(*MISSING):
                return True
    return False


def _of_module(
    package_set: ImportablePackages, facts: ModuleFacts, entry: str
) -> Iterator[ImportRefusal]:
    one = evaluator(package_set)
    steps = (*_raises(facts), *_calls(package_set, facts), *_decorators(package_set, facts))
    for line, guards, run in steps:
        course = judge(package_set, guards)
        source = one.source(facts.module)
        if not course.runs or not course.certain or source is None:
            continue
        found = _refused(package_set, one, source, run)
        place = place_of(package_set, facts, line, entry)
        if found is None or place is None or course.catches(found.raised, "ImportError"):
            continue
        if package_set.version(normalize(found.cause)) or not _imports(
            package_set, facts, found.cause
        ):
            yield msgspec.structs.replace(found, place=place)


_Step = tuple[int, tuple[Guard, ...], Callable[[ModuleTree], _Run | None]]


def _raises(facts: ModuleFacts) -> Iterator[_Step]:
    """The `raise` statements outside of definitions: the statements at the top that hold them."""
    for one in facts.refusals:
        yield one.line, (), _Statement(facts.module, one.line)


def _calls(package_set: ImportablePackages, facts: ModuleFacts) -> Iterator[_Step]:
    """The calls at the top of a module of functions that may raise."""
    for call in scopes(facts).calls.get("", ()):
        found = meaning(package_set, facts, call).found
        if isinstance(found.definition, Function) and found.definition.raises:
            yield call.line, call.guards, _Call(facts.module, call.line, call.callee)


def _decorators(package_set: ImportablePackages, facts: ModuleFacts) -> Iterator[_Step]:
    """The decorators of functions at the top of a module, of functions that may raise."""
    for one in facts.functions:
        for text in one.decorators if "." not in one.name else ():
            name = text.partition("(")[0]
            if not name.replace(".", "").isidentifier():
                continue
            found = search.resolve(package_set, facts, name)
            if isinstance(found.definition, Function) and found.definition.raises:
                yield one.line, one.guards, _Decorator(facts.module, one.line, one.name, name)


class _Statement(msgspec.Struct, frozen=True):
    """The statement at the top of a module that holds a line."""

    module: str
    line: int

    def __call__(self, source: ModuleTree) -> _Run | None:
        """Its evaluation; None if it runs with names that change."""
        found = [
            one for one in source.tree.body if one.lineno <= self.line <= (one.end_lineno or 0)
        ]
        if len(found) != 1 or not source.settled(found[0]):
            return None
        return lambda run: run.block(found, CallFrame(self.module))


class _Call(msgspec.Struct, frozen=True):
    """A call at the top of a module, by its line and callee."""

    module: str
    line: int
    callee: str

    def __call__(self, source: ModuleTree) -> _Run | None:
        """Its evaluation; None if it is not a plain statement's."""
        found = [
            node
            for node in source.at_import()
            if isinstance(node, ast.Call)
            and node.lineno == self.line
            and dotted(node.func) == self.callee
        ]
        if len(found) != 1 or not source.settled(found[0]):
            return None
        return lambda run: run.value(found[0], CallFrame(self.module))


class _Decorator(msgspec.Struct, frozen=True):
    """A decorator of a function at the top of a module."""

    module: str
    line: int
    function: str
    name: str

    def __call__(self, source: ModuleTree) -> _Run | None:
        """Its evaluation; None if the function is not found."""
        node = source.function(self.function, self.line)
        used = [
            one
            for one in (node.decorator_list if node is not None else ())
            if dotted(one.func if isinstance(one, ast.Call) else one) == self.name
        ]
        if node is None or len(used) != 1 or not source.settled(used[0]):
            return None
        frame = CallFrame(self.module)
        value = FunctionValue(node, frame)
        return lambda run: run.apply(run.value(used[0], frame), [value], {})


def _refused(
    package_set: ImportablePackages,
    one: Evaluator,
    source: ModuleTree,
    step: Callable[[ModuleTree], _Run | None],
) -> ImportRefusal | None:
    """The exception in which every way through the code ends, if there is one."""
    run = step(source)
    ended = one.outcomes(run, strict=True) if run is not None else ()
    if not ended or not all(end.raised and end.certain and end.line for end in ended):
        return None
    own = package_set.owner(source.name) or ""
    every = frozenset[str]().union(*(end.causes for end in ended))
    if PART.format(own) in every:
        return None  # its code may be read from an sdist, which lacks what a build adds
    causes = sorted(one for one in every - {own, ""} if " " not in one)
    home = package_set.module(ended[0].module)
    if not causes or not isinstance(home, ModuleFacts):
        return None
    absent = [cause for cause in causes if package_set.version(normalize(cause)) is None]
    return ImportRefusal(
        place=FindingPlace("", "", "", 0),
        raised=ended[0].raised,
        at=f"{home.file}:{ended[0].line}",
        cause=(absent or causes)[0],
    )
