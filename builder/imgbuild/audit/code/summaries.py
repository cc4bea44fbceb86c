"""Summarizes the parts of a module on which other files depend.

A summary consists of the names that the module binds, with signatures, types and conditions, but
without the bodies of functions. Bodies are included if conditions call functions (guards of kind
"result"), because these functions are evaluated, and if the module has a `__getattr__`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from imgbuild.audit.code.option_settings import OptionUse
from imgbuild.audit.code.shell import Command
from imgbuild.audit.code.variable_settings import FileVariables
from imgbuild.audit.names.lookup import may_add_names
from imgbuild.audit.source.facts import AssignedName, Class, Function, Guard, Import, ModuleFacts
from imgbuild.audit.source.program import PROGRAM
from imgbuild.values import sha256

_ROOT = re.compile(r"(?:not )?(\w+)")
Binding = Import | Function | Class | AssignedName


class Summary(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The summary of a module, used to determine which other modules a change affects.

    `interface` is a digest of the names that are visible to other modules. `named` are the modules
    and names to which the module refers. `evaluated` are the modules with functions that its
    conditions call. The bodies of these functions are included. `binding` are the functions that
    conditions on the module's bound names call. For `broken`, see ModuleFacts. `imports` are the
    imported top-level modules. `variables`, `options` and `commands` are the environment variables,
    the options and the command lines in the file.
    """

    interface: str
    named: tuple[str, ...] = ()
    evaluated: tuple[str, ...] = ()
    binding: tuple[str, ...] = ()
    broken: str = ""
    imports: tuple[str, ...] = ()
    variables: FileVariables = FileVariables()
    options: tuple[OptionUse, ...] = ()
    commands: tuple[Command, ...] = ()


def summarize_module(
    facts: ModuleFacts,
    variables: FileVariables,
    options: tuple[OptionUse, ...],
    commands: tuple[Command, ...],
) -> Summary:
    """Return the summary of a module with these variables, options and commands."""
    return Summary(
        interface=sha256(msgspec.msgpack.encode(_interface(facts))),
        named=tuple(dict.fromkeys(_named_modules(facts))),
        evaluated=tuple(
            sorted(_evaluated_modules(facts, [*_guards(facts), *_binding_guards(facts)]))
        ),
        binding=tuple(sorted(_evaluated_modules(facts, _binding_guards(facts)))),
        broken=facts.broken,
        imports=tuple(dict.fromkeys(line.module.partition(".")[0] for line in facts.imports)),
        variables=variables,
        options=options,
        commands=commands,
    )


def _bindings(facts: ModuleFacts) -> list[Binding]:
    """Return the bindings that other modules can use, in the order of the source."""
    classes = {definition.name for definition in facts.classes}
    bound: list[Binding] = [
        line for line in facts.imports if not line.scope or line.scope in classes
    ]
    bound += [*facts.functions, *facts.classes, *facts.assigned]
    bound = [entry for entry in bound if entry.name.partition(".")[0] != PROGRAM]
    return sorted(bound, key=lambda entry: entry.line)


def _interface(facts: ModuleFacts) -> list[Any]:
    """Return the definitions that lookups from other modules use, without positions."""
    return [
        [_drop_line(entry) for entry in _bindings(facts)],
        [facts.package, facts.exports, sorted(facts.lazy.items()), facts.lazy_stars],
        [facts.registers, sorted(facts.aliases.items()), facts.deleted, facts.dynamic],
        may_add_names(facts),
    ]


def _drop_line(entry: Binding) -> Binding:
    if isinstance(entry, Class):
        fields = tuple(msgspec.structs.replace(field, line=0) for field in entry.fields)
        return msgspec.structs.replace(entry, line=0, fields=fields)
    return msgspec.structs.replace(entry, line=0)


def _evaluated_modules(facts: ModuleFacts, guards: Iterable[Guard]) -> set[str]:
    """Return the modules with functions that these conditions call. "" is the module itself."""
    if any(function.name == "__getattr__" for function in facts.functions):
        return {""}
    roots = {
        _ROOT.match(guard.subject.split(":", 2)[2])
        for guard in set(guards)
        if guard.kind == "result"
    }
    modules: set[str] = set()
    for root in {match[1] if match is not None else "" for match in roots}:
        places = {
            f"{line.module}.{line.name}" if line.name else line.module
            for line in facts.imports
            if line.bound == root
        }
        modules |= places or {""}
    return modules


def _guards(facts: ModuleFacts) -> Iterator[Guard]:
    for entries in (facts.imports, facts.calls, facts.attributes):
        for entry in entries:
            yield from entry.guards


def _binding_guards(facts: ModuleFacts) -> Iterator[Guard]:
    """Yield the conditions on names visible to other modules, and on results of functions."""
    for entry in _bindings(facts):
        yield from entry.guards
        if isinstance(entry, Function):
            yield from (*entry.truthy, *entry.falsy)


def _named_modules(facts: ModuleFacts) -> Iterator[str]:
    yield facts.module
    for line in facts.imports:
        yield f"{line.module}.{line.name}" if line.name not in ("", "*") else line.module
    for target in (*facts.lazy.values(), *facts.aliases.values()):
        yield target.replace(":", ".")
    yield from facts.lazy_stars
    for call in facts.calls:
        yield from call.literals  # importlib.import_module("a.b")
