"""One request to a server: a value, which may be sent again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import msgspec

from imgbuild.http.credentials import redact


class Body(Protocol):
    """What a request sends: its length is announced, its pieces are sent as they come."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[bytes]: ...


class Request(msgspec.Struct, frozen=True):
    """One request. `body` is called again each time that it is sent.

    `shown` replaces the address in messages: its path may be a secret too. For imgbuild.registry:
    `scopes` is what a registry is asked to allow, which other servers are never sent, `server` the
    endpoint whose certificates hold, wherever it redirects to, and `anonymous` that no login of the
    user is sent, since a registry chose the address.
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
        """Its address, as it may be shown."""
        return self.shown or redact(self.url)
