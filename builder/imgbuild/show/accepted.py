"""Which differences between two images are accepted: one reviewed list, each entry with its reason.

Input: `data/compare.yaml`, differences. Output: the same differences, each with the reason of
the entry that accepts it. An entry may ask that two contents are alike in a way of its own: then
they are read, and what is not alike is not accepted.
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
from imgbuild.system import boundary, yaml_data

FILE = "data/compare.yaml"
# Bytes of one file whose text is compared; of a larger one nothing is kept, and it is not alike.
LIMITS = {"record": 16 << 20, "launcher": 16 << 10}
# Every line of the script that imgbuild or uv writes for an entry point. uv's takes off the endings
# that such a script has on Windows alone.
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

Like = Literal["", "record", "launcher", "folder"]


class Accepted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the list.

    In `path` a * stands for any part of one name, ** for any part of a path; "configuration" is the
    image's configuration. `field` is what differs, with the same stars. With `only`, what differs
    is there on one side alone, and that is one of these builders. `like` says in which way contents
    must be the same:

    - record: the same rows in any order, except files whose own difference is accepted;
    - launcher: the same interpreter, which calls the same function, with no other line;
    - folder: of presence: a folder, in which all that differs is accepted by itself.
    """

    path: str
    field: str
    reason: str
    only: tuple[str, ...] = ()
    like: Like = ""


class FileDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that differs, and why that is accepted (empty: it is not)."""

    path: str
    field: str
    left: str | None
    right: str | None
    reason: str = ""


def builders() -> tuple[Accepted, ...]:
    """The accepted differences between the images that two builders make of one plan."""
    text = resources.files("imgbuild").joinpath(FILE).read_text(encoding="utf-8")
    return _accepted(text, FILE)


def read(path: Path) -> tuple[Accepted, ...]:
    """The list in the file at `path`; InputError names what is wrong with it."""
    try:
        text = boundary.content(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read {path}: {error}"
        raise InputError(message) from error
    return _accepted(text, str(path))


def _accepted(text: str, file: str) -> tuple[Accepted, ...]:
    try:
        found = msgspec.convert(yaml_data.read(text) or [], tuple[Accepted, ...])
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        message = f"{file} is not a list of accepted differences: {error}"
        raise InputError(message, hint="each entry has path, field and reason") from error
    for entry in found:
        if not entry.reason.strip():
            message = f"{file}: {entry.path} {entry.field} is accepted without a reason"
            raise InputError(message, hint="explain why the difference does not matter to users")
    return found


class Acceptor:
    """Judges differences by a list, and keeps count of which entries were needed.

    `names` are those of the two sides; `watch` keeps the contents that entries ask to be alike.
    """

    def __init__(self, accepted: Sequence[Accepted], names: tuple[str, str]) -> None:
        self._accepted = accepted
        self._names = names
        self._paths = [pattern(entry.path) for entry in accepted]
        self._fields = [pattern(entry.field) for entry in accepted]
        self._texts: tuple[dict[str, bytearray], dict[str, bytearray]] = ({}, {})
        self._used: set[int] = set()

    def watch(self, side: int) -> Callable[[str], Callable[[bytes], object] | None]:
        """For `Merged.add` of `side` (0 or 1): what keeps the content of a path, if needed."""
        limits = [
            (path, LIMITS[entry.like])
            for path, entry in zip(self._paths, self._accepted, strict=True)
            if entry.like in LIMITS
        ]

        def _wants(path: str) -> Callable[[bytes], object] | None:
            limit = max((limit for each, limit in limits if each.fullmatch(path)), default=0)
            if not limit:
                return None
            kept = self._texts[side][path] = bytearray()

            def _keep(chunk: bytes) -> None:
                if path in self._texts[side]:
                    kept.extend(chunk)
                    if len(kept) > limit:
                        del self._texts[side][path]

            return _keep

        return _wants

    def judge(self, differences: Iterable[FileDifference]) -> tuple[FileDifference, ...]:
        """The differences in the same order, with a reason where an entry accepts them."""
        judged = [self._judged(each, ("", "launcher"), {}) for each in differences]
        # Folders and RECORD speak of other files, whose own differences must be judged first.
        for like in ("folder", "record"):
            known = _by_path(judged)
            judged = [
                each if each.reason else self._judged(each, (like,), known) for each in judged
            ]
        return tuple(judged)

    def unused(self) -> tuple[Accepted, ...]:
        """The entries that accepted nothing, except those of other builders."""
        return tuple(
            entry
            for place, entry in enumerate(self._accepted)
            if place not in self._used
            and not (entry.only and set(entry.only).isdisjoint(self._names))
        )

    def _judged(
        self, found: FileDifference, ways: tuple[str, ...], known: Mapping[str, FileDifference]
    ) -> FileDifference:
        for place, entry in enumerate(self._accepted):
            if entry.like not in ways:
                continue
            if not self._paths[place].fullmatch(found.path):
                continue
            if not self._fields[place].fullmatch(found.field):
                continue
            if entry.only and self._only(found) not in entry.only:
                continue
            if entry.like and not self._alike(entry.like, found, known):
                continue
            self._used.add(place)
            return msgspec.structs.replace(found, reason=entry.reason)
        return found

    def _only(self, found: FileDifference) -> str | None:
        """The only side that has what differs; None if both have it."""
        if found.left is None:
            return self._names[1]
        return self._names[0] if found.right is None else None

    def _alike(
        self, like: Like, found: FileDifference, known: Mapping[str, FileDifference]
    ) -> bool:
        if like == "folder":
            return _is_harmless_folder(found, known)
        left, right = (bytes(texts.get(found.path, b"")) for texts in self._texts)
        if not left or not right:
            return False
        if like == "launcher":
            return _launched(left) is not None and _launched(left) == _launched(right)
        return _same_record(found.path, left, right, known)


def _by_path(judged: Iterable[FileDifference]) -> dict[str, FileDifference]:
    """For each path one of its differences: one that nothing accepts, if there is one."""
    known: dict[str, FileDifference] = {}
    for each in judged:
        if each.path not in known or not each.reason:
            known[each.path] = each
    return known


def _is_harmless_folder(found: FileDifference, known: Mapping[str, FileDifference]) -> bool:
    """Whether a folder that one side lacks holds only what is accepted, or such folders."""
    if not _is_folder(found):
        return False
    below = (each for path, each in known.items() if path.startswith(f"{found.path}/"))
    return all(each.reason or _is_folder(each) for each in below)


def _is_folder(found: FileDifference) -> bool:
    return found.field == "presence" and (found.left or found.right or "").startswith("folder ")


def pattern(text: str) -> re.Pattern[str]:
    """`text` with * for any part of one name and ** for any part of a path."""
    parts = re.split(r"(\*\*|\*)", text)
    stars = {"**": ".*", "*": "[^/]*"}
    return re.compile("".join(stars.get(part, re.escape(part)) for part in parts), re.DOTALL)


def _launched(script: bytes) -> tuple[str, str, str] | None:
    """Interpreter, module and function of a script that does nothing but call it; None for others.

    No line is skipped: a script with an additional or different line is another one.
    """
    found = LAUNCHER.fullmatch(script.decode("utf-8", "replace"))
    if found is None or found["call"].partition(".")[0] != found["name"]:
        return None
    return found["interpreter"], found["module"], found["call"]


def _same_record(path: str, left: bytes, right: bytes, known: Mapping[str, FileDifference]) -> bool:
    """Whether two RECORDs say the same of every file that is the same."""
    mine, theirs = _rows(left), _rows(right)
    site = posixpath.dirname(posixpath.dirname(path))
    for name in mine.keys() | theirs.keys():
        place = posixpath.normpath(posixpath.join(site, name))
        accepted = place == path or (place in known and bool(known[place].reason))
        if mine.get(name) != theirs.get(name) and not accepted:
            return False
    return True


def _rows(record: bytes) -> dict[str, tuple[str, ...]]:
    text = record.decode("utf-8", "surrogateescape")
    return {row[0]: tuple(row[1:]) for row in csv.reader(io.StringIO(text)) if row}
