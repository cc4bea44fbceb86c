"""Requirements files and the requirements of a command line, by pip's own parser.

`pip-requirements-parser` is pip's code without its downloads; `packaging` reads the requirements.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)

from imgbuild.project.model import Kind, Place
from imgbuild.project.reading import LocalRequest, Reading
from imgbuild.project.sources import above, line_of, relative

NESTED = 50  # files that name each other by -r or -c
REPOSITORIES = ("git+", "hg+", "svn+", "bzr+")
ARCHIVES = (".whl", ".tar.gz", ".zip", ".tar.bz2", ".tgz", ".tar.xz")
VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")  # as pip replaces them
# `numpy=1.26.4=py310h…`, of `conda list --export`.
CONDA_LINE = re.compile(r"[A-Za-z0-9_.-]+=[A-Za-z0-9_.!+-]+(=[A-Za-z0-9_.]+)?")
HASH = re.compile(r"sha256:[0-9a-f]{64}\Z")


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """How the lines of a file or a command are taken."""

    kind: Kind = "requirement"
    no_deps: bool = False
    above: tuple[str, ...] = ()  # the files that led to this one by -r or -c


def read_file(reading: Reading, name: str, scope: Scope = Scope()) -> None:  # noqa: B008 - frozen
    """Read the requirements file `name` and those that it names."""
    if name in scope.above or len(scope.above) > NESTED:
        chain = " -> ".join((*scope.above[-3:], name))
        reading.problem(Place(file=scope.above[-1]), f"requirements files name each other: {chain}")
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
    from imgbuild.project import conda

    for number, line in lines:
        package, version = line.split("=")[:2]
        conda.dependency(reading, f"{package}={version}", Place(file=name, line=number))


def read_line(reading: Reading, line: str, place: Place, scope: Scope) -> Scope:
    """Read one line; the scope of the lines after it."""
    if VARIABLE.search(line):
        reading.leave_out(
            place, line, "has an environment variable, whose value is not in the file"
        )
        return scope
    options, words, requirement = _options(line)
    if options is None:
        reading.leave_out(place, line, "an option that pip does not read in a requirements file")
        return scope
    folder = above(place.file)
    if requirement or words:
        hashes = _hashes(options)
        one_line = scope
        if options.no_deps:
            one_line = msgspec.structs.replace(scope, no_deps=True)
        requirement_word(
            reading, requirement or " ".join(words), folder, place, scope=one_line, hashes=hashes
        )
        _index_options(reading, options, place)
        return scope
    for target in options.editables or ():
        requirement_word(reading, target, folder, place, scope=scope, editable=True)
    for nested in options.requirements or ():
        nested_file(reading, nested, folder, place, scope)
    for nested in options.constraints or ():
        nested_file(
            reading, nested, folder, place, msgspec.structs.replace(scope, kind="constraint")
        )
    _index_options(reading, options, place)
    if options.no_deps:
        return msgspec.structs.replace(scope, no_deps=True)
    return scope


def _options(line: str) -> tuple[Any, list[str], str]:
    """The options of a line, its other words, and its requirement; None if pip knows one not."""
    from pip_requirements_parser import break_args_options, build_parser

    parser = build_parser()
    parser.add_option("--no-deps", dest="no_deps", action="store_true")
    requirement, option_text = break_args_options(line)
    try:
        options, words = parser.parse_args(shlex.split(option_text))
    except Exception:  # noqa: BLE001 - its parser has errors of several kinds
        return None, [], requirement
    return options, words, requirement.strip()


def _hashes(options: Any) -> list[str]:
    return [text for text in options.hashes or () if HASH.match(text)]


def _index_options(reading: Reading, options: Any, place: Place) -> None:
    if getattr(options, "index_url", None):
        reading.index(options.index_url, place)
    for url in (*(options.extra_index_urls or ()), *(options.find_links or ())):
        reading.index(url, place)
    if getattr(options, "no_index", None):
        reading.leave_out(place, "--no-index", "the indexes of imgbuild's own settings are used")


def nested_file(reading: Reading, name: str, folder: str, place: Place, scope: Scope) -> None:
    """Read the file of `-r name` or `-c name`, relative to `folder`."""
    if re.match(r"https?://", name):
        option = "-c" if scope.kind == "constraint" else "-r"
        reading.leave_out(place, f"{option} {name}", "a file of another host")
        return
    target = relative(folder, name.removeprefix("file:"))
    if target.startswith(("/", "..")):
        reading.leave_out(place, name, "a file outside of the project")
        return
    if not reading.sources.exists(target) and reading.sources.inside(target):
        reading.problem(place, "names a file that does not exist", value=target)
        return
    read_file(reading, target, scope)


def requirement_word(
    reading: Reading,
    text: str,
    folder: str,
    place: Place,
    *,
    scope: Scope = Scope(),  # noqa: B008 - frozen
    hashes: Iterable[str] = (),
    editable: bool = False,
) -> None:
    """Read a requirement as pip takes it: PEP 508, an address, or a path relative to `folder`."""
    text = text.strip()
    pep508 = _pep508(text)
    if pep508 is not None and not (pep508.url and pep508.url.startswith("file:")):
        _add(reading, _text(pep508), place, scope, hashes)
        return
    address, _, marker = text.partition(" ; ") if " ; " in text else text.partition("; ")
    if pep508 is not None:
        address = str(pep508.url)
    address = address.strip()
    if address.startswith(REPOSITORIES) or re.match(r"(git|ssh)://", address):
        _repository(reading, address, marker, place, scope, hashes)
    elif re.match(r"https?://", address):
        _archive(reading, address, marker, place, scope, hashes)
    elif editable or _is_path(address):
        _path(reading, address, marker, folder, place, scope, editable=editable)
    else:
        _add(reading, text, place, scope, hashes)


def _add(reading: Reading, text: str, place: Place, scope: Scope, hashes: Iterable[str]) -> None:
    reading.requirement(text, place, kind=scope.kind, no_deps=scope.no_deps, hashes=hashes)


def _pep508(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def _text(requirement: Requirement) -> str:
    """The requirement with an address without `#egg=`, and https in place of bare git."""
    if requirement.url:
        requirement.url = _without_egg(requirement.url)
    return str(requirement)


def _fragment(address: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in urlsplit(address).fragment.split("&"))
    return {key: unquote(value) for key, _, value in pairs if key}


def _without_egg(address: str) -> str:
    before, mark, _ = address.partition("#")
    rest = "&".join(
        f"{key}={value}" for key, value in _fragment(address).items() if key and key != "egg"
    )
    return f"{before}{mark}{rest}" if rest else before


def _named(name: str, address: str, marker: str) -> str:
    text = f"{name} @ {_without_egg(address)}"
    return f"{text} ; {marker}" if marker.strip() else text


def _repository(
    reading: Reading, address: str, marker: str, place: Place, scope: Scope, hashes: Iterable[str]
) -> None:
    if not address.startswith("git+"):
        if address.startswith(REPOSITORIES):
            reading.leave_out(place, address, "only repositories of git are read")
            return
        address = f"git+{address}"
    if re.match(r"git\+[\w.-]+@[\w.-]+:", address):  # git's own short form
        host, _, path = address.removeprefix("git+").partition(":")
        address = f"git+ssh://{host}/{path}"
    egg = _fragment(address).get("egg")
    if not egg:
        reading.leave_out(
            place, address, "has no name: write it as `NAME @ git+https://…`, or add #egg=NAME"
        )
        return
    _add(reading, _named(egg, address, marker), place, scope, hashes)


def _archive(
    reading: Reading, address: str, marker: str, place: Place, scope: Scope, hashes: Iterable[str]
) -> None:
    fragment = _fragment(address)
    if re.fullmatch(r"[0-9a-f]{64}", fragment.get("sha256", "")):
        hashes = (*hashes, f"sha256:{fragment['sha256']}")
    name = fragment.get("egg") or _archive_name(address)
    if name is None:
        reason = "has no name: write it as `NAME @ https://…`"
        reading.leave_out(place, address, reason)
        return
    _add(reading, _named(name, address.partition("#")[0], marker), place, scope, hashes)


def _archive_name(address: str) -> str | None:
    """The package of a wheel or an sdist, by its file name; None if that does not say it."""
    file = unquote(urlsplit(address).path.rpartition("/")[2])
    try:
        if file.endswith(".whl"):
            return str(parse_wheel_filename(file)[0])
        return str(parse_sdist_filename(file)[0])
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None


def _is_path(text: str) -> bool:
    head = text.partition("[")[0]
    return text.startswith((".", "/", "~", "file:")) or "/" in head or head.endswith(ARCHIVES)


def _path(
    reading: Reading,
    text: str,
    marker: str,
    folder: str,
    place: Place,
    scope: Scope,
    *,
    editable: bool,
) -> None:
    match = re.fullmatch(r"(.*?)(?:\[([\w.,\s-]*)\])?", text, flags=re.DOTALL)
    path, extras = (match[1], match[2] or "") if match else (text, "")
    if path.startswith("file:"):
        address = urlsplit(path)
        path = unquote(address.path)
        if not path.startswith("/"):
            path = f"./{path}"
    path = path.partition("#")[0]
    target = relative(folder, path)
    if path.startswith(("/", "~")) or target.startswith(".."):
        reading.leave_out(place, text, "a path outside of the project")
    elif target.endswith(ARCHIVES):
        _file(reading, target, place, scope, marker)
    elif not reading.sources.inside(target):
        reading.leave_out(place, text, "a path that leads out of the project")
    elif not reading.sources.is_folder(target):
        reading.leave_out(place, text, "no such folder: a submodule that is not fetched?")
    else:
        names = tuple(name.strip() for name in extras.split(",") if name.strip())
        reading.local(
            LocalRequest(
                folder=target,
                place=place,
                extras=names,
                editable=editable,
                no_deps=scope.no_deps,
                marker=marker.strip(),
            )
        )


def _file(reading: Reading, target: str, place: Place, scope: Scope, marker: str) -> None:
    """A wheel or an sdist among the files of the project."""
    name = _archive_name(target)
    if name is None or not reading.sources.exists(target):
        reason = "no such file" if name else "its name does not say which package it is"
        reading.leave_out(place, target, reason)
        return
    added = reading.requirement(name, place, kind=scope.kind, marker=marker.strip())
    if added is not None:
        reading.requirements[reading.requirements.index(added)] = msgspec.structs.replace(
            added, path=target
        )


def text_line(text: str, value: str, start: int, end: int) -> int:
    """The line, of `start` to `end`, that has `value`; else `start`."""
    part = "\n".join(text.split("\n")[start - 1 : end])
    line = line_of(part, value)
    return start + line - 1 if line else start
