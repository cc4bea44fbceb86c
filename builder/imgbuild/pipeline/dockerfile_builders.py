"""Images that another builder makes from the rendered Dockerfile: the same files, different bytes.

Their OCI layouts go to `build/BUILDER/TARGET`, so that they are not mistaken for imgbuild's own.
"""

from __future__ import annotations

import contextlib
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from imgbuild import codec
from imgbuild.assemble.inputs import Inputs
from imgbuild.assemble.layout import BuiltImage
from imgbuild.cache import prune
from imgbuild.container import buildkit, podman
from imgbuild.errors import ImgbuildError
from imgbuild.lock.lock import Lock
from imgbuild.lock.published import LOCK, SEAL
from imgbuild.matrix.select import Selected
from imgbuild.oci import archive, layout
from imgbuild.oci.layout import Layout
from imgbuild.pipeline import targets
from imgbuild.pipeline.targets import Session
from imgbuild.plan import current
from imgbuild.plan import seal as seals
from imgbuild.plan.seal import Seal
from imgbuild.project import Project
from imgbuild.render import committed, contexts, dockerfile
from imgbuild.system.console import console
from imgbuild.values import Arch, Digest, sha256

Name = Literal["docker", "podman", "buildah"]
# Notes in index.json: all that an image follows from, besides what its seal covers.
BUILDER = "dev.imgbuild.builder"
VERSION = "dev.imgbuild.builder-version"
SEALED = "dev.imgbuild.sealed"
DOCKERFILE = "dev.imgbuild.dockerfile"  # sha256
CONTEXT = "dev.imgbuild.context"  # of every other file beside it
FARM = "dev.imgbuild.buildx-builder"  # which builder of buildx, if it is not the engine's own


class BuilderChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The builder and its options. `builder` is one of buildx; `secrets` are files by their id.

    `dated=False` leaves files the time at which they were written, which no comparison looks at:
    for the image's own time, BuildKit compresses each layer once more.
    """

    name: Name = "docker"
    builder: str | None = None
    dated: bool = True
    cache_from: tuple[str, ...] = ()
    cache_to: tuple[str, ...] = ()
    secrets: Mapping[str, Path] = {}


class BuildContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a Dockerfile is built from beside base and wheels: `files` by their path, itself too.

    `committed` is their folder; None, with `reasons`, if its files do not follow from the lock.
    """

    files: Mapping[str, bytes]
    committed: Path | None
    reasons: tuple[str, ...] = ()


def folder(project: Project, target: str, choice: BuilderChoice) -> Path:
    """The default place of the image of `target`."""
    place = project.below(f"build/{choice.name}/{target}")
    # Podman gives files their time as it writes them.
    if choice.dated or choice.name != "docker":
        return place
    return project.below(f"build/compare/{choice.name}/{target}")


def build_all(
    session: Session,
    selected: Sequence[Selected],
    output: Path | None,
    choice: BuilderChoice,
    *,
    form: str = "oci",
) -> list[BuiltImage]:
    """Build each target by another builder; LockStale if one's lock is out of date."""
    targets.refuse_one_file(selected, output, form)
    made = []
    for item in selected:
        own = folder(session.project, item.name, choice)
        place = targets.placed(own, item.name, output, several=len(selected) > 1, form=form)
        built = build(session, item.name, item.arches, place if form == "oci" else own, choice)
        if form != "oci":
            archive.write(own, place, form, item.name, reporter=console)
            built = msgspec.structs.replace(built, output=place)
        made.append(built)
    return made


def compared(session: Session, item: Selected, choice: BuilderChoice) -> Path:
    """A layout of what `choice` builds of a target, to be compared; built if none is current."""
    quick = msgspec.structs.replace(choice, dated=False)
    place = folder(session.project, item.name, quick)
    for each in dict.fromkeys((folder(session.project, item.name, choice), place)):
        if is_current(session, item, each, choice):
            return each
    build(session, item.name, item.arches, place, quick)
    return place


def build(
    session: Session, target: str, arches: Sequence[Arch], place: Path, choice: BuilderChoice
) -> BuiltImage:
    """Build the image of `target` with the chosen builder into the layout `place`."""
    layout.refuse_others(place, target)
    lock, sealed = current.read_current(session.project, session.matrix, target)
    inputs = session.inputs()
    wheels = contexts.wheels_folder(session.project, target)
    context = _context(session, lock, sealed)
    notes = _notes(context, sealed, choice) | _version(choice.name, choice.builder)
    title = f"building {target} for {', '.join(arches)} with {choice.name}"
    with (
        console.step(title),
        contexts.held_wheels(lock, arches, wheels, inputs),
        _scratch(place) as scratch,
    ):
        laid_out = _laid_out(context, scratch / "context", target)
        order = _order(session, inputs, (lock, sealed), arches, laid_out, choice)
        if choice.name == "docker":
            buildkit.build(
                order, scratch / "layout", reporter=console, terminal=console.on_terminal
            )
        else:
            # The base has one name in this user's storage, for all targets built on it.
            with inputs.store.exclusive(podman.base_name(order)):
                podman.build(order, scratch / "layout", choice.name, reporter=console)
        found = layout.read(scratch / "layout")
        images = _images(found, arches)
        digest = layout.write(place, images, target, notes=notes, reporter=console)
    prune.trim(inputs.store)
    built = _built(layout.read(place), digest)
    console.info(
        f"{target}: {built.size / 1e9:.2f} GB in {place}, {built.digest}; the files are those of"
        f" {sealed.digest}, the bytes are {choice.name}'s own (imgbuild diff --files)"
    )
    return built


