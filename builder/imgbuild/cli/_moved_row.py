"""Compares a row of a project before and after a move to another lock."""

# A separate module: size.
from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from imgbuild.assemble.inputs import Inputs
from imgbuild.audit.code.model import CodeFinding
from imgbuild.cli._output import format_count, size_text
from imgbuild.errors import FetchFailed, ImgbuildError
from imgbuild.lock import lock_file, published
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.published import project_row
from imgbuild.matrix.project_paths import Project
from imgbuild.pipeline import audit_code
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.session import Session
from imgbuild.plan import image_digests
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.report import Severity
from imgbuild.show import image_diff
from imgbuild.show.image_diff import HostChange, ImageDiff, host_lines
from imgbuild.show.table import NAMED_PACKAGES
from imgbuild.system.console import console
from imgbuild.update.project_move import ProjectMove
from imgbuild.values import Arch

REFRESH = "run imgbuild init --refresh"
SHOWN_CHANGES = 20  # findings that are printed; --json has all


class MovedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row before and after a move: published target, digest, differences and new findings.

    `required` lists the packages that the project requires directly. `hosts` lists changes of the
    requirements for machines.
    """

    target: str
    before: str
    after: str
    digest: str
    required: tuple[str, ...]
    hosts: tuple[HostChange, ...]
    diff: ImageDiff
    findings: tuple[CodeFinding, ...] = ()


def compare_published(planned: ProjectMove, arches: Collection[Arch]) -> ImageDiff | None:
    """Return the difference between the two published targets on `arches`, from their locks.

    Return None if the digests in the project cannot be read: the lock of another format, or no
    architecture of the rows.
    """
    sides = []
    for each in (planned.old, planned.new):
        try:
            path = each.folder / published.DIGESTS_FILE
            digests = image_digests.read_digests_at(path, each.lock, hint=REFRESH)
        except ImgbuildError as error:
            console.detail(error.message)
            return None
        side = image_diff.lock_side(each.lock, digests)
        content = {arch: one for arch, one in side.arch.items() if arch in arches}
        sides.append(msgspec.structs.replace(side, arch=content))
    return image_diff.diff_sides(*sides) if sides[1].arch else None


def compare_moved_row(name: str, before: Session, after: Session, planned: ProjectMove) -> MovedRow:
    old = _previous_lock(before, name, planned)
    lock = lock_file.read_lock(after.project.images, name)
    new = (lock, image_digests.read_digests(after.project.images, lock))
    difference = image_diff.diff_locked_targets(old, new)
    return MovedRow(
        target=name,
        before=planned.old.name,
        after=planned.new.name,
        digest=new[1].digest,
        diff=difference,
        required=_required_packages(name, after),
        hosts=next(iter(difference.arch.values())).hosts,
        findings=_new_findings(
            before.project,
            (f"{name} on {planned.old.name}", open_inputs(before), old[0]),
            (f"{name} on {planned.new.name}, the new lock", open_inputs(after), lock),
        ),
    )


def _required_packages(name: str, session: Session) -> tuple[str, ...]:
    item = project_row(session.matrix, name)
    if item is None:
        return ()
    return tuple(sorted({*item.requirements.direct_packages, *item.row.pins, *item.row.requires}))


def _previous_lock(before: Session, name: str, planned: ProjectMove) -> tuple[Lock, TargetDigests]:
    """Read the previous lock and digests of the row or, without a lock, of the published target.

    The lock of the published target has the name of the row, which the matrix defines.
    """
    images = before.project.images
    try:
        lock = lock_file.read_lock(images, name)
        return lock, image_digests.read_digests(images, lock)
    except ImgbuildError:
        old = planned.old
        path = old.folder / published.DIGESTS_FILE
        digests = image_digests.read_digests_at(path, old.lock, hint=REFRESH)
        return msgspec.structs.replace(old.lock, target=name), digests


def _new_findings(
    project: Project, old: tuple[str, Inputs, Lock], new: tuple[str, Inputs, Lock]
) -> tuple[CodeFinding, ...]:
    code = audit_code.read_code([project.code])
    if not code.texts:
        return ()
    try:
        former, present = (
            audit_code.audit_locked(lock, next(iter(lock.arch)), inputs, code, title=title).findings
            for title, inputs, lock in (old, new)
        )
    except FetchFailed as error:
        console.warn(f"the project's code was not audited: {error.message}")
        return ()
    before = {_place(each) for each in former}
    return tuple(
        each
        for each in present
        if each.severity is not Severity.NOTE and _place(each) not in before
    )


def _place(finding: CodeFinding) -> tuple[str, int, int, int, str]:
    return (finding.file, finding.cell, finding.line, finding.column, finding.code)


def moved_row_lines(
    row: MovedRow, difference: ImageDiff | None = None, *, whole: bool
) -> Iterator[str]:
    """Yield the differences as text, without those of the published targets in `difference`.

    Without `whole`, only required packages and those with a column in `imgbuild list` are included.
    """
    renewed = row.before == row.after
    yield (
        f"{row.target}: {row.after}, newest lock"
        if renewed
        else (f"{row.target}: {row.before} → {row.after}")
    )
    base = difference.arch if difference is not None else {}
    for host in row.hosts:
        if not any(host in part.hosts for part in base.values()):
            yield from host_lines(host)
    names = NAMED_PACKAGES.union(row.required)
    for arch, part in row.diff.arch.items():
        known = base[arch].changes if arch in base else ()
        listed = image_diff.listed_changes(base[arch], whole=whole) if arch in base else []
        own = [each for each in part.changes if each not in known]
        besides = " besides those of the published targets" if arch in base else ""
        yield (
            f"{arch}: {size_text(part.pull)} of {size_text(part.total)} to pull;"
            f" {format_count(len(own), 'package')} changed, added or removed{besides}"
        )
        changed = {each.package for each in part.changes}
        for package in (each.package for each in listed if each.package not in changed):
            yield f"  {package}: no change in {row.target}"
        left = [each for each in part.changes if each not in listed]
        shown = [each for each in left if whole or each.package in names]
        yield from (f"  {image_diff.change_text(change)}" for change in shown)
        if hidden := [each for each in own if each not in shown]:
            yield f"  and {format_count(len(hidden), 'other')}; to list all, add --packages"
    yield f"new findings in the project's code: {len(row.findings) or 'none'}"
    for finding in row.findings[:SHOWN_CHANGES]:
        yield f"  {finding.where}: {finding.severity}: {finding.message}"
    if len(row.findings) > SHOWN_CHANGES:
        yield (
            f"  and {len(row.findings) - SHOWN_CHANGES} more; to list them, run: imgbuild audit "
            f"{row.target}"
        )
