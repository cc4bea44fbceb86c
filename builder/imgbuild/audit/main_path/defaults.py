"""Finds the code that an entry point runs by default.

The statements of a function are followed in order. The configuration is that of the Hydra program,
or consists of the defaults of the dataclass that annotates a parameter. Conditions on the
configuration are evaluated. If a condition is unknown, neither branch is followed. Ray's
`X.remote(…)` counts as a call.
"""

# A separate module: follows statements in order.
from __future__ import annotations

import ast
import copy
import re
from collections.abc import Mapping, Sequence

import msgspec

from imgbuild.audit.main_path.answers import package_set_evaluator
from imgbuild.audit.main_path.configuration import find_hydra_program
from imgbuild.audit.main_path.evaluation import bound_parameters
from imgbuild.audit.main_path.values import UNKNOWN, CallFrame, value_truth
from imgbuild.audit.main_path.view import PackageSetView
from imgbuild.audit.names import classes
from imgbuild.audit.names.classes import class_ancestors
from imgbuild.audit.names.lookup import look_up
from imgbuild.audit.names.model import LookupResult
from imgbuild.audit.source.facts import Class, Function, ModuleFacts
from imgbuild.audit.source.text import dotted_name
from imgbuild.audit.source.tree import walk_tree

_MAXIMUM_DEPTH = 10  # calls within calls
_STATEMENTS = 4000
_PLAIN_TYPES = (bool, int, float, str, type(None))
_RAY = ("remote", "options")
# Exceptions whose handlers may handle a failed import.
_CATCHING_ERRORS = frozenset(
    ("", "ImportError", "ModuleNotFoundError", "Exception", "BaseException")
)


class DefaultRun(msgspec.Struct):
    """The import statements (by module and line) and the functions that certainly run."""

    imports: set[tuple[str, int]]
    functions: set[tuple[str, str]]


class _FollowedObject(msgspec.Struct):
    kind: LookupResult
    attributes: dict[str, object] = {}


class _BoundMethod(msgspec.Struct, frozen=True):
    owner: object
    name: str


class _ReturnSignal(Exception):
    """Raised if the rest of a function may not run. Contains the returned value, if it is known."""

    def __init__(self, value: object = UNKNOWN) -> None:
        super().__init__()
        self.value = value


def default_run(view: PackageSetView, name: str) -> DefaultRun:
    """Return the code that runs when `name`, a function or class, is called with defaults."""
    run = DefaultRun(set(), set())
    module, _, rest = name.rpartition(".")
    facts = view.module(module) if module else None
    if isinstance(facts, ModuleFacts):
        lookup = classes.follow_assignment(view, classes.resolve_expression(view, facts, rest))
        _DefaultWalk(view, run).follow_entry(lookup)
    return run


