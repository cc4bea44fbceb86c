"""Configuration, manifest and index of an image, as bytes that follow from values alone.

Comes in: a plan and what its layers turned out to be. Goes out: canonical JSON as image-spec 1.1
defines it. Nothing of the tool, the machine or the hour is in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from imgbuild import codec
from imgbuild.oci.documents import CONFIG, INDEX, LAYER_GZIP, MANIFEST
from imgbuild.oci.layer import LayerRecord
from imgbuild.plan.plan import Plan
from imgbuild.values import Arch, Digest, digest_of


def config(plan: Plan, diff_ids: Sequence[Digest]) -> bytes:
    """The image configuration of `plan`, whose layers have `diff_ids`, bottom first.

    ValueError if there is not one diff id for each layer of the plan.
    """
    settings = plan.config
    running: dict[str, object] = {
        "User": settings.user,
        "Env": settings.env,
        "Entrypoint": settings.entrypoint,
        "Cmd": settings.cmd,
        "WorkingDir": settings.workdir,
        "Labels": settings.labels,
    }
    history = [
        {"created": settings.created, "created_by": f"imgbuild layer {layer.name}"}
        for layer, _ in zip(plan.layers, diff_ids, strict=True)
    ]
    return codec.compact(
        {
            **platform(plan.arch),
            "created": settings.created,
            "config": {key: value for key, value in running.items() if value},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
            "history": history,
        }
    )


def manifest(
    config: bytes,
    layers: Sequence[LayerRecord],
    *,
    media_types: Mapping[Digest, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> bytes:
    """The manifest of `config` and `layers`, bottom first.

    A layer is a gzip of a tar unless `media_types` says something else of its digest, as it may for
    the layers of a registry base.
    """
    types = media_types or {}
    return codec.compact(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, config),
            "layers": [
                {
                    "mediaType": types.get(layer.digest, LAYER_GZIP),
                    "digest": layer.digest,
                    "size": layer.size,
                }
                for layer in layers
            ],
            **({"annotations": dict(annotations)} if annotations else {}),
        }
    )


def index(manifests: Mapping[Arch, bytes]) -> bytes:
    """The index of one image on several architectures, in their alphabetical order."""
    return codec.compact(
        {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [
                {**descriptor(MANIFEST, data), "platform": platform(arch)}
                for arch, data in sorted(manifests.items())
            ],
        }
    )


def descriptor(media_type: str, data: bytes) -> dict[str, object]:
    """What an OCI document says of another: its type, digest and size in bytes."""
    return {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}


def platform(arch: Arch) -> dict[str, str]:
    """The platform of `arch`; arm64 with its variant, v8, as Docker writes it."""
    variant = {"variant": "v8"} if arch is Arch.ARM64 else {}
    return {"architecture": arch.oci, "os": "linux", **variant}
