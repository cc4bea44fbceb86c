"""A limit on how slowly a server may send: without one, a byte a minute holds a command forever."""

from __future__ import annotations

import http.client
import io
import time
from typing import TYPE_CHECKING, Any

import urllib3.connection
import urllib3.connectionpool

if TYPE_CHECKING:
    import socket

    from _typeshed import WriteableBuffer

RATE = 1024  # bytes per second
WINDOW = 60.0  # seconds of waiting over which the rate is measured
DEADLINE = 6 * 3600.0  # seconds of waiting for one answer; a download goes on from its last byte


class _Watched(io.RawIOBase):
    """What a connection receives. TimeoutError if it comes too slowly.

    Only the time spent waiting for the server counts, after its first byte.
    """

    def __init__(self, source: io.RawIOBase) -> None:
        super().__init__()
        self._source: Any = source  # of a socket
        self._begun = False
        self._waited = self._all = 0.0
        self._bytes = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def fileno(self) -> int:
        """That of the socket."""
        return int(self._source.fileno())

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill `buffer` with what has arrived."""
        started = time.monotonic()
        size: int = self._source.readinto(buffer)
        if self._begun:
            waited = time.monotonic() - started
            self._waited, self._all = self._waited + waited, self._all + waited
        self._begun = True
        self._bytes += size
        if self._waited >= WINDOW:
            if self._bytes < RATE * self._waited or self._all >= DEADLINE:
                message = f"the server sends less than {RATE} bytes per second"
                raise TimeoutError(message)
            self._waited, self._bytes = 0.0, 0
        return size

    def close(self) -> None:
        """Close the socket's file, too."""
        self._source.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_Watched(self.fp.detach()))


class _Connection(urllib3.connection.HTTPConnection):
    response_class = _Response


class _SecureConnection(urllib3.connection.HTTPSConnection):
    response_class = _Response


class _Pool(urllib3.connectionpool.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.connectionpool.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


POOLS = {"http": _Pool, "https": _SecurePool}
