"""Summaries of modules: what findings in other files depend on (separate: runs in workers).

These are the names that the module binds, with their signatures, types and conditions, not the
bodies of its functions. Bodies count if conditions call functions (guards of kind "result"), since
these are evaluated, and if the module has a `__getattr__`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from imgbuild.audit.names.lookup import may_add_names
from imgbuild.audit.source.facts import Assigned, Class, Function, Guard, Import, ModuleFacts
from imgbuild.audit.source.module import PROGRAM
from imgbuild.values import sha256

Binding = Import | Function | Class | Assigned


class Summary(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`interface`: a digest of what other modules see. `named`: the modules and names it names.

    `evaluates`: its findings depend on the bodies of functions that it names. `broken` is as in
    ModuleFacts, `imports` are the top-level modules that it imports.
    """

    interface: str
    named: tuple[str, ...] = ()
    evaluates: bool = False
    broken: str = ""
    imports: tuple[str, ...] = ()


def summary(facts: ModuleFacts) -> Summary:
    """The summary of a module."""
    return Summary(
        interface=sha256(msgspec.msgpack.encode(_interface(facts))),
        named=tuple(dict.fromkeys(_named(facts))),
        evaluates=any(guard.kind == "result" for guard in _guards(facts))
        or any(function.name == "__getattr__" for function in facts.functions),
        broken=facts.broken,
        imports=tuple(dict.fromkeys(line.module.partition(".")[0] for line in facts.imports)),
    )


def _interface(facts: ModuleFacts) -> list[Any]:
    """What lookups from other modules use, without places; in the order of the source."""
    classes = {definition.name for definition in facts.classes}
    bound: list[Binding] = [
        line for line in facts.imports if not line.scope or line.scope in classes
    ]
    bound += [*facts.functions, *facts.classes, *facts.assigned]
    bound = [entry for entry in bound if entry.name.partition(".")[0] != PROGRAM]
    bound.sort(key=lambda entry: entry.line)
    return [
        [_without_line(entry) for entry in bound],
        [facts.package, facts.exports, sorted(facts.lazy.items()), facts.lazy_stars],
        [facts.registers, sorted(facts.aliases.items()), facts.deleted, facts.dynamic],
        may_add_names(facts),
    ]


def _without_line(entry: Binding) -> Binding:
    if isinstance(entry, Class):
        fields = tuple(msgspec.structs.replace(field, line=0) for field in entry.fields)
        return msgspec.structs.replace(entry, line=0, fields=fields)
    return msgspec.structs.replace(entry, line=0)


def _guards(facts: ModuleFacts) -> Iterator[Guard]:
    uses = (facts.imports, facts.functions, facts.classes, facts.assigned)
    for entries in (*uses, facts.calls, facts.attributes):
        for entry in entries:
            yield from entry.guards
    for function in facts.functions:
        yield from (*function.truthy, *function.falsy)


def _named(facts: ModuleFacts) -> Iterator[str]:
    yield facts.module
    for line in facts.imports:
        yield f"{line.module}.{line.name}" if line.name not in ("", "*") else line.module
    for target in (*facts.lazy.values(), *facts.aliases.values()):
        yield target.replace(":", ".")
    yield from facts.lazy_stars
    for call in facts.calls:
        yield from call.literals  # importlib.import_module("a.b")
