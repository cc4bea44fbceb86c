"""Reads the recorded reasons why versions are not used together.

The reasons are constraints, rules, refused updates and notes. Nothing is solved, and no package is
read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from packaging.specifiers import SpecifierSet

from imgbuild.audit.checks import rules
from imgbuild.matrix import tried_updates
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Matrix, Target
from imgbuild.system.syntax import is_within, parse_version

SHORT_REASON = 600  # characters
NAMED_SUBJECTS = (
    "python",
    "transformers",
    "flash-attn",
)  # in notes, in addition to the pinned packages
Source = Literal[
    "refused update", "learned constraint", "known incompatibility", "accepted finding", "matrix"
]
EXACT = ("==", "===", "~=")  # operators for one release
# Not before a sentence that refers to the one before it.
_SENTENCE = re.compile(r"(?<=[.])\s+(?!It |That |They )")
_REFERENCE = re.compile(r" \(docs/[\w/.-]+\.md\)")
# Sentences about what was tested, which give no reason.
_RECORD = re.compile(
    r"\b(passed|imported|ran|were (installed|solved|tested|only resolved)"
    r"|not (run|tested|built|resolved)|run under emulation|Made of)\b"
)


class RecordedRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why an item is refused for a target or a request.

    `source` is the place where the refusal is recorded.
    """

    what: str
    reason: str
    source: Source
    target: str = ""


class TargetNote(msgspec.Struct, frozen=True, kw_only=True):
    """A sentence in the notes of a target, and the packages that it mentions.

    `packages` maps each package to its version in the sentence, or in the target, or "". `stated`
    are the packages whose version the sentence contains.
    """

    target: str
    text: str
    packages: dict[str, str]
    stated: tuple[str, ...] = ()


def target_notes(matrix: Matrix) -> tuple[TargetNote, ...]:
    """Return the sentences in the notes of all targets that mention a package.

    Sentences on test runs are omitted.
    """
    named = {
        *NAMED_SUBJECTS,
        *(package for target in matrix.targets.values() for package in target.pins),
    }
    names = "|".join(sorted(map(re.escape, named), key=len, reverse=True))
    pattern = re.compile(
        rf"(?<![\w./-])({names})(?![\w/-]|\.\w)(?:(?:\s*==\s*|\s+)(\d[\w.]*\w))?", re.IGNORECASE
    )
    return tuple(
        note
        for name, target in matrix.targets.items()
        for text in _sentences(target)
        if (note := _note(name, target, matrix.bases[target.base].python, text, pattern)).packages
    )


def notes_on_package(matrix: Matrix, target: str, package: str) -> tuple[str, ...]:
    """Return the sentences in the notes of `target` on `package` and another package."""
    return tuple(
        note.text
        for note in target_notes(matrix)
        if note.target == target and package in note.packages and len(note.packages) > 1
    )


def _sentences(target: Target) -> Iterator[str]:
    for text in (target.tested, *target.guide):
        for sentence in _SENTENCE.split(" ".join(_REFERENCE.sub("", text).split())):
            if not _RECORD.search(sentence):
                yield sentence.rstrip(".")


def _note(
    name: str, target: Target, python: str, text: str, pattern: re.Pattern[str]
) -> TargetNote:
    own = {**target.pins, "python": python}
    stated: dict[str, str] = {}
    packages: dict[str, str] = {}
    for match in pattern.finditer(text):
        package = match[1].lower()
        if match[2]:
            stated.setdefault(package, match[2])
        packages[package] = stated.get(package) or own.get(package, "")
    return TargetNote(target=name, text=text, packages=packages, stated=tuple(stated))


def notes_on_requests(
    every: Iterable[TargetNote], requests: Mapping[str, SpecifierSet]
) -> tuple[TargetNote, ...]:
    """Return the notes that apply to `requests`.

    A note must mention two requested packages, or a version and the only requested package. The
    request must allow each version that the note contains. If it contains none, the request must
    allow the target's version of one package, and the target must contain all packages that are
    requested in a version. One of these packages must be requested in an exact version.
    """
    return tuple(note for note in every if _note_concerns(note, requests))