class _DefaultWalk:
    def __init__(self, view: PackageSetView, run: DefaultRun) -> None:
        self._view = view
        self._run = run
        self._evaluator = package_set_evaluator(view)
        self._depth = self._count = 0
        self._names: dict[str, object] = {}
        self._home: ModuleFacts | None = None

    def follow_entry(self, lookup: LookupResult) -> None:
        """Follow an entry point that has a configuration.

        Other entry points have only data as arguments, and are not followed.
        """
        definition, home = lookup.definition, lookup.home
        owner: tuple[object, ...] = ()
        if isinstance(definition, Class) and home is not None:
            owner = (_FollowedObject(lookup),)
            maker = classes.find_member(self._view, lookup, "__init__")
            definition, home = maker.definition, maker.home
        if home is None or lookup.ambiguous or not isinstance(definition, Function):
            return
        named = self._parameter_defaults(home, definition)
        main = None
        if any(text.startswith("hydra.main") for text in definition.decorators):
            main = find_hydra_program(self._view, home.module)
        if main is not None or named:
            given = (main.compose_configuration(main.name),) if main is not None else owner
            self._follow_call(home, definition, given, named)

    def _parameter_defaults(self, home: ModuleFacts, function: Function) -> dict[str, object]:
        """Map each parameter to the defaults of the dataclass in its annotation.

        An example is `args: Config | None`.
        """
        configurations: dict[str, object] = {}
        for parameter in function.parameters:
            for name in re.findall(r"[\w.]+", parameter.annotation):
                lookup = classes.follow_assignment(
                    self._view, classes.resolve_expression(self._view, home, name)
                )
                if lookup.state == "defined" and not lookup.ambiguous and _is_dataclass(lookup):
                    configurations[parameter.name] = self._dataclass_defaults(lookup)
        return configurations

    # -- calls

    def _follow_call(
        self,
        home: ModuleFacts,
        function: Function,
        given: Sequence[object],
        named: Mapping[str, object],
    ) -> object:
        source = self._evaluator.source(home.module)
        node = source.find_function(function.name, function.line) if source is not None else None
        if node is None or self._depth >= _MAXIMUM_DEPTH or self._evaluator.is_generator(node):
            return UNKNOWN
        self._run.functions.add((home.module, function.name))
        names = bound_parameters(node.args, given, named, _constant)
        outside = self._names, self._home
        self._names, self._home = names, home
        self._depth += 1
        try:
            self._follow_block(node.body)
        except _ReturnSignal as returned:
            return returned.value
        finally:
            self._depth -= 1
            self._names, self._home = outside
        return None

    def _resolve_node(self, node: ast.AST, home: ModuleFacts | None) -> LookupResult | None:
        name = dotted_name(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
        if not name or home is None:
            return None
        lookup = classes.follow_assignment(
            self._view, classes.resolve_expression(self._view, home, name)
        )
        return lookup if lookup.state == "defined" and not lookup.ambiguous else None

    def _dataclass_defaults(self, lookup: LookupResult) -> dict[str, object]:
        """Return the defaults of a dataclass, without fields whose default cannot be read.

        Fields assigned in methods, such as `__post_init__`, are also omitted.
        """
        defaults: dict[str, object] = {}
        assigned: set[str] = set()
        for ancestor in reversed(class_ancestors(self._view, lookup)):
            definition, home = ancestor.definition, ancestor.home
            source = self._evaluator.source(home.module) if home is not None else None
            if not isinstance(definition, Class) or source is None:
                continue
            node = source.find_class(definition.line)
            for statement in node.body if node is not None else ():
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    defaults.pop(statement.target.id, None)
                    value = _field_default(statement.value)
                    if value is not UNKNOWN:
                        defaults[statement.target.id] = value
            for part in walk_tree(node) if node is not None else ():
                if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                    assigned.add(part.attr)
        return {name: value for name, value in defaults.items() if name not in assigned}

    def _construct_object(
        self, kind: LookupResult, given: Sequence[object], named: Mapping[str, object]
    ) -> object:
        instance = _FollowedObject(kind)
        maker = classes.find_member(self._view, kind, "__init__")
        if isinstance(maker.definition, Function) and maker.home is not None:
            self._follow_call(maker.home, maker.definition, (instance, *given), named)
        return instance

    def _apply_call(
        self, called: object, given: Sequence[object], named: Mapping[str, object]
    ) -> object:
        if isinstance(called, _BoundMethod):
            if isinstance(called.owner, Mapping) and called.name == "get" and given:
                fallback = given[1] if len(given) > 1 else None
                return called.owner.get(given[0], fallback) if _is_key(given[0]) else UNKNOWN
            if called.name in _RAY:  # of a remote class or function, or a method of an actor
                return (
                    called.owner
                    if called.name == "options"
                    else self._apply_call(called.owner, given, named)
                )
            if isinstance(called.owner, _FollowedObject):
                member = classes.find_member(self._view, called.owner.kind, called.name)
                if isinstance(member.definition, Function) and member.home is not None:
                    static = "staticmethod" in member.definition.decorators
                    owner = () if static else (called.owner,)
                    return self._follow_call(
                        member.home, member.definition, (*owner, *given), named
                    )
            return UNKNOWN
        if not isinstance(called, LookupResult) or called.home is None or called.ambiguous:
            return UNKNOWN
        if isinstance(called.definition, Class):
            return self._construct_object(called, given, named)
        if isinstance(called.definition, Function):
            return self._follow_call(called.home, called.definition, given, named)
        return UNKNOWN

    # -- statements

    def _follow_block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._count += 1
            if self._count > _STATEMENTS:
                raise _ReturnSignal
            self._follow_statement(statement)

    def _follow_statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                self._follow_import(node)
            case ast.If():
                holds = self._condition_holds(node.test)
                branch = None if holds is None else node.body if holds else node.orelse
                self._follow_optional_block(branch, node)
            case ast.Try() | ast.TryStar():
                whole = (*node.body, *node.orelse, *node.finalbody)
                is_open = all(map(_propagates_failure, node.handlers))
                self._follow_optional_block(whole if is_open else None, node)
            case ast.With():
                for item in node.items:
                    self.value(item.context_expr)
                    self._forget_names(item)
                is_open = "suppress" not in ast.unparse(node).partition("\n")[0]
                self._follow_optional_block(node.body if is_open else None, node)
            case ast.Assign() | ast.AnnAssign():
                value = self.value(node.value) if node.value is not None else UNKNOWN
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self._assign_target(target, value)
            case ast.Expr():
                self.value(node.value)
            case ast.Return() | ast.Raise():
                result = node.value if isinstance(node, ast.Return) else None
                raise _ReturnSignal(self.value(result) if result is not None else UNKNOWN)
            case _:
                self._skip_code(node)

    def _follow_optional_block(self, block: Sequence[ast.stmt] | None, node: ast.stmt) -> None:
        if block is None:
            self._skip_code(node)
        else:
            self._follow_block(block)

    def _follow_import(self, node: ast.Import | ast.ImportFrom) -> None:
        home = self._home
        source = self._evaluator.source(home.module) if home is not None else None
        if home is None or source is None:
            return
        self._run.imports.add((home.module, node.lineno))
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            self._names[bound] = UNKNOWN
            if isinstance(node, ast.ImportFrom):
                lookup = look_up(self._view, source.absolute_module(node), alias.name)
                lookup = classes.follow_assignment(self._view, lookup)
                if lookup.state == "defined" and not lookup.ambiguous:
                    self._names[bound] = lookup

    def _assign_target(self, target: ast.expr, value: object) -> None:
        if isinstance(target, ast.Name):
            self._names[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value)
            if isinstance(owner, dict):
                owner[target.attr] = value
            elif isinstance(owner, _FollowedObject):
                owner.attributes[target.attr] = value
        elif isinstance(target, ast.Subscript):
            owner, key = self.value(target.value), self.value(target.slice)
            if isinstance(owner, dict) and _is_key(key):
                owner[key] = value
        else:
            self._forget_names(target)

    def _skip_code(self, node: ast.stmt) -> None:
        """Skip code that may run. If the code may return, the rest of the function may not run."""
        self._forget_names(node)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._names[node.name] = UNKNOWN
        elif any(isinstance(part, ast.Return) for part in walk_tree(node)):
            raise _ReturnSignal

    def _forget_names(self, node: ast.AST) -> None:
        for part in walk_tree(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                self._names[part.id] = UNKNOWN
            elif isinstance(part, (ast.Attribute, ast.Subscript)) and isinstance(
                part.ctx, ast.Store
            ):
                self._assign_target(part, UNKNOWN)

    # -- expressions

    def value(self, node: ast.expr) -> object:
        match node:
            case ast.Constant():
                return node.value if isinstance(node.value, _PLAIN_TYPES) else UNKNOWN
            case ast.Name():
                return self._names[node.id] if node.id in self._names else self._global_value(node)
            case ast.Attribute():
                return self._attribute_value(node)
            case ast.Subscript():
                owner, key = self.value(node.value), self.value(node.slice)
                has = isinstance(owner, dict) and _is_key(key)
                return owner.get(key, UNKNOWN) if has and isinstance(owner, dict) else UNKNOWN
            case ast.Compare():
                holds = self._condition_holds(node)
                return UNKNOWN if holds is None else holds
            case ast.Call():
                return self._call_value(node)
            case _:
                return UNKNOWN

    def _global_value(self, node: ast.expr) -> object:
        return self._resolve_node(node, self._home) or UNKNOWN

    def _call_value(self, node: ast.Call) -> object:
        wrapped = dotted_name(node.func.func if isinstance(node.func, ast.Call) else node.func)
        if wrapped == "ray.remote":  # (X), or (num_cpus=1)(X)
            return self.value(node.args[0]) if node.args else UNKNOWN
        if wrapped == "OmegaConf.select" and len(node.args) > 1:
            value = self.value(node.args[0])
            for key in str(self.value(node.args[1])).split("."):
                value = value.get(key) if isinstance(value, dict) else UNKNOWN
            return value
        called = self.value(node.func)
        given = [self.value(item) for item in node.args]
        named = {item.arg: self.value(item.value) for item in node.keywords if item.arg}
        if len(named) < len(node.keywords) or any(
            isinstance(item, ast.Starred) for item in node.args
        ):
            return UNKNOWN
        return self._apply_call(called, given, named)

    def _attribute_value(self, node: ast.Attribute) -> object:
        owner = self.value(node.value)
        if isinstance(owner, Mapping):
            return owner.get(node.attr, _BoundMethod(owner, node.attr))
        if isinstance(owner, _FollowedObject):
            return owner.attributes.get(node.attr, _BoundMethod(owner, node.attr))
        if isinstance(owner, _BoundMethod) or node.attr in _RAY:
            return _BoundMethod(owner, node.attr)
        if isinstance(owner, LookupResult) and isinstance(owner.definition, ModuleFacts):
            return self._global_value(node)
        return UNKNOWN

    def _condition_holds(self, node: ast.expr) -> bool | None:
        """Return whether a condition is true with the default configuration, or None if unknown."""
        if self._home is None:
            return None
        replaced = _ValueSubstituter(self).visit(copy.deepcopy(node))
        frame = CallFrame(self._home.module)
        frame.names.update(dict.fromkeys(self._names, UNKNOWN))
        if not isinstance(replaced, ast.expr):
            return None
        ended = self._evaluator.all_outcomes(lambda run: run.value(replaced, frame))
        states = {value_truth(end.value) for end in ended if not end.raised}
        return states.pop() if len(states) == 1 else None


class _ValueSubstituter(ast.NodeTransformer):
    def __init__(self, walk: _DefaultWalk) -> None:
        self._walk = walk

    def visit(self, node: ast.AST) -> ast.AST:
        is_get = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("get", "select")
        )
        if is_get or isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            value = self._walk.value(node) if isinstance(node, ast.expr) else UNKNOWN
            if isinstance(value, _PLAIN_TYPES) and not _is_reference(value):
                return ast.copy_location(ast.Constant(value), node)
        return self.generic_visit(node)


def _is_reference(value: object) -> bool:
    """Return whether a YAML value is a reference ("${trainer.device}") or missing ("???")."""
    return isinstance(value, str) and ("${" in value or value == "???")


def _is_key(value: object) -> bool:
    return isinstance(value, (str, int))


def _is_dataclass(lookup: LookupResult) -> bool:
    definition = lookup.definition
    return isinstance(definition, Class) and any(
        classes.decorator_name(text) == "dataclass" for text in definition.decorators
    )


def _field_default(node: ast.expr | None) -> object:
    """Return the default of a dataclass field: a constant, or field(default=CONSTANT)."""
    if isinstance(node, ast.Call) and dotted_name(node.func).rpartition(".")[2] == "field":
        node = next((item.value for item in node.keywords if item.arg == "default"), None)
    return _constant(node)


def _constant(node: ast.expr | None) -> object:
    plain = isinstance(node, ast.Constant) and isinstance(node.value, _PLAIN_TYPES)
    return node.value if plain and isinstance(node, ast.Constant) else UNKNOWN


def _propagates_failure(handler: ast.ExceptHandler) -> bool:
    """Return whether a failing import in a `try` ends the function in spite of this handler."""
    if isinstance(handler.body[-1], ast.Raise):
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {dotted_name(item).rpartition(".")[2] if item is not None else "" for item in types}
    return not names & _CATCHING_ERRORS
