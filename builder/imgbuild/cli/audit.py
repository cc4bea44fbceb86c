"""`imgbuild audit`: do the files of a lock work together, as far as they tell without a GPU."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from imgbuild.cli import _options
from imgbuild.errors import AuditFailed, InputError, LockStale
from imgbuild.report import Case, Finding, Report, Severity
from imgbuild.system.console import console
from imgbuild.values import Arch

if TYPE_CHECKING:
    from imgbuild.matrix.select import Selected
    from imgbuild.pipeline.targets import Session


class Check(enum.StrEnum):
    """The checks of the audit, in the order in which they run."""

    METADATA = "metadata"
    ELF = "elf"
    CUDA = "cuda"
    IMPORTS = "imports"
    CALLS = "calls"
    SUPPORT = "support"
    RULES = "rules"


Requirements = Annotated[
    Path | None,
    typer.Option(
        "--requirements",
        metavar="FILE",
        help="Audit this file of pins (name==version) in place of a target, from the default"
        " index; wants --python and one --arch. Shared objects are not read.",
        rich_help_panel=_options.SELECT,
        show_default=False,
    ),
]
Python = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="X.Y",
        help="The Python of --requirements.",
        rich_help_panel=_options.SELECT,
        show_default=False,
    ),
]
Checks = Annotated[
    list[Check] | None,
    typer.Option(
        "--check",
        help="Only this check; repeatable.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Notes = Annotated[
    bool,
    typer.Option(
        "--notes",
        help="Show notes too: what cannot work, but lies off the main path.",
        rich_help_panel=_options.TALK,
    ),
]
Junit = Annotated[
    Path | None,
    typer.Option(
        "--junit",
        metavar="FILE",
        help="Write the result as JUnit XML too: a case for each check.",
        rich_help_panel=_options.TALK,
        show_default=False,
    ),
]
Keep = Annotated[
    bool | None,
    typer.Option(
        "--keep/--drop",
        help="Keep wheels that are fetched for this in the cache, or drop each when it is"
        " read. Default: keep for one target, drop for several.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]


def audit(
    names: _options.Names = None,
    target: _options.Targets = None,
    everything: _options.Everything = False,
    arch: _options.Arches = None,
    requirements: Requirements = None,
    python: Python = None,
    check: Checks = None,
    notes: Notes = False,
    junit: Junit = None,
    keep: Keep = None,
    offline: _options.Offline = False,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Check that the files of locked targets work together, as far as files tell.

    Reads each wheel once in the life of the cache, runs nothing of it, needs no GPU. Exit status 4
    if there is an error. A finding that is known and accepted stands in the matrix under `waive:`.

    Examples:

        imgbuild audit cu124-vllm

        imgbuild audit --all --json

        imgbuild audit --requirements pins.txt --python 3.11 --arch x86_64
    """
    from imgbuild.codec import write_bytes
    from imgbuild.smoke import junit as junits

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    wanted = _options.wanted(names, target)
    checks = tuple(each.value for each in check or Check)
    if requirements is not None:
        checks = _readable(requirements, check)
        _refuse(requirements, wanted, arch, python, everything=everything)
        _refuse_kept(requirements, keep=keep)
        each = (arch or [])[0]
        reports = [_audit_pins(requirements, python or "", each, checks, matrix, offline=offline)]
    else:
        if python is not None:
            message = f"--python {python}: a locked target has its own"
            raise InputError(message, hint="leave it out, or name pins with --requirements")
        reports = _audit_targets(
            wanted, arch or [], checks, matrix, everything=everything, keep=keep, offline=offline
        )
    if junit is not None:
        cases = [with_cases(report, checks) for report in reports]
        write_bytes(junit, junits.document(cases))
    _options.answer(
        reports, [line for one in reports for line in lines(one, notes=notes)], json=json
    )
    failed = [f"{report.target} {report.arch}" for report in reports if not report.ok]
    if failed and json:  # the answer has been given; an error of its own would be a second one
        raise typer.Exit(AuditFailed.exit_code)
    if failed:
        message = f"the audit found errors in {', '.join(failed)}"
        raise AuditFailed(message, hint="change the versions, or waive a finding in matrix.yaml")


