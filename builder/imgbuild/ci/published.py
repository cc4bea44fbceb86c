"""The state of targets in a registry: tags, SIFs and signatures, and what earlier steps pushed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from imgbuild.attest import in_toto
from imgbuild.ci.jobs import CiJob, Step
from imgbuild.http.client import Refused
from imgbuild.matrix.select import Selected
from imgbuild.plan.seal import Seal
from imgbuild.registry import referrers
from imgbuild.registry.client import Client, NotFound
from imgbuild.registry.reference import Repository, parse_repository
from imgbuild.system.reporter import SILENT, Reporter
from imgbuild.system.threads import Stop, each
from imgbuild.values import Arch, Digest

THREADS = 8  # requests to the registry at once


class TaggedImage(msgspec.Struct, frozen=True, kw_only=True):
    """What a repository has of a target: the digest that its tag names, and its SIFs.

    `sifs`: for each architecture the manifest from which the SIF was made.
    """

    digest: Digest
    sifs: dict[Arch, Digest] = {}


def read(
    client: Client, repository: Repository, selected: Sequence[Selected], *, sifs: bool = False
) -> dict[str, TaggedImage]:
    """What `repository` has of each target that has a tag; with `sifs` also their SIFs.

    The target's own tag is the last that a job sets, after its gate; `imgbuild push` sets it
    without one. A registry that answers 401 or 403 counts as empty, with a warning.
    """
    refused: list[Refused] = []

    def _read(item: Selected, _: Stop) -> TaggedImage | None:
        try:
            found = client.resolve(repository.tagged(item.name))
        except Refused as error:
            # Some registries answer so for a repository that does not exist yet: the first night.
            if not error.denied:
                raise
            refused.append(error)
            return None
        if found is None:
            return None
        arches = item.arches if sifs else ()
        made = {arch: _sif(client, repository, item.name, arch) for arch in arches}
        there = {arch: digest for arch, digest in made.items() if digest}
        return TaggedImage(digest=found.digest, sifs=there)

    answers = each(list(selected), _read, threads=THREADS)
    if refused:
        client.reporter.warn(
            f"{repository} answers {refused[0].status}, so it counts as empty; log in with read"
            " access unless it is new"
        )
    return {item.name: one for item, one in zip(selected, answers, strict=True) if one is not None}


def is_tagged(job: CiJob, plain_http: Collection[str] = (), reporter: Reporter = SILENT) -> bool:
    """Whether the target's own tag in the registry of `job` names the job's digest."""
    client, place = _open(job, plain_http, reporter)
    found = client.resolve(place.tagged(job.target))
    return found is not None and found.digest == job.digest


def has(
    job: CiJob,
    step: Step,
    sealed: Seal | None,
    plain_http: Collection[str],
    reporter: Reporter = SILENT,
) -> bool:
    """Whether the registry of `job` has what `step` pushed; True for a step that pushes nothing.

    One request for a push or a SIF, a few for a signature. False if the registry answers 401 or
    403: the step itself then reports why.
    """
    if not job.registry or step not in ("push", "sign", "sif"):
        return True
    client, place = _open(job, plain_http, reporter)
    try:
        if step == "push":
            return client.resolve(place.with_digest(job.digest)) is not None
        if step == "sign":
            return _is_signed(client, place, job.digest)
        own = sealed.arch.get(job.arch) if sealed is not None else None
        return own is not None and _sif(client, place, job.target, job.arch) == own.manifest
    except Refused as error:
        if not error.denied:
            raise
        return False


def _open(job: CiJob, plain_http: Collection[str], reporter: Reporter) -> tuple[Client, Repository]:
    client = Client(plain_http=plain_http, origin=True, reporter=reporter)
    return client, parse_repository(job.registry)


def _is_signed(client: Client, repository: Repository, digest: Digest) -> bool:
    """Whether the image has a signature of any key."""
    from imgbuild.attest.signing import stored  # loads cryptography

    found = stored.read(client, repository, digest).signatures
    return any(one.kind == in_toto.SIGNATURE and digest in one.digests for one in found)


def _sif(client: Client, repository: Repository, target: str, arch: Arch) -> Digest:
    """The manifest from which the SIF of `target` for `arch` was made; "" if there is no SIF."""
    from imgbuild.sif import push

    try:
        data = client.manifest(repository.tagged(push.tag(target, arch))).data
    except NotFound:
        return ""
    image = referrers.subject(data)
    return image.digest if image is not None else ""
