"""Loads and renders the templates of imgbuild and of projects, with filters that quote values.

Templates run in `sandbox`, because projects are not trusted. An unknown name in a template is an
error.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec

from imgbuild.errors import ControlSignal, ImgbuildError, InputError
from imgbuild.system import files, quoting
from imgbuild.system.folder import LEVELS, OpenFolder
from imgbuild.system.quoting import QuotedText

DATA = files.data("templates")
FOLDER = "templates"  # below `images`
APPTAINER = "apptainer.j2"
# The files whose language allows no line breaks in a word; all others are shell scripts.
ONE_LINE = ("dockerfile.j2", APPTAINER)
SIZE = 256 << 10  # bytes of a template
HINT = "correct the template, or remove it to use imgbuild's template"


def render_template(
    name: str, value: msgspec.Struct, *, images: Path | None, **more: object
) -> str:
    """Render the template `name`, whose variables are the fields of `value`.

    A file with this name in `images`/templates replaces the template of imgbuild. Raises InputError
    if the template cannot be read or is not allowed.
    """
    from imgbuild.render.sandbox import TemplateSandbox  # Jinja is slow to load

    environment = TemplateSandbox(lambda file: _source(images, file), quoting_filters(name))
    fields = {field: getattr(value, field) for field in value.__struct_fields__}
    try:
        return environment.get_template(name).render(it=value, **fields, **more)
    except InputError as error:
        message = f"{_place(error, name)}: {error.message}"
        raise InputError(message, hint=error.hint) from error
    except (OSError, ImgbuildError, ControlSignal):
        raise
    except Exception as error:  # of Jinja, or of the Python into which Jinja translates it
        message = f"{_place(error, name)}: {str(error) or type(error).__name__}"
        raise InputError(message, hint=HINT) from error


def quoting_filters(name: str) -> dict[str, Callable[..., object]]:
    """Return the quoting filters for the language of the template `name`."""
    lines = name not in ONE_LINE
    quoting_filters: dict[str, Callable[..., object]] = {
        "word": lambda text: quoting.quote_word(text, lines=lines),
        "words": lambda texts: quoting.quote_words(texts, lines=lines),
        "value": quoting.dockerfile_value,
        "quoted": quoting.json_string,
        "comment": quoting.comment_lines,
        "line": quoting.comment_line,
        "patterns": quoting.quote_patterns,
        "sbatch": quoting.sbatch_word,
    }
    if name != APPTAINER:
        return quoting_filters
    return {
        **quoting_filters,
        "word": lambda text: _quote_braces(quoting.quote_word(text), "{''{"),
        "words": lambda texts: _quote_braces(quoting.quote_words(texts), "{''{"),
        "comment": lambda text, indent="": quoting.comment_lines(text.replace("{{", "{ {"), indent),
        "line": lambda text: _quote_braces(quoting.comment_line(text), "{ {"),
        "label": _quote_label,
    }


def project_templates(images: Path) -> tuple[str, ...]:
    """Return the names of the templates in `images` that differ from those of imgbuild.

    Links to folders are not followed, because templates behind links are not rendered.
    """
    folder = images / FOLDER
    if folder.is_symlink():
        return ()
    names = []
    for place, folders, files_in_place in os.walk(folder):
        inner = Path(place).relative_to(folder)
        if len(inner.parts) == LEVELS:
            folders.clear()
        names += [(inner / file).as_posix() for file in files_in_place if file.endswith(".j2")]
    return tuple(name for name in sorted(names) if not _is_same_file(folder, name))


def target_slug(name: str) -> str:
    """Replace dots in the name of a target."""
    return name.replace(".", "_")


def _is_same_file(folder: Path, name: str) -> bool:
    try:
        return _read_template(folder, name) == _read_template(DATA, name)
    except InputError:
        return False


def _quote_braces(text: str, instead: str) -> QuotedText:
    """Replace `{{` in `text`, which Apptainer would read as a build argument."""
    while "{{" in text:
        text = text.replace("{{", instead)
    return QuotedText(text)


def _quote_label(text: str) -> QuotedText:
    """Check a value in %labels. Apptainer reads the rest of the line without quotes."""
    quoting.quote_word(text)  # InputError for control characters
    if "{{" in text:
        message = f"{text!r} has {{{{, which labels of Apptainer cannot contain"
        raise InputError(message, hint=quoting.HINT)
    return QuotedText(text)


def _source(images: Path | None, name: str) -> tuple[str, str] | None:
    if "\\" in name:
        message = f"{name!r} is not a valid template name"
        raise InputError(message, hint="specify a file below images/templates")
    places = [(images, f"{FOLDER}/{name}")] if images is not None else []
    for top, path in (*places, (DATA, name)):
        text = _read_template(top, path)
        if text is not None:
            return text, str(top / path)
    return None


def _read_template(top: Path, name: str) -> str | None:
    """Read the template `name` below `top`, or return None if it does not exist.

    Raises InputError for links, for files that are not text, and for names that are not paths below
    `top`.
    """
    path = top / name
    try:
        with OpenFolder.open(top) as folder, os.fdopen(folder.file(name), "rb") as file:
            data = file.read(SIZE + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise InputError(message, hint=HINT) from error
    if len(data) > SIZE:
        message = f"{path} has more than {SIZE >> 10} KiB"
        raise InputError(message, hint=HINT)
    try:
        # As Jinja reads files: one kind of line break.
        return data.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        message = f"{path} is not UTF-8: {error.reason}"
        raise InputError(message, hint=HINT) from error


def _place(error: BaseException, name: str) -> str:
    if isinstance(line := getattr(error, "lineno", None), int):  # a syntax error of Jinja
        return f"{getattr(error, 'filename', None) or name}:{line}"
    frames = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.endswith(".j2")
    ]
    return frames[-1] if frames else name
