"""The connection between the driver and one staying task. Runs on both sides: standard library only.

A task connects to the driver by TLS 1.3. It trusts the certificate of its own group's driver and no other, and proves
itself by the group's secret. So no other process on the network can read a frame, order a task to cut, or vote in its
place.

A frame: 4 bytes length, JSON in UTF-8. A side that has heard nothing for a while sends a ping; after :data:`LOST_S` of
silence the peer is lost.
"""

import contextlib
import hmac
import json
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

__all__ = ["LOST_S", "SECRET_BYTES", "Link", "LinkLostError", "Message", "TaskCredentials", "accept", "connect"]

LOST_S = 15.0
"""Silence after which a peer is lost."""
SECRET_BYTES = 32
_PING_S = 3.0
_HANDSHAKE_S = 10.0
_PROOF_S = 5.0
"""From a connection to the proof that it is a task's. A task needs a part of a second."""
_LENGTH = struct.Struct("!I")
_LONGEST = 64 * 1024 * 1024

Message: TypeAlias = Mapping[str, Any]
T = TypeVar("T")


class LinkLostError(Exception):
    """The peer closed the connection, was silent for too long, or is not who it should be."""


@dataclass(frozen=True, kw_only=True)
class TaskCredentials:
    """By which the tasks of one group know their driver, and the driver its tasks."""

    certificate: str
    """The driver's, in PEM; signed by itself."""
    secret: bytes = field(repr=False)
    """:data:`SECRET_BYTES` long."""


def connect(address: tuple[str, int], credentials: TaskCredentials) -> "Link":
    """Connect a task to its driver. Raises LinkLostError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # one certificate is trusted, whatever the driver's address
    context.load_verify_locations(cadata=credentials.certificate)
    where = f"{address[0]}:{address[1]}"
    try:
        plain = socket.create_connection(address, _HANDSHAKE_S)
    except OSError as error:
        raise LinkLostError(f"the driver at {where} cannot be reached: {error}") from None
    with _closed_on_failure(plain):
        try:
            peer = context.wrap_socket(plain)
        except ssl.SSLCertVerificationError:
            raise LinkLostError(f"the process that listens at {where} is not this task's driver") from None
    with _closed_on_failure(peer):
        peer.sendall(credentials.secret)
        return Link(peer)


def accept(plain: socket.socket, context: ssl.SSLContext, secret: bytes) -> "Link":
    """Make the driver's side of a connection that was just accepted. Raises LinkLostError, also for a peer that has not
    proved itself within :data:`_PROOF_S`."""
    limit = time.monotonic() + _PROOF_S
    with _closed_on_failure(plain):
        plain.setblocking(False)
        peer = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
    with _closed_on_failure(peer):
        _by(limit, peer, peer.do_handshake)
        proof = b""
        while len(proof) < SECRET_BYTES:
            part = _by(limit, peer, lambda: peer.recv(SECRET_BYTES - len(proof)))  # noqa: B023 - called at once
            if not part:
                raise LinkLostError("the peer closed the connection")
            proof += part
        if not hmac.compare_digest(proof, secret):
            raise LinkLostError("a peer that is not a task of this group connected")
        return Link(peer)


def _by(limit: float, peer: ssl.SSLSocket, step: Callable[[], T]) -> T:
    """Take a step of TLS on a socket that does not block. Raises LinkLostError after ``limit``, however often the peer
    says something."""
    while (left := limit - time.monotonic()) > 0:
        waiting = select.poll()
        try:
            return step()
        except ssl.SSLWantReadError:
            waiting.register(peer.fileno(), select.POLLIN)
        except ssl.SSLWantWriteError:
            waiting.register(peer.fileno(), select.POLLOUT)
        waiting.poll(left * 1000)
    raise LinkLostError(f"the peer has not proved within {_PROOF_S:.0f} s that it is a task")


class Link:
    """One authenticated connection. One thread receives; any thread sends."""

    def __init__(self, peer: ssl.SSLSocket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setblocking(False)
        self._peer = peer
        self._tls = threading.Lock()
        """Held for each call of the TLS library, which two threads must not enter at once; never while waiting."""
        self._closed = False
        self._sending = threading.Lock()
        self._said = time.monotonic()

    def send(self, message: Message) -> None:
        """Raises LinkLostError."""
        body = json.dumps(message, separators=(",", ":")).encode()
        with self._sending:
            self._said = time.monotonic()
            left = memoryview(_LENGTH.pack(len(body)) + body)
            give_up = time.monotonic() + LOST_S
            while left:
                left = left[self._write(left) :]
                if left and not self._wait(select.POLLOUT) and time.monotonic() > give_up:
                    self.close()
                    raise LinkLostError(f"the peer took nothing for {LOST_S:.0f} s")

    def receive(self) -> Message:
        """Return the next message; pings pass unseen. Raises LinkLostError."""
        while True:
            (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
            if length > _LONGEST:
                raise LinkLostError(f"a frame of {length} bytes came, more than any task sends")
            message: Message = json.loads(self._exactly(length))
            if message:
                return message

    def close(self) -> None:
        """Close the connection; a thread that receives gets LinkLostError."""
        with self._tls:
            self._closed = True
            with contextlib.suppress(OSError):
                self._peer.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits
            self._peer.close()

    def _exactly(self, count: int) -> bytes:
        got = bytearray()
        heard = time.monotonic()
        while len(got) < count:
            if time.monotonic() - self._said >= _PING_S:  # also while the peer talks: it counts our silence, too
                self.send({})
            part = self._read(count - len(got))
            if part:
                heard = time.monotonic()
                got += part
            elif not self._wait(select.POLLIN) and time.monotonic() - heard > LOST_S:
                raise LinkLostError(f"nothing was heard of the peer for {LOST_S:.0f} s")
        return bytes(got)

    def _read(self, count: int) -> bytes:
        """Return at most ``count`` bytes that are here; none if there are none yet."""
        with self._in_order():
            try:
                part = self._peer.recv(count)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return b""
            if not part:
                raise LinkLostError("the peer closed the connection")
            return part

    def _write(self, data: memoryview) -> int:
        """Return how many bytes were taken."""
        with self._in_order():
            try:
                return self._peer.send(data)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return 0

    @contextmanager
    def _in_order(self) -> Iterator[None]:
        with self._tls:
            if self._closed:
                raise LinkLostError("the connection is closed")
            with _broken():
                yield

    def _wait(self, event: int) -> bool:
        """Wait for at most :data:`_PING_S` until the socket can be read or written; return whether it can."""
        waiting = select.poll()
        with self._in_order():
            waiting.register(self._peer.fileno(), event)
        return bool(waiting.poll(_PING_S * 1000))


@contextmanager
def _closed_on_failure(peer: socket.socket) -> Iterator[None]:
    try:
        with _broken():
            yield
    except BaseException:
        peer.close()
        raise


@contextmanager
def _broken() -> Iterator[None]:
    try:
        yield
    except OSError as error:  # of TLS, too
        raise LinkLostError(f"the connection is broken: {error}") from None
