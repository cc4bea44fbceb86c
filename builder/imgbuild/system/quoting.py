"""Texts in the syntax of the language into which they are put.

Every rendered file, and each command that is shown, uses these functions. They return `Quoted`,
which is the mark that a template may write a text as it is. None lets control characters through.
"""

from __future__ import annotations

import html
import json
import re
import shlex
import textwrap
from collections.abc import Iterable

from imgbuild.errors import InputError
from imgbuild.values import CONTROLS

HINT = "change it where it comes from: matrix.yaml, the lock, or the command line"
WIDTH = 100
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./!-]*")
_CONTROL = re.compile(f"[{CONTROLS}]")
_CONTROL_IN_LINES = re.compile(rf"(?![\n\t])[{CONTROLS}]")
# An underscore within a word is no sign of Markdown.
_MARKDOWN = re.compile(r"[\\`*\[\]<>|#~&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


class Quoted(str):
    """A text that is already in the syntax of the language around it."""

    __slots__ = ()

    def __html__(self) -> str:
        """The text, for Jinja: it is not to be escaped."""
        return str(self)


def visible(text: str) -> str:
    """`text` with control characters, except tab and newline, replaced by visible escapes.

    Text from servers and files could otherwise control the terminal.
    """
    return _CONTROL_IN_LINES.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def ascii_controls(document: str) -> str:
    """JSON with all control characters in its strings as JSON's own escapes."""
    return _CONTROL_IN_LINES.sub(lambda match: f"\\u{ord(match[0]):04x}", document)


def is_plain(text: str) -> bool:
    """Whether `text` is a word that no language reads into."""
    return _PLAIN.fullmatch(text) is not None


def plain(text: str) -> Quoted:
    """`text` if it is a plain word; InputError otherwise."""
    if is_plain(text):
        return Quoted(text)
    message = f"{text!r} is not a plain word"
    raise InputError(message, hint=HINT)


def word(text: str, *, lines: bool = False) -> Quoted:
    """`text` as one word of a shell; InputError for control characters.

    With `lines` it may have line breaks and tabs, which only a shell script can hold.
    """
    _refuse(text, _CONTROL_IN_LINES if lines else _CONTROL)
    quoted = shlex.quote(text)
    # In a definition file of Apptainer a line that begins with % is the head of a section.
    return Quoted(f"'{quoted}'" if quoted.startswith("%") else quoted)


def words(texts: Iterable[str], *, lines: bool = False) -> Quoted:
    """`texts` as words of a shell."""
    return Quoted(" ".join(word(text, lines=lines) for text in texts))


def double(text: str) -> str:
    """`text` for between double quotes of a shell; InputError for control characters."""
    _refuse(text, _CONTROL)
    return re.sub(r'[\\"$`]', r"\\\g<0>", text)


def line(text: str) -> Quoted:
    """`text` for the rest of a line of a comment: on one line, control characters as escapes."""
    return Quoted(visible(" ".join(text.split())))


def comment(text: str, indent: str = "") -> Quoted:
    """`text` as lines of a comment that begin with #."""
    return Quoted(
        textwrap.fill(
            line(text),
            width=WIDTH,
            initial_indent=f"{indent}# ",
            subsequent_indent=f"{indent}# ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def string(value: object) -> Quoted:
    """`value` as JSON in ASCII: a string of Python, TOML and YAML, a list of a Dockerfile."""
    return Quoted(json.dumps(value).replace("\x7f", "\\u007f"))


def dockerfile_value(text: str) -> Quoted:
    """`text` as a value of ENV or LABEL; InputError for control characters."""
    _refuse(text, _CONTROL)
    if re.fullmatch(r"[\w@%+=:,./-]+", text, flags=re.ASCII):
        return Quoted(text)
    return Quoted('"' + re.sub(r'["\\$]', r"\\\g<0>", text) + '"')


def sbatch(text: str) -> Quoted:
    """`text` as a word of an #SBATCH line; InputError for control characters.

    sbatch reads quotes, backslashes and # there: src/sbatch/opt.c of Slurm 22.05.
    """
    _refuse(text, _CONTROL)
    return Quoted(re.sub(r"[\\\"'# ]", r"\\\g<0>", text))


def requirement(package: str, version: str, hashes: Iterable[str], url: str = "") -> Quoted:
    """A line of a requirements file: a package at one version, or at an address, with its hashes.

    InputError if one of its parts could be read as more than that.
    """
    _refuse(url, re.compile(rf"[{CONTROLS}\s\\#$]"))
    name = f"{plain(package)} @ {url}" if url else f"{plain(package)}=={plain(version)}"
    return Quoted(" ".join((name, *(f"--hash=sha256:{plain(text)}" for text in hashes))))


def markdown(text: str) -> Quoted:
    """`text` for a cell of a Markdown table, or within a line of Markdown."""
    return Quoted(_MARKDOWN.sub(_reference, line(text)))


def code_span(text: str) -> Quoted:
    """`text` as a code span in a cell of a Markdown table."""
    shown = line(text).replace("|", "\\|")
    longest = max(map(len, re.findall("`+", shown)), default=0)
    fence, pad = "`" * (longest + 1), " " * bool(longest)
    return Quoted(f"{fence}{pad}{shown}{pad}{fence}")


def _reference(match: re.Match[str]) -> str:
    sign = match[0]
    return html.escape(sign) if sign in "<>&" else f"\\{sign}"


def _refuse(text: str, signs: re.Pattern[str]) -> None:
    if found := signs.search(text):
        message = f"{text!r} has {found[0]!r}, which cannot be written there"
        raise InputError(message, hint=HINT)
