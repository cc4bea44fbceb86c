"""Finds YAML files whose keys are options of a program, such as `trl sft --config FILE`."""

# A separate module: another source of options.
from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import yaml

from imgbuild.audit.code.model import CodeText
from imgbuild.audit.code.shell import Command, Word
from imgbuild.system import yaml_data

_READ_FIRST = frozenset(("env", "config"))  # keys that are no options
_FILE = re.compile(r"[\w./+-]+\.ya?ml")


class FileOption(msgspec.Struct, frozen=True):
    """An option in a file.

    `option` and `value` have the position of the file's name in the command. `place` is the file
    and the line of the key.
    """

    option: Word
    value: Word
    place: str


def file_options(
    texts: Sequence[CodeText], words: Command, names: Sequence[str]
) -> Iterator[FileOption]:
    """Yield the options in the files that a command names after one of the options `names`.

    The name "" stands for a file without an option.
    """
    for at, word in enumerate(words):
        before = words[at - 1].text if at else ""
        name, equals, file = word.text.partition("=")
        named = name in names if equals else (before if before.startswith("-") else "") in names
        text = _find_text(texts, file if equals else word.text) if named and word.literal else None
        for key, value, line in _keys(text) if text is not None else ():
            option = msgspec.structs.replace(word, text=f"--{key}")
            shown = msgspec.structs.replace(word, text=value)
            yield FileOption(option, shown, f"{text.file}:{line}" if text is not None else "")


def _find_text(texts: Sequence[CodeText], name: str) -> CodeText | None:
    """Return the YAML file with a path that ends with `name`, if there is only one."""
    if not _FILE.fullmatch(name):
        return None
    end = posixpath.normpath(name).lstrip("./")
    same = [text for text in texts if text.kind == "yaml" and f"/{text.file}".endswith(f"/{end}")]
    return same[0] if len(same) == 1 else None


def _keys(text: CodeText) -> Iterator[tuple[str, str, int]]:
    """Yield the keys at the top level of a file, with scalar values and lines."""
    try:
        content = yaml_data.parse_yaml(text.source)
    except (ValueError, yaml.YAMLError, RecursionError):
        return
    lines = text.source.decode(errors="replace").splitlines()
    for key, value in content.items() if isinstance(content, Mapping) else ():
        if isinstance(key, str) and key not in _READ_FIRST and re.fullmatch(r"[A-Za-z][\w-]*", key):
            start = re.compile(rf"[\"']?{re.escape(key)}[\"']?\s*:")
            line = next((at for at, each in enumerate(lines, 1) if start.match(each)), 1)
            yield key, value if isinstance(value, str) else "", line
