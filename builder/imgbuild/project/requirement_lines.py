"""Reads requirements files, and requirements of a command line, with pip's own parser.

`pip-requirements-parser` is pip's code without downloads. `packaging` parses the requirements.
"""

from __future__ import annotations

import copy
import functools
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)

from imgbuild.errors import InputError
from imgbuild.project import addresses, conda_packages, fetch, submodules
from imgbuild.project.model import DeclaredIndex, DeclaredName, Kind, Place, located
from imgbuild.project.project_files import ProjectFiles, above, line_of, relative
from imgbuild.project.reading import LOGIN, LocalRequest, Reading
from imgbuild.project.submodules import SUBMODULES
from imgbuild.system.syntax import parse_requirement

NESTED = 50  # files that name each other by -r or -c
REPOSITORIES = ("git+", "hg+", "svn+", "bzr+")
ARCHIVES = (".whl", ".tar.gz", ".zip", ".tar.bz2", ".tgz", ".tar.xz")
VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")  # as pip replaces them
# `numpy=1.26.4=py310h…`, of `conda list --export`.
CONDA_LINE = re.compile(r"[A-Za-z0-9_.-]+=[A-Za-z0-9_.!+-]+(=[A-Za-z0-9_.]+)?")
INDEX = re.compile(r"-i\b|-f\b|--index-url\b|--extra-index-url\b|--find-links\b")
HASH = re.compile(r"sha256:[0-9a-f]{64}\Z")


class LineScope(msgspec.Struct, frozen=True, kw_only=True):
    """How the lines of a file or a command are interpreted."""

    kind: Kind = "requirement"
    no_deps: bool = False
    above: tuple[str, ...] = ()  # the files that led to this one by -r or -c


def read_file(reading: Reading, name: str, scope: LineScope = LineScope()) -> None:  # noqa: B008 - frozen
    """Read the requirements file `name` and the files that it includes."""
    if name in scope.above or len(scope.above) > NESTED:
        chain = " -> ".join((*scope.above[-3:], name))
        reading.problem(Place(file=scope.above[-1]), f"requirements files form a cycle: {chain}")
        return
    if scope.kind == "requirement" and name in reading.files:
        return
    text = reading.text(name)
    if text is None:
        return
    from pip_requirements_parser import CommentLine, preprocess

    lines = [(int(line[0]), str(line[1])) for line in _joined(preprocess, text, CommentLine)]
    if lines and all(CONDA_LINE.fullmatch(line) for _, line in lines):
        _conda_export(reading, name, lines)
        return
    inner = msgspec.structs.replace(scope, above=(*scope.above, name))
    for number, line in lines:
        inner = read_line(reading, line, Place(file=name, line=number), inner)


def _joined(preprocess: Any, text: str, comment: type) -> Iterable[tuple[int, str]]:
    # A continuation ends with the backslash itself; editors leave spaces behind it.
    text = re.sub(r"\\[ \t]+$", r"\\", text, flags=re.MULTILINE)
    return [line for line in preprocess(text) if not isinstance(line, comment)]


def _conda_export(reading: Reading, name: str, lines: Sequence[tuple[int, str]]) -> None:
    for number, line in lines:
        package, version = line.split("=")[:2]
        conda_packages.dependency(reading, f"{package}={version}", Place(file=name, line=number))


def read_line(reading: Reading, line: str, place: Place, scope: LineScope) -> LineScope:
    """Read one line; returns the scope of the lines after it."""
    if VARIABLE.search(LOGIN.sub("", line) if INDEX.match(line) else line):
        reason = "contains an environment variable whose value is not in the file"
        reading.leave_out(place, line, reason)
        return scope
    options, words, requirement = _options(line)
    folder = above(place.file)
    if options is None:
        unknown = line.removeprefix(requirement).strip()
        if requirement:
            requirement_word(reading, requirement, folder, place, scope=scope)
        reading.leave_out(place, unknown, "an option that pip does not read in a requirements file")
        return scope
    inner = msgspec.structs.replace(scope, no_deps=True) if options.no_deps else scope
    _index_options(reading, options, place)
    if requirement or words:
        text = requirement or " ".join(words)
        requirement_word(reading, text, folder, place, scope=inner, hashes=_hashes(options))
        return scope
    for target in options.editables or ():
        requirement_word(reading, target, folder, place, scope=scope, editable=True)
    for nested in options.requirements or ():
        nested_file(reading, nested, folder, place, scope)
    bounds = msgspec.structs.replace(scope, kind="constraint")
    for nested in options.constraints or ():
        nested_file(reading, nested, folder, place, bounds)
    return inner


