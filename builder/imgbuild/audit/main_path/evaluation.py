"""Evaluates functions of a package set for given arguments.

No code is run. The source is followed with known values, such as versions, existing modules and
literals. If a condition is unknown, both branches are followed, one after the other, and the result
contains every possible outcome.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from weakref import ref

from imgbuild.audit.main_path.execution import Execution, ReturnSignal
from imgbuild.audit.main_path.expressions import bound_method
from imgbuild.audit.main_path.intrinsics import (
    ATTRIBUTES,
    CONSTANTS,
    INTRINSICS,
    LIBRARIES,
    RAISING_FUNCTIONS,
    apply_plain_method,
)
from imgbuild.audit.main_path.objects import OBJECT, ObjectModel
from imgbuild.audit.main_path.sources import ModuleTree, read_source
from imgbuild.audit.main_path.values import (
    UNKNOWN,
    BoundValueMethod,
    CallFrame,
    ClassValue,
    EvaluatedError,
    FunctionNode,
    FunctionValue,
    MethodValue,
    ModuleValue,
    ObjectInstance,
    Outcome,
    SuperValue,
    UnsupportedCodeError,
    VersionText,
    release_value,
)
from imgbuild.audit.names.lookup import look_up
from imgbuild.audit.names.model import LookupResult
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import AssignedName, Class, Function, ModuleFacts
from imgbuild.audit.source.tree import walk_tree
from imgbuild.values import normalize_package

_STEPS = 20000  # of one evaluation, at most
_MOST_OUTCOMES = 48  # possible ends of an evaluation, at most
PART = "a part of {}"  # the cause that a package lacks a module
UNREAD_PACKAGES = ("torch",)  # its functions query devices
_MAXIMUM_DEPTH = 12  # calls within calls
_SUSPENDING_NODES = (ast.Yield, ast.YieldFrom, ast.Await)
NO_DISTRIBUTION, NO_MODULE = "PackageNotFoundError", "ModuleNotFoundError"
NO_ATTRIBUTE, SOME = "AttributeError", ""  # SOME: an exception of unknown class
_CHANGING_DECORATORS = ("contextmanager", "property", "overload", "fixture")


class Evaluator:
    """Evaluates calls in a package set, and caches the sources of modules."""

    def __init__(self, package_set: ImportablePackages) -> None:
        self._package_set = ref(package_set)  # weak: the package set owns its evaluator
        # Of `answers`: by the expression and its place, and by the definitions that it names.
        self.subjects: dict[str, bool | None] = {}
        self.answers: dict[str, bool | None] = {}
        self._sources: dict[str, ModuleTree | None] = {}
        self._globals: dict[tuple[str, str], tuple[object, frozenset[str]]] = {}
        self._suspended: dict[ast.AST, bool] = {}

    @property
    def package_set(self) -> ImportablePackages:
        """The package set, which the caller must keep alive."""
        package_set = self._package_set()
        if package_set is None:
            raise UnsupportedCodeError
        return package_set

    def all_outcomes(
        self, run: Callable[[Evaluation], object], *, strict: bool = False
    ) -> tuple[Outcome, ...]:
        """Return every possible outcome of `run`, or () if not all outcomes can be determined."""
        outcomes = tuple(self.each_outcome(run, strict=strict))
        return () if None in outcomes else tuple(each for each in outcomes if each is not None)

    def each_outcome(
        self, run: Callable[[Evaluation], object], *, strict: bool = False
    ) -> Iterator[Outcome | None]:
        """Yield the possible outcomes of `run`.

        The last item is None if not all outcomes can be determined.
        """
        answers: list[bool] = []
        for _ in range(_MOST_OUTCOMES):
            evaluation = Evaluation(self, answers, strict=strict)
            try:
                value = run(evaluation)
                yield Outcome(value=value, causes=frozenset(evaluation.causes))
            except EvaluatedError as error:
                yield Outcome(
                    raised=error.name or "Exception",
                    line=error.line,
                    module=error.module,
                    certain=error.certain,
                    causes=frozenset(evaluation.causes),
                )
            except (UnsupportedCodeError, RecursionError, ReturnSignal, MemoryError):
                break
            while answers and answers[-1]:
                answers.pop()
            if not answers:
                return
            answers[-1] = True
        yield None

    def source(self, module: str) -> ModuleTree | None:
        """Return the source of a module, or None if it cannot be read."""
        if module not in self._sources:
            self._sources[module] = read_source(self.package_set, module)
        return self._sources[module]

    def is_generator(self, node: FunctionNode) -> bool:
        """Return whether a call of a function only creates a generator or coroutine."""
        if node not in self._suspended:
            self._suspended[node] = isinstance(node, ast.AsyncFunctionDef) or any(
                isinstance(part, _SUSPENDING_NODES) for part in walk_tree(node)
            )
        return self._suspended[node]

    def global_value(self, module: str, name: str) -> tuple[object, frozenset[str]]:
        """Return the value of a top-level name, and the packages that determine the value."""
        key = (module, name)
        if key not in self._globals:
            self._globals[key] = (UNKNOWN, frozenset())  # of a name that depends on itself
            self._globals[key] = self._global_value(module, name)
        return self._globals[key]

    def _global_value(self, module: str, name: str) -> tuple[object, frozenset[str]]:
        source = self.source(module)
        statements = source.binding_statements(name) if source is not None else ()
        if source is None or not statements:
            return self._unbound_name(module, name), frozenset()
        if source.may_change(name):
            return UNKNOWN, frozenset()
        frame = CallFrame(module)
        if len(statements) == 1 and isinstance(statements[0], ast.FunctionDef):
            return FunctionValue(statements[0], frame), frozenset()

        def _bind(evaluation: Evaluation) -> object:
            frame = CallFrame(module)
            evaluation.run_block(statements, frame)
            return frame.names.get(name, UNKNOWN)

        ended = self.all_outcomes(_bind)
        causes = frozenset().union(*(outcome.causes for outcome in ended))
        values = [outcome.value for outcome in ended if not outcome.raised]
        if not values or any(value != values[0] for value in values):
            return UNKNOWN, causes
        try:
            release_value(values[0])
        except UnsupportedCodeError:  # a table with thousands of values
            return UNKNOWN, causes
        empty = isinstance(values[0], (list, dict)) and not values[0]  # filled by other modules
        return (UNKNOWN if empty else values[0]), causes

    def _unbound_name(self, module: str, name: str) -> object:
        lookup_result = look_up(self.package_set, module, name)
        if (
            lookup_result.state == "defined"
            and lookup_result.home is not None
            and lookup_result.home.module != module
        ):
            return self.value_of(lookup_result)
        if name.startswith("__") or not hasattr(builtins, name):
            return UNKNOWN
        kind = getattr(builtins, name)
        is_error = isinstance(kind, type) and issubclass(kind, BaseException)
        return ClassValue(name) if is_error else ModuleValue(f"builtins.{name}")

    def value_of(self, lookup_result: LookupResult) -> object:
        """Return the value of the definition in a lookup result."""
        definition, home = lookup_result.definition, lookup_result.home
        if isinstance(definition, ModuleFacts):
            return ModuleValue(definition.module)
        if isinstance(definition, Class):
            module = home.module if home is not None and not lookup_result.ambiguous else ""
            return ClassValue(definition.name, module, definition.line if module else 0)
        if home is None or not isinstance(definition, (AssignedName, Function)):
            return UNKNOWN
        if lookup_result.ambiguous or isinstance(definition, AssignedName):
            plain = "." not in definition.name
            return self.global_value(home.module, definition.name)[0] if plain else UNKNOWN
        return self.function(home, definition) or UNKNOWN

    def function(self, home: ModuleFacts, definition: Function) -> FunctionValue | None:
        """Return the function described by a fact, or None if its source cannot be read."""
        source = self.source(home.module)
        node = (
            source.find_function(definition.name, definition.line) if source is not None else None
        )
        return None if node is None else FunctionValue(node, CallFrame(home.module))


class Evaluation(Execution):
    """Evaluates code along a single path.

    `answers` contains the results of unknown conditions, in order. Missing results are appended.
    """

    def __init__(self, evaluator: Evaluator, answers: list[bool], *, strict: bool) -> None:
        super().__init__(strict=strict)
        self._evaluator = evaluator
        self._package_set = evaluator.package_set
        self.causes: set[str] = set()
        self._objects = ObjectModel(self, self._package_set)
        self._answers = answers
        self._asked = self._steps = self._depth = 0

    def choose_branch(self) -> bool:
        """Return whether the next unknown condition is true in this evaluation."""
        if self._asked == len(self._answers):
            self._answers.append(False)
        self._asked += 1
        return self._answers[self._asked - 1]

    def count_steps(self, count: int = 1) -> None:
        """Count a step. Raises UnsupportedCodeError if there are too many."""
        self._steps += count
        if self._steps > _STEPS:
            raise UnsupportedCodeError

    def read(self, name: str, frame: CallFrame) -> object:
        """Return the value to which a name is bound."""
        holder = frame.binding_frame(name)
        if holder is not None:
            return holder.names[name]
        value, causes = self._evaluator.global_value(frame.module, name)
        self.causes |= causes
        return value

    def assign_attribute(self, instance: ObjectInstance, name: str, value: object) -> None:
        """Set an attribute of an object."""
        self._objects.assign_attribute(instance, name, value)

    def source(self, module: str) -> ModuleTree | None:
        """Return the source of a module, or None if it cannot be read."""
        return self._evaluator.source(module)

    def absolute_module(self, node: ast.ImportFrom, module: str) -> str:
        """Return the absolute name of the module to which a `from … import` in `module` refers."""
        source = self._evaluator.source(module)
        return source.absolute_module(node) if source is not None else node.module or ""

    # -- queries of intrinsic functions to the package set

    def version(self, package: str) -> str | None:
        """Return the version of a package, or None if it is unknown.

        Raises EvaluatedError if the package is not installed.
        """
        self.causes.add(normalize_package(package))
        installed_version = self._package_set.version(normalize_package(package))
        if installed_version is None and not self._package_set.partial:
            raise EvaluatedError(NO_DISTRIBUTION)
        return None if installed_version is None else VersionText(installed_version)

    def has_module(self, module: str) -> bool | None:
        """Return whether a module can be found, or None if unknown."""
        root = module.partition(".")[0]
        owner = self._package_set.owner(module) or self._package_set.owner(root)
        is_present = self._package_set.exists(module)
        self.causes.add(owner or root)
        if owner is not None and is_present is False:
            self.causes.add(PART.format(owner))
        return is_present

    def owner(self, module: str) -> str | None:
        """Return the package that contains a module, or None if it is unknown.

        Returns "" if the module is missing.
        """
        package = self._package_set.owner(module)
        return package or ("" if self.has_module(module) is False else None)

    def import_module(self, module: str) -> object:
        """Return the module, or UNKNOWN if its existence is unknown.

        Raises EvaluatedError if the module is missing.
        """
        if module.partition(".")[0] in sys.stdlib_module_names:
            return ModuleValue(module)
        is_present = self.has_module(module)
        if is_present is None and module.partition(".")[0] not in LIBRARIES:
            return self._unknown_call()
        if is_present is False:
            raise EvaluatedError(NO_MODULE)
        return ModuleValue(module)

    def attribute(self, value: object, name: str) -> object:
        """Return the attribute `name` of a value.

        Raises EvaluatedError if the value certainly has no such attribute.
        """
        if isinstance(value, ModuleValue):
            return self._module_attribute(value.name, name)
        if isinstance(value, (ObjectInstance, ClassValue, SuperValue)):
            return self._objects.attribute(value, name)
        if isinstance(value, BoundValueMethod):
            return value.owner if (value.name, name) == ("distribution", "version") else UNKNOWN
        if name in ATTRIBUTES.get(type(value), ()):
            return getattr(value, name)
        return bound_method(value, name)

    def _module_attribute(self, module: str, name: str) -> object:
        full = f"{module}.{name}"
        if full in CONSTANTS:
            return CONSTANTS[full]
        if module == "sys.version_info":
            parts = tuple(int(part) for part in self._package_set.python.split(".")[:2])
            version_parts = {"[:2]": parts, "major": parts[0], "minor": parts[1]}
            return version_parts.get(name, UNKNOWN)
        if full in INTRINSICS or module.partition(".")[0] in sys.stdlib_module_names:
            return ModuleValue(full)
        if any(intrinsic.startswith(f"{full}.") for intrinsic in INTRINSICS):
            return ModuleValue(full)
        lookup_result = look_up(self._package_set, module, name)
        owner = self._package_set.owner(module)
        if lookup_result.state == "absent":
            self.causes |= {owner or module, PART.format(owner)}
            raise EvaluatedError(NO_ATTRIBUTE, certain=False)
        if name == "__version__" and "." not in module and owner is not None:
            return self.version(owner) or UNKNOWN
        if lookup_result.home is not None and isinstance(lookup_result.definition, AssignedName):
            self.causes.add(self._package_set.owner(lookup_result.home.module) or "")
        return self._evaluator.value_of(lookup_result)

    # -- calls

    def apply_call(
        self, called: object, given: Sequence[object], named: Mapping[str, object]
    ) -> object:
        """Return the result of a call. An argument `...` represents further unknown arguments."""
        self.count_steps()
        if isinstance(called, ObjectInstance):
            method_of = self._objects.attribute(called, "__call__")
            called = (
                method_of
                if isinstance(method_of, MethodValue)
                else BoundValueMethod(called, "__call__")
            )
        if isinstance(called, ClassValue):
            instance = self._objects.construct_object(called, given, named)
            return self._unknown_call(given, named) if instance == UNKNOWN else instance
        if isinstance(called, MethodValue):
            return self._function_call(called.function, (called.owner, *given), named)
        if isinstance(called, ModuleValue) and called.name in INTRINSICS:
            whole = not any(item is ... for item in given)
            result = INTRINSICS[called.name](self, tuple(given), named) if whole else UNKNOWN
            if result == UNKNOWN:
                release_value((*given, *named.values()))
            return (
                self._unknown_call()
                if result == UNKNOWN and called.name in RAISING_FUNCTIONS
                else result
            )
        if isinstance(called, ModuleValue) and called.name.startswith(f"{OBJECT}."):
            return self._objects.call_object_method(called.name.rpartition(".")[2], given)
        if isinstance(called, BoundValueMethod) and not isinstance(called.owner, ObjectInstance):
            return apply_plain_method(called, given, named)
        if not isinstance(called, FunctionValue):
            return self._unknown_call((called, *given), named)
        return self._function_call(called, given, named)

    def may_raise(self) -> None:
        """Raise an exception of unknown class in some evaluations of a `try` body."""
        if self.trying and self.choose_branch():
            raise EvaluatedError(SOME, certain=False)

    def parent(self, frame: CallFrame, given: Sequence[object]) -> object:
        """Return the result of `super()` in a method."""
        kind, owner = given if len(given) == 2 else (frame.kind, frame.owner)
        if isinstance(kind, ClassValue) and isinstance(owner, (ObjectInstance, ClassValue)):
            return SuperValue(kind, owner)
        return UNKNOWN

    def _unknown_call(
        self, given: Sequence[object] = (), named: Mapping[str, object] | None = None
    ) -> object:
        """Evaluate an unknown call, which may change objects and may raise within a `try`."""
        release_value((*given, *(named or {}).values()))
        self.may_raise()
        return UNKNOWN

    def _function_call(
        self, called: FunctionValue, given: Sequence[object], named: Mapping[str, object]
    ) -> object:
        node = called.node
        unread = called.frame.module.partition(".")[0] in UNREAD_PACKAGES
        if unread or self._evaluator.is_generator(node) or self._is_changed(called):
            return self._unknown_call(given, named)
        if self._depth >= _MAXIMUM_DEPTH:
            raise UnsupportedCodeError
        frame = CallFrame(called.frame.module, called.frame)
        if called.kind is not None:
            frame.kind, frame.owner = called.kind, given[0] if given else None
        around = called.frame if called.kind is None else self._objects.class_frame(called.kind)
        frame.names.update(
            bound_parameters(node.args, given, named, lambda default: self.value(default, around))
        )
        if isinstance(node, ast.Lambda):
            return self.value(node.body, frame)
        self._depth += 1
        try:
            self.run_block(node.body, frame)
        except ReturnSignal as signal:
            return signal.value
        finally:
            self._depth -= 1
        return None

    def _is_changed(self, called: FunctionValue) -> bool:
        node = called.node
        if isinstance(node, ast.Lambda) or called.frame.outer is not None or called.frame.names:
            return False  # its decorators were applied when it was defined
        rest = [
            decorator
            for decorator in node.decorator_list
            if not self.is_transparent(decorator, called.frame)
        ]
        if self.strict:
            return bool(rest)
        return any(
            word in ast.unparse(decorator) for decorator in rest for word in _CHANGING_DECORATORS
        )


def bound_parameters(
    parameters: ast.arguments,
    given: Sequence[object],
    named: Mapping[str, object],
    default: Callable[[ast.expr], object],
) -> dict[str, object]:
    """Map parameters to values. An argument `...` represents further unknown arguments."""
    places = [item.arg for item in (*parameters.posonlyargs, *parameters.args)]
    every = [*places, *(item.arg for item in parameters.kwonlyargs)]
    values: dict[str, object] = dict.fromkeys(every, UNKNOWN)
    extra = [item.arg for item in (parameters.vararg, parameters.kwarg) if item is not None]
    if any(item is ... for item in given):
        return {**values, **dict.fromkeys(extra, UNKNOWN)}
    defaults = list(zip(reversed(places), reversed(parameters.defaults), strict=False))
    defaults += [
        (item.arg, value)
        for item, value in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
        if value is not None
    ]
    values.update((name, default(value)) for name, value in defaults)
    values.update(zip(places, given, strict=False))
    values.update((name, value) for name, value in named.items() if name in every)
    if parameters.vararg is not None:
        values[parameters.vararg.arg] = tuple(given[len(places) :])
    if parameters.kwarg is not None:
        rest = {name: value for name, value in named.items() if name not in every}
        values[parameters.kwarg.arg] = rest
    return values
