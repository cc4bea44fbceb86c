"""Finds packages that raise an exception at import in this package set.

Statements, calls and decorators are evaluated with their actual arguments. A refusal is reported
only if every path through the code ends in an exception that the package itself raises.
"""

# A separate module: evaluates code.
from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec

from imgbuild.audit.checks.findings import FindingPlace, finding_place
from imgbuild.audit.main_path.answers import package_set_evaluator
from imgbuild.audit.main_path.closure import MainPath
from imgbuild.audit.main_path.evaluation import PART, Evaluation, Evaluator
from imgbuild.audit.main_path.guards import MISSING_ERRORS, judge_guards
from imgbuild.audit.main_path.imported import CertainImports, is_caught
from imgbuild.audit.main_path.sources import ModuleTree
from imgbuild.audit.main_path.values import UNKNOWN, CallFrame, ClassValue, FunctionValue, Outcome
from imgbuild.audit.main_path.view import PackageSetView
from imgbuild.audit.names import classes
from imgbuild.audit.names.model import LookupResult
from imgbuild.audit.names.scopes import MAKERS, find_meaning, module_scopes
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import Class, Function, Guard, ModuleFacts
from imgbuild.audit.source.text import dotted_name
from imgbuild.values import normalize_package

_MAXIMUM_DEPTH = 3  # calls within calls, of those that may raise
_Run = Callable[[Evaluation], object]


class ImportRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """An exception that importing `place` raises because of the version or absence of `cause`.

    `raised` is the name of the exception, and `at` the file and line of the `raise` statement.
    """

    place: FindingPlace
    raised: str
    at: str
    cause: str


def import_refusals(
    package_set: ImportablePackages, path: MainPath, published: Collection[str] = ()
) -> Iterator[ImportRefusal]:
    """Yield the refusals of modules that are certainly imported with an entry point.

    Modules of `published` packages that import only `published` packages are skipped, because they
    were checked when these packages were locked.
    """
    view = path.view(package_set)
    raising = _RaisingDefinitions(view)
    imports = CertainImports(view, path.starts, path.packages)
    for module, entry in sorted(imports.entries.items()):
        facts = view.module(module)
        known = package_set.owner(module) in published
        if isinstance(facts, ModuleFacts) and not (known and _imports_only(facts, view, published)):
            for refusal in _module_refusals(view, facts, entry, raising):
                if imports.passes_exception(refusal.raised, module):
                    yield refusal


def _imports_only(
    facts: ModuleFacts, package_set: ImportablePackages, packages: Collection[str]
) -> bool:
    """Return whether all packages that a module imports are in `packages` or not installed."""
    return all(
        owner is None or owner in packages
        for line in facts.imports
        for owner in [package_set.owner(line.module)]
    )


def _imports(package_set: ImportablePackages, facts: ModuleFacts, module: str) -> bool:
    """Return whether a module imports `module` at its top level and fails without it."""
    for line in facts.imports:
        if not line.scope and f"{line.module}.".startswith(f"{module}."):
            course = judge_guards(package_set, line.guards)
            if course.runs and not course.catches_error(*MISSING_ERRORS):
                return True
    return False


def _module_refusals(
    package_set: PackageSetView, facts: ModuleFacts, entry: str, raising: _RaisingDefinitions
) -> Iterator[ImportRefusal]:
    interpreter = package_set_evaluator(package_set)
    steps = (
        *_raising_statements(facts),
        *_calls(package_set, facts, raising),
        *_decorators(package_set, facts, raising),
    )
    seen: set[str] = set()  # places of `raise`: the first of several calls ends the import
    for line, guards, run in sorted(steps, key=lambda step: step[0]):
        course = judge_guards(package_set, guards)
        source = interpreter.source(facts.module)
        if not course.runs or not course.certain or source is None:
            continue
        refusal = _certain_refusal(package_set, interpreter, source, run)
        place = finding_place(package_set, facts, line, entry)
        if refusal is None or place is None or refusal.at in seen:
            continue
        if is_caught(refusal.raised, course.caught | source.exceptions_caught_at(line)):
            continue
        if package_set.version(normalize_package(refusal.cause)) or not _imports(
            package_set, facts, refusal.cause
        ):
            seen.add(refusal.at)
            yield msgspec.structs.replace(refusal, place=place)


