"""gRPC without sockets: a channel for the real client, and the serving of the real handlers, on virtual time.

Messages cross as bytes. A call that is lost ends by its deadline or as a broken connection; whether it was carried out
is then unknown, as in life.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import grpc

from tests.simulation.loop import VirtualLoop
from tests.simulation.network import Link
from tests.simulation.scheduler import Process, Scheduler, Task

__all__ = ["Channel", "RpcFailure", "Server", "break_streams", "cut_streams"]

_KEEP_ALIVE_S = 3.0
"""After which both ends of a connection notice that the other one is silent."""


class RpcFailure(grpc.RpcError):
    """What a call raises."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code = code
        self._details = details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


class Server(Protocol):
    """Where calls arrive: whoever listens at the address now."""

    @property
    def process(self) -> Process | None:
        """None while nobody listens."""

    @property
    def loop(self) -> VirtualLoop:
        """Of that process."""

    def method(self, path: str) -> Any:
        """The ``grpc.RpcMethodHandler`` of ``/package.Service/Method``."""


class _AbortedError(Exception):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class _Context:
    """A ``grpc.aio.ServicerContext`` as far as the service uses it."""

    def __init__(self, send: Callable[[bytes | None], None]) -> None:
        self._send = send

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise _AbortedError(code, details)

    async def send_initial_metadata(self, _metadata: object) -> None:
        self._send(None)

    async def write(self, data: bytes) -> None:
        self._send(data)


Outcome = tuple[grpc.StatusCode, str, bytes | None]

_UNAVAILABLE: Outcome = (grpc.StatusCode.UNAVAILABLE, "connection broken", None)
_REFUSED: Outcome = (grpc.StatusCode.UNAVAILABLE, "connection refused", None)


