"""Defines requests to servers. A request can be sent several times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import msgspec

from imgbuild.http.credentials import redact_url


class RequestBody(Protocol):
    """The body of a request. Its length is known before the chunks are produced."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[bytes]: ...


class Request(msgspec.Struct, frozen=True):
    """A request. `body` is called each time the request is sent.

    `shown` replaces the URL in messages, because even the path can be secret. `scopes` are the
    access scopes to request from a registry, and are never sent to other servers. `server` is the
    endpoint whose TLS certificates are used, even after redirects. If `anonymous` is set, no
    credentials are sent, because a registry chose the URL.
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
        """The URL to show in messages."""
        return self.shown or redact_url(self.url)
