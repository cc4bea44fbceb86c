"""Looks up names in modules, including re-exports, star imports, lazy tables and submodules.

A name is "absent" only if Python would not find it either. It is "unknown" if it may exist although
the facts do not show it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from imgbuild.audit.names.model import (
    LookupResult,
    LookupState,
    Modules,
    Searchable,
    cached_results,
    module_sources,
)
from imgbuild.audit.source.facts import (
    AssignedName,
    Class,
    Function,
    Guard,
    Import,
    ModuleFacts,
    OpaqueModule,
    import_target,
)

ABSENT_RESULT = LookupResult(state="absent")
UNKNOWN_RESULT = LookupResult(state="unknown")

# Attributes of every module.
_MODULE_ATTRIBUTES = frozenset(
    [
        "__annotations__",
        "__builtins__",
        "__cached__",
        "__dict__",
        "__doc__",
        "__file__",
        "__loader__",
        "__name__",
        "__package__",
        "__spec__",
        "__class__",
    ]
)
_ADDING_CALLS = re.compile(r"lazy_import|\.BuildMessageAndEnumDescriptors$")
_DEPTH = 40
# With more modules than this, only those that contain the word are searched.
_FEW_MODULES = 8
_MOST_INDEXES = 8192

Entry = Function | Class | AssignedName | Import


def look_up(modules: Modules, module: str, name: str) -> LookupResult:
    """Return the result of `from module import name`."""
    results, key = cached_results(modules), (module, name)
    result: LookupResult | None = results.get(key)
    if result is None:
        result = results[key] = _search_module(modules, module, name, ())
    return result


class NameIndex:
    """The definitions of a module by top-level name, and its members by qualified name."""

    def __init__(self, facts: ModuleFacts) -> None:
        self.top: dict[str, list[Entry]] = {}
        self.members: dict[str, list[Function | Class]] = {}
        self.stars: list[Import] = []
        self.scoped: dict[str, dict[str, list[Import]]] = {}  # by scope and bound name
        # Name and scope of a use → the module and name that it imports; of `checks.standard`.
        self.origins: dict[tuple[str, str], tuple[str, str] | None] = {}
        # The names in each class, by its identity; of `classes`.
        self.class_names: dict[int, tuple[Class, frozenset[str]]] = {}
        defined: tuple[Function | Class, ...] = (*facts.functions, *facts.classes)
        for entry in defined:
            if isinstance(entry, Function) and _is_variant(entry):
                continue
            self.members.setdefault(entry.name, []).append(entry)
            if "." not in entry.name:
                self.top.setdefault(entry.name, []).append(entry)
        for assigned in facts.assigned:
            self.top.setdefault(assigned.name, []).append(assigned)
        for line in facts.imports:
            if line.scope:
                self.scoped.setdefault(line.scope, {}).setdefault(line.bound, []).append(line)
            elif line.name == "*":
                self.stars.append(line)
            else:
                self.top.setdefault(line.bound, []).append(line)
        for entries in self.top.values():
            entries.sort(key=lambda entry: entry.line)


# By the identity of facts, which an entry keeps alive: their content is slow to hash.
_indexes: dict[int, tuple[ModuleFacts, NameIndex]] = {}


def module_index(facts: ModuleFacts) -> NameIndex:
    """Return the cached index of a module."""
    entry = _indexes.get(id(facts))
    if entry is None:
        if len(_indexes) >= _MOST_INDEXES:
            del _indexes[next(iter(_indexes))]
        entry = _indexes[id(facts)] = (facts, NameIndex(facts))
    return entry[1]


def is_typing_only(guards: tuple[Guard, ...]) -> bool:
    """Return whether code with these guards runs only for type checkers."""
    return any(guard.kind == "typing" for guard in guards)


class SameFacts:
    """Wraps facts to compare them by identity, which is faster than a comparison of contents."""

    __slots__ = ("facts",)

    def __init__(self, facts: Any) -> None:
        self.facts = facts

    def __hash__(self) -> int:
        return id(self.facts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameFacts) and other.facts is self.facts


def _is_variant(function: Function) -> bool:
    """Return whether a function is an overload, a setter or a similar variant of another."""
    return bool(function.decorators) and any(
        decorator.split("(")[0].rsplit(".", 1)[-1]
        in ("overload", "setter", "deleter", "getter", "register")
        for decorator in function.decorators
    )


def _search_module(modules: Modules, module: str, name: str, path: tuple[str, ...]) -> LookupResult:
    step = f"{module}:{name}"
    facts = modules.module(module)
    if facts is None or isinstance(facts, OpaqueModule):
        target = _alias(modules, module)
        if target and step not in path:
            return _search_module(modules, target, name, (*path, step))
    if facts is None:
        return _missing_module_result(modules, module, (*path, step))
    if isinstance(facts, OpaqueModule) and name in facts.lacks:
        return LookupResult(state="absent", trace=(*path, step))
    if isinstance(facts, OpaqueModule) or facts.broken or len(path) > _DEPTH:
        return LookupResult(state="unknown", trace=(*path, step))
    if step in path:
        return _submodule(modules, facts, name, path) or LookupResult(state="unknown", trace=path)
    return search_module(modules, facts, name, (*path, step))


def search_module(
    modules: Modules, facts: ModuleFacts, name: str, path: tuple[str, ...] = ()
) -> LookupResult:
    """Return the definition of a name at the top level of a module."""
    bound = module_index(facts).top.get(name, ())
    entries = [entry for entry in bound if not is_typing_only(entry.guards)]
    if name in facts.deleted:
        return LookupResult(state="unknown", trace=path)
    if entries:
        return _choose_definition(modules, facts, entries, path)
    if _is_torch_name(facts.module, name):
        return LookupResult(state="unknown", trace=path)
    if name in _MODULE_ATTRIBUTES or (facts.package and name == "__path__"):
        return LookupResult(state="defined", home=facts, trace=path)
    if bound and module_sources(modules) is not None:
        imports_submodule = all(
            isinstance(entry, Import) and import_target(entry) == (facts.module, name)
            for entry in bound
        )
        submodule = _submodule(modules, facts, name, path) if imports_submodule else None
        if submodule is not None:  # `from package import name` in the package itself
            return submodule
    for lookup_result in (
        _lazy_result(modules, facts, name, path),
        _star_result(modules, facts, name, path),
        # What type checkers see of a dynamic module may be a name in the submodule.
        None if bound and facts.dynamic else _submodule(modules, facts, name, path),
    ):
        if lookup_result is not None:
            return lookup_result
    dynamic = facts.dynamic or may_add_names(facts) or _has_getattr_class(facts)
    unknown = dynamic and not _is_rejected(modules, facts, name)
    return LookupResult(state="unknown" if unknown else "absent", trace=path)


def _is_rejected(modules: Modules, facts: ModuleFacts, name: str) -> bool:
    read = module_sources(modules)
    return read is not None and read.attribute_raises(facts, name)


def may_add_names(facts: ModuleFacts) -> bool:
    """Return whether a module calls a function that adds names, such as `lazy_import`."""
    return any(
        not call.scope and call.positional and _ADDING_CALLS.search(call.callee)
        for call in facts.calls
    )


def _has_getattr_class(facts: ModuleFacts) -> bool:
    """Return whether `__getattr__` is a class instead of a function, as in matplotlib.

    A decorator turns the class into a function that returns the values of its properties.
    """
    return any(isinstance(entry, Class) for entry in module_index(facts).top.get("__getattr__", ()))


def _is_torch_name(module: str, name: str) -> bool:
    """Return whether torch's compiled code adds this name, such as `torch.cuda.FloatTensor`."""
    return module.startswith("torch.") and name.endswith(("Tensor", "Storage"))


