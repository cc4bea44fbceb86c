"""Implements `imgbuild audit`, which checks whether packages work together."""

from __future__ import annotations

import enum
import functools
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from imgbuild.audit.code.model import CodeReport
from imgbuild.audit.judge import AuditTerms
from imgbuild.audit.packages import requirement_files
from imgbuild.audit.packages.environment import open_environment
from imgbuild.audit.packages.pinned import ANY_GLIBC, PinList
from imgbuild.audit.packages.requirement_files import NotPinned, RequirementText, read_pins
from imgbuild.cache.context import Context
from imgbuild.cli._audit_findings import (
    CodePaths,
    FindingFormat,
    OutputFormat,
    Replace,
    audit_lines,
    is_absent,
    read_code,
    refuse_paths,
)
from imgbuild.cli._audit_targets import TargetAudits, audit_targets
from imgbuild.cli._help import ACTIVE_KEY, AuditCommand, create_command
from imgbuild.cli._options import AGAIN, BASE, CUDA, KEEP, PYTHON, REQUIREMENTS, JUnit, Offline
from imgbuild.cli._output import fold_lines, format_count, print_result, write_stdout
from imgbuild.cli._targets import SelectionOptions
from imgbuild.cli._verb import OUTPUT, TARGETS_PANEL, OptionGroup, create_verb, option
from imgbuild.codec import write_bytes
from imgbuild.doctor import host
from imgbuild.errors import AuditFailed, InputError, SomeFailed
from imgbuild.lock.published import load_matrix
from imgbuild.matrix import project_paths
from imgbuild.matrix.model import Matrix
from imgbuild.pipeline import audit_code, audit_set, declared_files, open_requirements
from imgbuild.pipeline.audit_code import UserCode
from imgbuild.pipeline.audit_set import SetRequest
from imgbuild.project import kinds
from imgbuild.report import CaseResult, Report, Severity
from imgbuild.resolve import resolve_request
from imgbuild.resolve.resolve_request import parse_python, requested_cuda
from imgbuild.show import findings
from imgbuild.smoke.junit_report import junit_document
from imgbuild.solve import uv
from imgbuild.system.console import console
from imgbuild.values import Arch, is_number
from imgbuild.wheel.tags import WheelTags

READ_PACKAGES = "packages"  # the test case that fails if a package was not read


def add_check_cases(report: Report, checks: Sequence[str]) -> Report:
    """Return a JUnit report with a case for each check. A case fails if the check found errors.

    An additional case fails if a required package could not be read.
    """
    cases = []
    for check in checks:
        errors = [
            f"{finding.message} ({finding.where})"
            for finding in report.findings
            if finding.check == check and finding.severity is Severity.ERROR
        ]
        cases.append(_case(check, errors))
    missing = [f"{entry.what}: {entry.why}" for entry in report.unread if entry.required]
    cases += [_case(READ_PACKAGES, missing)] if missing else []
    return msgspec.structs.replace(report, tier="audit", cases=tuple(cases))


def _case(name: str, errors: Sequence[str]) -> CaseResult:
    outcome = "failed" if errors else "passed"
    return CaseResult(name=name, outcome=outcome, seconds=0.0, message="\n".join(errors))


STDIN_FILE = "-"
PINS = "pins"  # the name of those on the command line
OLDEST_GLIBC_MINOR = 5  # of the minor versions of glibc that a wheel's name can have


class _AuditSubject(msgspec.Struct, frozen=True, kw_only=True):
    arch: Arch
    matrix: Path | None
    checks: Sequence[str]
    offline: bool
    code: UserCode | None


