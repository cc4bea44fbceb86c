"""Reads the data for a site from a project: matrix, locks, digests and test records.

Nothing is downloaded. A lock that is out of date is marked, and its digest and layers are omitted.
"""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.attest.sbom import packages
from imgbuild.attest.sbom.packages import Package
from imgbuild.audit.binaries import gpus
from imgbuild.cves.check import CveReport
from imgbuild.errors import LockStale
from imgbuild.learn import recorded
from imgbuild.lock import lock_file, published
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix import constraints
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Matrix, Target
from imgbuild.matrix.project_paths import CATALOGUE, Project
from imgbuild.matrix.select import select_targets
from imgbuild.plan import image_digests
from imgbuild.plan.image_digests import LayerDigests, TargetDigests
from imgbuild.plan.plan import FilesRecipe, Recipe, WheelsRecipe, create_plan
from imgbuild.registry.image_reference import Repository
from imgbuild.render.readme import readme_text
from imgbuild.show import guide, page, status, table
from imgbuild.show.table import TableRow
from imgbuild.site import commands, grid, neighbours, requirements
from imgbuild.site.history import SiteHistory, checkout_commit
from imgbuild.site.model import (
    DebianList,
    DrawnLayer,
    PackageVersions,
    SiteCatalogue,
    SiteTarget,
    TargetLayers,
    UpdateCost,
)
from imgbuild.smoke.records import LISTED_PACKAGES
from imgbuild.system import files
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import Arch, Bytes, Sha256

# Packages for which users choose an image, in the order of the filter.
STACKS = ("vllm", "sglang", "trl", "verl", "unsloth", "deepspeed", "ray")
ATTENTION = ("flash-attn", "flash-attn-4", "flashinfer-python", "xformers", "sageattention")
TITLE = "Container images"
DRAWN_LAYERS = 9  # percent of the largest layer; smaller ones are drawn as one
_Debs = tuple[tuple[str, str], ...]  # packages and versions
REPORTS_HINT = "to create the file, run: imgbuild cves --all --json > FILE"


class SiteSources(msgspec.Struct, frozen=True, kw_only=True):
    """All data of a project for a site. `records` is the metadata of wheels."""

    project: Project
    matrix: Matrix
    learned: tuple[Constraint, ...]
    records: Mapping[Sha256, Package]


def read_reports(path: Path) -> tuple[CveReport, ...]:
    """Read the reports that `imgbuild cves --json` wrote to `path`.

    Raises InputError if the file contains other data.
    """
    return codec.read_document(
        path, tuple[CveReport, ...], what="report of `cves`", hint=REPORTS_HINT
    )


def open_sources(project: Project) -> SiteSources:
    """Read the matrix, the learned constraints and the metadata of wheels.

    Raises InputError if a file is invalid.
    """
    matrix = published.load_matrix(project.matrix)
    folders = dict.fromkeys((CATALOGUE / "images", project.images))
    learned = published.known_constraints(matrix, project.images)
    # Facts about pairs of versions, in addition to learned constraints.
    file = files.data("site/audited.yaml")
    audited = constraints.parse_constraints(file.read_bytes(), file.name)
    return SiteSources(
        project=project,
        matrix=matrix,
        learned=(*learned, *(entry for entry in audited if entry not in learned)),
        records=packages.recorded_packages([*folders]),
    )


def read_catalogue(
    sources: SiteSources,
    repository: Repository | None,
    history: SiteHistory,
    reports: Sequence[CveReport] = (),
    *,
    title: str = "",
    source: str = "",
    reporter: Reporter = SILENT_REPORTER,
) -> SiteCatalogue:
    """Read the catalogue of a project. Raises InputError if a file cannot be read."""
    project, matrix = sources.project, sources.matrix
    selected = select_targets(matrix, [], everything=True, arches=[])
    rows = _newest_first(table.create_rows(matrix, published.shown_targets(matrix, selected)))
    targets = [
        _target(sources, table.add_images(project, row), repository, history, reports, reporter)
        for row in rows
    ]
    debian = tuple(sorted(_debian_lists(targets), key=lambda each: each.page))
    lists = {user: each for each in debian for user in each.users}
    complete = tuple(
        msgspec.structs.replace(
            target,
            neighbours=neighbours.find_neighbours(target, targets),
            debian=tuple(
                (arch, lists[target.name, arch])
                for arch in sorted(target.lock.arch if target.lock else (), reverse=True)
                if (target.name, arch) in lists
            ),
        )
        for target in targets
    )
    return SiteCatalogue(
        title=title or (repository.name.rpartition("/")[2] if repository else TITLE),
        registry=str(repository) if repository else "",
        source=source.rstrip("/"),
        targets=complete,
        debian=debian,
        grid=grid.target_grid(complete),
        refusals=recorded.recorded_refusals(project.images, sources.matrix, sources.learned),
        notes=recorded.target_notes(matrix),
        requires=requirements.main_package_requirements(sources.records, complete),
        made=datetime.datetime.now(datetime.UTC).date().isoformat(),
        revision=checkout_commit(project),
    )


