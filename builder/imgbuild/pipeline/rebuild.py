"""Rebuilds an image from its attached lock, without a checkout of the project.

published image or folder → attached lock → fetch → assemble → OCI layout
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from imgbuild.assemble import image_layout, mirror
from imgbuild.assemble.image_layout import BuiltImage
from imgbuild.assemble.inputs import Inputs
from imgbuild.attest import attachments, bundle
from imgbuild.attest.bundle import LockBundle
from imgbuild.cache import prune
from imgbuild.cache.context import Context
from imgbuild.errors import FetchFailed, ImgbuildError, InputError, IntegrityError, NothingSelected
from imgbuild.pipeline.build import deliver_image, output_path
from imgbuild.pipeline.session import SessionOptions
from imgbuild.registry import artifact_store
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import ImageReference, parse_reference
from imgbuild.system.console import console
from imgbuild.system.folder import require_below
from imgbuild.values import Arch, Digest, native_arch


class RebuildOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The lock for a rebuild, its architectures, and its location.

    Wheel folders in the lock are relative to `folder`.
    """

    lock_bundle: LockBundle
    arches: tuple[Arch, ...]
    place: str
    folder: Path


def find_rebuild_origin(
    text: str, *, plain_http: Collection[str] = (), offline: bool = False
) -> RebuildOrigin:
    """Read the lock in the folder `text`, or the lock attached to the image `text`.

    Raises NothingSelected if the lock is missing, and IntegrityError if the lock belongs to another
    image.
    """
    folder = Path(text)
    if folder.is_dir():
        lock_bundle = bundle.read_folder(folder)
        return RebuildOrigin(
            lock_bundle=lock_bundle, arches=tuple(lock_bundle.lock.arch), place=text, folder=folder
        )
    if text.startswith((".", "/")):
        message = f"{text}: no such folder"
        raise InputError(message, hint="specify a folder with a lock.json, or HOST/REPOSITORY:TAG")
    reference = parse_reference(text)
    if not reference.target:
        message = f"{text} has no tag or digest"
        raise InputError(message, hint=f"add a tag or a digest: {text}:TARGET")
    return _published_origin(
        reference, RegistryClient(plain_http=plain_http, offline=offline, reporter=console)
    )


def rebuild_image(
    origin: RebuildOrigin,
    arches: Sequence[Arch] | None,
    output: Path | None,
    options: SessionOptions,
    *,
    form: str = "oci",
) -> BuiltImage:
    """Build the image of `origin`, by default in build/.

    `arches` is None for this machine's architecture, or empty for all available architectures.
    """
    lock_bundle = origin.lock_bundle
    name = lock_bundle.lock.target
    arches = native_arch(origin.arches) if arches is None else arches
    absent = [arch for arch in arches if arch not in origin.arches]
    if absent:
        message = (
            f"{origin.place} is not available for {', '.join(absent)}, only for "
            f"{', '.join(origin.arches)}"
        )
        raise NothingSelected(message, hint="omit --arch, or specify another image")
    chosen = tuple(arch for arch in origin.arches if not arches or arch in arches)
    layout = require_below(Path.cwd(), Path.cwd() / "build" / name)
    place = output_path(layout, name, output, several=False, form=form)
    folder = place if form == "oci" else layout
    inputs = _inputs(origin, options)
    bundle.store_added_files(lock_bundle, inputs.store)
    with console.step(f"building {name} for {', '.join(chosen)} from {origin.place}"):
        built = image_layout.build_layout(
            lock_bundle.lock,
            lock_bundle.target_digests,
            chosen,
            folder,
            inputs,
            processes=options.jobs,
            verify=options.verify,
        )
    built = deliver_image(built, folder, place, form, name)
    prune.trim_cache(inputs.store)
    return built


def _published_origin(reference: ImageReference, client: RegistryClient) -> RebuildOrigin:
    descriptor = client.resolve(reference)
    if descriptor is None:
        message = f"{reference}: no such image"
        raise FetchFailed(message, hint="to list images, run: imgbuild registry ls HOST/REPOSITORY")
    artifacts = artifact_store.find_artifacts(
        client, reference.repository, descriptor.digest, bundle.ARTIFACT_TYPE
    )
    refused: ImgbuildError | None = None
    for artifact in artifacts:
        place = f"{reference.repository}@{artifact.descriptor.digest}"
        try:
            lock_bundle = bundle.read_lock_bundle(
                {name: part.data for name, part in artifact.files.items()}, place
            )
            arches = _arches(lock_bundle, descriptor.digest, place)
        except ImgbuildError as error:  # anyone may attach a lock: another one may be correct
            refused = error
            continue
        return RebuildOrigin(
            lock_bundle=lock_bundle, arches=arches, place=str(reference), folder=Path.cwd()
        )
    if refused is not None:
        raise refused
    message = f"{reference} ({descriptor.digest}) has no lock attached"
    raise NothingSelected(message, hint="specify an image that was pushed by imgbuild")


def _arches(lock_bundle: LockBundle, digest: Digest, place: str) -> tuple[Arch, ...]:
    """Return the architectures of `lock_bundle` that the image `digest` has.

    Raises IntegrityError if the image has none of them.
    """
    every = tuple(lock_bundle.lock.arch)
    for arches in (every, *((arch,) for arch in every)):
        if (
            attachments.list_subjects(lock_bundle.lock, lock_bundle.target_digests, arches)[
                0
            ].digest
            == digest
        ):
            return arches
    locked = lock_bundle.target_digests.digest
    message = f"{place}: the lock attached to {digest} belongs to {locked}"
    raise IntegrityError(message, hint="do not use this lock, because it belongs to another image")


def _inputs(origin: RebuildOrigin, options: SessionOptions) -> Inputs:
    named = mirror.find_mirror(Path.cwd(), options.mirror, only=options.mirror_only)
    return Inputs(
        bundle.single_target_matrix(origin.lock_bundle, origin.folder.resolve()),
        Context.open(console, offline=options.offline),
        mirror=mirror.Mirror.of(named, plain_http=options.plain_http),
    )