def _options(line: str) -> tuple[Any, list[str], str]:
    """The options of a line, its other words, and its requirement; None for an unknown option."""
    from pip_requirements_parser import break_args_options

    requirement, option_text = break_args_options(line)
    try:
        options, words = _parser().parse_args(shlex.split(option_text), _new_values())
    except Exception:  # noqa: BLE001 - its parser has errors of several kinds
        return None, [], requirement.strip()
    return options, words, requirement.strip()


@functools.cache  # building it takes longer than parsing a line
def _parser() -> Any:
    from pip_requirements_parser import build_parser

    parser = build_parser()
    for option in ("--no-deps", "--no-build-isolation"):
        parser.add_option(option, action="store_true")
    return parser


def _new_values() -> Any:
    """New default values, because the parser appends to the lists among its defaults."""
    return copy.deepcopy(_parser().get_default_values())


def _hashes(options: Any) -> list[str]:
    return [text for text in options.hashes or () if HASH.match(text)]


def indexes(line: str, folder: Path, place: Place) -> tuple[DeclaredIndex, ...]:
    """The indexes in the options of one line; `place` is in `folder`.

    Indexes are skipped if their URL has a variable or they are outside of `folder`.
    """
    reading = Reading(ProjectFiles(folder))
    read_line(reading, line, place, LineScope())
    return located(reading.declared().indexes, folder)


def _index_options(reading: Reading, options: Any, place: Place) -> None:
    if getattr(options, "index_url", None):
        reading.index(options.index_url, place)
    for url in options.extra_index_urls or ():
        reading.index(url, place)
    for url in options.find_links or ():
        reading.index(url, place, flat=True)
    if getattr(options, "no_index", None):
        reading.leave_out(place, "--no-index", "the indexes in imgbuild's settings are used")


def nested_file(reading: Reading, name: str, folder: str, place: Place, scope: LineScope) -> None:
    """Read the file of `-r name` or `-c name`, relative to `folder`."""
    if re.match(r"https?://", name):
        option = "-c" if scope.kind == "constraint" else "-r"
        reading.leave_out(place, f"{option} {name}", "a file on another host")
        return
    target = relative(folder, name.removeprefix("file:"))
    if target.startswith(("/", "..")):
        reading.leave_out(place, name, "a file outside the project")
        return
    if not reading.sources.exists(target) and reading.sources.inside(target):
        reading.problem(place, "names a file that does not exist", value=target,
                        expected=submodules.remedy(reading.sources, target))  # fmt: skip
        return
    read_file(reading, target, scope)


def requirement_word(
    reading: Reading,
    text: str,
    folder: str,
    place: Place,
    *,
    scope: LineScope = LineScope(),  # noqa: B008 - frozen
    hashes: Iterable[str] = (),
    editable: bool = False,
) -> None:
    """Read a requirement of pip: PEP 508, a URL, or a path relative to `folder`."""
    text = text.strip()
    pep508 = _pep508(text)
    url = pep508.url if pep508 is not None else None
    if pep508 is not None and (url is None or (":" in url and not url.startswith("file:"))):
        if url is not None:
            pep508.url = _without_egg(url)
        reading.requirement(
            str(pep508), place, kind=scope.kind, no_deps=scope.no_deps, hashes=hashes
        )
        return
    requirement = _UrlRequirement(reading, text, place, scope, tuple(hashes))
    if pep508 is not None:  # a path with a name
        requirement.address, requirement.name = str(url), pep508.name
        requirement.marker = str(pep508.marker or "")
        requirement.extras = tuple(sorted(pep508.extras))
    requirement.read(folder, editable=editable)