def _newest_first(rows: Iterable[TableRow]) -> list[TableRow]:
    """Sort recommended targets first, retired targets last, and each group by newest packages."""
    newest = sorted(rows, key=lambda row: (row.as_of, gpus.version_numbers(row.cuda)), reverse=True)
    return table.order_rows(newest)


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
            reporter.warn(f"the page of {name} does not show a digest: {error.message}")
    if lock is None:
        row = msgspec.structs.replace(row, images=())
    versions = _versions(lock)
    current = bool(lock and target_digests)
    return SiteTarget(
        row=row,
        page=page.target_page(row, lock, target_digests, str(repository) if repository else None),
        lock=lock,
        digests=target_digests,
        needs=() if lock or stale else status.target_needs(matrix, name),
        stale=stale,
        stacks=tuple(stack for stack in STACKS if stack in row.pins or stack in versions),
        versions=tuple(_shown_versions(row, lock)),
        attention=_attention(versions) if lock else "",
        packages=tuple(_packages(lock)) if lock else (),
        layers=_layers(lock, target_digests) if lock and target_digests else None,
        commands=commands.target_commands(
            lock, target_digests, repository, rendered=not row.retired
        )
        if lock and target_digests
        else (),
        waivers=target.waive,
        accepted=(*target.accept_cves, *matrix.accept_cves),
        advisories=tuple(report for report in reports if current and report.target == name),
        learned=tuple(str(entry) for entry in sources.learned if entry.applies_to(versions)),
        incompatible=recorded.recorded_incompatibilities(versions, row.python),
        guide=_guide(project, target, lock) if current and lock and not row.retired else "",
        history=history.targets.get(name, ()),
    )


def _guide(project: Project, target: Target, lock: Lock) -> str:
    """Return the current README for an image, from its second heading.

    That of an image that is not recommended starts at the third: its folders and ports are on the
    page to start, which saves 10 kB.
    """
    applied = guide.image_readme(readme_text(lock, target, project.images), lock, target)
    headings = [found.start() + 1 for found in re.finditer("\n## ", applied)]
    return applied[headings[0 if target.recommended else 1] :]


def _versions(lock: Lock | None) -> dict[str, str]:
    """Package versions on any architecture, by package."""
    versions: dict[str, str] = {}
    for resolution in lock.arch.values() if lock else ():
        versions |= resolution.versions
    return versions


def _attention(versions: Mapping[str, str]) -> str:
    """List packages with attention kernels, and those that users expect but the image lacks."""
    having = [f"{name} {versions[name]}" for name in ATTENTION if name in versions]
    having += ["vLLM's own"] if "vllm" in versions else []
    lacking = [name for name in ATTENTION[:1] if name not in versions]
    return ", ".join([*having, *(f"no {name}" for name in lacking)])


def _shown_versions(row: TableRow, lock: Lock | None) -> Iterable[tuple[str, str]]:
    """Yield the pins of a target, followed by versions of packages in LISTED_PACKAGES."""
    yield from row.pins.items()
    for package in _packages(lock) if lock else ():
        if package.name in LISTED_PACKAGES and package.name not in row.pins:
            yield package.name, " / ".join(package.versions)


def _packages(lock: Lock) -> Iterable[PackageVersions]:
    """Yield the packages of a lock by name, with versions for each architecture."""
    by_arch = {arch: resolution.versions for arch, resolution in lock.arch.items()}
    for name in sorted({name for versions in by_arch.values() for name in versions}):
        have = {arch: versions[name] for arch, versions in by_arch.items() if name in versions}
        yield PackageVersions(
            name=name,
            versions=tuple(dict.fromkeys(have.values())),
            only=next(iter(have)) if len(have) < len(by_arch) else "",
        )


