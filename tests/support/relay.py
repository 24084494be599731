"""A relay to a broker that understands Kafka's frames: it can change an answer, or give one in the broker's place."""

import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["Asked", "Relay"]


@dataclass
class Asked:
    """A request on its way."""

    api: int
    version: int
    number: bytes
    """The correlation id, as in the frame."""
    client: str
    frame: bytes
    answer: bytes | None = None
    """Given in place of the broker's answer."""
    forwarded: bool = True

    @property
    def body(self) -> bytes:
        """The frame without its header, of a flexible version."""
        return self.frame[10 + len(self.client.encode()) + 1 :]


class Relay:
    """Relays connections to ``address``. Subclasses override :meth:`asked` and :meth:`answered`."""

    def __init__(self, address: str, upstream: str) -> None:
        host, _, port = address.rpartition(":")
        self._upstream = upstream
        self._open: set[socket.socket] = set()
        self.accepted = 0
        """Connections."""
        self._listening = socket.create_server((host, int(port)), backlog=64)
        self._start(self._accept)

    @property
    def open(self) -> int:
        """Number of connections that are open."""
        return len(self._open)

    def asked(self, request: Asked) -> None:
        """Decide about a request: set ``answer``, and ``forwarded`` to False to keep it from the broker."""

    def answered(self, request: Asked, answer: bytes) -> bytes:
        """Return the answer that the client gets."""
        return answer

    def cut(self) -> None:
        """Break all connections."""
        for each in [*self._open]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def _start(self, run: "object", *arguments: object) -> None:
        threading.Thread(target=run, args=arguments, daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                host, _, port = self._upstream.rpartition(":")
                broker = socket.create_connection((host, int(port)))
                self._open.add(client)
                self.accepted += 1
                waiting: deque[Asked] = deque()
                lock = threading.Lock()
                self._start(self._requests, client, broker, waiting, lock)
                self._start(self._answers, broker, client, waiting, lock)

    def _requests(
        self, client: socket.socket, broker: socket.socket, waiting: deque[Asked], lock: threading.Lock
    ) -> None:
        for frame in self._frames(client, broker):
            api, version, number, length = struct.unpack_from(">hh4sh", frame)
            request = Asked(api, version, number, frame[10 : 10 + max(0, length)].decode(), frame)
            self.asked(request)
            with lock:
                waiting.append(request)
                if request.forwarded:
                    _send(broker, frame)
                _send_own(client, waiting)

    def _answers(
        self, broker: socket.socket, client: socket.socket, waiting: deque[Asked], lock: threading.Lock
    ) -> None:
        for frame in self._frames(broker, client):
            with lock:
                request = waiting.popleft()
                assert request.number == frame[:4]
                _send(client, request.answer or self.answered(request, frame))
                _send_own(client, waiting)

    def _frames(self, source: socket.socket, other: socket.socket) -> Iterator[bytes]:
        with suppress(OSError), source, other, source.makefile("rb") as stream:
            while size := stream.read(4):
                yield stream.read(int.from_bytes(size))
            other.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)


def _send_own(client: socket.socket, waiting: deque[Asked]) -> None:
    """Send the answers that no broker gives, in their turn."""
    while waiting and not waiting[0].forwarded:
        answer = waiting.popleft().answer
        assert answer is not None
        _send(client, answer)


def _send(target: socket.socket, frame: bytes) -> None:
    with suppress(OSError):  # the other side has closed its connection
        target.sendall(len(frame).to_bytes(4) + frame)