def _missing_module_result(modules: Modules, module: str, path: tuple[str, ...]) -> LookupResult:
    """Return the result for a module without a file.

    The result is unknown if a parent may add the module to sys.modules.
    """
    parent = module.rpartition(".")[0]
    while parent:
        facts = modules.module(parent)
        if isinstance(facts, OpaqueModule):
            return LookupResult(state="unknown", trace=path)
        if facts is not None and any(matches_pattern(module, entry) for entry in facts.registers):
            return LookupResult(state="unknown", trace=path)
        parent = parent.rpartition(".")[0]
    return LookupResult(state="absent", trace=path)


def _alias(modules: Modules, module: str) -> str:
    """Return the module that a parent registers as `module` in sys.modules, or ""."""
    parent = module.rpartition(".")[0]
    facts = modules.module(parent) if parent else None
    return facts.aliases.get(module, "") if isinstance(facts, ModuleFacts) else ""


def matches_pattern(module: str, pattern: str) -> bool:
    """Return whether a registered name is this module or one of its parents.

    In the registered name, "*" stands for any text.
    """
    if "*" not in pattern:
        return module == pattern or module.startswith(pattern + ".")
    head, _, tail = pattern.partition("*")
    return module.startswith(head) and tail.rpartition("*")[2] in module[len(head) :]


