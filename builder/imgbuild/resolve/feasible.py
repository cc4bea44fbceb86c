"""Finds demands that no solver can meet, from the names, versions and wheels on index pages.

All pages are requested in parallel, so that all causes are known within seconds.
"""

from __future__ import annotations

import datetime
import difflib
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
from packaging.version import Version

from imgbuild.cache.context import Context
from imgbuild.index.candidates import FileRules, accepts_python, best_wheel, is_sdist, usable_files
from imgbuild.index.catalogue import FileCatalogue
from imgbuild.index.pages import IndexAddress, IndexFile, IndexLookup
from imgbuild.index.remote_wheel import read_wheel_metadata
from imgbuild.matrix.model import Matrix
from imgbuild.project.model import FilePlace
from imgbuild.resolve.demands import PackageDemand
from imgbuild.solve import refusal, uv
from imgbuild.system import threads
from imgbuild.system.syntax import parse_version
from imgbuild.wheel.tags import WheelTags

THREADS = 12
EMPTY_ADDRESSES: Mapping[str, IndexAddress] = {}
NO_NAMES: Mapping[str, str] = {}
ObstacleCause = Literal["name", "version", "source", "python", "late", "index", "cuda"]


class UnmetDemand(msgspec.Struct, frozen=True, kw_only=True):
    """A demand that cannot be met, with the reason and the nearest alternative.

    `cause` is the type of the reason. `version` is the newest version that the demand allows, or
    "". `conda` means that a Conda package has no counterpart on the index, and `by_url` that the
    demand is the URL of a wheel.
    """

    package: str
    demand: str
    cause: ObstacleCause
    reason: str
    places: tuple[FilePlace, ...] = ()
    version: str = ""
    nearest: tuple[str, ...] = ()
    conda: bool = False
    by_url: bool = False

    @property
    def text(self) -> str:
        """The demand, the reason and the nearest alternative, without the places."""
        near = f"; nearest: {' or '.join(self.nearest)}" if self.nearest else ""
        return f"{self.demand}: {self.reason}{near}"

    def __str__(self) -> str:
        where = ", ".join(map(str, self.places))
        return f"{where}: {self.text}" if where else self.text


