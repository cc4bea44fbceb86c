"""The API of Docker Engine, through the `docker` package: images, and how they are transferred.

Containers are run by the `docker` command.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import docker
from docker.errors import APIError, DockerException, ImageNotFound

from imgbuild.errors import ToolMissing, WorkFailed
from imgbuild.values import Arch

HINT = "see `docker info`; the engine's own log has more"


class DockerApi:
    """A connection to an engine; methods raise WorkFailed with the engine's error."""

    def __init__(self, api: docker.APIClient) -> None:
        self._api = api

    def pull(self, repository: str, tag: str, arch: Arch) -> Iterator[dict[str, Any]]:
        """Pull an image; yields the engine's events."""
        with _failing(f"pull {repository}:{tag}"):
            yield from _checked(
                self._api.pull(
                    repository, tag, stream=True, decode=True, platform=f"linux/{arch.oci}"
                )
            )

    def load(self, archive: Iterable[bytes]) -> None:
        """Load a docker-archive."""
        with _failing("load"):
            for _ in _checked(self._api.load_image(archive, quiet=True)):
                pass

    def tag(self, source: str, reference: str) -> None:
        """Name the image `source`, REPOSITORY:TAG, also `reference`."""
        repository, _, tag = reference.rpartition(":")
        with _failing(f"tag {reference}"):
            self._api.tag(source, repository, tag)

    def remove(self, reference: str) -> None:
        """Remove a name, and the image with its last name; no error if it is missing."""
        with _failing(f"remove {reference}"), contextlib.suppress(ImageNotFound):
            self._api.remove_image(reference)


@contextlib.contextmanager
def connect() -> Iterator[DockerApi]:
    """Connect to the engine that DOCKER_HOST or the current context names, else ToolMissing."""
    try:
        # An engine that unpacks a large image may be silent for minutes: no time limit.
        client = docker.from_env(version="auto", timeout=None, use_ssh_client=True)
    except (DockerException, OSError) as error:
        message = f"docker does not answer: {error}"
        raise ToolMissing(message, hint="start Docker, or set DOCKER_HOST") from error
    with contextlib.closing(client):
        yield DockerApi(client.api)


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    try:
        yield
    except (DockerException, OSError) as error:
        if isinstance(error, ImageNotFound):
            raise
        explanation: object = error
        if isinstance(error, APIError):
            explanation = error.explanation
            error.response.close()
        message = f"docker failed to {what}: {explanation}"
        raise WorkFailed(message, hint=HINT) from error


def _checked(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """`events` to their end, which closes the connection; then DockerException for an error."""
    errors = []
    for event in events:
        if "error" in event:
            errors.append(event["error"])
        yield event
    if errors:
        raise DockerException(errors[0])