class _UrlRequirement:
    """A requirement by a URL or a path, with its known properties."""

    def __init__(
        self, reading: Reading, text: str, place: Place, scope: LineScope, hashes: tuple[str, ...]
    ) -> None:
        self.reading = reading
        self.text = text
        self.place = place
        self.scope = scope
        self.hashes = hashes
        address, _, marker = text.partition(" ; ") if " ; " in text else text.partition("; ")
        self.address = address.strip()
        self.marker = marker.strip()
        self.name = ""
        self.extras: tuple[str, ...] = ()

    def read(self, folder: str, *, editable: bool) -> None:
        """Add the requirement to the reading."""
        if self.address.startswith(REPOSITORIES) or re.match(r"(git|ssh)://", self.address):
            self._repository()
        elif re.match(r"https?://", self.address):
            self._archive()
        elif editable or self.name or _is_path(self.address):
            self._path(folder)
        else:
            self._add(self.text)

    def _add(self, text: str) -> None:
        scope = self.scope
        self.reading.requirement(
            text, self.place, kind=scope.kind, no_deps=scope.no_deps, hashes=self.hashes
        )

    def _add_address(self, name: str, address: str) -> None:
        text = f"{name} @ {_without_egg(address)}"
        self._add(f"{text} ; {self.marker}" if self.marker else text)

    def _leave_out(self, reason: str) -> None:
        self.reading.leave_out(self.place, self.text, reason)

    def _repository(self) -> None:
        address = self.address
        if not address.startswith("git+"):
            if address.startswith(REPOSITORIES):
                self._leave_out("only git repositories are supported")
                return
            address = f"git+{address}"
        address = without_short_form(address)
        try:
            key = fetch.repository(address)
        except InputError as error:
            self._leave_out(error.message)
            return
        name = addresses.fragment(address).get("egg") or self.reading.names.get(key)
        if name:
            self._add_address(name, address)
        else:
            self.reading.unnamed.append(DeclaredName(name=address, place=self.place))

    def _archive(self) -> None:
        fragment = addresses.fragment(self.address)
        if re.fullmatch(r"[0-9a-f]{64}", fragment.get("sha256", "")):
            self.hashes = (*self.hashes, f"sha256:{fragment['sha256']}")
        name = fragment.get("egg") or _archive_name(self.address)
        if name:
            self._add_address(name, self.address.partition("#")[0])
        else:
            self._leave_out("has no name; use `NAME @ https://…`")

    def _path(self, folder: str) -> None:
        match = re.fullmatch(r"(.*?)(?:\[([\w.,\s-]*)\])?", self.address, flags=re.DOTALL)
        path, listed = (match[1], match[2] or "") if match else (self.address, "")
        if path.startswith("file:"):
            path = addresses.path(path)
        path = path.partition("#")[0]
        target = relative(folder, path)
        files = self.reading.sources
        if path.startswith(("/", "~")) or target.startswith(".."):
            self._leave_out("a path outside the project")
        elif target.endswith(ARCHIVES):
            self._file(target)
        elif not files.inside(target):
            self._leave_out("a path outside the project")
        elif not files.is_folder(target):
            self._leave_out(f"no such folder: {SUBMODULES}")
        else:
            names = [name.strip() for name in listed.split(",") if name.strip()]
            self.reading.local(
                LocalRequest(
                    folder=target,
                    place=self.place,
                    name=self.name,
                    extras=(*self.extras, *names),
                    no_deps=self.scope.no_deps,
                    marker=self.marker,
                )
            )

    def _file(self, target: str) -> None:
        """A wheel or an sdist among the files of the project."""
        name = _archive_name(target)
        if name is None or not self.reading.sources.exists(target):
            reason = "no such file" if name else "its file name does not contain a package name"
            self.reading.leave_out(self.place, target, reason)
            return
        self.reading.requirement(
            name,
            self.place,
            kind=self.scope.kind,
            marker=self.marker,
            hashes=self.hashes,
            path=target,
        )


def without_short_form(address: str) -> str:
    """`git+USER@HOST:PATH`, git's short form, as an ssh URL; other URLs unchanged."""
    if not re.match(r"git\+[\w.-]+@[\w.-]+:", address):
        return address
    host, _, path = address.removeprefix("git+").partition(":")
    return f"git+ssh://{host}/{path}"


def _pep508(text: str) -> Requirement | None:
    try:
        return parse_requirement(text)
    except InvalidRequirement:
        return None


def _without_egg(address: str) -> str:
    before, mark, _ = address.partition("#")
    rest = "&".join(
        f"{key}={value}"
        for key, value in addresses.fragment(address).items()
        if key and key != "egg"
    )
    return f"{before}{mark}{rest}" if rest else before


def _archive_name(address: str) -> str | None:
    """The package in the file name of a wheel or an sdist; None if there is none."""
    file = addresses.file_name(address)
    try:
        if file.endswith(".whl"):
            return str(parse_wheel_filename(file)[0])
        return str(parse_sdist_filename(file)[0])
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None


def _is_path(text: str) -> bool:
    head = text.partition("[")[0]
    return text.startswith((".", "/", "~", "file:")) or "/" in head or head.endswith(ARCHIVES)


def text_line(text: str, value: str, start: int, end: int) -> int:
    """The line between `start` and `end` that contains `value`; else `start`."""
    part = "\n".join(text.split("\n")[start - 1 : end])
    line = line_of(part, value)
    return start + line - 1 if line else start
