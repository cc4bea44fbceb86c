"""What `imgbuild verify` and `imgbuild sign` share: the image in a registry, and its lock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from imgbuild.errors import InputError
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.registry.client import Client
    from imgbuild.registry.reference import Reference
    from imgbuild.verify.expected_lock import Known


def client(
    image: str, plain_http: list[str] | None, *, offline: bool, origin: bool = False
) -> tuple[Client, Reference]:
    """The registry's client, and the image that `image` names."""
    from imgbuild.registry import reference
    from imgbuild.registry.client import Client

    named = reference.parse(image)
    if not named.target:
        message = f"{image} names no image of the repository"
        raise InputError(message, hint=f"add a tag or a digest: {image}:TARGET")
    return Client(
        plain_http=plain_http or (), offline=offline, origin=origin, reporter=console
    ), named


def lock(target: str | None, file: Path | None, matrix: Path | None) -> Known | None:
    """The lock that the image is compared with; None if none was named."""
    from imgbuild import project
    from imgbuild.verify import expected_lock

    if target is not None and file is not None:
        message = "--target and --lock name a lock both"
        raise InputError(message, hint="leave one of them out")
    if target is not None:
        return expected_lock.of_project(project.find(matrix), target)
    return expected_lock.of_folder(file) if file is not None else None