class IndexPages:
    """Reads index pages for several Pythons.

    Packages in `assigned` come from the index assigned to them, whose URL is in `addresses`, and
    other packages from the default index.
    """

    def __init__(
        self,
        matrix: Matrix,
        context: Context,
        as_of: datetime.date,
        addresses: Mapping[str, IndexAddress] = EMPTY_ADDRESSES,
        assigned: Mapping[str, str] = NO_NAMES,
    ) -> None:
        self._matrix, self.context, self._as_of = matrix, context, as_of
        self._addresses, self._assigned = addresses, assigned
        self._wheels: dict[tuple[str, str, WheelTags], list[IndexFile]] = {}
        self._allowed: dict[tuple[str, str], list[IndexFile]] = {}
        self._metadata: dict[IndexFile, bytes] = {}

    @functools.cached_property
    def _indexes(self) -> IndexLookup:
        name = self._matrix.default_index
        index = self._matrix.indexes[name]
        place = IndexAddress(
            name=name,
            address=index.url or uv.default_index(),
            timed=index.upload_times == "index",
        )
        addresses = {**self._addresses, name: place}
        return IndexLookup(addresses, self._assigned, name, self.context.http)

    def read(self, packages: Iterable[str]) -> None:
        """Fetch the pages of `packages` in parallel. Raises FetchFailed if the index fails."""
        names = sorted(set(packages))
        if names:
            indexes = self._indexes  # before the threads start, each of which would create it
            threads.run_for_each(names, lambda name, _: indexes.files(name), threads=THREADS)

    def files(self, package: str) -> tuple[IndexFile, ...]:
        """Return all files of a package, or () if the index has no such package."""
        return self._indexes.files(package)

    def metadata(self, wheel: IndexFile) -> bytes:
        """Return METADATA of a wheel."""
        if wheel not in self._metadata:
            self._metadata[wheel] = read_wheel_metadata(
                wheel, self.context.http, self.context.store
            )
        return self._metadata[wheel]

    def allowed(self, demand: PackageDemand) -> list[IndexFile]:
        """Return the files of the versions that `demand` allows."""
        key = (demand.package, demand.spec)
        if key not in self._allowed:
            self._allowed[key] = allowed_files(demand, self.files(demand.package))
        return self._allowed[key]

    def catalogue(self, tags: WheelTags, sdists: Iterable[str] = ()) -> FileCatalogue:
        """Return the files usable for `tags`.

        Builds of `sdists`, and of sdists in the matrix, are included.
        """
        rules = FileRules(as_of=self._as_of, tags=tags, pins={})
        return FileCatalogue(
            self._indexes,
            rules,
            self.context.http,
            self.context.store,
            sdists=dict.fromkeys((*self._matrix.sdists, *sdists), _refuse_build),
        )

    def pinned_wheel(self, demand: PackageDemand, tags: WheelTags) -> IndexFile | None:
        """Return the wheel of the only version that `demand` allows, or None."""
        files = self.allowed(demand)
        version = next((file.version for file in files), None)
        return best_wheel(files, version, tags) if version is not None else None

    def newest_wheel(self, demand: PackageDemand, tags: WheelTags) -> IndexFile | None:
        """Return the wheel of the newest final version that `demand` allows, or None."""
        return next(iter(self.wheels(demand, tags)), None)

    def wheels(self, demand: PackageDemand, tags: WheelTags) -> list[IndexFile]:
        """Return the wheel of each version that `demand` allows, newest first.

        Final versions precede pre-releases.
        """
        key = (demand.package, demand.spec, tags)
        if key not in self._wheels:
            self._wheels[key] = self._read_wheels(demand, tags)
        return self._wheels[key]

    def _read_wheels(self, demand: PackageDemand, tags: WheelTags) -> list[IndexFile]:
        files = self.allowed(demand)
        rules = FileRules(as_of=self._as_of, tags=tags, pins=_pins(demand))
        timed = self._indexes.place(demand.package).timed
        of_version: dict[Version, list[IndexFile]] = {}
        for file in usable_files(files, demand.package, rules, timed=timed):
            if file.version is not None:
                of_version.setdefault(file.version, []).append(file)
        ordered = sorted(of_version, key=lambda each: (not each.is_prerelease, each), reverse=True)
        wheels = (best_wheel(of_version[version], version, tags) for version in ordered)
        return [wheel for wheel in wheels if wheel is not None]

    def first_day(self, demand: PackageDemand, tags: WheelTags) -> datetime.date | None:
        """Return the day after the first upload of a file that meets `demand`, or None."""
        rules = FileRules(as_of=datetime.date.max, tags=tags, pins=_pins(demand))
        files = self.allowed(demand)
        wheels = usable_files(files, demand.package, rules, timed=False)
        times = [file.uploaded for file in wheels or files if file.uploaded is not None]
        return min(times).date() + datetime.timedelta(days=1) if times else None


def _pins(demand: PackageDemand) -> dict[str, str]:
    """Return the version of an exact `demand`, for which yanked files are allowed."""
    return {demand.package: demand.pin} if demand.pin else {}


def allowed_files(demand: PackageDemand, files: Iterable[IndexFile]) -> list[IndexFile]:
    """Return the files of the versions that `demand` allows."""
    accepted: dict[str, bool] = {}
    kept = []
    for file in files:
        text = _version_text(file.name)
        if text not in accepted:
            version = _version(text)
            accepted[text] = version is not None and demand.allows_version(version)
        if accepted[text]:
            kept.append(file)
    return kept


