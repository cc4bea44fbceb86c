"""Updates a matrix: tries newer versions and adds rows."""

# A separate module: one of two forms.
from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from imgbuild import codec
from imgbuild.assemble.inputs import Inputs
from imgbuild.cli._options import Osv
from imgbuild.cli._output import fold_lines, format_count, print_result, size_text
from imgbuild.cli._targets import WholeTargets
from imgbuild.cli._verb import OUTPUT, TARGETS_PANEL, OptionGroup, option
from imgbuild.errors import NothingSelected, SomeFailed
from imgbuild.lock import published
from imgbuild.matrix.tried_updates import FILE
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.session import Session
from imgbuild.render import bake
from imgbuild.system import files
from imgbuild.system.console import console
from imgbuild.update import catalogue, lock_changes, run
from imgbuild.update.advisories import UpdateAdvisories
from imgbuild.update.axes import CoolDown
from imgbuild.update.run import RowCandidates, RowUpdate
from imgbuild.values import normalize_package

DAYS = 7
REASONS = 3  # of a refusal on the terminal


class UpdateOptions(OptionGroup, frozen=True, kw_only=True):
    """Options that select the newer versions to try for the packages of a matrix."""

    axis: Annotated[
        list[str] | None,
        option(
            "--axis",
            "Try only newer versions of this package, or of the Debian snapshot ('base') or the "
            "standalone Python ('python'). Can be repeated. Default: all packages that a row "
            "pins.",
            metavar="PACKAGE",
            panel=TARGETS_PANEL,
            often=True,
        ),
    ] = None
    cool_down: Annotated[
        int,
        option(
            "--cool-down",
            "Use only releases that are at least this many days old, except releases that fix a "
            "known vulnerability.",
            metavar="DAYS",
            min=0,
            often=True,
            setting=True,
        ),
    ] = DAYS
    no_cool_down: Annotated[
        bool, option("--no-cool-down", "Use releases of any age.", often=True)
    ] = False
    pull_request: Annotated[
        Path | None,
        option(
            "--pull-request",
            "Also write the changes to this file as Markdown, for use in a pull request.",
            metavar="FILE",
            panel=OUTPUT,
        ),
    ] = None
    osv: Osv = None

    @property
    def given_options(self) -> tuple[str, ...]:
        """The options that differ from their defaults."""
        values = {
            "--axis": self.axis,
            "--cool-down": self.cool_down != DAYS,
            "--no-cool-down": self.no_cool_down,
            "--pull-request": self.pull_request,
            "--osv": self.osv,
        }
        return tuple(name for name, value in values.items() if value)


class PlannedUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `--dry-run` for a row: the versions to try for each package, in order.

    The newest version that works is used. `waiting` lists versions in the cool-down period.
    """

    source: str
    trials: dict[str, tuple[str, ...]]
    waiting: dict[str, tuple[str, ...]]


def update_matrix(
    session: Session, selection: WholeTargets, chosen: UpdateOptions, *, dry_run: bool
) -> None:
    """Try newer versions for rows of a matrix, and print new rows and rejected versions.

    Raises SomeFailed if rows could not be tried. The results of other rows are kept.
    """
    names = _names(selection, session)
    _require_places(session, chosen.pull_request)
    inputs = open_inputs(session, locking=True)
    now = datetime.datetime.now(datetime.UTC)
    days = None if chosen.no_cool_down else chosen.cool_down
    options = run.UpdateSettings(
        packages=tuple(normalize_package(package) for package in chosen.axis or ()),
        cool_down=CoolDown(days=days, today=now.date()),
        processes=session.options.jobs,
        advisories=UpdateAdvisories(chosen.osv, inputs.context, now).fixed,
    )
    starts = run.find_candidates(session.project, names, inputs, options)
    if dry_run:
        _print_planned(session, starts, inputs, options)
        return
    done, failed = run.update_rows(
        session.project,
        lambda: published.load_matrix(session.project.matrix),
        starts,
        inputs,
        options,
    )
    if chosen.pull_request is not None:
        codec.write_bytes(chosen.pull_request, lock_changes.changes_markdown(done).encode())
    if failed and console.json:
        raise SomeFailed(failed)  # the error is the result
    print_result(done, fold_lines(line for item in done for line in _lines(item)))
    if failed:
        raise SomeFailed(failed)


def _names(selection: WholeTargets, session: Session) -> list[str]:
    """Return the selected targets or, by default, the recommended targets.

    Raises NothingSelected if the matrix has no recommended target.
    """
    targets = session.matrix.targets
    if selection.named_targets or selection.everything:
        chosen = session.select_targets(selection.named_targets, everything=selection.everything)
        return [item.name for item in chosen if not targets[item.name].exclude or item.arches]
    names = [name for name, target in targets.items() if target.recommended]
    if not names:
        message = f"{session.project.matrix} has no recommended target"
        raise NothingSelected(message, hint="specify targets, or use --all")
    return names


def _require_places(session: Session, text: Path | None) -> None:
    project = session.project
    project.require_writable("imgbuild update")
    catalogue.require_regular(project)
    places = [project.matrix, project.images, project.images / FILE, project.folder / bake.FILE]
    files.require_writable(places, hint="use a writable copy of the project")
    if text is not None:
        files.require_writable([text], hint="choose another path with --pull-request")


def _print_planned(
    session: Session, starts: Sequence[RowCandidates], inputs: Inputs, options: run.UpdateSettings
) -> None:
    planned = [
        PlannedUpdate(
            source=start.source,
            trials=run.planned_versions(session.project, start, inputs, options),
            waiting=run.versions_in_cool_down(start),
        )
        for start in starts
    ]
    lines = [line for item in planned for line in _planned_lines(item)]
    print_result(planned, fold_lines(lines))


def _planned_lines(item: PlannedUpdate) -> Iterator[str]:
    if not item.trials:
        yield f"{item.source}: no newer versions to try"
    for package, versions in item.trials.items():
        yield f"{item.source}: {package} {', '.join(versions)}"
    yield from _waiting_lines(item.source, item.waiting)


def _lines(item: RowUpdate) -> Iterator[str]:
    if item.row:
        yield f"{item.source} → {item.row}"
        for move in item.moves:
            fixes = f" (fixes {', '.join(move.fixes)})" if move.fixes else ""
            yield f"  {move.package} {move.before} → {move.after}{fixes}"
        for arch, part in (item.diff.arch if item.diff is not None else {}).items():
            yield (
                f"  {arch}: {format_count(len(part.changes), 'package')} changed;"
                f" {size_text(part.pull)} of {size_text(part.total)} to pull"
            )
    elif not item.refused:
        yield f"{item.source}: no newer versions to try"
    for refusal in item.refused:
        yield f"{item.source}: rejected {refusal.package} {refusal.version}"
        yield from (f"  {reason}" for reason in refusal.reasons[:REASONS])
        if len(refusal.reasons) > REASONS:
            yield f"  and {len(refusal.reasons) - REASONS} more in images/{FILE}"
    if item.kept:
        versions = ", ".join(f"{refusal.package} {refusal.version}" for refusal in item.kept)
        yield f"{item.source}: already rejected for the same reasons: {versions}"
    for entry in item.unwritten:
        yield f"{item.source}: learned constraint {entry}, which a lock of the matrix violates"
    yield from _waiting_lines(item.source, item.waiting)


def _waiting_lines(source: str, waiting: dict[str, tuple[str, ...]]) -> Iterator[str]:
    for package, versions in waiting.items():
        yield (
            f"{source}: {package} {', '.join(versions)} skipped, because the cool-down period has "
            "not ended"
        )
