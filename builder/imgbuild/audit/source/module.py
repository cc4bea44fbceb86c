"""Reads facts from the source of a Python module, without running it."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator

import msgspec

from imgbuild.audit.source.conditions import ConditionReader
from imgbuild.audit.source.expressions import NameUse
from imgbuild.audit.source.facts import (
    Attribute,
    Call,
    CallValues,
    Class,
    Import,
    ModuleFacts,
    VersionWindow,
    import_target,
)
from imgbuild.audit.source.lazy_names import LazyNames
from imgbuild.audit.source.name_values import NameValues
from imgbuild.audit.source.program import rewrite_program
from imgbuild.audit.source.scopes import NONE_TYPE, result_type
from imgbuild.audit.source.statements import StatementReader
from imgbuild.audit.source.stdlib import SUBSCRIPT, subscriptable_classes
from imgbuild.audit.source.text import BUILTINS, SourceText, dotted_name, string_value
from imgbuild.system.collector import pause_collector
from imgbuild.system.syntax import parse_source

_TEXT = 40  # characters of a string that may be one of several values


def read_module(
    source: bytes,
    module: str,
    file: str,
    *,
    package: bool,
    program: bool = False,
    look: Callable[[ast.Module], None] = lambda _: None,
) -> ModuleFacts:
    """Return the facts about a module. If it cannot be parsed, `broken` is the error message.

    `module` is the dotted name, and `file` the path in the wheel. With `package`, the module is an
    `__init__`. With `program`, the top-level statements are also read as a function `PROGRAM`, in
    which names have types, because no other module binds the names of a program. `look` is called
    with the syntax tree before it is changed.
    """
    try:
        # A tree has no cycles, and the search for them takes a third of the time.
        source = source.removeprefix(b"\xef\xbb\xbf")
        with pause_collector():
            tree = _parse_module(source)
            look(tree)
            return _read_module(tree, source, module, file, package=package, program=program)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return ModuleFacts(
            module=module, file=file, package=package, broken=str(error) or "nested too deeply"
        )


def _parse_module(source: bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return parse_source(source)


def _read_module(
    tree: ast.Module, source: bytes, module: str, file: str, *, package: bool, program: bool
) -> ModuleFacts:
    if program:
        rewrite_program(tree, source)
    names = NameValues(tree.body, source)
    statements = StatementReader(
        ConditionReader(SourceText(source), module, names), package=package
    )
    statements.expressions.chains = program
    refusals: list[VersionWindow] = []

    def _record_raise(node: ast.Raise) -> None:
        guards = statements.expressions.guards
        if guards and node.exc is not None and not statements.expressions.scope.name:
            call = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = dotted_name(call).rpartition(".")[2]
            refusals.append(VersionWindow(node.lineno, "raise", name, "", guards))

    statements.watchers = {ast.Raise: _record_raise}
    statements.read_block(tree.body)
    statements.watchers = {}  # without this cycle, trees are freed at once
    assignments, definitions = statements.assignments, statements.definitions
    stored = statements.expressions.stored
    more = LazyNames(tree, source, assignments)
    calls, attributes, stores, values = _resolved_references(statements)
    return ModuleFacts(
        module=module,
        file=file,
        package=package,
        imports=tuple(assignments.imports),
        functions=tuple(definitions.functions),
        classes=tuple(_complete_class(definition, stored) for definition in definitions.classes),
        assigned=tuple(assignments.assigned),
        calls=calls,
        attributes=attributes,
        stores=stores,
        values=values,
        exports=None if assignments.exports is None else tuple(assignments.exports),
        lazy=more.lazy,
        lazy_stars=tuple(dict.fromkeys(more.stars)),
        registers=tuple(dict.fromkeys(more.registers)),
        aliases=more.aliases,
        deleted=tuple(assignments.deleted),
        dynamic=more.dynamic,
        refusals=tuple(refusals),
    )


def _bound_names(statements: StatementReader) -> set[str]:
    assignments, definitions = statements.assignments, statements.definitions
    names = {line.bound for line in assignments.imports if not line.scope}
    names.update(
        definition.name for definition in definitions.functions if "." not in definition.name
    )
    names.update(
        definition.name for definition in definitions.classes if "." not in definition.name
    )
    names.update(assignment.name for assignment in assignments.assigned)
    return names


def _resolved_references(
    statements: StatementReader,
) -> tuple[tuple[Call, ...], tuple[Attribute, ...], tuple[Attribute, ...], tuple[CallValues, ...]]:
    """Return the references that are facts.

    The root of such a reference is bound, or its receiver has a type.
    """
    imports, stored = statements.assignments.imports, statements.expressions.stored
    bound = _bound_names(statements)
    scoped = {line.bound for line in imports if line.scope}
    stars = any(line.name == "*" for line in imports)
    calls: list[Call] = []
    attributes: list[Attribute] = []
    stores: list[Attribute] = []
    values: list[CallValues] = []
    imported = {line.bound for line in imports}
    if statements.expressions.chains:  # the names of objects, too
        assigned = statements.assignments.assigned
        imported.update(each.name for each in assigned if each.value.endswith("()"))
    for record in statements.expressions.records:
        receiver = _receiver(record, bound | scoped if record.types else bound, stars=stars)
        if receiver is None:
            continue
        read = Attribute(record.line, record.expression, receiver, record.scope, record.guards)
        if record.store:
            stores.append(read)
        elif record.call is not None:
            if record.types is None or _requires_attribute(record, receiver, stored, imported):
                calls.append(_call_fact(record, record.call, receiver))
                unpacked = statements.expressions.unpacked.get(record.call, 0)
                texts = tuple(_keyword_texts(record.call)) if statements.expressions.chains else ()
                if texts or unpacked:
                    place = (record.line, record.expression, record.scope)
                    values.append(CallValues(*place, texts, unpacked))
        elif record.expression.endswith(SUBSCRIPT) and not _is_from_stdlib(record, imports):
            continue
        elif _requires_attribute(record, receiver, stored, imported):
            attributes.append(read)
    return tuple(calls), tuple(attributes), tuple(stores), tuple(values)


def _receiver(record: NameUse, bound: set[str], *, stars: bool) -> str | None:
    """Return the receiver of a reference, or None if the reference is not a fact."""
    if record.types is None:
        root = record.root
        is_bound = not root or root in bound or (stars and root not in BUILTINS)
        return record.receiver if is_bound else None
    kind = result_type(record.types, record.types.names.get(record.key, ""))
    if not kind or kind == NONE_TYPE:
        return None
    root = kind.partition(".")[0].removesuffix("()")
    return kind if root in bound or (stars and root not in BUILTINS) else None


def _requires_attribute(
    record: NameUse, receiver: str, stored: set[str], imported: set[str]
) -> bool:
    expression = record.expression
    first, _, _ = expression.partition(".")
    if record.types is not None:
        owner, _, name = expression.rpartition(".")
        kind = receiver.removesuffix("()")
        return stored.isdisjoint((name, f"{owner}.*", kind, f"{kind}.{name}", f"{kind}.*"))
    if first != "self" and record.root and record.root not in imported:
        return False
    return expression not in stored and f"{first}.*" not in stored


def _is_from_stdlib(record: NameUse, imports: list[Import]) -> bool:
    first, _, rest = record.expression.removesuffix(SUBSCRIPT).partition(".")
    return any(
        ".".join(filter(None, (*import_target(line), rest))) in subscriptable_classes()
        for line in imports
        if line.bound == first
    )


def _call_fact(record: NameUse, node: ast.Call, receiver: str) -> Call:
    plain = [item for item in node.args if type(item) is not ast.Starred]
    literals: list[str] = []
    for item in node.args:
        text = string_value(item)
        if text is None or len(text) > 200:
            break
        literals.append(text)
    return Call(
        record.line,
        record.expression,
        tuple(item.arg for item in node.keywords if item.arg is not None),
        len(plain),
        len(plain) != len(node.args),
        any(item.arg is None for item in node.keywords),
        receiver,
        tuple(literals),
        record.scope,
        record.guards,
    )


def _keyword_texts(node: ast.Call) -> Iterator[tuple[str, str]]:
    """Yield the keywords whose values are short strings."""
    for word in node.keywords:
        text = string_value(word.value)
        if word.arg is not None and text is not None and len(text) < _TEXT:
            yield word.arg, text


def _complete_class(definition: Class, stored: set[str]) -> Class:
    """Return a class with the attributes that the module assigns to it: `Class.name = …`."""
    prefix = f"{definition.name}."
    extra = tuple(name.removeprefix(prefix) for name in stored if name.startswith(prefix))
    if not extra:
        return definition
    return msgspec.structs.replace(
        definition,
        attributes=definition.attributes + tuple(sorted(name for name in extra if name != "*")),
        dynamic=definition.dynamic or "*" in extra,
    )
