"""Checks versions of other packages that a package declares in files.

These are the tables of requirements that transformers and similar packages check at import, the
torch version in cpp_lib.json of xformers, the local part of a wheel's version, and the CUDA
releases in the library names of bitsandbytes.
"""

# A separate module: file formats.
from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator

import msgspec
from packaging.version import Version

from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.system.syntax import (
    is_within,
    parse_source,
    parse_version,
    valid_requirement,
)
from imgbuild.values import normalize_package

CHECKER, TABLE = "dependency_versions_check.py", "dependency_versions_table.py"
QUOTE = '"'
PREDICATES = "utils/import_utils.py"
OPTIONAL_PACKAGES = ("tokenizers", "accelerate")  # checked only where `is_NAME_available()`
_PREDICATE = re.compile(
    r"^def is_(\w+)_available\(min_version(?:: *str)? *= *(\w+|\"[\d.]+\")\)", re.MULTILINE
)
_BUILT_FOR_TORCH = re.compile(r"(?:^|[^a-z])torch(\d+\.\d+)")
_LIBRARY = re.compile(r"(?:^|/)libbitsandbytes_cuda(\d+)\.so")
_RUNTIME = re.compile(r"nvidia-cuda-runtime(?:-cu\d+)?")


class SupportDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """A package's declaration that it supports the versions `spec` of `other`."""

    package: str
    file: str
    line: int
    other: str
    spec: str
    text: str
    raises: bool = False


def violated_declarations(package_set: PackageSet) -> Iterator[SupportDeclaration]:
    """Yield the declarations in files that this package set violates."""
    for package in package_set.packages:
        for file in package_set.files(package):
            if file.endswith(f"/{CHECKER}"):
                yield from _table_declarations(package_set, package, file)
            elif file.endswith("/cpp_lib.json"):
                yield from _build_declarations(package_set, package, file)
        yield from _name_declarations(package_set, package)
    yield from _bitsandbytes_declarations(package_set)


def _table_declarations(
    package_set: PackageSet, package: str, file: str
) -> Iterator[SupportDeclaration]:
    """Yield the requirements in `deps` for the names that `file` checks.

    The table `deps` is in the same folder as `file`.
    """
    table = f"{file.removesuffix(CHECKER)}{TABLE}"
    names = _literals(package_set.read(package, file)).get("pkgs_to_check_at_runtime", [])
    source = package_set.read(package, table)
    dependencies = _literals(source).get("deps", {})
    if not isinstance(names, list) or not isinstance(dependencies, dict):
        return
    least = _least_versions(package_set.read(package, file.removesuffix(CHECKER) + PREDICATES))
    for name in names:
        requirement = valid_requirement(str(dependencies.get(name)))
        if requirement is None or name not in dependencies:
            continue
        other = normalize_package(requirement.name)
        version = package_set.version(other)
        if (
            name in OPTIONAL_PACKAGES
            and version is not None
            and not is_within(version, least.get(name, ""))
        ):
            continue
        missing = (
            version is None
            and not package_set.partial
            and name not in (*OPTIONAL_PACKAGES, "python")
        )
        if missing or (version is not None and not is_within(version, str(requirement.specifier))):
            have = f"{other} is {version}" if version else f"{other} is not installed"
            yield SupportDeclaration(
                package=package,
                file=table,
                line=_line(source, str(dependencies[name])),
                other=other,
                spec=str(requirement.specifier),
                text=f"requires {dependencies[name]} at import, but {have}",
                raises=True,
            )


def _least_versions(source: bytes | None) -> dict[str, str]:
    """Map packages to ">=X", for each `def is_NAME_available(min_version=X)`."""
    literals = _literals(source)
    versions = {}
    for match in _PREDICATE.finditer((source or b"").decode(errors="replace")):
        name, value = match.groups()
        text = str(literals.get(value, value)).strip(QUOTE)
        if parse_version(text) is not None:
            versions[name] = f">={text}"
    return versions


def _literals(source: bytes | None) -> dict[str, object]:
    """Map each name that a module binds to a literal to its value."""
    literals: dict[str, object] = {}
    try:
        tree = parse_source(source or b"")
    except (SyntaxError, ValueError):
        return literals
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                literals[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return literals


def _line(source: bytes | None, text: str) -> int:
    lines = (source or b"").splitlines()
    return next((number for number, line in enumerate(lines, 1) if text.encode() in line), 0)


def _build_declarations(
    package_set: PackageSet, package: str, file: str
) -> Iterator[SupportDeclaration]:
    """Yield the torch version recorded at build time, unless METADATA allows another version."""
    version = package_set.version("torch")
    try:
        built = json.loads(package_set.read(package, file) or b"{}")["version"]["torch"]
        same = version is None or Version(built).release == Version(version).release
    except (ValueError, KeyError, TypeError):
        return
    if not same and not _allows_torch(package_set, package, version or ""):
        yield SupportDeclaration(
            package=package,
            file=file,
            line=1,
            other="torch",
            spec=f"=={Version(built).public}",
            text=f"was built for torch {built}, but torch is {version}, so its operators do not"
            " load",
        )


def _allows_torch(package_set: PackageSet, package: str, version: str) -> bool:
    metadata = package_set.metadata(package)
    for line in metadata.requires if metadata is not None else ():
        requirement = valid_requirement(line)
        if requirement is not None and normalize_package(requirement.name) == "torch":
            return is_within(version, str(requirement.specifier))
    return False


def _name_declarations(package_set: PackageSet, package: str) -> Iterator[SupportDeclaration]:
    """Yield a declaration for the torch release in the local part of a package's version.

    An example is `flashinfer_python-0.2.5+cu124torch2.6`.
    """
    version = package_set.version("torch")
    own = parse_version(package_set.version(package))
    built = _BUILT_FOR_TORCH.search(own.local or "") if own is not None else None
    if built is None or version is None or is_within(version, f"=={built[1]}.*"):
        return
    yield SupportDeclaration(
        package=package,
        file=package_set.metadata_file(package),
        line=0,
        other="torch",
        spec=f"=={built[1]}.*",
        text=f"was built for torch {built[1]} according to its version, but torch is {version}",
        raises=True,
    )


def _bitsandbytes_declarations(package_set: PackageSet) -> Iterator[SupportDeclaration]:
    """Yield the declaration of bitsandbytes, which loads the library for torch's CUDA release."""
    runtime = next((name for name in package_set.packages if _RUNTIME.fullmatch(name)), None)
    releases = {
        match[1] for file in package_set.files("bitsandbytes") if (match := _LIBRARY.search(file))
    }
    if runtime is None or not releases:
        return
    release = "".join((package_set.version(runtime) or "").split(".")[:2])
    if release not in releases:
        yield SupportDeclaration(
            package="bitsandbytes",
            file="bitsandbytes",
            line=0,
            other=runtime,
            spec="",
            text=f"has libraries for CUDA {', '.join(sorted(releases))}, but not for {release}",
        )
