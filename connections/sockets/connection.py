"""One established connection to a broker."""

import itertools
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from onceward.connections.sockets.encoding import Decoder, Encoder, GarbledError
from onceward.connections.sockets.requests import Api, Request, spoken

__all__ = ["Connection"]

_OFFERED_AT_FIRST: Final[Mapping[int, tuple[int, int]]] = {Api.API_VERSIONS: (0, 0)}
_MOST_PIECES = 64
"""That one call sends; the system's limit is 1,024."""
_SMALLEST = 4
"""Bytes of an answer: the number of its request."""


class _Sent(NamedTuple):
    number: int
    request: Request
    version: int
    flexible: bool


class Connection:
    """A socket that never blocks. Brokers answer the requests of a connection in order.

    Methods raise OSError once the connection is lost, and GarbledError for bytes that are no answer; after either,
    nothing may be called but :meth:`close`.
    """

    def __init__(self, sock: socket.socket, *, client_id: str, largest: int) -> None:
        """``largest``: bytes of an answer; a larger one is no answer."""
        sock.setblocking(False)
        self._socket = sock
        self._client, self._largest = client_id.encode(), largest
        self.offered: Mapping[int, tuple[int, int]] = _OFFERED_AT_FIRST
        """Lowest and highest version of each request that the broker takes."""
        self.expires: float | None = None
        """When the broker ends the session (monotonic)."""
        self.silent = 0.0
        """Seconds that its owner has waited for an answer since the last byte."""
        self.used = time.monotonic()
        """When it was sent or received last (monotonic)."""
        self._numbers = itertools.count(1)
        self._sent: deque[_Sent] = deque()
        self._unsent: deque[memoryview] = deque()
        self._head = memoryview(bytearray(4))
        self._body: memoryview | None = None
        self._missing = self._head
        """The part of the head or the body that has not come."""

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def in_flight(self) -> int:
        return len(self._sent)

    @property
    def unsent(self) -> bool:
        """Whether the socket was too full for everything that was sent."""
        return bool(self._unsent)

    @property
    def decrypted(self) -> bool:
        """Whether something has come that no poll of the socket shows."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def send(self, request: Request) -> None:
        """Raises UnspokenError if the broker does not take it; then nothing was sent."""
        version, flexible = spoken(request.api, self.offered, request.highest)
        number = next(self._numbers) & 0x7FFFFFFF
        out = Encoder(flexible=False)
        out.put("hhi", request.api, version, number)
        out.put("h", len(self._client))
        out.raw(self._client)
        if flexible:
            out.raw(b"\0")
        body = request.encode(version, flexible=flexible)
        if not self._sent:
            self.silent = 0.0
        self._sent.append(_Sent(number, request, version, flexible))
        size = len(out.data) + sum(map(len, body))
        self._unsent.append(memoryview(size.to_bytes(4, "big") + out.data))
        self._unsent.extend(memoryview(piece) for piece in body if len(piece))
        self.used = time.monotonic()
        self.flush()

    def flush(self) -> None:
        """Send what was not sent, as far as the socket takes it."""
        while self._unsent:
            try:
                sent = self._sent_now()
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            while sent and sent >= len(self._unsent[0]):
                sent -= len(self._unsent.popleft())
            if sent:
                self._unsent[0] = self._unsent[0][sent:]

    def _sent_now(self) -> int:
        """Return the number of bytes that the socket took."""
        if isinstance(self._socket, ssl.SSLSocket):  # has no sendmsg
            return self._socket.send(self._unsent[0])
        return self._socket.sendmsg(itertools.islice(self._unsent, _MOST_PIECES))

    def receive(self) -> bool:
        """Receive what is there, up to the end of an answer, and hand it to its request. Return whether there was a
        whole one."""
        while self._filled():
            if self._body is None:
                self._begin_body()
                continue
            body, self._body, self._missing = self._body, None, self._head
            self._hand_over(body)
            return True
        return False

    def ask(self, request: Request, until: float) -> None:
        """Send a request and wait for its answer; ``until``: monotonic. For a connection that is being opened."""
        self.send(request)
        poll = select.poll()
        while self._sent:
            if not self.receive():
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"no answer to {request.api.name} in time")
                poll.register(self, select.POLLIN | (select.POLLOUT if self._unsent else 0))
                if not self.decrypted:
                    poll.poll(left * 1000)
                self.flush()

    def close(self, why: str) -> None:
        """Close the socket, and report ``why`` to all requests without an answer."""
        self._socket.close()
        self._unsent.clear()
        sent, self._sent = self._sent, deque()
        for each in sent:
            each.request.lost(why)

    def _filled(self) -> bool:
        while self._missing:
            try:
                got = self._socket.recv_into(self._missing)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            if not got:
                raise ConnectionResetError("the broker closed the connection")
            self._missing = self._missing[got:]
            self.silent, self.used = 0.0, time.monotonic()
        return True

    def _begin_body(self) -> None:
        size = int.from_bytes(self._head, "big", signed=True)
        if not _SMALLEST <= size <= self._largest:
            raise GarbledError(
                f"an answer of {size} bytes; up to {self._largest} are taken (receive.message.max.bytes)"
            )
        if not self._sent:
            raise GarbledError("an answer to nothing")
        self._body = self._sent[0].request.room(size)[:size]
        self._missing = self._body

    def _hand_over(self, body: memoryview) -> None:
        sent = self._sent.popleft()
        number = int.from_bytes(body[:4], "big", signed=True)
        answer = Decoder(body, flexible=sent.flexible)
        answer.skip(4)
        try:
            if number != sent.number:
                raise GarbledError(f"the answer of request {number} came for request {sent.number}")
            answer.tags()
            sent.request.answered(sent.version, answer)
        except GarbledError as error:
            why = f"the answer to {sent.request.api.name} {sent.version} cannot be read: {error}"
            sent.request.lost(why)
            raise GarbledError(why) from None
