"""Checks of each target beyond its types: names that exist, parts that agree with each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from imgbuild.matrix.check import environment, environment_values, labels
from imgbuild.matrix.flashinfer import FIRST_WITH_NVCC, SAMPLER
from imgbuild.matrix.notes import Notes, Path, table, texts
from imgbuild.matrix.settings import folder, link_text, relative

# Packages whose version is that of the CUDA release they belong to (from CUDA 13 on their names
# carry no suffix any more).
RELEASED_WITH_CUDA = frozenset(
    f"nvidia-{part}"
    for part in (
        "cuda-cccl", "cuda-crt", "cuda-cupti", "cuda-nvcc", "cuda-nvrtc", "cuda-runtime",
        "nvjitlink", "nvtx", "nvvm",
    )
)  # fmt: skip
PACKAGE = "flashinfer-python"
# What holds compiled kernels: up to 0.2 the package itself, later a cache of what it would compile.
COMPILED = (PACKAGE, "flashinfer-jit-cache")
FLASHINFER = (*COMPILED, "flashinfer-cubin")
# What a mode decides may not be decided otherwise by a row: mode, variable, value.
DECIDED = (("off", SAMPLER, "0"),)


def check_targets(notes: Notes, value: Any) -> None:
    """Check every target against itself and against the rest of the matrix."""
    matrix = table(value)
    for name, target in table(matrix.get("targets")).items():
        path: Path = ("targets", name)
        if len(name) > 128:
            notes.note(
                path, "the name is too long for a tag", key=True, expected="at most 128 letters"
            )
        if isinstance(target, dict):
            _references(notes, path, target, matrix)
            _architectures(notes, path, target)
            versions(notes, path, target)
            _cuda(notes, path, target, matrix)
            _flashinfer(notes, path, target)
            configuration(notes, path, target)
            prefix = table(matrix.get("image")).get("prefix")
            environment_values(notes, (*path, "env"), prefix, target.get("env"))
    _drops(notes, (), matrix.get("drop"))
    for package, requirement in table(matrix.get("requires")).items():
        specifier(notes, ("requires", package, "spec"), table(requirement).get("spec"))
    for name, group in table(matrix.get("extras")).items():
        for package, requirement in table(group).items():
            specifier(notes, ("extras", name, package, "spec"), table(requirement).get("spec"))


def _references(
    notes: Notes, path: Path, target: Mapping[str, Any], matrix: Mapping[str, Any]
) -> None:
    indexes = table(matrix.get("indexes"))
    if "bases" in matrix:
        notes.choice((*path, "base"), target.get("base"), table(matrix["bases"]), "base")
    notes.once((*path, "extras"), target.get("extras"))
    for number, name in enumerate(texts(target.get("extras"))):
        groups = table(matrix.get("extras"))
        notes.choice((*path, "extras", number), name, groups, "set of extras")
    for package, index in table(target.get("indexes")).items():
        here = (*path, "indexes", package)
        if "indexes" in matrix:
            notes.choice(here, index, indexes, "index")
        url = table(indexes.get(index or "")).get("url")
        if "{torch}" in (url or "") and "torch" not in table(target.get("pins")):
            message = "the address of this index holds {torch}, and the target does not pin torch"
            notes.note(here, message, value=index, expected="a pin of torch, or another index")


def _architectures(notes: Notes, path: Path, target: Mapping[str, Any]) -> None:
    arches = target.get("arch")
    notes.once((*path, "arch"), arches)
    for arch in table(target.get("exclude")):
        if arch in texts(arches):
            message = f"{arch} is excluded and also listed in arch"
            notes.note((*path, "exclude", arch), message, key=True, expected="one of the two")
    notes.once((*path, "gpu"), target.get("gpu"))
    for number, capability in enumerate(texts(target.get("gpu"))):
        here = (*path, "gpu", number)
        notes.form(here, capability, r"[0-9]+\.[0-9]", 'a compute capability, such as "9.0"')


def versions(notes: Notes, path: Path, target: Mapping[str, Any]) -> None:
    """Check the versions that a target pins and requires."""
    pins = table(target.get("pins"))
    for package, version in pins.items():
        if not isinstance(version, str):
            continue
        here = (*path, "pins", package)
        try:
            normal = str(Version(version))
        except InvalidVersion:
            expected = "a version as PEP 440 has it, such as 0.8.5.post1"
            notes.note(here, "not a version", value=version, expected=expected)
            continue
        if normal != version:
            message = "the version is not in its normal form"
            notes.note(here, message, value=version, expected=normal)
    for package, requirement in table(target.get("requires")).items():
        here = (*path, "requires", package)
        if package in pins:
            line = notes.keys.get((*path, "pins", package), ("?",))[0]
            message = f"{package} is pinned in line {line} and required here"
            notes.note(here, message, key=True, expected="one of the two")
        specifier(notes, (*here, "spec"), table(requirement).get("spec"))


def specifier(notes: Notes, path: Path, spec: Any) -> None:
    """Note it if `spec` is not a version specifier."""
    if not isinstance(spec, str):
        return
    try:
        SpecifierSet(spec)
    except InvalidSpecifier:
        near = f"=={spec}" if re.fullmatch(r"[0-9][0-9a-z.]*", spec) else None
        expected = 'a version specifier, such as ">=78,<79"'
        notes.note(path, "not a version specifier", value=spec, expected=expected, near=near)


def _cuda(notes: Notes, path: Path, target: Mapping[str, Any], matrix: Mapping[str, Any]) -> None:
    cuda = target.get("cuda")
    if not isinstance(cuda, str):
        return
    major, tag = cuda.split(".")[0], "cu" + cuda.replace(".", "")
    for field in ("pins", "requires"):
        for package, value in table(target.get(field)).items():
            here = (*path, field, package)
            named = re.search(r"-cu(?:da)?([0-9]{2})x?$", package)
            if named and named[1] != major:
                message = f"the package is for CUDA {named[1]}, the target for CUDA {cuda}"
                notes.note(here, message, key=True, expected=f"a package for CUDA {major}")
            version = value if isinstance(value, str) else ""
            local = re.search(r"\+(cu[0-9]+)", version)
            if local and local[1] != tag:
                message = f"the version is a build for another CUDA release than {cuda}"
                notes.note(here, message, value=version, expected=version.replace(local[1], tag))
            if package in RELEASED_WITH_CUDA and not _of_release(value, cuda):
                spec = version or table(value).get("spec")
                message = f"the package belongs to another CUDA release than {cuda}"
                expected = f"{cuda}.…" if version else f'"=={cuda}.*"'
                notes.note(here, message, key=not version, value=spec, expected=expected)
    indexes = table(matrix.get("indexes"))
    for package, index in table(target.get("indexes")).items():
        url = table(indexes.get(index or "")).get("url") or ""
        other = re.search(r"(?<![a-z0-9])cu[0-9]{2,3}(?![0-9])", url)
        if other and other[0] != tag:
            message = f"this index is for {other[0]}, the target for {tag}"
            notes.note(
                (*path, "indexes", package), message, value=index, expected=f"an index for {tag}"
            )


def _of_release(value: Any, cuda: str) -> bool:
    if isinstance(value, str):
        return value.startswith(f"{cuda}.")
    spec = table(value).get("spec") or ""
    return not spec or spec.replace(" ", "") in (f"=={cuda}.*", f"~={cuda}.0")


def _flashinfer(notes: Notes, path: Path, target: Mapping[str, Any]) -> None:
    mode = table(target.get("flashinfer")).get("mode")
    here = (*path, "flashinfer", "mode")
    pins = table(target.get("pins"))
    assigned = table(target.get("indexes"))
    requested = [*pins, *table(target.get("requires"))]
    if mode == "off":
        for package in FLASHINFER:
            if package in requested:
                message = f"FlashInfer is off, and the target asks for {package}"
                notes.note(here, message, value=mode, expected=f"jit or prebuilt, or no {package}")
    elif mode == "prebuilt":
        if not any(package in pins and package in assigned for package in COMPILED):
            message = (
                f"prebuilt kernels need {PACKAGE} pinned and assigned to an index that has them"
            )
            expected = f"{' or '.join(COMPILED)} in pins and in indexes"
            notes.note(here, message, value=mode, expected=expected)
    elif mode == "jit":
        _compiled(notes, path, target)
    for decided, name, value in DECIDED:
        given = table(table(target.get("env")).get(name)).get("value")
        if mode == decided and given not in (None, value):
            message = f"FlashInfer is {mode}, and the target sets {name} to another value"
            notes.note((*path, "env", name), message, value=given, expected=f"{value}, or no entry")
    numbers = {str(pins[package]).partition("+")[0] for package in FLASHINFER if package in pins}
    if len(numbers) > 1:
        message = "FlashInfer refuses to start unless all its packages have the same version"
        expected = f"{PACKAGE} and its companions in one version"
        notes.note(
            (*path, "pins", PACKAGE),
            message,
            value=" and ".join(sorted(numbers)),
            expected=expected,
        )


def _compiled(notes: Notes, path: Path, target: Mapping[str, Any]) -> None:
    """Note what keeps a target from compiling kernels at first use."""
    here = (*path, "flashinfer", "mode")
    cuda = target.get("cuda")
    if isinstance(cuda, str) and int(cuda.split(".")[0]) < FIRST_WITH_NVCC:
        message = f"no index has a wheel with nvcc for CUDA {cuda}, so nothing can be compiled"
        notes.note(
            here,
            message,
            value="jit",
            expected=f"prebuilt or off; jit from CUDA {FIRST_WITH_NVCC}.0 on",
        )
    # A cache of kernels is no contradiction: what it lacks is compiled at first use.
    if PACKAGE in table(target.get("indexes")):
        message = f"{PACKAGE} comes from an index whose kernels are compiled already"
        notes.note(here, message, value="jit", expected="prebuilt, or no such index")


def configuration(notes: Notes, path: Path, target: Mapping[str, Any]) -> None:
    """Check variables, labels, dropped files and links of a target."""
    environment(notes, (*path, "env"), target.get("env"))
    labels(notes, (*path, "labels"), target.get("labels"))
    _drops(notes, path, target.get("drop"))
    for link, entry in table(target.get("links")).items():
        here = (*path, "links", link)
        folder(notes, here, link)
        link_text(notes, (*here, "to"), link, table(entry).get("to"))


def _drops(notes: Notes, path: Path, drops: Any) -> None:
    dropping = [table(drop).get("package") for drop in drops] if isinstance(drops, list) else []
    for number, drop in enumerate(drops if isinstance(drops, list) else ()):
        here = (*path, "drop", number)
        if dropping.count(dropping[number]) > 1 and dropping.index(dropping[number]) < number:
            message = f"{dropping[number]} is listed twice"
            notes.note((*here, "package"), message, expected="one entry with all paths")
        specifier(notes, (*here, "versions"), table(drop).get("versions"))
        if table(drop).get("paths") == []:
            notes.note((*here, "paths"), "no path is dropped", expected="at least one path")
        for place, item in enumerate(texts(table(drop).get("paths"))):
            relative(notes, (*here, "paths", place), item)
