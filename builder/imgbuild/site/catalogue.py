"""Reads everything that a site shows from a project: matrix, locks, digests, test records.

Nothing is fetched. A lock that is out of date is shown as such, without digest and layers.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.attest.sbom.packages import Package, recorded
from imgbuild.cves.check import CveReport
from imgbuild.errors import LockStale
from imgbuild.lock import lock_file, published
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.select import select
from imgbuild.plan import image_digests
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.project_paths import CATALOGUE, Project
from imgbuild.registry.image_reference import Repository
from imgbuild.show import page, status, table
from imgbuild.show.table import TableRow
from imgbuild.site import commands, grid, neighbours, refusals, requirements
from imgbuild.site.history import SiteHistory, revision
from imgbuild.site.model import (
    DebianList,
    DrawnLayer,
    ImageLayers,
    PackageVersions,
    SiteCatalogue,
    SiteTarget,
)
from imgbuild.smoke.records import LISTED
from imgbuild.system.reporter import SILENT, Reporter
from imgbuild.values import Arch, Sha256

# Packages for which people choose an image, in the order of the filter.
STACKS = ("vllm", "sglang", "trl", "verl", "unsloth", "deepspeed", "ray")
REPORTS_HINT = "make it with: imgbuild cves --all --json > FILE"


class SiteSources(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of a project that a site is made of. `records` is the metadata of wheels."""

    project: Project
    matrix: Matrix
    learned: tuple[Constraint, ...]
    records: Mapping[Sha256, Package]


def read_reports(path: Path) -> tuple[CveReport, ...]:
    """The reports that `imgbuild cves --json` wrote to `path`; InputError for another file."""
    return codec.read(path, tuple[CveReport, ...], what="report of `cves`", hint=REPORTS_HINT)


def open_sources(project: Project) -> SiteSources:
    """Read the matrix, the learned constraints and the metadata of wheels; InputError if wrong."""
    matrix = published.load(project.matrix)
    folders = dict.fromkeys((CATALOGUE / "images", project.images))
    return SiteSources(
        project=project,
        matrix=matrix,
        learned=published.known_constraints(matrix, project.images),
        records=recorded([*folders]),
    )


def read_catalogue(
    sources: SiteSources,
    repository: Repository | None,
    history: SiteHistory,
    reports: Sequence[CveReport] = (),
    *,
    title: str = "",
    reporter: Reporter = SILENT,
) -> SiteCatalogue:
    """The catalogue of a project. InputError for a file that cannot be read."""
    project, matrix = sources.project, sources.matrix
    selected = select(matrix, [], everything=True, arches=[])
    rows = table.ordered(table.rows(matrix, published.shown(matrix, selected)))
    targets = [
        _target(sources, table.shown(project, row), repository, history, reports, reporter)
        for row in rows
    ]
    debian = tuple(_debian_lists(targets))
    pages = {user: each.page for each in debian for user in each.users}
    complete = tuple(
        msgspec.structs.replace(
            target,
            neighbours=neighbours.neighbours(target, targets),
            debian=tuple(
                (arch, pages[target.name, arch])
                for arch in sorted(target.lock.arch if target.lock else (), reverse=True)
                if (target.name, arch) in pages
            ),
        )
        for target in targets
    )
    return SiteCatalogue(
        title=title or _title(project, repository),
        registry=str(repository) if repository else "",
        targets=complete,
        debian=debian,
        grid=grid.grid(complete),
        refusals=refusals.refusals(sources.project, sources.matrix, sources.learned),
        requires=requirements.requirements(sources.records, complete),
        made=datetime.datetime.now(datetime.UTC).date().isoformat(),
        revision=revision(project),
    )


