"""One request to a server: a value, which may be sent again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import msgspec

from imgbuild.http.credentials import redact


class Body(Protocol):
    """The body of a request: its length is announced, its chunks are sent as they are produced."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[bytes]: ...


class Request(msgspec.Struct, frozen=True):
    """One request. `body` is called each time that the request is sent.

    `shown` replaces the URL in messages, since its path may be secret too. For imgbuild.registry:
    `scopes` are the access scopes requested from a registry, which are never sent to other servers,
    `server` is the endpoint whose certificates apply, even after redirects, and `anonymous` means
    that no credentials of the user are sent, since a registry chose the URL.
    """

    url: str
    headers: Mapping[str, str] = {}
    method: str = "GET"
    body: Callable[[], Body | bytes] | None = None
    shown: str = ""
    scopes: tuple[str, ...] = ()
    server: str = ""
    anonymous: bool = False
    read_timeout: float | None = None  # seconds for each read; None: the default

    @property
    def place(self) -> str:
        """The URL, for display."""
        return self.shown or redact(self.url)