class Channel:
    """A ``grpc.Channel`` of one process to one address."""

    def __init__(self, clock: Scheduler, owner: Process, server: Server, link: Link, wires: Process) -> None:
        self.clock = clock
        self.owner = owner
        self.server = server
        self.link = link
        self.wires = wires
        """The process in which messages travel."""

    def unary_unary(
        self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Callable[..., Any]:
        def call(request: Any, timeout: float) -> Any:
            return response_deserializer(_Call(self, path, request_serializer(request)).result(timeout))

        return call

    def unary_stream(
        self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Callable[..., Any]:
        def call(request: Any) -> Any:
            return Stream(self, path, request_serializer(request), response_deserializer)

        return call

    def close(self) -> None:
        pass


class _Call:
    """One unary call."""

    def __init__(self, channel: Channel, path: str, data: bytes) -> None:
        self._channel = channel
        self._path = path
        self._data = data
        self._outcome: Outcome | None = None
        self._caller: Task | None = None

    def result(self, timeout: float) -> bytes:
        channel = self._channel
        clock = channel.clock
        clock.require_alive()
        self._caller = clock.task
        copies = channel.link.fate()
        for delay in copies:
            clock.call(channel.wires, delay, self._arrive)
        if not copies:
            self._lost()
        deadline = clock.now + timeout
        while self._outcome is None and clock.now < deadline:
            clock.suspend(deadline - clock.now)
        self._caller = None
        if self._outcome is None:
            raise RpcFailure(grpc.StatusCode.DEADLINE_EXCEEDED, f"no answer within {timeout:g} s")
        code, details, data = self._outcome
        if data is None:
            raise RpcFailure(code, details)
        return data

    def _lost(self) -> None:
        """Either the connection breaks and the caller sees it, or nothing happens at all until its deadline."""
        clock = self._channel.clock
        if clock.random.random() < 0.7:
            clock.call(self._channel.wires, 0.05 * clock.random.random(), lambda: self._end(_UNAVAILABLE))

    def _end(self, outcome: Outcome) -> None:
        if self._outcome is None:
            self._outcome = outcome
            if self._caller is not None:
                self._channel.clock.wake(self._caller)

    def _arrive(self) -> None:
        process = self._channel.server.process
        if process is None or not process.alive:
            self._end(_REFUSED)
        else:
            self._channel.clock.call(process, 0.0, self._serve)

    def _serve(self) -> None:
        server = self._channel.server

        def unexpected(_data: bytes | None) -> None:
            raise AssertionError("a unary call writes nothing by itself")

        handler = server.method(self._path)
        task = server.loop.inside(
            lambda: server.loop.create_task(handler.unary_unary(self._data, _Context(unexpected)))
        )
        task.add_done_callback(self._served)

    def _served(self, task: "asyncio.Task[bytes]") -> None:
        outcome = _outcome(task)
        clock = self._channel.clock
        copies = self._channel.link.fate()
        if copies:
            clock.call(self._channel.wires, copies[0], lambda: self._end(outcome))
        else:
            self._lost()


def _outcome(task: "asyncio.Task[bytes]") -> Outcome:
    """What a handler's end is to the client. Raises what no handler may raise."""
    if task.cancelled():
        return grpc.StatusCode.CANCELLED, "cancelled", None
    error = task.exception()
    if error is None:
        return grpc.StatusCode.OK, "", task.result() or b""
    if isinstance(error, _AbortedError):
        return error.code, error.details, None
    raise error


class Stream:
    """A server-streaming call, both ends of it: the client's iterator and the server's coroutine."""

    def __init__(self, channel: Channel, path: str, data: bytes, decode: Callable[[bytes], Any]) -> None:
        self._channel = channel
        self._path = path
        self._data = data
        self._decode = decode
        self._messages: deque[bytes] = deque()
        self._up = False
        self._end: Outcome | None = None
        self._reader: Task | None = None
        self._broken = False
        self._served: Process | None = None
        self._task: asyncio.Task[Any] | None = None
        self._last_arrival = 0.0
        clock = channel.clock
        clock.require_alive()
        copies = channel.link.fate()
        if copies:
            clock.call(channel.wires, copies[0], self._arrive)
        else:
            clock.call(channel.wires, 0.1, lambda: self._finish(_UNAVAILABLE))
        channel.owner.local.setdefault(Stream, []).append(self)

    # -- the client's end

    def initial_metadata(self) -> None:
        self._wait(lambda: self._up or self._end is not None)

    def is_active(self) -> bool:
        return self._end is None

    def cancel(self) -> None:
        self._finish((grpc.StatusCode.CANCELLED, "cancelled by the client", None))
        self._channel.clock.call(self._channel.wires, 0.001, self.drop)

    def __iter__(self) -> Iterator[Any]:
        while True:
            self._wait(lambda: bool(self._messages) or self._end is not None)
            if self._messages:
                yield self._decode(self._messages.popleft())
                continue
            assert self._end is not None
            if self._end[0] is not grpc.StatusCode.OK:
                raise RpcFailure(self._end[0], self._end[1])
            return

    def _wait(self, done: Callable[[], bool]) -> None:
        clock = self._channel.clock
        self._reader = clock.task
        while not done():
            clock.suspend(None)
        self._reader = None

    def _finish(self, end: Outcome) -> None:
        if self._end is None:
            self._end = end
            self._wake()

    def _wake(self) -> None:
        if self._reader is not None:
            self._channel.clock.wake(self._reader)

    # -- the connection

    def cut(self) -> None:
        """The connection breaks; each side notices by itself, sooner or later."""
        if self._broken or self._end is not None:
            return
        self._broken = True
        clock = self._channel.clock
        for notice in (lambda: self._finish(_UNAVAILABLE), self.drop):
            delay = clock.random.choice((0.001, _KEEP_ALIVE_S)) * (0.5 + clock.random.random())
            clock.call(self._channel.wires, delay, notice)

    def _arrive(self) -> None:
        process = self._channel.server.process
        if process is None or not process.alive:
            self._finish(_REFUSED)
        else:
            self._served = process
            process.local.setdefault(Stream, []).append(self)
            self._channel.clock.call(process, 0.0, self._serve)

    # -- the server's end

    def drop(self) -> None:
        """The server's side of the connection is gone."""
        if self._served is not None and self._task is not None:
            self._channel.clock.call(self._served, 0.0, self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _serve(self) -> None:
        if not self._channel.owner.alive or self._end is not None:
            return
        server = self._channel.server
        handler = server.method(self._path)
        self._task = server.loop.inside(
            lambda: server.loop.create_task(handler.unary_stream(self._data, _Context(self._send)))
        )
        self._task.add_done_callback(self._over)

    def _over(self, task: "asyncio.Task[Any]") -> None:
        self._task = None
        end = _outcome(task)
        self._later(lambda: self._finish(end))

    def _send(self, data: bytes | None) -> None:
        if data is None:
            self._later(self._opened)
        else:
            self._later(lambda: self._received(data))

    def _later(self, what: Callable[[], None]) -> None:
        """In order, as on one connection; a lost segment breaks it."""
        if self._broken:
            return
        clock = self._channel.clock
        copies = self._channel.link.fate()
        if not copies:
            self.cut()
            return
        self._last_arrival = max(self._last_arrival + 1e-6, clock.now + copies[0])
        clock.call(self._channel.wires, self._last_arrival - clock.now, what)

    def _opened(self) -> None:
        if not self._broken:
            self._up = True
            self._wake()

    def _received(self, data: bytes) -> None:
        if not self._broken and self._end is None:
            self._messages.append(data)
            self._wake()


def cut_streams(process: Process) -> None:
    """The connections of ``process`` break."""
    for stream in process.local.get(Stream, []):
        stream.cut()


def break_streams(process: Process) -> None:
    """``process`` died: the other ends of its connections notice."""
    cut_streams(process)
    process.local.pop(Stream, None)
