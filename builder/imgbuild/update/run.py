"""Updates rows: finds newer versions, tries each, and writes new rows and rejections.

An accepted version is part of the row in later trials. A rejection is written immediately. The new
row is written after the last trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

import imgbuild
from imgbuild.assemble.inputs import Inputs
from imgbuild.errors import ImgbuildError, InputError
from imgbuild.index.pages import IndexLookup, index_addresses
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix import tried_updates
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Matrix, Target
from imgbuild.matrix.project_paths import Project
from imgbuild.matrix.tried_updates import DerivedRow, RefusedVersion, TriedUpdates
from imgbuild.plan import image_digests
from imgbuild.show import image_diff
from imgbuild.show.image_diff import ImageDiff
from imgbuild.solve import uv
from imgbuild.system.reporter import ProgressBar
from imgbuild.update import axes, catalogue, row_text, snapshots, trial
from imgbuild.update.axes import (
    BASE,
    BASE_PARTS,
    PYTHON,
    CoolDown,
    FixedAdvisories,
    Release,
    VersionAxis,
)
from imgbuild.update.snapshots import BaseSnapshot
from imgbuild.update.trial import MatrixRow, RefusedTrial, TriedRow

TRIAL = "update-trial"  # the name of a row during its trials


class UpdateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an update.

    `packages` are updated, by default all pins. `advisories` finds releases to which the cool-down
    does not apply.
    """

    packages: tuple[str, ...] = ()
    cool_down: CoolDown
    processes: int = 1
    advisories: FixedAdvisories


class PinMove(msgspec.Struct, frozen=True, kw_only=True):
    """A changed pin of a new row.

    `fixes` are the fixed advisories that exempt the version from the cool-down.
    """

    package: str
    before: str
    after: str
    fixes: tuple[str, ...] = ()


class RowCandidates(msgspec.Struct, frozen=True, kw_only=True):
    """The versions to try for a row.

    `source` is the newest row that was created from `origin`. `snapshot` is a newer base, which all
    trials use.
    """

    origin: str
    source: str
    target: Target
    lock: Lock | None
    axes: tuple[VersionAxis, ...]
    snapshot: BaseSnapshot | None = None


class RowUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an update of a row. `row` is the name of the new row, or "".

    `refused` are versions that this run rejected. `kept` are versions whose rejection by an earlier
    run is still valid. `waiting` maps packages to versions in the cool-down. `unwritten` are
    learned constraints that were not written because locks of the project violate them.
    """

    source: str
    row: str = ""
    moves: tuple[PinMove, ...] = ()
    refused: tuple[RefusedVersion, ...] = ()
    kept: tuple[RefusedVersion, ...] = ()
    waiting: dict[str, tuple[str, ...]] = {}
    diff: ImageDiff | None = None
    unwritten: tuple[Constraint, ...] = ()


def find_candidates(
    project: Project, names: Sequence[str], inputs: Inputs, options: UpdateSettings
) -> list[RowCandidates]:
    """Find newer versions for the rows `names`, or for the newest rows created from these rows.

    Raises InputError if no row pins a package, or if the cool-down cannot be checked.
    """
    updates, matrix = tried_updates.read_updates(project.images), inputs.matrix
    sources = dict.fromkeys(updates.newest_descendant(name, matrix.targets) for name in names)
    targets = {name: _chosen_pins(matrix.targets[name], options) for name in sources}
    _require_pinned(targets, options)
    indexes = {name: _indexes(matrix.targets[name], inputs) for name in targets}
    if options.cool_down.days is not None:
        axes.require_times(indexes, targets)
    return [
        _candidates(project, _origin(updates, name, matrix), name, chosen, inputs, options)
        for name, chosen in targets.items()
    ]


def _candidates(
    project: Project,
    origin: str,
    source: str,
    chosen: Target,
    inputs: Inputs,
    options: UpdateSettings,
) -> RowCandidates:
    target = inputs.matrix.targets[source]
    indexes = _indexes(target, inputs)
    lock = lock_file.find_lock(project.images, source)
    snapshot = snapshots.find_newer_base(
        inputs.matrix.bases, target.base, lock, options.cool_down, inputs.context
    )
    moves = [
        axes.package_axis(
            indexes, package, chosen.pins[package], options.cool_down, options.advisories
        )
        for package in axes.axis_names(chosen)
    ]
    moves += [
        axes.base_axis(part, before, after)
        for part, before, after in _newer_base_parts(snapshot)
        if part in options.packages
    ]
    return RowCandidates(
        origin=origin,
        source=source,
        target=target,
        lock=lock,
        axes=tuple(moves),
        snapshot=snapshot,
    )


def _newer_base_parts(snapshot: BaseSnapshot | None) -> list[tuple[str, str, str]]:
    """Return axis, old version and new version of each changed part of a newer base."""
    parts = []
    if snapshot is not None and snapshot.after:
        parts.append((BASE, snapshot.before, snapshot.after))
    if snapshot is not None and snapshot.python is not None:
        parts.append((PYTHON, snapshot.python.version, snapshot.python.newest))
    return parts


def _chosen_pins(target: Target, options: UpdateSettings) -> Target:
    if not options.packages:
        return target
    pins = {name: pin for name, pin in target.pins.items() if name in options.packages}
    return msgspec.structs.replace(target, pins=pins)


def _require_pinned(targets: Mapping[str, Target], options: UpdateSettings) -> None:
    pinned = {package for target in targets.values() for package in target.pins}
    unknown = [name for name in options.packages if name not in {*pinned, *BASE_PARTS}]
    if unknown:
        message = f"no selected row pins {', '.join(unknown)}"
        raise InputError(message, hint="to update packages that a row does not pin, change `as_of`")


def _indexes(target: Target, inputs: Inputs) -> IndexLookup:
    matrix = inputs.matrix
    located = index_addresses(matrix, target, uv.default_index)
    return IndexLookup(located, target.indexes, matrix.default_index, inputs.context.http)


def _origin(updates: TriedUpdates, name: str, matrix: Matrix) -> str:
    origin = updates.origin_of_row(name)
    return origin if origin in matrix.targets else name


class RowUpdater:
    """Tries newer versions for a row. `scratch` is the folder for temporary locks."""

    def __init__(
        self,
        project: Project,
        scratch: Project,
        start: RowCandidates,
        inputs: Inputs,
        options: UpdateSettings,
    ) -> None:
        self._project = project
        self._scratch = scratch
        self._start = start
        self._inputs = inputs
        self._options = options
        self._indexes = _indexes(start.target, inputs)
        self._newest: dict[str, str | None] = {}
        self._accepted: TriedRow | None = None
        self._row = MatrixRow(name=TRIAL, target=start.target)
        if (snapshot := start.snapshot) is not None:
            based = msgspec.structs.replace(start.target, base=snapshot.name)
            self._row = MatrixRow(name=TRIAL, target=based, bases={snapshot.name: snapshot.base})
        self._fixes: dict[str, tuple[str, ...]] = {}
        self._refused: dict[tuple[str, str], RefusedVersion] = {}

    def run(self, bar: ProgressBar) -> RowUpdate:
        """Try all newer versions, and write the new row."""
        while (pending := self._next_release()) is not None:
            self._try_release(*pending)
            bar.advance(1)
        row, unwritten = "", tuple[Constraint, ...]()
        if self._accepted is not None:
            row, unwritten = self._place_row(self._accepted)
        return self._result(row, unwritten)

    def pending_versions(self) -> list[tuple[str, str]]:
        """Return the versions to try, as far as they are known before the first trial."""
        return [(axis.package, release.version) for axis, release in self._pending_releases()]

    def _next_release(self) -> tuple[VersionAxis, Release] | None:
        return next(iter(self._pending_releases()), None)

    def _pending_releases(self) -> list[tuple[VersionAxis, Release]]:
        known = tried_updates.read_updates(self._project.images).of(self._start.origin)
        pending = []
        for axis in self._start.axes:
            present = axes.version_order(axis.package, self._present_version(axis))
            for release in axis.releases:
                if axes.version_order(axis.package, release.version) <= present:
                    break
                refusal = known.get((axis.package, release.version))
                if refusal is None or not trial.refusal_holds(refusal, self._trial_inputs(release)):
                    pending.append((axis, release))
        return pending

    def _present_version(self, axis: VersionAxis) -> str:
        if axis.package in BASE_PARTS:
            is_moved = self._accepted is not None
            return axis.releases[0].version if is_moved else axis.version
        return self._row.target.pins[axis.package]

    def _trial_inputs(self, release: Release) -> trial.TrialInputs:
        return trial.TrialInputs(
            row=self._settings(),
            versions=self._row.target.pins,
            files=release.files,
            imgbuild=imgbuild.__version__,
            newest=self._newest_in_row,
        )

    def _newest_in_row(self, package: str) -> str | None:
        """Return a package's newest version past the cool-down, or None for a part of a base."""
        if package in BASE_PARTS:
            return None
        if package not in self._newest:
            cool_down = self._options.cool_down
            ready = [
                version
                for version, release in axes.list_final_releases(
                    self._indexes.files(package)
                ).items()
                if cool_down.days is None or axes.is_past_cool_down(release, cool_down.cut_day)
            ]
            self._newest[package] = str(max(ready)) if ready else None
        return self._newest[package]

    def _try_release(self, axis: VersionAxis, release: Release) -> None:
        target = self._row.target
        as_of = axes.row_cut_off(target, release, self._options.cool_down)
        if axis.package not in BASE_PARTS:
            target = trial.replace_pin(target, axis.package, release.version, as_of)
        row = msgspec.structs.replace(self._row, target=target)
        reporter = self._inputs.context.reporter
        reporter.info(
            f"{self._start.source}: trying {axis.package} {release.version}"
            f" instead of {self._present_version(axis)}"
        )
        processes = self._options.processes
        outcome = trial.attempt_row(
            self._scratch, row, axis.package, self._inputs, processes=processes
        )
        if isinstance(outcome, RefusedTrial):
            self._record_refusal(axis.package, release, outcome)
            return
        self._accepted, self._row = outcome, outcome.row
        if release.version in axis.fixing:
            self._fixes[axis.package] = axis.fixing[release.version]
        reporter.info(f"{self._start.source}: accepted {axis.package} {release.version}")

    def _record_refusal(self, package: str, release: Release, outcome: RefusedTrial) -> None:
        named = trial.mentioned_packages(outcome.reasons, self._possible_causes(package))
        has = {name: pin for name, pin in self._row.target.pins.items() if name in named}
        has.pop(package, None)
        refusal = RefusedVersion(
            package=package,
            version=release.version,
            reasons=outcome.reasons,
            kind="audit" if outcome.audited else "solve",
            tried=self._options.cool_down.today,
            row=self._settings(),
            files=release.files,
            has=has,
            newest={name: self._newest_in_row(name) or "" for name in sorted(named)},
            imgbuild=imgbuild.__version__,
        )
        self._refused[package, release.version] = refusal
        updates = tried_updates.read_updates(self._project.images).add_refusal(
            self._start.origin, refusal
        )
        tried_updates.write_updates(self._project.images, updates, self._project.root)
        first = outcome.reasons[0] if outcome.reasons else "the reason is unknown"
        self._inputs.context.reporter.info(
            f"{self._start.source}: rejected {package} {release.version}: {first}"
        )

    def _settings(self) -> str:
        return trial.settings_hash(self._row.add_to_matrix(self._inputs.matrix), self._row.target)

    def _possible_causes(self, package: str) -> set[str]:
        locked = next(iter(self._start.lock.arch.values())).versions if self._start.lock else {}
        return {*locked, *self._row.target.pins, package}

    def _place_row(self, tried: TriedRow) -> tuple[str, tuple[Constraint, ...]]:
        start, today = self._start, self._options.cool_down.today
        former = self._inputs.matrix.targets[start.origin]
        taken = {*self._inputs.matrix.targets, *self._project.locked_targets()}
        name = row_text.new_row_name(start.origin, former, start.target, tried.row, taken)
        target = row_text.renew_texts(start.target, start.source, tried.row, today)
        row = msgspec.structs.replace(tried.row, name=name, target=target)
        processes = self._options.processes
        named = trial.lock_row(self._scratch, row, self._inputs, processes=processes)
        self._accepted = named
        moved = {
            package: after for package, _, after in row_text.version_changes(start.target, target)
        }
        derived_row = DerivedRow(of=start.source, made=today, moved=moved)
        unwritten = catalogue.place_row(
            self._project, self._scratch, named, derived_row, self._inputs
        )
        return name, unwritten

    def _result(self, row: str, unwritten: tuple[Constraint, ...]) -> RowUpdate:
        start = self._start
        moves = tuple(
            PinMove(package=package, before=old, after=new, fixes=self._fixes.get(package, ()))
            for package, old, new in row_text.version_changes(start.target, self._row.target)
        )
        if self._accepted is not None:
            parts = _newer_base_parts(start.snapshot)
            moves += tuple(PinMove(package=part, before=old, after=new) for part, old, new in parts)
        known = tried_updates.read_updates(self._project.images).of(start.origin)
        tried = {key: known[key] for key in self._refused if key in known}
        newer = {(axis.package, each.version) for axis in start.axes for each in axis.releases}
        return RowUpdate(
            source=start.source,
            row=row,
            moves=moves,
            refused=tuple(tried.values()),
            kept=tuple(item for key, item in known.items() if key in newer and key not in tried),
            waiting=versions_in_cool_down(start),
            diff=self._diff() if row else None,
            unwritten=unwritten,
        )

    def _diff(self) -> ImageDiff | None:
        if self._accepted is None:
            return None
        old = None
        if (lock := self._start.lock) is not None:
            old = (lock, image_digests.read_digests(self._project.images, lock))
        return image_diff.diff_locked_targets(old, (self._accepted.lock, self._accepted.digests))


