"""The variables of an image: value, reason, source, and who sets each.

Input: the matrix, a target's lock if there is one. Output: an `Environment`: what the image
holds, by its lock, and what is set when it runs, by data/variables.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from importlib import resources
from typing import Literal

import msgspec

from imgbuild.lock.lock import Lock
from imgbuild.lock.published import extended_target
from imgbuild.matrix import flashinfer
from imgbuild.matrix.model import Matrix, Source, Variable
from imgbuild.values import Arch

FILE = "data/variables.yaml"
Setter = Literal[
    "entry point", "SIF", "slurm", "smoke", "root folder with GPUs", "kernels", "bytecode"
]  # in the order of the output


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A variable that the image holds. `by` is what sets it: a place of the matrix, a mode.

    `differs` names the value that the matrix has now, if it is another one. A `source` in a wheel
    of another version than the image's ends with the version that the image has, in parentheses.
    """

    name: str
    value: str
    by: str
    reason: str = ""
    source: tuple[str, ...] = ()
    differs: str = ""


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """A variable that is set when the image runs; `value` and `when` are in words.

    `when` is empty where it is always so.
    """

    name: str
    value: str
    by: Setter
    when: str
    reason: str
    source: tuple[str, ...]


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """All variables of a target's image. `locked`: the values are the lock's, not the matrix's."""

    target: str
    arch: tuple[Arch, ...]
    locked: bool
    image: tuple[Setting, ...]
    late: tuple[Late, ...]


class VariableRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Variables of the table that are set by the same and for the same reason."""

    by: Setter
    names: tuple[str, ...]
    value: str
    reason: str
    source: tuple[Source, ...]
    when: str = ""
    packages: tuple[str, ...] = ()


def rows() -> tuple[VariableRow, ...]:
    """The table of what is set when an image runs."""
    import yaml  # takes a while to load, and most verbs need none of it

    text = resources.files("imgbuild").joinpath(FILE).read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), tuple[VariableRow, ...])


def environment(
    matrix: Matrix, name: str, arches: Sequence[Arch], lock: Lock | None
) -> Environment:
    """The variables of target `name`: what its image holds, and what is set when it runs."""
    expected = {
        key: (by, variable)
        for by, part in _of_matrix(matrix, name).items()
        for key, variable in part.items()
    }
    if lock is None:
        found = tuple(
            _setting(key, each[1].value, expected) for key, each in sorted(expected.items())
        )
        late = _late(matrix.image.cache, None)
    else:
        have: dict[str, set[str]] = {}
        for arch in arches:
            for package, version in lock.arch[arch].versions.items() if arch in lock.arch else ():
                have.setdefault(package, set()).add(version)
        found = tuple(
            msgspec.structs.replace(item, source=_sources(item.source, have))
            for item in _locked(lock, expected)
        )
        late = [
            msgspec.structs.replace(item, source=_sources(item.source, have))
            for item in _late(lock.settings.cache, have.keys())
        ]
    return Environment(
        target=name,
        arch=tuple(arches),
        locked=lock is not None,
        image=found,
        late=tuple(late),
    )


def _sources(given: Sequence[str], have: Mapping[str, AbstractSet[str]]) -> tuple[str, ...]:
    """`given` for an image with the packages `have`: each name → its versions.

    Of the sources in a package, those of the image's version are kept if there are any; the others
    say which version the image has.
    """
    wheels = {text: text.partition(" ")[0].split("==") for text in given if "==" in text}
    exact = {package for package, version in wheels.values() if version in have.get(package, ())}
    found = []
    for text in given:
        package, version = wheels.get(text, ("", ""))
        versions = have.get(package, frozenset())
        if not package or version in versions:
            found.append(text)
        elif package not in exact:
            note = f"has {', '.join(sorted(versions))}" if versions else f"has no {package}"
            found.append(f"{text} (the image {note})")
    return tuple(found)


def _of_matrix(matrix: Matrix, name: str) -> dict[str, Mapping[str, Variable]]:
    """The variables of target `name` in the matrix, by the place that sets them."""
    target = matrix.targets[name]
    found = extended_target(matrix, name)
    if found is not None:  # the reasons are in the matrix of the publisher
        reason = f"the matrix of {found.name}, which was published, says why"
        published = {
            key: Variable(value=value, reason=reason)
            for key, value in found.lock.settings.env.items()
        }
        return {f"published {found.name}": published, f"targets.{name}.env": target.env}
    mode = flashinfer.environment(target, matrix.image, matrix.bases[target.base])
    return {
        "image.env": matrix.image.env,
        f"FlashInfer mode {target.flashinfer.mode}": mode,
        f"targets.{name}.env": target.env,
    }


def _locked(lock: Lock, expected: Mapping[str, tuple[str, Variable]]) -> tuple[Setting, ...]:
    """The variables of the lock, and those that only the matrix has."""
    locked = tuple(
        _setting(key, value, expected) for key, value in sorted(lock.settings.env.items())
    )
    absent = tuple(
        Setting(
            name=key,
            value="",
            by=by,
            reason=variable.reason,
            source=variable.source,
            differs=f"the matrix says {variable.value!r}, the lock has no such variable",
        )
        for key, (by, variable) in sorted(expected.items())
        if key not in lock.settings.env
    )
    return (*locked, *absent)


def _setting(name: str, value: str, expected: Mapping[str, tuple[str, Variable]]) -> Setting:
    if name not in expected:
        return Setting(name=name, value=value, by="lock", differs="the matrix says nothing of it")
    by, variable = expected[name]
    return Setting(
        name=name,
        value=value,
        by=by,
        reason=" ".join(variable.reason.split()),
        source=variable.source,
        differs="" if variable.value == value else f"the matrix says {variable.value!r}",
    )


def _late(cache: str, has: AbstractSet[str] | None) -> list[Late]:
    """What is set when an image with the packages `has` runs; None: they are not known yet."""
    return [
        Late(
            name=name,
            value=row.value.replace("{cache}", cache),
            by=row.by,
            when=row.when.replace("{cache}", cache),
            reason=row.reason,
            source=row.source,
        )
        for row in rows()
        if not row.packages or has is None or not has.isdisjoint(row.packages)
        for name in row.names
    ]
