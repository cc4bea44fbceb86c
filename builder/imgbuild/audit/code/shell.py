"""Reads the commands of shell scripts as words with positions.

The parser is simple. It expands a variable only if it is a whole word, such as `$ARGS` or
`"${ARGS[@]}"`. The result is the words that the script assigns.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

import msgspec

_ENDS = frozenset(";|&\n")
_HEREDOC = re.compile(r"<<(?P<tabs>-?)\s*(?P<quote>['\"\\]?)(?P<end>\w+)['\"]?")
_REDIRECT = re.compile(r"\d*[<>]+&?\d*|&>>?")
_KEYWORDS = frozenset(("if", "then", "else", "elif", "do", "while", "until", "!", "{", "time"))
_ASSIGNMENT = re.compile(r"(\w+)(\+?)=")
_DECLARING_COMMANDS = frozenset(
    ("export", "local", "readonly", "declare", "typeset", "-a", "-x", "-r")
)
_BINDING_COMMANDS = frozenset(("for", "select", "read", "mapfile", "readarray", "unset", "getopts"))
_EXPANSION = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?\})|\"\$\{(\w+)\[@\]\}\"")
_SHELLS = frozenset(("bash", "sh", "zsh"))
_NESTING_LIMIT = 3  # levels of `bash -c "…"` that are read
_MOST_EXPANDED = 100_000  # words of a script whose variables are expanded


class Word(msgspec.Struct, frozen=True):
    """A word without quotes. `literal` means that it contains no expansion.

    `variable` is the name in a word that is only an expansion to several words: `$NAME` or
    `"${NAME[@]}"`. `items` are the words of an array in `NAME=(…)`.
    """

    text: str
    line: int
    column: int
    literal: bool = True
    variable: str = ""
    items: tuple[Word, ...] = ()


Command = tuple[Word, ...]


class HereDocument(msgspec.Struct, frozen=True):
    """A here-document of the command that ends on line `start`. Lines count from 1.

    `lines` are those from `first` on, without leading tabs after `<<-`. The shell expands variables
    in them unless the delimiter is `quoted`.
    """

    start: int
    first: int
    lines: tuple[str, ...]
    quoted: bool


def shell_commands(source: str, *, line: int = 1, depth: int = 0) -> Iterator[Command]:
    """Yield the simple commands of a script, in order.

    `bash -c '…'` is followed by the commands in its argument.
    """
    read = list(_ShellReader(source, line).commands())
    values = _values(read)
    left = _MOST_EXPANDED
    for words in read:
        expanded = [each for word in words for each in values.get(word.variable, (word,))]
        left -= len(expanded)
        if left < 0:
            values = {}
        command = tuple(itertools.dropwhile(lambda word: word.text in _KEYWORDS, expanded))
        if command:
            yield command
            yield from nested_commands(command, depth)


def here_documents(source: str) -> list[HereDocument]:
    """Return the here-documents of a script, in order."""
    reader = _ShellReader(source, 1)
    for _ in reader.commands():
        pass
    return reader.documents


def nested_commands(command: Command, depth: int = 0) -> Iterator[Command]:
    """Yield the commands in an argument of a shell, such as `bash -c '…'`."""
    is_shell = False
    for at, word in enumerate(command[:-1]):
        if depth < _NESTING_LIMIT and is_shell and re.fullmatch(r"-\w*c", word.text):
            yield from shell_commands(
                command[at + 1].text, line=command[at + 1].line, depth=depth + 1
            )
        is_shell = is_shell or word.text.rpartition("/")[2] in _SHELLS


def _values(read: Iterable[Command]) -> dict[str, tuple[Word, ...]]:
    """Map each variable to the words that a script assigns or appends.

    Variables with several values are omitted.
    """
    values: dict[str, tuple[Word, ...]] = {}
    others: set[str] = set()
    for command in read:
        words = list(itertools.dropwhile(lambda word: word.text in _DECLARING_COMMANDS, command))
        matches = [_ASSIGNMENT.match(word.text) for word in words]
        if words and words[0].text in _BINDING_COMMANDS:
            others.update(word.text for word in words[1:])
        for word, match in zip(words, matches, strict=True):
            if match is None or None in matches:
                continue  # variables before a command are for this command
            name, appended = match[1], bool(match[2])
            if name in values and not appended:
                others.add(name)
            added = word.items or tuple(
                Word(text, word.line, word.column, word.literal)
                for text in word.text[match.end() :].split()
            )
            values[name] = (*values.get(name, ()), *added)
    return {name: words for name, words in values.items() if name not in others and words}


class _ShellReader:
    """Parses a script character by character."""

    def __init__(self, source: str, line: int) -> None:
        self._source = source
        self._at = 0
        self._line = line
        self._start = 0  # of the line
        self._heredocs: list[re.Match[str]] = []
        self.documents: list[HereDocument] = []
        lines = source.split("\n") if "<<" in source else []
        self._delimiters = {line.lstrip("\t") for line in lines}  # that can end a here-document

    def commands(self) -> Iterator[Command]:
        words: list[Word] = []
        while self._at < len(self._source):
            character = self._source[self._at]
            if character in " \t\r":
                self._at += 1
            elif self._source.startswith("\\\n", self._at):
                self._at += 1
                self._skip_newline()
            elif character == "#":
                end = self._source.find("\n", self._at)
                self._at = len(self._source) if end < 0 else end
            elif (match := self._match_heredoc()) is not None:
                self._heredocs.append(match)
                self._at = match.end()
            elif match := _REDIRECT.match(self._source, self._at):
                self._at = match.end()
                self._skip_spaces()
                if not match[0][-1].isdigit() and self._has_more():
                    self._parse_word()
            elif character in _ENDS or character in "()":
                yield tuple(words)
                words = []
                self._end_command(character)
            else:
                words.append(self._parse_word())
        yield tuple(words)

    def _match_heredoc(self) -> re.Match[str] | None:
        """Return the match at `<<`, or None for a shift in `((…))`: no line is its delimiter."""
        match = _HEREDOC.match(self._source, self._at)
        return match if match is not None and match["end"] in self._delimiters else None

    def _has_more(self) -> bool:
        return self._at < len(self._source) and self._source[self._at] not in "\n;|&"

    def _skip_spaces(self) -> None:
        while self._at < len(self._source) and self._source[self._at] in " \t":
            self._at += 1

    def _skip_newline(self) -> None:
        self._at += 1
        self._line += 1
        self._start = self._at

    def _end_command(self, character: str) -> None:
        if character != "\n":
            self._at += 1
            return
        start = self._line
        self._skip_newline()
        for match in self._heredocs:
            first = self._line
            lines: list[str] = []
            while self._at < len(self._source):
                end = self._source.find("\n", self._at)
                end = len(self._source) if end < 0 else end
                text = self._source[self._at : end]
                self._at = end
                if end < len(self._source):
                    self._skip_newline()
                text = text.lstrip("\t") if match["tabs"] else text
                if text == match["end"]:
                    break
                lines.append(text)
            document = HereDocument(start, first, tuple(lines), bool(match["quote"]))
            self.documents.append(document)
        self._heredocs.clear()

    def _parse_word(self) -> Word:
        line, column, start = self._line, self._at - self._start + 1, self._at
        items: tuple[Word, ...] = ()
        parts: list[str] = []
        literal = True
        while self._at < len(self._source):
            character = self._source[self._at]
            if character in " \t\r" or character in _ENDS or character in "<>":
                break
            if character in "()":
                if character == "(" and parts and parts[-1].endswith("="):
                    items = self._parse_array()
                    literal = False
                    continue
                break
            if character == "'":
                parts.append(self._parse_single_quotes())
            elif character == '"':
                text, plain = self._parse_double_quotes()
                parts.append(text)
                literal = literal and plain
            elif character == "\\":
                if self._source.startswith("\\\n", self._at):
                    self._at += 1
                    self._skip_newline()
                    break
                parts.append(self._source[self._at + 1 : self._at + 2])
                self._at += 2
            elif character in "$`":
                self._skip_expansion()
                literal = False
            else:
                literal = literal and character not in "*?"
                parts.append(character)
                self._at += 1
        if self._at - self._start + 1 == column and line == self._line:
            self._at += 1  # a character that begins no word
        match = _EXPANSION.fullmatch(self._source, start, self._at)
        variable = match[match.lastindex or 0] if match is not None else ""
        return Word("".join(parts), line, column, literal, variable, items)

    def _parse_array(self) -> tuple[Word, ...]:
        """Return the words in `(…)`."""
        self._at += 1
        words: list[Word] = []
        while self._at < len(self._source) and self._source[self._at] != ")":
            character = self._source[self._at]
            if character == "\n":
                self._skip_newline()
            elif character in " \t\r":
                self._at += 1
            elif character == "#":
                end = self._source.find("\n", self._at)
                self._at = len(self._source) if end < 0 else end
            elif character in ";|&<>(":
                self._at += 1  # not in a valid script
            else:
                words.append(self._parse_word())
        self._at += 1
        return tuple(words)

    def _parse_single_quotes(self) -> str:
        end = self._source.find("'", self._at + 1)
        end = len(self._source) if end < 0 else end
        text = self._source[self._at + 1 : end]
        self._advance_to(end + 1)
        return text

    def _parse_double_quotes(self) -> tuple[str, bool]:
        self._at += 1
        parts: list[str] = []
        literal = True
        while self._at < len(self._source) and self._source[self._at] != '"':
            character = self._source[self._at]
            if character == "\\":
                escaped = self._source[self._at + 1 : self._at + 2]
                parts.append("" if escaped == "\n" else escaped)
                self._advance_to(self._at + 2)
            elif character in "$`":
                self._skip_expansion()
                literal = False
            else:
                parts.append(character)
                self._advance_to(self._at + 1)
        self._at += 1
        return "".join(parts), literal

    def _skip_expansion(self) -> None:
        """Skip `$NAME`, `${…}`, `$(…)` or a command in backquotes."""
        if self._source[self._at] == "`":
            end = self._source.find("`", self._at + 1)
            self._advance_to(len(self._source) if end < 0 else end + 1)
            return
        self._at += 1
        following = self._source[self._at : self._at + 1]
        if following in ("{", "("):
            self._skip_brackets(following, {"{": "}", "(": ")"}[following])
        else:
            match = re.compile(r"\w+|.?").match(self._source, self._at)
            self._at = match.end() if match else self._at

    def _skip_brackets(self, opening: str, closing: str) -> None:
        depth = 0
        while self._at < len(self._source):
            character = self._source[self._at]
            depth += (character == opening) - (character == closing)
            self._advance_to(self._at + 1)
            if depth == 0:
                return

    def _advance_to(self, end: int) -> None:
        """Advance to `end`, counting lines."""
        end = min(end, len(self._source))
        lines = self._source.count("\n", self._at, end)
        if lines:
            self._line += lines
            self._start = self._source.rfind("\n", self._at, end) + 1
        self._at = end