def _target(
    sources: SiteSources,
    row: TableRow,
    repository: Repository | None,
    history: SiteHistory,
    reports: Sequence[CveReport],
    reporter: Reporter,
) -> SiteTarget:
    project, matrix = sources.project, sources.matrix
    target, name = matrix.targets[row.target], row.target
    lock, target_digests, stale = None, None, ""
    if lock_file.lock_path(project.images, name).exists():
        try:
            lock = lock_file.read_lock(project.images, name)
            target_digests = image_digests.read_digests(project.images, lock)
        except LockStale as error:
            lock, stale = None, error.message
            reporter.warn(f"{name}: its page has no digest: {error.message}")
    if lock is None:
        row = msgspec.structs.replace(row, images=())
    versions = _versions(lock)
    current = bool(lock and target_digests)
    return SiteTarget(
        row=row,
        page=page.page(row, lock, target_digests, str(repository) if repository else None),
        lock=lock,
        digests=target_digests,
        needs=() if lock or stale else status.needs(matrix, name),
        stale=stale,
        stacks=tuple(stack for stack in STACKS if stack in row.pins or stack in versions),
        versions=tuple(_shown_versions(row, lock)),
        packages=tuple(_packages(lock)) if lock else (),
        layers=tuple(_layers(target_digests)) if target_digests else (),
        commands=commands.commands(lock, target_digests, repository)
        if lock and target_digests
        else (),
        waivers=target.waive,
        accepted=(*target.accept_cves, *matrix.accept_cves),
        advisories=tuple(report for report in reports if current and report.target == name),
        learned=tuple(str(entry) for entry in sources.learned if entry.concerns(versions)),
        history=history.targets.get(name, ()),
    )


def _versions(lock: Lock | None) -> dict[str, str]:
    """Package → version on any architecture."""
    versions: dict[str, str] = {}
    for resolution in lock.arch.values() if lock else ():
        versions |= resolution.versions
    return versions


def _shown_versions(row: TableRow, lock: Lock | None) -> Iterable[tuple[str, str]]:
    """The pins of a target, and then the versions of the packages in LISTED that it has."""
    yield from row.pins.items()
    for package in _packages(lock) if lock else ():
        if package.name in LISTED and package.name not in row.pins:
            yield package.name, " / ".join(package.versions)


def _packages(lock: Lock) -> Iterable[PackageVersions]:
    """The packages of a lock by name, with the versions of its architectures."""
    by_arch = {arch: resolution.versions for arch, resolution in lock.arch.items()}
    for name in sorted({name for versions in by_arch.values() for name in versions}):
        have = {arch: versions[name] for arch, versions in by_arch.items() if name in versions}
        yield PackageVersions(
            name=name,
            versions=tuple(dict.fromkeys(have.values())),
            only=next(iter(have)) if len(have) < len(by_arch) else "",
        )


def _layers(target_digests: TargetDigests) -> Iterable[ImageLayers]:
    sizes = [layer.size for image in target_digests.arch.values() for layer in image.layers]
    largest = max(sizes, default=1) or 1
    for arch, image in sorted(target_digests.arch.items(), reverse=True):
        total = sum(layer.size for layer in image.layers) or 1
        yield ImageLayers(
            arch=arch,
            bars=tuple(
                DrawnLayer(
                    name=layer.name,
                    size=layer.size,
                    percent=round(100 * layer.size / total, 1),
                    scale=round(100 * layer.size / largest, 1),
                )
                for layer in image.layers
            ),
        )


def _debian_lists(targets: Sequence[SiteTarget]) -> Iterable[DebianList]:
    """Each set of Debian packages once, with the images that have it."""
    lists: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[str, Arch]]] = {}
    dates: dict[tuple[str, Arch], str] = {}
    for target in targets:
        for arch, resolution in target.lock.arch.items() if target.lock else ():
            key = tuple(sorted((deb.package, deb.version) for deb in resolution.debs))
            if key and target.lock:
                lists.setdefault((target.lock.base.name, key), []).append((target.name, arch))
                dates[target.name, arch] = resolution.security or ""
    numbers: dict[str, int] = {}
    for (base, key), users in lists.items():
        arches = "-".join(sorted({arch for _, arch in users}))
        name = f"{base}-{arches}"
        numbers[name] = number = numbers.get(name, 0) + 1
        yield DebianList(
            page=f"{name}-{number}" if number > 1 else name,
            base=base,
            security=max(dates[user] for user in users),
            users=tuple(users),
            packages=key,
        )


def _title(project: Project, repository: Repository | None) -> str:
    if not project.writable:
        return "imgbuild"
    return repository.name.rpartition("/")[2] if repository else project.root.name or "images"
