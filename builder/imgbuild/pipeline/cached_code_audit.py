"""Audits a user's code with cached facts, to find compatible targets and print warnings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, NothingSelected
from imgbuild.lock import lock_file, published
from imgbuild.lock.resolution import installed_wheels
from imgbuild.pipeline.session import Session
from imgbuild.report import Severity
from imgbuild.system.amounts import format_count
from imgbuild.system.console import console
from imgbuild.values import Arch

if TYPE_CHECKING:
    from imgbuild.audit.code.model import CodeFinding
    from imgbuild.lock.lock_file import Lock
    from imgbuild.pipeline.audit_code import UserCode

SHOWN_FINDINGS = 3  # errors that are printed as warnings
RUN_SECONDS = 0.8  # time limit for `imgbuild run`, and the least for `imgbuild lock`
LOCK_SECONDS = 20.0  # the longest time limit for `imgbuild lock`
LOCK_SHARE = 0.1  # the time limit for `imgbuild lock`, as a share of the time that it took
# Programs whose command lines are not read, except for `-m`.
INTERPRETERS = re.compile(r"(?:.*/)?(?:python[\d.]*|(?:ba|da|z)?sh|true)")


class CodeFit(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a user's code is compatible with a target, according to cached facts.

    The facts of the packages `compared` and `unread` are not cached. The uses of the former were
    compared with the bundled tables of releases, which do not cover those of the latter. `fetch`
    is the size of the wheels of both in bytes. `command` is the command that completes the check,
    or "". `arch` is None if the target is not locked.
    """

    target: str
    arch: Arch | None
    state: Literal["runs", "fails", "unknown", "other architecture", "not locked"]
    errors: int = 0
    warnings: int = 0
    findings: tuple[CodeFinding, ...] = ()
    compared: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    fetch: int = 0
    command: str = ""


def check_code_fits(
    session: Session,
    names: Sequence[str],
    arches: Sequence[Arch],
    paths: Sequence[Path],
    *,
    fetch: bool = False,
) -> list[CodeFit]:
    """Check the code at `paths` against the targets `names`, and sort the best first.

    Targets that are not locked, or only for other architectures, are last. Only with `fetch`, facts
    that are not cached are read from the indexes; if that fails, a warning is printed. Raises
    NothingSelected if there is no code at `paths`.
    """
    from imgbuild.pipeline import audit_code

    code, store = audit_code.read_code(paths), Store.open()
    if not code.texts:
        message = f"{', '.join(map(str, paths))}: no code found"
        hint = (
            "specify Python files, notebooks, scripts or YAML files; to check requirements, "
            "run: imgbuild resolve -r FILE"
        )
        raise NothingSelected(message, hint=hint)
    locked = set(session.project.locked_targets())
    results = []
    code_options = shlex.join(word for path in paths for word in ("--code", str(path)))
    for name in names:
        if name not in locked:
            command = f"imgbuild lock {shlex.quote(name)}"
            results.append(CodeFit(target=name, arch=None, state="not locked", command=command))
            continue
        lock = lock_file.read_lock(session.project.images, name)
        compared = [arch for arch in lock.arch if arch in arches]
        for arch in compared:
            command = f"imgbuild audit {shlex.quote(name)} --arch {arch} {code_options}"
            fit = _check_target_fit(lock, arch, store, code, command)
            results.append(_read_whole(fit, lock, session, code) if fetch and fit.fetch else fit)
        for arch in [] if compared else lock.arch:
            command = f"imgbuild audit {shlex.quote(name)} --arch {arch} {code_options}"
            fit = CodeFit(target=name, arch=arch, state="other architecture", command=command)
            results.append(fit)
    order = ("runs", "unknown", "fails", "other architecture", "not locked")
    return sorted(
        results,
        key=lambda fit: (order.index(fit.state), bool(fit.fetch), fit.errors, fit.warnings),
    )