def _choose_definition(
    modules: Modules, facts: ModuleFacts, entries: list[Entry], path: tuple[str, ...]
) -> LookupResult:
    """Return the definition of a name with several bindings: the last one without guards."""
    if len(entries) == 1 and not entries[0].guards:
        only = _entry(modules, facts, entries[0], path)
        return LookupResult(state="unknown", trace=path) if only.state == "absent" else only
    last = max((i for i, entry in enumerate(entries) if not entry.guards), default=0)
    lookup_results = [_entry(modules, facts, entry, path) for entry in entries[last:]]
    there = [
        (entry, result)
        for entry, result in zip(entries[last:], lookup_results, strict=True)
        if result.state != "absent"
    ]
    if not there:
        # The import itself fails, or its failure is handled.
        return LookupResult(state="unknown", trace=path)
    first = next((result for _, result in there if result.definition is not None), there[0][1])
    remade = _wrapped_definition(facts, entries[: last + 1])
    if remade is not None:
        return LookupResult(
            state="defined", definition=remade, home=facts, trace=path, ambiguous=True
        )
    rivals = [
        result
        for entry, result in there
        if result.definition is not first.definition
        and not any(guard.kind == "absent" for guard in entry.guards)
    ]
    if not rivals:
        entry = next(entry for entry, result in there if result is first)
        tried = isinstance(entry, Import) and any(guard.kind == "handled" for guard in entry.guards)
        return msgspec.structs.replace(first, tried=True) if tried else first
    return LookupResult(
        state=first.state,
        definition=first.definition,
        home=first.home,
        owner=first.owner,
        trace=first.trace,
        ambiguous=True,
    )


def _wrapped_definition(facts: ModuleFacts, entries: list[Entry]) -> Function | Class | None:
    """Return the class or function X that is wrapped in `X = f(X)`."""
    last = entries[-1]
    if not isinstance(last, AssignedName) or not last.value.endswith("()") or not facts.classes:
        return None
    before = entries[-2] if len(entries) > 1 else None
    return before if isinstance(before, (Function, Class)) else None


def _entry(
    modules: Modules, facts: ModuleFacts, entry: Entry, path: tuple[str, ...]
) -> LookupResult:
    if not isinstance(entry, Import):
        return LookupResult(state="defined", definition=entry, home=facts, trace=path)
    module, name = import_target(entry)
    if name and not path:
        return look_up(modules, module, name)
    return (
        _search_module(modules, module, name, path)
        if name
        else module_result(modules, module, path)
    )


def module_result(modules: Modules, module: str, path: tuple[str, ...] = ()) -> LookupResult:
    """Return the lookup result for a name that refers to a module."""
    facts = modules.module(module)
    if facts is None:
        return _missing_module_result(modules, module, (*path, module))
    if isinstance(facts, OpaqueModule):
        return LookupResult(state="unknown", trace=(*path, module))
    return LookupResult(state="defined", definition=facts, home=facts, trace=(*path, module))


