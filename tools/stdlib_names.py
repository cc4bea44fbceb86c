#!/usr/bin/env python3
"""Writes data/audit/stdlib.yaml, which lists names that not every Python version has.

The names of the standard library are from typeshed, as installed with mypy. Each interpreter PYTHON
checks every name. Names for which an interpreter contradicts typeshed are omitted. Pass an
interpreter of each supported version: tools/stdlib_names.py python3.10 python3.11 python3.12
python3.13
"""

from __future__ import annotations

import argparse
import ast
import json
import operator
import subprocess
import textwrap
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mypy
from packaging.specifiers import SpecifierSet
from packaging.version import Version

Release = tuple[int, int]
VERSIONS: list[Release] = [(3, minor) for minor in range(10, 15)]
TYPESHED = Path(mypy.__file__).parent / "typeshed" / "stdlib"
OUTPUT = Path(__file__).parents[1] / "builder/imgbuild/data/audit/stdlib.yaml"
HEAD = """\
# Names of the standard library that not all of Python {first} to {last} have on Linux, by the
# versions that have them: modules, names in modules, and classes that are subscriptable
# (array.array[int]).
# Names that are not listed are not checked. Names of 3.14 are as typeshed has them.
# Written by tools/stdlib_names.py from typeshed, as of mypy {mypy}, and compared with Python
# {checked}.

"""
COMPARES = {
    ast.GtE: operator.ge, ast.Gt: operator.gt, ast.LtE: operator.le, ast.Lt: operator.lt,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
# Not listed: modules whose names are reused by others, modules for other systems than Linux, and
# the many constants of libraries.
REPEATED = ("genericpath", "ntpath", "posix", "posixpath", "sqlite3.dbapi2")
OTHER_SYSTEMS = frozenset(("AndroidVer", "IOSVersionInfo", "android_ver", "ios_ver"))
CONSTANTS = ("BDADDR_", "BT_", "HCI_", "L2CAP_", "SQLITE_", "XML_ERROR_")
SUBSCRIPT = "[]"  # after the name of a class that can be subscripted
# Run by each PYTHON: whether the names of modules exist; not of modules excluded from its build.
PROBE = """
import importlib, json, sys, warnings

def there(name):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        return False if name.startswith(error.name) else None
    except Exception:
        return None
    return True

def has(module, name):
    if not module:
        return name in sys.stdlib_module_names
    value = sys.modules[module]
    name, subscript, _ = name.partition("[")
    if not hasattr(value, name) and not subscript:
        return there(f"{module}.{name}")
    return hasattr(getattr(value, name, None), "__class_getitem__") if subscript else True

warnings.simplefilter("ignore")
found = {
    module: {name: has(module, name) for name in names}
    for module, names in json.load(sys.stdin).items()
    if not module or there(module)
}
release = "{}.{}".format(*sys.version_info)
json.dump([sys.version.split()[0], release, found], sys.stdout)
"""


class StdlibStubs:
    """The stubs of the standard library for one version of Python."""

    def __init__(self, version: Release) -> None:
        self.version = version
        self._lifetimes = dict(_lifetimes())
        self._names: dict[str, frozenset[str]] = {}

    def has(self, module: str) -> bool:
        """Return whether this version has a module."""
        while module not in self._lifetimes:
            module = module.rpartition(".")[0]
        first, last = self._lifetimes[module]
        parent = module.rpartition(".")[0]
        return first <= self.version <= last and (not parent or self.has(parent))

    def names(self, module: str) -> frozenset[str]:
        """Return the public names of a module, and its subscriptable classes as "X[]"."""
        if module not in self._names:
            self._names[module] = frozenset()  # for modules that import each other
            tree = ast.parse(stub_path(module).read_text(encoding="utf-8"))
            bound_names = set(self._bound_names(tree.body, module))
            self._names[module] = frozenset(
                name for name in bound_names if not name.startswith("_")
            )
        return self._names[module]

    def _bound_names(self, body: Iterable[ast.stmt], module: str) -> Iterator[str]:
        for node in self._taken_branches(body):
            match node:
                case ast.ImportFrom():
                    yield from self._reexported_names(node, module)
                case ast.Import():
                    yield from (alias.name for alias in node.names if alias.asname == alias.name)
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    if not any("type_check_only" in ast.unparse(d) for d in node.decorator_list):
                        yield node.name
                    members = node.body if isinstance(node, ast.ClassDef) else ()
                    if "__class_getitem__" in self._bound_names(members, module):
                        yield node.name + SUBSCRIPT
                case ast.Assign():
                    yield from (
                        target.id for target in node.targets if isinstance(target, ast.Name)
                    )
                case ast.AnnAssign(target=ast.Name(id=name)):
                    yield name

    def _reexported_names(self, node: ast.ImportFrom, module: str) -> Iterator[str]:
        """Yield the names that `from a import b as b` or `from a import *` re-exports."""
        base = module if stub_path(module).name == "__init__.pyi" else module.rpartition(".")[0]
        above = base.split(".")[: len(base.split(".")) - node.level + 1] if node.level else []
        source = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            if alias.name == "*":
                yield from (name for name in self.names(source) if not name.endswith(SUBSCRIPT))
            elif alias.asname == alias.name:
                yield alias.name

    def _taken_branches(self, body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
        """Yield the statements in the branches for this version on Linux."""
        for node in body:
            if isinstance(node, ast.If):
                yield from self._taken_branches(
                    node.body if self._test_holds(node.test) else node.orelse
                )
            else:
                yield node

    def _test_holds(self, test: ast.expr) -> bool:
        match test:
            case ast.BoolOp(op=ast.And()):
                return all(map(self._test_holds, test.values))
            case ast.BoolOp(op=ast.Or()):
                return any(map(self._test_holds, test.values))
            case ast.UnaryOp(op=ast.Not()):
                return not self._test_holds(test.operand)
            case ast.Compare(ops=[sign], comparators=[right]):
                have: dict[str, Any] = {"sys.version_info": self.version, "sys.platform": "linux"}
                left = have[ast.unparse(test.left)]
                return bool(COMPARES[type(sign)](left, ast.literal_eval(right)))
            case ast.Name(id="TYPE_CHECKING"):
                return True
        raise ValueError(ast.unparse(test))


def _lifetimes() -> Iterator[tuple[str, tuple[Release, Release]]]:
    """Yield each module with its first and last version."""
    for line in (TYPESHED / "VERSIONS").read_text(encoding="utf-8").splitlines():
        module, _, lifetime = line.partition("#")[0].partition(":")
        if lifetime:
            first, _, last = lifetime.strip().partition("-")
            yield module, (_version(first), _version(last) if last else (9, 0))


def _version(text: str) -> Release:
    major, minor = text.split(".")
    return int(major), int(minor)


def stub_path(module: str) -> Path:
    """Return the stub of a module."""
    path = TYPESHED.joinpath(*module.split("."))
    return path / "__init__.pyi" if path.is_dir() else path.with_suffix(".pyi")


def public_modules() -> list[str]:
    """Return all modules whose names have no component that starts with an underscore."""
    modules = []
    for path in sorted(TYPESHED.rglob("*.pyi")):
        parts = path.relative_to(TYPESHED).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if not any(part.startswith("_") for part in parts) and ".".join(parts) not in REPEATED:
            modules.append(".".join(parts))
    return modules


def specifier(having: list[Release], among: list[Release]) -> str:
    """Return the specifier of the versions `having`.

    Returns "" for all versions, or for a range with gaps.
    """
    first, last = among.index(having[0]), among.index(having[-1])
    if having != among[first : last + 1]:
        return ""
    low = [">={}.{}".format(*having[0])] if first else []
    return ",".join([*low, *("<{}.{}".format(*release) for release in among[last + 1 : last + 2])])


Table = dict[str, dict[str, str]]  # module → name → specifier; "" is the module itself


def missing_table(versions: dict[Release, StdlibStubs]) -> Table:
    """Return the modules and names that some versions lack.

    A submodule counts as a name of its parent.
    """
    missing: Table = {}
    for module in public_modules():
        with_it = [version for version, stubs in versions.items() if stubs.has(module)]
        if not with_it:
            continue
        parent, _, last = module.rpartition(".")
        around = [release for release, stubs in versions.items() if not parent or stubs.has(parent)]
        specs = {(parent, last): specifier(with_it, around)}
        for name in sorted(
            set[str]().union(*(versions[release].names(module) for release in with_it))
        ):
            having = [release for release in with_it if name in versions[release].names(module)]
            bare = name.removesuffix(SUBSCRIPT)
            among = [release for release in with_it if bare in versions[release].names(module)]
            specs[module, name] = specifier(having, with_it if name == bare else among)
        for (holder, name), spec in specs.items():
            if spec and not name.startswith(CONSTANTS) and name not in OTHER_SYSTEMS:
                missing.setdefault(holder, {})[name] = spec
    return missing


def find_disagreements(missing: Table, python: str) -> tuple[str, set[tuple[str, str]]]:
    """Return the version of an interpreter, and the names for which it contradicts typeshed."""
    question = json.dumps({module: list(names) for module, names in missing.items()})
    done = subprocess.run(
        [python, "-c", PROBE], input=question, capture_output=True, text=True, check=True
    )
    version_text, release, answer = json.loads(done.stdout)
    return version_text, {
        (module, name)
        for module, names in answer.items()
        for name, there in names.items()
        if there not in (None, SpecifierSet(missing[module][name]).contains(release))
    }


def table_yaml(missing: Table, checked: list[str]) -> str:
    """Return the table as YAML: names by module and specifier, separated by spaces."""
    first, last = ("{}.{}".format(*release) for release in (VERSIONS[0], VERSIONS[-1]))
    probed = ", ".join(sorted(checked, key=Version))
    head = HEAD.format(mypy=version("mypy"), checked=probed, first=first, last=last)
    lines = head.splitlines()
    lines += ["modules:", *_by_specifier(missing[""], "  ")]
    for title in ("names", "subscripts"):
        lines += ["", f"{title}:"]
        for module, names in sorted(missing.items()):
            selected = {
                name.removesuffix(SUBSCRIPT): spec
                for name, spec in names.items()
                if name.endswith(SUBSCRIPT) == (title == "subscripts")
            }
            if module and selected:
                lines += [f"  {module}:", *_by_specifier(selected, "    ")]
    return "\n".join(lines) + "\n"


def _by_specifier(names: dict[str, str], indent: str) -> Iterator[str]:
    for spec in sorted(set(names.values())):
        text = " ".join(sorted(name for name, entry_spec in names.items() if entry_spec == spec))
        yield from textwrap.wrap(
            f'"{spec}": {text}', 100, initial_indent=indent, subsequent_indent=indent + "  "
        )


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", nargs="+", help="Python interpreter to look up names in")
    given = parser.parse_args()
    missing = missing_table({version: StdlibStubs(version) for version in VERSIONS})
    checked = []
    for python in given.python:
        release, wrong = find_disagreements(missing, python)
        checked.append(release)
        for module, name in sorted(wrong):
            print(f"omitted, because Python {release} disagrees: {module or 'module'} {name}")
            del missing[module][name]
    OUTPUT.write_text(table_yaml(missing, checked), encoding="utf-8")


if __name__ == "__main__":
    main()
