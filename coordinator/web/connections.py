"""Connections within bounds: no client can take the descriptors that the coordinator needs."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["bounded"]


def bounded(most: int, longest_s: float) -> type[asyncio.Protocol]:
    """A protocol that closes a connection at once if ``most`` are open, and any after ``longest_s``."""

    class Bounded(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            if len(self.connections) >= most:
                self.transport = transport  # its loss is reported
                transport.abort()
                return
            super().connection_made(transport)
            self._end = self.loop.call_later(longest_s, transport.abort)

        def connection_lost(self, exc: Exception | None) -> None:
            end: asyncio.TimerHandle | None = getattr(self, "_end", None)
            if end is not None:
                end.cancel()
            super().connection_lost(exc)

    return Bounded
