"""Loads and renders the templates of `images/templates/`; a project's own take precedence.

A name that a template does not know is an error, not an empty word.
"""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from pathlib import Path

import msgspec

from imgbuild.errors import InputError
from imgbuild.system import files

DATA = files.data("templates")
WIDTH = 100


def render(name: str, value: msgspec.Struct, *, images: Path | None, **more: object) -> str:
    """The text of template `name`, in which `value`'s fields are names.

    A file of that name in `images`/templates is read instead of imgbuild's own; InputError if it
    cannot be.
    """
    import jinja2

    folders = [DATA] if images is None else [images / "templates", DATA]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  # no markup: what a shell or a parser reads is quoted below
    )
    environment.filters.update(
        word=shlex.quote,
        words=shlex.join,
        value=value_text,
        quoted=json.dumps,
        comment=comment,
    )
    fields = {field: getattr(value, field) for field in value.__struct_fields__}
    try:
        return environment.get_template(name).render(it=value, **fields, **more)
    except jinja2.TemplateError as error:
        place = f"{getattr(error, 'filename', None) or name}:{getattr(error, 'lineno', 0)}"
        message = f"{place}: {error}"
        raise InputError(
            message, hint="correct the template, or remove it to use imgbuild's own"
        ) from error


def value_text(text: str) -> str:
    """A value of ENV or LABEL, quoted where the parser of Dockerfiles would read into it.

    InputError for a value that no line of a Dockerfile can hold.
    """
    if any(char in text for char in "\n\r\0"):
        message = f"{text!r} has several lines, but a Dockerfile allows only one"
        raise InputError(message, hint="change it in matrix.yaml")
    if re.fullmatch(r"[\w@%+=:,./-]+", text, flags=re.ASCII):
        return text
    return '"' + re.sub(r'["\\$]', r"\\\g<0>", text) + '"'


def comment(text: str, indent: str = "") -> str:
    """`text` as lines of a comment."""
    return textwrap.fill(
        " ".join(text.split()),
        width=WIDTH,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}# ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def slug(name: str) -> str:
    """A target's name where dots may not be."""
    return name.replace(".", "_")
