"""Audits locked targets, and reports those that could not be audited."""

# A separate module: the size of `audit`.
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from imgbuild.assemble.inputs import Inputs
from imgbuild.cache import prune
from imgbuild.cli._sessions import select_targets
from imgbuild.cli._targets import SelectionOptions
from imgbuild.errors import ImgbuildError, Interrupted, LockStale
from imgbuild.lock import lock_file
from imgbuild.lock.published import project_row
from imgbuild.matrix.select import Selected
from imgbuild.pipeline import audit_code, audit_lock
from imgbuild.pipeline.audit_code import UserCode
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.session import Session, SessionOptions, open_session
from imgbuild.report import Report
from imgbuild.system.console import console
from imgbuild.values import Arch, native_arch


class TargetAudits(msgspec.Struct, frozen=True, kw_only=True):
    """The reports, and the errors of targets that could not be audited ("NAME ARCH")."""

    reports: list[Report] = []
    failed: dict[str, ImgbuildError] = {}

    def add(
        self, selected: Iterable[Selected], audit: Callable[[Selected, Arch], Report]
    ) -> TargetAudits:
        """Add the audits of all architectures, except those that failed before.

        An error is raised if there is only one audit.
        """
        reports, failed = list(self.reports), dict(self.failed)
        each = [
            (item, arch)
            for item in selected
            for arch in item.arches
            if f"{item.name} {arch}" not in failed
        ]
        for item, arch in each:
            try:
                reports.append(audit(item, arch))
            except Interrupted:
                raise
            except ImgbuildError as error:
                if len(each) == 1 and not reports:
                    raise
                console.error(f"{item.name} {arch}: {error.message}", hint=error.hint)
                failed[f"{item.name} {arch}"] = error
        return TargetAudits(reports=reports, failed=failed)


def audit_targets(
    selection: SelectionOptions,
    checks: Sequence[str],
    *,
    keep: bool | None,
    offline: bool,
    again: bool,
    code: UserCode | None,
) -> TargetAudits:
    """Audit the selected targets or, with `code`, the code against these.

    After an error, the other targets are still audited.
    """
    session = open_session(
        selection.matrix, SessionOptions(offline=offline), selection.named_targets
    )
    chosen = select_targets(selection, session)
    selected = _targets_with_lock(session, chosen, selection.named_targets, code=code is not None)
    inputs = open_inputs(session)
    drop = len(selected) > 1 if keep is None else not keep
    if code is not None:
        return _audit_code(TargetAudits(), session, _native(selection, selected), inputs, code)

    def _audit(item: Selected, arch: Arch) -> Report:
        return audit_lock.audit_target(
            session.project, item.name, arch, inputs, checks=checks, drop=drop, again=again
        )

    audits = TargetAudits().add(selected, _audit)
    rows = [item for item in selected if project_row(session.matrix, item.name) is not None]
    if rows:
        code = audit_code.read_code([session.project.code], again=again)
        audits = _audit_code(audits, session, _native(selection, rows), inputs, code)
    prune.trim_cache(inputs.store)
    return audits


def _audit_code(
    audits: TargetAudits,
    session: Session,
    selected: Sequence[Selected],
    inputs: Inputs,
    code: UserCode,
) -> TargetAudits:
    def _audit(item: Selected, arch: Arch) -> Report:
        lock = lock_file.read_lock(session.project.images, item.name)
        return audit_code.audit_locked(lock, arch, inputs, code)

    return audits.add(selected, _audit)


def _native(selection: SelectionOptions, selected: Sequence[Selected]) -> list[Selected]:
    """Restrict targets to the selected architecture or, by default, to that of this machine."""
    if selection.arches:
        return list(selected)
    return [msgspec.structs.replace(item, arches=native_arch(item.arches)) for item in selected]


def _targets_with_lock(
    session: Session, selected: Sequence[Selected], patterns: Sequence[str], *, code: bool
) -> list[Selected]:
    """Return the targets of `selected` that have a readable lock.

    Raises LockStale if a target without a readable lock is selected by name, or if no target is
    left.
    """
    locked, skipped = [], []
    for item in selected:
        try:
            lock_file.read_lock(session.project.images, item.name)
        except LockStale as error:
            if item.name in patterns:
                raise
            skipped.append(item.name)
            console.warn(f"{item.name} skipped: {error.message}")
        else:
            locked.append(item)
    if not locked:
        message = f"no selected target is locked: {', '.join(skipped)}"
        hint = f"run imgbuild lock {skipped[0]}"
        row = project_row(session.matrix, skipped[0])
        if code and row is not None:
            below = row.published.lock.target
            hint += (
                f"; to audit with the published packages instead, run: imgbuild audit {below} "
                "--code PATH"
            )
        raise LockStale(message, hint=hint)
    return locked
