"""Selects the files that a target can use, for the local index that uv resolves with.

`index.server` serves the files as PEP 691 pages and METADATA during a resolution. Wheels of sdists
are built on demand. Learned constraints (see `matrix.constraints`) are added to the served
METADATA, but locks and audits use the original METADATA.

Unlike a resolution on the original indexes, the cut-off date applies to each file, and a package is
served only from its assigned index, so that another index cannot take precedence with a higher
version. uv receives no incompatible files, downloads no wheels and runs no builds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
from packaging.requirements import InvalidRequirement
from packaging.version import Version

from imgbuild.index.candidates import (
    FileRules,
    cut_off_reason,
    is_sdist,
    unwanted_reason,
    usable_files,
)
from imgbuild.index.pages import GIT, URL, IndexFile, IndexLookup
from imgbuild.index.remote_wheel import FactStore, RangeClient, read_wheel_metadata
from imgbuild.system.syntax import parse_requirement
from imgbuild.values import normalize_package


class SdistBuilder(Protocol):
    """Provides METADATA of the wheel of an sdist, which is built if needed."""

    def __call__(self, package: str, sdist: IndexFile) -> bytes:
        """Return METADATA of the wheel of `sdist`. Raises ImgbuildError if it is not available."""


class AdditionsProvider(Protocol):
    """Provides requirements that METADATA of a package lacks."""

    def __call__(self, package: str, version: Version) -> Sequence[str]:
        """Return the requirements to add to `package` at `version`."""


def no_additions(package: str, version: Version) -> Sequence[str]:
    """Return an `AdditionsProvider` that does not change METADATA."""
    del package, version
    return ()


class OfferedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file in the local index: a wheel, or a wheel to build from `sdist`."""

    wheel: IndexFile
    sdist: IndexFile | None = None


class FileCatalogue:
    """The files that a target can use, by package. Errors in requests from uv are recorded."""

    def __init__(
        self,
        indexes: IndexLookup,
        rules: FileRules,
        ranges: RangeClient,
        facts: FactStore,
        *,
        sdists: Mapping[str, SdistBuilder] | None = None,
        all_sdists: SdistBuilder | None = None,
        hide: Callable[[str, Version], bool] = lambda package, version: False,
        locked: Mapping[str, OfferedFile] | None = None,
    ) -> None:
        """Initialize the catalogue.

        `sdists` contains the builders of the packages whose sdists are offered, and `all_sdists`
        the builder of all other packages. `locked` maps packages to the only file to offer. The
        indexes of these packages are not used.
        """
        self.indexes = indexes
        self.rules = rules
        self.failures: list[Exception] = []
        self.addressed: dict[tuple[str, str], str] = {}
        self.ranges = ranges
        self._facts = facts
        self._sdists = dict(sdists or {})
        self._all_sdists = all_sdists
        self._hide = hide
        self.alone: frozenset[str] = frozenset()
        self._building = threading.Lock()
        self.locked = dict(locked or {})
        self._offers = {package: [offer] for package, offer in self.locked.items()}

    def replace_builders(self, builders: Mapping[str, SdistBuilder]) -> FileCatalogue:
        """Return a catalogue with the same files and other builders of sdists."""
        return FileCatalogue(
            self.indexes,
            self.rules,
            self.ranges,
            self._facts,
            sdists={**self._sdists, **builders},
            all_sdists=self._all_sdists,
            hide=self._hide,
            locked=self.locked,
        )

    def offered_files(self, package: str) -> list[OfferedFile]:
        """Return the usable files of `package`.

        Raises FetchFailed if the index does not respond.
        """
        if package not in self._offers:
            self._offers[package] = self._usable_files(package)
        return self._offers[package]

    def _usable_files(self, package: str) -> list[OfferedFile]:
        files = self.indexes.files(package)
        timed = self.indexes.place(package).timed
        wheels = [
            file
            for file in usable_files(files, package, self.rules, timed=timed)
            if file.version is not None and not self._hide(package, file.version)
        ]
        offers = [OfferedFile(wheel=wheel) for wheel in wheels]
        if self._sdist_builder(package) is None:
            return offers
        have = {wheel.version for wheel in wheels}
        for file in files:
            excluded = cut_off_reason(file, self.rules, timed=timed) or unwanted_reason(
                file, package, self.rules
            )
            if is_sdist(file) and excluded is None and file.version not in have:
                offers.append(OfferedFile(wheel=wheel_of_sdist(package, file), sdist=file))
                have.add(file.version)
        return offers

    def metadata(self, package: str, name: str) -> bytes | None:
        """Return METADATA of the file `name` for the resolver, or None if it is not offered.

        The requirements of packages in `alone` are omitted.
        """
        data = self._metadata(package, name)
        return drop_requirements(data) if data and package in self.alone else data

    def _metadata(self, package: str, name: str) -> bytes | None:
        for offer in self.offered_files(package):
            if offer.wheel.name == name:
                build = self._sdist_builder(package)
                if offer.sdist is None or build is None:
                    return read_wheel_metadata(offer.wheel, self.ranges, self._facts)
                with self._building:
                    return build(package, offer.sdist)
        return None

    def _sdist_builder(self, package: str) -> SdistBuilder | None:
        return self._sdists.get(package, self._all_sdists)

    def drop_addresses(self, package: str, data: bytes) -> bytes:
        """Remove URLs from METADATA of `package`, for packages that the user also requires by URL.

        Other requirements with a URL are recorded in `addressed`, because resolvers reject them.
        """
        lines = data.split(b"\n")
        for number, line in enumerate(lines):
            if not line.strip():
                break  # the description follows
            head, _, text = line.partition(b":")
            if head.lower() != b"requires-dist" or b"@" not in text:
                continue
            try:
                requirement = parse_requirement(text.decode("utf-8", "replace").strip())
            except InvalidRequirement:
                continue
            if requirement.url is None:
                continue
            other = normalize_package(requirement.name)
            if self.indexes.place(other).name in (URL, GIT):
                requirement.url = None
                lines[number] = b"Requires-Dist: " + str(requirement).encode()
            else:
                self.addressed[package, other] = f"{package} requires {requirement}"
        return b"\n".join(lines)

    def chosen_files(self, versions: Mapping[str, str]) -> dict[str, OfferedFile]:
        """Return the best offered file for each package and version in `versions`."""
        return {
            package: offer
            for package, version in versions.items()
            if (offer := self.chosen(package, Version(version))) is not None
        }

    def chosen(self, package: str, version: Version) -> OfferedFile | None:
        """Return the best offered file of `version`, or None."""
        ranked = [
            (rank, offer)
            for offer in self.offered_files(package)
            if offer.wheel.version == version
            and (rank := self.rules.tags.rank_wheel(offer.wheel.name)) is not None
        ]
        return min(ranked, key=lambda pair: pair[0])[1] if ranked else None


def wheel_of_sdist(package: str, sdist: IndexFile) -> IndexFile:
    """Return the pure wheel to build from `sdist`, whose hash is unknown before the build."""
    name = f"{package.replace('-', '_')}-{sdist.version}-py3-none-any.whl"
    return msgspec.structs.replace(sdist, name=name, sha256=None, size=None, metadata=False)


def drop_requirements(data: bytes) -> bytes:
    """Remove `Requires-Dist` fields from METADATA, as with `--no-deps`."""
    head, mark, body = data.partition(b"\n\n")
    lines = [
        line
        for line in head.splitlines(keepends=True)
        if not line.lower().startswith(b"requires-dist:")
    ]
    return b"".join(lines) + mark + body
