"""Reads shell commands that install packages, such as `pip`, `uv`, `apt-get` and `conda`."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence

import msgspec

from imgbuild.project import conda, conda_packages, releases, requirement_lines
from imgbuild.project.agreement import are_compatible
from imgbuild.project.installers import (
    CHOICES,
    FILE,
    INDEX,
    OPTIONS_WITH_VALUE,
    READ_OPTIONS,
    find_installer,
)
from imgbuild.project.model import FilePlace, RequirementKind
from imgbuild.project.project_files import parent_folder, relative_path
from imgbuild.project.reading import LOGIN, LocalRequest, ProjectReading
from imgbuild.project.requirement_lines import LineScope

SEPARATORS = ";&|()"
PREFIXES = frozenset({"sudo", "exec", "time", "nice", "command", "env", "do", "{", "!"})
TESTS = frozenset({"[", "[[", "test"})
INDEXES = frozenset([
    "PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "PIP_EXTRA_INDEX_URL",
    "UV_EXTRA_INDEX_URL", "UV_INDEX", "PIP_FIND_LINKS", "UV_FIND_LINKS",
])  # fmt: skip
SHELLS = frozenset({"bash", "sh", "/bin/bash", "/bin/sh"})
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
REDIRECTION = re.compile(r"(?<=\s)[\d&]?>{1,2}\s*(?:&\d|/dev/null|[\w./-]+\.(?:log|txt|out))")
# `$NAME`, `${NAME}`, `${NAME:-DEFAULT}`.
VALUE = re.compile(
    r"\$(?:(?P<name>[A-Za-z_]\w*)"
    r"|\{(?P<braced>[A-Za-z_]\w*)(?:(?P<operator>:?-)(?P<default>[^{}]*))?\})"
)


class ShellScript:
    """Reads the commands of a shell script in `file`, in order.

    `variables` are environment variables. `folder` is the current folder relative to the project,
    or None outside of the project.
    """

    def __init__(self, reading: ProjectReading, file: str, *, variables: Mapping[str, str]) -> None:
        self.reading = reading
        self.file = file
        self.variables = dict(variables)
        self.folder: str | None = "."
        self.text = reading.sources.text(file)
        self._conditions = 0
        self._cloned = ""
        self._clones: dict[str, str] = {}  # addresses by the folders of the clones
        self._downloads: dict[str, str] = {}  # addresses by the names of their files

    def run(self, script: str, start: int, end: int, *, condition: str = "") -> None:
        """Read the commands of `script`, which are lines `start` to `end` of the file.

        If `condition` is given, the commands are recorded as omitted.
        """
        lines = [re.sub(r"(^|\s)#.*$", r"\1", line) for line in script.split("\n")]
        joined = re.sub(r"\\\s*\n", " ", "\n".join(lines))
        for line in joined.split("\n"):
            self._read_line(REDIRECTION.sub(" ", line), start, end, condition)

    def _read_line(self, line: str, start: int, end: int, condition: str) -> None:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=SEPARATORS)
        lexer.whitespace_split = True
        lexer.commenters = ""
        try:
            words = list(lexer)
        except ValueError:  # a quote without its end
            if re.search(r"\b(pip3?|apt(-get)?|uv|conda)\b.*\b(install|add)\b", line):
                place = self._place_of_word(line.split(maxsplit=1)[0], start, end)
                self.reading.add_unread(place, line, "has an unterminated quotation")
            return
        command: list[str] = []
        alternative = ""
        for word in [*words, ";"]:
            if set(word) <= set(SEPARATORS):
                if command:
                    self._read_command(command, start, end, condition or alternative)
                tested = word == "&&" and command[:1] and command[0] in TESTS
                alternative = "the preceding test succeeds" if tested else ""
                alternative = "the preceding command fails" if word == "||" else alternative
                command = []
            else:
                command.append(word)

    def _read_command(self, words: list[str], start: int, end: int, condition: str) -> None:
        words = self._command_body([part for word in words for part in self._expand_word(word)])
        if not words:
            return
        if self._conditions and not condition:
            condition = "a condition in the script is true"
        name, rest = words[0], words[1:]
        if name in SHELLS and len(rest) > 1 and re.fullmatch(r"-\w*c", rest[0]):
            self._read_line(rest[1], start, end, condition)
            return
        place = self._place_of_word(name, start, end, *rest)
        if name == "cd" and rest:
            self._enter_folder(rest[0])
        elif name == "export":
            self._command_body(rest)
            names = {word.partition("=")[0] for word in rest} & self.variables.keys()
            self.settings({each: self.variables[each] for each in sorted(names)}, place)
        elif name in ("wget", "curl"):
            addresses = [word for word in rest if re.match(r"https?://", word)]
            self._downloads |= {word.rpartition("/")[2]: word for word in addresses}
        elif name == "git" and "clone" in rest:
            address = next((word for word in rest if "://" in word or "@" in word), "")
            address = LOGIN.sub("", address) if address.startswith("http") else address
            options = itertools.pairwise(rest)
            branch = next((word for each, word in options if each in ("-b", "--branch")), "")
            self._cloned = f"{address}@{branch}" if branch else address
            last = rest[-1] if rest[-1] != address else address.rstrip("/").removesuffix(".git")
            self._clones[last.rpartition("/")[2]] = self._cloned
        elif (call := find_installer(words)) is not None:
            kind, arguments = call
            if condition:
                text = shlex.join(words)
                self.reading.add_unread(place, text, f"runs only if {condition}")
                return
            getattr(self, f"_{kind}")(arguments, start, end)

    def _expand_word(self, word: str) -> list[str]:
        """Expand variables in `word`. A word that is only a variable can become several words."""
        value = substitute_variables(word, self.variables)
        return value.split() if value != word and VALUE.fullmatch(word) else [value]

    def _command_body(self, words: list[str]) -> list[str]:
        """Remove shell keywords and assignments from `words`, and set the assigned variables."""
        rest = list(words)
        while rest:
            assigned = ASSIGNMENT.fullmatch(rest[0])
            if rest[0] in ("if", "case"):
                self._conditions += 1
                return []
            if rest[0] in ("fi", "esac"):
                self._conditions = max(0, self._conditions - 1)
                rest.pop(0)
            elif assigned:
                self.variables[assigned[1]] = assigned[2]
                rest.pop(0)
            elif rest[0] in PREFIXES or rest[0] in ("then", "else", "elif") or (
                rest[0].startswith("-") and rest is not words
            ):  # fmt: skip
                rest.pop(0)
            else:
                break
        return rest

    def settings(self, variables: Mapping[str, str], place: FilePlace) -> None:
        """Read the environment variables that configure indexes for pip and uv."""
        for name, value in variables.items():
            for url in value.split() if name in INDEXES else ():
                self.reading.index(url, place, flat=name == "PIP_FIND_LINKS")

    def _enter_folder(self, folder: str) -> None:
        if self.folder is None and folder.startswith(".."):
            self.folder = "."
            return
        target = relative_path(self.folder or ".", folder)
        exists = not folder.startswith("/") and self.reading.sources.is_folder(target)
        self.folder = target if exists and not target.startswith("..") else None
        if folder.startswith("/"):  # a folder of the image, into which the project is copied
            self.folder = "."

    def _place_of_word(self, word: str, start: int, end: int, *others: str) -> FilePlace:
        for each in (*others, word):
            line = requirement_lines.text_line(self.text, each, start, end)
            if line != start:
                return FilePlace(file=self.file, line=line)
        return FilePlace(file=self.file, line=start)

    def _word_place(self, word: str, start: int, end: int) -> FilePlace:
        return FilePlace(
            file=self.file, line=requirement_lines.text_line(self.text, word, start, end)
        )

    def _pip(self, arguments: Sequence[str], start: int, end: int) -> None:
        scope = LineScope(no_deps="--no-deps" in arguments)
        left = list(arguments)
        while left:
            word = left.pop(0)
            option, equals, value = word.partition("=") if word.startswith("-") else ("", "", "")
            place = self._word_place(value or word, start, end)
            if not option:
                self._add_requirement(word, place, scope)
                continue
            options_read = READ_OPTIONS | CHOICES | OPTIONS_WITH_VALUE
            short = option[:2] in options_read and not option.startswith("--") and len(option) > 2
            if short:  # -rrequirements.txt
                option, value = word[:2], word[2:].lstrip("=")
            elif option in options_read and not equals:
                value = left.pop(0) if left else ""
            place = self._word_place(value or word, start, end)
            self._read_option(option, value, place, scope)

    def _read_option(self, option: str, value: str, place: FilePlace, scope: LineScope) -> None:
        if option in INDEX:
            named = re.fullmatch(r"([\w-]+)=(https?://.*)", value)  # uv's `--index NAME=URL`
            name, url = (named[1], named[2]) if named else ("", value)
            self.reading.index(url, place, name=name, flat=option in ("-f", "--find-links"))
        elif option in FILE:
            kind: RequirementKind = "override" if "override" in option else scope.kind
            kind = "constraint" if option in ("-c", "--constraint", "--constraints") else kind
            self._read_requirements_file(
                option, value, place, msgspec.structs.replace(scope, kind=kind)
            )
        elif option in ("-e", "--editable"):
            self._add_requirement(value, place, scope, editable=True)
        elif option == "--torch-backend":
            release = releases.cuda_of_tag(value)
            if release:
                self.reading.cuda_release(release, place)
            elif value != "auto":
                self.reading.add_unread(place, f"{option}={value}", "images use CUDA builds")
        elif option in CHOICES:
            self.reading.add_unread(
                place, f"{option}={value}", "pass the option to imgbuild if required"
            )

    def _read_requirements_file(
        self, option: str, value: str, place: FilePlace, scope: LineScope
    ) -> None:
        text = f"{option} {value}"
        if "$" in value or "{" in value:
            self.reading.add_unread(place, text, "contains a variable without a value")
        elif self.folder is None and not value.startswith("/"):
            self.reading.add_unread(place, text, self._missing_file_reason())
        elif (name := self._copied_file(value)) is None:
            self.reading.add_unread(place, text, "no such file in the project")
        elif name.rpartition("/")[2] in ("pyproject.toml", "setup.py", "setup.cfg"):
            self.reading.request_local(LocalRequest(folder=parent_folder(name), place=place))
        else:
            requirement_lines.read_nested_file(self.reading, name, ".", place, scope)

    def _copied_file(self, path: str) -> str | None:
        files = self.reading.sources
        inner = [relative_path(self.folder or ".", path)] if not path.startswith("/") else []
        parts = path.strip("/").split("/")
        inner += ["/".join(parts[at:]) for at in range(len(parts))]
        present = [name for name in inner if not name.startswith("..") and files.exists(name)]
        return present[0] if present else None

    def _missing_file_reason(self) -> str:
        source = f" ({self._cloned})" if self._cloned else ""
        if re.match(r"https://|ssh://", self._cloned):
            source = f"; to install it, run: imgbuild add git+{self._cloned}"
        return f"is in a folder outside the project{source}"

    def _add_requirement(
        self, word: str, place: FilePlace, scope: LineScope, *, editable: bool = False
    ) -> None:
        if "$" in word or "{" in word or "`" in word:
            self.reading.add_unread(
                place, word, "contains a variable whose value is not in the file"
            )
            return
        if word == "pip" or word.isdecimal():  # pip itself, and the value of an unknown option
            return
        word = self._downloads.get(word.rpartition("/")[2], word)
        local = editable or word.startswith((".", "/"))
        if local and self.folder is None and "://" not in word:
            self.reading.add_unread(place, f"install {word}", self._missing_file_reason())
            return
        clone = relative_path(self.folder or ".", word.partition("[")[0]).partition("/")[0]
        if local and clone in self._clones and not self.reading.sources.is_folder(clone):
            self._cloned = self._clones[clone]
            self.reading.add_unread(place, f"install {word}", self._missing_file_reason())
            return
        if word.startswith("/") and editable:
            word = "."
        requirement_lines.requirement_word(
            self.reading, word, self.folder or ".", place, scope=scope, editable=editable
        )

    def _apt(self, arguments: Sequence[str], start: int, end: int) -> None:
        left = list(arguments)
        while left:
            word = left.pop(0)
            if word in ("-o", "-t", "--target-release", "--option", "-c", "--config-file"):
                left[:1] = []
                continue
            if word.startswith("-"):
                continue
            place = self._word_place(word, start, end)
            if "$" in word or "*" in word or word.endswith(".deb"):
                reason = "a file" if word.endswith(".deb") else "contains a variable or a pattern"
                self.reading.add_unread(place, word, reason)
            else:
                self.reading.debian_package(word, place)

    def _conda(self, arguments: Sequence[str], start: int, end: int) -> None:
        left = list(arguments)
        while left:
            word = left.pop(0)
            if word in ("-n", "--name", "-c", "--channel", "-p", "--prefix", "-f", "--file"):
                value = left.pop(0) if left else ""
                if word in ("-f", "--file") and self.reading.sources.exists(value):
                    conda.read_file(self.reading, value)
                continue
            if not word.startswith("-"):
                conda_packages.read_dependency(
                    self.reading, word, self._word_place(word, start, end)
                )

    def _setup(self, arguments: Sequence[str], start: int, end: int) -> None:
        place = self._word_place("setup.py", start, end)
        if self.folder is None:
            self.reading.add_unread(
                place, shlex.join(("setup.py", *arguments)), self._missing_file_reason()
            )
        else:
            self.reading.request_local(LocalRequest(folder=self.folder, place=place))

    def _sync(self, arguments: Sequence[str], start: int, end: int) -> None:
        for at, word in enumerate(arguments):
            option, equals, value = word.partition("=")
            if option in ("--extra", "--group"):
                value = value if equals else " ".join(arguments[at + 1 : at + 2])
                place = self._word_place(word, start, end)
                self.reading.add_unread(place, f"{option} {value}", f"selected with {option}")

    def _uninstall(self, arguments: Sequence[str], start: int, end: int) -> None:
        place = self._word_place(arguments[-1] if arguments else "uninstall", start, end)
        self.reading.add_unread(place, shlex.join(arguments), "uninstall commands are ignored")


def keep_last(reading: ProjectReading, file: str) -> None:
    """Omit requirements if a later command in `file` installs another version of the package."""
    placed = [each for each in reading.requirements if each.place.file == file]
    for at, earlier in enumerate(placed):
        for later in placed[at + 1 :]:
            same = later.package == earlier.package and later.kind == earlier.kind
            if same and not are_compatible(earlier.parsed_requirement, later.parsed_requirement):
                reading.requirements.remove(earlier)
                reason = f"a later command installs {later.text} (line {later.place.line})"
                reading.add_unread(earlier.place, earlier.text, reason)
                break


def substitute_variables(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$NAME`, `${NAME}` and `${NAME:-DEFAULT}` in `text`. Other forms stay unchanged."""

    def _value(match: re.Match[str]) -> str:
        name = match["name"] or match["braced"]
        if name in variables and (variables[name] or match["operator"] != ":-"):
            return variables[name]
        return match["default"] if match["operator"] in (":-", "-") else match[0]

    return VALUE.sub(_value, text)
