"""Provides a TCP proxy on this machine that cuts connections after a number of bytes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

PIECE = 64 * 1024


@dataclass
class BreakingProxy:
    """A proxy that cuts each connection after the next number of bytes in `cuts`."""

    server: tuple[str, int]
    cuts: list[int] = field(default_factory=list)
    sent: int = 0
    broken: int = 0
    host: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, client: socket.socket) -> None:
        """Forward one connection until it ends or is cut."""
        with client, socket.create_connection(self.server) as server:
            back = threading.Thread(target=_copy, args=(server, client), daemon=True)
            back.start()
            lock_bundle = 0
            while piece := _read(client):
                with self.lock:
                    cut = self.cuts[0] if self.cuts else None
                    broken = cut is not None and lock_bundle + len(piece) >= cut
                    if broken:
                        self.broken += 1
                        self.cuts.pop(0)
                piece = piece[: cut - lock_bundle] if broken and cut is not None else piece
                server.sendall(piece)
                lock_bundle += len(piece)
                with self.lock:
                    self.sent += len(piece)
                if broken:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
            for endpoint in (server, client):
                with contextlib.suppress(OSError):
                    endpoint.shutdown(socket.SHUT_RDWR)
            back.join()


def _read(source: socket.socket) -> bytes:
    with contextlib.suppress(OSError):
        return source.recv(PIECE)
    return b""


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := _read(source):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def proxy_to(host: str) -> Iterator[BreakingProxy]:
    """A proxy to the server at HOST:PORT of this machine."""
    name, _, port = host.partition(":")
    line = BreakingProxy((name, int(port)))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        line.host = f"127.0.0.1:{listening.getsockname()[1]}"

        def _accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    threading.Thread(target=line.serve, args=(client,), daemon=True).start()

        thread = threading.Thread(target=_accept, daemon=True)
        thread.start()
        try:
            yield line
        finally:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            thread.join()
