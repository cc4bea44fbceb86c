"""Finds settings files whose keys are options of a program, such as `trl sft --config FILE`."""

# A separate module: another source of options.
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from imgbuild.audit.code.model import CodeText
from imgbuild.audit.code.named_files import find_text, parse_settings, place_key
from imgbuild.audit.code.shell import Command, Word

_OTHER_KEYS = frozenset(("env", "config"))  # read before the options
_OPTION = re.compile(r"[A-Za-z][\w-]*")


class FileOption(msgspec.Struct, frozen=True):
    """An option in a file.

    `option` and `value` have the position of the file's name in the command.
    """

    option: Word
    value: Word
    file: CodeText
    key: str

    @property
    def place(self) -> str:
        """The file and the line of the key, as in "sft.yaml:3"."""
        return f"{self.file.file}:{place_key(self.file, self.key)[0]}"


def file_options(
    texts: Sequence[CodeText], words: Command, names: Sequence[str]
) -> Iterator[FileOption]:
    """Yield the options in the files that a command names after one of the options `names`.

    The name "" stands for a file without an option.
    """
    for at, word in enumerate(words):
        before = words[at - 1].text if at else ""
        name, equals, path = word.text.partition("=")
        if not equals:
            name, path = before if before.startswith("-") else "", word.text
        file = find_text(texts, path) if name in names and word.literal else None
        content = parse_settings(file) if file is not None else None
        if file is None or not isinstance(content, Mapping):
            continue
        for key, value in content.items():
            if isinstance(key, str) and key not in _OTHER_KEYS and _OPTION.fullmatch(key):
                option = msgspec.structs.replace(word, text=f"--{key}")
                text = value if isinstance(value, str) else ""
                yield FileOption(option, msgspec.structs.replace(word, text=text), file, key)
