"""What `imgbuild smoke` tests: built targets, one layout with its lock, a SIF, the environment."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from imgbuild.cache.store import Store
from imgbuild.cli._options import Through
from imgbuild.cli._sessions import one_arch, same_image
from imgbuild.cli._targets import Selection
from imgbuild.errors import InputError
from imgbuild.lock import lock as locks
from imgbuild.lock.lock import Lock
from imgbuild.oci import layout as layouts
from imgbuild.oci.layout import MARKER, Layout
from imgbuild.pipeline.session import built_layout, open_session
from imgbuild.project import Project
from imgbuild.report import Tier
from imgbuild.sif import container
from imgbuild.smoke import recording, sif
from imgbuild.smoke import run as tests
from imgbuild.smoke.result import RunSettings, SmokeRun
from imgbuild.system.console import console
from imgbuild.values import Arch


class SmokeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How smoke tests are to be run."""

    tiers: tuple[Tier, ...]
    through: Through | None
    how: RunSettings
    arbitrary: bool
    sif: Path | None
    record: bool
    document: bool  # JUnit is written whatever happens


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A target to test; `project` is None if its lock and its layout were named themselves."""

    name: str
    lock: Callable[[], Lock]
    layout: Callable[[], Layout]
    project: Project | None = None


def chosen(
    selection: Selection, layout: Path | None, lock: Path | None, sif: Path | None
) -> list[Subject]:
    """What the command line names: targets of the matrix, or one image and its lock.

    A positional word that is the folder of an OCI layout, or `lock`, means the latter: no matrix is
    read then. The lock of a layout is `lock`, else the lock.json in its folder.
    """
    words, everything = selection.named, selection.everything
    if lock is not None or any((Path(word) / MARKER).is_file() for word in words):
        return [_one_image(words, layout, lock, sif, everything=everything)]
    session = open_session(selection.matrix)
    selected = session.select(words, everything=everything, arches=[])
    same_image(selected, layout or sif)
    return [
        Subject(
            name=item.name,
            lock=partial(locks.read_lock, session.project.images, item.name),
            layout=partial(built_layout, session, item.name, layout),
            project=session.project,
        )
        for item in selected
    ]


def _one_image(
    words: Sequence[str],
    layout: Path | None,
    lock: Path | None,
    sif: Path | None,
    *,
    everything: bool,
) -> Subject:
    images = [*map(Path, words), *(each for each in (layout, sif) if each is not None)]
    if everything or len(images) != 1:
        message = f"--lock is for one image; given: {', '.join(map(str, images)) or 'none'}"
        raise InputError(message, hint="imgbuild smoke LAYOUT --lock images/TARGET/lock.json")
    folder = images[0]
    path = lock or folder / locks.FILE
    hint = "copy images/TARGET/lock.json to the machine that tests, and name it with --lock FILE"
    try:
        data = path.read_bytes()
    except OSError as error:
        message = f"cannot read the lock {path}: {error.strerror}"
        raise InputError(message, hint=hint) from error
    found = locks.decode_lock(
        data, str(path), hint=hint, remedy="use the version of imgbuild that made it"
    )
    return Subject(
        name=found.target,
        lock=lambda: found,
        layout=partial(layouts.read, folder),
    )


def reports(
    image: Subject, arch: Sequence[Arch] | None, options: SmokeOptions, store: Store
) -> Iterator[SmokeRun]:
    """The report of each tier, as soon as it has run."""
    tiers, how = options.tiers, options.how
    if options.through is Through.HERE:
        locked, only = image.lock(), _here(arch)
        return tests.smoke_here(locked, only, tiers, store=store, how=how, reporter=console)
    if options.sif is not None:
        locked, only = image.lock(), container.arch_of(options.sif)
        return sif.smoke_file(
            locked, options.sif, only, tiers, store=store, how=how, reporter=console
        )
    built = image.layout()
    locked, only = image.lock(), one_arch(built, arch)
    if options.record and image.project is not None:
        config = built.image(only).config.digest
        recording.require_sealed(image.project, locked, only, config, str(built.path))
    if options.through is Through.APPTAINER:
        return sif.smoke_sif(locked, built, only, tiers, store=store, how=how, reporter=console)
    return tests.smoke(
        locked, built, only, tiers, through=options.through and options.through.value,
        store=store, how=how, arbitrary_user=options.arbitrary, reporter=console,
    )  # fmt: skip


def _here(arches: Sequence[Arch] | None) -> Arch:
    """This machine's architecture, which alone can be tested in the active environment."""
    machine = Arch.parse(platform.machine())
    if arches and set(arches) != {machine}:
        message = f"--arch {' --arch '.join(arches)}: the active environment is {machine}"
        raise InputError(message, hint="leave --arch out, or test an image")
    return machine
