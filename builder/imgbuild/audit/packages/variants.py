"""Variants: one library built for several CUDA families, of which a wheel loads the fitting one.

Input: the shared objects of a world. Output: the files that are for another family than the
world's, and lie beside one that is for it. They are skipped; the one that is loaded must be
whole like any other file. Where a wheel has none for the family, nothing is skipped: then what
it has for another is what would be loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from imgbuild.audit.packages.library_map import is_private
from imgbuild.audit.source.facts import ElfFacts

_RUNTIME = re.compile(r"libcudart\.so\.(\d+)")
# "_cu12", "-cuda13", "/cu130/": the family is the major version, two digits of it.
_TAG = re.compile(r"[._-]?(?<![A-Za-z])cu(?:da)?[_-]?(1[1-9])\d?(?![0-9A-Za-z])")


def runtimes(facts: ElfFacts) -> frozenset[str]:
    """The major versions of the CUDA runtime that a file is linked to."""
    found = (_RUNTIME.fullmatch(library) for library in facts.needed)
    return frozenset(one[1] for one in found if one is not None)


def family(elves: Iterable[tuple[str, ElfFacts]]) -> str:
    """The CUDA family of a world, which is torch's: "13"; "" if it cannot be told."""
    majors: set[str] = set()
    for owner, facts in elves:
        if owner == "torch" and not is_private(facts.file):
            majors |= runtimes(facts)
    return majors.pop() if len(majors) == 1 else ""


def passed_over(elves: Iterable[tuple[str, ElfFacts]]) -> frozenset[tuple[str, str]]:
    """Package and file of the variants that this world does not load."""
    elves = tuple(elves)
    ours = family(elves)
    found: set[tuple[str, str]] = set()
    for package, files in _groups(elves):
        majors = {facts.file: _major(facts) for facts in files}
        if any(_TAG.search(file) and major == ours for file, major in majors.items()):
            others = (file for file, major in majors.items() if major not in ("", ours))
            found.update((package, file) for file in others)
    return frozenset(found)


def _groups(elves: Iterable[tuple[str, ElfFacts]]) -> Iterator[tuple[str, list[ElfFacts]]]:
    """The files of one package whose paths differ in the family alone."""
    groups: dict[tuple[str, str], list[ElfFacts]] = {}
    for package, facts in elves:
        groups.setdefault((package, _TAG.sub("", facts.file)), []).append(facts)
    return ((package, files) for (package, _), files in groups.items())


def _major(facts: ElfFacts) -> str:
    """The family that a file is for: as its path says, else as it is linked; "" for any."""
    tag = _TAG.search(facts.file)
    if tag is not None:
        return tag[1]
    linked = runtimes(facts)
    return next(iter(linked)) if len(linked) == 1 else ""
