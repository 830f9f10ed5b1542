"""Clients that mean no good, and what is measured while they are at it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.engine.helpers.patience import PATIENCE
from tests.engine.helpers.server.server_helpers import ServerThere

MEMORY_MIB = 300
HEALTH_SECONDS = 1.0
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


class Watch:
    """Asks for `/health`, over and over, on a new connection each time.

    A wait is measured in processor time that the server took meanwhile, in all its threads: what it
    spent on the attack before its answer. That is the wait on a machine that does nothing else, and
    does not grow with what else a busy one does.
    """

    def __init__(self, server: ServerThere) -> None:
        self.waits: list[float] = []
        self._server = server
        self._stop = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.02) or not self.waits:
                before = self._server.cpu_seconds()
                assert self._server.send("/health").status == 200
                self.waits.append(self._server.cpu_seconds() - before)
        except BaseException as error:
            self._failed = error

    def close(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "/health does not answer"
        if self._failed is not None:
            raise self._failed


@contextlib.contextmanager
def withstands(server: ServerThere) -> Iterator[None]:
    """What happens in here costs little memory, never stalls `/health`, and leaves nothing behind: no
    request, no block, no line in the log."""
    server.forget_peak()
    watch = Watch(server)
    try:
        yield
    finally:
        watch.close()
    server.wait_idle()
    assert server.log == ""
    print(f"{server.peak_mib():.0f} MiB; /health after {max(watch.waits):.2f} s of processor time")
    assert server.peak_mib() < MEMORY_MIB
    assert max(watch.waits) < HEALTH_SECONDS


def connect(server: ServerThere) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)


def read_all(sock: socket.socket) -> bytes:
    """All that comes until the server closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := sock.recv(65536):
            received += part
    return received


def flood(server: ServerThere, start: bytes, block: bytes, total: int) -> tuple[bytes, int]:
    """Send `start`, then `block` until `total` bytes are sent or the server has had enough.

    Returns its answer and the number of bytes sent.
    """
    sent = 0
    with connect(server) as sock:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            sock.sendall(start)
            while sent < total:
                sock.sendall(block)
                sent += len(block)
            sock.shutdown(socket.SHUT_WR)
        return read_all(sock), sent
