"""Defines requests to servers, which can be sent several times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import msgspec

from imgbuild.http.credentials import redact_url


class RequestBody(Protocol):
    """The body of a request. The length is known first, and chunks are sent when produced."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[bytes]: ...


class Request(msgspec.Struct, frozen=True):
    """A request. `body` is called each time the request is sent.

    `shown` replaces the URL in messages, because its path can also be secret. For
    imgbuild.registry, `scopes` are the access scopes requested from a registry, which are never
    sent to other servers. `server` is the endpoint with the TLS certificates to use, even after
    redirects. If `anonymous` is set, no credentials are sent, because a registry chose the URL.
    """

    url: str
    headers: Mapping[str, str] = {}
    method: str = "GET"
    body: Callable[[], RequestBody | bytes] | None = None
    shown: str = ""
    scopes: tuple[str, ...] = ()
    server: str = ""
    anonymous: bool = False
    read_timeout: float | None = None  # seconds for each read; None: the default

    @property
    def place(self) -> str:
        """The URL for display."""
        return self.shown or redact_url(self.url)