class PackageSetOptions(OptionGroup, frozen=True, kw_only=True):
    """Options for auditing packages that are not in a target."""

    requirements: Annotated[
        list[Path] | None,
        REQUIREMENTS(
            "Use - for stdin. All files form one package set; requirements that are not exact"
            " versions (name==version) are resolved first."
        ),
    ] = None
    environment: Annotated[
        str | None,
        option(
            "--environment",
            "Audit the packages installed in a virtual environment, for a Python interpreter, or "
            "in a folder. Without a value: the active environment, else .venv, else the "
            "environment of python3.",
            metavar="[PYTHON]",
            panel=TARGETS_PANEL,
            often=True,
        ),
    ] = None
    python: Annotated[
        str | None,
        PYTHON(
            "Applies to NAME==VERSION. Default: the version of --base, else the version of Python "
            "that runs imgbuild."
        ),
    ] = None
    base: Annotated[
        str | None,
        BASE("The audit uses the glibc of the base and, for NAME==VERSION, also its Python."),
    ] = None
    glibc: Annotated[
        str | None,
        option(
            "--glibc",
            "The glibc version to audit against, such as 2.28. Default: the version of --base; "
            "for an environment, this machine's version; in a project, the version of the base in "
            "the matrix.",
            metavar="X.Y",
            panel=TARGETS_PANEL,
        ),
    ] = None
    cuda: Annotated[
        str | None,
        CUDA("Applies to NAME==VERSION and environments. Default: the release of torch."),
    ] = None
    again: Annotated[bool, AGAIN("Applies to cached reports on package sets.")] = False

    def refuse_for_targets(self) -> None:
        """Raise InputError for an option that cannot be combined with targets."""
        values = {
            "--python": self.python,
            "--base": self.base,
            "--glibc": self.glibc,
            "--cuda": self.cuda,
        }
        for name, value in values.items():
            if value is not None:
                message = f"{name} {value} does not apply to locked targets"
                hint = "omit this option, or specify versions or --environment"
                raise InputError(message, hint=hint)

    def audit_sets(
        self,
        pinned: Sequence[str],
        selection: SelectionOptions,
        checks: Sequence[str],
        *,
        offline: bool,
        code: UserCode | None = None,
    ) -> Report:
        """Audit `pinned` and the requirements files, or the environment.

        With `code`, the user's code is audited against the packages.
        """
        arches = selection.arches
        if len(arches) > 1:
            message = f"a package set can have only one architecture, not {', '.join(arches)}"
            raise InputError(message, hint="specify --arch only once")
        arch = arches[0] if arches else Arch.parse(platform.machine())
        subject = _AuditSubject(
            arch=arch, matrix=selection.matrix, checks=checks, offline=offline, code=code
        )
        return (
            self._pins(pinned, subject)
            if self.environment is None
            else self._audit_installed(subject)
        )

    def _pins(self, pinned: Sequence[str], subject: _AuditSubject) -> Report:
        matrix = subject.matrix
        files = self.requirements or ()
        name = ", ".join((*_file_names(files), *([PINS] if pinned else [])))
        request = self._request(name, self._python(matrix), subject)
        try:
            listed = read_pins(_texts(files, pinned), request.machine)
        except NotPinned:
            if not files or STDIN_FILE in map(str, files):
                raise
            declared = declared_files.read_places([str(path) for path in files], pinned)
            for line in declared_files.unread_entries(declared):
                console.info(f"not read: {line}")
            solved = open_requirements.solve_pins(declared, request, lambda: _matrix(matrix))
            listed = solved.listed
            terms = msgspec.structs.replace(
                request.terms, cuda=request.terms.cuda or solved.cuda, exempt=solved.exempt
            )
            request = msgspec.structs.replace(request, terms=terms, indexes=solved.indexes)
        else:
            request = open_requirements.add_indexes(listed, request, lambda: _matrix(matrix))
        with console.step(
            f"auditing {format_count(len(listed.pins), 'pin')} of {name} for {subject.arch}"
        ):
            return audit_set.audit_pins(
                listed, request, partial=not self.requirements, matrix=_builds(listed, matrix)
            )

    def _audit_installed(self, subject: _AuditSubject) -> Report:
        where = None if self.environment == ACTIVE_KEY else self.environment
        python = None if self.python is None else parse_python(self.python)
        environment = open_environment(where, python=python)
        if python is not None and not f"{environment.python}.".startswith(f"{python}."):
            message = (
                f"--python {python} does not match the environment (Python {environment.python})"
            )
            raise InputError(message, hint="omit --python")
        name = where or str(environment.folders[0])
        request = self._request(name, environment.python, subject)
        with console.step(
            f"auditing {format_count(len(environment.packages), 'package')} of {name}"
        ):
            return audit_set.audit_environment(environment, request)

    def _request(self, name: str, python: str, subject: _AuditSubject) -> SetRequest:
        glibc, code = self._glibc(python, subject.matrix), subject.code
        context = Context.open(console, offline=subject.offline)
        return SetRequest(
            machine=WheelTags(python=python, glibc=glibc, arch=subject.arch),
            index=functools.cache(uv.default_index),
            context=context,
            terms=AuditTerms(target=name, cuda=requested_cuda(self.cuda, None) or ""),
            checks=subject.checks,
            offline=subject.offline,
            again=self.again,
            code=None
            if code is None
            else lambda package_set, versions: audit_code.audit_code(
                audit_code.open_code_packages(package_set),
                audit_code.set_fork_versions(code, versions, name),
                context.store,
                target=name,
            ),
            replaced=tuple(fork.package for fork in code.forks) if code is not None else (),
        )

    def _python(self, matrix: Path | None) -> str:
        if self.python is not None:
            return parse_python(self.python)
        if self.base is not None:
            return _base_versions(self.base, matrix)[0]
        return f"{sys.version_info.major}.{sys.version_info.minor}"

    def _glibc(self, python: str, matrix: Path | None) -> str:
        if self.glibc is not None:
            return parse_glibc(self.glibc)
        if self.base is not None:
            return _base_versions(self.base, matrix)[1]
        if self.environment is not None:
            return host.glibc_version() or ANY_GLIBC
        return project_glibc(python, matrix)


