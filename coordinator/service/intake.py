"""Bounds the size of requests: of each message, of each request, and of all requests held at one time.

gRPC rejects a message above its bound before reading it. A longer request arrives as several messages, whose bytes are
joined again. On the wire, a call with one message is the same as a call with a single request.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from onceward.wire.limits import MAX_HELD_BYTES, MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES

__all__ = ["Intake"]

Unary = Callable[[bytes, "grpc.aio.ServicerContext[bytes, bytes]"], Awaitable[bytes]]


class Intake:
    """The memory for requests of one server: bytes that are read and not yet answered."""

    def __init__(self, most: int = MAX_HELD_BYTES) -> None:
        self._free = self._most = most

    def bounded(self, handler: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
        """Wrap ``handler`` so that its requests are read here."""
        return _Bounded(handler, self)

    async def take_in(self, unary: Unary, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        """Read the whole request and have it answered. Reject it as soon as there is no room for more of it."""
        pieces: list[bytes] = []
        held = 0
        try:
            while True:
                if self._free < MAX_MESSAGE_BYTES or held > MAX_REQUEST_BYTES:
                    refusal = self._refusal(held)
                    # Release the bytes first; otherwise all other requests being read would be rejected too.
                    pieces.clear()
                    self._free, held = self._free + held, 0
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)
                self._free -= MAX_MESSAGE_BYTES
                held += MAX_MESSAGE_BYTES
                piece: object = await context.read()
                unused = MAX_MESSAGE_BYTES - (len(piece) if isinstance(piece, bytes) else 0)
                self._free += unused
                held -= unused
                if not isinstance(piece, bytes):  # the end of the request
                    break
                pieces.append(piece)
            return await unary(_joined(pieces), context)
        finally:
            self._free += held

    def _refusal(self, held: int) -> str:
        if held > MAX_REQUEST_BYTES:
            return f"a request takes at most {MAX_REQUEST_BYTES} bytes"
        return f"the coordinator holds {self._most - self._free} bytes of requests and accepts no more now; retry"


def _joined(pieces: list[bytes]) -> bytes:
    """Join ``pieces`` and empty the list, so that the bytes are held only once."""
    request = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    pieces.clear()
    return request


class _Bounded(grpc.GenericRpcHandler):
    def __init__(self, handler: grpc.GenericRpcHandler, intake: Intake) -> None:
        self._handler = handler
        self._intake = intake

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        found = self._handler.service(handler_call_details)
        unary = found.unary_unary if found is not None else None
        if unary is None:
            return found

        async def call(_messages: object, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
            return await self._intake.take_in(unary, context)  # type: ignore[arg-type]

        return grpc.stream_unary_rpc_method_handler(call)
