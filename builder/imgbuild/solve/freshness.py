"""Reports the age of chosen versions, and newer versions that the cut-off excludes.

A package that is years behind its newest version causes a warning, because the package set may not
work. There is no warning if another package requires the old version.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

import msgspec
from packaging.version import Version

from imgbuild.index.candidates import unwanted_reason
from imgbuild.index.catalogue import FileCatalogue, OfferedFile
from imgbuild.index.cuda_releases import active_requirements
from imgbuild.index.pages import IndexFile
from imgbuild.solve.uv import ChosenPackage
from imgbuild.system.reporter import Reporter
from imgbuild.values import normalize_package

OLD_LIMIT = datetime.timedelta(days=2 * 365)


class VersionLag(msgspec.Struct, frozen=True, kw_only=True):
    """A chosen version, and the newest compatible version before the target's cut-off."""

    package: str
    version: str
    uploaded: datetime.datetime
    newest: str
    newest_uploaded: datetime.datetime
    via: tuple[str, ...]

    def __str__(self) -> str:
        origin = f" (required by {', '.join(self.via)})" if self.via else ""
        return (
            f"{self.package} {self.version}{origin} was uploaded in {self.uploaded:%Y-%m};"
            f" {self.newest} of {self.newest_uploaded:%Y-%m} is available"
        )


def newest_file(files: Iterable[IndexFile]) -> IndexFile | None:
    """Return the newest file of a final version with an upload time, or None."""
    dated = [
        (file.version, file)
        for file in files
        if file.version is not None and not file.version.is_prerelease and file.uploaded is not None
    ]
    return max(dated, key=lambda pair: pair[0])[1] if dated else None


def version_lags(
    catalogue: FileCatalogue, chosen: Iterable[ChosenPackage], offers: Mapping[str, OfferedFile]
) -> tuple[VersionLag, ...]:
    """Return the chosen packages that have a compatible version over two years newer.

    Pins, and packages whose old version is required by another chosen package, are excluded.
    """
    outdated = []
    for item in chosen:
        offer = offers.get(item.package)
        if offer is None or offer.wheel.uploaded is None or item.package in catalogue.rules.pins:
            continue
        top = newest_file(other.wheel for other in catalogue.offered_files(item.package))
        if top is None or top.uploaded is None or top.uploaded - offer.wheel.uploaded <= OLD_LIMIT:
            continue
        behind = top.version is not None and top.version > Version(item.version)
        if behind and not has_older_requirement(catalogue, item, top, offers):
            outdated.append(
                VersionLag(
                    package=item.package,
                    version=item.version,
                    uploaded=offer.wheel.uploaded,
                    newest=str(top.version),
                    newest_uploaded=top.uploaded,
                    via=item.via,
                )
            )
    return tuple(outdated)


def has_older_requirement(
    catalogue: FileCatalogue, item: ChosenPackage, top: IndexFile, offers: Mapping[str, OfferedFile]
) -> bool:
    """Return whether a chosen package requires a version of `item` that is older than `top`."""
    for dependent in item.via:
        offer = offers.get(dependent)
        data = catalogue.metadata(dependent, offer.wheel.name) if offer is not None else None
        for requirement in active_requirements(data or b"", catalogue.rules.tags.markers):
            excluded = top.version not in requirement.specifier if top.version else False
            if normalize_package(requirement.name) == item.package and excluded:
                return True
    return False


def cutoff_rows(
    catalogue: FileCatalogue, chosen: Iterable[ChosenPackage]
) -> tuple[tuple[str, str, str], ...]:
    """Return package, chosen version and newest version.

    A package is included if only the cut-off excludes its newest version.
    """
    rules = catalogue.rules
    rows = []
    for item in chosen:
        if item.package in rules.pins or not catalogue.indexes.place(item.package).timed:
            continue
        today = newest_file(
            file
            for file in catalogue.indexes.files(item.package)
            if rules.tags.is_compatible(file.name)
            and unwanted_reason(file, item.package, rules) is None
        )
        before = newest_file(offer.wheel for offer in catalogue.offered_files(item.package))
        if today is None or before is None or today.version is None or before.version is None:
            continue
        if today.version > before.version:
            rows.append((item.package, item.version, str(today.version)))
    return tuple(rows)


def report_old_versions(
    catalogue: FileCatalogue,
    chosen: tuple[ChosenPackage, ...],
    offers: Mapping[str, OfferedFile],
    reporter: Reporter,
) -> None:
    """Report old versions in `chosen`, and newer versions that the cut-off excludes."""
    for lag in version_lags(catalogue, chosen, offers):
        reporter.warn(f"{lag}; pin the package, or add the required version under `requires:`")
    rows = cutoff_rows(catalogue, chosen)
    reporter.info(
        f"{len(chosen)} packages from files uploaded before {catalogue.rules.as_of}; "
        f"{len(rows)} of them have newer versions"
    )
    blind = sorted({p.name for p in catalogue.indexes.places.values() if not p.timed})
    if blind:
        reporter.info(
            f"the cut-off does not apply to indexes without upload times: {', '.join(blind)}"
        )
    for package, version, newer in rows:
        reporter.detail(
            f"{package} {version}: {newer} was uploaded after the cut-off {catalogue.rules.as_of}"
        )