def parse_glibc(text: str) -> str:
    """Parse the value of `--glibc`. Raises InputError for an invalid version."""
    major, _, minor = text.partition(".")
    if major != "2" or not is_number(minor) or int(minor) < OLDEST_GLIBC_MINOR:
        message = f"--glibc {text}: invalid version"
        raise InputError(
            message,
            hint=(
                "specify a version such as 2.28; to show the version of this machine, run: "
                "ldd --version"
            ),
        )
    return text


def _base_versions(name: str, matrix: Path | None) -> tuple[str, str]:
    read = _matrix(matrix)
    if name not in read.bases:
        message = f"the matrix has no base {name}"
        raise InputError(message, hint=f"specify one of: {', '.join(read.bases)}")
    return read.bases[name].python, read.bases[name].glibc


def _matrix(matrix: Path | None) -> Matrix:
    return load_matrix(project_paths.find_project(matrix).matrix)


def _builds(listed: PinList, matrix: Path | None) -> Matrix | None:
    """Return the matrix if a pin has a local version, which only indexes of the matrix provide."""
    return _matrix(matrix) if any("+" in version for version in listed.versions.values()) else None


def project_glibc(python: str, matrix: Path | None) -> str:
    """Return the glibc version of the base with this Python. Outside of a project: `ANY_GLIBC`."""
    if not project_paths.find_project(matrix).writable:
        return ANY_GLIBC
    read = _matrix(matrix)
    request = resolve_request.ResolveRequest(requests=(), arches=(), python=python)
    return read.bases[resolve_request.requested_base(request, read)].glibc


def _file_names(files: Sequence[Path]) -> list[str]:
    names = [path.name for path in files]
    return [
        requirement_files.STDIN
        if str(path) == STDIN_FILE
        else path.name
        if path.name and names.count(path.name) == 1
        else str(path)
        for path in dict.fromkeys(files)
    ]