_Step = tuple[int, tuple[Guard, ...], Callable[[ModuleTree], list[_Run]]]


def _raising_statements(facts: ModuleFacts) -> Iterator[_Step]:
    for refusal in facts.refusals:
        yield refusal.line, (), _Statement(facts.module, refusal.line)


def _calls(
    package_set: PackageSetView, facts: ModuleFacts, raising: _RaisingDefinitions
) -> Iterator[_Step]:
    here = module_scopes(facts)
    for scope in here.scopes_run_by(""):
        for call in here.calls.get(scope, ()):
            lookup = classes.follow_assignment(
                package_set, find_meaning(package_set, facts, call).found
            )
            if raising.may_raise(lookup):
                called: object = UNKNOWN
                if lookup.owner is None and not lookup.ambiguous:
                    called = package_set_evaluator(package_set).value_of(lookup)
                yield call.line, call.guards, _Call(facts.module, call.line, call.callee, called)


def _decorators(
    package_set: PackageSetView, facts: ModuleFacts, raising: _RaisingDefinitions
) -> Iterator[_Step]:
    here = module_scopes(facts)
    definitions: tuple[Function | Class, ...] = (*facts.functions, *facts.classes)
    for definition in definitions:
        outer = definition.name.rpartition(".")[0]
        for text in definition.decorators if not here.scope_runner(outer) else ():
            name = text.partition("(")[0]
            if not name.replace(".", "").isidentifier():
                continue
            lookup = classes.follow_assignment(
                package_set, classes.resolve_expression(package_set, facts, name)
            )
            if raising.may_raise(lookup):
                yield (
                    definition.line,
                    definition.guards,
                    _Decorator(facts.module, definition.line, definition.name, name),
                )


class _Statement(msgspec.Struct, frozen=True):
    module: str
    line: int

    def __call__(self, source: ModuleTree) -> list[_Run]:
        """Return the evaluation of the statement, or [] if the statement uses names that change."""
        statements = [
            statement
            for statement in source.tree.body
            if statement.lineno <= self.line <= (statement.end_lineno or 0)
        ]
        if len(statements) != 1 or not source.has_single_values(statements[0]):
            return []
        return [lambda run: run.run_block(statements, CallFrame(self.module))]


class _Call(msgspec.Struct, frozen=True):
    """Evaluates the calls of a callee on a line that runs at import.

    `called` is the value of the callee. If it is UNKNOWN, as for a method, the callee is evaluated
    first.
    """

    module: str
    line: int
    callee: str
    called: object

    def __call__(self, source: ModuleTree) -> list[_Run]:
        """Return the evaluations of the calls, or of the loops that contain them."""
        plain = len(source.binding_statements(self.callee.partition(".")[0])) <= 1
        plain = plain and isinstance(self.called, (ClassValue, FunctionValue))
        return [
            self._call_evaluation(node, whole, names, is_plain=plain)
            for node, whole, names in source.import_time_calls.get(self.line, ())
            if dotted_name(node.func) == self.callee and source.has_single_values(whole)
        ]

    def _call_evaluation(
        self, node: ast.Call, whole: ast.AST, names: frozenset[str], *, is_plain: bool
    ) -> _Run:
        def _evaluate(run: Evaluation) -> object:
            frame = CallFrame(self.module)
            frame.names.update(dict.fromkeys(names, UNKNOWN))
            if isinstance(whole, ast.stmt):
                run.run_block([whole], frame)
                return None
            if whole is not node or not is_plain:
                return run.value(whole, frame) if isinstance(whole, ast.expr) else UNKNOWN
            frame.names[""] = self.called  # an enclosing `try` may bind its name
            renamed = ast.Call(ast.Name("", ast.Load()), node.args, node.keywords)
            return run.value(renamed, frame)

        return _evaluate


