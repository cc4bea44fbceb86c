"""Finds uses of names that the standard library of this Python lacks."""

from __future__ import annotations

import re

from imgbuild.audit.names.lookup import Entry, is_typing_only, module_index
from imgbuild.audit.names.model import Modules, stdlib_module
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import (
    Attribute,
    Call,
    Class,
    Import,
    ModuleFacts,
    import_target,
)


def missing_stdlib_name(
    modules: Modules, facts: ModuleFacts, fact: Call | Attribute
) -> tuple[str, str] | None:
    """Return the module and name that this Python lacks, or None.

    Returns None if Python has the name that the call or read uses, if that is unknown, or if the
    check `imports` reports it.
    """
    if fact.receiver:
        return None
    first, *rest = (fact.callee if isinstance(fact, Call) else fact.expression).split(".")
    origin = _origin(facts, first, fact.scope)
    if origin is None or stdlib_module(modules, origin[0].partition(".")[0]) is None:
        return None
    imported = [part for part in ".".join(origin).split(".") if part]
    parts = [*imported, *rest]
    for end in range(1, len(parts)):
        module = ".".join(parts[:end])
        standard_module = stdlib_module(modules, module)
        if standard_module is None:
            return None
        for length in (1, 2):  # of two parts: array.__class_getitem__
            name = ".".join(parts[end : end + length])
            # Names of the import itself belong to the check `imports`.
            if len(imported) < end + length <= len(parts) and name in standard_module.lacks:
                whole = f"{module}.{name}"
                return (
                    None if any(line.module == whole for line in facts.imports) else (module, name)
                )
    return None


def _origin(facts: ModuleFacts, name: str, scope: str) -> tuple[str, str] | None:
    """Return the module and name that an import binds to a name, or None if that is unclear."""
    known = module_index(facts).origins
    if (name, scope) not in known:
        origins = {
            import_target(entry) if isinstance(entry, Import) else None
            for entry in _bindings(facts, name, scope)
        }
        known[name, scope] = origins.pop() if len(origins) == 1 else None
    return known[name, scope]


def _bindings(facts: ModuleFacts, name: str, scope: str) -> list[Entry]:
    """Return the bindings of a name, from the innermost scope that imports it."""
    table = module_index(facts)
    around = table.members.get(scope, ())
    if any(
        isinstance(definition, Class) and _binds_name(definition, name) for definition in around
    ):
        return []  # a class body sees its own names first
    while scope:
        scoped = table.scoped.get(scope, {}).get(name)
        if scoped:
            return [*scoped]
        scope = scope.rpartition(".")[0]
    return [entry for entry in table.top.get(name, ()) if not is_typing_only(entry.guards)]


def _binds_name(owner: Class, name: str) -> bool:
    return name in owner.methods or any(
        field.name == name and field.default for field in owner.fields
    )


def is_assigned(
    package_set: ImportablePackages, facts: ModuleFacts, module: str, name: str
) -> bool:
    """Return whether the package of `facts` may assign the name: `inspect.getargspec = f`."""
    package = package_set.owner(facts.module) or ""
    files, root = package_set.modules_of(package), facts.module.partition(".")[0]
    for candidate in {facts.module, root, *package_set.mentioning(root, name)}:
        source = package_set.read(package, files[candidate]) if candidate in files else None
        if source and _assignment(package_set, candidate, module, name).search(source):
            return True
    return False


def _assignment(modules: Modules, inside: str, module: str, name: str) -> re.Pattern[bytes]:
    """Return a pattern for assignments to `module.name` in the source of the module `inside`."""
    facts = modules.module(inside)
    imports = facts.imports if isinstance(facts, ModuleFacts) else ()
    bound = {
        entry.bound for entry in imports if ".".join(filter(None, import_target(entry))) == module
    }
    words = "|".join(map(re.escape, sorted({module.rpartition(".")[2], *bound})))
    pattern = (
        rf"\b(?:{words})\.{name}\s*=(?!=)|\bsetattr\(\s*(?:{words})\b.*\b{name}\b"
        rf"|\b(?:{words})\.__dict__.*\b{name}\b"
    )
    return re.compile(pattern.encode())
