"""Accepts differences between two images, as specified in lists such as `data/compare.yaml`.

The result contains all differences, with a reason for each accepted difference. If an entry
specifies how to compare contents, a difference in contents is accepted only if this comparison
succeeds.
"""

from __future__ import annotations

import csv
import io
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec
import yaml

from imgbuild.errors import InputError
from imgbuild.system import boundary, decoding, yaml_data

FILE = "data/compare.yaml"
# Bytes of one file whose text is compared; a larger one is not stored, and counts as different.
LIMITS = {"record": 16 << 20, "launcher": 16 << 10}
# Every line of the script that imgbuild or uv writes for an entry point. uv's also strips
# suffixes that occur only on Windows.
LAUNCHER = re.compile(
    r"""(?P<interpreter>#!\S+)
(?:# -\*- coding: utf-8 -\*-
)?import sys
\n?from (?P<module>[\w.]+) import (?P<name>\w+)
\n?if __name__ == "__main__":
(?:    if sys\.argv\[0\]\.endswith\("-script\.pyw"\):
        sys\.argv\[0\] = sys\.argv\[0\]\[:-11\]
    elif sys\.argv\[0\]\.endswith\("\.exe"\):
        sys\.argv\[0\] = sys\.argv\[0\]\[:-4\]
)?    sys\.exit\((?P<call>[\w.]+)\(\)\)
"""
)

LikeKind = Literal["", "record", "launcher", "folder"]


class AcceptedDifference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry in a list of accepted differences.

    In `path`, * matches a part of a name, and ** matches a part of a path. "configuration" is the
    configuration of the image. `field` is the field that differs, with the same wildcards. With
    `only`, the entry applies to paths that exist only in images of these builders. `like` defines
    how contents are compared:

    - record: the same rows in any order, except rows of files with accepted differences;
    - launcher: the same interpreter and function, without additional lines;
    - folder: a folder that exists only on one side, with only accepted differences inside.
    """

    path: str
    field: str
    reason: str
    only: tuple[str, ...] = ()
    like: LikeKind = ""


class FileDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A difference, and the reason if it is accepted."""

    path: str
    field: str
    left: str | None
    right: str | None
    reason: str = ""


def builder_differences() -> tuple[AcceptedDifference, ...]:
    """The accepted differences between images that two builders create from the same plan."""
    text = resources.files("imgbuild").joinpath(FILE).read_text(encoding="utf-8")
    return _parse_accepted(text, FILE)


