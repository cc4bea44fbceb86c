"""Images that another builder makes of the rendered Dockerfile: the same files, other bytes.

Comes in: a project's targets and how to build them. Goes out: OCI layouts beside imgbuild's own, in
`build/BUILDER/TARGET`, so that no image that somebody else built is taken for the sealed one.
"""

from __future__ import annotations

import contextlib
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from imgbuild import buildkit, contexts, podman, sealing, upkeep
from imgbuild import seal as seals
from imgbuild.building import Built
from imgbuild.console import console
from imgbuild.errors import InputError
from imgbuild.inputs import Inputs
from imgbuild.lock import Lock
from imgbuild.matrix.select import Selected
from imgbuild.oci import archive, layout
from imgbuild.oci.layout import Layout
from imgbuild.pipeline import Session
from imgbuild.project import Project
from imgbuild.render import current, dockerfile
from imgbuild.requirements import file_name
from imgbuild.seal import Seal
from imgbuild.values import Arch, Digest

Name = Literal["docker", "podman", "buildah"]
BUILDER = "dev.imgbuild.builder"  # notes in index.json
SEALED = "dev.imgbuild.sealed"


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Who builds, and how. `builder` is one of buildx's own; `secrets` are files by their id."""

    name: Name = "docker"
    builder: str | None = None
    cache_from: tuple[str, ...] = ()
    cache_to: tuple[str, ...] = ()
    secrets: Mapping[str, Path] = {}


def folder(project: Project, name: Name, target: str) -> Path:
    """Where the image that `name` builds of `target` goes unless the user says another place."""
    return project.root / "build" / name / target


def build_all(
    session: Session,
    selected: Sequence[Selected],
    output: Path | None,
    choice: Choice,
    *,
    form: str = "oci",
) -> list[Built]:
    """Build each target by another builder; LockStale if one's lock is out of date."""
    if output is not None and form != "oci" and len(selected) > 1:
        message = f"--output {output} is one file, {len(selected)} targets are selected"
        raise InputError(message, hint="name one target, or leave --output out")
    made = []
    for item in selected:
        place = folder(session.project, choice.name, item.name)
        if output is not None and form == "oci":
            place = output / item.name if len(selected) > 1 else output
        built = build(session, item.name, item.arches, place, choice)
        if form != "oci":
            file = output or place.with_name(f"{item.name}.{form}.tar")
            archive.write(place, file, form, item.name)
            built = msgspec.structs.replace(built, output=file)
        made.append(built)
    return made


def build(
    session: Session, target: str, arches: Sequence[Arch], place: Path, choice: Choice
) -> Built:
    """Leave the image of `target` that the chosen builder makes in the layout `place`."""
    lock, sealed = sealing.read_current(session.project, session.matrix, target)
    inputs = session.inputs()
    title = f"building {target} for {', '.join(arches)} with {choice.name}"
    with console.step(title), _scratch(place) as scratch:
        order = _order(session, inputs, (lock, sealed), arches, scratch, choice)
        if choice.name == "docker":
            buildkit.build(order, scratch / "layout")
        else:
            podman.build(order, scratch / "layout", choice.name)
        found = layout.read(scratch / "layout")
        notes = {BUILDER: choice.name, SEALED: sealed.digest}
        digest = layout.write(place, _images(found, arches), target, notes=notes)
    upkeep.trim(inputs.store)
    built = _built(layout.read(place), digest)
    console.info(
        f"{target}: {built.size / 1e9:.2f} GB in {place}, {built.digest}; the files are those of"
        f" {sealed.digest}, the bytes are {choice.name}'s own (imgbuild compare)"
    )
    return built


def native(item: Selected) -> Selected:
    """The target on this machine's architecture alone: others run under slow emulation.

    It is left as it is if it has none for this machine.
    """
    with contextlib.suppress(ValueError):
        own = Arch.parse(platform.machine())
        if own in item.arches and len(item.arches) > 1:
            console.info(f"{item.name}: for {own}, this machine's; name others with --arch")
            return msgspec.structs.replace(item, arches=(own,))
    return item


def is_current(place: Path, name: Name, sealed: Digest, arches: Sequence[Arch]) -> bool:
    """Whether the layout `place` is what `name` built of the lock with this seal."""
    if not place.is_dir():
        return False
    found = layout.read(place)
    return (
        found.notes.get(BUILDER) == name
        and found.notes.get(SEALED) == sealed
        and set(arches) <= set(found.images)
    )


@contextlib.contextmanager
def _scratch(place: Path) -> Iterator[Path]:
    """A folder on the disk of `place`, which is gone at the end, come what may."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as name:
        yield Path(name)


def _order(
    session: Session,
    inputs: Inputs,
    locked: tuple[Lock, Seal],
    arches: Sequence[Arch],
    scratch: Path,
    choice: Choice,
) -> buildkit.Order:
    project, (lock, sealed) = session.project, locked
    context = _context(session, lock, sealed, scratch / "context")
    processes = session.options.jobs
    base = contexts.base(lock, sealed, arches, scratch / "base", inputs, processes=processes)
    wheels = contexts.wheels_folder(project, lock.target)
    contexts.wheels(lock, arches, wheels, inputs)
    rendered = dockerfile.dockerfile(lock, sealed, session.matrix)
    return buildkit.Order(
        title=f"{choice.name} builds {lock.target}",
        context=context,
        base=base.output.absolute(),
        digest=base.digest,
        contexts={"wheels": str(wheels.absolute())},
        platforms=tuple(f"linux/{arch.oci}" for arch in arches),
        arguments={"SOURCE_DATE_EPOCH": str(rendered.epoch)},
        annotations={
            f"linux/{arch.oci}": seals.needs(floors)
            for arch in arches
            if (floors := sealed.arch[arch].floors) is not None
        },
        secrets=choice.secrets,
        builder=choice.builder,
        cache_from=choice.cache_from,
        cache_to=choice.cache_to,
    )


def _context(session: Session, lock: Lock, sealed: Seal, scratch: Path) -> Path:
    """The folder with the Dockerfile: the committed one if it is current, else a rendered one."""
    due = current.files(session.project, session.matrix, lock, sealed)
    committed = session.project.images / lock.target
    stale = current.stale(session.project, lock.target, due)
    if not stale:
        return committed
    console.warn(f"{stale[0]}; building from a fresh one, render it: imgbuild render {lock.target}")
    for name, content in due.items():
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        (scratch / name).write_bytes(content)
    for arch in lock.arch:
        shutil.copyfile(committed / file_name(arch), scratch / file_name(arch))
    return scratch


def _images(found: Layout, arches: Sequence[Arch]) -> dict[Arch, layout.Image]:
    images = {}
    for arch in arches:
        stored = found.image(arch)
        images[arch] = layout.Image(
            config=found.blob(stored.config.digest).read_bytes(),
            manifest=found.blob(stored.manifest.digest).read_bytes(),
            layers={layer.digest: found.blob(layer.digest) for layer in stored.layers},
        )
    return images


def _built(found: Layout, digest: Digest) -> Built:
    layers = {layer.digest: layer.size for one in found.images.values() for layer in one.layers}
    documents = [part.size for one in found.images.values() for part in (one.manifest, one.config)]
    return Built(
        target=found.name,
        digest=digest,
        arch={arch: one.manifest.digest for arch, one in found.images.items()},
        output=found.path,
        size=sum(layers.values()) + sum(documents),
        made=len(layers),
        unchanged=False,
    )
