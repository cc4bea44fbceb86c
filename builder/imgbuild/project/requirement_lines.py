"""Reads requirements files and requirements on command lines.

`pip-requirements-parser`, pip's parser without downloads, splits lines. `packaging` parses
requirements.
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
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)

from imgbuild.errors import InputError
from imgbuild.project import addresses, conda_packages, fetch, submodules
from imgbuild.project.model import (
    DeclaredIndex,
    DeclaredName,
    FilePlace,
    RequirementKind,
    locate_indexes,
)
from imgbuild.project.project_files import ProjectFiles, line_of, parent_folder, relative_path
from imgbuild.project.reading import LOGIN, LocalRequest, ProjectReading
from imgbuild.project.submodules import SUBMODULES
from imgbuild.system.syntax import valid_requirement

NESTING_LIMIT = 50  # files that name each other by -r or -c
REPOSITORIES = ("git+", "hg+", "svn+", "bzr+")
ARCHIVES = (".whl", ".tar.gz", ".zip", ".tar.bz2", ".tgz", ".tar.xz")
VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")  # as pip replaces them
# `numpy=1.26.4=py310h…`, of `conda list --export`.
CONDA_LINE = re.compile(r"[A-Za-z0-9_.-]+=[A-Za-z0-9_.!+-]+(=[A-Za-z0-9_.]+)?")
INDEX = re.compile(r"-i\b|-f\b|--index-url\b|--extra-index-url\b|--find-links\b")
HASH = re.compile(r"sha256:[0-9a-f]{64}\Z")


class LineScope(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that apply to the lines of a requirements file or command."""

    kind: RequirementKind = "requirement"
    no_deps: bool = False
    above: tuple[str, ...] = ()  # the files that led to this one by -r or -c


def read_file(reading: ProjectReading, name: str, scope: LineScope = LineScope()) -> None:  # noqa: B008 - frozen
    """Read the requirements file `name`, and the files that it includes."""
    if name in scope.above or len(scope.above) > NESTING_LIMIT:
        chain = " -> ".join((*scope.above[-3:], name))
        reading.add_problem(
            FilePlace(file=scope.above[-1]), f"requirements files form a cycle: {chain}"
        )
        return
    if scope.kind == "requirement" and name in reading.files:
        return
    text = reading.text(name)
    if text is None:
        return
    from pip_requirements_parser import CommentLine, preprocess

    lines = [(int(line[0]), str(line[1])) for line in _join_lines(preprocess, text, CommentLine)]
    if lines and all(CONDA_LINE.fullmatch(line) for _, line in lines):
        _conda_export(reading, name, lines)
        return
    inner = msgspec.structs.replace(scope, above=(*scope.above, name))
    for number, line in lines:
        inner = read_line(reading, line, FilePlace(file=name, line=number), inner)


def _join_lines(preprocess: Any, text: str, comment: type) -> Iterable[tuple[int, str]]:
    # A continuation ends with the backslash itself; editors leave spaces behind it.
    text = re.sub(r"\\[ \t]+$", r"\\", text, flags=re.MULTILINE)
    return [line for line in preprocess(text) if not isinstance(line, comment)]


def _conda_export(reading: ProjectReading, name: str, lines: Sequence[tuple[int, str]]) -> None:
    for number, line in lines:
        package, version = line.split("=")[:2]
        conda_packages.read_dependency(
            reading, f"{package}={version}", FilePlace(file=name, line=number)
        )


def read_line(reading: ProjectReading, line: str, place: FilePlace, scope: LineScope) -> LineScope:
    """Read a line, and return the settings for the following lines."""
    if VARIABLE.search(LOGIN.sub("", line) if INDEX.match(line) else line):
        reason = "contains an environment variable whose value is not in the file"
        reading.add_unread(place, line, reason)
        return scope
    options, words, requirement = _options(line)
    folder = parent_folder(place.file)
    if options is None:
        unknown = line.removeprefix(requirement).strip()
        if requirement:
            requirement_word(reading, requirement, folder, place, scope=scope)
        reading.add_unread(
            place, unknown, "an option that pip does not read in a requirements file"
        )
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
        read_nested_file(reading, nested, folder, place, scope)
    bounds = msgspec.structs.replace(scope, kind="constraint")
    for nested in options.constraints or ():
        read_nested_file(reading, nested, folder, place, bounds)
    return inner


def _options(line: str) -> tuple[Any, list[str], str]:
    """Split a line into options, other words and the requirement.

    Return None for unknown options.
    """
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
    return copy.deepcopy(_parser().get_default_values())


def _hashes(options: Any) -> list[str]:
    return [text for text in options.hashes or () if HASH.match(text)]


def declared_indexes(line: str, folder: Path, place: FilePlace) -> tuple[DeclaredIndex, ...]:
    """Return the indexes in the options of a line of a file in `folder`.

    Indexes with variables in the URL and indexes outside of `folder` are omitted.
    """
    reading = ProjectReading(ProjectFiles(folder))
    read_line(reading, line, place, LineScope())
    return locate_indexes(reading.create_declared().indexes, folder)


def _index_options(reading: ProjectReading, options: Any, place: FilePlace) -> None:
    if getattr(options, "index_url", None):
        reading.index(options.index_url, place)
    for url in options.extra_index_urls or ():
        reading.index(url, place)
    for url in options.find_links or ():
        reading.index(url, place, flat=True)
    if getattr(options, "no_index", None):
        reading.add_unread(place, "--no-index", "the indexes in imgbuild's settings are used")


