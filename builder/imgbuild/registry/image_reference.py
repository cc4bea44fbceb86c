"""Parses image references (`[host/]name[:tag][@digest]`), including short names of Docker Hub.

As in Docker, the first component is a host if it is `localhost` or contains a dot or a colon. The
default host is Docker Hub, where the names of official images start with `library/`.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from imgbuild.errors import InputError
from imgbuild.values import DIGEST_PATTERN, Digest

HUB = "docker.io"

# The grammar of the distribution specification.
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
NAME = re.compile(rf"{_PART}(?:/{_PART})*")
TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
HOST = re.compile(r"(?:[a-zA-Z0-9.-]+|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")


# localhost, a domain name, or an IPv4 address, with or without a port.
HOST_ALONE = re.compile(
    r"(?:localhost|[\w.-]+\.[a-zA-Z]{2,}|(?:[0-9]+\.){3}[0-9]+)(?::[0-9]{1,5})?"
)


class Repository(msgspec.Struct, frozen=True, order=True):
    """A repository in a registry."""

    host: str
    name: str

    def __str__(self) -> str:
        return f"{self.host}/{self.name}"

    def tagged(self, tag: str) -> ImageReference:
        """Return a reference to `tag` in this repository."""
        return ImageReference(self.host, self.name, tag)

    def with_digest(self, digest: Digest) -> ImageReference:
        """Return a reference to `digest` in this repository."""
        return ImageReference(self.host, self.name, digest=digest)


class ImageReference(msgspec.Struct, frozen=True):
    """A repository with a tag or digest. If both are set, the digest selects the image."""

    host: str
    name: str
    tag: str | None = None
    digest: Digest | None = None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.host}/{self.name}{tag}{digest}"

    @property
    def repository(self) -> Repository:
        """The repository of the image."""
        return Repository(self.host, self.name)

    @property
    def target(self) -> str:
        """The digest, or the tag if there is no digest. Empty if both are missing."""
        return self.digest or self.tag or ""


def is_host(word: str) -> bool:
    """Return whether `word`, which contains no slash, has the syntax of a host."""
    return HOST_ALONE.fullmatch(word) is not None


def parse_reference(text: str, *, default_tag: str | None = None) -> ImageReference:
    """Parse `[host/]name[:tag][@digest]`. `default_tag` is used if tag and digest are missing.

    Raises InputError if `text` has another syntax.
    """
    named, at, digest = text.partition("@")
    host, slash, name = named.partition("/")
    if is_host(host) and not name:
        message = f"{text}: the repository name is missing"
        raise InputError(message, hint=f"use {host}/NAME")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        host, name = HUB, named
    name, colon, tag = name.partition(":")
    if host == HUB and "/" not in name:
        name = f"library/{name}"
    is_path = text.startswith(("/", "./", "../"))
    right = (
        not is_path
        and HOST.fullmatch(host)
        and NAME.fullmatch(name)
        and (not colon or TAG.fullmatch(tag))
        and (not at or re.fullmatch(DIGEST_PATTERN, digest))
    )
    if not right:
        if is_path and not Path(text).exists():
            message = f"{text}: no such file or folder"
            raise InputError(message, hint="use an OCI layout, or an image as HOST/NAME:TAG")
        message = f"invalid image reference: {text!r}"
        raise InputError(message, hint="use HOST/NAME[:TAG][@sha256:…], all in lower case")
    chosen = tag if colon else None if at else default_tag
    return ImageReference(host, name, chosen, digest if at else None)


def parse_repository(text: str) -> Repository:
    """Parse `[host/]name`.

    Raises InputError if `text` has another syntax, or has a tag or digest.
    """
    reference = parse_reference(text)
    if reference.target:
        message = f"{text!r} is an image reference, but a repository is expected"
        raise InputError(message, hint=f"use {reference.repository}")
    return reference.repository
