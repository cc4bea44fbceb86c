"""Refuses a Python that no base has, and suggests alternatives."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from packaging.version import Version

from imgbuild.audit.main_path import policy
from imgbuild.audit.packages.library import Library
from imgbuild.errors import NoSolution
from imgbuild.index.candidates import FileRules
from imgbuild.index.catalogue import FileCatalogue
from imgbuild.index.pages import IndexAddress, IndexLookup
from imgbuild.index.remote_wheel import BlockCache
from imgbuild.learn import learn
from imgbuild.learn.boundaries import ReleaseCatalogue, lacks_item
from imgbuild.report import ConflictRelation, Evidence
from imgbuild.resolve import conflict, resolve_request, suggest
from imgbuild.resolve.first_solve import ArchQuery
from imgbuild.solve import uv
from imgbuild.wheel.tags import WheelTags

HOW_TO_PAGE = "docs/howto/python-version.md"
OTHER_PYTHON_REMEDY = f"a base can use another Python from a standalone build: {HOW_TO_PAGE}"


def bases_text(pythons: Collection[str]) -> str:
    """Return a sentence that lists the Python releases of the bases and how to get another one."""
    return f"the bases have Python {_join_releases(pythons)}; {OTHER_PYTHON_REMEDY}"


def other_base_text(python: str, bases: Mapping[str, str]) -> str:
    """Return how to get `python` where no locked target has it; `bases` maps bases to Pythons."""
    having = next((name for name, has in bases.items() if has == python), "")
    base = f"{having} has Python {python}" if having else f"none has Python {python} yet"
    return (
        f"no locked target has them with Python {python}, which does not mean that it is"
        f" impossible: another Python is another base; {base}: {HOW_TO_PAGE}"
    )


def _join_releases(pythons: Collection[str]) -> str:
    *first, last = sorted(set(pythons), key=Version)
    return f"{', '.join(first)} or {last}" if first else last


def refuse_unsupported_python(query: ArchQuery) -> None:
    """Raise NoSolution if no base has the requested Python."""
    request, matrix, arch = query.request, query.matrix, query.arch
    store, http = query.context.store, query.context.http
    bases = {name: base.python for name, base in matrix.bases.items()}
    base_name = resolve_request.requested_base(request, matrix)
    if request.python in (None, bases[base_name]):
        return
    has = _join_releases(bases.values())
    reasons = [f"you require Python {request.python}, but the bases of the matrix have {has}"]
    index = matrix.indexes[matrix.default_index]
    place = IndexAddress(name=matrix.default_index, address=index.url or uv.default_index())
    indexes = IndexLookup({place.name: place}, {}, place.name, http)
    glibc = matrix.bases[base_name].glibc

    def _catalogue(python: str) -> FileCatalogue:
        rules = FileRules(
            as_of=request.as_of or resolve_request.today_utc(),
            tags=WheelTags(python=python, glibc=glibc, arch=arch),
            pins={},
        )
        return FileCatalogue(indexes, rules, http, store)

    requested_catalogue, ours = _catalogue(request.python or ""), _catalogue(bases[base_name])
    near = []
    with Library(store, BlockCache(http)) as library:
        release_catalogue = ReleaseCatalogue(ours, library, store)
        for requested in request.requests:
            reasons += _package_support(requested.package, requested_catalogue, release_catalogue)
            newest = release_catalogue.package_releases(requested.package)
            if newest and requested.pin is None:
                near.append(f"{requested.package} {newest[-1].version}")
    demands = [
        conflict.user_demand(requested.package, requested.spec) for requested in request.requests
    ]
    packages = f", with {', '.join(near)}" if near else ""
    message = f"no solution on {arch}"
    raise NoSolution(
        message,
        reasons=tuple(reasons[: conflict.STEPS]),
        nearest=(
            f"Python {bases[base_name]}, of the base {base_name}{packages}",
            *suggest.nearest_targets(matrix, demands, request.cuda, arch, locked=query.locked),
        ),
        hint=OTHER_PYTHON_REMEDY,
    )


def _package_support(
    package: str, catalogue: FileCatalogue, release_catalogue: ReleaseCatalogue
) -> Iterator[str]:
    python = catalogue.rules.tags.python
    files = [offer.wheel for offer in catalogue.offered_files(package)]
    versions = [file.version for file in files if file.version and not file.version.is_prerelease]
    newest = max(versions, default=None)
    later = [
        item
        for item in release_catalogue.package_releases(package)
        if newest is None or item.version > newest
    ]
    if not later:
        return
    wants = later[0].file.requires_python
    why = f"requires Python {wants}" if wants else f"has no wheel for Python {python}"
    left = f"the newest for Python {python} is {newest}" if newest else "no earlier version exists"
    yield f"since {later[0].version}, {package} {why}; {left}"
    if newest is not None:
        yield from _missing_names(package, newest, release_catalogue)


def _missing_names(
    package: str, version: Version, release_catalogue: ReleaseCatalogue
) -> Iterator[str]:
    release = release_catalogue.release(package, str(version))
    module = package.replace("-", "_")
    names = [
        entry.name for entry in policy.load_policy().entries if entry.name.startswith(f"{module}.")
    ]
    for name in names if release is not None else ():
        if name.count(".") != 1 or release is None:
            continue
        evidence = Evidence(
            relation=ConflictRelation.NAME,
            package=package,
            version=str(version),
            other=package,
            other_version=str(version),
            subject=name.replace(".", ":"),
        )
        if lacks_item(release_catalogue, evidence, release):
            bounds = learn.find_bounds(evidence, release_catalogue)
            came = bounds.came if bounds is not None else ""
            added = f", which was added in {came}" if came else ""
            yield f"{package} {version} has no {name}{added}"
            return