def _note_concerns(note: TargetNote, requests: Mapping[str, SpecifierSet]) -> bool:
    named = [name for name in requests if name in note.packages]
    stated = [name for name in named if name in note.stated]
    if not stated if len(requests) == 1 else len(named) < 2:
        return False
    if not any(part.operator in EXACT for name in named for part in requests[name]):
        return False
    asked = {name: requests[name] for name in stated or named if str(requests[name])}
    allowed = [_spec_allows(spec, note.packages[name]) for name, spec in asked.items()]
    return all(allowed) if stated else any(allowed) and all(note.packages[name] for name in asked)


def _spec_allows(spec: SpecifierSet, version: str) -> bool:
    """Return whether `spec` contains a version or one of its patch releases.

    For example, 0.27.1 is a patch release of 0.27.
    """
    if not version or not parse_version(version):
        return False
    return spec.contains(version, prereleases=True) or any(
        part.operator == "==" and part.version.startswith(f"{version}.") for part in spec
    )


def recorded_refusals(
    images: Path, matrix: Matrix, learned: Sequence[Constraint]
) -> tuple[RecordedRefusal, ...]:
    """Return all refusals, in the order of the pages that list them."""
    return tuple(
        RecordedRefusal(
            what=item.what,
            reason=_shorten_text(item.reason),
            source=item.source,
            target=item.target,
        )
        for item in _refusals(images, matrix, learned)
    )


def recorded_incompatibilities(versions: Mapping[str, str], python: str) -> tuple[str, ...]:
    """Return the known incompatibilities of an image's packages.

    `versions` maps packages to versions.
    """
    return tuple(
        f"{rule.package} {versions[rule.package]} with {rule.other} {versions[rule.other]}:"
        f" {' '.join(rule.why.split())}; {' '.join(rule.cure.split())}"
        for rule in rules.load_rules()
        if rule.other in versions
        and rule.package in versions
        and is_within(versions[rule.package], rule.versions)
        and is_within(versions[rule.other], rule.clash)
        and is_within(python, rule.python)
    )


def _refusals(
    images: Path, matrix: Matrix, learned: Sequence[Constraint]
) -> Iterator[RecordedRefusal]:
    for entry in learned:
        if entry.unused:
            continue
        yield RecordedRefusal(
            what=f"{entry.package}{entry.versions} needs {entry.needs}",
            reason=str(entry).partition(" (")[2].removesuffix(")") or "learned by the audit",
            source="learned constraint",
        )
    for rule in rules.load_rules():
        clash = (
            f"with {rule.other}{rule.clash}"
            if rule.other
            else (f"without {rule.missing}" if rule.missing else f"without the module {rule.lacks}")
        )
        yield RecordedRefusal(
            what=f"{rule.package}{rule.versions} {clash}",
            reason=f"{rule.why}; {rule.cure}",
            source="known incompatibility",
        )
    yield from _refused_updates(images)
    for name, target in matrix.targets.items():
        for arch, reason in target.exclude.items():
            yield RecordedRefusal(
                what=f"{name} for {arch}", reason=reason, source="matrix", target=name
            )
        for waiver in target.waive:
            yield RecordedRefusal(
                what=f"{waiver.package}: {waiver.subject}",
                reason=waiver.reason,
                source="accepted finding",
                target=name,
            )
        if target.retired:
            yield RecordedRefusal(what=f"{name} is retired", reason=target.retired, source="matrix",
                          target=name)  # fmt: skip


def _refused_updates(images: Path) -> Iterator[RecordedRefusal]:
    for row, refused in tried_updates.read_updates(images).refused.items():
        for item in refused:
            yield RecordedRefusal(
                what=f"{item.package} {item.version} in {row}",
                reason="; ".join(item.reasons),
                source="refused update",
                target=row,
            )


def _shorten_text(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= SHORT_REASON else f"{plain[:SHORT_REASON]}…"
