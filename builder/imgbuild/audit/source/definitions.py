"""Reads definitions: functions with their parameters, and classes with their members."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence

import msgspec

from imgbuild.audit.source.comparisons import opposite_guards
from imgbuild.audit.source.expressions import ExpressionReader
from imgbuild.audit.source.facts import SUPER_INIT, Class, Field, Function, Guard, Parameter
from imgbuild.audit.source.name_values import NONE_VALUE, Branches, GuardedValue, Guards, NameValue
from imgbuild.audit.source.scopes import NONE_TYPE, ClassMembers, SourceScope, result_type
from imgbuild.audit.source.text import (
    BUILTINS,
    SourceText,
    dotted_name,
    never_continues,
    string_value,
    type_name,
)
from imgbuild.audit.source.tree import walk_tree

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_RETURN = re.compile(rb"\breturn\b\s*([\w.]*)(\(?)")
_REFUSAL = re.compile(rb"(?:^|[:;])\s*(?:raise|assert)\b", re.MULTILINE)
# Methods of a dictionary that keep its keys.
_READING_METHODS = frozenset(("get", "setdefault", "keys", "items", "values", "copy"))
# Reads the statements of a body.
ReadBlock = Callable[[Sequence[ast.stmt]], None]


class DefinitionReader:
    """Reads the definitions of functions and classes."""

    def __init__(self, expressions: ExpressionReader) -> None:
        self.expressions = expressions
        self.conditions = expressions.conditions
        self.names = expressions.names
        self.source = self.conditions.source
        self.functions: list[Function] = []
        self.classes: list[Class] = []

    def read_function(self, node: FunctionNode, block: ReadBlock) -> None:
        """Record a function, and read its body, in which parameters have the annotated types."""
        expressions, scope = self.expressions, self.expressions.scope
        name = scope.qualified_name(node.name)
        decorators = tuple(self.source.short_text(item) for item in node.decorator_list)
        for item in node.decorator_list:
            expressions.read_expression(item)
        given = node.args
        everything = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        extra = [item for item in (given.vararg, given.kwarg) if item is not None]
        for default in (*given.defaults, *given.kw_defaults):
            if default is not None:
                expressions.read_expression(default)
        for annotation in (node.returns, *(item.annotation for item in (*everything, *extra))):
            if annotation is not None:
                expressions.read_annotation(annotation)
        forwarded = forwarded_keywords(node, supers=expressions.chains)
        facts = function_facts(self.source, node, name, decorators, expressions.guards, forwarded)
        text = self.source.statement_lines(node)
        has_word = b"raise" in text or b"assert" in text
        raises = has_word and _REFUSAL.search(text) is not None
        place = len(self.functions)
        self.functions.append(facts)
        self.names.bind_name(node.name)
        if scope.members is not None:
            scope.members.methods.append(node.name)
        elif scope.kind == "function":
            scope.locals.bind_type(node.name, "")
        inner = SourceScope(name, "function", scope)
        inner.guarded = len(expressions.guards)
        if scope.members is not None and not {"staticmethod", "classmethod"} & set(decorators):
            inner.instance = next((item.arg for item in (*given.posonlyargs, *given.args)), "")
        for argument in everything:
            inner.locals.bind_type(argument.arg, type_name(argument.annotation))
        for argument in extra:
            inner.locals.bind_type(argument.arg, "")
        self.names.enter_scope(
            "function", node.body, node.lineno, [item.arg for item in (*everything, *extra)]
        )
        expressions.scope = inner
        self.conditions.scope = inner.name
        block(node.body)
        truthy, falsy = result_guards(node, self.names.frame.results)
        self.functions[place] = msgspec.structs.replace(
            facts,
            truthy=truthy,
            falsy=falsy,
            raises=raises,
            returns=facts.returns or self._returned_type(node),
        )
        expressions.scope = scope
        self.conditions.scope = scope.name if scope.kind == "function" else ""
        self.names.leave_scope()

    def _returned_type(self, node: FunctionNode) -> str:
        """Return the type of all values that a function of a program returns, or "".

        None is ignored: callers use the other results.
        """
        scope = self.expressions.scope
        plain = isinstance(node, ast.FunctionDef) and not node.decorator_list
        if not self.expressions.chains or not plain or not scope.returned:
            return ""
        if b"yield" in self.source.statement_lines(node):
            return ""
        kinds = {
            result_type(scope.locals, self.expressions.expression_type(value))
            for value in scope.returned
        }
        kinds.discard(NONE_TYPE)
        kind = kinds.pop() if len(kinds) == 1 else ""
        return kind if kind.partition(".")[0].removesuffix("()") not in BUILTINS else ""

    def read_class(self, node: ast.ClassDef, block: ReadBlock) -> None:
        """Read the body of a class, and then record the class and its members."""
        expressions, outer = self.expressions, self.expressions.scope
        for item in (*node.decorator_list, *node.bases, *(item.value for item in node.keywords)):
            expressions.read_expression(item)
        members = ClassMembers()
        scope = SourceScope(outer.qualified_name(node.name), "class", outer, members)
        if outer.kind == "function":
            outer.locals.bind_type(node.name, "")
        expressions.scope = scope
        self.names.enter_scope("class", node.body, node.lineno)
        block(node.body)
        self.names.leave_scope()
        expressions.scope = outer
        self.names.bind_name(node.name)
        methods = tuple(dict.fromkeys(members.methods))
        self.classes.append(
            Class(
                scope.name,
                node.lineno,
                tuple(self.source.short_text(item) for item in node.bases),
                tuple(self.source.short_text(item) for item in node.decorator_list),
                next(
                    (dotted_name(i.value) or "?" for i in node.keywords if i.arg == "metaclass"), ""
                ),
                tuple(members.fields.values()),
                methods,
                tuple(name for name in members.assigned.names if name not in members.fields),
                members.dynamic or "__getattr__" in methods or "__getattribute__" in methods,
                expressions.guards,
            )
        )


def result_guards(node: FunctionNode, results: Sequence[GuardedValue]) -> Branches:
    """Return the guards under which a function returns a true value, or a false value.

    Both are empty unless at least one is recognized, from a condition or from constants in
    branches.
    """
    if not results or not all(
        name_value.as_condition or name_value.is_literal for _, name_value in results
    ):
        return (), ()
    if not never_continues(node.body):
        results = [*results, ((), NONE_VALUE)]
    text = f"{node.name}()"
    unknown = (Guard("unknown", text),)
    true, false = (
        [
            _without_caught_guards(
                guards
                + conditions
                + (() if name_value.is_literal or _is_complete(name_value) else unknown)
            )
            for guards, name_value in results
            if (conditions := getattr(name_value, side)) is not None
        ]
        for side in ("truthy", "falsy")
    )
    yes, no = (_common_guards(alternatives, unknown) for alternatives in (true, false))
    if any(guard.kind == "data" for guards, _ in results for guard in guards):
        return (*yes, Guard("data")), (*no, Guard("data"))
    if not yes and len(false) == 1:
        yes = opposite_guards(no, text)
    if not no and len(true) == 1:
        no = opposite_guards(yes, text)
    return yes, no


def _common_guards(alternatives: Sequence[Guards], unknown: Guards) -> Guards:
    """Return the guards that apply to all paths.

    An unknown guard is added if there are several paths.
    """
    if len(alternatives) <= 1:
        return alternatives[0] if alternatives else unknown
    return (
        *(guard for guard in alternatives[0] if all(guard in other for other in alternatives)),
        *unknown,
    )


def _is_complete(name_value: NameValue) -> bool:
    return bool(name_value.truthy and name_value.falsy)


def _without_caught_guards(guards: Guards) -> Guards:
    return tuple(dict.fromkeys(guard for guard in guards if guard.kind != "handled"))


def function_facts(
    source: SourceText,
    node: FunctionNode,
    name: str,
    decorators: tuple[str, ...],
    guards: tuple[Guard, ...],
    forwarded: tuple[tuple[str, ...], tuple[str, ...]],
) -> Function:
    """Return the facts about a function with the qualified name `name`.

    For `forwarded`, see `forwarded_keywords`.
    """
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    bare = len(plain) - len(given.defaults)
    parameters = [
        _parameter(
            source, item, "positional" if i < len(given.posonlyargs) else "any", default=i >= bare
        )
        for i, item in enumerate(plain)
    ]
    parameters += [
        _parameter(source, item, "keyword", default=default is not None)
        for item, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    returns = source.short_text(node.returns) if node.returns is not None else ""
    if not returns and "classmethod" in decorators and plain:
        returns = _returns_self(source, node, plain[0].arg.encode())
    return Function(
        name,
        node.lineno,
        tuple(parameters),
        given.vararg is not None,
        given.kwarg is not None,
        decorators,
        returns,
        guards,
        *forwarded,
    )


def _returns_self(source: SourceText, node: FunctionNode, cls: bytes) -> str:
    """Return "Self" if a classmethod returns only results of `cls(…)`, else ""."""
    text = source.statement_lines(node)
    matches = _RETURN.findall(text)
    constructed = {cls + b"("}
    for name, call in matches:
        if not call and re.search(rb"\b" + name + rb"\s*=\s*" + cls + rb"\(", text):
            constructed.add(name)
    return "Self" if matches and all(name + call in constructed for name, call in matches) else ""


def _parameter(source: SourceText, item: ast.arg, kind: str, *, default: bool) -> Parameter:
    annotation = source.short_text(item.annotation) if item.annotation is not None else ""
    return Parameter(item.arg, kind, default, annotation)  # type: ignore[arg-type]


def read_field(source: SourceText, name: str, node: ast.AnnAssign) -> Field:
    """Return the facts about an annotated name in a class."""
    default, init = node.value is not None, True
    if isinstance(node.value, ast.Call) and dotted_name(node.value.func).endswith("ield"):
        given = {item.arg: item.value for item in node.value.keywords}
        default = "default" in given or "default_factory" in given or bool(node.value.args)
        flag = given.get("init")
        init = not (isinstance(flag, ast.Constant) and flag.value is False)
    return Field(
        name,
        node.lineno,
        source.short_text(node.annotation),
        default,
        init,
        value_text(source, node.value),
    )


def value_text(source: SourceText, node: ast.expr | None) -> str:
    """Return the text for the field `value` of AssignedName or Field."""
    if isinstance(node, ast.Call):
        name = dotted_name(node.func)
        return f"{name}()" if name else ""
    if isinstance(node, (ast.Subscript, ast.BinOp)):
        text = source.short_text(node)
        return text if text[0].isalpha() and "(" not in text and "…" not in text else ""
    return dotted_name(node) if node is not None else ""


def forwarded_keywords(
    node: ast.FunctionDef | ast.AsyncFunctionDef, *, supers: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the callees to which `**kwargs` is passed, and the keys that are removed before.

    Both are empty if they are unclear. With `supers`, SUPER can be one of the callees.
    """
    if node.args.kwarg is None:
        return (), ()
    name = node.args.kwarg.arg
    receivers: list[str] = []
    taken: list[str] = []
    uses = understood = 0
    for statement in node.body:
        for inner in walk_tree(statement):
            if isinstance(inner, ast.Name) and inner.id == name:
                uses += 1
            elif isinstance(inner, ast.Call):
                understood += _recognized_uses(inner, name, receivers, taken)
                if supers and "" in receivers and _is_super(inner.func):
                    receivers[receivers.index("")] = SUPER_INIT
            elif isinstance(inner, (ast.Subscript, ast.Compare)):
                understood += _key(inner, name, taken)
    if uses != understood or not receivers or "" in receivers:
        return (), ()
    return tuple(dict.fromkeys(receivers)), tuple(dict.fromkeys(taken))


