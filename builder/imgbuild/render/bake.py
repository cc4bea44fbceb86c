"""Renders one file for `docker buildx bake` that builds every locked target.

Names in such a file have no dots, so `cu130-vllm0.20.2` is `cu130-vllm0_20_2` there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from imgbuild.render.dockerfile import Dockerfile
from imgbuild.render.templates import slug
from imgbuild.values import Digest

FILE = "docker-bake.json"
BASES = "build/base"
WHEELS = "build/wheels"


def bake(made: Iterable[Dockerfile]) -> dict[str, Any]:
    """The targets, and the group of all of them that is built by default."""
    targets = {slug(one.target): _target(one) for one in made}
    return {"group": {"default": {"targets": sorted(targets)}}, "target": targets}


def base_context(target: str, digest: Digest) -> str:
    """The base of `target` as a named context, from the project's folder."""
    return f"oci-layout://{BASES}/{target}@{digest}"


def contexts(one: Dockerfile) -> dict[str, str]:
    """Named contexts: where `imgbuild build --only` leaves them, from the project's folder."""
    return {
        "base": base_context(one.target, one.base.digest),
        "wheels": f"{WHEELS}/{one.target}",
    }


def _target(one: Dockerfile) -> dict[str, Any]:
    return {
        "context": f"images/{one.target}",
        "contexts": contexts(one),
        "args": {"SOURCE_DATE_EPOCH": str(one.epoch)},
        "network": "none",
        # A provenance holds the time of the build, and would move the digest.
        "attest": ["type=provenance,disabled=true"],
        "platforms": [stage.platform for stage in one.stages],
        "tags": [f"imgbuild:{one.target}"],
        "output": [f"type=oci,dest=build/{one.target}.oci.tar,rewrite-timestamp=true"],
    }
