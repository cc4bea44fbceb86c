"""settle: resolve, audit, learn, resolve again, until nothing is wrong or nothing more is learned.

Comes in: a target, the architectures, what was learned before. Goes out: a resolution for each
architecture whose audit is clean, and what was learned on the way. No wheel is downloaded for it:
what the audit reads of Python code and METADATA comes by ranges. Each thing is written down as soon
as it is learned, so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from imgbuild.audit.judge import Terms, audit
from imgbuild.audit.main_path.additions import widened
from imgbuild.audit.main_path.closure import MainPath, main_path
from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.package_set import PackageSet, open_package_set, wheels_of
from imgbuild.cache.download import Http
from imgbuild.cache.store import Store
from imgbuild.errors import WorldImpossible
from imgbuild.index.remote_wheel import Blocks
from imgbuild.learn import removed_attributes
from imgbuild.learn.boundaries import Shelf
from imgbuild.learn.learn import joined, learn
from imgbuild.lock.resolution import Resolution, Wheel
from imgbuild.matrix import constraints
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Matrix
from imgbuild.report import Finding, Report, Severity
from imgbuild.solve import solve
from imgbuild.solve.solve import Asked
from imgbuild.system.console import console
from imgbuild.values import Arch

Keep = Callable[[Iterable[Constraint]], tuple[Constraint, ...]]
# The checks that files on a server are enough for.
READABLE = ("metadata", "imports", "calls", "support", "rules")
EACH = 4  # findings between the same two packages that are learned from in one round
SHOWN = 8


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """A world without errors for each architecture, what was learned, and after how many rounds."""

    resolutions: Mapping[Arch, Resolution]
    reports: Mapping[Arch, Report]
    learned: tuple[Constraint, ...]
    rounds: int


class One(msgspec.Struct, frozen=True, kw_only=True):
    """What one architecture came to, and all that is known after it."""

    resolution: Resolution
    report: Report
    known: tuple[Constraint, ...]
    rounds: int


def settle(
    matrix: Matrix,
    name: str,
    arches: Sequence[Arch],
    store: Store,
    http: Http,
    known: Sequence[Constraint],
    keep: Keep,
) -> Settled:
    """Target `name` resolved so that its audit is clean.

    `keep` writes down what was learned, and answers with all that is known then. WorldImpossible,
    with the chain and its evidence, if there is no such world.
    """
    before, done = tuple(known), dict[Arch, One]()
    known, rounds = before, 0
    while due := [arch for arch in arches if arch not in done or _broken(done[arch], known)]:
        with solve.opened(matrix, name, due[0], store, http) as asked:
            done[due[0]] = settle_one(asked, store, http, known, keep)
        known = done[due[0]].known
        rounds += done[due[0]].rounds
    return Settled(
        resolutions={arch: done[arch].resolution for arch in arches},
        reports={arch: done[arch].report for arch in arches},
        learned=tuple(entry for entry in known if entry not in before),
        rounds=rounds,
    )


def _broken(one: One, known: Sequence[Constraint]) -> bool:
    """Whether another architecture taught something that this one goes against."""
    return bool(constraints.violations(known, one.resolution.versions))


def settle_one(
    asked: Asked, store: Store, http: Http, known: Sequence[Constraint], keep: Keep
) -> One:
    """One target on one architecture, resolved again until its audit is clean; see `settle`."""
    name, arch = asked.world.name, asked.world.arch
    known, rounds = tuple(known), 0
    while True:
        rounds += 1
        with console.step(f"round {rounds}: resolving {name} for {arch}"):
            chosen = solve.ask(asked.world, store, known)
            resolution = solve.lock_answer(asked, chosen, http)
        # A library for each round: what it has read is on the disk after it, and only there.
        with Library(store, Blocks(http)) as library:
            shelf = Shelf(asked.world.catalogue, library, store)
            with console.step(f"round {rounds}: auditing"):
                report = audit_of(resolution, shelf, terms_of(asked, resolution))
            errors = [one for one in report.findings if one.severity is Severity.ERROR]
            if not errors:
                solve.tell(asked.world, chosen)
                return One(resolution=resolution, report=report, known=known, rounds=rounds)
            with console.step(f"round {rounds}: learning from {len(errors)} errors"):
                now = keep(learn_all(errors, shelf, asked.world.target.pins.keys(), known))
        if now == known:
            raise stuck(name, arch, errors)
        known = now


def teach(
    matrix: Matrix,
    name: str,
    arch: Arch,
    store: Store,
    http: Http,
    known: Sequence[Constraint],
    errors: Sequence[Finding],
) -> tuple[Constraint, ...]:
    """What errors of another audit of target `name` teach: that of files which had to be here."""
    with solve.opened(matrix, name, arch, store, http) as asked, Library(store, http) as library:
        shelf = Shelf(asked.world.catalogue, library, store)
        return learn_all(errors, shelf, matrix.targets[name].pins.keys(), known)


def terms_of(asked: Asked, resolution: Resolution) -> Terms:
    """What counts for a target beside its packages."""
    target, kept = asked.world.target, asked.world.kept
    added = resolution.versions.keys() - kept.versions.keys() if kept is not None else ()
    return Terms(
        target=asked.world.name,
        cuda=target.cuda,
        gpu=target.gpu,
        waivers=target.waive,
        added=tuple(sorted(added)),
    )


def audit_of(resolution: Resolution, shelf: Shelf, terms: Terms) -> Report:
    """What is wrong on the main path, as code, METADATA and the packages' past tell."""
    world = world_of(resolution, shelf)

    def _past(path: MainPath) -> list[Finding]:
        return removed_attributes.check(world, path, lambda: shelf)

    path = main_path(world, widened(world, terms.added))
    return audit(world, terms, checks=READABLE, path=path, past=_past)


