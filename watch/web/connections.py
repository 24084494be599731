"""Connections within bounds: no client can take the descriptors that the coordinator needs."""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["bounded"]

_HANDSHAKE_S = 10.0


def bounded(
    most: int, longest_s: float, tls: Callable[[], ssl.SSLContext] | None = None
) -> Callable[..., asyncio.Protocol]:
    """Return what makes uvicorn's protocol for a connection. A connection is closed at once if ``most`` are open, and
    after ``longest_s`` in any case.

    :param tls: makes the context of each connection, so that replaced certificates are used.
    """
    opened: set[_Connection] = set()
    return lambda **given: _Connection(H11Protocol(**given), opened, most, longest_s, tls)


class _Connection(asyncio.Protocol):
    """Counts from the first byte on, and does the handshake itself: uvicorn counts a connection only afterwards."""

    def __init__(
        self,
        http: H11Protocol,
        opened: "set[_Connection]",
        most: int,
        longest_s: float,
        tls: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        self._http = http
        self._opened, self._most, self._longest_s = opened, most, longest_s
        self._tls = tls
        self._served = False
        self._early = b""
        """What came with the end of the handshake."""

    def connection_made(self, transport: Any) -> None:
        if len(self._opened) >= self._most:
            transport.abort()
            return
        self._opened.add(self)
        loop = asyncio.get_running_loop()
        self._end = loop.call_later(self._longest_s, transport.abort)
        if self._tls is None:
            self._serve(transport)
        else:
            transport.pause_reading()
            self._handshake = loop.create_task(self._encrypt(self._tls, transport))

    def data_received(self, data: bytes) -> None:
        if self._served:
            self._http.data_received(data)
        else:
            self._early += data

    def eof_received(self) -> None:
        if self._served:
            self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._opened:
            self._opened.remove(self)
            self._end.cancel()
        if self._served:
            self._http.connection_lost(exc)

    def _serve(self, transport: Any) -> None:
        self._served = True
        self._http.connection_made(transport)

    async def _encrypt(self, tls: Callable[[], ssl.SSLContext], transport: Any) -> None:
        loop = asyncio.get_running_loop()
        encrypted = None
        with suppress(OSError):  # the peer speaks no TLS or has no certificate, or ours is just replaced
            encrypted = await loop.start_tls(
                transport, self, tls(), server_side=True, ssl_handshake_timeout=_HANDSHAKE_S
            )
        if encrypted is None:
            transport.abort()
            self.connection_lost(None)
        else:
            self._serve(encrypted)
            if self._early:
                self._http.data_received(self._early)
