"""`imgbuild audit`: do the files of a lock work together, as far as files show without a GPU."""

from __future__ import annotations

import enum
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from imgbuild.cli._options import KEEP, PYTHON, JUnit, Offline
from imgbuild.cli._output import answer, count, folded
from imgbuild.cli._targets import Selection
from imgbuild.cli._verb import OUTPUT, SELECT, option, verb
from imgbuild.errors import AuditFailed, InputError, LockStale
from imgbuild.report import Case, Finding, Report, Severity
from imgbuild.system.console import console
from imgbuild.values import Arch

if TYPE_CHECKING:
    from imgbuild.matrix.select import Selected
    from imgbuild.pipeline.audit_lock import PinsAudit
    from imgbuild.pipeline.targets import Session
    from imgbuild.wheel.tags import Tags


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
    requirements: Annotated[
        Path | None,
        option(
            "--requirements -r",
            "Audit this file of pins (name==version) from the default index instead of a target; -"
            " is stdin. Shared objects are not read.",
            metavar="FILE",
            panel=SELECT,
        ),
    ] = None,
    python: Annotated[str | None, PYTHON("For pins. Default: this Python.")] = None,
    select: Annotated[
        list[Check] | None, option("--select", "Run this check only; repeatable.", often=True)
    ] = None,
    notes: Annotated[
        bool,
        option(
            "--notes",
            "Also print notes: problems in code that is not on the main path.",
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
    """Check that the packages of targets, or pins, work together.

    Reads each wheel once, runs nothing of it, and needs no GPU. Exit status 4 if there is an error,
    or if a pinned package could not be read. Accepted findings are listed in the matrix under
    `waive:`. Pins that are named here are a partial set: what else they require is not missed.

    Examples:

        imgbuild audit cu124-vllm

        imgbuild audit --all --json

        imgbuild audit transformers==5.0.0 lm-format-enforcer==0.11.3

        imgbuild audit --requirements pins.txt --python 3.12
    """
    from imgbuild.codec import write_bytes
    from imgbuild.smoke import junit as junits

    checks = tuple(each.value for each in select or Check)
    unread: tuple[str, ...] = ()
    pinned = [name for name in selection.named if "==" in name or "@" in name]
    if requirements is not None or pinned:
        checks = _readable(select)
        _refuse(requirements, pinned, selection)
        _refuse_kept(keep=keep)
        machine = _machine(selection, python)
        found = _audit_pins(requirements, pinned, machine, checks, offline=offline)
        reports, unread = [found.report], found.unread
    else:
        if python is not None:
            message = f"--python {python}: a locked target has its own Python"
            raise InputError(message, hint="leave it out, or name pins")
        reports = _audit_targets(selection, checks, keep=keep, offline=offline)
    if junit is not None:
        cases = [with_cases(report, checks) for report in reports]
        write_bytes(junit, junits.document(cases))
    answer(reports, folded(line for one in reports for line in lines(one, notes=notes)))
    _end(reports, unread)


def _end(reports: Sequence[Report], unread: Sequence[str]) -> None:
    """AuditFailed if there is an error, or if a pinned package was not read."""
    failed = [f"{report.target} {report.arch}" for report in reports if not report.ok]
    if (failed or unread) and console.json:  # the answer is on stdout already
        raise typer.Exit(AuditFailed.exit_code)
    if unread and not failed:
        message = f"not all packages were read: {', '.join(unread)}"
        raise AuditFailed(message, hint="choose versions with wheels for this machine")
    if failed:
        message = f"the audit found errors in {', '.join(failed)}"
        raise AuditFailed(
            message, hint="change versions, or accept the finding under `waive:` in matrix.yaml"
        )


def _refuse(requirements: Path | None, pinned: Sequence[str], selection: Selection) -> None:
    """InputError for pins beside targets, or for more than one architecture."""
    targets = [name for name in selection.named if name not in pinned]
    if targets or selection.everything:
        given = pinned[0] if pinned else f"--requirements {requirements}"
        message = f"{given} and targets cannot be combined"
        raise InputError(message, hint="give either pins or targets")
    if len(selection.arches) > 1:
        message = f"pins are audited on one architecture, not on {', '.join(selection.arches)}"
        raise InputError(message, hint="give --arch once")


def _readable(select: Sequence[Check] | None) -> tuple[str, ...]:
    """The checks that need no whole wheel; InputError if another one is asked for."""
    from imgbuild.learn.loop import READABLE

    for each in select or ():
        if each.value not in READABLE:
            message = f"--select {each.value} needs whole wheels, which are not read of pins"
            raise InputError(message, hint="lock a target of these packages, and audit that")
    return tuple(each.value for each in select) if select else READABLE


def _refuse_kept(*, keep: bool | None) -> None:
    """InputError for `--keep` or `--drop`: an audit of pins downloads no wheel."""
    if keep is not None:
        given = "--keep" if keep else "--drop"
        message = f"{given}: wheels of pins are not downloaded"
        raise InputError(message, hint=f"leave {given} out")


def _pins(requirements: Path | None, pinned: Sequence[str]) -> tuple[str, str]:
    """The pins as lines, and the name of their place."""
    if requirements is None:
        return "\n".join(pinned), "pins"
    try:
        if str(requirements) == "-":
            return "\n".join([*pinned, sys.stdin.read()]), "stdin"
        return "\n".join([*pinned, requirements.read_text(encoding="utf-8")]), requirements.name
    except OSError as error:
        message = f"cannot read {requirements}: {error.strerror}"
        raise InputError(message, hint="name a file of pins") from error
    except UnicodeDecodeError as error:
        message = f"{requirements} is not a text file in UTF-8: byte {error.start} does not fit"
        raise InputError(message, hint="name a file of pins") from error


def _machine(selection: Selection, python: str | None) -> Tags:
    """What the pins are for: --python and --arch, or this Python and this machine."""
    from imgbuild.resolve import request
    from imgbuild.wheel.tags import Tags

    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    version = request.python_of(python) if python is not None else here
    arch = selection.arches[0] if selection.arches else Arch.parse(platform.machine())
    return Tags(python=version, glibc=glibc_of(version, selection.matrix), arch=arch)


def _audit_targets(
    selection: Selection,
    checks: Sequence[str],
    *,
    keep: bool | None,
    offline: bool,
) -> list[Report]:
    from imgbuild.cache import prune
    from imgbuild.pipeline import audit_lock, targets

    session = selection.session(targets.Options(offline=offline))
    selected = _locked(session, selection.of(session), selection.named)
    inputs = session.inputs()
    drop = len(selected) > 1 if keep is None else not keep
    reports = [
        audit_lock.audit_target(
            session.project, session.matrix, item.name, each, inputs, checks=checks, drop=drop
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
    from imgbuild.lock import lock as locks

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


def _audit_pins(
    requirements: Path | None,
    pinned: Sequence[str],
    machine: Tags,
    checks: Sequence[str],
    *,
    offline: bool,
) -> PinsAudit:
    from imgbuild.audit.judge import Terms
    from imgbuild.audit.packages.pinned import read_pins
    from imgbuild.cache.context import Context
    from imgbuild.pipeline import audit_lock
    from imgbuild.solve import uv

    text, name = _pins(requirements, pinned)
    pins = read_pins(text, name, machine)
    index = uv.default_index()
    with console.step(f"auditing {count(len(pins), 'pin')} of {name} for {machine.arch}"):
        context = Context.open(console, offline=offline)
        terms = Terms(target=name)
        return audit_lock.audit_pins(
            pins, machine, index, context, terms, checks, partial=requirements is None
        )


def glibc_of(python: str, matrix: Path | None) -> str:
    """The glibc of the matrix's base that has this Python; any if there is no project."""
    from imgbuild import project
    from imgbuild.audit.packages.pinned import ANY_GLIBC
    from imgbuild.lock.published import load
    from imgbuild.resolve import request

    found = project.find(matrix)
    if not found.writable:
        return ANY_GLIBC
    read = load(found.matrix)
    ask = request.ResolveRequest(requests=(), arches=(), python=python)
    return read.bases[request.base_of(ask, read)].glibc


def lines(report: Report, *, notes: bool) -> Iterator[str]:
    """A report as text: the counts, then errors and warnings, and with `notes` the notes."""
    counts = ", ".join(_count(report, severity) for severity in Severity)
    yield f"{report.target} {report.arch}: {counts}"
    for finding in report.findings:
        if notes or finding.severity is not Severity.NOTE:
            yield from _words(finding)


def _count(report: Report, severity: Severity) -> str:
    number = sum(finding.severity is severity for finding in report.findings)
    return count(number, severity)


def _words(finding: Finding) -> Iterator[str]:
    yield f"  {finding.severity}: {finding.message} [{finding.check}]"
    if finding.where:
        yield f"    at {finding.where}"
    if finding.remedy:
        yield f"    {finding.remedy}"


def with_cases(report: Report, checks: Sequence[str]) -> Report:
    """The report with a case for each check: failed, with the errors' words, if it found one."""
    cases = []
    for check in checks:
        errors = [
            f"{one.message} ({one.where})"
            for one in report.findings
            if one.check == check and one.severity is Severity.ERROR
        ]
        outcome = "failed" if errors else "passed"
        cases.append(Case(name=check, outcome=outcome, seconds=0.0, message="\n".join(errors)))
    return msgspec.structs.replace(report, tier="audit", cases=tuple(cases))
