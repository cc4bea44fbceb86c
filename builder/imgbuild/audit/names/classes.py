"""Classes: their ancestors, members and attributes."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable

import msgspec

from imgbuild.audit.names.lookup import index, lookup, only_typing, search_module
from imgbuild.audit.names.model import LookupResult, Modules, Searchable
from imgbuild.audit.source.facts import (
    Assigned,
    Class,
    Function,
    Import,
    ModuleFacts,
    import_target,
)

# Bases that do not change the parameters of the constructor.
_PLAIN = frozenset(
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
_DEPTH = 30
# Class decorators that keep a class's attributes, by their last part.
_KEEPS = frozenset(
    [
        "dataclass",
        "config",
        "final",
        "runtime_checkable",
        "total_ordering",
        "deprecated",
        "experimental",
        "requires",
        "auto_docstring",
        "add_start_docstrings",
        "add_end_docstrings",
        "dataclass_transform",
        "unique",
        "support_torch_compile",
        "register",
        "instance",
        "default",
        "export",
    ]
)


def origin(facts: ModuleFacts, expression: str) -> str:
    """The dotted name by which an expression is known elsewhere: `Struct` is msgspec.Struct."""
    first, _, rest = bare(expression).partition(".")
    for entry in index(facts).top.get(first, ()):
        if isinstance(entry, Import):
            return ".".join(filter(None, (*import_target(entry), rest)))
    return bare(expression)


def resolve(
    modules: Modules, facts: ModuleFacts, expression: str, *, scope: str = ""
) -> LookupResult:
    """The definition that a dotted expression in a scope of this module refers to."""
    first, *rest = bare(expression).split(".")
    found = _first(modules, facts, first, scope)
    for part in rest:
        if found.state != "defined":
            return found
        found = member(modules, found, part)
    return found


def bare(expression: str) -> str:
    """An expression without its subscript: "Generic[T]" is Generic."""
    return expression.partition("[")[0].strip()


def member(modules: Modules, found: LookupResult, name: str) -> LookupResult:
    """An attribute of a module or class that was found; unknown for anything else."""
    definition = found.definition
    if isinstance(definition, Assigned):
        found = follow(modules, found)
        definition = found.definition
    if isinstance(definition, ModuleFacts):
        return lookup(modules, definition.module, name)
    if not isinstance(definition, Class):
        return LookupResult(state="unknown", trace=found.trace)
    chain = ancestors(modules, found)
    for one in chain:
        if one.definition is None:
            return LookupResult(state="unknown", trace=found.trace)
        here = _own_member(one, name)
        if here is not None:
            return here
    known = attributes(modules, found)
    absent = known is not None and name not in known
    if absent and not found.exact and found.home is not None and isinstance(modules, Searchable):
        # A subclass may have it: then the name occurs somewhere in the package.
        absent = not modules.mentioning(found.home.module.partition(".")[0], name)
    return LookupResult(state="absent" if absent else "unknown", trace=found.trace)


def follow(modules: Modules, found: LookupResult) -> LookupResult:
    """The definition that an assigned name refers to: `X = module.Y`."""
    for _ in range(_DEPTH):
        definition = found.definition
        if not isinstance(definition, Assigned) or found.home is None:
            return found
        value = definition.value
        if not value or not value.replace(".", "").replace("_", "").isalnum():
            return LookupResult(state="unknown", trace=found.trace)
        if value.partition(".")[0] == definition.name:
            return LookupResult(state="unknown", trace=found.trace)
        found = resolve(modules, found.home, value)
    return LookupResult(state="unknown", trace=found.trace)


def class_of(
    modules: Modules, facts: ModuleFacts, receiver: str, *, scope: str = ""
) -> LookupResult:
    """The class of the `receiver` of a Call or Attribute, if known.

    "X" is an instance of X or of a class derived from it; "X()" the result of calling X.
    """
    if not receiver.endswith("()"):
        return _instance(_as_class(modules, resolve(modules, facts, receiver, scope=scope)))
    callee = receiver[:-2]
    found = follow(modules, resolve(modules, facts, callee, scope=scope))
    definition = found.definition
    if isinstance(definition, Class):
        if found.ambiguous or metaclass(modules, found) is None:
            return LookupResult(state="unknown", trace=found.trace)
        return found
    if not isinstance(definition, Function) or found.ambiguous or found.home is None:
        return LookupResult(state="unknown", trace=found.trace)
    if definition.returns.strip("\"'") in ("Self", "typing.Self") and "." in callee:
        return _as_class(modules, resolve(modules, facts, callee.rpartition(".")[0], scope=scope))
    if not definition.returns or any("contextmanager" in text for text in definition.decorators):
        return LookupResult(state="unknown", trace=found.trace)
    return _instance(
        _as_class(modules, resolve(modules, found.home, definition.returns.strip("\"'")))
    )


def _instance(found: LookupResult) -> LookupResult:
    """The class in an annotation: the object may be of a subclass.

    An annotation with an Auto class of transformers means the class of the model that it loads.
    """
    name = getattr(found.definition, "name", "")
    if found.home is not None and re.match(r"Auto[A-Z]", name):
        return LookupResult(state="unknown", trace=found.trace)
    return msgspec.structs.replace(found, exact=False)


def _as_class(modules: Modules, found: LookupResult) -> LookupResult:
    found = follow(modules, found)
    if isinstance(found.definition, Class) and not found.ambiguous:
        return found
    return LookupResult(state="unknown", trace=found.trace)


def _first(modules: Modules, facts: ModuleFacts, name: str, scope: str) -> LookupResult:
    table = index(facts)
    innermost = scope
    while scope:
        if scope != innermost and any(
            isinstance(one, Class) for one in table.members.get(scope, ())
        ):
            scope = scope.rpartition(".")[0]  # functions do not see the names of their class
            continue
        for line in reversed(table.scoped.get(scope, ())):
            if line.bound == name:
                module, other = import_target(line)
                return lookup(modules, module, other) if other else module_of(modules, module)
        nested = table.members.get(f"{scope}.{name}")
        if nested:
            return LookupResult(state="defined", definition=nested[-1], home=facts)
        scope = scope.rpartition(".")[0]
    found = search_module(modules, facts, name)
    if found.state != "absent":
        return found
    # Only for type checkers, or a builtin: unknown.
    typed = [entry for entry in table.top.get(name, ()) if only_typing(entry.guards)]
    for entry in typed:
        module, other = getattr(entry, "module", ""), getattr(entry, "name", "")
        if module and other:
            return lookup(modules, module, other)
    return LookupResult(state="unknown")


def module_of(modules: Modules, name: str) -> LookupResult:
    """A module by its name, as a LookupResult."""
    facts = modules.module(name)
    if isinstance(facts, ModuleFacts):
        return LookupResult(state="defined", definition=facts, home=facts)
    return LookupResult(state="absent" if facts is None else "unknown")


def _own_member(found: LookupResult, name: str) -> LookupResult | None:
    """A member that the class itself defines."""
    definition, home = found.definition, found.home
    if not isinstance(definition, Class) or home is None:
        return None
    entries = index(home).members.get(f"{definition.name}.{name}")
    if entries:
        return LookupResult(state="defined", definition=entries[-1], home=home, owner=definition)
    if name in definition.attributes or name in definition.methods:
        return LookupResult(state="defined", home=home, owner=definition)
    if any(field.name == name for field in definition.fields):
        return LookupResult(state="defined", home=home, owner=definition)
    return None


def ancestors(modules: Modules, found: LookupResult, depth: int = 0) -> list[LookupResult]:
    """A class and its bases in the order of lookup.

    A base that cannot be read is a LookupResult without a definition. A class that is inherited
    several times has its last place, which is Python's order in all but rare cases.
    """
    definition, home = found.definition, found.home
    if not isinstance(definition, Class) or home is None or depth > _DEPTH:
        return [LookupResult(state="unknown")]
    order = [found]
    scope = definition.name.rpartition(".")[0]
    for base in definition.bases:
        if bare(base) in _PLAIN:
            continue
        parent = _as_class(modules, resolve(modules, home, base, scope=scope))
        if parent.definition is None:
            parent = LookupResult(state="unknown", trace=(origin(home, base),))
        order.extend(ancestors(modules, parent, depth + 1) if parent.definition else [parent])
    seen: set[int] = set()
    kept = []
    for one in reversed(order):
        if one.definition is None or id(one.definition) not in seen:
            seen.add(id(one.definition))
            kept.append(one)
    return kept[::-1]


def metaclass(modules: Modules, found: LookupResult) -> str | None:
    """Empty for an ordinary metaclass; None for one that may change what a call does."""
    for one in ancestors(modules, found):
        if isinstance(one.definition, Class) and one.definition.metaclass not in _METACLASSES:
            return None
    return ""


def attributes(modules: Modules, found: LookupResult) -> frozenset[str] | None:
    """All names that an instance of a class has; None if there may be others.

    This is for the class itself; subclasses can have more.
    """
    if not isinstance(found.definition, Class) or found.ambiguous:
        return None
    names = set(_OBJECT)
    for one in ancestors(modules, found):
        definition = one.definition
        if isinstance(definition, Class) and "dataclass" in str(definition.decorators):
            names.update(("__dataclass_fields__", "__dataclass_params__", "__match_args__"))
        known = _BASES.get(one.trace[0] if definition is None and one.trace else "")
        if known is not None:
            names.update(known)
            continue
        if not isinstance(definition, Class) or definition.dynamic:
            return None
        if definition.metaclass not in _METACLASSES:
            return None
        if not all(decorator_name(text) in _KEEPS for text in definition.decorators):
            return None
        names.update(definition.methods, definition.attributes)
        names.update(field.name for field in definition.fields)
        prefix = f"{definition.name}."
        if one.home is not None:
            names.update(
                inner.name.removeprefix(prefix)
                for inner in one.home.classes
                if inner.name.startswith(prefix)
            )
    return frozenset(names)


def decorator_name(text: str) -> str:
    """The last part of a decorator's name: "dataclasses.dataclass(frozen=True)" is dataclass."""
    return text.partition("(")[0].rpartition(".")[2]