def _check_target_fit(
    lock: Lock, arch: Arch, store: Store, code: UserCode, command: str
) -> CodeFit:
    from imgbuild.pipeline import audit_code

    every, lacking = audit_code.cached_findings(lock, arch, store, code)
    by_release = audit_code.compare_releases(lock, arch, store, code, lacking)
    places = {(each.file, each.line, each.code) for each in every}
    every += [
        each for each in by_release.findings if (each.file, each.line, each.code) not in places
    ]
    sizes = {wheel.package: wheel.size for wheel in installed_wheels(lock.arch[arch])}
    fit = CodeFit(
        target=lock.target,
        arch=arch,
        state="runs",
        compared=tuple(name for name in lacking if name in by_release.compared),
        unread=tuple(name for name in lacking if name not in by_release.compared),
        fetch=sum(sizes.get(name, 0) for name in lacking),
        command=command if lacking else "",
    )
    return _with_findings(fit, every)


def _with_findings(fit: CodeFit, every: Sequence[CodeFinding]) -> CodeFit:
    findings = tuple(each for each in every if each.severity is not Severity.NOTE)
    errors = sum(each.severity is Severity.ERROR for each in findings)
    return msgspec.structs.replace(
        fit,
        state="fails" if errors else "unknown" if fit.unread else "runs",
        errors=errors,
        warnings=len(findings) - errors,
        findings=findings,
    )


def _read_whole(fit: CodeFit, lock: Lock, session: Session, code: UserCode) -> CodeFit:
    """Complete a check by reading the packages from the indexes."""
    from imgbuild.pipeline import audit_code
    from imgbuild.pipeline.inputs import open_inputs

    try:
        report = audit_code.audit_locked(lock, fit.arch or Arch.X86_64, open_inputs(session), code)
    except FetchFailed as error:
        console.warn(f"{fit.target}: {error.message}")
        return fit
    left = tuple(each.what for each in report.unread if each.what in fit.unread)
    whole = msgspec.structs.replace(fit, compared=(), unread=left, fetch=0, command="")
    return _with_findings(whole, report.findings)


def warn_of_command_errors(
    session: Session,
    name: str,
    arch: Arch,
    words: Sequence[str] = (),
    env: Mapping[str, str] = {},
) -> None:
    """Warn about errors in a command, its environment variables and the project's code.

    Only errors that are found within one second are reported.
    """
    project = published.project_row(session.matrix, name) is not None
    settings = [f"{key}={value}" for key, value in env.items()]
    is_read = settings or "-m" in words or (words and not INTERPRETERS.fullmatch(words[0]))
    command = shlex.join([*settings, *words]) if is_read else ""
    if not project and not command:
        return
    from imgbuild.pipeline import audit_code

    errors = audit_code.find_run_errors(
        session, name, arch, command, project=project, seconds=RUN_SECONDS
    )
    _print_errors(name, errors or [])


def warn_of_code_errors(session: Session, name: str, arch: Arch, took: float) -> None:
    """Warn about errors in a project's code after a lock that took `took` seconds.

    The audit takes at most `LOCK_SHARE` of that time, or a second for a lock that is up to date.
    """
    if published.project_row(session.matrix, name) is None:
        return
    from imgbuild.pipeline import audit_code

    seconds = max(RUN_SECONDS, min(LOCK_SECONDS, LOCK_SHARE * took))
    with console.step(f"auditing the code of {name}"):
        errors = audit_code.find_run_errors(session, name, arch, "", project=True, seconds=seconds)
    if errors is None:
        console.info(f"the audit of the code was not completed; to run it: imgbuild audit {name}")
    _print_errors(name, errors or [])


def _print_errors(name: str, errors: Sequence[CodeFinding]) -> None:
    places: dict[str, list[CodeFinding]] = {}
    for finding in errors:
        text = ": ".join(filter(None, (finding.message, finding.remedy)))
        places.setdefault(f"{finding.code} {text}", []).append(finding)
    ordered = sorted(places.items(), key=lambda item: -len(item[1]))
    for text, same in ordered[:SHOWN_FINDINGS]:
        more = f" (and in {format_count(len(same) - 1, 'other place')})" if same[1:] else ""
        console.warn(f"{same[0].where}: {text}{more}")
    if left := sum(len(same) for _, same in ordered[SHOWN_FINDINGS:]):
        console.warn(f"{left} more errors; to list all, run: imgbuild audit {name}")
