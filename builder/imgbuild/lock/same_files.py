"""Selects the files to omit if several packages of a project install the same module.

pip installs all of these packages, and the last one overwrites the files of the others.
"""

from __future__ import annotations

from collections.abc import Collection

from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.model import DroppedFiles

# Module → packages by preference: with the modules of opencv-contrib, and without a display.
# Source: "Choose the correct package" of opencv-python, "Build and install" of ONNX Runtime.
FAMILIES = {
    "cv2": (
        "opencv-contrib-python-headless",
        "opencv-contrib-python",
        "opencv-python-headless",
        "opencv-python",
    ),
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime"),
}


def duplicate_file_drops(lock: Lock) -> tuple[DroppedFiles, ...]:
    """Return the files of packages in `lock` to omit because another package replaces them.

    Files of a published target are kept, so that the published layers do not change.
    """
    installed = {name for each in lock.arch.values() for name in each.versions}
    arches = lock.extends.arch.values() if lock.extends is not None else ()
    published = installed - {name for each in arches for name in each.wheels} if arches else set()
    return tuple(
        drop
        for module, packages in FAMILIES.items()
        for drop in _family_drops(
            module, [name for name in packages if name in installed], published
        )
    )


def _family_drops(
    module: str, packages: list[str], published: Collection[str]
) -> list[DroppedFiles]:
    preferred = next((name for name in packages if name in published), next(iter(packages), ""))
    return [
        DroppedFiles(
            package=name,
            beside=preferred,
            paths=(f"lib/python*/site-packages/{module}/*",),
            reason=f"{preferred} also provides the module {module}",
        )
        for name in packages
        if name != preferred and name not in published
    ]
