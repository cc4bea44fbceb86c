"""The contents of a site's pages as values: targets, their neighbours, commands, the grid."""

from __future__ import annotations

import msgspec

from imgbuild.cves.check import CveReport
from imgbuild.learn.recorded import RecordedRefusal, TargetNote
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.accepted import AcceptedCve, Waiver
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.show.page import Page
from imgbuild.show.table import TableRow
from imgbuild.site.history import DigestChange
from imgbuild.values import Arch, Bytes

LINKED = ("Docker", "Apptainer", "Kubernetes")  # and Slurm


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """Commands to copy: `title` is the program, `text` one or several lines."""

    title: str
    text: str
    note: str = ""

    @property
    def key(self) -> str:
        """An ID of a page for the programs to which it has links, "" for others."""
        first = self.title.partition(",")[0]
        linked = self.title in LINKED or (first == "Slurm" and self.title.endswith("one node"))
        return first.lower() if linked else ""


class PackageVersions(msgspec.Struct, frozen=True, kw_only=True):
    """A package of a target; `versions` has one entry, or one for each architecture."""

    name: str
    versions: tuple[str, ...]
    only: str = ""  # the one architecture that has it


class DrawnLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer with its bytes on each architecture, 0 where there is none.

    `scale` is percent of the target's largest layer; `packages`: the number of them in a group, as
    text.
    """

    name: str
    sizes: tuple[Bytes, ...]
    scale: int
    packages: str = ""


class UpdateCost(msgspec.Struct, frozen=True, kw_only=True):
    """The download for a pull after an update of one package: layers, and their current bytes."""

    package: str
    layers: tuple[str, ...]
    size: Bytes


class TargetLayers(msgspec.Struct, frozen=True, kw_only=True):
    """The layers of a target, bottom first: `numbers` of them on each architecture.

    `bars` are the drawn ones, `small` the numbers of the others and `small_sizes` their bytes.
    `updates` are those of the first architecture.
    """

    arches: tuple[Arch, ...]
    numbers: tuple[int, ...]
    bars: tuple[DrawnLayer, ...]
    small: tuple[int, ...]
    small_sizes: tuple[Bytes, ...]
    updates: tuple[UpdateCost, ...] = ()


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the comparison with neighbours: a value of this target and of each of them."""

    name: str
    own: str
    others: tuple[str, ...]


class Neighbours(msgspec.Struct, frozen=True, kw_only=True):
    """The most similar targets, the differences, and the bytes of layers that they share."""

    names: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    packages: tuple[int, ...] = ()  # of another version, or in one of both, on one of `arches`
    arches: tuple[tuple[str, str], ...] = ()  # the compared one of this target and of the other
    shared: tuple[Bytes, ...] = ()  # of the download for a pull of this target


class DebianList(msgspec.Struct, frozen=True, kw_only=True):
    """The Debian packages that images share, and the images that have them.

    `page` has the lists of one suite, and is named after the first of them. `packages` are name,
    version, and the architecture if the package is on only one of two.
    """

    name: str
    page: str
    security: str
    users: tuple[tuple[str, Arch], ...]
    packages: tuple[tuple[str, str, str], ...]


class SiteTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target with all data of its page.

    `lock` and `digests` are None for a target without a current lock; `needs` is what its lock
    needs in addition to the default index, `stale` is why a lock is out of date. `stacks` are the
    packages for which users choose images, `versions` are those of the packages that the target
    pins, and of others for which users choose images. `incompatible` are the known
    incompatibilities of its packages. `debian` is the list of its Debian packages. `guide` is the
    README of the image as Markdown, from its second heading on.
    """

    row: TableRow
    page: Page
    lock: Lock | None = None
    digests: TargetDigests | None = None
    needs: tuple[str, ...] = ()
    stale: str = ""
    stacks: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    packages: tuple[PackageVersions, ...] = ()
    layers: TargetLayers | None = None
    neighbours: Neighbours = Neighbours()
    commands: tuple[Command, ...] = ()
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
        """The exact versions of the standalone builds of CPython in the images."""
        archives = (
            (resolution.python for resolution in self.lock.arch.values()) if self.lock else ()
        )
        return tuple(dict.fromkeys(archive.version for archive in archives if archive))


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A target in the grid. `state`: tested on GPUs or CPUs, untested, failed, retired, not locked.

    `engine` and `labels` are versions: "vLLM 0.26.0", "TRL 1.16.0"; `words` describes the state,
    with the GPUs. `recommended`: for a package or CUDA release.
    """

    target: str
    engine: str
    labels: tuple[str, ...]
    state: str
    words: str
    recommended: bool = False


class GridRow(msgspec.Struct, frozen=True, kw_only=True):
    """A CUDA release, and for each engine the targets that have it."""

    cuda: str
    cells: tuple[tuple[Cell, ...], ...]


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """The matrix as a picture: rows are CUDA releases, columns engines."""

    engines: tuple[str, ...]
    rows: tuple[GridRow, ...]


class SiteCatalogue(msgspec.Struct, frozen=True, kw_only=True):
    """All data of a site. `registry` is "" if nothing is published.

    `source` is the URL of the repository in a browser, "" if unknown.
    """

    title: str
    registry: str
    source: str = ""
    targets: tuple[SiteTarget, ...]
    debian: tuple[DebianList, ...]
    grid: Grid
    refusals: tuple[RecordedRefusal, ...]
    notes: tuple[TargetNote, ...] = ()
    requires: dict[str, dict[str, tuple[str, ...]]] = {}  # main package → version → lines
    made: str = ""  # the day, year-month-day
    revision: str = ""  # the commit, "" outside of git
