"""Implements `imgbuild cves`, which lists known vulnerabilities of locked packages."""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from imgbuild import codec
from imgbuild.attest.sbom import packages
from imgbuild.attest.sbom.packages import Package
from imgbuild.attest.signing import keys
from imgbuild.attest.signing.keys import PrivateKey
from imgbuild.cache.context import Context
from imgbuild.cli._help import create_command
from imgbuild.cli._options import Offline, Osv, PlainHttp, SignKey
from imgbuild.cli._output import align_columns, fold_lines, format_count, print_result
from imgbuild.cli._targets import SelectionOptions
from imgbuild.cli._verb import OUTPUT, REGISTRY, create_verb, option
from imgbuild.cves import attach, check, scanner_report, vex
from imgbuild.cves.check import CveCase, CveReport, Vulnerability
from imgbuild.cves.installed import InstalledSource
from imgbuild.cves.osv_server import OsvServer
from imgbuild.cves.severity import Rating
from imgbuild.cves.source import SourceAnswer
from imgbuild.errors import AuditFailed, FetchFailed, InputError
from imgbuild.matrix import project_paths
from imgbuild.pipeline.session import Session, open_session
from imgbuild.plan import image_digests
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import Repository, parse_repository
from imgbuild.system.console import console
from imgbuild.values import Digest

AUTHOR = "imgbuild"
NO_FIX = "no fix"
NAMED_PACKAGES = 5  # packages about which nothing is known; --json has all
ADVISORY_ID = re.compile(r"[A-Za-z]{2,20}-[\w.:-]{1,80}")
HINT = "update to fixed versions, or accept vulnerabilities under `accept_cves:` in matrix.yaml"

VexFile = Annotated[
    Path | None,
    option(
        "--vex",
        "Also write all vulnerabilities to this file, as an OpenVEX document.",
        metavar="FILE",
        panel=OUTPUT,
    ),
]
OneId = Annotated[
    str | None,
    option(
        "--id",
        "Check only for this vulnerability, such as CVE-2025-32434, of any severity.",
        metavar="ID",
        often=True,
    ),
]
Author = Annotated[
    str, option("--author", "The author of the OpenVEX document.", metavar="NAME", panel=OUTPUT)
]
AttachTo = Annotated[
    str | None,
    option(
        "--attach-to",
        "Also attach an OpenVEX document to the images in this repository, unless the latest "
        "attached document has the same statements.",
        metavar="HOST/REPOSITORY",
        panel=REGISTRY,
    ),
]


@create_verb
def cves(
    selection: SelectionOptions,
    severity: Annotated[
        Rating,
        option("--severity",
            "The lowest severity at which the command fails. Less severe vulnerabilities are "
            "counted but not listed.",
               often=True, setting=True),
    ] = Rating.HIGH,
    ignore_unfixed: Annotated[
        bool,
        option("--ignore-unfixed", "Fail only for vulnerabilities that are fixed in a newer "
                                   "version.",
               often=True),
    ] = False,
    only: OneId = None,
    report: Annotated[
        Path | None,
        option("--report", "Read vulnerabilities from the JSON report of a scanner (osv-scanner,"
                           " grype or trivy) instead of querying a server.",
               metavar="FILE", often=True),
    ] = None,
    osv: Osv = None,
    vex: VexFile = None,
    author: Author = AUTHOR,
    attach: AttachTo = None,
    sign_key: SignKey = None,
    plain_http: PlainHttp = None,
    offline: Offline = False,
) -> None:  # fmt: skip
    """List known vulnerabilities of locked targets.

    Compares the Python and Debian packages of a lock, and CPython if it comes from a standalone
    build, with OSV advisories. Only advisories are downloaded. They are cached for a day.
    `accept_cves:` in matrix.yaml accepts vulnerabilities until a given date.

    Exits with status 4 if a vulnerability of at least --severity is not accepted. If the server
    cannot be reached, lists accepted and cached vulnerabilities and the packages that were not
    checked, writes no document, and exits with status 7.

    Examples:

        imgbuild cves cu130-vllm

        imgbuild cves --all --id CVE-2025-32434

        imgbuild cves --all --severity critical --ignore-unfixed --json

        imgbuild cves cu130-vllm --report trivy.json

        imgbuild cves cu130-vllm --vex cu130-vllm.openvex.json --author security@example.org

        imgbuild cves --all --attach-to registry.example/rl --sign-key cosign.key
    """
    if sign_key is not None and attach is None:
        message = "--sign-key requires --attach-to"
        raise InputError(message, hint="specify the repository: --attach-to HOST/REPOSITORY")
    _check_id(only, whole=vex is not None or attach is not None)
    key = keys.load_private(sign_key) if sign_key else None
    repository = parse_repository(attach) if attach is not None else None
    session = open_session(selection.matrix, names=selection.named_targets)
    cases = _cases(session, selection)
    find = _advisory_source(report, osv, offline=offline)
    today = datetime.datetime.now(datetime.UTC).date()
    lowest = Rating.UNKNOWN if only else severity
    policy = check.CvePolicy(threshold=lowest, fixable=ignore_unfixed, today=today)
    source_packages, whole = _package_records(session), selection.everything
    try:
        reports = check.check_cves(cases, source_packages, find, policy, whole=whole)
    except FetchFailed as error:
        now = datetime.datetime.now(datetime.UTC)
        kept = OsvServer(osv, Context.open(console, offline=True), now).cached_advisories
        known = check.check_cves(cases, source_packages, kept, policy, whole=whole)
        _end_unreachable(known, error, only)
    if vex is not None:
        _write_vex(vex, session, cases, reports, author)
    if repository is not None:
        _attach_vex(repository, session, cases, reports, author, key, plain_http)
    reports = _select_id(reports, only)
    print_result(reports, list(_report_lines(reports, only)))
    _end_check(reports, only)


