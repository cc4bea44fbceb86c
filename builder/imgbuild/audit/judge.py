"""Runs all checks on a package set, applies waivers and returns the findings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, get_args

import msgspec

from imgbuild.audit.checks.findings import sort_findings
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.audit.source.facts import ElfFacts
from imgbuild.errors import InputError
from imgbuild.matrix.accepted import Waiver
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.fields import Check
from imgbuild.report import ConflictRelation, Finding, Floors, Report, Severity
from imgbuild.system.syntax import marker_applies, valid_requirement
from imgbuild.values import normalize_package

if TYPE_CHECKING:
    from imgbuild.audit.main_path.closure import MainPath

CHECKS: tuple[str, ...] = get_args(Check)


class AuditTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of an audit, in addition to the package set.

    `cuda` is the CUDA release of the target ("12.4"), and `gpu` its compute capabilities ("9.0").
    `named` packages must be importable even if no other package uses them. `added` packages are
    followed once another package imports them. `extras` maps packages to requested extras.

    `exempt` maps packages to the place or reason of a user's choice: the user chose their versions
    against METADATA, or removed them. `alone` packages are installed without their requirements. If
    `all_gpus` is False, a GPU that a package does not support is a warning.
    """

    target: str = ""
    cuda: str = ""
    gpu: tuple[str, ...] = ()
    all_gpus: bool = True
    constraints: tuple[Constraint, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    named: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    extras: Mapping[str, tuple[str, ...]] = {}
    exempt: Mapping[str, str] = {}
    alone: frozenset[str] = frozenset()


def terms_for_additions(
    terms: AuditTerms, required: Collection[str], added: Collection[str]
) -> AuditTerms:
    """Return the terms for packages `added` to a published target.

    The packages `required` are requested. The others are dependencies, and only their imported
    parts run: IPython imports matplotlib-inline only if matplotlib is installed. If no package is
    requested, as for an extra, all added packages are named.
    """
    named = sorted({*required} & {*added}) or sorted(added)
    return msgspec.structs.replace(terms, named=tuple(named), added=tuple(sorted(added)))


def requested_extras(
    lines: Iterable[str], markers: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Map each package to the extras in requirement lines that apply on a machine with `markers`.

    Lines that are not requirements are skipped.
    """
    extras: dict[str, set[str]] = {}
    for line in lines:
        requirement = valid_requirement(line)
        if (
            requirement is not None
            and requirement.extras
            and marker_applies(requirement.marker, markers)
        ):
            names = map(normalize_package, requirement.extras)
            extras.setdefault(normalize_package(requirement.name), set()).update(names)
    return {package: tuple(sorted(names)) for package, names in sorted(extras.items())}


def audit_package_set(
    package_set: PackageSet,
    terms: AuditTerms | None = None,
    *,
    libraries: Callable[[], Sequence[ElfFacts]] = tuple,
    interpreter: Callable[[], Sequence[ElfFacts]] = tuple,
    checks: Iterable[str] = CHECKS,
    path: MainPath | None = None,
    past: Callable[[MainPath], Iterable[Finding]] | None = None,
    published: Collection[str] = (),
) -> Report:
    """Return all findings of `checks` in `package_set`.

    `libraries` returns the shared objects of the base, and `interpreter` the files of a standalone
    Python, if there is one. `past` searches other releases for attributes that were removed (check
    "calls"), and may access an index. If `path` is given, only this main path is checked.
    `published` are packages that were audited together. A finding between two of them is a warning
    if only added packages reach its code.
    """
    terms = restrict_constraints(
        terms or AuditTerms(),
        {name: package_set.version(name) or "" for name in package_set.packages},
    )
    selected = tuple(check for check in CHECKS if check in set(checks))
    if unknown := set(checks) - set(CHECKS):
        message = f"no such check: {', '.join(sorted(unknown))}"
        raise InputError(message, hint=f"available checks: {', '.join(CHECKS)}")
    audit_run = _AuditRun(package_set, terms, libraries, interpreter, path, published)
    findings = audit_run.run(selected)
    if past is not None and "calls" in selected:
        reported = {(finding.where, finding.message) for finding in findings}
        findings += [
            finding
            for finding in past(audit_run.path)
            if (finding.where, finding.message) not in reported
        ]
    return Report(
        target=terms.target,
        arch=package_set.arch,
        floors=_floors(package_set, terms) if "cuda" in selected and terms.cuda else None,
        findings=tuple(
            sort_findings(
                apply_waivers(
                    [
                        _relax_published_finding(
                            exempt_finding(relax_learned_finding(each, terms.constraints), terms),
                            published,
                        )
                        for each in findings
                    ],
                    terms.waivers,
                    selected,
                )
            )
        ),
    )


class _AuditRun:
    def __init__(
        self,
        package_set: PackageSet,
        terms: AuditTerms,
        libraries: Callable[[], Sequence[ElfFacts]],
        interpreter: Callable[[], Sequence[ElfFacts]],
        path: MainPath | None,
        published: Collection[str],
    ) -> None:
        self._package_set = package_set
        self._published = published
        self._terms = terms
        self._libraries = libraries
        self._interpreter = interpreter
        self._path = path

    def run(self, checks: Sequence[str]) -> list[Finding]:
        # Each check's module is imported when it runs, so that one check starts without the others.
        findings = [finding for check in checks for finding in getattr(self, f"_{check}")()]
        if "rules" not in checks:
            return findings
        from imgbuild.audit.checks import rules

        return rules.drop_explained_findings(findings)

    @property
    def path(self) -> MainPath:
        """The main path from the caller, or else the main path of the package set with corners."""
        if self._path is None:
            from imgbuild.audit.main_path.corners import main_path_with_corners

            self._path = main_path_with_corners(
                self._package_set, self._terms.named, self._terms.added
            )
        return self._path

    def _metadata(self) -> list[Finding]:
        from imgbuild.audit.checks import build_tags, metadata

        terms = self._terms
        return [
            *metadata.check_metadata(self._package_set, terms.constraints, terms.extras),
            *metadata.advised_extras(self._package_set, terms.named),
            *build_tags.check_build_tags(self._package_set, terms.cuda),
        ]

    def _elf(self) -> list[Finding]:
        from imgbuild.audit.checks import linking, standalone

        base = self._libraries()
        return [
            *standalone.check_standalone_python(self._package_set, base, self._interpreter()),
            *linking.check_linking(self._package_set, base),
        ]

    def _cuda(self) -> list[Finding]:
        from imgbuild.audit.checks import cuda

        return cuda.check_cuda(self._package_set, self._terms.cuda, self._terms.gpu)

    def _imports(self) -> list[Finding]:
        from imgbuild.audit.checks import configured, imports, other_python

        return [
            *imports.check_imports(self._package_set, self.path),
            *other_python.check_other_python(self._package_set, self.path),
            *configured.check_configured_targets(self._package_set, self.path),
        ]

    def _calls(self) -> list[Finding]:
        from imgbuild.audit.checks import calls

        return calls.check_calls(self._package_set, self.path)

    def _support(self) -> list[Finding]:
        from imgbuild.audit.checks import compiling, generated, support

        image = bool(self._terms.gpu)  # only targets name GPUs
        return [
            *support.check_support(self._package_set, self.path, self._published),
            *generated.check_generated_code(self._package_set, self.path),
            *compiling.check_compiling(self._package_set, self.path, image=image),
        ]

    def _rules(self) -> list[Finding]:
        from imgbuild.audit.checks import rules

        return rules.check_rules(self._package_set, gpu=self._terms.gpu)


def _floors(package_set: PackageSet, terms: AuditTerms) -> Floors:
    from imgbuild.audit.checks.floors import compute_floors

    return compute_floors([facts for _, facts in package_set.elf_facts()], terms.cuda)


def apply_waivers(
    findings: Iterable[Finding], waivers: Sequence[Waiver], checks: Sequence[str] = CHECKS
) -> list[Finding]:
    """Turn findings that a waiver accepts into notes with the reason of the waiver.

    A waiver that does not match a finding is a warning.
    """
    result: list[Finding] = []
    used: Counter[Waiver] = Counter()
    for finding in findings:
        waiver = next(
            (candidate for candidate in waivers if _accepts_finding(candidate, finding)), None
        )
        if waiver is None:
            result.append(finding)
            continue
        used[waiver] += 1
        message = f"{finding.message} (accepted: {waiver.reason})"
        result.append(
            msgspec.structs.replace(finding, severity=Severity.NOTE, message=message, remedy="")
        )
    unused = (
        candidate for candidate in waivers if not used[candidate] and candidate.check in checks
    )
    return [*result, *map(_unused_waiver_finding, unused)]


def exempt_finding(finding: Finding, terms: AuditTerms) -> Finding:
    """Turn `finding` into a warning if `terms` exempts its package, or if its GPU is optional."""
    evidence = finding.evidence
    if evidence is None or finding.severity is not Severity.ERROR:
        return finding
    reason = ""
    if not terms.all_gpus:
        from imgbuild.audit.checks.cuda import unsupported_gpus

        if unsupported_gpus(finding):
            return msgspec.structs.replace(finding, severity=Severity.WARNING)
    if evidence.relation is ConflictRelation.REQUIREMENT:
        name = re.match(r"[A-Za-z0-9._-]+", evidence.subject)
        reason = terms.exempt.get(normalize_package(name[0]), "") if name else ""
        if normalize_package(evidence.package) in terms.alone:
            reason = "it is installed with --no-deps"
    elif evidence.relation is ConflictRelation.PACKAGE:
        reason = terms.exempt.get(normalize_package(evidence.subject.partition(".")[0]), "")
    if not reason:
        return finding
    message = f"{finding.message} ({reason})"
    return msgspec.structs.replace(finding, severity=Severity.WARNING, message=message)


def relax_learned_finding(finding: Finding, learned: Iterable[Constraint]) -> Finding:
    """Turn `finding` into a warning if `learned` shows that its code has never run."""
    evidence = finding.evidence
    if evidence is None or finding.severity is not Severity.ERROR:
        return finding
    place = (finding.check, evidence.package, evidence.other, evidence.file, evidence.subject)
    if not any(
        (entry.check, entry.package, entry.other, entry.file, entry.name) == place
        and entry.contains_version(evidence.version)
        for entry in learned
        if entry.unused
    ):
        return finding
    message = (
        f"{finding.message} (this code has never run, because no version of {evidence.other} is"
        " compatible)"
    )
    return msgspec.structs.replace(finding, severity=Severity.WARNING, message=message)


def _relax_published_finding(finding: Finding, published: Collection[str]) -> Finding:
    """Turn `finding` into a warning if it is between `published` packages, which cannot change."""
    evidence = finding.evidence
    if evidence is None or finding.severity is not Severity.ERROR:
        return finding
    if not {normalize_package(evidence.package), normalize_package(evidence.other)} <= set(
        published
    ):
        return finding
    message = f"{finding.message} (both packages are unchanged from the published target)"
    return msgspec.structs.replace(finding, severity=Severity.WARNING, message=message)


def _unused_waiver_finding(waiver: Waiver) -> Finding:
    return Finding(
        check=waiver.check,
        severity=Severity.WARNING,
        message=f"unused waiver: {waiver.package}, {waiver.subject}",
        where=f"matrix: waive: {waiver.check} {waiver.package} {waiver.subject}",
        remedy="remove the waiver from the matrix",
    )


def _accepts_finding(waiver: Waiver, finding: Finding) -> bool:
    evidence = finding.evidence
    return (
        evidence is not None
        and waiver.check == finding.check
        and normalize_package(waiver.package) == normalize_package(evidence.package)
        and fnmatchcase(evidence.subject, waiver.subject)
    )


def restrict_constraints(terms: AuditTerms, versions: Mapping[str, str]) -> AuditTerms:
    """Return `terms` without the constraints on packages that are not in `versions`."""
    constraints = tuple(
        constraint
        for constraint in terms.constraints
        if constraint.applies_to(versions)
        or (constraint.unused and constraint.contains_version(versions.get(constraint.package, "")))
    )
    return msgspec.structs.replace(terms, constraints=constraints)