def native(item: Selected) -> Selected:
    """The target on this machine's architecture alone: others run under slow emulation.

    It is left as it is if it has none for this machine.
    """
    with contextlib.suppress(ValueError):
        own = Arch.parse(platform.machine())
        if own in item.arches and len(item.arches) > 1:
            console.info(f"{item.name}: building for {own} only, as this machine; see --arch")
            return msgspec.structs.replace(item, arches=(own,))
    return item


def is_current(session: Session, item: Selected, place: Path, choice: BuilderChoice) -> bool:
    """Whether the layout `place` is what `choice` would build of a target now.

    It does not matter which of buildx's builders made it, but the version of that builder does, if
    it answers.
    """
    try:
        found = layout.read(place)
    except ImgbuildError:
        return False
    lock, sealed = current.read_current(session.project, session.matrix, item.name)
    due = _notes(_context(session, lock, sealed), sealed, choice)
    with contextlib.suppress(ImgbuildError):
        due |= _version(choice.name, found.notes.get(FARM))
    return (
        all(found.notes.get(note) == text for note, text in due.items())
        and set(item.arches) <= set(found.images)
        and layout.check(place, found.digest)
    )


def _notes(context: BuildContext, sealed: Seal, choice: BuilderChoice) -> dict[str, str]:
    files = {name: sha256(content) for name, content in context.files.items()}
    return {
        BUILDER: choice.name,
        SEALED: sealed.digest,
        DOCKERFILE: files.pop(committed.DOCKERFILE),
        CONTEXT: sha256(codec.compact(files)),
    }


def _version(name: Name, builder: str | None) -> dict[str, str]:
    """The notes about the builder; ToolMissing or InputError if it does not answer."""
    if name != "docker":
        return {VERSION: podman.version(name)}
    named = {} if builder is None else {FARM: builder}
    return {VERSION: buildkit.version(builder), **named}


@contextlib.contextmanager
def _scratch(place: Path) -> Iterator[Path]:
    """A folder on the disk of `place`, removed at the end, also after an error."""
    above = place.parent.absolute()  # builders are started elsewhere too
    above.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=above) as name:
        yield Path(name)


def _order(
    session: Session,
    inputs: Inputs,
    locked: tuple[Lock, Seal],
    arches: Sequence[Arch],
    context: Path,
    choice: BuilderChoice,
) -> buildkit.Order:
    project, (lock, sealed) = session.project, locked
    place = contexts.base_folder(project, lock.target)
    base = contexts.base(lock, sealed, arches, place, inputs, processes=session.options.jobs)
    wheels = contexts.wheels_folder(project, lock.target)
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
        dated=choice.dated,
    )


def _context(session: Session, lock: Lock, sealed: Seal) -> BuildContext:
    """What is built: the committed files if they follow from the lock, else new ones."""
    due = committed.files(session.project, session.matrix, lock, sealed)
    folder = session.project.images / lock.target
    if stale := committed.stale(session.project, lock.target, due):
        # The catalogue has no rendered files, and needs none.
        reasons = tuple(stale) if session.project.writable else ()
        texts = current.requirement_files(lock)
        files = due | {name: text.encode() for name, text in texts.items()}
        return BuildContext(files=files, committed=None, reasons=reasons)
    present = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    files = {name: path.read_bytes() for name, path in present.items() if name not in (LOCK, SEAL)}
    return BuildContext(files=files, committed=folder)


def _laid_out(context: BuildContext, scratch: Path, target: str) -> Path:
    """The folder with these files: the committed one, else `scratch`."""
    if context.committed is not None:
        return context.committed
    for reason in context.reasons[:1]:
        console.warn(
            f"{reason}; building from a newly rendered one; to update it: imgbuild render {target}"
        )
    for name, content in context.files.items():
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        (scratch / name).write_bytes(content)
    return scratch


def _images(found: Layout, arches: Sequence[Arch]) -> dict[Arch, layout.ImageFiles]:
    images = {}
    for arch in arches:
        stored = found.image(arch)
        images[arch] = layout.ImageFiles(
            config=found.blob(stored.config.digest).read_bytes(),
            manifest=found.blob(stored.manifest.digest).read_bytes(),
            layers={layer.digest: found.blob(layer.digest) for layer in stored.layers},
        )
    return images


def _built(found: Layout, digest: Digest) -> BuiltImage:
    layers = {layer.digest: layer.size for one in found.images.values() for layer in one.layers}
    documents = [part.size for one in found.images.values() for part in (one.manifest, one.config)]
    return BuiltImage(
        target=found.name,
        digest=digest,
        arch={arch: one.manifest.digest for arch, one in found.images.items()},
        output=found.path,
        size=sum(layers.values()) + sum(documents),
        made=len(layers),
        unchanged=False,
    )