def _check_id(only: str | None, *, whole: bool) -> None:
    """Raise InputError for a wrong --id, or for one with an option for `whole` reports."""
    if only is not None and not ADVISORY_ID.fullmatch(only):
        message = f"--id {only}: not the ID of a vulnerability"
        raise InputError(message, hint="specify one ID, such as CVE-2025-32434 or GHSA-…")
    if only is not None and whole:
        message = "--id cannot be combined with --vex or --attach-to, which need all advisories"
        raise InputError(message, hint="omit one of these options")


def _select_id(reports: Sequence[CveReport], only: str | None) -> list[CveReport]:
    return [check.keep_id(each, only) for each in reports] if only else [*reports]


def _cases(session: Session, selection: SelectionOptions) -> list[CveCase]:
    targets, shared = session.matrix.targets, session.matrix.accept_cves
    return [
        CveCase(
            lock=item.lock,
            arch=arch,
            accepted=targets[item.lock.target].accept_cves if item.lock.target in targets else (),
            shared=shared,
        )
        for item in selection.selected_locks(session.project)
        for arch in item.arches
    ]


def _package_records(session: Session) -> dict[str, Package]:
    return packages.recorded_packages(
        [project_paths.catalogue_project().images, session.project.images]
    )


def _advisory_source(
    report: Path | None, server: str | None, *, offline: bool
) -> Callable[[Sequence[InstalledSource]], SourceAnswer]:
    if report is None:
        now = datetime.datetime.now(datetime.UTC)
        return OsvServer(server, Context.open(console, offline=offline), now).find_advisories
    if server is not None:
        message = f"--report {report} and --osv {server} cannot be combined"
        raise InputError(message, hint="omit one of these options")
    return functools.partial(scanner_report.find_advisories, report)


def _write_vex(
    place: Path,
    session: Session,
    cases: Sequence[CveCase],
    reports: Sequence[CveReport],
    author: str,
) -> None:
    now = datetime.datetime.now(datetime.UTC)
    pairs = list(zip(reports, _manifest_digests(session, cases), strict=True))
    codec.write_bytes(place, vex.vex_document(pairs, author, now))


def _attach_vex(
    repository: Repository,
    session: Session,
    cases: Sequence[CveCase],
    reports: Sequence[CveReport],
    author: str,
    key: PrivateKey | None,
    plain_http: Sequence[str] | None,
) -> None:
    client = RegistryClient(plain_http=plain_http or (), origin=True, reporter=console)
    now = datetime.datetime.now(datetime.UTC)
    subjects = [
        attach.find_pushed_image(client, repository, digest, case.lock.target)
        for case, digest in zip(cases, _manifest_digests(session, cases), strict=True)
    ]
    for report, subject in zip(reports, subjects, strict=True):
        document = vex.vex_document([(report, subject.digest)], author, now, repository)
        attachment = attach.attach_document(
            client, repository, subject, document, report.target, key
        )
        console.info(f"{repository}@{attachment}: OpenVEX of {report.target} {report.arch}")


def _manifest_digests(session: Session, cases: Sequence[CveCase]) -> list[Digest]:
    images = session.project.images
    return [
        image_digests.read_digests(images, case.lock).arch[case.arch].manifest for case in cases
    ]


