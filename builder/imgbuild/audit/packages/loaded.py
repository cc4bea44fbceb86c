"""Finds the names of libraries that shared objects load by name (`dlopen`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from imgbuild.audit.packages.content import WheelContent
from imgbuild.audit.source.facts import ElfFacts

# The kind of these facts in the cache and in the file of published facts. Increase the number when
# the reader returns other facts for the same bytes; `make facts` writes the file again.
KIND = "loaded-1"
LARGEST_FILE = (
    16 << 20
)  # bytes of a file that is searched; larger files rarely load libraries by name
_LOADERS = frozenset(("dlopen", "dlmopen"))
# A whole string of C, with a version or the beginning of one: "libcudart.so.%d".
_NAME = re.compile(rb"(?<![\w./%+-])(lib[\w+-]+\.so(?:\.[\w.%]*)?)\0")

NamesByFile = Mapping[str, tuple[str, ...]]


def loading_files(elf_facts: Iterable[ElfFacts], sizes: Mapping[str, int]) -> list[ElfFacts]:
    """Return the shared objects that load libraries by name."""
    return [
        facts
        for facts in elf_facts
        if sizes.get(facts.file, 0) <= LARGEST_FILE
        and any(symbol.partition("@")[0] in _LOADERS for symbol in facts.undefined)
    ]


def read_loaded(content: WheelContent, loading: Iterable[ElfFacts]) -> dict[str, tuple[str, ...]]:
    """Map each file to the library names in its strings.

    Libraries to which the file is linked are omitted.
    """
    loaded = {}
    for facts in loading:
        data = content.read([facts.file]).get(facts.file, b"")
        names = {name.decode() for name in _NAME.findall(data)} - {*facts.needed, facts.soname}
        if names:
            loaded[facts.file] = tuple(sorted(names))
    return loaded
