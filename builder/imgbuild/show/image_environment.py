"""Collects the value, reason, source and origin of each environment variable of an image.

The inputs are the matrix and, if it exists, the lock of a target. The output is a
`TargetEnvironment` with the variables in the image, and variables that are set at run time (`set`
in data/variables.yaml).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal

import msgspec

from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.published import find_overlay
from imgbuild.matrix import flashinfer
from imgbuild.matrix.fields import Source
from imgbuild.matrix.model import Matrix, Variable
from imgbuild.plan import plan
from imgbuild.system import decoding, files, yaml_data
from imgbuild.values import Arch

USER_PACKAGES = "user_packages"  # the key of a target
REASONS = {
    plan.USER_BASE: (
        "Python, pip and uv search this folder for packages that a user adds, after the packages "
        "of the image; the folder name is derived from the packages of the image, because "
        "packages for another image can be incompatible"
    ),
    "PATH": "pip and uv for users' packages are first, and commands of users' packages are last",
}
SOURCES = (
    "https://docs.python.org/3/using/cmdline.html#envvar-PYTHONUSERBASE",
    "builder/imgbuild/data/image/packages.py",
)

VariableSetter = Literal[
    "entry point", "SIF", "slurm", "smoke", "root folder with GPUs", "kernels", "bytecode"
]  # in the order of the output


class ImageVariable(msgspec.Struct, frozen=True, kw_only=True):
    """A variable of the image. `by` is the origin: a place in the matrix, or the FlashInfer mode.

    `differs` describes the value in the matrix if the image has a different value.
    """

    name: str
    value: str
    by: str
    reason: str = ""
    source: tuple[str, ...] = ()
    differs: str = ""


class RuntimeVariable(msgspec.Struct, frozen=True, kw_only=True):
    """A variable that is set at run time. `value` and `when` are descriptions.

    `when` is empty if the variable is always set.
    """

    name: str
    value: str
    by: VariableSetter
    when: str
    reason: str
    source: tuple[str, ...]


class TargetEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """All variables of a target's image. If `locked` is set, the values are from the lock."""

    target: str
    arch: tuple[Arch, ...]
    locked: bool
    image: tuple[ImageVariable, ...]
    late: tuple[RuntimeVariable, ...]


class VariableRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Variables with the same origin and reason."""

    by: VariableSetter
    names: tuple[str, ...]
    value: str
    reason: str
    source: tuple[Source, ...]
    when: str = ""
    packages: tuple[str, ...] = ()


def set_variable_rows() -> tuple[VariableRow, ...]:
    """Read the section `set` of data/variables.yaml: variables that are set at run time."""
    tables = yaml_data.load_yaml_data(files.data("variables.yaml"), dict[str, Any])
    return decoding.convert(tables["set"], tuple[VariableRow, ...])


def target_environment(
    matrix: Matrix, name: str, arches: Sequence[Arch], lock: Lock | None
) -> TargetEnvironment:
    """Return the variables of target `name` in the image and at run time."""
    expected = {
        key: (by, variable)
        for by, part in _matrix_variables(matrix, name).items()
        for key, variable in part.items()
    }
    have = _packages(matrix, name, arches, lock)
    if lock is None:
        settings = tuple(
            _setting(key, each[1].value, expected) for key, each in sorted(expected.items())
        )
        late = _runtime_variables(matrix.image.cache, None)
    else:
        settings = _arch_settings(_locked_settings(lock, expected), lock, arches)
        late = _runtime_variables(lock.settings.cache, have.versions.keys())
    return TargetEnvironment(
        target=name,
        arch=tuple(arches),
        locked=lock is not None,
        image=tuple(
            msgspec.structs.replace(setting, source=_sources(setting.source, have))
            for setting in settings
        ),
        late=tuple(
            msgspec.structs.replace(setting, source=_sources(setting.source, have))
            for setting in late
        ),
    )


class _ImagePackages(msgspec.Struct, frozen=True, kw_only=True):
    """The packages of an image with the origin of each version. Incomplete without a lock."""

    versions: Mapping[str, str]
    places: Mapping[str, str]
    complete: bool


def _packages(
    matrix: Matrix, name: str, arches: Sequence[Arch], lock: Lock | None
) -> _ImagePackages:
    pins = matrix.targets[name].pins
    locks = lock.arch if lock is not None else {}
    locked = {
        package: version
        for arch in arches
        if arch in locks
        for package, version in locks[arch].versions.items()
    }
    places = {
        package: f"targets.{name}.pins" if pins.get(package) == version else "the lock"
        for package, version in (locked or pins).items()
    }
    return _ImagePackages(versions=locked or pins, places=places, complete=bool(locked))


def _sources(given: Iterable[str], have: _ImagePackages) -> tuple[str, ...]:
    """Select the sources that apply to the package versions in `have`.

    If no source applies to the version of a package, sources for other versions are returned, with
    the actual version and its origin.
    """
    cited = [(source, *_cited_package(source)) for source in given]
    exact = {package for _, package, version in cited if have.versions.get(package) == version}
    sources = []
    for source, package, version in cited:
        actual = have.versions.get(package)
        if not package or actual == version or (actual is None and not have.complete):
            sources.append(source)
        elif actual is None:
            sources.append(f"{source} (the image has no {package})")
        elif package not in exact:
            sources.append(f"{source} (the image has {actual}, from {have.places[package]})")
    return tuple(sources)


def _cited_package(source: str) -> tuple[str, str]:
    """Return the package and version of a file in a wheel. Empty for other sources."""
    package, equal, rest = source.partition("==")
    return (package, rest.partition(" ")[0]) if equal and " " not in package else ("", "")


def _matrix_variables(matrix: Matrix, name: str) -> dict[str, Mapping[str, Variable]]:
    """Return the variables of target `name` in the matrix, by origin."""
    target = matrix.targets[name]
    item = find_overlay(matrix, name)
    if item is not None:  # the reasons are in the matrix of the publisher
        extended = item.published
        reason = f"the reason is in the matrix of the published target {extended.name}"
        published = {
            key: Variable(value=value, reason=reason)
            for key, value in extended.lock.settings.env.items()
        }
        return {f"published {extended.name}": published, f"targets.{name}.env": target.env}
    mode = flashinfer.mode_environment(target, matrix.image, matrix.bases[target.base])
    removed = {lock_file.NO_USER_SITE} if target.user_packages else set()
    return {
        "image.env": {
            key: variable for key, variable in matrix.image.env.items() if key not in removed
        },
        f"FlashInfer mode {target.flashinfer.mode}": mode,
        f"targets.{name}.env": target.env,
    }


def _locked_settings(
    lock: Lock, expected: Mapping[str, tuple[str, Variable]]
) -> tuple[ImageVariable, ...]:
    """Return the variables of the lock, and variables that are only in the matrix."""
    locked = tuple(
        _setting(key, value, expected) for key, value in sorted(lock.settings.env.items())
    )
    absent = tuple(
        ImageVariable(
            name=key,
            value="",
            by=by,
            reason=variable.reason,
            source=variable.source,
            differs=f"the matrix has {variable.value!r}, but the variable is not in the lock",
        )
        for key, (by, variable) in sorted(expected.items())
        if key not in lock.settings.env
    )
    return (*locked, *absent)


def _arch_settings(
    settings: Sequence[ImageVariable], lock: Lock, arches: Sequence[Arch]
) -> tuple[ImageVariable, ...]:
    """Adjust `settings` to the architecture and `user_packages` of the image."""
    base = {item.name: item for item in settings}
    values: dict[tuple[str, str], list[Arch]] = {}
    for arch in arches:
        for name, value in plan.image_environment(lock, arch).items():
            if value != lock.settings.env.get(name):
                values.setdefault((name, value), []).append(arch)
    changed = {name for name, _ in values}
    of_arch = [
        ImageVariable(
            name=name,
            value=value,
            by=USER_PACKAGES if len(of) == len(arches) else f"{USER_PACKAGES}, on {', '.join(of)}",
            reason="; ".join(
                part for part in (base[name].reason if name in base else "", REASONS[name]) if part
            ),
            source=(*(base[name].source if name in base else ()), *SOURCES),
            differs=base[name].differs if name in base else "",
        )
        for (name, value), of in values.items()
    ]
    rest = [item for item in settings if item.name not in changed]
    return tuple(sorted([*rest, *of_arch], key=lambda item: item.name))


def _setting(name: str, value: str, expected: Mapping[str, tuple[str, Variable]]) -> ImageVariable:
    if name not in expected:
        return ImageVariable(
            name=name, value=value, by="lock", differs="the matrix does not set this variable"
        )
    by, variable = expected[name]
    return ImageVariable(
        name=name,
        value=value,
        by=by,
        reason=" ".join(variable.reason.split()),
        source=variable.source,
        differs="" if variable.value == value else f"the matrix has {variable.value!r}",
    )


def _runtime_variables(cache: str, has: AbstractSet[str] | None) -> list[RuntimeVariable]:
    """Return the variables set at run time in an image with the packages `has` (None: unknown)."""
    return [
        RuntimeVariable(
            name=name,
            value=row.value.replace("{cache}", cache),
            by=row.by,
            when=row.when.replace("{cache}", cache),
            reason=row.reason,
            source=row.source,
        )
        for row in set_variable_rows()
        if not row.packages or has is None or not has.isdisjoint(row.packages)
        for name in row.names
    ]
