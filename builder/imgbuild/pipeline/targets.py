"""Locks and checks several targets, and reports security updates.

    lock:   resolve → audit → learn → resolve again → lock → plan → fetch → assemble (digests only)
            → audit of whole files → digests → render
    build:  lock and digests → plan → fetch → assemble → OCI layout

`lock_target` and `assemble.image_layout` run the steps for a single target. This module locks
several targets, and `pipeline.build` builds several targets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from imgbuild.assemble.inputs import Inputs
from imgbuild.cache import prune
from imgbuild.cache.context import Context
from imgbuild.deb import apt
from imgbuild.errors import ImgbuildError, ImpossibleRequirements, Interrupted, NoSolution
from imgbuild.lock import published
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.locked_matrix import locked_versions
from imgbuild.matrix.model import Base, DebianBase
from imgbuild.matrix.select import Selected
from imgbuild.pipeline import lock_target, source_packages
from imgbuild.pipeline.downloads import plan_downloads
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.opened import report_templates
from imgbuild.pipeline.session import Session
from imgbuild.plan import current
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.project import fetch
from imgbuild.project.model import DeclaredName
from imgbuild.render import bake, write
from imgbuild.resolve import repositories
from imgbuild.resolve.demands import package_demands
from imgbuild.resolve.feasible import IndexPages, find_obstacles
from imgbuild.show import image_diff, revisions
from imgbuild.solve import repository_name
from imgbuild.solve.problem import SolveProblem
from imgbuild.system import files
from imgbuild.system.amounts import join_first
from imgbuild.system.console import console
from imgbuild.values import normalize_package
from imgbuild.wheel.tags import WheelTags

SHOWN_UPDATES = 5


class LockResult(msgspec.Struct, frozen=True, kw_only=True):
    """The digests of locked targets, and the errors of targets that could not be locked."""

    target_digests: tuple[TargetDigests, ...]
    failed: dict[str, ImgbuildError]


def lock_all(
    session: Session, selected: Sequence[Selected], *, drop: bool, again: bool = True
) -> LockResult:
    """Lock each target and compute its digests. After a failure, other targets are still locked.

    Unless `again` is set, current locks are skipped, so that an interrupted run can be resumed. If
    only one target is selected, its error is raised. Raises InputError if the project is read-only.
    """
    report_templates(session.project)
    session.project.require_writable("imgbuild lock")
    images = session.project.images
    places = [
        images,
        *(images / item.name for item in selected),
        session.project.folder / bake.FILE,
    ]
    files.require_writable(places, hint="use a writable copy of the project")
    inputs = open_inputs(session, locking=True)
    project, matrix, count = session.project, session.matrix, len(selected)
    done: dict[str, TargetDigests] = {}
    failed: dict[str, ImgbuildError] = {}
    locks: dict[str, Lock] = {}
    for number, item in enumerate(selected, start=1):
        if not again and (current := _current_digests(session, item.name)) is not None:
            console.info(f"{item.name}: the lock is current ({number} of {count})")
            done[item.name] = current
            continue
        with _report_failures(session, item.name, inputs, failed, single=count == 1):
            _refuse_impossible(item.name, inputs)
            locks[item.name] = lock_target.resolve_target(project, item.name, inputs)
    total = plan_downloads(project, list(locks.values()), inputs)
    if locks:
        total.transfer.announce_total()
    for name, lock in locks.items():
        inputs = inputs.with_transfer(total.transfer, kept_files=total.later[name])
        with _report_failures(session, name, inputs, failed, single=count == 1):
            done[name] = lock_target.lock_target(
                project, lock, inputs, processes=session.options.jobs, drop=drop
            )[1]
            console.info(f"{name}: locked ({len(done) + len(failed)} of {count})")
        if drop:
            inputs.drop_files(total.missing)
    total.transfer.close()
    bases = [(lock, matrix.bases[matrix.targets[name].base]) for name, lock in locks.items()]
    report_security_updates(bases, inputs.context)
    target_digests = [done[item.name] for item in selected if item.name in done]
    write.keep_new(
        project, matrix, [target_digests.target for target_digests in target_digests], console
    )
    prune.trim_cache(inputs.store)
    return LockResult(target_digests=tuple(target_digests), failed=failed)


@contextlib.contextmanager
def _report_failures(
    session: Session, name: str, inputs: Inputs, failed: dict[str, ImgbuildError], *, single: bool
) -> Iterator[None]:
    """Report an error of target `name`, and record it in `failed`.

    If `single` is set, or the user interrupted the work, the error is raised instead.
    """
    try:
        with _explain_failures(session, name, inputs):
            yield
    except ImgbuildError as error:
        if single or isinstance(error, Interrupted):
            raise
        console.error(f"{name}: {error.message}", hint=error.hint)
        failed[name] = error


@contextlib.contextmanager
def _explain_failures(session: Session, name: str, inputs: Inputs) -> Iterator[None]:
    try:
        yield
    except ImpossibleRequirements:
        raise  # the message is complete
    except NoSolution as error:
        with console.step(f"looking for the cause and suggestions for {name}"):
            raise _explain_error(error, session, name, inputs) from error


def _explain_error(error: NoSolution, session: Session, name: str, inputs: Inputs) -> NoSolution:
    from imgbuild.resolve import explain

    recorded = published.known_constraints(session.matrix, session.project.images)
    for arch in session.matrix.targets[name].arch:
        problem = SolveProblem(session.matrix, name, arch, inputs.context, recorded)
        better = explain.explain_error(error, problem)
        if better is not error:
            return NoSolution(
                f"{name} for {arch}: {better.message}",
                reasons=better.reasons,
                nearest=better.nearest,
                hint=better.hint,
            )
    return error


def _current_digests(session: Session, name: str) -> TargetDigests | None:
    with contextlib.suppress(ImgbuildError):
        return current.read_current(session.project, session.matrix, name)[1]
    return None


def check_all(session: Session, selected: Iterable[Selected]) -> list[TargetDigests]:
    """Read the digests of the targets. Raises LockStale if a lock or digest is out of date."""
    return [
        current.read_current(session.project, session.matrix, item.name)[1] for item in selected
    ]


def diff_all(
    session: Session, selected: Iterable[Selected], revision: str
) -> list[image_diff.ImageDiff]:
    """Return the changes of each target since a git `revision`."""
    return [
        image_diff.diff_locked_targets(
            revisions.locked_at(session.project, item.name, revision),
            current.read_current(session.project, session.matrix, item.name),
        )
        for item in selected
    ]


def report_security_updates(locks: Iterable[tuple[Lock, Base]], context: Context) -> None:
    """Report missing security updates of the Debian packages of `locks`, once for each base.

    If the security suite cannot be read, a message is printed only with -v, because locks do not
    need the suite.
    """
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for lock, base in locks:
        arch, resolution = next(iter(lock.arch.items()))
        packages = (lock.base.name, tuple(deb.sha256 for deb in resolution.debs))
        if not isinstance(base, DebianBase) or packages in seen:
            continue
        seen.add(packages)
        try:
            date, updates = apt.security_updates(base, resolution.debs, arch, context)
        except ImgbuildError as error:
            context.reporter.detail(
                f"could not check security updates of {lock.base.name}: {error.message}"
            )
            continue
        if updates:
            context.reporter.info(_updates_text(lock, date, updates, len(resolution.debs)))


def _updates_text(
    lock: Lock, date: str, updates: tuple[apt.SecurityUpdate, ...], total: int
) -> str:
    named = join_first([f"{each.package} {each.fixed}" for each in updates], SHOWN_UPDATES)
    count = "has a security update" if len(updates) == 1 else "have security updates"
    return f"{lock.base.name}: {len(updates)} of {total} packages {count} ({date}): {named}"


def _refuse_impossible(name: str, inputs: Inputs) -> None:
    """Raise ImpossibleRequirements if the index does not satisfy a requirement of a row.

    The error has the file, line and reason of each such requirement. Packages of an extended target
    and packages of other indexes are not looked up.
    """
    matrix, context = inputs.matrix, inputs.context
    row = published.project_row(matrix, name)
    if row is None:
        return
    target, lock = matrix.targets[name], row.published.lock
    declared = row.requirements.declared
    left_out = {
        *(locked_versions(lock) if row.row.extends is not None else ()),
        *map(normalize_package, (*row.row.exclude, *row.row.relax)),
        *(each.package for each in declared.requirements if each.kind == "override"),
        *target.indexes,
    }
    tags = WheelTags(python=lock.base.python, glibc=lock.base.glibc, arch=target.arch[0])
    asked = [
        each for each in package_demands(declared, tags.markers) if each.package not in left_out
    ]
    pages = IndexPages(matrix, context, target.as_of)
    blocked = find_obstacles(asked, pages, tags)
    names, failures = repository_name.read_repository_names(declared.unnamed, context)
    failures += repositories.repository_failures(asked, context)
    reasons = [
        *source_packages.obstacle_reasons(row, blocked, asked, pages, tags),
        *_unnamed_repositories(declared.unnamed, names),
    ]
    if failures and not reasons:
        raise repositories.refusal_error(failures)
    reasons += repositories.error_lines(failures)
    if not reasons:
        return
    message = f"the index does not satisfy requirements of {name} for Python {lock.base.python}"
    hint = (
        "change the requirements in the project's files, or exclude packages in "
        "matrix.yaml: exclude: {PACKAGE: REASON}"
    )
    raise ImpossibleRequirements(message, reasons=tuple(reasons), hint=hint)


def _unnamed_repositories(declared: Sequence[DeclaredName], names: Mapping[str, str]) -> list[str]:
    return [
        f"{each.place}: {address} has no package name; write {names[address]} @ …, or add to "
        f'the row: names: {{"{address}": {names[address]}}}'
        for each in declared
        if (address := fetch.repository_url(each.name)) in names
    ]
