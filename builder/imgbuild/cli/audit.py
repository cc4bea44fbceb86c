"""`imgbuild audit`: do packages work together, as far as their files show without a GPU."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated

import typer

from imgbuild.cache import prune
from imgbuild.cli._audit_lines import lines, with_cases
from imgbuild.cli._audit_set import PackageSetOptions
from imgbuild.cli._help import AuditCommand, command
from imgbuild.cli._options import KEEP, JUnit, Offline
from imgbuild.cli._output import answer, folded
from imgbuild.cli._sessions import select_targets
from imgbuild.cli._targets import Selection
from imgbuild.cli._verb import OUTPUT, option, verb
from imgbuild.codec import write_bytes
from imgbuild.errors import AuditFailed, InputError, LockStale
from imgbuild.lock import lock as locks
from imgbuild.matrix.select import Selected
from imgbuild.pipeline import audit_lock
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.session import Options, Session, open_session
from imgbuild.report import Relation, Report, Severity
from imgbuild.smoke import junit as junits
from imgbuild.system.console import console

WAIVE = "change versions, or accept the finding under `waive:` in matrix.yaml"
RESOLVE = "change versions; `imgbuild resolve` finds compatible ones"
INCOMPLETE = (
    "packages are missing from the file: add them, or, to audit these alone, name them: imgbuild"
    " audit NAME==VERSION ..."
)


class Check(enum.StrEnum):
    """The checks of the audit, in the order in which they run."""

    METADATA = "metadata"
    ELF = "elf"
    CUDA = "cuda"
    IMPORTS = "imports"
    CALLS = "calls"
    SUPPORT = "support"
    RULES = "rules"


@verb
def audit(
    selection: Selection,
    packages: PackageSetOptions,
    select: Annotated[
        list[Check] | None, option("--select", "Run this check only; repeatable.", often=True)
    ] = None,
    notes: Annotated[
        bool,
        option(
            "--notes",
            "Also print notes: problems in code that the usual use of a package does not run.",
            panel=OUTPUT,
            often=True,
        ),
    ] = False,
    junit: JUnit = None,
    keep: Annotated[
        bool | None, KEEP("Applies to wheels. Default: keep for one target, remove for several.")
    ] = None,
    offline: Offline = False,
) -> None:
    """Check that targets, versions or installed packages work together.

    Reads files, runs nothing of them, and needs no GPU. Packages may be targets, versions
    (NAME==VERSION, NAME[EXTRA]==VERSION or 'NAME @ file:///PATH.whl'), files of versions, or what
    is installed. Versions that are named here are a partial set: the absence of other packages is
    reported only if an EXTRA requires them. Accepted findings are listed in the matrix under
    `waive:`.

    Prints findings, what was not looked at, and counts. Exit status 4 if there is an error, or if
    a package that is named or installed could not be read.

    Examples:

        imgbuild audit cu124-vllm

        imgbuild audit --all --json

        imgbuild audit transformers==5.0.0 lm-format-enforcer==0.11.3

        imgbuild audit --requirements pins.txt --python 3.12 --glibc 2.28

        imgbuild audit --environment .venv
    """
    checks = tuple(each.value for each in select or Check)
    pinned = [name for name in selection.named if "==" in name or "@" in name]
    free = bool(pinned or packages.requirements) or packages.environment is not None
    if free:
        _refuse(packages, pinned, selection, keep=keep)
        found = packages.audit(pinned, selection.arches, selection.matrix, checks, offline=offline)
        reports = [found]
    else:
        for given in packages.given():
            message = f"{given} does not apply to locked targets"
            raise InputError(message, hint="leave it out, or name versions or --environment")
        reports = _audit_targets(
            selection, checks, keep=keep, offline=offline, again=packages.again
        )
    if junit is not None:
        cases = [with_cases(report, checks) for report in reports]
        write_bytes(junit, junits.document(cases))
    answer(reports, folded(lines(reports, notes=notes)))
    hint = RESOLVE if free else WAIVE
    if packages.requirements and _lacks_packages(reports[0]):
        hint = INCOMPLETE
    _end(reports, hint)


def _lacks_packages(report: Report) -> bool:
    """Whether most errors are imports of packages that the package set does not have."""
    errors = [one.evidence for one in report.findings if one.severity is Severity.ERROR]
    lacking = [one for one in errors if one is not None and one.relation is Relation.PACKAGE]
    return 2 * len(lacking) > len(errors)


def _end(reports: Sequence[Report], hint: str) -> None:
    """AuditFailed if there is an error, or if a package was not read."""
    failed = [report for report in reports if not report.ok]
    if not failed:
        return
    if console.json:  # the answer is on stdout already
        raise typer.Exit(AuditFailed.exit_code)
    errors = [
        f"{report.target} {report.arch}"
        for report in failed
        if any(one.severity is Severity.ERROR for one in report.findings)
    ]
    if errors:
        message = f"the audit found errors in {', '.join(errors)}"
        raise AuditFailed(message, hint=hint)
    unread = [one.what for report in failed for one in report.unread if one.required]
    message = f"not all packages were read: {', '.join(unread)}"
    raise AuditFailed(message, hint="the lines `not read` above say why")


def _refuse(
    packages: PackageSetOptions, pinned: Sequence[str], selection: Selection, *, keep: bool | None
) -> None:
    """InputError for two kinds of package sets at once, and for --keep or --drop."""
    targets = [name for name in selection.named if name not in pinned]
    given = [
        *pinned[:1],
        *(f"--requirements {path}" for path in packages.requirements or ()),
        *(["--environment"] if packages.environment is not None else []),
    ]
    if targets or selection.everything:
        message = f"{given[0]} and targets cannot be combined"
        raise InputError(message, hint="give either versions or targets")
    if packages.environment is not None and len(given) > 1:
        message = f"{given[0]} and --environment cannot be combined"
        raise InputError(message, hint="give either versions or an environment")
    if keep is not None:
        message = f"{'--keep' if keep else '--drop'}: only wheels of targets are downloaded"
        raise InputError(message, hint="leave it out")


def _audit_targets(
    selection: Selection,
    checks: Sequence[str],
    *,
    keep: bool | None,
    offline: bool,
    again: bool,
) -> list[Report]:
    session = open_session(selection.matrix, Options(offline=offline))
    selected = _locked(session, select_targets(selection, session), selection.named)
    inputs = open_inputs(session)
    drop = len(selected) > 1 if keep is None else not keep
    reports = [
        audit_lock.audit_target(
            session.project,
            session.matrix,
            item.name,
            each,
            inputs,
            checks=checks,
            drop=drop,
            again=again,
        )
        for item in selected
        for each in item.arches
    ]
    prune.trim(inputs.store)
    return reports


def _locked(
    session: Session, selected: Sequence[Selected], wanted: Sequence[str]
) -> list[Selected]:
    """`selected` without the targets that have no lock to read, unless they are named themselves.

    LockStale for one that is named, and if none is left.
    """
    kept, skipped = [], []
    for item in selected:
        try:
            locks.read_lock(session.project.images, item.name)
        except LockStale as error:
            if item.name in wanted:
                raise
            skipped.append(item.name)
            console.warn(f"{item.name} skipped: {error.message}")
        else:
            kept.append(item)
    if not kept:
        message = f"no selected target is locked: {', '.join(skipped)}"
        raise LockStale(message, hint=f"make a lock with: imgbuild lock {skipped[0]}")
    return kept


COMMAND = command(audit, cls=AuditCommand)