def world_of(resolution: Resolution, shelf: Shelf) -> PackageSet:
    """All of a resolution; what is not in the store is read where its index has it."""
    rules = shelf.catalogue.rules

    def _locate(wheel: Wheel) -> Path | str:
        path = shelf.store.file(wheel.sha256)
        if path is not None:
            return path
        files = shelf.catalogue.indexes.files(wheel.package)
        return next(file.url for file in files if file.name == wheel.file)

    return open_package_set(
        wheels_of(resolution),
        shelf.library,
        python=rules.tags.python,
        arch=rules.tags.arch,
        glibc=rules.tags.glibc,
        locate=_locate,
    )


def learn_all(
    errors: Iterable[Finding],
    shelf: Shelf,
    pinned: Collection[str],
    known: Sequence[Constraint] = (),
) -> tuple[Constraint, ...]:
    """What the errors teach; of many between the same two packages the first few."""
    seen: set[tuple[str, ...]] = set()
    pairs: Counter[tuple[str, str]] = Counter()
    learned: list[Constraint] = []
    for finding in errors:
        evidence = finding.evidence
        if evidence is None:
            continue
        key = (evidence.relation, evidence.package, evidence.other, evidence.subject)
        pair = (evidence.package, evidence.other)
        if key in seen or pairs[pair] >= EACH:
            continue
        seen.add(key)
        entry = learn(finding, shelf, pinned)
        if entry is not None:
            pairs[pair] += 1
            entry = joined(entry, (*known, *learned), shelf)
            learned.append(entry)
            console.info(f"learned: {entry}")
    return constraints.merge((), learned)


def stuck(name: str, arch: Arch, errors: Sequence[Finding]) -> WorldImpossible:
    """The refusal of a world whose errors teach nothing that is not known."""
    shown = [f"{error.message} ({error.where})" for error in errors[:SHOWN]]
    if len(errors) > SHOWN:
        shown.append(f"and {len(errors) - SHOWN} more; imgbuild audit shows all")
    message = f"{name} on {arch}: its packages do not fit together, and no other set is known"
    hint = "change a pin; or, if you know better, waive the finding in matrix.yaml with a reason"
    return WorldImpossible(message, reasons=tuple(shown), hint=hint)
