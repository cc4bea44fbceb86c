"""Opens an image in a registry, and its lock, for `imgbuild verify` and `imgbuild sign`."""

from __future__ import annotations

from pathlib import Path

from imgbuild.errors import InputError
from imgbuild.pipeline.opened import open_project
from imgbuild.registry import image_reference
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import ImageReference
from imgbuild.system.console import console
from imgbuild.verify import expected_lock
from imgbuild.verify.expected_lock import ExpectedLock


def open_registry_client(
    image: str, plain_http: list[str] | None, *, offline: bool, origin: bool = False
) -> tuple[RegistryClient, ImageReference]:
    """Return a client for the registry of `image`, and the parsed reference."""
    named = image_reference.parse_reference(image)
    if not named.target:
        message = f"{image}: a tag or digest is required"
        raise InputError(message, hint=f"add a tag or digest, such as {image}:TARGET")
    return RegistryClient(
        plain_http=plain_http or (), offline=offline, origin=origin, reporter=console
    ), named


def find_expected_lock(
    targets: list[str] | None, file: str | None, matrix: Path | None
) -> ExpectedLock | None:
    """Return the lock to compare with the image, or None if no lock was specified."""
    if len(targets or []) + (file is not None) > 1:
        message = "--target and --lock can be specified only once, and not together"
        raise InputError(message, hint="specify one lock")
    if targets:
        return expected_lock.lock_of_project(open_project(matrix), targets[0])
    return expected_lock.lock_of_folder(Path(file)) if file is not None else None
