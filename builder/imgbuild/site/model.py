"""Defines the contents of a site's pages, such as targets, neighbours, commands and the grid."""

from __future__ import annotations

import msgspec

from imgbuild.cves.check import CveReport
from imgbuild.learn.recorded import RecordedRefusal, TargetNote
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.accepted import AcceptedCve, Waiver
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.show.page import TargetPage
from imgbuild.show.table import TableRow
from imgbuild.site.history import DigestChange
from imgbuild.values import Arch, Bytes

LINKED_PROGRAMS = ("Docker", "OpenAI server", "Apptainer", "Kubernetes")  # and Slurm


class PageCommand(msgspec.Struct, frozen=True, kw_only=True):
    """Commands that readers can copy. `title` is the program, and `text` contains the lines."""

    title: str
    text: str
    note: str = ""

    @property
    def key(self) -> str:
        """The ID on the page for programs with links, or "" for others."""
        first = self.title.partition(",")[0]
        linked = self.title in LINKED_PROGRAMS or (
            first == "Slurm" and self.title.endswith("one node")
        )
        return first.lower().replace(" ", "-") if linked else ""


class PackageVersions(msgspec.Struct, frozen=True, kw_only=True):
    """A package of a target. `versions` has one entry, or an entry for each architecture."""

    name: str
    versions: tuple[str, ...]
    only: str = ""  # the only architecture with the package


class DrawnLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer with its size in bytes on each architecture (0 if absent).

    `scale` is the percentage of the target's largest layer. `packages` is the number of packages in
    a group as text.
    """

    name: str
    sizes: tuple[Bytes, ...]
    scale: int
    packages: str = ""


class UpdateCost(msgspec.Struct, frozen=True, kw_only=True):
    """The download after an update of a package: layers, and their current sizes in bytes."""

    package: str
    layers: tuple[str, ...]
    size: Bytes


class TargetLayers(msgspec.Struct, frozen=True, kw_only=True):
    """The layers of a target, from bottom to top. `numbers` counts them by architecture.

    `bars` are the drawn layers. `small` and `small_sizes` are the numbers and sizes in bytes of
    other layers. `updates` are the updates on the first architecture.
    """

    arches: tuple[Arch, ...]
    numbers: tuple[int, ...]
    bars: tuple[DrawnLayer, ...]
    small: tuple[int, ...]
    small_sizes: tuple[Bytes, ...]
    updates: tuple[UpdateCost, ...] = ()


class NeighbourDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the comparison with neighbours: the values of this target and of each neighbour."""

    name: str
    own: str
    others: tuple[str, ...]


class TargetNeighbours(msgspec.Struct, frozen=True, kw_only=True):
    """The most similar targets, the differences, and what a pull of this target downloads."""

    names: tuple[str, ...] = ()
    differences: tuple[NeighbourDifference, ...] = ()
    packages: tuple[int, ...] = ()  # of another version, or in one of both, on one of `arches`
    arches: tuple[tuple[str, str], ...] = ()  # the compared one of this target and of the other
    missing: tuple[Bytes, ...] = ()  # layers to download for this target, without the equal ones


class DebianList(msgspec.Struct, frozen=True, kw_only=True):
    """A list of Debian packages, and the images with this list.

    `page` contains the lists of a suite, and is named after the first list. `packages` are name,
    version, and the architecture if the package exists on only one.
    """

    name: str
    page: str
    security: str
    users: tuple[tuple[str, Arch], ...]
    packages: tuple[tuple[str, str, str], ...]


class SiteTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target, with all data for the page of the target.

    `lock` and `digests` are None for a target without a current lock. `needs` are requirements of
    the lock in addition to the default index. `stale` are the reasons if a lock is out of date.
    `stacks` contains the main packages by which users choose images. `attention` lists the packages
    with attention kernels. `versions` contains the
    versions of pinned and main packages. `incompatible` are the known incompatibilities of
    packages. `debian` is the list of Debian packages. `guide` is the README of the image as
    Markdown, without its first headings.
    """

    row: TableRow
    page: TargetPage
    lock: Lock | None = None
    digests: TargetDigests | None = None
    needs: tuple[str, ...] = ()
    stale: str = ""
    stacks: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    attention: str = ""
    packages: tuple[PackageVersions, ...] = ()
    layers: TargetLayers | None = None
    neighbours: TargetNeighbours = TargetNeighbours()
    commands: tuple[PageCommand, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    accepted: tuple[AcceptedCve, ...] = ()
    advisories: tuple[CveReport, ...] = ()
    learned: tuple[str, ...] = ()
    incompatible: tuple[str, ...] = ()
    history: tuple[DigestChange, ...] = ()
    debian: tuple[tuple[Arch, DebianList], ...] = ()
    documents: tuple[tuple[str, str], ...] = ()  # label and link
    guide: str = ""

    @property
    def name(self) -> str:
        """The name of the target."""
        return self.row.target

    @property
    def cpython(self) -> tuple[str, ...]:
        """The exact versions of standalone builds of CPython in the images."""
        archives = (
            (resolution.python for resolution in self.lock.arch.values()) if self.lock else ()
        )
        return tuple(dict.fromkeys(archive.version for archive in archives if archive))


class GridCell(msgspec.Struct, frozen=True, kw_only=True):
    """A target in the grid. `state` is for example tested on GPUs, failed or not locked.

    `engine` and `labels` are versions, such as "vLLM 0.26.0" and "TRL 1.16.0". `words` describes
    the state, including the GPUs. `recommended` is the package or CUDA release for which the target
    is recommended.
    """

    target: str
    engine: str
    labels: tuple[str, ...]
    state: str
    words: str
    recommended: bool = False


class GridRow(msgspec.Struct, frozen=True, kw_only=True):
    """A CUDA release, with targets by engine."""

    cuda: str
    cells: tuple[tuple[GridCell, ...], ...]


class TargetGrid(msgspec.Struct, frozen=True, kw_only=True):
    """The matrix as a grid. Rows are CUDA releases, and columns are engines."""

    engines: tuple[str, ...]
    rows: tuple[GridRow, ...]


class SiteCatalogue(msgspec.Struct, frozen=True, kw_only=True):
    """All data of a site. `registry` is "" if images are not published.

    `source` is the URL of the repository in a browser, or "" if unknown.
    """

    title: str
    registry: str
    source: str = ""
    targets: tuple[SiteTarget, ...]
    debian: tuple[DebianList, ...]
    grid: TargetGrid
    refusals: tuple[RecordedRefusal, ...]
    notes: tuple[TargetNote, ...] = ()
    requires: dict[str, dict[str, tuple[str, ...]]] = {}  # main package → version → lines
    made: str = ""  # the day, year-month-day
    revision: str = ""  # the commit, "" outside of git
