"""Quotes texts for shells, Dockerfiles, YAML comments, sbatch, requirements and Markdown.

All rendered files and displayed commands use these functions. They return `Quoted`, which templates
insert unescaped, and reject or escape control characters.
"""

from __future__ import annotations

import html
import json
import re
import shlex
import textwrap
from collections.abc import Collection, Iterable

from imgbuild.errors import InputError
from imgbuild.system import control_characters
from imgbuild.system.control_characters import visible
from imgbuild.values import CONTROLS

HINT = "change the value in matrix.yaml, in the lock, or on the command line"
WIDTH = 100
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./!-]*")
_CONTROL = re.compile(f"[{CONTROLS}]")
_NO_URL = re.compile(rf"[{CONTROLS}\s\\#$]")
# An underscore between letters or digits is not emphasis (CommonMark 0.31, section 6.2).
_MARKDOWN = re.compile(r"[\\`*\[\]<>|#~&$]|(?<![^\W_])_|_(?![^\W_])")


class Quoted(str):
    """A text that is already quoted for its context."""

    __slots__ = ()

    def __html__(self) -> str:
        """The text for Jinja, which does not escape it again."""
        return str(self)


def is_plain(text: str) -> bool:
    """Whether `text` has no character that is special in one of these languages."""
    return _PLAIN.fullmatch(text) is not None


def plain(text: str) -> Quoted:
    """`text` if it is a plain word; InputError otherwise."""
    if is_plain(text):
        return Quoted(text)
    message = f"{text!r} is not a plain word"
    raise InputError(message, hint=HINT)


def word(text: str, *, lines: bool = False) -> Quoted:
    """`text` as one word of a shell; InputError for control characters.

    With `lines` it may contain line breaks and tabs, which only shell scripts support.
    """
    _refuse(text, control_characters.IN_LINES if lines else _CONTROL)
    quoted = shlex.quote(text)
    # In a definition file of Apptainer a line that begins with % starts a section.
    return Quoted(f"'{quoted}'" if quoted.startswith("%") else quoted)


def words(texts: Iterable[str], *, lines: bool = False) -> Quoted:
    """`texts` as words of a shell."""
    return Quoted(" ".join(word(text, lines=lines) for text in texts))


def patterns(texts: Iterable[str]) -> Quoted:
    """Names of variables, or prefixes with `*`, as patterns of a shell's "case"."""
    names = list(texts)
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\*?", name):
            message = f"{name!r} is neither the name of a variable nor a prefix with *"
            raise InputError(message, hint=HINT)
    return Quoted(" | ".join(names))


def double(text: str) -> str:
    """`text` for use between double quotes of a shell; InputError for control characters."""
    _refuse(text, _CONTROL)
    return re.sub(r'[\\"$`]', r"\\\g<0>", text)


def line(text: str) -> Quoted:
    """`text` for the rest of a comment line: one line with escaped control characters."""
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
    """`value` as ASCII JSON, valid as strings of Python, TOML, YAML and lists of a Dockerfile."""
    return Quoted(json.dumps(value).replace("\x7f", "\\u007f"))


def dockerfile_value(text: str) -> Quoted:
    """`text` as a value of ENV or LABEL; InputError for control characters."""
    _refuse(text, _CONTROL)
    if re.fullmatch(r"[\w@%+=:,./-]+", text, flags=re.ASCII):
        return Quoted(text)
    return Quoted('"' + re.sub(r'["\\$]', r"\\\g<0>", text) + '"')


def sbatch(text: str) -> Quoted:
    """`text` as a word of an #SBATCH line; InputError for control characters.

    sbatch interprets quotes, backslashes and # in such a line (src/sbatch/opt.c of Slurm 22.05).
    """
    _refuse(text, _CONTROL)
    return Quoted(re.sub(r"[\\\"'# ]", r"\\\g<0>", text))


def requirement(package: str, version: str, hashes: Collection[str], url: str = "") -> Quoted:
    """A line of a requirements file: a package with a version or URL, and hashes.

    Raises InputError if a part contains other syntax.
    """
    _refuse(url, _NO_URL)
    parts = (package, *hashes) if url else (package, version, *hashes)
    if not is_plain("".join(parts)):
        next(plain(part) for part in parts if not is_plain(part))  # raises
    name = f"{package} @ {url}" if url else f"{package}=={version}"
    return Quoted(" ".join((name, *(f"--hash=sha256:{text}" for text in hashes))))


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
    if match := signs.search(text):
        message = f"{text!r} contains {match[0]!r}, which cannot be quoted there"
        raise InputError(message, hint=HINT)
