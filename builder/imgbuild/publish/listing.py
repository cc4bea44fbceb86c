"""Lists images in a registry from tags, manifests and configurations (`registry ls`)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from imgbuild.errors import FetchFailed, InputError, IntegrityError
from imgbuild.matrix.fields import VERSION_LABEL
from imgbuild.plan.tags import DATED_TAG
from imgbuild.publish import tag
from imgbuild.registry.client import NotFound, RegistryClient
from imgbuild.registry.image import RegistryImage, read_registry_image
from imgbuild.registry.image_reference import Repository
from imgbuild.system.threads import StopFlag, run_for_each
from imgbuild.values import Arch, Bytes, Digest

THREADS = 8
TARGET = "dev.imgbuild.target"


class ListedPlatform(msgspec.Struct, frozen=True, kw_only=True):
    """An image for one architecture. `size` is the download size in bytes."""

    digest: Digest
    size: Bytes
    layers: int


class ListedTag(msgspec.Struct, frozen=True, kw_only=True):
    """An image in a repository. `target` and `versions` are read from labels.

    `dates` contains the dates in tags, as YYYYMMDD. `other` is the type of an artifact that is not
    an image, or describes a missing or damaged part of an image.
    """

    repository: str
    digest: Digest
    tags: tuple[str, ...]
    dates: tuple[str, ...] = ()
    target: str = ""
    versions: dict[str, str] = {}
    arch: dict[Arch, ListedPlatform] = {}
    other: str = ""

    @property
    def size(self) -> int:
        """The total size for all architectures, in bytes."""
        return sum(platform.size for platform in self.arch.values())


class RegistryListing(msgspec.Struct, frozen=True, kw_only=True):
    """The images in a registry.

    `size` is the total size of distinct blobs in bytes. `sum` is the total size of all images.
    """

    entries: tuple[ListedTag, ...]
    size: Bytes
    sum: Bytes


def list_images(client: RegistryClient, places: Iterable[Repository]) -> RegistryListing:
    """Return the tagged images of `places`, sorted by repository and first tag."""
    listed = [item for place in places for item in _images(client, place)]
    blobs = {
        blob: size
        for _, summary in listed
        if summary
        for image in summary.images.values()
        for blob, size in image.blobs.items()
    }
    entries = tuple(entry for entry, _ in listed)
    return RegistryListing(
        entries=entries, size=sum(blobs.values()), sum=sum(entry.size for entry in entries)
    )


def list_repositories(client: RegistryClient, host: str) -> list[Repository]:
    """Return the repositories of a registry. Raises InputError if it does not list them."""
    try:
        return [Repository(host, name) for name in sorted(client.repositories(host))]
    except FetchFailed as error:
        message = f"{host} does not list its repositories: {error.message}"
        raise InputError(
            message, hint=f"specify a repository: imgbuild registry ls {host}/NAME"
        ) from error


def _images(
    client: RegistryClient, place: Repository
) -> list[tuple[ListedTag, RegistryImage | None]]:
    names = [name for name in client.tags(place) if not tag.ATTACHED_TAG.fullmatch(name)]
    tagged = tag.tags_by_digest(client, place, names)

    def _read_image(digest: Digest, _: StopFlag) -> tuple[ListedTag, RegistryImage | None]:
        return _entry(client, place, digest, tagged[digest])

    return sorted(
        run_for_each(list(tagged), _read_image, threads=THREADS), key=lambda item: item[0].tags
    )


def _entry(
    client: RegistryClient, place: Repository, digest: Digest, tags: tuple[str, ...]
) -> tuple[ListedTag, RegistryImage | None]:
    entry = ListedTag(repository=str(place), digest=digest, tags=tags)
    try:
        image = read_registry_image(client, place.with_digest(digest))
    except (InputError, IntegrityError, NotFound) as error:
        return msgspec.structs.replace(entry, other=error.message), None
    labels = next(iter(image.images.values())).configuration.labels
    dates = (match[2] for name in tags if (match := DATED_TAG.fullmatch(name)))
    listed = msgspec.structs.replace(
        entry,
        dates=tuple(sorted(dates)),
        target=labels.get(TARGET, ""),
        versions={
            key.removeprefix(VERSION_LABEL): text
            for key, text in sorted(labels.items())
            if key.startswith(VERSION_LABEL)
        },
        arch={
            arch: ListedPlatform(
                digest=platform.manifest.digest, size=platform.size, layers=len(platform.layers)
            )
            for arch, platform in sorted(image.images.items())
        },
    )
    return listed, image
