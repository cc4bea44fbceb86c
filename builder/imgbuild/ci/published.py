"""Reads the published state of targets from a registry: the digests of tags, and SIFs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from imgbuild.http.client import RequestRefused
from imgbuild.matrix.select import Selected
from imgbuild.registry import referrers
from imgbuild.registry.client import NotFound, RegistryClient
from imgbuild.registry.image_reference import Repository
from imgbuild.system.threads import StopFlag, run_for_each
from imgbuild.values import Arch, Digest

THREADS = 8  # requests to the registry at once


class TaggedImage(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a target in a repository: the digest of its tag, and its SIFs.

    `sifs` maps architectures to the manifests from which SIFs were created.
    """

    digest: Digest
    sifs: dict[Arch, Digest] = {}


def read_published_state(
    client: RegistryClient,
    repository: Repository,
    selected: Sequence[Selected],
    *,
    sifs: bool = False,
) -> dict[str, TaggedImage]:
    """Return the state of each tagged target in `repository`, with SIFs if `sifs` is set.

    A job sets the target's tag last, after the gate. `imgbuild push` sets it without a gate. If the
    registry returns status 401 or 403, the repository is treated as empty, with a warning.
    """
    refused: list[RequestRefused] = []

    def _read_target(item: Selected, _: StopFlag) -> TaggedImage | None:
        try:
            resolved = client.resolve(repository.tagged(item.name))
        except RequestRefused as error:
            # Some registries return these for a repository that does not exist yet, as before the
            # first run.
            if not error.is_denied:
                raise
            refused.append(error)
            return None
        if resolved is None:
            return None
        arches = item.arches if sifs else ()
        digests = {arch: _sif(client, repository, item.name, arch) for arch in arches}
        there = {arch: digest for arch, digest in digests.items() if digest}
        return TaggedImage(digest=resolved.digest, sifs=there)

    answers = run_for_each(list(selected), _read_target, threads=THREADS)
    if refused:
        client.reporter.warn(
            f"{repository} returned status {refused[0].status} and is treated as empty; unless it "
            "is new, log in with read access"
        )
    return {
        item.name: image for item, image in zip(selected, answers, strict=True) if image is not None
    }


def _sif(client: RegistryClient, repository: Repository, target: str, arch: Arch) -> Digest:
    """Return the manifest from which the SIF was created, or "" if there is no SIF."""
    from imgbuild.sif import push

    try:
        data = client.manifest(repository.tagged(push.sif_tag(target, arch))).data
    except NotFound:
        return ""
    image = referrers.subject_of_manifest(data)
    return image.digest if image is not None else ""