def _texts(files: Sequence[Path], pinned: Sequence[str]) -> list[RequirementText]:
    texts = []
    for path, name in zip(dict.fromkeys(files), _file_names(files), strict=True):
        if str(path) == STDIN_FILE:
            text = requirement_files.RequirementText(name=name, text=sys.stdin.read())
        else:
            text = requirement_files.read_file(path, name)
        texts.append(text)
    if pinned:
        lines = "\n".join(pinned)
        texts.append(requirement_files.RequirementText(name=PINS, text=lines))
    return texts


EXPLAIN_HINT = "to explain a code, run: imgbuild explain IMG102"
WAIVE_HINT = "change versions, or accept the finding under `waive:` in matrix.yaml"
RESOLVE_HINT = "change versions; to find compatible versions, run: imgbuild resolve"
INCOMPLETE_HINT = (
    "add the missing packages to the file; to audit only the listed packages, run: imgbuild "
    "audit NAME==VERSION ..."
)


# Files whose folder is read as a whole.
DECLARING = frozenset(("pyproject.toml", "environment.yml", "environment.yaml"))


def project_file(packages: PackageSetOptions, selection: SelectionOptions) -> Path | None:
    """Return the file or folder with the packages of the project in the current folder.

    This is a lock file, else the folder if it declares requirements, else requirements.txt. Return
    None if there is none, if targets or packages were selected, or if the project has a matrix.
    """
    selected = selection.named_targets or selection.everything or packages.requirements
    if selected or packages.environment is not None or selection.project().writable:
        return None
    here = {path.name for path in Path().iterdir() if path.is_file()}
    places = [Path(name) for name in kinds.LOCKS if name in here]
    places += [Path()] if here & DECLARING else []
    places += [Path("requirements.txt")] if "requirements.txt" in here else []
    return next(iter(places), None)


class Check(enum.StrEnum):
    """The checks of the audit, in the order of execution."""

    METADATA = "metadata"
    ELF = "elf"
    CUDA = "cuda"
    IMPORTS = "imports"
    CALLS = "calls"
    SUPPORT = "support"
    RULES = "rules"


@create_verb
def audit(
    selection: SelectionOptions,
    packages: PackageSetOptions,
    select: Annotated[
        list[Check] | None,
        option(
            "--select", "Run only this check. Can be repeated. Default: all checks.", often=True
        ),
    ] = None,
    notes: Annotated[
        bool,
        option(
            "--notes",
            "Also print notes: problems in code that is not run in normal use of a package.",
            panel=OUTPUT,
            often=True,
        ),
    ] = False,
    code: CodePaths = None,
    replace: Replace = None,
    output_format: OutputFormat = None,
    junit: JUnit = None,
    keep: Annotated[
        bool | None,
        KEEP(
            "Applies to wheels. By default, they are kept for one target and removed for several."
        ),
    ] = None,
    offline: Offline = False,
) -> None:
    """Check that targets, versions or installed packages work together.

    Reads files without running their code, and needs no GPU. Audits targets, versions on the
    command line (NAME==VERSION, NAME[EXTRA]==VERSION or 'NAME @ file:///PATH.whl'), requirements
    files, or an environment. Versions on the command line are a partial set: a missing package is
    reported only if an EXTRA requires it. Accepted findings are listed under `waive:` in the
    matrix.

    With --code, your code is audited instead: its imports, calls, command lines and settings are
    compared with the packages, for the architecture of this machine or of --arch. For a target of
    your own project, the project's code is always audited. In a folder with a lock file or
    requirements but without a matrix, its code is audited with these packages by default.

    Prints findings, the parts that were not checked, and counts. Exits with status 4 if there is an
    error, or if a package cannot be read. If a target cannot be audited, the others still are; the
    exit status is then that of its error, or 1 if the statuses of targets differ.

    Examples:

        imgbuild audit cu124-vllm

        imgbuild audit --all --json

        imgbuild audit transformers==5.0.0 lm-format-enforcer==0.11.3

        imgbuild audit --requirements pins.txt --python 3.12 --glibc 2.28

        imgbuild audit --requirements pyproject.toml --python 3.12

        imgbuild audit --environment .venv

        imgbuild audit cu124-vllm --code train.py --code configs/
    """
    if output_format is FindingFormat.JSON:
        console.configure(verbosity=console.verbosity, json=True)
    checks = tuple(each.value for each in select or Check)
    pinned = [name for name in selection.named_targets if "==" in name or "@" in name]
    if (place := project_file(packages, selection)) is not None:
        packages, code = msgspec.structs.replace(packages, requirements=[place]), code or [Path()]
    free = bool(pinned or packages.requirements) or packages.environment is not None
    user_code = read_code(code, replace, again=packages.again, offline=offline)
    refuse_paths(selection)
    if free:
        _refuse_options(packages, pinned, selection, keep=keep)
        report = packages.audit_sets(pinned, selection, checks, offline=offline, code=user_code)
        audits = TargetAudits(reports=[report])
    else:
        packages.refuse_for_targets()
        audits = audit_targets(
            selection, checks, keep=keep, offline=offline, again=packages.again, code=user_code
        )
    reports = audits.reports
    if junit is not None:
        cases = [
            add_check_cases(report, ("code",) if isinstance(report, CodeReport) else checks)
            for report in reports
        ]
        write_bytes(junit, junit_document(cases))
    if output_format in (FindingFormat.SARIF, FindingFormat.GITHUB):
        write_stdout(findings.findings_text(reports, output_format, notes=notes))
    else:
        print_result(reports, fold_lines(audit_lines(reports, notes=notes)))
    _end_audit(audits, _hint(reports, packages, free=free))


