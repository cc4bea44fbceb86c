"""Reads and merges learned constraints: which versions of B work with a version of A.

Constraints are stored for all targets in `images/constraints.yaml`. This module returns the
requirements of a version of A, and the constraints that a package set violates. The file is
reviewed like code. Each line is one constraint, with a code location as evidence.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from packaging.requirements import InvalidRequirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from imgbuild import codec
from imgbuild.errors import InputError
from imgbuild.matrix.notes import ProblemNotes
from imgbuild.system import boundary
from imgbuild.system.syntax import parse_requirement
from imgbuild.values import normalize_package

HEAD = """\
# Learned by the audit: `package` in `versions` works only with `needs`. Written by `imgbuild lock`
# and used by all targets; sorted, one entry per line. `file`, `line` and `name` are the evidence,
# from version `read_in` of the package, compared with `against`. `came` and `went` are the
# versions of the other package that added and removed the name.
# `missing: true`: required but undeclared, so always added. Other entries only narrow versions:
# they add no package to a package set. A removed entry is learned again if it still applies.
# `unused: true`: no version of the other package has the name, which only a function body uses.
# Such code has never run: the entry excludes no version, and the audit reports a warning.
"""
_BARE_SCALAR = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")


class Constraint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A learned constraint: versions of a package, and the versions of another that they need.

    `needs` is a requirement ("vllm>=0.11.1"), and `versions` a specifier.
    """

    package: str
    versions: str
    needs: str
    missing: bool = False
    unused: bool = False
    check: str = ""
    file: str = ""
    line: int = 0
    name: str = ""
    came: str = ""
    went: str = ""
    read_in: str = ""
    against: str = ""

    @property
    def other(self) -> str:
        """The normalized name of the required package."""
        return normalize_package(parse_requirement(self.needs).name)

    @property
    def spec(self) -> SpecifierSet:
        """The allowed versions of the required package."""
        return parse_requirement(self.needs).specifier

    def restricts_other_for(self, version: str) -> bool:
        """Return whether this version of `package` restricts the other package."""
        return not self.unused and self.contains_version(version)

    def contains_version(self, version: str) -> bool:
        """Return whether `versions` contains this version of `package`."""
        return SpecifierSet(self.versions).contains(version, prereleases=True)

    def applies_to(self, versions: Mapping[str, str]) -> bool:
        """Return whether the constraint applies to a package set (normalized name → version)."""
        version = versions.get(self.package)
        if version is None or not (self.missing or self.other in versions):
            return False
        return self.restricts_other_for(version)

    def is_violated(self, versions: Mapping[str, str]) -> bool:
        """Return whether a package set (normalized name → version) violates the constraint."""
        if not self.applies_to(versions):
            return False
        other = versions.get(self.other)
        return other is None or not self.spec.contains(other, prereleases=True)

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file
        what = ", ".join(part for part in (self.check, place, self.name) if part)
        changed = [
            f"{word} in {version}"
            for word, version in (("added", self.came), ("removed", self.went))
            if version
        ]  # fmt: skip
        why = "; ".join(part for part in (what, *changed) if part)
        if self.unused:
            return (
                f"{self.package}{self.versions}: no version of {self.other} is compatible ({why})"
            )
        return f"{self.package}{self.versions} needs {self.needs}" + (f" ({why})" if why else "")


def violated_constraints(
    entries: Iterable[Constraint], versions: Mapping[str, str]
) -> tuple[Constraint, ...]:
    """Return the constraints that a package set (normalized name → version) violates."""
    return tuple(entry for entry in entries if entry.is_violated(versions))


def added_requirements(
    entries: Iterable[Constraint], package: str, version: str, present: Container[str]
) -> tuple[str, ...]:
    """Return the requirements that constraints add to `package` at `version`.

    Requirements of packages that are not `present` are omitted, because a constraint must not add a
    package.
    """
    return tuple(
        dict.fromkeys(
            entry.needs
            for entry in entries
            if entry.package == package
            and (entry.missing or entry.other in present)
            and entry.restricts_other_for(version)
        )
    )