def _version_text(name: str) -> str:
    if name.endswith(".whl"):
        return name.split("-")[1] if "-" in name else ""
    return name.removesuffix(".zip").removesuffix(".tar.gz").rpartition("-")[2]


_version = functools.lru_cache(maxsize=100_000)(parse_version)


def _refuse_build(package: str, sdist: IndexFile) -> bytes:
    message = f"{package}: {sdist.name} is not built here"
    raise AssertionError(message)


def find_obstacles(
    demands: Sequence[PackageDemand],
    pages: IndexPages,
    tags: WheelTags,
    *,
    sdists: Iterable[str] = (),
) -> list[UnmetDemand]:
    """Return the demands that no file on an index can meet on a machine with `tags`.

    `sdists` are packages that can be built in addition to those in the matrix.
    """
    asked = [demand for demand in demands if demand.installed and not demand.source]
    if not asked:
        return []
    pages.read(demand.package for demand in asked)
    catalogue = pages.catalogue(tags, sdists)
    return [each for demand in asked if (each := _obstacle(demand, pages, catalogue)) is not None]


def _obstacle(
    demand: PackageDemand, pages: IndexPages, catalogue: FileCatalogue
) -> UnmetDemand | None:
    package = demand.package
    files = pages.files(package)
    named = pages.allowed(demand)
    timed = catalogue.indexes.place(package).timed
    if usable_files(named, package, catalogue.rules, timed=timed):
        return None
    offers = [offer.wheel.version for offer in catalogue.offered_files(package)]
    available = [version for version in offers if version is not None]
    if any(demand.allows_version(version) for version in available):
        return None  # it is built from an sdist
    newest = _newest_final([file.version for file in named if file.version is not None])
    if not files:
        cause, reason = "name", "the index has no such package"
    elif newest is None:
        cause, reason = "version", f"the index has no such version{_span(files)}"
    else:
        newest_files = [file for file in named if file.version == newest]
        cause = _cause(newest_files, catalogue)
        reason = _text(catalogue, demand, newest)
    return UnmetDemand(
        package=package,
        demand=str(demand),
        cause=cause,  # type: ignore[arg-type]  # mypy joins the literals to str
        reason=reason,
        places=demand.places,
        version=str(newest or ""),
        nearest=refusal.nearest_versions(_pin_or_newest(demand, newest), available)
        if available
        else (),
        conda=demand.conda and cause == "name",
    )


def _newest_final(versions: Sequence[Version]) -> Version | None:
    final = [version for version in versions if not version.is_prerelease]
    return max(final or versions, default=None)


def _pin_or_newest(demand: PackageDemand, newest: Version | None) -> Version:
    if demand.pin is not None:
        return Version(demand.pin)
    bounds = [each.version.removesuffix(".*") for each in demand.versions]
    return newest or Version(bounds[0] if bounds else "0")


def _cause(files: Sequence[IndexFile], catalogue: FileCatalogue) -> ObstacleCause:
    rules = catalogue.rules
    fitting = [file for file in files if file.is_wheel and rules.tags.is_compatible(file.name)]
    if fitting:
        return "late" if any(accepts_python(file, rules) for file in fitting) else "python"
    return "source" if any(map(is_sdist, files)) else "python"


def _text(catalogue: FileCatalogue, demand: PackageDemand, newest: Version) -> str:
    text = refusal.range_refusal(catalogue, demand.package, f"=={newest}")
    text = text.removeprefix(f"{demand.package} {newest}: ")
    return text.replace(f", and the matrix does not list {demand.package} under `sdists`", "")


def _span(files: Sequence[IndexFile]) -> str:
    versions = [file.version for file in files if file.version is not None]
    final = [version for version in versions if not version.is_prerelease] or versions
    return f"; it has {min(final)} to {max(final)}" if final else ""


def similar_packages(package: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the most similar of `names`, or () if none is similar."""
    return tuple(difflib.get_close_matches(package, sorted(set(names)), n=1, cutoff=0.8))
