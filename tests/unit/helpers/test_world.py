"""Unit tests cannot touch the world: proven on the guard itself."""

from __future__ import annotations

import os
import socket
import subprocess
import threading

import pytest

from tests.conftest import Touched


@pytest.mark.parametrize(
    "start",
    [lambda: subprocess.run(["true"], check=True), lambda: os.system("true"), os.fork],
    ids=["subprocess", "system", "fork"],
)
def test_no_process_starts(start):
    with pytest.raises(Touched, match="started a process"):
        start()


def test_no_name_is_looked_up():
    with pytest.raises(Touched, match=r"example\.org"):
        socket.getaddrinfo("example.org", 443)


def test_no_address_is_reached():
    with socket.socket() as client, pytest.raises(Touched, match=r"192\.0\.2\.1"):
        client.connect(("192.0.2.1", 443))


def test_this_machine_is_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("localhost", port), timeout=5) as client:
            accepted, _ = server.accept()
            with accepted:
                client.sendall(b"ping")
                assert accepted.recv(4) == b"ping"


def test_the_guard_holds_in_threads():
    caught: list[BaseException] = []

    def reach() -> None:
        try:
            socket.getaddrinfo("example.org", 443)
        except Touched as error:
            caught.append(error)

    thread = threading.Thread(target=reach)
    thread.start()
    thread.join()
    assert len(caught) == 1
