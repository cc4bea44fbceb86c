"""Finds variants: builds of a library for several CUDA families, of which only one is loaded.

A variant for another CUDA family than that of the package set is skipped if the same wheel has a
variant for the right family. Otherwise, no variant is skipped, because one of them would be loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from imgbuild.audit.packages.library_map import is_private
from imgbuild.audit.source.facts import ElfFacts

_RUNTIME = re.compile(r"libcudart\.so\.(\d+)")
# "_cu12", "-cuda13", "/cu130/": the family is the major version, two digits of it.
_TAG = re.compile(r"[._-]?(?<![A-Za-z])cu(?:da)?[_-]?(1[1-9])\d?(?![0-9A-Za-z])")


def linked_runtimes(facts: ElfFacts) -> frozenset[str]:
    """Return the major versions of the CUDA runtime to which a file is linked."""
    matches = (_RUNTIME.fullmatch(library) for library in facts.needed)
    return frozenset(match[1] for match in matches if match is not None)


def cuda_family(elf_facts: Iterable[tuple[str, ElfFacts]]) -> str:
    """Return the CUDA family of a package set, such as "13", or "" if unknown.

    torch determines the family.
    """
    majors: set[str] = set()
    for owner, facts in elf_facts:
        if owner == "torch" and not is_private(facts.file):
            majors |= linked_runtimes(facts)
    return majors.pop() if len(majors) == 1 else ""


def find_skipped_variants(elf_facts: Iterable[tuple[str, ElfFacts]]) -> frozenset[tuple[str, str]]:
    """Return the packages and files of variants that this package set does not load."""
    elf_facts = tuple(elf_facts)
    ours = cuda_family(elf_facts)
    skipped: set[tuple[str, str]] = set()
    for package, files in _groups(elf_facts):
        majors = {facts.file: _file_family(facts) for facts in files}
        if any(_TAG.search(file) and major == ours for file, major in majors.items()):
            others = (file for file, major in majors.items() if major not in ("", ours))
            skipped.update((package, file) for file in others)
    return frozenset(skipped)


def _groups(elf_facts: Iterable[tuple[str, ElfFacts]]) -> Iterator[tuple[str, list[ElfFacts]]]:
    groups: dict[tuple[str, str], list[ElfFacts]] = {}
    for package, facts in elf_facts:
        groups.setdefault((package, _TAG.sub("", facts.file)), []).append(facts)
    return ((package, files) for (package, _), files in groups.items())


def _file_family(facts: ElfFacts) -> str:
    """Return the CUDA family in the path of a file, or else of its linked CUDA runtime.

    Returns "" if the file is for any family.
    """
    tag = _TAG.search(facts.file)
    if tag is not None:
        return tag[1]
    linked = linked_runtimes(facts)
    return next(iter(linked)) if len(linked) == 1 else ""
