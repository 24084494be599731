"""Calls from the process of an embedded coordinator to it: to the same handlers, without gRPC's sockets and threads.

A call by a Unix socket takes 2 ms longer, on idle cores, and a driver makes two for each checkpoint. Messages cross as
bytes, as there. The doors and bounds for other peers are not needed: this process trusts itself.
"""

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

__all__ = ["DirectCallError", "DirectChannel"]

FindHandler: TypeAlias = Callable[[grpc.HandlerCallDetails], "grpc.RpcMethodHandler[Any, Any] | None"]


class DirectCallError(grpc.RpcError):
    """A call that was refused or not answered."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


class DirectChannel:
    """The part of ``grpc.Channel`` that our clients use. ``find``: the handlers, which run on ``loop``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, find: FindHandler) -> None:
        self._loop, self._find = loop, find
        self._lock = threading.Lock()
        self._open: set[concurrent.futures.Future[Any]] = set()
        self._closed = False

    def unary_unary(
        self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Callable[..., Any]:
        def call(request: Any, timeout: float | None = None) -> Any:
            data = request if request_serializer is None else request_serializer(request)
            return response_deserializer(_result(self._start(self._serve(path, data, _Context())), timeout))

        return call

    def stream_unary(
        self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Callable[..., Any]:
        whole = self.unary_unary(path, request_serializer, response_deserializer)

        def call(pieces: Iterable[bytes], timeout: float | None = None) -> Any:
            return whole(b"".join(pieces), timeout=timeout)

        return call

    def unary_stream(
        self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Callable[..., "_Stream"]:
        def call(request: Any, timeout: float | None = None) -> _Stream:
            context = _StreamContext()
            serving = self._serve(path, request_serializer(request), context, timeout)
            return _Stream(self._start(serving), context, response_deserializer)

        return call

    def close(self) -> None:
        """Cancel what is under way; later calls raise ValueError, as with gRPC."""
        with self._lock:
            self._closed = True
            left = list(self._open)
        for call in left:
            call.cancel()

    async def _serve(self, path: str, data: bytes, context: "_Context", limit_s: float | None = None) -> Any:
        handler: Any = self._find(_Details(method=path))
        if handler is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"there is no method {path}")
        async with asyncio.timeout(limit_s):
            return await (handler.unary_unary or handler.unary_stream or handler.stream_unary)(data, context)

    def _start(self, serving: Coroutine[Any, Any, Any]) -> "concurrent.futures.Future[Any]":
        with self._lock:
            if self._closed:
                serving.close()
                raise ValueError("the channel is closed")
            try:
                call = asyncio.run_coroutine_threadsafe(serving, self._loop)
            except RuntimeError:  # the loop is closed
                serving.close()
                raise DirectCallError(grpc.StatusCode.UNAVAILABLE, "the coordinator has stopped") from None
            self._open.add(call)
        call.add_done_callback(self._over)
        return call

    def _over(self, call: "concurrent.futures.Future[Any]") -> None:
        with self._lock:
            self._open.discard(call)


class _AbortedError(grpc.aio.AbortError):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


class _Context:
    """The part of ``grpc.aio.ServicerContext`` that the handlers use."""

    def __init__(self) -> None:
        self._code: grpc.StatusCode | None = None

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        self._code = code
        raise _AbortedError(code, details)

    def code(self) -> grpc.StatusCode | None:
        return self._code

    def set_trailing_metadata(self, _metadata: object) -> None:
        """Drop it: it distinguishes coordinators, and there is one."""


class _StreamContext(_Context):
    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        """None: nothing follows."""

    async def send_initial_metadata(self, _metadata: object) -> None:
        self.begun.set()

    async def write(self, message: bytes) -> None:
        self.said.put(message)


class _Stream:
    """The part of the client's side of a stream that our clients use."""

    def __init__(
        self, call: "concurrent.futures.Future[None]", context: _StreamContext, deserialize: Callable[[bytes], Any]
    ) -> None:
        self._call, self._context, self._deserialize = call, context, deserialize
        call.add_done_callback(self._end)

    def _end(self, _call: object) -> None:
        self._context.said.put(None)
        self._context.begun.set()

    def initial_metadata(self) -> tuple[()]:
        """Wait until the service sends it, or the stream is over."""
        self._context.begun.wait()
        return ()

    def is_active(self) -> bool:
        return not self._call.done()

    def cancel(self) -> None:
        self._call.cancel()

    def __iter__(self) -> Iterator[Any]:
        while (message := self._context.said.get()) is not None:
            yield self._deserialize(message)
        _result(self._call, None)


@dataclass(frozen=True)
class _Details(grpc.HandlerCallDetails):
    method: str
    invocation_metadata: tuple[()] = ()


def _result(call: "concurrent.futures.Future[Any]", timeout: float | None) -> Any:
    """Raises DirectCallError."""
    try:
        return call.result(timeout)
    except _AbortedError as error:
        raise DirectCallError(error.code, error.details) from None
    except concurrent.futures.CancelledError:
        raise DirectCallError(grpc.StatusCode.CANCELLED, "the coordinator stops, or the client was closed") from None
    except TimeoutError:
        call.cancel()
        raise DirectCallError(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time") from None
    except Exception as error:
        raise DirectCallError(grpc.StatusCode.UNKNOWN, repr(error)) from error