# -- together


def merge_constraints(
    existing: Iterable[Constraint], learned: Iterable[Constraint]
) -> tuple[Constraint, ...]:
    """Merge and sort constraints. Duplicates are removed, and adjacent versions are joined."""
    entries: list[Constraint] = []
    for entry in (*existing, *learned):
        _add_constraint(entries, entry)
    return tuple(sorted(entries, key=_order))


def _add_constraint(entries: list[Constraint], new: Constraint) -> None:
    alike = [old for old in entries if _subject(old) == _subject(new)]
    if any(_covers_entry(old, new) for old in alike):
        return
    entries[:] = [old for old in entries if old not in alike or not _covers_entry(new, old)]
    for old in alike:
        wider = _union(old.versions, new.versions) if old.spec == new.spec else None
        if wider is not None and old in entries:
            entries.remove(old)
            _add_constraint(entries, msgspec.structs.replace(old, versions=wider))
            return
    entries.append(new)


def _subject(entry: Constraint) -> tuple[object, ...]:
    """Return the two packages of a constraint and, for unused code, the location and the name."""
    code = (entry.check, entry.file, entry.name) if entry.unused else ()
    return (entry.package, entry.other, entry.missing, entry.unused, *code)


def _covers_entry(entry: Constraint, other: Constraint) -> bool:
    """Return whether `entry` applies to all versions of `other` and is at least as strict."""
    return is_within(other.versions, entry.versions) and is_within(str(entry.spec), str(other.spec))


class _VersionSpan(msgspec.Struct, frozen=True):
    """A specifier as an interval. A bound of None means unbounded. `closed` bounds are included."""

    low: Version | None = None
    low_closed: bool = True
    high: Version | None = None
    high_closed: bool = True


def _span(text: str) -> _VersionSpan | None:
    """Parse `text` as an interval. Returns None for `!=`, `~=` and wildcards."""
    span = _VersionSpan()
    for part in SpecifierSet(text):
        if part.operator not in ("==", ">=", ">", "<", "<=") or part.version.endswith(".*"):
            return None
        bound, closed = Version(part.version), part.operator in ("==", ">=", "<=")
        if part.operator in ("==", ">=", ">") and (span.low is None or bound >= span.low):
            span = msgspec.structs.replace(span, low=bound, low_closed=closed)
        if part.operator in ("==", "<=", "<") and (span.high is None or bound <= span.high):
            span = msgspec.structs.replace(span, high=bound, high_closed=closed)
    return span


def is_within(inner: str, outer: str) -> bool:
    """Return whether `outer` certainly allows all versions that `inner` allows."""
    if SpecifierSet(inner) == SpecifierSet(outer):
        return True
    excluded = [part for part in SpecifierSet(outer) if part.operator == "!="]
    if excluded and len(excluded) == len(SpecifierSet(outer)):
        allowed = SpecifierSet(inner)
        plain = not any(part.version.endswith(".*") for part in excluded)
        return plain and not any(
            allowed.contains(part.version, prereleases=True) for part in excluded
        )
    small, large = _span(inner), _span(outer)
    if small is None or large is None:
        return False
    low = large.low is None or (
        small.low is not None
        and (small.low, not small.low_closed) >= (large.low, not large.low_closed)
    )
    high = large.high is None or (
        small.high is not None
        and (small.high, small.high_closed) <= (large.high, large.high_closed)
    )
    return low and high


def _union(spec: str, other: str) -> str | None:
    """Return the union of two specifiers, or None if the union is not one interval."""
    first, second = _span(spec), _span(other)
    if (
        first is None
        or second is None
        or not (_spans_touch(first, second) and _spans_touch(second, first))
    ):
        return None
    lows = [(span.low, not span.low_closed) for span in (first, second) if span.low is not None]
    highs = [(span.high, span.high_closed) for span in (first, second) if span.high is not None]
    low = min(lows) if len(lows) == 2 else None
    high = max(highs) if len(highs) == 2 else None
    if low and high and low[0] == high[0]:
        return f"=={low[0]}"
    parts = (
        f"{'>' if low[1] else '>='}{low[0]}" if low else "",
        f"{'<=' if high[1] else '<'}{high[0]}" if high else "",
    )
    return ",".join(part for part in parts if part) or None


