"""Reads requirements files (`-r`, `-c`) as one set of pins, with the semantics of pip.

Included files (-r and -c) are read. Each package has one pin, which all other lines about the
package must allow.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from imgbuild.audit.packages.pinned import Pin, PinList
from imgbuild.errors import InputError, InputProblem
from imgbuild.project import requirement_lines
from imgbuild.project.model import DeclaredIndex, FilePlace, exact_version
from imgbuild.report import UncheckedPart
from imgbuild.system import boundary
from imgbuild.system.syntax import parse_requirement
from imgbuild.values import normalize_package
from imgbuild.wheel.tags import WheelTags

STDIN = "stdin"
LIMIT = 16 << 20  # bytes of a requirements file
PROJECTS = (".toml", ".py", ".cfg", ".lock", ".yml", ".yaml", ".ipynb")  # not lists of lines
KINDS = ("Dockerfile",)
SHOWN_LINES = 3  # requirements, or lines that are not any, that a message names
_HASH = re.compile(r"\s--hash[= ]\S+")
_COMMENT = re.compile(r"(?:^|\s+)#.*$")
_INCLUDES = {"-r": False, "--requirement": False, "-c": True, "--constraint": True}
_PATH = re.compile(r"(?:\.{0,2}/|\w+:|[^\s=<>~!@\[]+/)\S*|[^\s@]+\.(?:whl|tar\.gz|zip)")


class RequirementText(msgspec.Struct, frozen=True, kw_only=True):
    """Requirement lines. `name` is the file in messages. `path` is None if there is no file."""

    name: str
    text: str
    path: Path | None = None


class NotPinned(InputError):
    """Raised for a package without an exact version, and for a file of another type."""


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """A statement and its location. A `constraint` does not add a package."""

    file: str
    number: int
    text: str
    constraint: bool

    @property
    def place(self) -> str:
        return f"{self.file}:{self.number}"

    def line_problem(self, message: str) -> InputProblem:
        return InputProblem(file=self.file, line=self.number, message=message)


class _PlacedRequirement(msgspec.Struct, frozen=True, kw_only=True):
    """An applicable requirement and its location. `pin` is set if the version is exact."""

    line: _Line
    requirement: Requirement
    pin: Pin | None


def read_file(path: Path, name: str = "") -> RequirementText:
    """Return the text of a requirements file.

    Raises NotPinned for other types of files, and InputError if the file cannot be read.
    """
    if path.suffix in PROJECTS or path.name in KINDS or path.is_dir():
        message = f"{path} is not a requirements file"
        raise NotPinned(message, hint=f"pin its requirements: {_pipe_command([path])}")
    try:
        text = boundary.read_regular_file(path, LIMIT).decode("utf-8-sig")
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise InputError(message, hint="pass a requirements file with exact versions") from error
    except UnicodeDecodeError as error:
        message = f"{path} is not a UTF-8 text file: invalid byte at offset {error.start}"
        raise InputError(message, hint="pass a requirements file with exact versions") from error
    return RequirementText(name=name or str(path), text=text, path=path)


def read_pins(texts: Sequence[RequirementText], tags: WheelTags) -> PinList:
    """Return the pins for the machine in all `texts` together.

    Hashes, comments, markers and continued lines are accepted in the formats of pip and uv. Raises
    NotPinned for a package without an exact version. Raises InputError for an invalid requirement,
    and for lines that no version satisfies.
    """
    reader = _RequirementReader(tags)
    for text in texts:
        reader.read(text)
    names = ", ".join(text.name for text in texts)
    pins = reader.pins()
    unpinned = reader.unpinned_requirements(pins)
    if unpinned:
        reader.refuse_unpinned(names, unpinned, [text.path for text in texts])
    if reader.problems or not (pins or reader.unread):
        message = f"{names} is not a list of pinned versions"
        left = len(reader.problems) - SHOWN_LINES
        message += f"; the first {SHOWN_LINES} of {left + SHOWN_LINES} errors:" if left > 0 else ""
        hint = "write name==version, as `uv pip freeze` and `uv pip compile` do"
        raise InputError(message, problems=tuple(reader.problems[:SHOWN_LINES]), hint=hint)
    return PinList(pins=pins, unread=tuple(reader.unread), indexes=tuple(reader.indexes))


class _RequirementReader:
    def __init__(self, tags: WheelTags) -> None:
        self._tags = tags
        self._entries: dict[str, list[_PlacedRequirement]] = {}
        self._seen: set[tuple[Path, bool]] = set()
        self.unread: list[UncheckedPart] = []
        self.indexes: list[DeclaredIndex] = []
        self.problems: list[InputProblem] = []

    def read(self, text: RequirementText, *, constraint: bool = False) -> None:
        """Add the lines of `text` and of the files that it includes, reading each file once."""
        if text.path is not None:
            key = (text.path.resolve(), constraint)
            if key in self._seen:
                return
            self._seen.add(key)
        for number, statement in _statements(text.text):
            line = _Line(file=text.name, number=number, text=statement, constraint=constraint)
            try:
                if statement.startswith("-"):
                    self._option(line, text.path)
                else:
                    self._requirement(line)
            except ValueError as error:
                self.problems.append(line.line_problem(str(error).partition("\n")[0]))

    def _option(self, line: _Line, origin: Path | None) -> None:
        words = shlex.split(line.text)
        name, equals, value = words[0].partition("=")
        if not equals and name[:2] in ("-r", "-c", "-e") and len(name) > 2 and name[1] != "-":
            name, value = name[:2], name[2:]
        value = value or " ".join(words[1:])
        if name in ("-e", "--editable"):
            why = "editable installations are read only with --environment"
            self.unread.append(UncheckedPart(what=value, why=why, required=True))
        if requirement_lines.INDEX.match(line.text):
            folder = origin.parent if origin is not None else Path()
            place = FilePlace(
                file=origin.name if origin is not None else line.file, line=line.number
            )
            self.indexes += requirement_lines.declared_indexes(line.text, folder, place)
        constraint = _INCLUDES.get(name)
        if constraint is None:
            return
        if "://" in value:
            message = f"{line.text}: remote files are not supported; download the file first"
            raise ValueError(message)
        folder = origin.parent if origin is not None else Path()
        try:
            included = read_file(folder / value)
        except InputError as error:
            self.problems.append(line.line_problem(error.message))
            return
        self.read(included, constraint=line.constraint or constraint)

    def _requirement(self, line: _Line) -> None:
        if _PATH.fullmatch(line.text.partition(";")[0].strip()):
            why = "its package and version are unknown; use NAME @ URL"
            self.unread.append(UncheckedPart(what=line.text, why=why, required=True))
            return
        requirement = parse_requirement(line.text)
        marker = requirement.marker
        if marker is not None and not marker.evaluate(dict(self._tags.markers)):
            return
        pin: Pin | None
        if requirement.url is not None:
            pin = _url_pin(requirement)
            if pin is None:
                why = "the version is unknown, because the URL is not that of a wheel or sdist"
                unread = UncheckedPart(what=str(requirement), why=why, required=True)
                self.unread.append(unread)
                return
        else:
            version = exact_version(requirement.specifier)
            pin = None if version is None else Pin(version=version)
        entry = _PlacedRequirement(line=line, requirement=requirement, pin=pin)
        self._entries.setdefault(normalize_package(requirement.name), []).append(entry)

    def pins(self) -> dict[str, Pin]:
        pins: dict[str, Pin] = {}
        for package, entries in self._entries.items():
            pinned = [(entry, entry.pin) for entry in entries if entry.pin is not None]
            if not pinned or all(entry.line.constraint for entry in entries):
                continue
            first, pin = pinned[0]
            self.problems += [
                entry.line.line_problem(
                    f"{_without_marker(entry)} contradicts {_without_marker(first)} in"
                    f" {first.line.place}"
                )
                for entry in entries
                if not _pins_agree(first, entry)
            ]
            extras = {
                normalize_package(extra)
                for entry in entries
                if not entry.line.constraint
                for extra in entry.requirement.extras
            }
            url = next((each.url for _, each in pinned if each.url), "")
            pins[package] = Pin(version=pin.version, url=url, extras=tuple(sorted(extras)))
        return pins

    def unpinned_requirements(self, pins: dict[str, Pin]) -> list[_PlacedRequirement]:
        first = []
        for package, entries in self._entries.items():
            named = [entry for entry in entries if not entry.line.constraint]
            if package not in pins and named:
                first.append(named[0])
        return first

    def refuse_unpinned(
        self, names: str, unpinned: Sequence[_PlacedRequirement], paths: Sequence[Path | None]
    ) -> None:
        packages = sum(
            any(not entry.line.constraint for entry in entries)
            for entries in self._entries.values()
        )
        first = ", ".join(
            f"{_without_marker(entry)} ({entry.line.place})" for entry in unpinned[:SHOWN_LINES]
        )
        more = f" and {len(unpinned) - SHOWN_LINES} more" if len(unpinned) > SHOWN_LINES else ""
        message = (
            f"{names}: {len(unpinned)} of {packages} packages have no exact version: {first}{more}"
        )
        hint = f"pin them: {_pipe_command(paths, self._tags.python)}"
        raise NotPinned(message, problems=tuple(self.problems[:SHOWN_LINES]), hint=hint)


def _pipe_command(paths: Sequence[Path | None], python: str = "") -> str:
    files = shlex.join(str(path) if path is not None else "-" for path in paths)
    version = f" --python-version {python}" if python else ""
    same = f" --python {python}" if python else ""
    return f"uv pip compile {files}{version} | imgbuild audit -r -{same}"


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield the first line number and the text of each statement, without comments and hashes."""
    start, whole = 1, ""
    for number, line in enumerate(text.splitlines(), start=1):
        start = start if whole else number
        whole += _COMMENT.sub("", line).rstrip()
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            continue
        statement, whole = _HASH.sub("", whole).strip(), ""
        if statement:
            yield start, statement
    if whole.strip():
        yield start, _HASH.sub("", whole).strip()


def _url_pin(requirement: Requirement) -> Pin | None:
    """Return the pin of `NAME @ URL`, with the version in the file name of the wheel or sdist."""
    url = requirement.url or ""
    file = unquote(urlsplit(url).path).rpartition("/")[2]
    with contextlib.suppress(InvalidWheelFilename):
        return Pin(version=str(parse_wheel_filename(file)[1]), url=url)
    with contextlib.suppress(InvalidSdistFilename):
        return Pin(version=str(parse_sdist_filename(file)[1]), url=url)
    return None


def _pins_agree(first: _PlacedRequirement, other: _PlacedRequirement) -> bool:
    pin, second = first.pin, other.pin
    if pin is None or second is None:
        return pin is None or other.requirement.specifier.contains(
            Version(pin.version), prereleases=True
        )
    return Version(pin.version) == Version(second.version) and (
        not pin.url or not second.url or pin.url == second.url
    )


def _without_marker(entry: _PlacedRequirement) -> str:
    requirement = entry.requirement
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    if requirement.url:
        return f"{requirement.name}{extras} @ {requirement.url}"
    return f"{requirement.name}{extras}{requirement.specifier}"
