"""Tries a newer version by locking a row in a scratch folder.

First, only the tried version changes. If this has no solution, the other pins can change to newer
versions, and the versions that the solver selects are pinned and tried.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import shutil
from collections.abc import Callable, Container, Iterable, Iterator, Mapping

import msgspec
from packaging.version import Version

from imgbuild import codec
from imgbuild.assemble.inputs import Inputs
from imgbuild.attest.sbom import packages
from imgbuild.errors import AuditFailed, FilesDisagree, InputError, NoSolution
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix import constraints
from imgbuild.matrix.model import Base, Matrix, RequiredPackage, Target
from imgbuild.matrix.project_paths import MATRIX, Project
from imgbuild.matrix.tried_updates import RefusedVersion
from imgbuild.pipeline import lock_target
from imgbuild.plan import records
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.render import templates
from imgbuild.solve import solve
from imgbuild.solve.problem import SolveProblem
from imgbuild.system.control_characters import escape_control
from imgbuild.system.syntax import parse_version
from imgbuild.values import normalize_package, sha256

REFUSALS = (NoSolution, AuditFailed, FilesDisagree, InputError)
REASONS = 8
LINE = 1000  # letters of a reason
LOOSE_REASON = "at least the version of the updated row"
TORCH = "torch"
# A package in an explanation: before a specifier, or what an index does not have.
NAMED_PACKAGE = re.compile(
    r"(?<![\w.-])([a-z][a-z0-9-]*[a-z0-9]) ?(?:[<>=!~]=|[<>])"
    r"|([a-z][a-z0-9-]*[a-z0-9]) was not found"
)


class MatrixRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a matrix with its name. `bases` are bases (by name) that the matrix lacks."""

    name: str
    target: Target
    bases: Mapping[str, Base] = {}

    def add_to_matrix(self, matrix: Matrix) -> Matrix:
        """Add the row and its bases to `matrix`."""
        bases = {**matrix.bases, **self.bases}
        targets = {**matrix.targets, self.name: self.target}
        return msgspec.structs.replace(matrix, bases=bases, targets=targets)


class TriedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row that was locked in the scratch folder."""

    row: MatrixRow
    lock: Lock
    digests: TargetDigests


class RefusedTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The reasons for the rejection of a version. `audited` is set if the audit found errors."""

    reasons: tuple[str, ...]
    audited: bool = False


@contextlib.contextmanager
def scratch_project(project: Project, inputs: Inputs) -> Iterator[Project]:
    """Create a temporary folder with the constraints, records and templates of `project`."""
    with inputs.store.scratch() as folder:
        scratch = Project(matrix=folder / MATRIX)
        scratch.images.mkdir()
        for path in (
            constraints.constraints_path(project.images),
            records.records_path(project.images),
            packages.packages_path(project.images),
        ):
            if path.is_file() and not path.is_symlink():
                shutil.copyfile(path, scratch.images / path.name)
        for name in templates.project_templates(project.images):
            place = scratch.images / templates.FOLDER / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(project.images / templates.FOLDER / name, place)
        yield scratch


def replace_pin(target: Target, package: str, version: str, as_of: datetime.date) -> Target:
    """Return `target` with the pin `version` of `package` and the cut-off date `as_of`."""
    pins = {**target.pins, package: version}
    return msgspec.structs.replace(target, pins=pins, as_of=as_of)


def attempt_row(
    scratch: Project, row: MatrixRow, package: str, inputs: Inputs, *, processes: int
) -> TriedRow | RefusedTrial:
    """Lock `row` with the new version of `package`. Raises FetchFailed if a download fails."""
    try:
        return lock_row(scratch, row, inputs, processes=processes)
    except NoSolution as error:
        first = refusal_of_error(error)
    except REFUSALS as error:
        return refusal_of_error(error)
    try:
        looser = _replace_solved_pins(scratch, row, package, inputs)
    except REFUSALS as error:
        return _longer_refusal(first, refusal_of_error(error))
    if looser.target.pins == row.target.pins:
        return first
    try:
        return lock_row(scratch, looser, inputs, processes=processes)
    except REFUSALS as error:
        return refusal_of_error(error)


def lock_row(scratch: Project, row: MatrixRow, inputs: Inputs, *, processes: int) -> TriedRow:
    """Resolve, audit and lock a row in the scratch folder.

    Raises one of the errors in REFUSALS on failure.
    """
    whole = row.add_to_matrix(inputs.matrix)
    inside = Inputs(whole, inputs.context, mirror=inputs.mirror)
    lock = lock_target.resolve_target(scratch, row.name, inside)
    lock, digests = lock_target.lock_target(scratch, lock, inside, processes=processes, drop=False)
    return TriedRow(row=row, lock=lock, digests=digests)


def _replace_solved_pins(
    scratch: Project, row: MatrixRow, package: str, inputs: Inputs
) -> MatrixRow:
    """Set other pins of `row` to versions that are compatible with the tried version.

    Build requirements of sdists must be pinned. If a pinned version is incompatible, another
    version is resolved first, without the packages to build.
    """
    target, matrix = row.target, inputs.matrix
    built = [name for name in matrix.sdists if name in target.pins or name in target.requires]
    needed = {name for each in built for name in matrix.sdists[each].requires}
    held = {name for name in target.pins if name in needed or _names_index(matrix, target, name)}
    held -= {package}
    try:
        return _solve_pins(scratch, row, {package, *held}, inputs)
    except NoSolution:
        if not held & needed:
            raise
    without = msgspec.structs.replace(
        target,
        pins={name: pin for name, pin in target.pins.items() if name not in built},
        requires={name: each for name, each in target.requires.items() if name not in built},
    )
    probe = _solve_pins(scratch, msgspec.structs.replace(row, target=without), {package}, inputs)
    pins = {**target.pins, **{name: probe.target.pins[name] for name in held}}
    fitting = msgspec.structs.replace(row, target=msgspec.structs.replace(target, pins=pins))
    return _solve_pins(scratch, fitting, {package, *held}, inputs)


