"""Creates the OCI image configuration of a plan.

The configuration depends only on the plan. It contains no tool versions, host names or build times.
"""

# A separate module: a format.
from __future__ import annotations

from collections.abc import Sequence

from imgbuild import codec
from imgbuild.oci.documents import platform_of_arch
from imgbuild.plan.plan import Plan
from imgbuild.values import Digest


def image_configuration(plan: Plan, diff_ids: Sequence[Digest]) -> bytes:
    """Return the configuration for `plan`. `diff_ids` are those of the layers, bottom layer first.

    Raises ValueError if the numbers of diff IDs and layers differ.
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
    return codec.encode_compact(
        {
            **platform_of_arch(plan.arch),
            "created": settings.created,
            "config": {key: value for key, value in running.items() if value},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
            "history": history,
        }
    )
