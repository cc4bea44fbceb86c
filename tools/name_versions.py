#!/usr/bin/env python3
"""Writes data/diagnose/versions, which lists the package versions in which names exist.

tools/name_versions.py PACKAGE...    trl, vllm, sglang, transformers, datasets and others

The files cover names, modules and arguments. Parts of the wheels on uv's default index are read:
one version of each minor release for large packages, and all versions of other packages. For inner
modules, only names that releases of `IMPORTERS` import are written. Names that exist in every
version are omitted. Entries from other sources (symbols of torch, variables of vllm) are kept.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from packaging.version import Version

import published_wheels
from imgbuild.http.client import HttpClient
from imgbuild.index.pages import IndexFile
from imgbuild.system import files, yaml_data

FOLDER = "diagnose/versions"
# One version of each minor release.
MINORS = (
    "transformers", "torch", "accelerate", "peft", "datasets", "diffusers", "xgrammar", "triton",
    "tensordict", "compressed-tensors", "flashinfer-python", "ms-swift", "llamafactory", "numpy",
)  # fmt: skip
DEEP_PACKAGES = ("accelerate", "peft")  # others import names of their inner modules
OLDEST = {
    "trl": "0.8", "vllm": "0.4", "transformers": "4.30", "accelerate": "0.30", "peft": "0.8",
    "verl": "0.1", "torch": "2.1", "sglang": "0.4", "datasets": "2.14", "outlines": "0.0.30",
    "xgrammar": "0.1", "tensordict": "0.2", "compressed-tensors": "0.5",
    "flashinfer-python": "0.2", "huggingface-hub": "0.20", "diffusers": "0.25",
    "ms-swift": "2.0", "llamafactory": "0.8", "numpy": "1.21", "triton": "2.0",
}  # fmt: skip
# Classes with arguments in the files of packages whose other classes are internal.
CLASSES: dict[str, tuple[str, ...]] = {
    "sglang": (), "verl": (), "outlines": (), "xgrammar": (), "tensordict": (), "datasets": (),
    "triton": (),
    "compressed-tensors": ("QuantizationArgs", "QuantizationScheme", "QuantizationConfig"),
    "flashinfer-python": (), "ms-swift": (), "llamafactory": (),
    "diffusers": (), "numpy": (),
}  # fmt: skip
TOPS = {"ms-swift": "swift", "flashinfer-python": "flashinfer"}  # their import names
RENAMED = {"PreTrainedConfig": "PretrainedConfig"}  # classes that keep their old name, too
# Packages that import inner modules of others, from their oldest version that is read.
IMPORTERS = {
    "verl": "0.1", "trl": "0.11", "sglang": "0.1", "vllm": "0.5", "ms-swift": "2.0",
    "llamafactory": "0.8", "unsloth-zoo": "2025.1", "unsloth": "2025.1", "axolotl": "0.6",
    "openrlhf": "0.5", "accelerate": "0.34", "peft": "0.10", "lm-eval": "0.4",
    "xfuser": "0.3", "vllm-ascend": "0.7", "vllm-omni": "0.1", "lmms-eval": "0.2",
}  # fmt: skip
# Classes whose arguments and members are kept; others are internal.
KEPT_CLASSES = re.compile(
    r"(?:Config|Arguments|Args|Params|Trainer|LLM|Engine|Cache|Accelerator|Base)$"
)
LISTED = re.compile(r"^__all__ \+?= \[([^\]]*)\]", re.MULTILINE)
IMPORTED = re.compile(
    r"^ *from (?P<module>[a-z_]\w*(?:\.\w+)+) import (?P<names>\([^)]*\)|[^\n(]+)", re.MULTILINE
)
TESTS = re.compile(r"/tests?/|/models/|/third_party/|/benchmarks?/")


class VersionNames(msgspec.Struct):
    """The names in one version by module, with arguments and members by class."""

    modules: set[str]
    names: dict[str, set[str]]
    arguments: dict[str, set[str]]
    members: dict[str, set[str]]


def imported_names(packages: Iterable[str], http: HttpClient) -> dict[str, set[str]]:
    """Return the names that `IMPORTERS` import from modules of these packages, by module."""
    tops = {TOPS.get(package, package.replace("-", "_")) for package in packages}
    imports: dict[str, set[str]] = defaultdict(set)
    for importer, oldest in IMPORTERS.items():
        others = tops - {importer.replace("-", "_")}
        every = published_wheels.default_indexes(http).files(importer)
        for file in published_wheels.first_wheels(
            every, Version(oldest), published_wheels.minor_release
        ).values():
            with published_wheels.open_wheel(file, http, block=1 << 20) as wheel:
                for path in wheel.namelist():
                    if path.endswith(".py") and not TESTS.search(f"/{path}"):
                        _imports(wheel.read(path).decode("utf-8", "replace"), others, imports)
            print(file.name, file=sys.stderr)
    return imports


def _imports(text: str, tops: set[str], imports: dict[str, set[str]]) -> None:
    for match in IMPORTED.finditer(text):
        if match["module"].partition(".")[0] in tops:
            imports[match["module"]] |= {
                name.split()[0] for name in re.sub(r"[()]|#.*", "", match["names"]).split(",")
                if name.strip()
            }  # fmt: skip


def read_names(
    package: str,
    file: IndexFile,
    http: HttpClient,
    inner: Mapping[str, set[str]],
    listed: Sequence[str] | None,
) -> VersionNames:
    """Return the names in a wheel on the index. Inner modules are read only for names in `inner`.

    `listed` contains the classes whose arguments are read. If it is None, these are the classes
    that match `KEPT_CLASSES`.
    """
    with published_wheels.open_wheel(file, http, block=1 << 20) as wheel:
        folder = f"{TOPS.get(package, package.replace('-', '_'))}/"
        paths = [
            path for path in wheel.namelist()
            if path.startswith(folder) and path.endswith((".py", ".so"))
        ]  # fmt: skip
        heads = [f"class {name}".encode() for name in listed or ()]
        names: dict[str, set[str]] = {}
        classes: dict[str, ast.ClassDef] = {}
        # A class of the same name in experimental modules must not stand for the public one.
        for path in sorted(paths, key=lambda path: "/experimental/" not in path):
            deep = path.count("/") > (2 if package == "torch" else 4)
            needed = module_of_file(path) in inner
            if not path.endswith(".py") or (not needed and (deep or TESTS.search(f"/{path}"))):
                continue
            module, text = module_of_file(path), wheel.read(path)
            named = module.count(".") < (3 if package in DEEP_PACKAGES else 2)
            classless = listed is not None and not any(head in text for head in heads)
            if classless and not (named or needed):
                continue
            try:
                tree = ast.parse(text)
            except SyntaxError:
                continue
            bindings = set(bound_names(tree.body))
            if "*" in bindings or (needed and not named and "__getattr__" in bindings):
                names[module] = {"*"}
            elif named:
                names[module] = {name for name in bindings if name[0] != "_"}
            elif needed:
                names[module] = bindings & inner[module]
            classes |= {n.name: n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}
        if package == "transformers":  # its names are those that its modules list
            texts = (wheel.read(path).decode() for path in paths if path.endswith(".py"))
            names[package] |= {
                name for text in texts for part in LISTED.findall(text)
                for name in re.findall(r"[\"'](\w+)[\"']", part)
            }  # fmt: skip
    modules = {
        module for path in paths
        if (module := module_of_file(path)).count(".") < 3 or module in inner
    }  # fmt: skip
    for name, old in RENAMED.items():
        if name in classes:
            classes[old] = classes[name]
    shown = KEPT_CLASSES.search if listed is None else set(listed).__contains__
    public = [name for name in classes if shown(name)]
    return VersionNames(
        modules=modules,
        names=names,
        arguments={name: constructor_arguments(name, classes, set()) for name in public},
        members={name: class_members(name, classes, set()) for name in public},
    )


def module_of_file(path: str) -> str:
    """Return the module of a file in a wheel."""
    parts = path.split("/")
    parts[-1] = parts[-1].partition(".")[0]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def bound_names(body: Iterable[ast.stmt]) -> Iterable[str]:
    """Yield the names that a module body binds or lists for lazy import."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from ((each.asname or each.name).partition(".")[0] for each in node.names)
        elif isinstance(node, ast.If | ast.Try):
            handlers = [part for each in getattr(node, "handlers", ()) for part in each.body]
            yield from bound_names([*node.body, *handlers, *node.orelse])
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.Expr | ast.AugAssign):
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            yield from (each.id for each in targets if isinstance(each, ast.Name))
            yield from (
                each.value for each in ast.walk(node)
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
                and each.value.isidentifier()
            )  # fmt: skip