def _lazy_result(
    modules: Modules, facts: ModuleFacts, name: str, path: tuple[str, ...]
) -> LookupResult | None:
    target = facts.lazy.get(name)
    if target == "":
        state: LookupState = "absent" if _is_rejected(modules, facts, name) else "defined"
        return LookupResult(state=state, home=facts if state == "defined" else None, trace=path)
    if target is not None:
        module, _, other = target.partition(":")
        if not other and module.rpartition(".")[2] == name:
            lookup_result = module_result(modules, module, path)
            inner = lookup_result.home
            if inner is not None and name in module_index(inner).top:
                # The table may mean the name in the submodule, as huggingface_hub.utils.tqdm.
                return LookupResult(state="unknown", trace=path)
        else:
            lookup_result = _search_module(modules, module, other or name, path)
        return (
            lookup_result
            if lookup_result.state != "absent"
            else LookupResult(state="unknown", trace=path)
        )
    if not facts.lazy_stars:
        return None
    for star in _likely_modules(modules, facts, name):
        lookup_result = _exported_result(modules, star, name, path)
        if lookup_result.state != "absent":
            return lookup_result
    # transformers has replacements for the names of its former fast classes.
    return LookupResult(state="unknown", trace=path) if name.endswith("Fast") else None


def _likely_modules(modules: Modules, facts: ModuleFacts, name: str) -> Iterator[str]:
    """Yield the modules from which a name may be lazily imported, most likely ones first.

    If there are many, only modules whose source contains the name are included.
    """
    stars = facts.lazy_stars
    if len(stars) > _FEW_MODULES:
        word = name.lower()
        first = [
            star for star in stars if word.startswith(star.rpartition(".")[2].replace("_", ""))
        ]
        yield from first
        stars = tuple(star for star in stars if star not in first)
        if isinstance(modules, Searchable):
            modules.read_ahead(facts.module)
            holders = set(modules.mentioning(facts.module, name))
            while parents := {holder.rpartition(".")[0] for holder in holders} - holders:
                holders |= parents
            stars = tuple(star for star in stars if star.endswith("*") or star in holders)
    yield from stars


def _star_result(
    modules: Modules, facts: ModuleFacts, name: str, path: tuple[str, ...]
) -> LookupResult | None:
    doubt = None
    for star in module_index(facts).stars:
        if is_typing_only(star.guards):
            continue
        lookup_result = _exported_result(modules, star.module, name, path)
        if lookup_result.state == "defined":
            return lookup_result
        if lookup_result.state == "unknown":
            doubt = lookup_result
    return doubt


def _exported_result(
    modules: Modules, module: str, name: str, path: tuple[str, ...]
) -> LookupResult:
    """Return the name that `from module import *` binds.

    A module "a.b.*" stands for every module below a.b.
    """
    if module.endswith(".*"):
        return _nested_result(modules, module[:-2], name, path)
    if f"*{module}:{name}" in path:
        return ABSENT_RESULT
    facts = modules.module(module)
    if facts is None:
        return ABSENT_RESULT
    path = (*path, f"*{module}:{name}")
    if isinstance(facts, OpaqueModule) or facts.broken:
        return LookupResult(state="unknown", trace=path)
    if facts.exports is not None:
        if name in facts.exports:
            return search_module(modules, facts, name, path)
        lazily = _lazy_result(modules, facts, name, path)
        return lazily or ABSENT_RESULT
    if name.startswith("_"):
        return ABSENT_RESULT
    lookup_result = search_module(modules, facts, name, path)
    is_submodule = isinstance(lookup_result.definition, ModuleFacts)
    return ABSENT_RESULT if is_submodule and not _loads(facts, name) else lookup_result


def _loads(facts: ModuleFacts, name: str) -> bool:
    """Return whether a package imports from its submodule, which binds the submodule's name."""
    submodule = f"{facts.module}.{name}"
    return any(
        not line.scope and f"{line.module}.".startswith(f"{submodule}.") for line in facts.imports
    )


def _nested_result(
    modules: Modules, package: str, name: str, path: tuple[str, ...]
) -> LookupResult:
    if not isinstance(modules, Searchable):
        return LookupResult(state="unknown", trace=path)
    for module in modules.mentioning(package, name):
        facts = modules.module(module)
        if isinstance(facts, ModuleFacts) and name in (facts.exports or ()):
            lookup_result = search_module(modules, facts, name, path)
            if lookup_result.state == "defined":
                return lookup_result
    return ABSENT_RESULT


def _submodule(
    modules: Modules, facts: ModuleFacts, name: str, path: tuple[str, ...]
) -> LookupResult | None:
    if not facts.package:
        return None
    lookup_result = module_result(modules, f"{facts.module}.{name}", path)
    return None if lookup_result.state == "absent" else lookup_result
