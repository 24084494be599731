"""The connection between the driver and one staying task. Runs on both sides: standard library only.

A task connects to the driver. Both prove that they know the group's secret, each by a hash over two fresh numbers, and
derive the key that authenticates every later frame with its direction and its number. So no other process on the
network can order a task to cut, vote in its place, or repeat a frame. The content is not secret: offsets, ids, counts.

A frame: 4 bytes length, 16 bytes hash, JSON in UTF-8. A side that has heard nothing for a while sends a ping; after
:data:`LOST_S` of silence the peer is lost.
"""

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

__all__ = ["LOST_S", "Link", "LinkLostError", "Message", "accept", "connect", "new_secret"]

LOST_S = 15.0
"""Silence after which a peer is lost."""
_PING_S = 3.0
_HANDSHAKE_S = 10.0
_NONCE = 16
_PROOF = 32
_MAC = 16
_LENGTH = struct.Struct("!I")
_NUMBER = struct.Struct("!Q")
_LONGEST = 64 * 1024 * 1024

Message: TypeAlias = Mapping[str, Any]


class LinkLostError(Exception):
    """The peer closed the connection, was silent for too long, or is not who it should be."""


def new_secret() -> bytes:
    """Return a secret for one group of tasks."""
    return secrets.token_bytes(32)


def connect(address: tuple[str, int], secret: bytes) -> "Link":
    """Connect a task to its driver. Raises LinkLostError."""
    try:
        peer = socket.create_connection(address, _HANDSHAKE_S)
    except OSError as error:
        raise LinkLostError(f"the driver at {address[0]}:{address[1]} cannot be reached: {error}") from None
    with _closed_on_failure(peer):
        ours = secrets.token_bytes(_NONCE)
        peer.sendall(ours)
        theirs = _exactly(peer, _NONCE)
        if not hmac.compare_digest(_exactly(peer, _PROOF), _hash(secret, b"driver", ours, theirs)):
            raise LinkLostError(f"the process that listens at {address[0]}:{address[1]} is not this task's driver")
        peer.sendall(_hash(secret, b"task", ours, theirs))
        return Link(peer, _hash(secret, b"key", ours, theirs), b"task", b"driver")


def accept(peer: socket.socket, secret: bytes) -> "Link":
    """Make the driver's side of a connection that was just accepted. Raises LinkLostError."""
    with _closed_on_failure(peer):
        peer.settimeout(_HANDSHAKE_S)
        theirs = _exactly(peer, _NONCE)
        ours = secrets.token_bytes(_NONCE)
        peer.sendall(ours + _hash(secret, b"driver", theirs, ours))
        if not hmac.compare_digest(_exactly(peer, _PROOF), _hash(secret, b"task", theirs, ours)):
            raise LinkLostError("a peer that is not a task of this group connected")
        return Link(peer, _hash(secret, b"key", theirs, ours), b"driver", b"task")


class Link:
    """One authenticated connection. One thread receives; any thread sends."""

    def __init__(self, peer: socket.socket, key: bytes, us: bytes, them: bytes) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.settimeout(_PING_S)
        self._peer = peer
        self._key, self._us, self._them = key, us, them
        self._sending = threading.Lock()
        self._sent = self._received = 0
        self._said = time.monotonic()

    def send(self, message: Message) -> None:
        """Raises LinkLostError."""
        body = json.dumps(message, separators=(",", ":")).encode()
        with self._sending:
            proof = _hash(self._key, self._us, _NUMBER.pack(self._sent), body)[:_MAC]
            self._sent += 1
            self._said = time.monotonic()
            left = memoryview(_LENGTH.pack(len(body)) + proof + body)
            give_up = time.monotonic() + LOST_S
            while left:
                try:
                    left = left[self._peer.send(left) :]
                except TimeoutError:
                    if time.monotonic() > give_up:
                        self.close()
                        raise LinkLostError(f"the peer took nothing for {LOST_S:.0f} s") from None
                except OSError as error:
                    raise LinkLostError(f"the connection is broken: {error}") from None

    def receive(self) -> Message:
        """Return the next message; pings pass unseen. Raises LinkLostError."""
        while True:
            (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
            if length > _LONGEST:
                raise LinkLostError(f"a frame of {length} bytes came, more than any task sends")
            proof, body = self._exactly(_MAC), self._exactly(length)
            wanted = _hash(self._key, self._them, _NUMBER.pack(self._received), body)[:_MAC]
            if not hmac.compare_digest(proof, wanted):
                raise LinkLostError("a frame came that the peer did not send")
            self._received += 1
            message: Message = json.loads(body)
            if message:
                return message

    def close(self) -> None:
        """Close the connection; a thread that receives gets LinkLostError."""
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)
        self._peer.close()

    def _exactly(self, count: int) -> bytes:
        got = bytearray()
        heard = time.monotonic()
        while len(got) < count:
            if time.monotonic() - self._said >= _PING_S:  # also while the peer talks: it counts our silence, too
                self.send({})
            try:
                part = self._peer.recv(count - len(got))
            except TimeoutError:
                if time.monotonic() - heard > LOST_S:
                    raise LinkLostError(f"nothing was heard of the peer for {LOST_S:.0f} s") from None
                continue
            except OSError as error:
                raise LinkLostError(f"the connection is broken: {error}") from None
            if not part:
                raise LinkLostError("the peer closed the connection")
            heard = time.monotonic()
            got += part
        return bytes(got)


class _closed_on_failure:  # noqa: N801 - used as a context manager
    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None:
            return
        self._peer.close()
        if isinstance(error, OSError):
            raise LinkLostError(f"the connection is broken: {error}") from None


def _exactly(peer: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        part = peer.recv(count - len(got))
        if not part:
            raise LinkLostError("the peer closed the connection")
        got += part
    return got


def _hash(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), hashlib.sha256)