def constructor_arguments(
    name: str, classes: Mapping[str, ast.ClassDef], seen: set[str]
) -> set[str]:
    """Return the parameters of a constructor, or the fields of a dataclass."""
    if name not in classes or name in seen:
        return set()
    node = classes[name]
    above = {
        each
        for base in base_names(node)
        for each in constructor_arguments(base, classes, {*seen, name})
    }
    fields = {
        each.target.id for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }  # fmt: skip
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__" and not fields:
            parts = (*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs)
            deprecated = {
                part.value for mark in each.decorator_list for part in ast.walk(mark)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
                and part.value.isidentifier()
            }  # fmt: skip
            named = {part.arg for part in parts[1:]} | deprecated
            return named | above if each.args.kwarg else named
    return fields | above


def class_members(name: str, classes: Mapping[str, ast.ClassDef], seen: set[str]) -> set[str]:
    """Return the methods and fields of a class."""
    if name not in classes or name in seen:
        return set()
    node = classes[name]
    functions = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    if name.endswith("Config"):
        functions |= {
            each.attr for each in ast.walk(node)
            if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
            and ast.unparse(each.value) == "self"
        }  # fmt: skip
    above = {
        each for base in base_names(node) for each in class_members(base, classes, {*seen, name})
    }
    return {each for each in functions | above if each[0] != "_"}