def _is_super(node: ast.expr) -> bool:
    owner = node.value if isinstance(node, ast.Attribute) and node.attr == "__init__" else None
    return isinstance(owner, ast.Call) and dotted_name(owner.func) == "super"


def _recognized_uses(node: ast.Call, name: str, receivers: list[str], taken: list[str]) -> int:
    explained = 0
    for keyword in node.keywords:
        if keyword.arg is None and dotted_name(keyword.value) == name:
            receivers.append(dotted_name(node.func))
            explained += 1
    if isinstance(node.func, ast.Attribute) and dotted_name(node.func.value) == name:
        key = string_value(node.args[0]) if node.args else None
        if node.func.attr == "pop" and key is not None:
            taken.append(key)
            explained += 1
        elif node.func.attr in _READING_METHODS:
            explained += 1
    return explained


def _key(node: ast.Subscript | ast.Compare, name: str, taken: list[str]) -> int:
    """Return 1 if `node` is `kwargs["x"]` or `"x" in kwargs` for the dictionary `name`, else 0."""
    if isinstance(node, ast.Compare):
        is_membership = len(node.comparators) == 1 and dotted_name(node.comparators[0]) == name
        return int(is_membership and string_value(node.left) is not None)
    key = string_value(node.slice)
    if dotted_name(node.value) != name or key is None:
        return 0
    if isinstance(node.ctx, ast.Del):
        taken.append(key)
    return 1