def _refuse(
    requirements: Path,
    wanted: Sequence[str],
    arch: Sequence[Arch] | None,
    python: str | None,
    *,
    everything: bool,
) -> None:
    """InputError if what goes with `--requirements` is lacking, or what does not is there."""
    if wanted or everything:
        message = f"--requirements {requirements} and targets are two questions"
        raise InputError(message, hint="ask one at a time")
    if python is None or len(arch or []) != 1:
        message = f"--requirements {requirements} is audited for one Python and one architecture"
        raise InputError(message, hint="name them: --python 3.11 --arch x86_64")


def _readable(requirements: Path, check: Sequence[Check] | None) -> tuple[str, ...]:
    """The checks that need no whole wheel; InputError if another one is asked for."""
    from imgbuild.learn.loop import READABLE

    for each in check or ():
        if each.value not in READABLE:
            message = (
                f"--check {each.value}: no shared object of --requirements {requirements} is read"
            )
            raise InputError(message, hint="lock a target of these packages, and audit that")
    return tuple(each.value for each in check) if check else READABLE


def _refuse_kept(requirements: Path, *, keep: bool | None) -> None:
    """InputError for `--keep` or `--drop`: an audit of `--requirements` downloads no wheel."""
    if keep is not None:
        option = "--keep" if keep else "--drop"
        message = f"{option}: no wheel of --requirements {requirements} is downloaded"
        raise InputError(message, hint=f"leave {option} out: only what is read of them travels")


def _audit_targets(
    wanted: Sequence[str],
    arches: Sequence[Arch],
    checks: Sequence[str],
    matrix: Path | None,
    *,
    everything: bool,
    keep: bool | None,
    offline: bool,
) -> list[Report]:
    from imgbuild.cache import prune
    from imgbuild.pipeline import audit_lock, targets

    session = targets.open_session(matrix, targets.Options(offline=offline))
    chosen = session.select(wanted, everything=everything, arches=arches)
    selected = _locked(session, chosen, wanted)
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

    kept, passed = [], []
    for item in selected:
        try:
            locks.read_lock(session.project.images, item.name)
        except LockStale as error:
            if item.name in wanted:
                raise
            passed.append(item.name)
            console.warn(f"{item.name} is passed over: {error.message}")
        else:
            kept.append(item)
    if not kept:
        message = f"none of what was selected is locked: {', '.join(passed)}"
        raise LockStale(message, hint=f"make a lock with: imgbuild lock {passed[0]}")
    return kept


def _audit_pins(
    path: Path,
    python: str,
    arch: Arch,
    checks: Sequence[str],
    matrix: Path | None,
    *,
    offline: bool,
) -> Report:
    from imgbuild.audit.judge import Terms
    from imgbuild.audit.packages.pinned import read_pins
    from imgbuild.cache.context import Context
    from imgbuild.pipeline import audit_lock
    from imgbuild.resolve import request
    from imgbuild.solve import uv
    from imgbuild.wheel.tags import Tags

    python = request.python_of(python)
    machine = Tags(python=python, glibc=glibc_of(python, matrix), arch=arch)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path}: cannot be read as text: {error}"
        raise InputError(message, hint="name a file of pins") from error
    pins = read_pins(text, str(path), machine)
    index = uv.default_index()
    with console.step(f"auditing {len(pins)} pins of {path.name} for {arch}"):
        context = Context.open(console, offline=offline)
        terms = Terms(target=path.name)
        return audit_lock.audit_pins(pins, machine, index, context, terms, checks)


def glibc_of(python: str, matrix: Path | None) -> str:
    """The glibc of the matrix's base that has this Python; any where there is no matrix."""
    from imgbuild import project
    from imgbuild.audit.packages.pinned import ANY_GLIBC
    from imgbuild.lock.published import load
    from imgbuild.resolve import request

    try:
        found = project.find(matrix)
    except InputError:
        if matrix is not None:
            raise
        return ANY_GLIBC
    read = load(found.matrix)
    ask = request.ResolveRequest(requests=(), arches=(), python=python)
    return read.bases[request.base_of(ask, read)].glibc


def lines(report: Report, *, notes: bool) -> Iterator[str]:
    """A report for people: the counts, then errors and warnings, and notes where asked for."""
    counts = ", ".join(_count(report, severity) for severity in Severity)
    yield f"{report.target} {report.arch}: {counts}"
    for finding in report.findings:
        if notes or finding.severity is not Severity.NOTE:
            yield from _words(finding)


def _count(report: Report, severity: Severity) -> str:
    number = sum(finding.severity is severity for finding in report.findings)
    return f"{number} {severity}{'' if number == 1 else 's'}"


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
