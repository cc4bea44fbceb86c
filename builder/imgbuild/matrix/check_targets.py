"""Checks that a target is consistent and that its names exist, after checks of types."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from imgbuild.matrix import flashinfer, settings
from imgbuild.matrix.extension import Extension
from imgbuild.matrix.fields import VERSION_LABEL
from imgbuild.matrix.model import DebianBase, DroppedFiles, Matrix, RegistryBase, Target
from imgbuild.matrix.notes import ProblemNotes, ValuePath
from imgbuild.matrix.settings import check_folder, check_relative, link_text
from imgbuild.system.syntax import parse_version

OWN_LABELS = (
    "org.opencontainers.image.title",
    *(
        f"dev.imgbuild.{name}"
        for name in ("target", "base", "cuda", "python", "flashinfer", "as-of", "gpu")
    ),
)
# Packages with the version of their CUDA release (from CUDA 13 on their names have no suffix).
RELEASED_WITH_CUDA = frozenset(
    f"nvidia-{part}"
    for part in (
        "cuda-cccl", "cuda-crt", "cuda-cupti", "cuda-nvcc", "cuda-nvrtc", "cuda-runtime",
        "nvjitlink", "nvtx", "nvvm",
    )
)  # fmt: skip
# Packages with compiled kernels: up to 0.2 the package itself, later a cache of compiled kernels.
COMPILED_PACKAGES = (flashinfer.PACKAGE, "flashinfer-jit-cache")
FLASHINFER = (*COMPILED_PACKAGES, "flashinfer-cubin")


def check_target(notes: ProblemNotes, path: ValuePath, target: Target, matrix: Matrix) -> None:
    """Check that the target at `path` is consistent with itself and with the rest of `matrix`."""
    _references(notes, path, target, matrix)
    _architectures(notes, path, target)
    check_row(notes, path, target)
    if target.cuda:
        _check_cuda(notes, path, target)
    _flashinfer(notes, path, target)
    if target.user_packages:
        _check_user_packages(notes, path, target, matrix)
    values = {name: variable.value for name, variable in target.env.items()}
    settings.environment_first(notes, (*path, "env"), matrix.image.prefix, values, "value")


def check_row(notes: ProblemNotes, path: ValuePath, row: Target | Extension) -> None:
    """Check the keys that rows of both types of matrix have."""
    if len(str(path[-1])) > 128:
        expected = "at most 128 characters"
        notes.note(path, "the name is too long for a tag", key=True, expected=expected)
    notes.check_duplicates((*path, "arch"), row.arch)
    _check_versions(notes, path, row)
    check_environment(notes, (*path, "env"), row.env)
    check_labels(notes, (*path, "labels"), row.labels)
    check_drops(notes, path, row.drop)
    for link, entry in row.links.items():
        here = (*path, "links", link)
        check_folder(notes, here, link)
        link_text(notes, (*here, "to"), link, entry.to)


def _references(notes: ProblemNotes, path: ValuePath, target: Target, matrix: Matrix) -> None:
    notes.check_choice((*path, "base"), target.base, matrix.bases, "base", of=("bases",))
    base = matrix.bases.get(target.base)
    source = base.standalone_python if isinstance(base, DebianBase) else None
    for number, arch in enumerate(target.arch if source is not None else ()):
        # A base without any archive is an error of its own.
        if source is not None and source.archives and arch not in source.archives:
            message = f"the base {target.base} has no archive of Python for {arch}"
            have = f"one of {', '.join(source.archives)}"
            notes.note((*path, "arch", number), message, value=arch.value, expected=have)
    notes.check_duplicates((*path, "extras"), target.extras)
    for number, name in enumerate(target.extras):
        here: ValuePath = (*path, "extras", number)
        notes.check_choice(here, name, matrix.extras, "set of extras", of=("extras",))
    tag = "cu" + target.cuda.replace(".", "")
    for package, name in target.indexes.items():
        here = (*path, "indexes", package)
        notes.check_choice(here, name, matrix.indexes, "index", of=("indexes",))
        index = matrix.indexes.get(name)
        url = index.url or "" if index else ""
        if "{torch}" in url and "torch" not in target.pins:
            message = "the URL of this index contains {torch}, but the target does not pin torch"
            notes.note(here, message, value=name, expected="torch under `pins`, or another index")
        other = re.search(r"(?<![a-z0-9])cu[0-9]{2,3}(?![0-9])", url)
        if other and other[0] != tag:
            message, cuda = (
                (f"this index is for {other[0]}, but the target is for {tag}"),
                (*path, "cuda"),
            )
            notes.note(here, message, value=name, expected=f"an index for {tag}", of=cuda)


def _check_user_packages(
    notes: ProblemNotes, path: ValuePath, target: Target, matrix: Matrix
) -> None:
    here: ValuePath = (*path, "user_packages")
    if isinstance(matrix.bases.get(target.base), RegistryBase):
        message = f"the base {target.base} comes from a registry"
        notes.note(here, message, value=True, expected="a base of Debian packages")
    required = {*matrix.requires, *matrix.requirements_of(target), *target.pins}
    if missing := [name for name in ("pip", "uv") if name not in required]:
        message = f"the target does not require {' or '.join(missing)}"
        notes.note(here, message, value=True, expected=f"{' and '.join(missing)} under requires")


def _architectures(notes: ProblemNotes, path: ValuePath, target: Target) -> None:
    for arch in target.exclude:
        if arch in target.arch:
            message = f"{arch} is excluded and also listed in arch"
            notes.note(
                (*path, "exclude", arch), message, key=True, expected="only one of the two entries"
            )
    check_gpus(notes, (*path, "gpu"), target.gpu)


def check_gpus(notes: ProblemNotes, path: ValuePath, capabilities: Sequence[str]) -> None:
    """Check a list of compute capabilities at `path`."""
    notes.check_duplicates(path, capabilities)
    for number, capability in enumerate(capabilities):
        here = (*path, number)
        notes.check_form(here, capability, r"[0-9]+\.[0-9]", 'a compute capability, such as "9.0"')


def _check_versions(notes: ProblemNotes, path: ValuePath, row: Target | Extension) -> None:
    for package, version in row.pins.items():
        here = (*path, "pins", package)
        normal = parse_version(version)
        if normal is None:
            expected = "a normalized PEP 440 version, such as 0.8.5.post1"
            notes.note(here, "not a version", value=version, expected=expected)
        elif str(normal) != version:
            message = "the version is not normalized"
            notes.note(here, message, value=version, expected=str(normal))
    for package, requirement in row.requires.items():
        here = (*path, "requires", package)
        if package in row.pins:
            line, _ = notes.place_of((*path, "pins", package), True) or ("?", 0)
            message = f"{package} is pinned in line {line} and required here"
            notes.note(here, message, key=True, expected="only one of the two entries")
        check_specifier(notes, (*here, "spec"), requirement.spec)


def check_specifier(notes: ProblemNotes, path: ValuePath, spec: str) -> None:
    """Record a problem if `spec` is not a valid version specifier."""
    try:
        SpecifierSet(spec)
    except InvalidSpecifier:
        near = f"=={spec}" if re.fullmatch(r"[0-9][0-9a-z.]*", spec) else None
        expected = 'a version specifier, such as ">=78,<79"'
        notes.note(path, "not a version specifier", value=spec, expected=expected, near=near)


def _check_cuda(notes: ProblemNotes, path: ValuePath, target: Target) -> None:
    cuda = target.cuda
    major, tag = cuda.split(".")[0], "cu" + cuda.replace(".", "")
    of_release = f"the package belongs to a different CUDA release than {cuda}"
    for field, packages in (("pins", target.pins), ("requires", target.requires)):
        for package in packages:
            named = re.search(r"-cu(?:da)?([0-9]{2})x?$", package)
            if named and named[1] != major:
                message = f"the package is for CUDA {named[1]}, but the target is for CUDA {cuda}"
                expected = f"a package for CUDA {major}"
                notes.note((*path, field, package), message, key=True, expected=expected)
    for package, version in target.pins.items():
        here = (*path, "pins", package)
        local = re.search(r"\+(cu[0-9]+)", version)
        if local and local[1] != tag:
            message = f"the version is a build for a different CUDA release than {cuda}"
            notes.note(here, message, value=version, expected=version.replace(local[1], tag))
        if package in RELEASED_WITH_CUDA and not version.startswith(f"{cuda}."):
            notes.note(here, of_release, value=version, expected=f"{cuda}.…")
    for package, requirement in target.requires.items():
        specs = ("", f"=={cuda}.*", f"~={cuda}.0")
        if package in RELEASED_WITH_CUDA and requirement.spec.replace(" ", "") not in specs:
            here, spec = (*path, "requires", package), requirement.spec
            notes.note(here, of_release, key=True, value=spec, expected=f'"=={cuda}.*"')


def _flashinfer(notes: ProblemNotes, path: ValuePath, target: Target) -> None:
    mode, pins, package = target.flashinfer.mode, target.pins, flashinfer.PACKAGE
    here = (*path, "flashinfer", "mode")
    if mode == "off":
        for name in FLASHINFER:
            if name in pins or name in target.requires:
                message = f"FlashInfer is off, but the target requires {name}"
                notes.note(here, message, value=mode, expected=f"jit or prebuilt, or no {name}")
        _check_sampler(notes, (*path, "env", flashinfer.SAMPLER), target)
    elif mode == "prebuilt":
        if not any(name in pins and name in target.indexes for name in COMPILED_PACKAGES):
            message = f"prebuilt kernels require {package} to be pinned and assigned to an index"
            expected = f"{' or '.join(COMPILED_PACKAGES)} in pins and in indexes"
            notes.note(here, message, value=mode, expected=expected)
    elif mode == "jit":
        first = flashinfer.FIRST_WITH_NVCC
        if target.cuda and flashinfer.cuda_major(target) < first:
            cuda = target.cuda
            message = (
                "kernels cannot be compiled, because no index has a wheel with nvcc for "
                f"CUDA {cuda}"
            )
            expected = f"prebuilt or off; jit requires CUDA {first}.0 or newer"
            notes.note(here, message, value=mode, expected=expected)
        # A kernel cache is compatible: missing kernels are compiled at first use.
        if package in target.indexes:
            message = f"{package} is assigned to an index of precompiled kernels"
            notes.note(here, message, value=mode, expected="prebuilt, or another index")
    pinned = {name: pins[name].partition("+")[0] for name in FLASHINFER if pins.get(name)}
    if len(set(pinned.values())) > 1:
        message = "FlashInfer does not start unless all its packages have the same version"
        value = " and ".join(sorted(set(pinned.values())))
        expected = f"the same version of {package} and its related packages"
        notes.note((*path, "pins", next(iter(pinned))), message, value=value, expected=expected)


def _check_sampler(notes: ProblemNotes, path: ValuePath, target: Target) -> None:
    variable = target.env.get(flashinfer.SAMPLER)
    if variable is not None and variable.value != "0":
        message = (
            f"FlashInfer is off, but the target sets {path[-1]} to a value that enables FlashInfer"
        )
        value, of = variable.value, (*path, "value")
        notes.note(path, message, value=value, expected="0, or no entry", of=of)


def check_environment(notes: ProblemNotes, path: ValuePath, names: Collection[str]) -> None:
    """Check the names of environment variables, and reject names that imgbuild sets."""
    settings.check_environment(notes, path, names)
    if flashinfer.VARIABLE in names:
        message = "imgbuild sets this variable according to the FlashInfer mode"
        here = (*path, flashinfer.VARIABLE)
        notes.note(here, message, key=True, expected="flashinfer: {mode: …}")


def check_labels(notes: ProblemNotes, path: ValuePath, names: Collection[str]) -> None:
    """Check the names of labels, and reject labels that imgbuild sets."""
    settings.check_labels(notes, path, names)
    for name in names:
        if name in OWN_LABELS or name.startswith(VERSION_LABEL):
            message = "imgbuild sets this label from the target"
            notes.note((*path, name), message, key=True, expected="another name")


def check_drops(notes: ProblemNotes, path: ValuePath, drops: tuple[DroppedFiles, ...]) -> None:
    """Check the files that a target or the matrix excludes from the image."""
    packages: set[str] = set()
    for number, drop in enumerate(drops):
        here = (*path, "drop", number)
        if drop.package in packages:
            message = f"{drop.package} is listed twice"
            notes.note((*here, "package"), message, expected="one entry with all paths")
        packages.add(drop.package)
        check_specifier(notes, (*here, "versions"), drop.versions)
        if not drop.paths:
            notes.note((*here, "paths"), "no path to drop is listed", expected="at least one path")
        for place, item in enumerate(drop.paths):
            check_relative(notes, (*here, "paths", place), item)
