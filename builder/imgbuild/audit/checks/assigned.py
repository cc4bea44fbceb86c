"""Names that a package assigns in modules of the standard library: `inspect.getargspec = f`."""

from __future__ import annotations

import re

from imgbuild.audit.names.model import Modules
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import ModuleFacts, import_target


def assigned(package_set: ImportablePackages, facts: ModuleFacts, module: str, name: str) -> bool:
    """Whether the package of `facts` may assign the name: `inspect.getargspec = f`."""
    package = package_set.owner(facts.module) or ""
    files, root = package_set.modules_of(package), facts.module.partition(".")[0]
    for candidate in {facts.module, root, *package_set.mentioning(root, name)}:
        source = package_set.read(package, files[candidate]) if candidate in files else None
        if source and _assignment(package_set, candidate, module, name).search(source):
            return True
    return False


def _assignment(modules: Modules, inside: str, module: str, name: str) -> re.Pattern[bytes]:
    """A pattern for assignments to `module.name` in the source of the module `inside`."""
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
