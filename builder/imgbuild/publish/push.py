"""Builds and uploads missing blobs, and sets tags (`imgbuild push`).

survey (HEAD) → mount → assemble the rest → upload → manifests → attachments → signatures → tags

Digests are known from the lock, so existing blobs are neither built nor downloaded. Tags are set
last. The next push reuses the blobs of an interrupted push.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import enum
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from imgbuild.assemble import image_layout
from imgbuild.assemble.inputs import Inputs
from imgbuild.attest import attachments, bundle
from imgbuild.errors import FetchFailed, InputError, IntegrityError
from imgbuild.lock import published
from imgbuild.matrix.project_paths import Project
from imgbuild.oci import layout
from imgbuild.oci.documents import Document
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.session import Session
from imgbuild.plan import current
from imgbuild.plan.plan import RegistryRecipe
from imgbuild.publish import tag
from imgbuild.publish.push_plan import PlannedBlob, PushPlan, push_plan
from imgbuild.publish.tag import ChangedTag
from imgbuild.registry.client import (
    BlobSource,
    NotFound,
    RegistryClient,
    UploadOutcome,
    bytes_source,
    file_source,
)
from imgbuild.registry.image_reference import Repository, parse_reference, parse_repository
from imgbuild.system.reporter import ProgressBar
from imgbuild.system.threads import StopFlag, run_for_each
from imgbuild.values import Arch, Bytes, Digest, digest_of_file

if TYPE_CHECKING:
    from imgbuild.attest.signing.keys import PrivateKey
    from imgbuild.matrix.select import Selected
    from imgbuild.pipeline.session import Session

UPLOADS = 4  # concurrent uploads
QUERY_THREADS = 8  # concurrent queries
KEPT_NOTE = "uploaded blobs remain in the registry"


class BlobState(enum.StrEnum):
    """The state of a blob in the repository. The last two states can only result from a push."""

    PRESENT = "present"
    MOUNTABLE = "mountable"
    LACKING = "lacking"
    MOUNTED = "mounted"
    SENT = "sent"


class PushedBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A blob of an image. `source` is the repository from which the blob is mounted."""

    name: str
    arches: tuple[Arch, ...]
    digest: Digest
    size: Bytes
    state: BlobState
    source: str = ""


class PushContext(msgspec.Struct, frozen=True, kw_only=True):
    """The repository and options of a push. `mounts` are other repositories of the same registry.

    With `attach`, SBOMs, provenance and the lock are attached to the image. With `key`, the image
    is signed.
    """

    client: RegistryClient
    repository: Repository
    mounts: tuple[Repository, ...]
    project: Project
    inputs: Inputs
    processes: int
    tag: bool = True
    attach: bool = True
    key: PrivateKey | None = None


class PushedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A pushed target or, for a dry run, a planned push.

    `sent` is the number of sent bytes. `attached` and `signed` list attachments and signatures.
    """

    target: str
    reference: str
    digest: Digest
    arch: dict[Arch, Digest]
    tags: tuple[ChangedTag, ...]
    blobs: tuple[PushedBlob, ...]
    sent: Bytes
    attached: tuple[Digest, ...] = ()
    signed: tuple[Digest, ...] = ()


def plan_pushes(
    session: Session, selected: Sequence[Selected], *, date: datetime.date, only_base: bool
) -> list[PushPlan]:
    """Return a push plan for each of `selected`. Raises LockStale if a lock is out of date."""
    push_plans = []
    for item in selected:
        lock, target_digests = current.read_current(session.project, session.matrix, item.name)
        push_plans.append(
            push_plan(lock, target_digests, item.arches, date=date, only_base=only_base)
        )
    return push_plans


def push_context(
    session: Session,
    repository: Repository,
    mounts: Sequence[str],
    plain_http: Sequence[str],
    *,
    tag: bool,
    attach: bool,
    key: PrivateKey | None,
) -> PushContext:
    """Return the context for pushes to `repository`.

    Raises InputError for a mount from another registry.
    """
    named = [parse_repository(text) for text in mounts]
    for other in named:
        if other.host != repository.host:
            message = f"--mount-from {other}: layers can be mounted only from the same registry"
            raise InputError(message, hint=f"use a repository on {repository.host}")
    if session.matrix.registry is not None:
        named.append(parse_repository(session.matrix.registry))
    return PushContext(
        client=RegistryClient(plain_http=plain_http, origin=True),
        repository=repository,
        mounts=tuple(named),
        project=session.project,
        inputs=open_inputs(session),
        processes=session.options.jobs,
        tag=tag,
        attach=attach,
        key=key,
    )


def survey_blobs(
    work: PushContext, plan: PushPlan, sent: Collection[Digest] = ()
) -> tuple[PushedBlob, ...]:
    """Return the state of each blob in `plan`. Blobs in `sent` are treated as existing.

    Raises IntegrityError if the size of a blob differs from digests.json.
    """

    def _row(blob: PlannedBlob, _: StopFlag) -> PushedBlob:
        state, source = BlobState.LACKING, ""
        if blob.digest in sent or _blob_exists(work, blob):
            state = BlobState.PRESENT
        else:
            for other in _candidates(work, plan, blob):
                if _has_blob(work, other, blob):
                    state, source = BlobState.MOUNTABLE, str(other)
                    break
        return PushedBlob(
            name=blob.name,
            arches=blob.arches,
            digest=blob.digest,
            size=blob.size,
            state=state,
            source=source,
        )

    return tuple(run_for_each(plan.blobs, _row, threads=QUERY_THREADS))


def _candidates(work: PushContext, plan: PushPlan, blob: PlannedBlob) -> list[Repository]:
    """Return repositories of the same registry that may have a blob, specified ones first."""
    candidates = list(work.mounts)
    overlay = published.find_overlay(work.inputs.matrix, plan.target)
    if overlay is not None and overlay.published.image and overlay.published_layout is None:
        candidates.append(parse_reference(overlay.published.image).repository)
    if blob.layer is not None and isinstance(blob.layer.recipe, RegistryRecipe):
        candidates.append(parse_reference(blob.layer.recipe.image).repository)
    return [
        other
        for other in dict.fromkeys(candidates)
        if other.host == work.repository.host and other != work.repository
    ]


def _blob_exists(work: PushContext, blob: PlannedBlob) -> bool:
    size = work.client.has(work.repository, blob.digest)
    if size is not None and size != blob.size:
        shown = f"{blob.name} ({blob.digest})"
        message = (
            f"{work.repository} has {shown} with {size} bytes, but digests.json has {blob.size}"
        )
        raise IntegrityError(message, hint="delete the blob in the registry, and push again")
    return size is not None


def _has_blob(work: PushContext, other: Repository, blob: PlannedBlob) -> bool:
    """Return whether another repository has a blob. Returns False if it is unreadable."""
    with contextlib.suppress(FetchFailed):
        return work.client.has(other, blob.digest) == blob.size
    return False


def plan_uploads(work: PushContext, plans: Sequence[PushPlan]) -> list[PushedTarget]:
    """Return the uploads that pushing `plans`, in this order, requires.

    Nothing is sent or built.
    """
    pushes, sent = [], set[Digest]()
    for plan in plans:
        rows = survey_blobs(work, plan, sent)
        sent |= {row.digest for row in rows}
        pushes.append(_pushed_target(work, plan, rows, BlobState.LACKING, ()))
    return pushes


def push_target(work: PushContext, plan: PushPlan) -> PushedTarget:
    """Push the blobs, documents and tags of `plan`.

    After an error, no tag refers to an incomplete image.
    """
    with work.client.reporter.step(f"pushing {plan.target} to {work.repository}"):
        rows = _mount_blobs(work, survey_blobs(work, plan))
        rows = _upload_missing(work, plan, rows)
        for document in plan.small_documents:
            _put_document(work, document)
        # In a registry without a referrers API, their list is a tag shared by writers;
        # manifests of an image belong to its index and, with --arch, to a separate push.
        with work.inputs.store.hold_lock(f"attach-{work.repository}"):
            attached, signed = _attach_documents(work, plan)
        top = plan.top
        if any(row.state is BlobState.SENT for row in rows):
            # Uploads take time: garbage collection may have deleted blobs that existed at first.
            tag.refuse_broken(work.client, work.repository, top)
        tags = tuple(
            tag.set_tag(work.client, work.repository, top, name)
            for name in (plan.tags if work.tag else ())
        )
    done = _pushed_target(work, plan, rows, BlobState.SENT, tags)
    work.client.reporter.info(_summary(done))
    return msgspec.structs.replace(done, attached=attached, signed=signed)


def _attach_documents(
    work: PushContext, plan: PushPlan
) -> tuple[tuple[Digest, ...], tuple[Digest, ...]]:
    """Attach and sign the documents of the lock. Returns digests of artifacts and signed manifests.

    Does nothing for a base image, because it has no lock. Raises LockStale if the project's lock
    has changed.
    """
    if plan.only_base or not (work.attach or work.key):
        return (), ()
    lock_bundle = bundle.create_lock_bundle(plan.lock, plan.target_digests, work.project)
    about = (work.client, work.repository, lock_bundle, work.project, plan.arches)
    attached = attachments.attach_all(*about) if work.attach else ()
    if work.key is None:
        return attached, ()
    from imgbuild.attest.signing import pushed  # loads cryptography

    signed = pushed.sign_pushed(*about, work.key)
    return attached, tuple(signature.digest for signature in signed)


def _put_document(work: PushContext, document: Document) -> None:
    place = work.repository.with_digest(document.digest)
    try:
        work.client.manifest(place)
    except NotFound:
        work.client.put_manifest(work.repository, document.data, document.media_type)
        work.client.manifest(place)


def _mount_blobs(work: PushContext, rows: Sequence[PushedBlob]) -> tuple[PushedBlob, ...]:
    """Mount blobs, and return the new states. Blobs that cannot be mounted are missing."""

    def _mount_blob(row: PushedBlob, _: StopFlag) -> PushedBlob:
        if row.state is not BlobState.MOUNTABLE:
            return row
        if work.client.mount(work.repository, row.digest, row.size, parse_repository(row.source)):
            return msgspec.structs.replace(row, state=BlobState.MOUNTED)
        return msgspec.structs.replace(row, state=BlobState.LACKING, source="")

    return tuple(run_for_each(rows, _mount_blob, threads=QUERY_THREADS))


def _upload_missing(
    work: PushContext, plan: PushPlan, rows: Sequence[PushedBlob]
) -> tuple[PushedBlob, ...]:
    missing = {row.digest for row in rows if row.state is BlobState.LACKING}
    if not missing:
        return tuple(rows)
    lacking = [blob for blob in plan.blobs if blob.digest in missing]
    sources = _sources(work, plan, lacking)
    total = sum(blob.size for blob in lacking)
    title = f"sending {len(lacking)} blobs of {plan.target}"
    with work.client.reporter.progress(title, total) as bar:

        def _send(blob: PlannedBlob, stop: StopFlag) -> BlobState:
            outcome = _upload_blob(work, sources[blob.digest], bar, stop)
            return BlobState.PRESENT if outcome is UploadOutcome.PRESENT else BlobState.SENT

        states = run_for_each(lacking, _send, threads=UPLOADS, retained=KEPT_NOTE)
    outcomes = dict(zip((blob.digest for blob in lacking), states, strict=True))
    return tuple(
        msgspec.structs.replace(row, state=outcomes.get(row.digest, row.state)) for row in rows
    )


def _upload_blob(
    work: PushContext, source: BlobSource, bar: ProgressBar, stop: StopFlag
) -> UploadOutcome:
    """Upload a blob. If several processes send the same blob, only one uploads it."""
    with work.inputs.store.hold_lock(f"push-{work.repository}-{source.digest}"):
        stop.check()
        return work.client.upload_blob(
            work.repository, source, advance=stop.with_check(bar.advance)
        )


def _sources(
    work: PushContext, plan: PushPlan, lacking: Sequence[PlannedBlob]
) -> Mapping[Digest, BlobSource]:
    store = work.inputs.store
    files: dict[Digest, Path] = {}
    for blob in lacking:
        if blob.layer is not None and store.blob(blob.digest) is None:
            path = _blob_in_layout(work.project.output(plan.target), blob)
            if path is not None:
                files[blob.digest] = path
    layers = [blob.layer for blob in lacking if blob.layer and blob.digest not in files]
    image_layout.make_missing(
        plan.lock, layers, plan.target_digests, work.inputs, processes=work.processes
    )
    for blob in lacking:
        if blob.layer is not None and blob.digest not in files:
            files[blob.digest] = image_layout.layer_blob(store, blob.digest)
    return {
        blob.digest: file_source(files[blob.digest], blob.digest, blob.size)
        if blob.layer is not None
        else bytes_source(blob.data)
        for blob in lacking
    }


def _blob_in_layout(folder: Path, blob: PlannedBlob) -> Path | None:
    """Return the undamaged file of a blob in a layout on disk, or None."""
    path = layout.blob_path(folder, blob.digest)
    try:
        with path.open("rb") as file:
            return path if digest_of_file(file) == blob.digest else None
    except OSError:
        return None


def _pushed_target(
    work: PushContext,
    plan: PushPlan,
    blobs: Sequence[PushedBlob],
    counted: BlobState,
    tags: tuple[ChangedTag, ...],
) -> PushedTarget:
    digest = plan.top.digest
    return PushedTarget(
        target=plan.target,
        reference=f"{work.repository}@{digest}",
        digest=digest,
        arch={
            arch: document.digest
            for arch, document in zip(plan.arches, plan.manifests, strict=True)
        },
        tags=tags,
        blobs=tuple(blobs),
        sent=sum(blob.size for blob in blobs if blob.state is counted),
    )


def _summary(done: PushedTarget) -> str:
    counts = collections.Counter(row.state for row in done.blobs)
    parts = [f"{counts[state]} {state}" for state in BlobState if counts[state]]
    tags = f"; {', '.join(map(str, done.tags))}" if done.tags else "; no tag"
    return f"{done.target}: {done.sent / 1e6:,.1f} MB sent (blobs: {', '.join(parts)}){tags}"