def _spans_touch(first: _VersionSpan, second: _VersionSpan) -> bool:
    if first.low is None or second.high is None or first.low < second.high:
        return True
    return first.low == second.high and first.low_closed and second.high_closed


def _order(entry: Constraint) -> tuple[str, str, Version, str, str, int, str]:
    span = _span(entry.versions)
    low = span.low if span is not None and span.low is not None else Version("0")
    return (entry.package, entry.other, low, entry.needs, entry.file, entry.line, entry.name)


# -- the file


class _ConstraintsFile(msgspec.Struct, frozen=True):
    version: Literal[1]
    constraints: tuple[Constraint, ...] = ()


def constraints_path(images: Path) -> Path:
    """Return the path of the file of constraints in the folder `images`."""
    return images / "constraints.yaml"


def read_constraints(images: Path) -> tuple[Constraint, ...]:
    """Read the constraints in `images`, if the file exists.

    Raises InputError with all problems.
    """
    path = constraints_path(images)
    try:
        data = boundary.read_regular_file(path, codec.LIMIT)
    except FileNotFoundError:
        return ()
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise InputError(message) from error
    return parse_constraints(data, str(path))


@functools.lru_cache(maxsize=4)  # the same file is read for each target
def parse_constraints(data: bytes, file: str) -> tuple[Constraint, ...]:
    """Parse constraints from `data`. Error messages contain the name `file`."""
    from imgbuild.matrix.convert import convert_document
    from imgbuild.matrix.yaml_nodes import parse_yaml

    hint = "restore the file from git, or remove these lines; audits learn valid entries again"
    return convert_document(
        parse_yaml(data, file), _ConstraintsFile, _check_entries, hint=hint
    ).constraints


def _check_entries(notes: ProblemNotes, value: _ConstraintsFile) -> None:
    for number, entry in enumerate(value.constraints):
        for field, fault in _faults(entry):
            notes.note(("constraints", number, field), fault, value=getattr(entry, field))


def _faults(entry: Constraint) -> list[tuple[str, str]]:
    faults = []
    if normalize_package(entry.package) != entry.package or not entry.package:
        faults.append(("package", "is not a normalized package name"))
    try:
        if not SpecifierSet(entry.versions):
            faults.append(("versions", "contains no version"))
    except InvalidSpecifier:
        faults.append(("versions", "not a version specifier"))
    try:
        needed = parse_requirement(entry.needs)
        if needed.extras or needed.marker or needed.url:
            faults.append(("needs", "must be only a package and a specifier"))
        elif entry.unused and (needed.specifier or entry.missing):
            faults.append(("needs", "must be only a package in an entry with `unused: true`"))
        elif not needed.specifier and not (entry.missing or entry.unused):
            faults.append(("needs", "must not be empty, except in an entry with `missing: true`"))
    except InvalidRequirement:
        faults.append(("needs", "not a requirement"))
    return faults


def encode_constraints(entries: Iterable[Constraint]) -> bytes:
    """Encode constraints canonically."""
    rows = [f"  - {{{_row(entry)}}}\n" for entry in merge_constraints((), entries)]
    body = "constraints:\n" + "".join(rows) if rows else "constraints: []\n"
    return f"{HEAD}version: 1\n{body}".encode()


def _row(entry: Constraint) -> str:
    pairs = codec.to_builtins(entry).items()
    return ", ".join(f"{key}: {_scalar(value)}" for key, value in pairs)


def _scalar(value: str | int | bool) -> str:
    if isinstance(value, str) and _BARE_SCALAR.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
