"""Finds packages without wheels, and determines which of them contain CUDA code.

The advice for `init`, `add` and `lock` lists URLs of compatible wheels, the packages that require
the package, and alternatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from imgbuild.index import cuda_releases
from imgbuild.lock import lock_file
from imgbuild.lock.locked_matrix import locked_versions
from imgbuild.lock.published import TargetOverlay
from imgbuild.matrix import project_paths
from imgbuild.report import ConflictRelation, Report, Severity
from imgbuild.resolve import sdist_code, source_only
from imgbuild.resolve.demands import PackageDemand
from imgbuild.resolve.feasible import IndexPages, UnmetDemand
from imgbuild.resolve.imports import ImportSite, import_sites
from imgbuild.resolve.source_only import BuildAdvice, WheelNeeds
from imgbuild.system import threads
from imgbuild.system.syntax import marker_applies
from imgbuild.values import normalize_package
from imgbuild.wheel.tags import WheelTags

LOOKUP_LIMIT = 40  # limit of packages whose METADATA is searched for requirements
EXCLUDE_REMEDY = "exclude it in matrix.yaml: exclude: {%s: REASON}"


def name_obstacles(blocked: Sequence[UnmetDemand], pages: IndexPages) -> list[UnmetDemand]:
    """Replace the reasons in `blocked` for placeholders and for packages that need a compiler."""
    reasons = {"placeholder": sdist_code.PLACEHOLDER, "native": sdist_code.NATIVE_REASON}
    return [
        msgspec.structs.replace(each, reason=reasons[code])
        if each.cause == "source" and (code := sdist_code.obstacle_code(each, pages)) in reasons
        else each
        for each in blocked
    ]


def split_obstacles(
    blocked: Sequence[UnmetDemand], pages: IndexPages
) -> tuple[list[UnmetDemand], dict[str, str]]:
    """Split `blocked` into packages with CUDA code, and pure Python packages with reasons."""
    cuda, sdists = [], {}
    for each in blocked:
        if source_only.is_source_project(each.package) and each.cause in ("source", "python"):
            cuda.append(each)
        elif each.cause == "source":
            code = sdist_code.obstacle_code(each, pages)
            if code == "cuda":
                cuda.append(each)
            elif code == "python":
                sdists[each.package] = (
                    f"{each.package} {each.version} is published only as an sdist of Python code"
                )
    return cuda, sdists


def advise_on_builds(
    cuda: Sequence[UnmetDemand],
    needs: WheelNeeds,
    folder: Path,
    needed_by: Callable[[str], Sequence[str]],
) -> list[BuildAdvice]:
    """Return advice on each package in `cuda`, whose code requires a CUDA compiler.

    The imports in the project's `folder` are read. `needed_by` returns the packages that require a
    package.
    """
    if not cuda:
        return []
    imports = package_imports(folder, [each.package for each in cuda])
    catalogue = project_paths.catalogue_project()
    locks = [lock_file.read_lock(catalogue.images, name) for name in catalogue.locked_targets()]
    return [
        source_only.build_advice(
            each.package,
            each.version,
            needs,
            targets=[
                lock.target
                for lock in locks
                if any(each.package in locked.versions for locked in lock.arch.values())
            ],
            imports=imports[each.package],
            needed_by=needed_by(each.package),
            unfit=each.reason if each.by_url else "",
        )
        for each in cuda
    ]


def demands_requiring(
    package: str, demands: Sequence[PackageDemand], pages: IndexPages, tags: WheelTags
) -> list[str]:
    """Return the first of `demands` whose wheels require `package`."""
    first = [each for each in demands if each.installed and not each.source][:LOOKUP_LIMIT]
    pages.read(each.package for each in first)
    added = [
        (demand, wheel)
        for demand in first
        if (wheel := pages.newest_wheel(demand, tags)) is not None
    ]
    texts = threads.run_for_each(added, lambda pair, _: pages.metadata(pair[1]), threads=8)
    return [
        f"{demand} ({wheel.name})"
        for (demand, wheel), text in zip(added, texts, strict=True)
        if any(
            normalize_package(needed.name) == package
            and marker_applies(needed.marker, tags.markers, ("", *demand.extras))
            for needed in cuda_releases.parse_requirements(text)
        )
    ]


def package_imports(folder: Path, packages: Iterable[str]) -> dict[str, tuple[ImportSite, ...]]:
    """Map each of `packages` to the places below `folder` where Python files import it."""
    modules = {package: source_only.imported_module(package) for package in packages}
    sites = import_sites(folder, frozenset(modules.values()))
    return {package: sites[module] for package, module in modules.items()}


def imports_of_excluded(row: TargetOverlay, reports: Iterable[Report]) -> list[str]:
    """Return messages about excluded packages that are imported unconditionally.

    Imports are read from the project's files, and from `reports` on its packages.
    """
    imports = package_imports(row.folder, map(normalize_package, row.row.exclude))
    missing = {
        (normalize_package(needed.subject.partition(".")[0]), needed)
        for report in reports
        for finding in report.findings
        if (needed := finding.evidence) is not None and needed.relation is ConflictRelation.PACKAGE
        if finding.severity is not Severity.NOTE
    }
    lines = []
    for package, sites in sorted(imports.items()):
        module = normalize_package(source_only.imported_module(package))
        places = [str(site) for site in sites if not site.guarded]
        places += sorted(
            f"{needed.package} {needed.version} ({needed.file}:{needed.line})"
            for name, needed in missing
            if name in (package, module)
        )
        if places:
            lines.append("\n  ".join((_needed(package, places), *source_only.without(package))))
    return lines


def _needed(package: str, places: Sequence[str]) -> str:
    return (
        f"{package} is excluded, and these imports fail without it: {', '.join(places)}; "
        f"specify the URL of a wheel (`{package} @ https://….whl`), or exclude the packages "
        "that import it"
    )


def obstacle_reasons(
    row: TargetOverlay,
    blocked: Sequence[UnmetDemand],
    demands: Sequence[PackageDemand],
    pages: IndexPages,
    tags: WheelTags,
) -> list[str]:
    """Return the reasons against `demands` of a row, with advice about packages without wheels."""
    lock = row.published.lock
    pins = {**locked_versions(lock), **row.requirements.pins, **row.row.pins}
    needs = WheelNeeds(
        python=".".join(tags.python.split(".")[:2]),
        cuda=row.row.cuda or lock.cuda,
        torch=pins.get("torch", "2.0"),
        machine=tags.arch.wheel,
    )

    def _find_requiring(package: str) -> list[str]:
        return demands_requiring(package, demands, pages, tags)

    cuda, sdists = split_obstacles(blocked, pages)
    advice = {
        each.package: each for each in advise_on_builds(cuda, needs, row.folder, _find_requiring)
    }
    lines = []
    for each in name_obstacles(blocked, pages):
        if each.package in advice:
            item = advice[each.package]
            where = f"{', '.join(map(str, each.places))}: " if any(map(str, each.places)) else ""
            remedies = (*item.remedy_lines, EXCLUDE_REMEDY % each.package)
            lines.append("\n    ".join((f"{where}{each.demand}: {item.reason}", *remedies)))
        elif each.package in sdists:
            lines.append(
                f"{each}; the sdist contains only Python code; to build it, add to "
                f"matrix.yaml: sdists: {{{each.package}: {{reason: only an sdist exists}}}}"
            )
        else:
            lines.append(str(each))
    return lines
