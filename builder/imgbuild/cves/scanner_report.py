"""Reads advisories from JSON reports of osv-scanner, grype or trivy.

Formats: osv-scanner's `--format json` (google.github.io/osv-scanner/output), grype's `-o json`
(github.com/anchore/grype, grype/presenter/models) and trivy's `--format json`
(trivy.dev/docs/configuration/reporting).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from imgbuild import codec
from imgbuild.cves import severity
from imgbuild.cves.installed import PYPI, InstalledSource, public_version
from imgbuild.cves.records import OsvRecord, record_advisories
from imgbuild.cves.source import Advisory, SourceAnswer
from imgbuild.errors import InputError
from imgbuild.system.amounts import format_count
from imgbuild.values import normalize_package

HINT = "to create a report, run osv-scanner --format json, grype -o json or trivy --format json"
REPORT_KIND = "scanner report"
SHOWN_PACKAGES = 5  # limit of packages in a message


class ReportedPackage(msgspec.Struct, frozen=True):
    """A package in a report: a package from PyPI, or a binary or source package of Debian."""

    name: str
    version: str
    python: bool


class _OsvPackage(msgspec.Struct, frozen=True):
    name: str
    version: str = ""
    ecosystem: str = ""


class _OsvEntry(msgspec.Struct, frozen=True):
    package: _OsvPackage
    vulnerabilities: tuple[OsvRecord, ...] | None = None


class _OsvResult(msgspec.Struct, frozen=True):
    packages: tuple[_OsvEntry, ...] | None = None


class _OsvScanner(msgspec.Struct, frozen=True):
    results: tuple[_OsvResult, ...] | None


class _GrypeFix(msgspec.Struct, frozen=True):
    versions: tuple[str, ...] | None = None


class _GrypeMetrics(msgspec.Struct, frozen=True):
    base_score: float | None = msgspec.field(default=None, name="baseScore")


class _GrypeCvss(msgspec.Struct, frozen=True):
    metrics: _GrypeMetrics = _GrypeMetrics()


class _GrypeVulnerability(msgspec.Struct, frozen=True):
    id: str
    severity: str = ""
    description: str = ""
    fix: _GrypeFix = _GrypeFix()
    cvss: tuple[_GrypeCvss, ...] | None = None


class _GrypeRelated(msgspec.Struct, frozen=True):
    id: str


class _GrypeArtifact(msgspec.Struct, frozen=True):
    name: str
    version: str
    type: str


class _GrypeMatch(msgspec.Struct, frozen=True, rename="camel"):
    vulnerability: _GrypeVulnerability
    artifact: _GrypeArtifact
    related_vulnerabilities: tuple[_GrypeRelated, ...] | None = None


class _GrypeReport(msgspec.Struct, frozen=True):
    matches: tuple[_GrypeMatch, ...] | None


class _TrivyVulnerability(msgspec.Struct, frozen=True, rename="pascal"):
    vulnerability_id: str = msgspec.field(name="VulnerabilityID")
    pkg_name: str
    installed_version: str
    fixed_version: str = ""
    severity: str = ""
    title: str = ""


class _TrivyResult(msgspec.Struct, frozen=True, rename="pascal"):
    type: str = ""
    vulnerabilities: tuple[_TrivyVulnerability, ...] | None = None


class _TrivyReport(msgspec.Struct, frozen=True, rename="pascal"):
    results: tuple[_TrivyResult, ...] | None = None


class _ReportEntry(msgspec.Struct, frozen=True, kw_only=True):
    ids: tuple[str, ...]
    severity: str
    score: float | None = None
    summary: str
    fixed: tuple[str, ...]


ReportEntries = Iterator[tuple[ReportedPackage, Iterable[OsvRecord | _ReportEntry]]]


def find_advisories(path: Path, packages: Sequence[InstalledSource]) -> SourceAnswer:
    """Return the advisories about `packages` in the report `path`.

    Packages of the report that are not in `packages` are listed as not checked. Raises InputError
    for other file formats.
    """
    scanner, entries = _read_report(path)
    place = f"{path} ({scanner})"
    sources = _packages_by_name(packages)
    about: list[Advisory] = []
    others: dict[str, None] = {}
    for package, listed in entries:
        source = sources.get(package)
        if source is None:
            others[f"{package.name} {package.version}"] = None
            continue
        for entry in listed:
            about += _advisories(entry, source, place)
    return SourceAnswer(of=place, advisories=tuple(about), unread=_unread_notes(place, others))


def _read_report(path: Path) -> tuple[str, ReportEntries]:
    keys = codec.read_document(path, dict[str, msgspec.Raw], what=REPORT_KIND, hint=HINT)
    for key, (scanner, form, entries) in FORMS.items():
        if key in keys:
            return scanner, entries(codec.read_document(path, form, what=REPORT_KIND, hint=HINT))
    message = f"{path} is not a report of osv-scanner, grype or trivy"
    raise InputError(message, hint=HINT)


def _osv_scanner_entries(report: _OsvScanner) -> ReportEntries:
    for result in report.results or ():
        for listed in result.packages or ():
            package = listed.package
            python = package.ecosystem == PYPI
            name = _package(package.name, package.version, python=python)
            yield name, listed.vulnerabilities or ()


def _grype_entries(report: _GrypeReport) -> ReportEntries:
    for match in report.matches or ():
        vulnerability, artifact = match.vulnerability, match.artifact
        related = (alias.id for alias in match.related_vulnerabilities or ())
        scores = (rating.metrics.base_score for rating in vulnerability.cvss or ())
        entry = _ReportEntry(
            ids=tuple(dict.fromkeys((vulnerability.id, *related))),
            severity=vulnerability.severity,
            score=max((score for score in scores if score is not None), default=None),
            summary=vulnerability.description,
            fixed=vulnerability.fix.versions or (),
        )
        python = artifact.type == "python"
        yield _package(artifact.name, artifact.version, python=python), (entry,)


def _trivy_entries(report: _TrivyReport) -> ReportEntries:
    for result in report.results or ():
        for vulnerability in result.vulnerabilities or ():
            entry = _ReportEntry(
                ids=(vulnerability.vulnerability_id,),
                severity=vulnerability.severity,
                summary=vulnerability.title,
                fixed=tuple(part.strip() for part in vulnerability.fixed_version.split(",")),
            )
            name, version = vulnerability.pkg_name, vulnerability.installed_version
            yield _package(name, version, python=result.type != "debian"), (entry,)


# By the key of a report: the scanner, the format of its report, and its entries.
FORMS: dict[str, tuple[str, Any, Callable[[Any], ReportEntries]]] = {
    "matches": ("grype", _GrypeReport, _grype_entries),
    "SchemaVersion": ("trivy", _TrivyReport, _trivy_entries),
    "results": ("osv-scanner", _OsvScanner, _osv_scanner_entries),
}


def _advisories(
    entry: OsvRecord | _ReportEntry, package: InstalledSource, place: str
) -> Iterable[Advisory]:
    if isinstance(entry, OsvRecord):
        return () if entry.withdrawn else record_advisories(entry, package, place)
    return (
        Advisory(
            ids=entry.ids,
            package=package,
            severity=severity.word_rating(entry.severity),
            score=entry.score,
            summary=next(iter(entry.summary.strip().splitlines()), ""),
            fixed=package.lowest_fix(entry.fixed),
            source=place,
        ),
    )


def _packages_by_name(
    packages: Sequence[InstalledSource],
) -> Mapping[ReportedPackage, InstalledSource]:
    sources: dict[ReportedPackage, InstalledSource] = {}
    for package in packages:
        python = package.ecosystem == PYPI
        sources[_package(package.name, package.version, python=python)] = package
        for name, version in () if python else package.binaries:
            sources[_package(name, version, python=False)] = package
    return sources


def _package(name: str, version: str, *, python: bool) -> ReportedPackage:
    if python:
        return ReportedPackage(normalize_package(name), public_version(version), python=True)
    return ReportedPackage(name, version, python=False)


def _unread_notes(place: str, others: Mapping[str, None]) -> tuple[str, ...]:
    if not others:
        return ()
    names = ", ".join(list(others)[:SHOWN_PACKAGES]) + (
        ", …" if len(others) > SHOWN_PACKAGES else ""
    )
    return (f"{place}: {format_count(len(others), 'package')} not in the lock: {names}",)
