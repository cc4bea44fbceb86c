"""Checks for versions that another package rejects or warns about: the check `support`.

Exceptions on the main path are errors. Exceptions elsewhere, or only for some data, are notes. A
warning that the code issues is reported as a warning.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.audit.checks import support_files
from imgbuild.audit.checks.findings import FindingPlace, finding_at, finding_place, sort_findings
from imgbuild.audit.checks.refusals import ImportRefusal, import_refusals
from imgbuild.audit.main_path.closure import Level, MainPath
from imgbuild.audit.main_path.guards import GuardState, evaluate_guard
from imgbuild.audit.names.scopes import module_scopes
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.audit.source.comparisons import OPPOSITE_OPERATORS
from imgbuild.audit.source.facts import Guard, ModuleFacts, VersionWindow
from imgbuild.report import ConflictRelation, Finding, Severity
from imgbuild.system.syntax import is_within

CHECK = "support"
_COMPARISON = re.compile(r"(==|!=|\^=|!\^=)@(\w+)")
_PREDICATE = re.compile(r"_?(?:has|is|have)_(\w+?)(?:_available|_installed)?")
_CLAUSE = re.compile(r"(<=|>=|==|!=|<|>)([^,]+)")


def check_support(
    package_set: PackageSet, path: MainPath, published: Collection[str] = ()
) -> list[Finding]:
    """Return findings for refused imports, and for code that rejects an installed version.

    `published` packages were checked together earlier (see `import_refusals`).
    """
    findings = [
        finding
        for facts in path.module_facts(package_set)
        for window in facts.windows
        for finding in _window_findings(package_set, path, facts, window)
    ]
    locations = {
        f"{at.file}:{at.line}" for finding in findings if (at := finding.evidence) is not None
    }
    findings += [
        _refusal(package_set, refusal)
        for refusal in import_refusals(package_set, path, published)
        if refusal.at not in locations
    ]
    for declared in support_files.violated_declarations(package_set):
        place = FindingPlace(
            declared.package,
            package_set.version(declared.package) or "",
            declared.file,
            declared.line,
        )
        severity = Severity.ERROR if declared.raises else Severity.WARNING
        findings.append(
            _finding(package_set, place, declared.other, declared.text, declared.spec, severity)
        )
    return sort_findings(findings)


def _refusal(package_set: PackageSet, refusal: ImportRefusal) -> Finding:
    version = package_set.version(refusal.cause)
    text = f"raises {refusal.raised} when it is imported ({refusal.at})"
    cause = refusal.cause
    text += f" with {cause} {version}" if version else f" because {cause} is not installed"
    finding = _finding(package_set, refusal.place, refusal.cause, text, "", Severity.ERROR)
    if version or finding.evidence is None:
        return finding
    evidence = msgspec.structs.replace(finding.evidence, other="", subject=refusal.cause)
    remedy = f"add the package that provides {refusal.cause} to the target's requirements"
    return msgspec.structs.replace(finding, evidence=evidence, remedy=remedy)


def _window_findings(
    package_set: PackageSet, path: MainPath, facts: ModuleFacts, window: VersionWindow
) -> Iterator[Finding]:
    about = window.guards[-1]
    other, version = subject_package(package_set, about.subject)
    if version is None:
        return
    states = [guard_state(package_set, guard) for guard in window.guards]
    if GuardState.SKIPPED in states or states[-1] is not GuardState.RUNS or _is_caught(window):
        return
    here = module_scopes(facts)
    runner = here.scope_runner(window.scope)
    how = path.reached(facts.module, runner)
    sure = not {GuardState.UNKNOWN, GuardState.DATA} & set(states)
    sure = sure and how is not None and how.level < Level.REMOTE
    if window.outcome == "warn" and not sure:
        return
    if here.is_method(runner) and window.outcome == "raise":
        sure = sure and path.calls(facts.module, runner)
    place = finding_place(package_set, facts, window.line, how.entry if how else "")
    if place is None or place.package == other:
        return
    severity = Severity.NOTE
    if sure:
        severity = Severity.ERROR if window.outcome == "raise" else Severity.WARNING
    spec = allowed_versions(package_set, about)
    where = f"in {window.scope}" if window.scope else "when it is imported"
    verb = f"raises {window.name}" if window.outcome == "raise" else "warns"
    text = f"{verb} {where} with {other} {version}"
    text += f": it requires {other}{spec}" if spec else ""
    if not sure and GuardState.DATA in states:
        text += " (in some cases)"
    yield _finding(package_set, place, other, text, spec, severity)


def _is_caught(window: VersionWindow) -> bool:
    if window.outcome == "warn":
        return False
    names = {window.name, "Exception", "BaseException", ""}
    if window.name == "ModuleNotFoundError":
        names.add("ImportError")
    caught = {
        name
        for guard in window.guards
        if guard.kind == "handled" and not guard.spec
        for name in re.split(r"[,\s|]+", guard.subject)
    }
    return not names.isdisjoint(caught)


def subject_package(package_set: PackageSet, subject: str) -> tuple[str, str | None]:
    """Return the package to which a guard's subject refers, and its version.

    The subject is a package or a module.
    """
    version = package_set.version(subject)
    if version is not None:
        return subject.replace("_", "-"), version
    owner = package_set.owner(subject)
    return (owner or subject), (package_set.version(owner) if owner is not None else None)


def guard_state(package_set: PackageSet, guard: Guard) -> GuardState:
    """Return whether the guard of a version window holds in `package_set`."""
    if guard.kind == "version":
        version = subject_package(package_set, guard.subject)[1]
        compared = _COMPARISON.fullmatch(guard.spec)
        if compared is not None:
            return _comparison_state(package_set, version, compared[1], compared[2])
        if guard.spec.startswith("!") and not guard.spec.startswith("!="):
            if version is None:
                return GuardState.UNKNOWN
            return GuardState.SKIPPED if is_within(version, guard.spec[1:]) else GuardState.RUNS
    guard_state = evaluate_guard(package_set, guard)
    if guard_state in (GuardState.UNKNOWN, GuardState.DATA) and not guard.spec:
        # A predicate of the module itself, about an installed package.
        predicate = _PREDICATE.fullmatch(guard.subject.split(":", 2)[-1].partition("(")[0])
        if predicate is not None and subject_package(package_set, predicate[1])[1] is not None:
            return GuardState.RUNS
    return guard_state


def _comparison_state(
    package_set: PackageSet, version: str | None, sign: str, subject: str
) -> GuardState:
    other = subject_package(package_set, subject)[1]
    if version is None or other is None:
        return GuardState.UNKNOWN
    if sign.endswith("^="):
        same = version.startswith(Version(other).public)
    else:
        same = Version(version) == Version(other)
    return GuardState.RUNS if same != sign.startswith("!") else GuardState.SKIPPED


def allowed_versions(package_set: PackageSet, guard: Guard) -> str:
    """Return the versions that a refusal's guard allows, as a specifier, or "" for none."""
    compared = _COMPARISON.fullmatch(guard.spec)
    if compared is not None:
        version = subject_package(package_set, compared[2])[1]
        return f"=={version}" if version is not None and compared[1].startswith("!") else ""
    if guard.spec.startswith("!") and not guard.spec.startswith("!="):
        return str(SpecifierSet(guard.spec[1:]))
    clause = _CLAUSE.fullmatch(guard.spec)
    return OPPOSITE_OPERATORS[clause[1]] + clause[2] if clause is not None else ""


def _finding(
    package_set: PackageSet,
    place: FindingPlace,
    other: str,
    text: str,
    spec: str,
    severity: Severity,
) -> Finding:
    version = package_set.version(other) or ""
    message = f"{place.package} {place.version} {text}"
    if severity is Severity.ERROR and place.entry:
        message += f" (used by {place.entry})"
    alternative = f"{other}{spec}" if spec else f"another {other}"
    return finding_at(
        place,
        CHECK,
        severity,
        message,
        relation=ConflictRelation.WINDOW,
        remedy=f"choose {alternative}, or another version of {place.package}",
        subject=f"{other} {version}",
        other=other,
        other_version=version,
        spec=spec,
    )
