"""Looks up classes, with their ancestors, members and attributes."""

from __future__ import annotations

import builtins
import enum
from collections.abc import Iterable, Sequence

from imgbuild.audit.names.lookup import (
    SameFacts,
    is_typing_only,
    look_up,
    module_index,
    search_module,
)
from imgbuild.audit.names.model import (
    LookupResult,
    Modules,
    Searchable,
    cached_results,
    module_sources,
)
from imgbuild.audit.source.facts import (
    AssignedName,
    Class,
    Import,
    ModuleFacts,
    import_target,
)

# Bases that do not change the parameters of the constructor.
_PLAIN_BASES = frozenset(
    [
        "object",
        "ABC",
        "abc.ABC",
        "Generic",
        "typing.Generic",
        "Protocol",
        "typing.Protocol",
        "typing_extensions.Protocol",
        "typing_extensions.Generic",
        "Hashable",
        "Sized",
    ]
)
_OBJECT = frozenset((*dir(object), *dir(type), "__subclasses__")) | {
    "__dict__",
    "__module__",
    "__weakref__",
    "__annotations__",
}
_METACLASSES = frozenset(("", "type", "ABCMeta", "abc.ABCMeta"))
# Attributes of well-known bases that cannot be read from source.
_BASES: dict[str, Iterable[str]] = {
    "msgspec.Struct": ("__struct_fields__", "__struct_config__"),
    "typing.NamedTuple": [*dir(tuple), "_asdict", "_fields", "_replace", "_make"],
    **{name: dir(getattr(builtins, name)) for name in ("dict", "list", "str", "int", "tuple")},
    **{name: dir(Exception) for name in dir(builtins) if name.endswith(("Error", "Exception"))},
}
# Enumerations: the attributes of their members and of the classes. They can also have a type.
_ENUMERATIONS: dict[str, frozenset[str]] = {
    f"enum.{kind.__name__}": frozenset((*dir(kind), *dir(type(kind)), "name", "value"))
    for kind in (enum.Enum, enum.IntEnum, enum.StrEnum, enum.Flag, enum.IntFlag)
}
_DEPTH = 30
# The bases of the classes that the Auto classes of transformers load.
LOADED_BASES = {
    "tokenizer": "transformers.tokenization_utils_base:PreTrainedTokenizerBase",
    "model": "transformers.modeling_utils:PreTrainedModel",
}
# Class decorators that keep a class's attributes and its constructor, by their last part.
PLAIN_DECORATORS = frozenset(
    [
        "final",
        "runtime_checkable",
        "total_ordering",
        "deprecated",
        "experimental",
        "requires",
        "auto_docstring",
        "add_start_docstrings",
        "add_end_docstrings",
        "export",
    ]
)
# Those that keep its attributes.
_KEEPING_DECORATORS = PLAIN_DECORATORS | frozenset(
    [
        "dataclass",
        "config",
        "dataclass_transform",
        "unique",
        "support_torch_compile",
        "PublicAPI",
        "DeveloperAPI",
        "register",
        "instance",
        "default",
    ]
)
LOADED_NAMES = frozenset(each.rpartition(":")[2] for each in LOADED_BASES.values())


def full_name(facts: ModuleFacts, expression: str) -> str:
    """Return the full dotted name of an expression: "msgspec.Struct" for `Struct`."""
    first, _, rest = strip_subscript(expression).partition(".")
    for entry in module_index(facts).top.get(first, ()):
        if isinstance(entry, Import):
            return ".".join(filter(None, (*import_target(entry), rest)))
    return strip_subscript(expression)


def resolve_expression(
    modules: Modules, facts: ModuleFacts, expression: str, *, scope: str = ""
) -> LookupResult:
    """Return the definition to which a dotted expression in a scope of a module refers."""
    first, *rest = strip_subscript(expression).split(".")
    lookup_result = _first_definition(modules, facts, first, scope)
    for part in rest:
        if lookup_result.state != "defined":
            return lookup_result
        lookup_result = find_member(modules, lookup_result, part)
    return lookup_result


def strip_subscript(expression: str) -> str:
    """Return an expression without its subscript: "Generic" for "Generic[T]"."""
    return expression.partition("[")[0].strip()


def find_member(
    modules: Modules, lookup_result: LookupResult, name: str, *, called: bool = False
) -> LookupResult:
    """Return an attribute of a module or class. The attribute of any other object is unknown.

    With `called`, the attribute is a method that is called.
    """
    definition = lookup_result.definition
    if isinstance(definition, AssignedName):
        lookup_result = follow_assignment(modules, lookup_result)
        definition = lookup_result.definition
    if isinstance(definition, ModuleFacts):
        return look_up(modules, definition.module, name)
    if not isinstance(definition, Class):
        return LookupResult(state="unknown", trace=lookup_result.trace)
    chain = class_ancestors(modules, lookup_result)
    sources = module_sources(modules)
    for ancestor in chain:
        if ancestor.definition is None and sources is not None and _is_builtin(ancestor):
            continue
        if ancestor.definition is None:
            return LookupResult(state="unknown", trace=lookup_result.trace)
        here = _class_member(ancestor, name)
        if here is not None:
            return here
    absent = _is_absent(modules, lookup_result, chain, name, called=called)
    return LookupResult(state="absent" if absent else "unknown", trace=lookup_result.trace)


