"""Tests the folders of the package, their order, and the restrictions of modules."""

from __future__ import annotations

import ast
import fnmatch
import graphlib
import re
import subprocess
import sys
from collections import Counter

from tests.layers import CALLERS, EXTENDING, IMPORTERS, LEVELS, ROOT_MODULES
from tests.support.rows import each_row
from tests.support.source_code import (
    ROOT,
    all_nodes,
    called_names,
    internal_imports,
    module_imports,
    module_path,
    package_modules,
)

# How the first line of a module with one importer in its folder gives the reason for that.
SEPARATE = re.compile(r"^# A separate module: .+\.$", re.MULTILINE)


def test_repository_root_has_only_known_files():
    loose = {
        name for name in package_modules() if name and "." not in name and not _is_folder(name)
    }
    assert loose == {*ROOT_MODULES, "__main__"}


def test_every_folder_of_the_package_has_a_level():
    folders = {name.partition(".")[0] for name in package_modules() if name}
    assert folders == {name for level in LEVELS for name in level}


def test_folders_import_only_from_lower_levels():
    wrong = [
        f"{name or 'imgbuild'} imports {other}, which is not on a lower level"
        for name in package_modules()
        for other in internal_imports(name, package_modules())
        if other and name and _top(name) != _top(other)
        and not {_top(name), _top(other)} <= {*ROOT_MODULES}
        and _level(other) >= _level(name) and name != "__main__"
    ]  # fmt: skip
    assert not wrong


def test_modules_have_no_circular_imports():
    graph = {name: internal_imports(name, package_modules()) for name in package_modules()}
    list(graphlib.TopologicalSorter(graph).static_order())  # CycleError has the cycle


def test_folders_have_no_circular_imports():
    """All depths are checked. Modules directly in a folder with subfolders count as one folder."""
    graph: dict[str, set[str]] = {}
    for name in package_modules():
        for other in internal_imports(name, package_modules()):
            if _folder(name) != _folder(other):
                graph.setdefault(_folder(name), set()).add(_folder(other))
    list(graphlib.TopologicalSorter(graph).static_order())


def test_tree_in_architecture_page_is_current():
    command = [sys.executable, str(ROOT / "tools/architecture.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_folder_has_a_docstring():
    silent = [
        name for name, tree in package_modules().items() if _is_folder(name) and not tree.body
    ]
    assert not silent


@each_row("banned", IMPORTERS)
def test_restricted_imports_are_used_only_where_allowed(banned):
    wrong = [
        f"{name}:{line}"
        for name, tree in package_modules().items()
        if not any(_matches(name, allowed) for allowed in IMPORTERS[banned])
        for dotted, line in module_imports(tree)
        if dotted == banned or dotted.startswith(f"{banned}.")
    ]
    assert not wrong, f"only {IMPORTERS[banned]} may import {banned}"


@each_row("banned", CALLERS)
def test_restricted_calls_are_used_only_where_allowed(banned):
    wrong = [
        f"{name}:{line}"
        for name, tree in package_modules().items()
        if not any(_matches(name, allowed) for allowed in CALLERS[banned])
        for called, line in called_names(tree)
        if called == banned
    ]
    assert not wrong, f"only {CALLERS[banned]} may call {banned}()"


def test_no_class_inherits_from_a_class_in_the_same_folder():
    """This keeps files readable alone; protocols and msgspec values are excluded."""
    wrong = []
    for name, tree in package_modules().items():
        imported_trees = {
            other: package_modules()[other] for other in internal_imports(name, package_modules())
        }
        for node in all_nodes(tree):
            if isinstance(node, ast.ClassDef) and node.name not in EXTENDING:
                for base in map(ast.unparse, node.bases):
                    source = next(
                        (
                            o
                            for o in imported_trees
                            if _folder(o) == _folder(name) and _defines(o, base)
                        ),
                        "",
                    )
                    if source:
                        wrong.append(f"{name}: {node.name}({base}), which {source} defines")
    assert not wrong


def test_class_names_are_unique():
    """The name of a public class is unique in the package, except for a few terms of formats."""
    name_counts = Counter(
        node.name
        for tree in package_modules().values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not {name for name, number in name_counts.items() if number > 1}


def test_module_with_a_single_importer_in_its_folder_has_a_documented_reason():
    """A comment `# A separate module: reason.` follows its docstring."""
    importers: dict[str, set[str]] = {}
    for name in package_modules():
        for other in internal_imports(name, package_modules()):
            importers.setdefault(other, set()).add(name)
    single = {
        name
        for name, users in importers.items()
        if len(users) == 1
        and not any(map(_is_folder, (name, *users)))
        and {_folder(name)} == set(map(_folder, users))
    }
    explained = {
        name
        for name in package_modules()
        if SEPARATE.search(module_path(name).read_text(encoding="utf-8"))
    }
    assert single - explained == set(), (
        "merge these modules into their importers, or state why they are separate"
    )
    assert explained - single == set(), "these modules have other importers: remove the reason"


def test_no_protocol_is_defined_next_to_its_only_implementation():
    """The user of such a protocol can use the class instead."""
    classes = {
        node.name: (name, node)
        for name, tree in package_modules().items()
        for node in all_nodes(tree)
        if isinstance(node, ast.ClassDef)
    }
    protocols = {name for name, (_, node) in classes.items() if "Protocol" in _bases(node)}
    assert protocols
    members = {name: _members(name, classes) for name in classes}
    single = []
    for protocol in protocols:
        needed = members[protocol]
        implementations = {
            other for other in classes.keys() - protocols if needed <= members[other]
        }
        if len(implementations) == 1:
            (other,) = implementations
            if _folder(classes[other][0]) == _folder(classes[protocol][0]):
                single.append(f"{protocol}: {other}")
    assert not single


def _bases(node: ast.ClassDef) -> list[str]:
    """The names of base classes, without their modules and parameters."""
    return [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]


def _members(name: str, classes: dict[str, tuple[str, ast.ClassDef]]) -> set[str]:
    """The methods and attributes of a class of the package, including inherited ones."""
    if name not in classes:
        return set()
    _, node = classes[name]
    members = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    for each in ast.walk(node):
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            members.add(each.target.id)
        elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
            members.add(each.attr)  # self.name = …
    return members.union(*(_members(base, classes) for base in _bases(node)))


def _matches(name: str, pattern: str) -> bool:
    package = pattern.removesuffix(".*")
    return name == pattern or (
        pattern != package and (name == package or fnmatch.fnmatchcase(name, pattern))
    )


def _defines(module: str, name: str) -> bool:
    """Whether a module defines a class of this name that is neither a protocol nor a value."""
    return any(
        isinstance(node, ast.ClassDef)
        and node.name == name.rpartition(".")[2]
        and not {"Protocol", "msgspec.Struct"} & set(map(ast.unparse, node.bases))
        for node in package_modules()[module].body
    )


def _top(name: str) -> str:
    return name.partition(".")[0]


def _level(name: str) -> int:
    return next(number for number, level in enumerate(LEVELS) if _top(name) in level)


def _is_folder(name: str) -> bool:
    return (ROOT / "builder" / "imgbuild" / name.replace(".", "/")).is_dir()


def _folder(name: str) -> str:
    """The folder of a module. A module at the root counts as a folder."""
    if _is_folder(name):
        return name
    return name.rpartition(".")[0] or name