def _end_unreachable(
    reports: Sequence[CveReport], error: FetchFailed, only: str | None
) -> NoReturn:
    reports = _select_id(reports, only)
    print_result(reports, list(_report_lines(reports, only)))
    for of in dict.fromkeys(of for report in reports for of in report.sources):
        if any(len(report.unqueried) < report.packages for report in reports):
            console.info(f"advisories in the cache: {of}")
    most = max((len(report.unqueried) for report in reports), default=0)  # of one image
    missing = format_count(most, "package")
    console.warn(
        f"the result is incomplete, because no data is available for {missing}; to check without "
        "this server, run: imgbuild show TARGET --arch x86_64 --sbom cyclonedx > FILE.cdx.json; "
        "grype sbom:FILE.cdx.json -o json > FILE; imgbuild cves TARGET --report FILE"
    )
    if console.json:  # the answer is on stdout already
        console.warn(error.message)
        raise typer.Exit(error.exit_code)
    raise error


def _report_lines(reports: Sequence[CveReport], only: str | None) -> Iterator[str]:
    for report in reports:
        yield from fold_lines([_counts(report, only)])
        yield from align_columns(
            [
                _row(vulnerability)
                for vulnerability in report.vulnerabilities
                if only or _is_shown(vulnerability, report)
            ]
        )
        yield from fold_lines(
            f"accepted until {entry.expires}, not checked: {entry.id}: {entry.reason}"
            for entry in report.unchecked
        )
        yield from fold_lines(_unqueried_lines(report))
        yield from fold_lines(f"not checked: {name}" for name in report.unread)
    for acceptance in dict.fromkeys(entry for report in reports for entry in report.expired):
        yield from fold_lines(
            [f"warning: accept_cves: the entry for {acceptance.id} expired on {acceptance.expires}"]
        )
    for acceptance in dict.fromkeys(entry for report in reports for entry in report.unused):
        yield from fold_lines([f"warning: accept_cves: no package is affected by {acceptance.id}"])


def _unqueried_lines(report: CveReport) -> Iterator[str]:
    names = sorted(set(report.unqueried))
    if names and len(report.unqueried) < report.packages:
        more = f" and {len(names) - NAMED_PACKAGES} more" if len(names) > NAMED_PACKAGES else ""
        yield f"not queried: {', '.join(names[:NAMED_PACKAGES])}{more}"


def _is_shown(vulnerability: Vulnerability, report: CveReport) -> bool:
    return (
        vulnerability.accepted is not None
        or f"{vulnerability.package}/{vulnerability.id}" in report.counted
    )


def _row(vulnerability: Vulnerability) -> list[str]:
    fix = f"fixed in {vulnerability.fixed}" if vulnerability.fixed else NO_FIX
    if vulnerability.accepted is not None:
        fix = f"accepted until {vulnerability.accepted.expires}: {vulnerability.accepted.reason}"
    return [
        vulnerability.severity,
        vulnerability.id,
        f"{vulnerability.package} {vulnerability.version}",
        fix,
    ]


def _counts(report: CveReport, only: str | None) -> str:
    open_ones = [
        vulnerability for vulnerability in report.vulnerabilities if vulnerability.accepted is None
    ]
    counts = [
        f"{sum(vulnerability.severity is rating for vulnerability in open_ones)} {rating}"
        for rating in reversed(Rating)
    ]
    accepted = len(report.vulnerabilities) - len(open_ones)
    more = f"; {accepted} accepted" if accepted else ""
    packages = format_count(report.packages, "package")
    if len(report.unqueried) == report.packages:
        return f"{report.target} {report.arch}: not checked ({packages})"
    if report.unqueried:
        packages = f"{report.packages - len(report.unqueried)} of {packages}"
    if only:
        state = "affected by" if report.vulnerabilities else "no advisory has the ID"
        return f"{report.target} {report.arch}: {state} {only} ({packages})"
    return f"{report.target} {report.arch}: {', '.join(counts)}{more} ({packages})"


def _end_check(reports: Sequence[CveReport], only: str | None) -> None:
    for of in dict.fromkeys(of for report in reports for of in report.sources):
        console.info(f"advisories: {of}")
    failed = [report for report in reports if not report.ok]
    if not failed:
        return
    if console.json:  # the answer is on stdout already
        raise typer.Exit(AuditFailed.exit_code)
    names = ", ".join(f"{report.target} {report.arch}" for report in failed)
    kind = only or f"known vulnerabilities with severity {failed[0].threshold} or higher"
    message = f"{kind} in {names}"
    raise AuditFailed(message, hint=HINT)


COMMAND = create_command(cves)
