"""What a handler receives, and how its end reaches the client."""

import asyncio
from collections.abc import Callable, Sequence

import grpc

from onceward.wire.lead import TERM

__all__ = ["MOVED", "REFUSED", "UNAVAILABLE", "Context", "Outcome", "RpcFailure", "outcome_of"]


class RpcFailure(grpc.RpcError):
    """The error that a call raises."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code = code
        self._details = details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


class _AbortedError(Exception):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class Context:
    """The part of a ``grpc.aio.ServicerContext`` that the service uses."""

    def __init__(self, send: Callable[[bytes | None], None]) -> None:
        self._send = send
        self.term = 0
        """Of the coordinator that answers."""

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise _AbortedError(code, details)

    def set_trailing_metadata(self, metadata: Sequence[tuple[str, str]]) -> None:
        self.term = int(dict(metadata)[TERM])

    async def send_initial_metadata(self, metadata: Sequence[tuple[str, str]]) -> None:
        self.set_trailing_metadata(metadata)
        self._send(None)

    async def write(self, data: bytes) -> None:
        self._send(data)


Outcome = tuple[grpc.StatusCode, str, bytes | None]

UNAVAILABLE: Outcome = (grpc.StatusCode.UNAVAILABLE, "connection broken", None)
REFUSED: Outcome = (grpc.StatusCode.UNAVAILABLE, "connection refused", None)
MOVED: Outcome = (grpc.StatusCode.UNAVAILABLE, "the coordinator does not lead any more", None)


def outcome_of(task: "asyncio.Task[bytes]") -> Outcome:
    """How a handler's end reaches the client. Raises the handler's error unless it is an abort: no handler may raise
    one."""
    if task.cancelled():
        return grpc.StatusCode.CANCELLED, "cancelled", None
    error = task.exception()
    if error is None:
        return grpc.StatusCode.OK, "", task.result() or b""
    if isinstance(error, _AbortedError):
        return error.code, error.details, None
    raise error
