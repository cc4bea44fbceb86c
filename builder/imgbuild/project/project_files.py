"""Reads text, TOML, YAML and JSON files of a project, with limits on sizes and paths."""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import yaml

from imgbuild.errors import InputError, InputProblem
from imgbuild.system.folder import regular_file
from imgbuild.values import normalize_package

LIMIT = 64 << 20  # bytes of a file; a uv.lock of a large project has 3 MB
DEPTH = 100  # lists and mappings in each other
NODES = 2_000_000  # values of a YAML document, each alias counted as the value that it refers to
# Not valid in a project's text files: it would control a terminal that prints the line.
CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x84\x86-\x9f]")
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class SourceProblem(Exception):
    """Raised if a file cannot be read. The argument is the reason."""

    def __init__(self, problem: InputProblem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class ProjectFiles:
    """The files below `root`, by relative path, each read only once.

    The methods raise SourceProblem for an invalid file. Symbolic links out of the project are not
    followed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._real = Path(os.path.realpath(root))
        self._texts: dict[str, str] = {}

    def exists(self, name: str) -> bool:
        """Return whether `name` is a file of the project, or a link to one."""
        return stat.S_ISREG(self._mode(name))

    def is_folder(self, name: str) -> bool:
        """Return whether `name` is a folder of the project."""
        return stat.S_ISDIR(self._mode(name))

    def absence_reason(self, name: str) -> str:
        """Return why `name` is not a file."""
        return "is not a regular file" if self._mode(name) else "does not exist"

    def _mode(self, name: str) -> int:
        """Return the mode of the file to which `name` leads, or 0 if it is missing or invalid."""
        try:
            return (self.root / name).stat().st_mode
        except (OSError, ValueError):
            return 0

    def is_inside(self, name: str) -> bool:
        """Return whether `name` is below the project after links are resolved."""
        try:
            return Path(os.path.realpath(self.root / name)).is_relative_to(self._real)
        except (OSError, ValueError):
            return False

    def names(self, folder: str = ".") -> list[str]:
        """Return the sorted names in `folder`, or an empty list if it is not in the project."""
        if not self.is_inside(folder) or not self.is_folder(folder):
            return []
        try:
            return sorted(path.name for path in (self.root / folder).iterdir())
        except OSError:
            return []

    def text(self, name: str) -> str:
        """Return the decoded text of `name`, with line feeds as line ends."""
        if name not in self._texts:
            self._texts[name] = self._decode_text(name, self._bytes(name))
        return self._texts[name]

    def read_toml(self, name: str) -> dict[str, Any]:
        """Parse the TOML file `name`."""
        try:
            return _check_printable(name, tomllib.loads(self.text(name)))
        except tomllib.TOMLDecodeError as error:
            position = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
            message = str(error)[: position.start()].strip() if position else str(error)
            line, column = (int(position[1]), int(position[2])) if position else (None, None)
            problem = InputProblem(
                file=name, message=f"not valid TOML: {message}", line=line, column=column
            )
            raise SourceProblem(problem) from error
        except (RecursionError, ValueError) as error:
            raise _too_deep(name, error) from error

    def json(self, name: str) -> Any:
        """Parse the JSON file `name`."""
        try:
            return json.loads(self.text(name))
        except json.JSONDecodeError as error:
            problem = InputProblem(
                file=name,
                message=f"not valid JSON: {error.msg}",
                line=error.lineno,
                column=error.colno,
            )
            raise SourceProblem(problem) from error
        except (RecursionError, ValueError) as error:
            raise _too_deep(name, error) from error

    def read_yaml(self, name: str) -> Any:
        """Parse the YAML file `name`, and expand aliases."""
        try:
            node = yaml.compose(self.text(name), Loader=yaml.SafeLoader)
            if node is None:
                return None
            _check_size(name, node)
            return _check_printable(name, yaml.load(self.text(name), Loader=yaml.SafeLoader))
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            problem = InputProblem(
                file=name,
                message=f"not valid YAML: {error.problem}",
                line=mark.line + 1 if mark else None,
                column=mark.column + 1 if mark else None,
            )
            raise SourceProblem(problem) from error
        except (RecursionError, ValueError, yaml.YAMLError) as error:
            raise _too_deep(name, error) from error

    def _bytes(self, name: str) -> bytes:
        path = self.root / name
        if not self.is_inside(name):
            problem = InputProblem(
                file=name,
                message="is a symbolic link to a place outside the project",
                value=_target(path),
                expected="a file of the project",
            )
            raise SourceProblem(problem)
        try:
            with os.fdopen(regular_file(path, links=True), "rb") as file:
                data = file.read(LIMIT + 1)
        except InputError as error:
            raise SourceProblem(InputProblem(file=name, message=error.message)) from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise SourceProblem(
                InputProblem(file=name, message=f"cannot be read: {reason}")
            ) from error
        if len(data) > LIMIT:
            problem = InputProblem(
                file=name, message="is too large", expected=f"at most {LIMIT >> 20} MiB"
            )
            raise SourceProblem(problem)
        return data

    def _decode_text(self, name: str, data: bytes) -> str:
        encoding = "utf-16" if data.startswith(UTF16) else "utf-8-sig"
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError as error:
            problem = InputProblem(
                file=name,
                message=f"not valid {'UTF-16' if encoding == 'utf-16' else 'UTF-8'}",
                line=data[: error.start].count(b"\n") + 1,
                value=f"byte 0x{data[error.start]:02x}",
                expected="text in UTF-8, or UTF-16 with a byte order mark",
            )
            raise SourceProblem(problem) from error
        text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\x0c", " ")
        control = CONTROL.search(text)
        if control:
            problem = InputProblem(
                file=name,
                message="contains a control character",
                line=text.count("\n", 0, control.start()) + 1,
                value=f"U+{ord(control[0]):04X}",
                expected="printable text",
            )
            raise SourceProblem(problem)
        # Unicode's other line breaks: only str.splitlines, and no format, treats them as such.
        return re.sub("[\x85\u2028\u2029]", " ", text)


def relative_path(folder: str, name: str) -> str:
    """Convert `name` from a path relative to `folder` to a path relative to the project."""
    return os.path.normpath(PurePosixPath(folder, name))


def parent_folder(name: str) -> str:
    """Return the folder of the file `name`, or "." for the project's root folder."""
    return str(PurePosixPath(name).parent)


def line_of(text: str, value: str, *, after: str = "") -> int:
    """Return the first line with `value` in quotes, below the first line that starts with `after`.

    The TOML and YAML libraries do not report lines. Return 0 if there is no such line.
    """
    lines = text.split("\n")
    start = 0
    if after:
        start = next((at for at, line in enumerate(lines) if line.strip().startswith(after)), 0)
    for form in (f'"{value}"', f"'{value}'", value):
        for at in range(start, len(lines)):
            if form in lines[at] and not lines[at].lstrip().startswith("#"):
                return at + 1
    return start + 1 if after and start else 0


def key_line(text: str, key: str, *, after: str) -> int:
    """Return the TOML line that sets `key`, normalized, below a line that starts with `after`.

    If there is none, return the line that starts with `after`.
    """
    lines = text.split("\n")
    start = next((at for at, line in enumerate(lines) if line.strip().startswith(after)), 0)
    for number, line in enumerate(lines[start:], start=start + 1):
        name, equals, _ = line.partition("=")
        if equals and normalize_package(name.strip().strip("\"'")) == normalize_package(key):
            return number
    return start + 1


def _target(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except OSError:
        return None


T = TypeVar("T")


def _check_printable(name: str, value: T) -> T:
    """Raise SourceProblem if a string in `value` contains a control character."""
    queue: list[object] = [value]
    while queue:
        item = queue.pop()
        if isinstance(item, dict):
            queue += [*item, *item.values()]
        elif isinstance(item, list):
            queue += item
        elif isinstance(item, str) and (control := CONTROL.search(item)):
            message = "contains an escape sequence for a control character"
            code = f"U+{ord(control[0]):04X}"
            raise SourceProblem(InputProblem(file=name, message=message, value=code))
    return value


def _too_deep(name: str, error: BaseException) -> SourceProblem:
    deep = isinstance(error, RecursionError)
    message = "lists or mappings are nested too deeply" if deep else f"cannot be read: {error}"
    return SourceProblem(InputProblem(file=name, message=message))


def _check_size(name: str, root: yaml.Node) -> None:
    """Raise SourceProblem if the document is too large after its aliases are expanded."""
    sizes: dict[int, int] = {}

    def _size(node: yaml.Node, depth: int) -> int:
        line = node.start_mark.line + 1
        if depth > DEPTH:
            message = f"lists or mappings are nested more than {DEPTH} deep"
            raise SourceProblem(InputProblem(file=name, message=message, line=line))
        if id(node) in sizes:
            if sizes[id(node)] < 0:
                message = "an alias is inside the value that it refers to"
                raise SourceProblem(InputProblem(file=name, message=message, line=line))
            return sizes[id(node)]
        sizes[id(node)] = -1
        total = 1
        if isinstance(node, yaml.MappingNode):
            total += sum(_size(each, depth + 1) for pair in node.value for each in pair)
        elif isinstance(node, yaml.SequenceNode):
            total += sum(_size(each, depth + 1) for each in node.value)
        if total > NODES:
            message = f"has more than {NODES} values after its aliases are expanded"
            raise SourceProblem(InputProblem(file=name, message=message, line=line))
        sizes[id(node)] = total
        return total

    _size(root, 0)
