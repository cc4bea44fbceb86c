"""Quotes texts for shells, Dockerfiles, YAML comments, sbatch, requirements and Markdown.

All rendered files and displayed commands use these functions. The functions reject or escape
control characters, and return `QuotedText`, which templates insert without further escaping.
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
from imgbuild.system.control_characters import escape_control
from imgbuild.values import CONTROLS

HINT = "change the value in matrix.yaml, in the lock, or on the command line"
WIDTH = 100
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./!-]*")
_CONTROL = re.compile(f"[{CONTROLS}]")
_NOT_IN_URLS = re.compile(rf"[{CONTROLS}\s\\#$]")
# An underscore between letters or digits is not emphasis (CommonMark 0.31, section 6.2).
_MARKDOWN = re.compile(r"[\\`*\[\]<>|#~&$]|(?<![^\W_])_|_(?![^\W_])")


class QuotedText(str):
    """A text that is already quoted for its context."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return the text for Jinja, so that Jinja does not escape it again."""
        return str(self)


def is_plain(text: str) -> bool:
    """Return whether `text` has no special character in any language that this module supports."""
    return _PLAIN.fullmatch(text) is not None


def require_plain_word(text: str) -> QuotedText:
    """Return `text` if it is a plain word. Raises InputError otherwise."""
    if is_plain(text):
        return QuotedText(text)
    message = f"{text!r} is not a plain word"
    raise InputError(message, hint=HINT)


def quote_word(text: str, *, lines: bool = False) -> QuotedText:
    """Quote `text` as a word of a shell. Raises InputError for control characters.

    With `lines`, line breaks and tabs are allowed, which only shell scripts support.
    """
    _refuse_characters(text, control_characters.HIDDEN_IN_LINES if lines else _CONTROL)
    quoted = shlex.quote(text)
    # In a definition file of Apptainer a line that begins with % starts a section.
    return QuotedText(f"'{quoted}'" if quoted.startswith("%") else quoted)


def quote_words(texts: Iterable[str], *, lines: bool = False) -> QuotedText:
    """Quote `texts` as words of a shell."""
    return QuotedText(" ".join(quote_word(text, lines=lines) for text in texts))


def quote_patterns(texts: Iterable[str]) -> QuotedText:
    """Convert variable names, and prefixes that end in `*`, to patterns of a shell's "case"."""
    names = list(texts)
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\*?", name):
            message = f"{name!r} is neither the name of a variable nor a prefix with *"
            raise InputError(message, hint=HINT)
    return QuotedText(" | ".join(names))


def for_double_quotes(text: str) -> str:
    """Escape `text` for double quotes in a shell. Raises InputError for control characters."""
    _refuse_characters(text, _CONTROL)
    return re.sub(r'[\\"$`]', r"\\\g<0>", text)


def comment_line(text: str) -> QuotedText:
    """Escape `text` as the end of a comment line. Control characters are replaced."""
    return QuotedText(escape_control(" ".join(text.split())))


def comment_lines(text: str, indent: str = "") -> QuotedText:
    """Format `text` as comment lines that begin with #."""
    return QuotedText(
        textwrap.fill(
            comment_line(text),
            width=WIDTH,
            initial_indent=f"{indent}# ",
            subsequent_indent=f"{indent}# ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def json_string(value: object) -> QuotedText:
    """Encode `value` as ASCII JSON that is also valid in Python, TOML, YAML and Dockerfiles."""
    return QuotedText(json.dumps(value).replace("\x7f", "\\u007f"))


def dockerfile_value(text: str) -> QuotedText:
    """Quote `text` as a value of ENV or LABEL. Raises InputError for control characters."""
    _refuse_characters(text, _CONTROL)
    if re.fullmatch(r"[\w@%+=:,./-]+", text, flags=re.ASCII):
        return QuotedText(text)
    return QuotedText('"' + re.sub(r'["\\$]', r"\\\g<0>", text) + '"')


def sbatch_word(text: str) -> QuotedText:
    """Quote `text` as a word of an #SBATCH line. Raises InputError for control characters.

    sbatch interprets quotes, backslashes and # in this line (src/sbatch/opt.c of Slurm 22.05).
    """
    _refuse_characters(text, _CONTROL)
    return QuotedText(re.sub(r"[\\\"'# ]", r"\\\g<0>", text))


def requirement_line(
    package: str, version: str, hashes: Collection[str], url: str = ""
) -> QuotedText:
    """Format a line of a requirements file: a package with a version or URL, and hashes.

    Raises InputError if a part contains other syntax.
    """
    _refuse_characters(url, _NOT_IN_URLS)
    parts = (package, *hashes) if url else (package, version, *hashes)
    if not is_plain("".join(parts)):
        next(require_plain_word(part) for part in parts if not is_plain(part))  # raises
    name = f"{package} @ {url}" if url else f"{package}=={version}"
    return QuotedText(" ".join((name, *(f"--hash=sha256:{text}" for text in hashes))))


def markdown_cell(text: str) -> QuotedText:
    """Escape `text` for Markdown, also in a table cell."""
    return QuotedText(_MARKDOWN.sub(_reference, comment_line(text)))


def code_span(text: str) -> QuotedText:
    """Format `text` as a Markdown code span that is also valid in a table cell."""
    shown = comment_line(text).replace("|", "\\|")
    longest = max(map(len, re.findall("`+", shown)), default=0)
    fence, pad = "`" * (longest + 1), " " * bool(longest)
    return QuotedText(f"{fence}{pad}{shown}{pad}{fence}")


def _reference(match: re.Match[str]) -> str:
    sign = match[0]
    return html.escape(sign) if sign in "<>&" else f"\\{sign}"


def _refuse_characters(text: str, signs: re.Pattern[str]) -> None:
    if match := signs.search(text):
        message = f"{text!r} contains {match[0]!r}, which cannot be quoted there"
        raise InputError(message, hint=HINT)
