"""Renders docker-bake.json, a file for `docker buildx bake` with every locked target.

Names in the file cannot contain dots, so `cu130-vllm0.20.2` becomes `cu130-vllm0_20_2`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from imgbuild.render.dockerfile import DockerfileModel
from imgbuild.render.templates import target_slug
from imgbuild.values import Digest

FILE = "docker-bake.json"
BASES = "build/base"
WHEELS = "build/wheels"


def bake_document(dockerfiles: Iterable[DockerfileModel]) -> dict[str, Any]:
    """Return the content of the file: the targets, and a default group with all of them."""
    targets = {target_slug(dockerfile.target): _target(dockerfile) for dockerfile in dockerfiles}
    return {"group": {"default": {"targets": sorted(targets)}}, "target": targets}


def base_context(target: str, digest: Digest) -> str:
    """Return the named context for the base of `target`, relative to the project's folder."""
    return f"oci-layout://{BASES}/{target}@{digest}"


def _target(dockerfile: DockerfileModel) -> dict[str, Any]:
    return {
        "context": f"images/{dockerfile.target}",
        "contexts": {
            "base": base_context(dockerfile.target, dockerfile.base.digest),
            "wheels": f"{WHEELS}/{dockerfile.target}",
        },
        "args": {"SOURCE_DATE_EPOCH": str(dockerfile.epoch)},
        "network": "none",
        # A provenance has the time of the build, and would change the digest.
        "attest": ["type=provenance,disabled=true"],
        "platforms": [stage.platform for stage in dockerfile.stages],
        "tags": [f"imgbuild:{dockerfile.target}"],
        "output": [f"type=oci,dest=build/{dockerfile.target}.oci.tar,rewrite-timestamp=true"],
    }