def base_names(node: ast.ClassDef) -> list[str]:
    """Return the names of the base classes of a class."""
    return [ast.unparse(base).rpartition(".")[2].partition("[")[0] for base in node.bases]


def changed_names(
    per_version: Sequence[set[str] | None], versions: Sequence[Version]
) -> dict[str, str]:
    """Return the names that some versions lack, with the range of versions that have them.

    Versions without the module or class are None and are ignored.
    """
    pairs = [
        (names, v) for names, v in zip(per_version, versions, strict=True) if names is not None
    ]
    groups = defaultdict(list)
    for name in sorted(set().union(*(names for names, _ in pairs))):
        places = [index for index, (names, _) in enumerate(pairs) if name in names]
        if len(places) == len(pairs):
            continue
        bounds = [f">={pairs[places[0]][1]}"] if places[0] else []
        bounds += [f"<{pairs[places[-1] + 1][1]}"] if places[-1] + 1 < len(pairs) else []
        if bounds:
            groups[",".join(bounds)].append(name)
    return {spec: " ".join(names) for spec, names in sorted(groups.items())}


def data_tables(read_versions: Mapping[Version, VersionNames]) -> dict[str, Any]:
    """Return the tables of a data file."""
    versions, values = list(read_versions), list(read_versions.values())

    def _group_by_key(part: str) -> dict[str, dict[str, str]]:
        keys = sorted({key for value in values for key in getattr(value, part)})
        rows = {
            key: changed_names([getattr(value, part).get(key) for value in values], versions)
            for key in keys
        }
        unknown = {
            key
            for value in values
            for key, bindings in getattr(value, part).items()
            if "*" in bindings
        }
        return {key: row for key, row in rows.items() if row and key not in unknown}

    return {
        "arguments": _group_by_key("arguments"),
        "names": _group_by_key("names"),
        "modules": changed_names([value.modules for value in values], versions),
        "members": _group_by_key("members"),
    }


def write_package(
    package: str, http: HttpClient, inner: Mapping[str, set[str]], *, names: bool
) -> Path:
    """Read the versions of a package and write the data file of the package.

    With `names`, arguments and members in the existing file are kept.
    """
    every = published_wheels.default_indexes(http).files(package)
    key = published_wheels.minor_release if package in MINORS else release
    wheels = published_wheels.first_wheels(every, Version(OLDEST[package]), key)
    listed = () if names else CLASSES.get(package)
    values = {v: read_names(package, file, http, inner, listed) for v, file in wheels.items()}
    path = files.data(FOLDER) / f"{package}.yaml"
    other = yaml_data.parse_yaml(path.read_bytes()) if path.exists() else {}
    new = data_tables(values)
    if names:
        new |= {part: other[part] for part in ("arguments", "members") if part in other}
    first, last = str(next(iter(values))), str([*values][-1])
    document = {**other, "package": package, "first": first, "last": last, **new}
    document["names"] = {**other.get("names", {}), **document["names"]}
    path.write_text(yaml.safe_dump(document, sort_keys=False, width=100_000), encoding="utf-8")
    return path


def release(version: Version) -> tuple[int, ...]:
    """Return the release of a version without its post-release number."""
    return version.release[:3]


def main(words: Sequence[str] | None = None) -> int:
    """Write the files of the given packages."""
    lines = (__doc__ or "").splitlines()
    parser = argparse.ArgumentParser(
        description="\n".join(lines), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package", nargs="+", choices=sorted(OLDEST))
    parser.add_argument(
        "--names", action="store_true", help="keep the arguments and members of the existing file"
    )
    options, http = parser.parse_args(words), HttpClient()
    inner = imported_names(options.package, http)
    for package in options.package:
        print(write_package(package, http, inner, names=options.names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