def _is_absent(
    modules: Modules,
    lookup_result: LookupResult,
    chain: Sequence[LookupResult],
    name: str,
    *,
    called: bool,
) -> bool:
    """Return whether an object certainly lacks an attribute that no class in `chain` defines."""
    sources = module_sources(modules)
    if sources is not None and sources.is_unchecked(chain):
        return False
    if called and sources is not None and sources.is_former(chain, name):
        return True
    instance_names = instance_attributes(modules, lookup_result)
    absent = instance_names is not None and name not in instance_names
    if called and instance_names is None and sources is not None and not lookup_result.ambiguous:
        absent = sources.is_removed(chain, name) and not sources.may_be_computed(chain, name)
    if absent and not (sources is not None and is_loaded_base(lookup_result)):
        absent = not _may_be_in_subclass(modules, lookup_result, name)
    if not absent or sources is None:
        return absent
    owners = tuple(
        (each.home.module, each.definition.name)
        for each in chain
        if isinstance(each.definition, Class) and each.home is not None
    )
    return not sources.may_be_assigned(owners, name)


def is_loaded_base(lookup_result: LookupResult) -> bool:
    """Return whether a class is the base of what the Auto classes of transformers load.

    Few of the subclasses define what the base does not have.
    """
    name = getattr(lookup_result.definition, "name", "")
    home = lookup_result.home.module if lookup_result.home is not None else ""
    return f"{home}:{name}" in LOADED_BASES.values()


def _may_be_in_subclass(modules: Modules, lookup_result: LookupResult, name: str) -> bool:
    """Return whether an object may belong to a subclass of its package that defines `name`."""
    if lookup_result.exact or lookup_result.home is None:
        return False
    package, sources = lookup_result.home.module.partition(".")[0], module_sources(modules)
    if sources is not None:
        return sources.may_be_in_subclass(lookup_result, name)
    # The name occurs somewhere in the package.
    return isinstance(modules, Searchable) and bool(modules.mentioning(package, name))


def _is_builtin(ancestor: LookupResult) -> bool:
    """Return whether the attributes of a base class that cannot be read are known."""
    base = ancestor.trace[0] if ancestor.trace else ""
    return base in _BASES or base in _ENUMERATIONS


def follow_assignment(modules: Modules, lookup_result: LookupResult) -> LookupResult:
    """Return the definition to which an assigned name refers, as in `X = module.Y`."""
    for _ in range(_DEPTH):
        definition = lookup_result.definition
        if not isinstance(definition, AssignedName) or lookup_result.home is None:
            return lookup_result
        value = definition.value
        if not value or not value.replace(".", "").replace("_", "").isalnum():
            return LookupResult(state="unknown", trace=lookup_result.trace)
        if value.partition(".")[0] == definition.name:
            return LookupResult(state="unknown", trace=lookup_result.trace)
        lookup_result = resolve_expression(modules, lookup_result.home, value)
    return LookupResult(state="unknown", trace=lookup_result.trace)


def convert_to_class(modules: Modules, lookup_result: LookupResult) -> LookupResult:
    """Return the class to which a name refers, or an unknown result."""
    lookup_result = follow_assignment(modules, lookup_result)
    if isinstance(lookup_result.definition, Class) and not lookup_result.ambiguous:
        return lookup_result
    return LookupResult(state="unknown", trace=lookup_result.trace)


def _first_definition(modules: Modules, facts: ModuleFacts, name: str, scope: str) -> LookupResult:
    table = module_index(facts)
    innermost = scope
    while scope:
        if scope != innermost and any(
            isinstance(definition, Class) for definition in table.members.get(scope, ())
        ):
            scope = scope.rpartition(".")[0]  # functions do not see the names of their class
            continue
        targets = {import_target(line) for line in table.scoped.get(scope, {}).get(name, ())}
        if len(targets) > 1:
            return LookupResult(state="unknown")  # of which branch is not known
        for module, other in targets:
            return look_up(modules, module, other) if other else look_up_module(modules, module)
        nested = table.members.get(f"{scope}.{name}")
        if nested:
            return LookupResult(state="defined", definition=nested[-1], home=facts)
        scope = scope.rpartition(".")[0]
    lookup_result = search_module(modules, facts, name)
    if lookup_result.state != "absent":
        return lookup_result
    # Only for type checkers, or a builtin: unknown.
    typed = [entry for entry in table.top.get(name, ()) if is_typing_only(entry.guards)]
    for entry in typed:
        module, other = getattr(entry, "module", ""), getattr(entry, "name", "")
        if module and other:
            return look_up(modules, module, other)
    return LookupResult(state="unknown")


def look_up_module(modules: Modules, name: str) -> LookupResult:
    """Return the module with this name as a lookup result."""
    facts = modules.module(name)
    if isinstance(facts, ModuleFacts):
        return LookupResult(state="defined", definition=facts, home=facts)
    return LookupResult(state="absent" if facts is None else "unknown")


