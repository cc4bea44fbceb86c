"""Checks that a registry still has what an earlier step pushed: results on disk may be old.

A push costs one question, a SIF one, a signature a few.
"""

from __future__ import annotations

from collections.abc import Collection

from imgbuild.attest import in_toto
from imgbuild.ci.jobs import CiJob, Step
from imgbuild.http.client import Refused
from imgbuild.plan.seal import Seal
from imgbuild.registry import referrers
from imgbuild.registry.client import Client, NotFound
from imgbuild.registry.reference import Repository, parse_repository
from imgbuild.system.reporter import SILENT, Reporter
from imgbuild.values import Arch, Digest


def stands(
    job: CiJob,
    step: Step,
    sealed: Seal | None,
    plain_http: Collection[str],
    reporter: Reporter = SILENT,
) -> bool:
    """Whether the registry of `job` has what `step` put there; True where it put nothing.

    A registry that refuses to say (401, 403) has it not: the step itself is told why.
    """
    if not job.registry or step not in ("push", "sign", "sif"):
        return True
    client = Client(plain_http=plain_http, origin=True, reporter=reporter)
    place = parse_repository(job.registry)
    try:
        if step == "push":
            named = place.with_digest(job.digest)
            return client.resolve(named) is not None
        if step == "sign":
            return _signed(client, place, job.digest)
        own = sealed.arch.get(job.arch) if sealed is not None else None
        return own is not None and sif_of(client, place, job.target, job.arch) == own.manifest
    except Refused as error:
        if not error.denied:
            raise
        return False


def _signed(client: Client, repository: Repository, digest: Digest) -> bool:
    """Whether a signature of any key is beside the image."""
    from imgbuild.attest.signing import stored  # loads cryptography

    found = stored.read(client, repository, digest).signatures
    return any(one.kind == in_toto.SIGNATURE and digest in one.digests for one in found)


def sif_of(client: Client, repository: Repository, target: str, arch: Arch) -> Digest:
    """The manifest of which the SIF of `target` for `arch` is made; "" if there is no SIF."""
    from imgbuild.sif import push

    named = repository.tagged(push.tag(target, arch))
    try:
        data = client.manifest(named).data
    except NotFound:
        return ""
    image = referrers.subject(data)
    return image.digest if image is not None else ""
