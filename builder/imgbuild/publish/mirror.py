"""Uploads inputs of locks to a mirror, and reports missing inputs (`imgbuild registry mirror`).

A blob is uploaded once, even if several targets need it. An artifact is uploaded after its blobs,
and tags are set last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from imgbuild.assemble import mirror_items
from imgbuild.assemble.inputs import Inputs, split_into_batches
from imgbuild.assemble.mirror_items import Input, missing_inputs
from imgbuild.cache.store import Store
from imgbuild.errors import IntegrityError
from imgbuild.lock.lock_file import Lock
from imgbuild.oci.documents import EMPTY_CONFIG, MANIFEST
from imgbuild.registry.image_reference import Repository
from imgbuild.system import threads
from imgbuild.system.amounts import format_count, size_text
from imgbuild.system.reporter import ProgressBar
from imgbuild.system.threads import StopFlag
from imgbuild.values import Arch, Bytes, Digest, digest_of

if TYPE_CHECKING:
    from imgbuild.registry.client import RegistryClient

QUERY_THREADS = 8  # threads for existence checks
UPLOAD_THREADS = 4  # threads for uploads


class LockedInputs(msgspec.Struct, frozen=True, kw_only=True):
    """A lock, and an architecture for which its inputs are mirrored."""

    lock: Lock
    arch: Arch


class MirrorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a target for one architecture in a mirror. `lacking` lists missing files.

    `tagged` is whether the artifact has the permanent `tag`. Without the tag, the registry's
    garbage collection would delete the files.
    """

    target: str
    arch: Arch
    artifact: Digest
    tag: str
    tagged: bool
    files: int
    size: Bytes
    lacking: tuple[str, ...] = ()
    lacking_size: Bytes = 0


class MirrorPush(msgspec.Struct, frozen=True, kw_only=True):
    """A push to a mirror: the total files and bytes, and the files and bytes that were missing.

    `fetched` is the number of files that were not in the cache. For a dry run, the numbers are
    those of the planned push.
    """

    mirror: str
    dry_run: bool
    files: int
    size: Bytes
    sent: int
    sent_size: Bytes
    fetched: int
    artifacts: tuple[MirrorStatus, ...]


def mirror_status(
    parts: Sequence[LockedInputs], repository: Repository, client: RegistryClient
) -> tuple[MirrorStatus, ...]:
    """Return the status of `parts` in `repository`, without changing the repository."""
    present = _present_digests(_union(parts), repository, client)
    return tuple(_status(part, present, repository, client) for part in parts)


def upload_missing_inputs(
    parts: Sequence[LockedInputs],
    repository: Repository,
    client: RegistryClient,
    inputs: Inputs,
    *,
    dry_run: bool = False,
    drop: bool = False,
) -> MirrorPush:
    """Upload all inputs of `parts` that are missing from `repository`.

    Files that are not in the cache are fetched as for a build. With `drop`, files are removed from
    the cache after the upload.
    """
    everything = _union(parts)
    present = _present_digests(everything, repository, client)
    absent = {digest: item for digest, item in everything.items() if digest not in present}
    size = sum(item.size for item in absent.values())
    fetched = len(missing_inputs(absent.values(), inputs.store))
    client.reporter.info(
        f"{repository}: {len(present)} of {format_count(len(everything), 'file')} present,"
        f" {len(absent)}"
        f" to send, {size_text(size)}; {fetched} of them are not in the cache"
    )
    if not dry_run:
        left = dict(absent)
        with client.reporter.progress(f"to {repository}", size) as bar:
            for part in parts:
                _upload_part(part, left, repository, client, inputs, bar, drop=drop)
        _upload_artifacts(parts, repository, client)
        present = set(everything)
    return MirrorPush(
        mirror=str(repository),
        dry_run=dry_run,
        files=len(everything),
        size=sum(item.size for item in everything.values()),
        sent=len(absent),
        sent_size=size,
        fetched=fetched,
        artifacts=tuple(_status(part, present, repository, client) for part in parts),
    )


def _union(parts: Iterable[LockedInputs]) -> dict[Digest, Input]:
    return {
        item.digest: item
        for part in parts
        for item in mirror_items.collect_inputs(part.lock, part.arch)
    }


