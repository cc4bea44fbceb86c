"""Reads the sides of `imgbuild diff`: targets, locks on disk, or images in registries.

An existing path is a lock. A name with a slash or a colon is an image reference. Other names are
targets of the project, in the checkout or at a git revision.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from imgbuild.attest import bundle
from imgbuild.attest.bundle import LockBundle
from imgbuild.errors import ImgbuildError, InputError, NothingSelected
from imgbuild.lock import lock_file
from imgbuild.matrix import project_paths
from imgbuild.matrix.fields import VERSION_LABEL
from imgbuild.oci.image import PlatformImage
from imgbuild.plan import image_digests
from imgbuild.registry import artifact_store
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image import read_registry_image
from imgbuild.registry.image_reference import ImageReference, parse_reference
from imgbuild.show import image_diff, revisions
from imgbuild.show.image_diff import DiffLayer, DiffSide, SideContent
from imgbuild.system import boundary
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import Arch, Digest

LAYER_COMMENT = re.compile(r"imgbuild layer (.+)")
LOCK = "lock.json"
DIGESTS_FILE = "digests.json"


def read_side(
    text: str, client: RegistryClient, matrix: Path | None, reporter: Reporter = SILENT_REPORTER
) -> DiffSide:
    """Read the image `text`. Raises InputError or LockStale if it does not exist."""
    path = Path(text)
    if path.exists():
        return _side_on_disk(path, text)
    name, at, revision = text.partition("@")
    if "/" not in name and ":" not in name and not revision.startswith("sha256:"):
        return _target_side(name, revision, text, matrix) if at else _locked_side(name, matrix)
    return _registry_side(client, parse_reference(text, default_tag="latest"), reporter)


def select_arches(side: DiffSide, arches: Sequence[Arch]) -> DiffSide:
    """Restrict `side` to the architectures `arches`. Empty `arches` select all.

    Raises NothingSelected if no architecture is left.
    """
    if not arches:
        return side
    kept = {arch: content for arch, content in side.arch.items() if arch in arches}
    if not kept:
        message = f"{side.name} has no {' or '.join(arches)}, only {', '.join(side.arch)}"
        raise NothingSelected(message, hint="specify another architecture, or omit --arch")
    return msgspec.structs.replace(side, arch=kept)


def _side_on_disk(path: Path, name: str) -> DiffSide:
    file = path / LOCK if path.is_dir() else path
    hint = f"specify {LOCK}, or a folder with {LOCK} and {DIGESTS_FILE}"
    if not file.is_file():
        message = f"{path} has no {LOCK}"
        raise InputError(message, hint=hint)
    lock = lock_file.decode_lock(
        boundary.read_regular_file(file), str(file), hint=hint, remedy="run imgbuild lock again"
    )
    place = file.with_name(DIGESTS_FILE)
    if not place.is_file():
        message = (
            f"{place} is missing, but required because a lock does not contain the sizes of layers"
        )
        raise InputError(message, hint=hint)
    return image_diff.lock_side(lock, image_digests.read_digests_at(place, lock, hint=hint), name)


def _locked_side(name: str, matrix: Path | None) -> DiffSide:
    images = project_paths.find_project(matrix).images
    if matrix is None and not lock_file.lock_path(images, name).exists():
        catalogue = project_paths.catalogue_project()
        images = catalogue.images if name in catalogue.locked_targets() else images
    lock = lock_file.read_lock(images, name)
    return image_diff.lock_side(lock, image_digests.read_digests(images, lock))


def _target_side(name: str, revision: str, text: str, matrix: Path | None) -> DiffSide:
    locked_lock = revisions.locked_at(project_paths.find_project(matrix), name, revision)
    if locked_lock is None:
        message = f"{name} has no lock at {revision}"
        raise InputError(message, hint="specify another revision, or another target")
    return image_diff.lock_side(*locked_lock, name=text)


def _registry_side(
    client: RegistryClient, reference: ImageReference, reporter: Reporter
) -> DiffSide:
    remote_image = read_registry_image(client, reference)
    attached = _attached_lock(client, reference, remote_image.top.digest, reporter)
    if attached is None:
        reporter.warn(
            f"{reference} has no lock attached; only the package versions in its"
            " labels are compared"
        )
    content = {arch: _content(image, attached) for arch, image in remote_image.images.items()}
    return DiffSide(
        name=str(reference),
        arch=content,
        complete=attached is not None,
        lock=attached.lock if attached else None,
    )


def _attached_lock(
    client: RegistryClient, reference: ImageReference, digest: Digest, reporter: Reporter
) -> LockBundle | None:
    """Return the lock and digests attached to the image `digest`, if they belong to the image."""
    place = str(reference)
    for artifact in artifact_store.find_artifacts(
        client, reference.repository, digest, bundle.ARTIFACT_TYPE
    ):
        try:
            attached = bundle.read_lock_bundle(
                {name: part.data for name, part in artifact.files.items()}, place
            )
        except ImgbuildError as error:
            reporter.detail(f"{place}: {error.message}")
            continue
        if digest in {
            attached.target_digests.digest,
            *(each.manifest for each in attached.target_digests.arch.values()),
        }:
            return attached
    return None


def _content(image: PlatformImage, attached: LockBundle | None) -> SideContent:
    commands = [step.created_by for step in image.configuration.history if not step.empty_layer]
    names = [match[1] if (match := LAYER_COMMENT.fullmatch(text)) else "" for text in commands]
    names += [""] * (len(image.layers) - len(names))
    labelled = {
        ("wheel", key.removeprefix(VERSION_LABEL)): text
        for key, text in image.configuration.labels.items()
        if key.startswith(VERSION_LABEL)
    }
    return SideContent(
        packages=image_diff.package_versions(attached.lock, image.arch) if attached else labelled,
        layers=tuple(
            DiffLayer(name=name or layer.digest, digest=layer.digest, size=layer.size)
            for name, layer in zip(names, image.layers, strict=False)
        ),
        size=image.size,
        properties=image_diff.image_properties(
            attached.lock, image.arch, attached.target_digests.arch.get(image.arch)
        )
        if attached
        else {},
    )