def _class_member(lookup_result: LookupResult, name: str) -> LookupResult | None:
    definition, home = lookup_result.definition, lookup_result.home
    if not isinstance(definition, Class) or home is None:
        return None
    entries = module_index(home).members.get(f"{definition.name}.{name}")
    if entries:
        return LookupResult(state="defined", definition=entries[-1], home=home, owner=definition)
    if name in _names_in_class(home, definition):
        return LookupResult(state="defined", home=home, owner=definition)
    return None


def _names_in_class(home: ModuleFacts, definition: Class) -> frozenset[str]:
    """Return the attributes, methods, fields and imported names of a class, cached."""
    class_names = module_index(home).class_names
    entry = class_names.get(id(definition))
    if entry is None:
        fields = (field.name for field in definition.fields)
        names = frozenset(
            (
                *definition.attributes,
                *definition.methods,
                *fields,
                *_imported_names(home, definition),
            )
        )
        entry = class_names[id(definition)] = (definition, names)
    return entry[1]


def _imported_names(home: ModuleFacts, definition: Class) -> Iterable[str]:
    return module_index(home).scoped.get(definition.name, {})


def class_ancestors(
    modules: Modules, lookup_result: LookupResult, depth: int = 0
) -> list[LookupResult]:
    """Return a class and its bases in method resolution order.

    A base class that cannot be read is a LookupResult without a definition. A class that is
    inherited several times is listed at its last position, which rarely differs from Python's
    order.
    """
    definition, home = lookup_result.definition, lookup_result.home
    if not isinstance(definition, Class) or home is None or depth > _DEPTH:
        return [LookupResult(state="unknown")]
    results, key = cached_results(modules), ("ancestors", SameFacts(definition), SameFacts(home))
    kept: list[LookupResult] | None = results.get(key)
    if kept is None:
        kept = results[key] = _ancestors(modules, lookup_result, definition, home, depth)
    return [lookup_result if each.definition is definition else each for each in kept]


def _ancestors(
    modules: Modules, lookup_result: LookupResult, definition: Class, home: ModuleFacts, depth: int
) -> list[LookupResult]:
    order = [lookup_result]
    scope = definition.name.rpartition(".")[0]
    for base in definition.bases:
        if strip_subscript(base) in _PLAIN_BASES:
            continue
        parent = convert_to_class(modules, resolve_expression(modules, home, base, scope=scope))
        if parent.definition is None:
            parent = LookupResult(state="unknown", trace=(full_name(home, base),))
        order.extend(class_ancestors(modules, parent, depth + 1) if parent.definition else [parent])
    seen: set[int] = set()
    unique = []
    for ancestor in reversed(order):
        if ancestor.definition is None or id(ancestor.definition) not in seen:
            seen.add(id(ancestor.definition))
            unique.append(ancestor)
    return unique[::-1]


def find_metaclass(modules: Modules, lookup_result: LookupResult) -> str | None:
    """Return "" if the metaclass does not affect calls of the class, or None if it may."""
    for ancestor in class_ancestors(modules, lookup_result):
        if (
            isinstance(ancestor.definition, Class)
            and ancestor.definition.metaclass not in _METACLASSES
        ):
            return None
    return ""


def instance_attributes(modules: Modules, lookup_result: LookupResult) -> frozenset[str] | None:
    """Return all names that an instance of a class has, or None if it may have other names.

    Subclasses may have additional names.
    """
    if not isinstance(lookup_result.definition, Class) or lookup_result.ambiguous:
        return None
    names = set(_OBJECT)
    sources = module_sources(modules)
    readable = sources is not None
    for ancestor in class_ancestors(modules, lookup_result):
        definition = ancestor.definition
        if isinstance(definition, Class) and "dataclass" in str(definition.decorators):
            names.update(("__dataclass_fields__", "__dataclass_params__", "__match_args__"))
        base = ancestor.trace[0] if definition is None and ancestor.trace else ""
        base_names = _BASES.get(base) or (_ENUMERATIONS.get(base) if readable else None)
        if base_names is not None:
            names.update(base_names)
            continue
        if not isinstance(definition, Class):
            return None
        if definition.dynamic:
            home = ancestor.home
            computed = sources.computed_attributes(home, definition) if sources and home else None
            if computed is None:
                return None
            names.update(computed)
        if definition.metaclass not in _METACLASSES:
            return None
        if not all(decorator_name(text) in _KEEPING_DECORATORS for text in definition.decorators):
            return None
        names.update(definition.methods, definition.attributes)
        names.update(field.name for field in definition.fields)
        if ancestor.home is not None:
            names.update(_imported_names(ancestor.home, definition))
        prefix = f"{definition.name}."
        if ancestor.home is not None:
            names.update(
                inner.name.removeprefix(prefix)
                for inner in ancestor.home.classes
                if inner.name.startswith(prefix)
            )
    return frozenset(names)


def decorator_name(text: str) -> str:
    """Return the last component of a decorator's name.

    For example, it is "dataclass" for "dataclasses.dataclass()".
    """
    return text.partition("(")[0].rpartition(".")[2]