def planned_versions(
    project: Project, start: RowCandidates, inputs: Inputs, options: UpdateSettings
) -> dict[str, tuple[str, ...]]:
    """Return the versions that an update would try, by package."""
    versions: dict[str, tuple[str, ...]] = {}
    for package, version in RowUpdater(project, project, start, inputs, options).pending_versions():
        versions[package] = (*versions.get(package, ()), version)
    return versions


def versions_in_cool_down(start: RowCandidates) -> dict[str, tuple[str, ...]]:
    """Return the versions in the cool-down, by package."""
    return {
        axis.package: tuple(release.version for release in axis.waiting)
        for axis in start.axes
        if axis.waiting
    }


def update_rows(
    project: Project,
    matrix_of: Callable[[], Matrix],
    starts: Sequence[RowCandidates],
    inputs: Inputs,
    options: UpdateSettings,
) -> tuple[list[RowUpdate], dict[str, ImgbuildError]]:
    """Update each row, and map rows for which no update could be tried to their errors.

    `matrix_of` reads the current matrix, because each update can add a row.
    """
    done: list[RowUpdate] = []
    failed: dict[str, ImgbuildError] = {}
    reporter = inputs.context.reporter
    for start in starts:
        with trial.scratch_project(project, inputs) as scratch:
            inside = Inputs(matrix_of(), inputs.context, mirror=inputs.mirror)
            updater = RowUpdater(project, scratch, start, inside, options)
            number = len(updater.pending_versions())
            try:
                with reporter.progress(f"updating {start.source}", number, unit="versions") as bar:
                    done.append(updater.run(bar))
            except ImgbuildError as error:
                reporter.error(f"{start.source}: {error.message}", hint=error.hint)
                failed[start.source] = error
    return done, failed