class _Decorator(msgspec.Struct, frozen=True):
    module: str
    line: int
    decorated: str
    name: str

    def __call__(self, source: ModuleTree) -> list[_Run]:
        """Return the evaluation of the decorator, or [] if the definition is not found."""
        function = source.find_function(self.decorated, self.line)
        node = function or source.find_class(self.line)
        used = [
            decorator
            for decorator in (node.decorator_list if node is not None else ())
            if dotted_name(decorator.func if isinstance(decorator, ast.Call) else decorator)
            == self.name
        ]
        if len(used) != 1 or not source.has_single_values(used[0]):
            return []
        frame = CallFrame(self.module)
        value: object = ClassValue(self.decorated, self.module, self.line)
        if function is not None:
            value = FunctionValue(function, frame)
        return [lambda run: run.apply_call(run.value(used[0], frame), [value], {})]


def _certain_refusal(
    package_set: ImportablePackages,
    interpreter: Evaluator,
    source: ModuleTree,
    step: Callable[[ModuleTree], list[_Run]],
) -> ImportRefusal | None:
    for run in step(source):
        ended = _certain_exceptions(interpreter.each_outcome(run, strict=True))
        if not ended:
            continue
        package = package_set.owner(source.name) or ""
        every = frozenset[str]().union(*(end.causes for end in ended))
        if PART.format(package) in every:
            continue  # its code may be read from an sdist, which lacks what a build adds
        home = package_set.module(ended[0].module)
        causes = sorted(cause for cause in every - {package, ""} if " " not in cause)
        # The code of another package refuses its arguments.
        causes = causes or sorted({package_set.owner(ended[0].module) or ""} - {package, ""})
        if not causes or not isinstance(home, ModuleFacts):
            continue
        absent = [
            cause for cause in causes if package_set.version(normalize_package(cause)) is None
        ]
        return ImportRefusal(
            place=FindingPlace("", "", "", 0),
            raised=ended[0].raised,
            at=f"{home.file}:{ended[0].line}",
            cause=(absent or causes)[0],
        )
    return None


def _certain_exceptions(outcomes: Iterable[Outcome | None]) -> tuple[Outcome, ...]:
    """Return the outcomes if all are exceptions that are certainly raised, otherwise ()."""
    ended = []
    for outcome in outcomes:
        if outcome is None or not (outcome.raised and outcome.certain and outcome.line):
            return ()  # the other outcomes need not be evaluated
        ended.append(outcome)
    return tuple(ended)


class _RaisingDefinitions:
    def __init__(self, view: PackageSetView) -> None:
        self._view = view
        self._known: dict[tuple[str, int, int], bool] = {}

    def may_raise(self, lookup: LookupResult, depth: int = 0) -> bool:
        """Return whether a definition, or a function that it calls, has a `raise` or `assert`."""
        definition, home = lookup.definition, lookup.home
        if home is None or not isinstance(definition, (Class, Function)) or depth > _MAXIMUM_DEPTH:
            return False
        key = (home.module, definition.line, depth)
        if key not in self._known:
            self._known[key] = False  # of what calls itself
            self._known[key] = any(
                function.raises or self._calls_raising_function(facts, function, depth)
                for facts, function in self._called_functions(lookup)
            )
        return self._known[key]

    def _called_functions(self, lookup: LookupResult) -> Iterator[tuple[ModuleFacts, Function]]:
        definition, home = lookup.definition, lookup.home
        if isinstance(definition, Function) and home is not None:
            yield home, definition
            if lookup.owner is not None and "classmethod" in definition.decorators:
                owner = LookupResult(state="defined", definition=lookup.owner, home=home)
                yield from self._called_functions(owner)
        elif isinstance(definition, Class):
            for ancestor in classes.class_ancestors(self._view, lookup):
                if isinstance(ancestor.definition, Class) and ancestor.home is not None:
                    table = module_scopes(ancestor.home).functions
                    for name in (*MAKERS, "__call__"):
                        for function in table.get(f"{ancestor.definition.name}.{name}", ()):
                            yield ancestor.home, function

    def _calls_raising_function(self, facts: ModuleFacts, function: Function, depth: int) -> bool:
        return any(
            self.may_raise(
                classes.follow_assignment(self._view, find_meaning(self._view, facts, call).found),
                depth + 1,
            )
            for call in module_scopes(facts).calls.get(function.name, ())
        )