def _hint(reports: Sequence[Report], packages: PackageSetOptions, *, free: bool) -> str:
    if any(isinstance(report, CodeReport) and not report.ok for report in reports):
        return EXPLAIN_HINT
    if packages.requirements and _lacks_packages(reports[0]):
        return INCOMPLETE_HINT
    return RESOLVE_HINT if free else WAIVE_HINT


def _lacks_packages(report: Report) -> bool:
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    return 2 * sum(map(is_absent, errors)) > len(errors)


def _end_audit(audits: TargetAudits, hint: str) -> None:
    failed = [report for report in audits.reports if not report.ok]
    if audits.failed:
        audit = AuditFailed("the audit found errors")
        every = audits.failed | {f"{report.target} {report.arch}": audit for report in failed}
        if console.json:
            raise typer.Exit(SomeFailed(every).exit_code)
        raise SomeFailed(every)
    if not failed:
        return
    if console.json:  # the result has been printed
        raise typer.Exit(AuditFailed.exit_code)
    errors = [
        f"{report.target} {report.arch}"
        for report in failed
        if any(finding.severity is Severity.ERROR for finding in report.findings)
    ]
    if errors:
        message = f"the audit found errors in {', '.join(errors)}"
        raise AuditFailed(message, hint=hint)
    unread = [entry.what for report in failed for entry in report.unread if entry.required]
    message = f"not all packages were read: {', '.join(unread)}"
    raise AuditFailed(message, hint="see the lines marked `not read` above for the reasons")


def _refuse_options(
    packages: PackageSetOptions,
    pinned: Sequence[str],
    selection: SelectionOptions,
    *,
    keep: bool | None,
) -> None:
    targets = [name for name in selection.named_targets if name not in pinned]
    given = [
        *pinned[:1],
        *(f"--requirements {path}" for path in packages.requirements or ()),
        *(["--environment"] if packages.environment is not None else []),
    ]
    if targets or selection.everything:
        message = f"{given[0]} and targets cannot be combined"
        raise InputError(message, hint="pass either versions or targets")
    if packages.environment is not None and len(given) > 1:
        message = f"{given[0]} and --environment cannot be combined"
        raise InputError(message, hint="pass either versions or an environment")
    if keep is not None:
        message = f"{'--keep' if keep else '--drop'} applies only to wheels of targets"
        raise InputError(message, hint="omit this option")


COMMAND = create_command(audit, cls=AuditCommand)