def _solve_pins(
    scratch: Project, row: MatrixRow, held: Container[str], inputs: Inputs
) -> MatrixRow:
    """Replace all pins of `row` except `held` with versions from the solver that are not older."""
    target = row.target
    requires = {
        name: RequiredPackage(spec=f">={Version(pin).public}", reason=LOOSE_REASON)
        for name, pin in target.pins.items()
        if name not in held
    }
    pins = {name: pin for name, pin in target.pins.items() if name not in requires}
    loose = msgspec.structs.replace(target, pins=pins, requires={**target.requires, **requires})
    whole = msgspec.structs.replace(row, target=loose).add_to_matrix(inputs.matrix)
    known = constraints.read_constraints(scratch.images)
    problem = SolveProblem(whole, row.name, target.arch[0], inputs.context, known)
    with inputs.context.reporter.step(f"resolving {row.name} with different pins"):
        versions = solve.resolve_target(problem).versions
    chosen = {
        name: _keep_spelling(pin, versions.get(name) if name in requires else None)
        for name, pin in target.pins.items()
    }
    return msgspec.structs.replace(row, target=msgspec.structs.replace(target, pins=chosen))


def _names_index(matrix: Matrix, target: Target, package: str) -> bool:
    """Return whether `package` is torch and the URL of an index depends on torch's version."""
    used = {matrix.default_index, *target.indexes.values()}
    return package == TORCH and any("{torch}" in (matrix.indexes[name].url or "") for name in used)


def _keep_spelling(pin: str, solved: str | None) -> str:
    if solved is None or Version(solved).public == Version(pin).public:
        return pin
    return Version(solved).public


def refusal_of_error(error: Exception) -> RefusedTrial:
    """Convert the lines of an error message to the reasons for a rejection."""
    message = getattr(error, "message", str(error))
    if isinstance(error, NoSolution) and error.reasons:
        lines = [*error.reasons]
        audited = "incompatible" in message
    else:
        lines = [line.strip() for line in message.splitlines()]
        audited = not isinstance(error, NoSolution)
    shown = [escape_control(" ".join(line.split()))[:LINE] for line in lines if line.strip()]
    more = [f"and {len(shown) - REASONS} more"] if len(shown) > REASONS else []
    return RefusedTrial(reasons=(*shown[:REASONS], *more), audited=audited)


def _longer_refusal(first: RefusedTrial, second: RefusedTrial) -> RefusedTrial:
    reasons = tuple(dict.fromkeys((*first.reasons, *second.reasons)))
    return RefusedTrial(reasons=reasons, audited=first.audited or second.audited)


def mentioned_packages(reasons: tuple[str, ...], names: Iterable[str]) -> set[str]:
    """Return the packages in `reasons` that are also in `names` or have a version specifier."""
    text = " ".join(re.sub(r"[-_.]+(?=[a-z])", "-", reason.lower()) for reason in reasons)
    named = {name for name in names if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)}
    return named | {
        normalize_package(match[1] or match[2]) for match in NAMED_PACKAGE.finditer(text)
    }


def settings_hash(matrix: Matrix, target: Target) -> str:
    """Return a hash of a target's row.

    Versions, cut-off date and texts are not included.
    """
    same = msgspec.structs.replace(
        target,
        base="",
        pins=dict.fromkeys(target.pins, "0"),
        as_of=datetime.date.min,
        summary="",
        tested="",
        recommended="",
        retired="",
        guide=(),
    )
    shared = (
        matrix.bases[target.base].python,
        matrix.bases[target.base].glibc,
        [matrix.extras[name] for name in target.extras],
        matrix.requires,
        matrix.sdists,
        matrix.drop,
    )
    return sha256(codec.encode_compact([same, shared]))[:16]


class TrialInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The current conditions of a trial, for comparison with the conditions of a rejection.

    `newest` returns the newest usable version of a package, or None.
    """

    row: str
    versions: Mapping[str, str]
    files: str
    imgbuild: str
    newest: Callable[[str], str | None]


def refusal_holds(refusal: RefusedVersion, inputs: TrialInputs) -> bool:
    """Return whether a rejection is still valid, because its causes have not changed.

    Causes are the row, the current and newest versions of the packages in the reasons, and the
    files of the rejected version. If the audit rejected the version, the version of imgbuild is
    also a cause.
    """
    if not refusal.row:
        return True
    if (refusal.row, refusal.files) != (inputs.row, inputs.files):
        return False
    if refusal.kind == "audit" and refusal.imgbuild != inputs.imgbuild:
        return False
    if any(inputs.versions.get(package) != has for package, has in refusal.has.items()):
        return False
    return not any(
        _is_newer(inputs.newest(package), version) for package, version in refusal.newest.items()
    )


def _is_newer(now: str | None, then: str) -> bool:
    new, old = parse_version(now), parse_version(then)
    return new is not None and (old is None or new > old)
