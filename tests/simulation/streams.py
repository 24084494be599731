"""A server-streaming call on virtual time: both ends and the connection between them."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import grpc

from tests.simulation.scheduler import Process, Task
from tests.simulation.serving import MOVED, REFUSED, UNAVAILABLE, Context, Outcome, RpcFailure, outcome_of

if TYPE_CHECKING:
    from tests.simulation.rpc import Channel, Server

__all__ = ["Stream", "break_streams", "cut_streams"]

_KEEP_ALIVE_S = 3.0
"""Seconds after which each end of a connection notices that the other is silent."""


class Stream:
    """Both ends of a server-streaming call: the client's iterator and the server's coroutine."""

    def __init__(self, channel: "Channel", path: str, data: bytes, decode: Callable[[bytes], Any]) -> None:
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
        self._context: Context
        self._last_arrival = 0.0
        clock = channel.clock
        clock.require_alive()
        copies = channel.link.fate()
        if copies:
            clock.call(channel.wires, copies[0], self._arrive)
        else:
            clock.call(channel.wires, 0.1, lambda: self._finish(UNAVAILABLE))
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
        """Break the connection; each side notices on its own, sooner or later."""
        if self._broken or self._end is not None:
            return
        self._broken = True
        clock = self._channel.clock
        for notice in (lambda: self._finish(UNAVAILABLE), self.drop):
            delay = clock.random.choice((0.001, _KEEP_ALIVE_S)) * (0.5 + clock.random.random())
            clock.call(self._channel.wires, delay, notice)

    def _arrive(self) -> None:
        server = self._channel.address.server
        if server is None or not server.process.alive:
            self._finish(REFUSED)
        else:
            self._served = server.process
            server.process.local.setdefault(Stream, []).append(self)
            self._channel.clock.call(server.process, 0.0, lambda: self._serve(server))

    # -- the server's end

    def drop(self) -> None:
        """The server's side of the connection is gone."""
        if self._served is not None and self._task is not None:
            self._channel.clock.call(self._served, 0.0, self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _serve(self, server: "Server") -> None:
        if not self._channel.owner.alive or self._end is not None:
            return
        handler = server.method(self._path)
        context = self._context = Context(self._send)
        call = handler.unary_stream or handler.stream_unary  # the latter refuses
        self._task = server.loop.inside(lambda: server.loop.create_task(call(self._data, context)))
        self._task.add_done_callback(self._over)

    def _over(self, task: "asyncio.Task[Any]") -> None:
        self._task = None
        end = outcome_of(task)
        self._later(lambda: self._finish(end))

    def _send(self, data: bytes | None) -> None:
        if data is None:
            self._later(self._opened)
        else:
            self._later(lambda: self._received(data))

    def _later(self, what: Callable[[], None]) -> None:
        """Deliver in order, as one connection does; a lost segment breaks the connection."""
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
        if self._channel.outdated(self._context.term):
            self._finish(MOVED)
        if not self._broken and self._end is None:
            self._messages.append(data)
            self._wake()


def cut_streams(process: Process) -> None:
    """Break the connections of ``process``."""
    for stream in process.local.get(Stream, []):
        stream.cut()


def break_streams(process: Process) -> None:
    """Let the peers of ``process``, which died, notice the broken connections."""
    cut_streams(process)
    process.local.pop(Stream, None)
