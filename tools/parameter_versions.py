#!/usr/bin/env python3
"""Writes data/diagnose/parameters, which lists the package versions that accept parameters.

tools/parameter_versions.py PACKAGE...    all packages in OLDEST without arguments

Reads the functions and methods in wheels on uv's default index: one version of each minor release,
or all releases of the packages in `EVERY`. A function that takes any keyword accepts every
parameter. Parameters that every version of a function accepts are omitted.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import yaml
from packaging.version import Version

import name_versions
import published_wheels
from imgbuild.http.client import HttpClient
from imgbuild.index.pages import IndexFile
from imgbuild.system import files

FOLDER = "diagnose/parameters"
EVERY = ("sglang", "lighteval", "trl", "verl")
OF_SOURCES = ("flashinfer-python",)  # whose older releases have no wheels
OLDEST = {
    "transformers": "4.30", "vllm": "0.4", "sglang": "0.3", "flashinfer-python": "0.2",
    "peft": "0.6", "accelerate": "0.24", "trl": "0.7", "datasets": "2.14", "verl": "0.1",
    "lighteval": "0.6", "optimum": "1.16", "compressed-tensors": "0.5",
    "bitsandbytes": "0.41", "diffusers": "0.25", "sentence-transformers": "2.3", "torchao": "0.3",
    "huggingface-hub": "0.20", "outlines": "0.0.30", "mistral-common": "1.2", "deepspeed": "0.14",
    "unsloth-zoo": "2025.1", "openai": "1.0", "liger-kernel": "0.1", "auto-gptq": "0.4",
    "lmdeploy": "0.4",
}  # fmt: skip
OMITTED = re.compile(r"/(?:tests?|testing|examples?|benchmarks?|third_party|_vendor)/|/test_")
# Parts of engines that only they call.
INTERNAL = re.compile(
    r"/(?:vllm|sglang|lmdeploy)/.*/(?:models|kernels|jit_kernel|ops|configs|processors|tool_parsers|"
    r"reasoning|kv_transfer|multimodal_gen|compilation|\w*quantization\w*/\w+/\w+)/"
)
FEWEST = 3  # versions with a function
ANY = "**"  # of a function that takes any keyword
METHOD = re.compile(r"__(?:init|call|new)__$|[A-Za-z]")

Functions = Mapping[str, frozenset[str]]  # parameters by function or Class.method


def parameters(tree: ast.Module) -> Functions:
    """Return the parameters of the functions and methods in a module.

    A dataclass without a constructor has its fields as parameters.
    """
    functions: dict[str, frozenset[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions[node.name] = _names(node, 0)
        elif isinstance(node, ast.ClassDef):
            functions |= dict(_methods(node))
    return {
        name: names
        for name, names in functions.items()
        if name[0] != "_" and METHOD.match(name.split(".")[-1])
    }


def _methods(node: ast.ClassDef) -> Iterator[tuple[str, frozenset[str]]]:
    functions = [n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    for each in functions:
        yield f"{node.name}.{each.name}", _names(each, 1)
    if all(each.name != "__init__" for each in functions) and _is_dataclass(node):
        fields = {
            each.target.id for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }  # fmt: skip
        # The bases are in other modules.
        names = frozenset({*fields, ANY} if node.bases else fields)
        yield f"{node.name}.__init__", names


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(each) for each in node.decorator_list)


def _names(node: ast.FunctionDef | ast.AsyncFunctionDef, first: int) -> frozenset[str]:
    parts = (*node.args.posonlyargs, *node.args.args)[first:]
    wrapped = node.decorator_list and any(
        re.search(r"deprecat|renam|alias", ast.unparse(each)) for each in node.decorator_list
    )
    return frozenset(
        {part.arg for part in (*parts, *node.args.kwonlyargs)}
        | ({ANY} if node.args.kwarg or wrapped else set())
    )


def read_functions(wheel: Iterable[tuple[int, bytes]], cache: dict[int, Functions]) -> Functions:
    """Return the functions in the files of a wheel. Functions of one name are merged."""
    merged: dict[str, frozenset[str]] = {}
    for checksum, text in wheel:
        if checksum not in cache:
            try:
                cache[checksum] = parameters(ast.parse(text))
            except (SyntaxError, ValueError):
                cache[checksum] = {}
        for name, names in cache[checksum].items():
            merged[name] = merged.get(name, frozenset()) | names
    return merged


def changed_parameters(values: Mapping[Version, Functions]) -> dict[str, dict[str, str]]:
    """Return the functions by parameter and by the versions that accept the parameter.

    Omit parameters that all or no versions of the function accept.
    """
    rows: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for function in sorted({name for value in values.values() for name in value}):
        pairs = [(value[function], v) for v, value in values.items() if function in value]
        if len(pairs) < max(FEWEST, len(values) // 4):
            continue  # of a part that changes often
        for name in set().union(*(names for names, _ in pairs)) - {ANY}:
            accepted = [bool({name, ANY} & names) for names, _ in pairs]
            if all(accepted):
                continue
            places = [index for index, each in enumerate(accepted) if each]
            # Releases before it may only take any keyword, and pass it on.
            named = next(index for index, (names, _) in enumerate(pairs) if name in names)
            bounds = [f">={pairs[named][1]}"] if places[0] else []
            if places[-1] + 1 < len(pairs):
                bounds.append(f"<{pairs[places[-1] + 1][1]}")
            if bounds and places[-1] - places[0] + 1 == len(places):
                rows[name][",".join(bounds)].append(function)
    return {
        name: {spec: " ".join(functions) for spec, functions in sorted(row.items())}
        for name, row in sorted(rows.items())
    }


def _texts(
    file: IndexFile, http: HttpClient, checksums: Collection[int]
) -> Iterator[tuple[int, bytes]]:
    """Yield the checksum and text of each Python file. The text of known checksums is empty."""
    if file.is_wheel:
        with published_wheels.open_wheel(file, http, block=1 << 20) as wheel:
            for info in wheel.infolist():
                path = f"/{info.filename}"
                if path.endswith(".py") and not (OMITTED.search(path) or INTERNAL.search(path)):
                    yield info.CRC, b"" if info.CRC in checksums else wheel.read(info)
        return
    with published_wheels.open_sdist(file, http) as archive:
        for member in archive:
            if member.name.endswith(".py") and not OMITTED.search(f"/{member.name}"):
                content = archive.extractfile(member)
                text = content.read() if content is not None else b""
                yield zlib.crc32(text), text


def write_package(package: str, http: HttpClient) -> Path:
    """Read the versions of a package and write its data file."""
    every = published_wheels.default_indexes(http).files(package)
    key = name_versions.release if package in EVERY else published_wheels.minor_release
    wheels = published_wheels.first_wheels(every, Version(OLDEST[package]), key)
    if package in OF_SOURCES:
        oldest = min(wheels)
        for file in every:
            if file.name.endswith(".tar.gz") and file.version and file.version < oldest:
                wheels[file.version] = file
    cache: dict[int, Functions] = {}
    values: dict[Version, Functions] = {}
    for version, file in sorted(wheels.items()):
        values[version] = read_functions(_texts(file, http, cache), cache)
        print(file.name, len(values[version]), file=sys.stderr, flush=True)
    path = files.data(FOLDER) / f"{package}.yaml"
    path.parent.mkdir(exist_ok=True)
    document = {
        "package": package,
        "first": str(next(iter(values))),
        "last": str([*values][-1]),
        "parameters": changed_parameters(values),
    }
    path.write_text(yaml.safe_dump(document, sort_keys=False, width=100_000), encoding="utf-8")
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files of the packages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", nargs="*", metavar="PACKAGE")
    http = HttpClient()
    for package in parser.parse_args(argv).packages or OLDEST:
        print(write_package(package, http))
    return 0


if __name__ == "__main__":
    sys.exit(main())
