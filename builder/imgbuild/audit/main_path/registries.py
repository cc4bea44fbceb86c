"""Finds names that packages register themselves, because a second registration fails."""

from __future__ import annotations

import ast
from functools import lru_cache

from imgbuild.audit.main_path.policy import MainPathPolicy
from imgbuild.audit.names.scopes import Meaning
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import Call, Function
from imgbuild.audit.source.tree import walk_tree
from imgbuild.system.syntax import parse_source


def registered_name(
    package_set: ImportablePackages, rules: MainPathPolicy, call: Call, what: Meaning
) -> str | None:
    """Return the name that `call` registers although it is already registered, or None."""
    home, definition = what.found.home, what.found.definition
    if not call.literals or home is None or not isinstance(definition, Function):
        return None
    for registry in rules.registries:
        if registry.method != f"{home.module}.{definition.name}" or call.double_star:
            continue
        if registry.allowed_by in call.keywords:
            continue
        package = package_set.owner(home.module)
        for file in registry.files:
            source = package_set.read(package, file) if package is not None else None
            if source is not None and call.literals[0] in _keys(source, registry.table):
                return call.literals[0]
    return None


def has_registered_name(
    package_set: ImportablePackages, rules: MainPathPolicy, package: str, name: str
) -> bool:
    """Return whether `package` registers `name` in its own registry."""
    sources = (
        (package_set.read(package, file), registry.table)
        for registry in rules.registries
        for file in registry.files
    )
    return any(source is not None and name in _keys(source, table) for source, table in sources)


@lru_cache(maxsize=64)
def _keys(source: bytes, table: str) -> frozenset[str]:
    """Return the keys of the dict or list of pairs that a module assigns to `table`."""
    try:
        tree = parse_source(source)
    except SyntaxError:
        return frozenset()
    keys: set[str] = set()
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        if not any(isinstance(target, ast.Name) and target.id == table for target in targets):
            continue
        for node in walk_tree(statement):
            if isinstance(node, ast.Dict):
                keys.update(_text(key) for key in node.keys)
            elif isinstance(node, ast.Tuple) and len(node.elts) == 2:
                keys.add(_text(node.elts[0]))
    return frozenset(keys - {""})


def _text(node: ast.expr | None) -> str:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else ""
