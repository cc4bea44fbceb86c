"""Adds the packages that the user lists to the entry points of the main path.

The user lists packages as pins of a target, as requirements of an extension, or as pins that are
audited without a target. If two listed packages integrate with each other, the modules for the
integration are also imported.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator

import msgspec

from imgbuild.audit.main_path import policy
from imgbuild.audit.main_path.policy import MainPathEntry, MainPathPolicy
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.audit.packages.reading import EXCLUDED_FOLDERS
from imgbuild.audit.source.facts import ModuleFacts, OpaqueModule

NAMED_REASON = "imported because the user lists it"
PART = "provides most lazily imported names of a package that the user lists"
INTEGRATION = "integrates another package that the user lists"
# Not followed: it is large, and has optional parts behind values that other modules compute.
EXCLUDED_PACKAGES = frozenset(("torch",))
# Folders without parts for other packages: wandb.vendor.pygments is a copy of Pygments, while
# verl.third_party.vllm is verl's part for vLLM.
_NO_PARTS = EXCLUDED_FOLDERS | {"vendor", "vendored"}
# Functions that are called with the name of a package to find or import.
_LOOKUPS = re.compile(
    r"import|find_spec|lazy|available|installed|require|version|distribution", re.IGNORECASE
)


def add_named_packages(
    package_set: PackageSet,
    named: Collection[str],
    added: Collection[str] = (),
    *,
    alone: bool = False,
) -> MainPathPolicy:
    """Return the default policy with the modules of `named` packages as additional entry points.

    Only top-level modules are added. Packages in `added` are also followed if another package
    imports them. `alone` omits the other entry points.
    """
    rules = policy.load_policy()
    roots = {
        module.partition(".")[0] for package in named for module in package_set.modules_of(package)
    }
    roots = {
        root
        for root in roots - EXCLUDED_FOLDERS
        if not root.startswith("_") and package_set.owner(root) in named
    }
    entries = [MainPathEntry(name=root, why=NAMED_REASON) for root in sorted(roots)]
    entries += [
        MainPathEntry(name=module, why=NAMED_REASON, optional=True)
        for package in sorted(named)
        for module in _namespace_modules(package_set.modules_of(package))
    ]
    entries += [
        MainPathEntry(name=module, why=INTEGRATION, optional=True)
        for module in _integrations(package_set, named, roots)
    ]
    excluded = EXCLUDED_PACKAGES | {
        package_set.owner(entry.name.partition(".")[0]) for entry in rules.entries
    }
    entries += [
        MainPathEntry(name=part, why=PART, optional=True)
        for entry in tuple(entries)
        if package_set.owner(entry.name) not in excluded
        for part in _main_parts(package_set, entry.name)
    ]
    return msgspec.structs.replace(
        rules,
        imported=frozenset((*named, *added)) - rules.walk - EXCLUDED_PACKAGES,
        entries=tuple(entries) if alone else (*rules.entries, *entries),
    )


def _namespace_modules(modules: Collection[str]) -> list[str]:
    """Return public modules directly below folders without `__init__` that no module imports."""
    return sorted(
        module
        for module in modules
        if module.count(".") == 1
        and module.partition(".")[0] not in modules
        and not any(part.startswith("_") or part in EXCLUDED_FOLDERS for part in module.split("."))
    )


def _main_parts(package_set: PackageSet, module: str) -> list[str]:
    """Return the module from which `module` lazily imports most names.

    If that module also imports its names lazily from many modules, the result also contains the
    module that most of them use.
    """
    places = _places(package_set, module)
    part, count = max(places.items(), key=lambda item: item[1], default=("", 0))
    if 2 * count <= places.total() or not package_set.exists(part):
        return []
    inner = _places(package_set, part)
    if not inner:
        return [part]
    root = part.partition(".")[0]
    files = package_set.modules_of(package_set.owner(root) or "")
    used = {
        name: len(package_set.mentioning(root, name.rpartition(".")[2]))
        for name in inner
        if files.get(name, "").endswith(".py") and not files[name].endswith("__init__.py")
    }
    hub = max(used, key=lambda name: used[name], default="")
    return [part, hub] if hub and 2 * used[hub] > len(inner) else [part]


def _places(package_set: PackageSet, module: str) -> Counter[str]:
    facts = package_set.module(module)
    if not isinstance(facts, ModuleFacts):
        return Counter()
    return Counter(place.partition(":")[0] for place in facts.lazy.values())


def _integrations(
    package_set: PackageSet, named: Collection[str], roots: Collection[str]
) -> list[str]:
    """Return the modules of `named` packages that integrate other named packages.

    An example is `lmformatenforcer.integrations.vllm`. The last component of such a module is the
    top-level module of the other package (one of `roots`), which the module uses.
    `torchvision.prototype.datasets` does not use the package datasets, so it is not an integration.
    """
    candidates = [
        module
        for package in sorted(named)
        for module in package_set.modules_of(package)
        if _is_named_as_integration(module, roots)
    ]
    package_set.prefetch(candidates)
    return [module for module in candidates if _uses_its_namesake(package_set, module)]


def _is_named_as_integration(module: str, roots: Collection[str]) -> bool:
    parts = module.split(".")
    return (
        parts[-1] in roots
        and parts[-1] != parts[0]
        and parts[0] in roots
        and not any(part.startswith("_") or part in _NO_PARTS for part in parts)
    )


def _uses_its_namesake(package_set: PackageSet, module: str) -> bool:
    """Return whether a module, or one that it contains or re-exports, uses its namesake."""
    name = module.rpartition(".")[2]
    below = [
        other
        for other in package_set.mentioning(module.partition(".")[0], name)
        if other.startswith(f"{module}.")
    ]
    inner = [*below, *_reexported_modules(package_set.module(module))]
    package_set.prefetch(inner)
    return any(_uses(package_set.module(part), name) for part in (module, *inner))


def _reexported_modules(facts: ModuleFacts | OpaqueModule | None) -> Iterator[str]:
    """Yield the modules from which a module without definitions re-exports names.

    Only modules of the same package are included.
    """
    if isinstance(facts, ModuleFacts) and not facts.functions and not facts.classes:
        root = facts.module.partition(".")[0]
        for line in facts.imports:
            if line.name and line.module.partition(".")[0] == root and not line.scope:
                yield f"{line.module}.{line.name}"
                if line.module != root:
                    yield line.module


def _uses(facts: ModuleFacts | OpaqueModule | None, name: str) -> bool:
    """Return whether a module imports the module `name` or a submodule, or tests for it by name."""
    if not isinstance(facts, ModuleFacts):
        return False
    if any(line.module.partition(".")[0] == name for line in facts.imports):
        return True
    return any(
        text.partition(".")[0] == name
        for call in facts.calls
        if _LOOKUPS.search(call.callee.rpartition(".")[2])
        for text in call.literals[:1]
    )