def _present_digests(
    everything: dict[Digest, Input], repository: Repository, client: RegistryClient
) -> set[Digest]:
    """Return the digests of the files that exist in the registry.

    Raises IntegrityError if the size of a file differs.
    """

    def _existing_digest(item: Input, _: StopFlag) -> Digest | None:
        size = client.has(repository, item.digest)
        if size is not None and size != item.size:
            message = f"{repository} has {size} bytes for {item.file}, but the lock has {item.size}"
            hint = (
                "the registry's storage is damaged, or the lock was edited; restore one of them, "
                "and push again"
            )
            raise IntegrityError(message, hint=hint)
        return None if size is None else item.digest

    digests = threads.run_for_each(
        list(everything.values()), _existing_digest, threads=QUERY_THREADS
    )
    return {digest for digest in digests if digest is not None}


def _status(
    part: LockedInputs, present: Collection[Digest], repository: Repository, client: RegistryClient
) -> MirrorStatus:
    items = mirror_items.collect_inputs(part.lock, part.arch)
    data = mirror_items.artifact_manifest(part.lock, part.arch)
    digest, tag = digest_of(data), mirror_items.artifact_tags(part.lock, part.arch, data)[0]
    descriptor = client.resolve(repository.tagged(tag))
    absent = [item for item in items if item.digest not in present]
    return MirrorStatus(
        target=part.lock.target,
        arch=part.arch,
        artifact=digest,
        tag=tag,
        tagged=descriptor is not None and descriptor.digest == digest,
        files=len(items),
        size=sum(item.size for item in items),
        lacking=tuple(item.file for item in absent),
        lacking_size=sum(item.size for item in absent),
    )


def _upload_part(
    part: LockedInputs,
    left: dict[Digest, Input],
    repository: Repository,
    client: RegistryClient,
    inputs: Inputs,
    bar: ProgressBar,
    *,
    drop: bool,
) -> None:
    """Send the files in `left` that belong to `part`, and remove them from `left`."""
    items = [
        item for item in mirror_items.collect_inputs(part.lock, part.arch) if item.digest in left
    ]
    for batch in split_into_batches(items, lambda item: item.size, bounded=drop):
        fetched = inputs.fetch_missing(part.lock, {item.sha256 for item in batch})
        threads.run_for_each(
            sorted(batch, key=lambda item: -item.size),
            lambda item, stop: _upload_input(item, repository, client, inputs, bar, stop),
            threads=UPLOAD_THREADS,
            retained="uploaded files are kept",
        )
        for item in batch:
            del left[item.digest]
        if drop:
            inputs.drop_files(item.sha256 for item in fetched if not item.layer)


def _upload_input(
    item: Input,
    repository: Repository,
    client: RegistryClient,
    inputs: Inputs,
    bar: ProgressBar,
    stop: StopFlag,
) -> None:
    from imgbuild.registry.client import file_source

    store = inputs.store
    path = store.blob(item.digest) if item.layer else store.file(item.sha256)
    if path is None:
        message = f"{item.file} was removed from the cache {store.root} while it was in use"
        raise IntegrityError(message, hint="run the same command again")
    try:
        client.upload_blob(
            repository,
            file_source(path, item.digest, item.size),
            advance=stop.with_check(bar.advance),
        )
    except IntegrityError:
        _refuse_damaged(path, item, store)
        raise


def _refuse_damaged(path: Path, item: Input, store: Store) -> None:
    """Remove a file with a wrong hash from the cache. Always raises IntegrityError."""
    with path.open("rb") as file:
        intact = hashlib.file_digest(file, "sha256").hexdigest() == item.sha256
    if not intact:
        store.drop_damaged(path)
        message = f"removed the damaged file {path}, which does not match {item.file} in the lock"
        raise IntegrityError(
            message, hint="check the disk, and run the command again to download the file"
        )


def _upload_artifacts(
    parts: Iterable[LockedInputs], repository: Repository, client: RegistryClient
) -> None:
    """Upload the artifacts with their permanent tags, and then set the latest tags of targets."""
    from imgbuild.registry.client import bytes_source

    client.upload_blob(repository, bytes_source(EMPTY_CONFIG))
    for part in parts:
        data = mirror_items.artifact_manifest(part.lock, part.arch)
        for tag in mirror_items.artifact_tags(part.lock, part.arch, data):
            descriptor = client.resolve(repository.tagged(tag))
            if descriptor is None or descriptor.digest != digest_of(data):
                client.put_manifest(repository, data, MANIFEST, tag=tag)
