"""A link to a server that is far away: each request arrives late."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

__all__ = ["slow_link"]


@contextmanager
def slow_link(port: int, delay_s: float) -> Iterator[int]:
    """Yield a port of this machine that leads to ``port``, and passes on what it gets there after ``delay_s``."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=_accept, args=(listener, port, delay_s), daemon=True).start()
        yield listener.getsockname()[1]


def _accept(listener: socket.socket, port: int, delay_s: float) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:  # it is closed
            return
        server = socket.create_connection(("127.0.0.1", port))
        for one, other, late_s in ((client, server, delay_s), (server, client, 0.0)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_pass_on, args=(one, other, late_s), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket, late_s: float) -> None:
    with source:
        try:
            while received := source.recv(1 << 16):
                time.sleep(late_s)
                target.sendall(received)
            target.shutdown(socket.SHUT_WR)
        except OSError:  # one side is gone, and so is the other one
            target.close()