def read_nested_file(
    reading: ProjectReading, name: str, folder: str, place: FilePlace, scope: LineScope
) -> None:
    """Read the file of `-r NAME` or `-c NAME`, relative to `folder`."""
    if re.match(r"https?://", name):
        option = "-c" if scope.kind == "constraint" else "-r"
        reading.add_unread(place, f"{option} {name}", "a file on another host")
        return
    target = relative_path(folder, name.removeprefix("file:"))
    if target.startswith(("/", "..")):
        reading.add_unread(place, name, "a file outside the project")
        return
    if not reading.sources.exists(target) and reading.sources.is_inside(target):
        reading.add_problem(
            place,
            f"refers to a file that {reading.sources.absence_reason(target)}",
            value=target,
            expected=submodules.missing_submodule_remedy(reading.sources, target),
        )
        return
    read_file(reading, target, scope)


def requirement_word(
    reading: ProjectReading,
    text: str,
    folder: str,
    place: FilePlace,
    *,
    scope: LineScope = LineScope(),  # noqa: B008 - frozen
    hashes: Iterable[str] = (),
    editable: bool = False,
) -> None:
    """Read a requirement in pip's syntax: PEP 508, a URL, or a path relative to `folder`."""
    text = text.strip()
    pep508 = copy.copy(valid_requirement(text))
    url = pep508.url if pep508 is not None else None
    if pep508 is not None and (url is None or (":" in url and not url.startswith("file:"))):
        if url is not None:
            pep508.url = _strip_egg(url)
        reading.add_requirement(
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
    def __init__(
        self,
        reading: ProjectReading,
        text: str,
        place: FilePlace,
        scope: LineScope,
        hashes: tuple[str, ...],
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
        if self.address.startswith(REPOSITORIES) or re.match(r"(git|ssh)://", self.address):
            self._add_repository()
        elif re.match(r"https?://", self.address):
            self._add_archive()
        elif editable or self.name or _is_path(self.address):
            self._add_path(folder)
        else:
            self._add_requirement(self.text)

    def _add_requirement(self, text: str) -> None:
        scope = self.scope
        self.reading.add_requirement(
            text, self.place, kind=scope.kind, no_deps=scope.no_deps, hashes=self.hashes
        )

    def _add_address(self, name: str, address: str) -> None:
        text = f"{name} @ {_strip_egg(address)}"
        self._add_requirement(f"{text} ; {self.marker}" if self.marker else text)

    def _add_unread(self, reason: str) -> None:
        self.reading.add_unread(self.place, self.text, reason)

    def _add_repository(self) -> None:
        address = self.address
        if not address.startswith("git+"):
            if address.startswith(REPOSITORIES):
                self._add_unread("only git repositories are supported")
                return
            address = f"git+{address}"
        address = expand_short_form(address)
        try:
            key = fetch.repository_url(address)
        except InputError as error:
            self._add_unread(error.message)
            return
        name = addresses.url_fragment(address).get("egg") or self.reading.names.get(key)
        if name:
            self._add_address(name, address)
        else:
            self.reading.unnamed.append(DeclaredName(name=address, place=self.place))

    def _add_archive(self) -> None:
        fragment = addresses.url_fragment(self.address)
        if re.fullmatch(r"[0-9a-f]{64}", fragment.get("sha256", "")):
            self.hashes = (*self.hashes, f"sha256:{fragment['sha256']}")
        name = fragment.get("egg") or _archive_name(self.address)
        if name:
            self._add_address(name, self.address.partition("#")[0])
        else:
            self._add_unread("has no name; use `NAME @ https://…`")

    def _add_path(self, folder: str) -> None:
        match = re.fullmatch(r"(.*?)(?:\[([\w.,\s-]*)\])?", self.address, flags=re.DOTALL)
        path, listed = (match[1], match[2] or "") if match else (self.address, "")
        if path.startswith("file:"):
            path = addresses.url_path(path)
        path = path.partition("#")[0]
        target = relative_path(folder, path)
        files = self.reading.sources
        if path.startswith(("/", "~")) or target.startswith(".."):
            self._add_unread("a path outside the project")
        elif target.endswith(ARCHIVES):
            self._add_file(target)
        elif not files.is_inside(target):
            self._add_unread("a path outside the project")
        elif not files.is_folder(target):
            self._add_unread(f"no such folder: {SUBMODULES}")
        else:
            names = [name.strip() for name in listed.split(",") if name.strip()]
            self.reading.request_local(
                LocalRequest(
                    folder=target,
                    place=self.place,
                    name=self.name,
                    extras=(*self.extras, *names),
                    no_deps=self.scope.no_deps,
                    marker=self.marker,
                )
            )

    def _add_file(self, target: str) -> None:
        name = _archive_name(target)
        if name is None or not self.reading.sources.exists(target):
            reason = "no such file" if name else "its file name does not contain a package name"
            self.reading.add_unread(self.place, target, reason)
            return
        self.reading.add_requirement(
            name,
            self.place,
            kind=self.scope.kind,
            marker=self.marker,
            hashes=self.hashes,
            path=target,
        )


def expand_short_form(address: str) -> str:
    """Convert git's short form, `git+USER@HOST:PATH`, to an ssh URL. Other URLs stay unchanged."""
    if not re.match(r"git\+[\w.-]+@[\w.-]+:", address):
        return address
    host, _, path = address.removeprefix("git+").partition(":")
    return f"git+ssh://{host}/{path}"


def _strip_egg(address: str) -> str:
    before, mark, _ = address.partition("#")
    rest = "&".join(
        f"{key}={value}"
        for key, value in addresses.url_fragment(address).items()
        if key and key != "egg"
    )
    return f"{before}{mark}{rest}" if rest else before


def _archive_name(address: str) -> str | None:
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
    """Return the line between `start` and `end` that contains `value`, or `start` if none does."""
    part = "\n".join(text.split("\n")[start - 1 : end])
    line = line_of(part, value)
    return start + line - 1 if line else start