def read_accepted(path: Path) -> tuple[AcceptedDifference, ...]:
    """Read the list at `path`. Raises InputError with all problems."""
    try:
        text = boundary.read_regular_file(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read {path}: {error}"
        raise InputError(message) from error
    return _parse_accepted(text, str(path))


def _parse_accepted(text: str, file: str) -> tuple[AcceptedDifference, ...]:
    try:
        entries = decoding.convert(yaml_data.parse_yaml(text) or [], tuple[AcceptedDifference, ...])
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        message = f"{file} is not a valid list of accepted differences: {error}"
        raise InputError(message, hint="each entry must have path, field and reason") from error
    for entry in entries:
        if not entry.reason.strip():
            message = f"{file}: the reason is missing for {entry.field} of {entry.path}"
            raise InputError(message, hint="explain why the difference does not affect users")
    return entries


class DifferenceMatcher:
    """Compares differences with a list, and records which entries are used.

    `names` are the names of the two sides. `watch_side` stores the contents that entries compare.
    """

    def __init__(self, accepted: Sequence[AcceptedDifference], names: tuple[str, str]) -> None:
        self._accepted = accepted
        self._names = names
        self._paths = [path_pattern(entry.path) for entry in accepted]
        self._fields = [path_pattern(entry.field) for entry in accepted]
        self._texts: tuple[dict[str, bytearray], dict[str, bytearray]] = ({}, {})
        self._used: set[int] = set()

    def watch_side(self, side: int) -> Callable[[str], Callable[[bytes], object] | None]:
        """Return a callback for `Merged.add` that stores contents of `side` (0 or 1) to compare."""
        limits = [
            (path, LIMITS[entry.like])
            for path, entry in zip(self._paths, self._accepted, strict=True)
            if entry.like in LIMITS
        ]

        def _content_reader(path: str) -> Callable[[bytes], object] | None:
            limit = max((limit for each, limit in limits if each.fullmatch(path)), default=0)
            if not limit:
                return None
            buffer = self._texts[side][path] = bytearray()

            def _append_chunk(chunk: bytes) -> None:
                if path in self._texts[side]:
                    buffer.extend(chunk)
                    if len(buffer) > limit:
                        del self._texts[side][path]

            return _append_chunk

        return _content_reader

    def accept_differences(
        self, differences: Iterable[FileDifference]
    ) -> tuple[FileDifference, ...]:
        """Return the differences in the same order. Accepted differences have a reason."""
        judged = [self._accept_difference(each, ("", "launcher"), {}) for each in differences]
        # Folders and RECORD refer to other files, whose differences must be compared first.
        for like in ("folder", "record"):
            by_path = _differences_by_path(judged)
            judged = [
                each if each.reason else self._accept_difference(each, (like,), by_path)
                for each in judged
            ]
        return tuple(judged)

    def unused_entries(self) -> tuple[AcceptedDifference, ...]:
        """Return the entries that match no difference, except entries for other builders."""
        return tuple(
            entry
            for place, entry in enumerate(self._accepted)
            if place not in self._used
            and not (entry.only and set(entry.only).isdisjoint(self._names))
        )

    def _accept_difference(
        self,
        difference: FileDifference,
        comparisons: tuple[str, ...],
        by_path: Mapping[str, FileDifference],
    ) -> FileDifference:
        for place, entry in enumerate(self._accepted):
            if entry.like not in comparisons:
                continue
            if not self._paths[place].fullmatch(difference.path):
                continue
            if not self._fields[place].fullmatch(difference.field):
                continue
            if entry.only and self._only_side(difference) not in entry.only:
                continue
            if entry.like and not self._is_equivalent(entry.like, difference, by_path):
                continue
            self._used.add(place)
            return msgspec.structs.replace(difference, reason=entry.reason)
        return difference

    def _only_side(self, difference: FileDifference) -> str | None:
        """Return the only side that has the path or field. None if both sides have the path."""
        if difference.left is None:
            return self._names[1]
        return self._names[0] if difference.right is None else None

    def _is_equivalent(
        self, like: LikeKind, difference: FileDifference, by_path: Mapping[str, FileDifference]
    ) -> bool:
        if like == "folder":
            return _is_harmless_folder(difference, by_path)
        left, right = (bytes(texts.get(difference.path, b"")) for texts in self._texts)
        if not left or not right:
            return False
        if like == "launcher":
            return _launcher_target(left) is not None and _launcher_target(
                left
            ) == _launcher_target(right)
        return _same_record(difference.path, left, right, by_path)


def _differences_by_path(judged: Iterable[FileDifference]) -> dict[str, FileDifference]:
    """Return a difference for each path, preferably a difference that is not accepted."""
    by_path: dict[str, FileDifference] = {}
    for each in judged:
        if each.path not in by_path or not each.reason:
            by_path[each.path] = each
    return by_path


def _is_harmless_folder(difference: FileDifference, by_path: Mapping[str, FileDifference]) -> bool:
    """Whether a folder that exists only on one side has only accepted differences inside."""
    if not _is_folder(difference):
        return False
    below = (each for path, each in by_path.items() if path.startswith(f"{difference.path}/"))
    return all(each.reason or _is_folder(each) for each in below)


def _is_folder(difference: FileDifference) -> bool:
    return difference.field == "presence" and (
        difference.left or difference.right or ""
    ).startswith("folder ")


def path_pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern in which * matches a part of a name and ** a part of a path."""
    parts = re.split(r"(\*\*|\*)", text)
    stars = {"**": ".*", "*": "[^/]*"}
    return re.compile("".join(stars.get(part, re.escape(part)) for part in parts), re.DOTALL)


def _launcher_target(script: bytes) -> tuple[str, str, str] | None:
    """Return the interpreter, module and function of a script that only calls a function, or None.

    Returns None for a script with an additional or different line.
    """
    match = LAUNCHER.fullmatch(script.decode("utf-8", "replace"))
    if match is None or match["call"].partition(".")[0] != match["name"]:
        return None
    return match["interpreter"], match["module"], match["call"]


def _same_record(
    path: str, left: bytes, right: bytes, by_path: Mapping[str, FileDifference]
) -> bool:
    """Whether two RECORD files have the same rows, except for files that differ."""
    mine, theirs = _rows(left), _rows(right)
    site = posixpath.dirname(posixpath.dirname(path))
    for name in mine.keys() | theirs.keys():
        place = posixpath.normpath(posixpath.join(site, name))
        accepted = place == path or (place in by_path and bool(by_path[place].reason))
        if mine.get(name) != theirs.get(name) and not accepted:
            return False
    return True


def _rows(record: bytes) -> dict[str, tuple[str, ...]]:
    text = record.decode("utf-8", "surrogateescape")
    return {row[0]: tuple(row[1:]) for row in csv.reader(io.StringIO(text)) if row}
