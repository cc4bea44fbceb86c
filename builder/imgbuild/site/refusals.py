"""Why versions are incompatible, from all recorded sources (separate: many formats)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from imgbuild.audit.checks import rules
from imgbuild.audit.main_path.policy import within
from imgbuild.matrix import tried_updates
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Matrix
from imgbuild.project_paths import Project
from imgbuild.site.model import RecordedRefusal

SHORT_REASON = 600  # characters


def refusals(
    project: Project, matrix: Matrix, learned: Sequence[Constraint]
) -> tuple[RecordedRefusal, ...]:
    """All refusals, in the order in which a page lists them."""
    return tuple(
        RecordedRefusal(
            what=item.what, reason=_short(item.reason), source=item.source, target=item.target
        )
        for item in _refusals(project, matrix, learned)
    )


def incompatible(versions: Mapping[str, str], python: str) -> tuple[str, ...]:
    """The known incompatibilities of the packages of an image: package → version."""
    return tuple(
        f"{rule.package} {versions[rule.package]} with {rule.other} {versions[rule.other]}:"
        f" {' '.join(rule.why.split())}; {' '.join(rule.cure.split())}"
        for rule in rules.load()
        if rule.other in versions
        and rule.package in versions
        and within(versions[rule.package], rule.versions)
        and within(versions[rule.other], rule.clash)
        and within(python, rule.python)
    )


def _refusals(
    project: Project, matrix: Matrix, learned: Sequence[Constraint]
) -> Iterator[RecordedRefusal]:
    for entry in learned:
        yield RecordedRefusal(
            what=f"{entry.package}{entry.versions} needs {entry.needs}",
            reason=str(entry).partition(" (")[2].removesuffix(")") or "learned by the audit",
            source="learned constraint",
        )
    for rule in rules.load():
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
    yield from _refused_updates(project)
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


def _refused_updates(project: Project) -> Iterator[RecordedRefusal]:
    """The versions that `imgbuild update` refused; InputError for a damaged file."""
    for row, refused in tried_updates.read(project.images).refused.items():
        for item in refused:
            yield RecordedRefusal(
                what=f"{item.package} {item.version} in {row}",
                reason="; ".join(item.reasons),
                source="refused update",
                target=row,
            )


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= SHORT_REASON else f"{plain[:SHORT_REASON]}…"