def _layers(lock: Lock, target_digests: TargetDigests) -> TargetLayers:
    arches = sorted(target_digests.arch, reverse=True)
    named = {*STACKS, "torch", "transformers", "tensordict"}
    images = {arch: target_digests.arch[arch].layers for arch in arches}
    recipes = {arch: create_plan(lock, arch).layers for arch in arches}
    largest = max((layer.size for layers in images.values() for layer in layers), default=0) or 1
    sizes: dict[str, dict[Arch, Bytes]] = {}
    wheels: dict[str, dict[int, None]] = {}  # the numbers of packages in a group
    for arch in arches:
        for layer, planned in zip(images[arch], recipes[arch], strict=True):
            sizes.setdefault(layer.name, {})[arch] = layer.size
            if (number := len(_recipe_wheels(planned.recipe))) > 1:
                wheels.setdefault(layer.name, {})[number] = None
    bars = [
        DrawnLayer(
            name=name,
            sizes=tuple(found.get(arch, 0) for arch in arches),
            scale=round(100 * max(found.values()) / largest),
            packages=" and ".join(map(str, wheels.get(name, ()))),
        )
        for name, found in sizes.items()
    ]
    small = [bar for bar in bars if bar.scale < DRAWN_LAYERS]
    columns = range(len(arches))
    first = [layer.recipe for layer in recipes[arches[0]]]
    return TargetLayers(
        arches=tuple(arches),
        numbers=tuple(len(images[arch]) for arch in arches),
        bars=tuple(bar for bar in bars if bar.scale >= DRAWN_LAYERS),
        small=tuple(sum(bool(bar.sizes[number]) for bar in small) for number in columns),
        small_sizes=tuple(sum(bar.sizes[number] for bar in small) for number in columns),
        updates=tuple(_updates(images[arches[0]], first, named)),
    )


def _recipe_wheels(recipe: Recipe) -> tuple[str, ...]:
    if not isinstance(recipe, WheelsRecipe):
        return ()
    return tuple(sorted(wheel.package for wheel in recipe.wheels))


def _updates(
    layers: Sequence[LayerDigests],
    recipes: Sequence[Recipe],
    named: Collection[str],
) -> Iterable[UpdateCost]:
    """Yield the layers that change with an update of a package in `named`, or of any other package.

    If an image contains a README or settings for users' packages, its layer with imgbuild's files
    contains the versions of all packages.
    """
    lists_versions = [
        layer
        for layer, recipe in zip(layers, recipes, strict=True)
        if isinstance(recipe, FilesRecipe) and (recipe.readme or recipe.user_packages)
    ]
    for layer, recipe in zip(layers, recipes, strict=True):
        for package in (name for name in _recipe_wheels(recipe) if name in named):
            together = [layer, *lists_versions]
            yield UpdateCost(
                package=package,
                layers=tuple(each.name for each in together),
                size=sum(each.size for each in together),
            )


def _debian_lists(targets: Sequence[SiteTarget]) -> Iterable[DebianList]:
    """Yield each distinct set of Debian packages, with its images.

    The sets of the two architectures of a base are combined in a list, because most packages are
    the same.
    """
    sets: dict[tuple[str, Arch], dict[_Debs, list[str]]] = {}
    suites: dict[str, str] = {}
    dates: dict[tuple[str, Arch], str] = {}
    for target in targets:
        for arch, resolution in target.lock.arch.items() if target.lock else ():
            debs = tuple(sorted((deb.package, deb.version) for deb in resolution.debs))
            if debs and target.lock:
                same = sets.setdefault((target.lock.base.name, arch), {})
                same.setdefault(debs, []).append(target.name)
                suites[target.lock.base.name] = target.lock.base.suite
                dates[target.name, arch] = resolution.security or ""
    first: dict[str, str] = {}  # of each suite
    for base in dict.fromkeys(name for name, _ in sets):
        columns = [
            [(arch, debs, names) for debs, names in sets.get((base, arch), {}).items()]
            for arch in Arch
        ]
        for number, parts in enumerate(itertools.zip_longest(*columns), 1):
            present = [part for part in parts if part]
            users = tuple((name, arch) for arch, _, names in present for name in names)
            yield DebianList(
                name=f"{base}-{number}" if number > 1 else base,
                page=first.setdefault(suites[base], base),
                security=max(dates[user] for user in users),
                users=users,
                packages=tuple(_merge_versions([(arch, debs) for arch, debs, _ in present])),
            )


def _merge_versions(parts: Sequence[tuple[Arch, _Debs]]) -> Iterable[tuple[str, str, str]]:
    """Packages with versions, and the architecture if the package exists on only one."""
    for deb in sorted({deb for _, debs in parts for deb in debs}):
        arches = [arch for arch, debs in parts if deb in debs]
        yield (*deb, "" if len(arches) == len(parts) else arches[0])
