"""gRPC without sockets: a channel for the real client and a server for the real handlers, on virtual time.

Messages cross as bytes. A lost call ends at its deadline or as a broken connection. The caller then does not know
whether it was carried out, as in a real network.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import grpc

from tests.simulation.loop import VirtualLoop
from tests.simulation.network import Link
from tests.simulation.scheduler import Process, Scheduler, Task
from tests.simulation.serving import MOVED, REFUSED, UNAVAILABLE, Context, Outcome, RpcFailure, outcome_of
from tests.simulation.streams import Stream

__all__ = ["Address", "Channel", "Server"]


class Server(Protocol):
    """A process that receives calls."""

    @property
    def process(self) -> Process: ...

    @property
    def loop(self) -> VirtualLoop: ...

    def method(self, path: str) -> Any:
        """The ``grpc.RpcMethodHandler`` of ``/package.Service/Method``."""


class Address(Protocol):
    @property
    def server(self) -> Server | None:
        """What receives the next call; None while nothing listens."""


class Channel:
    """A ``grpc.Channel`` of one process to one address, or to the coordinator that leads."""

    def __init__(self, clock: Scheduler, owner: Process, address: Address, link: Link, wires: Process) -> None:
        self.clock = clock
        self.owner = owner
        self.address = address
        self.term = 0
        """The highest term of an answer."""
        self.link = link
        self.wires = wires
        """The process that carries the messages."""

    def unary_unary(
        self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Callable[..., Any]:
        def call(request: Any, timeout: float) -> Any:
            data = request if request_serializer is None else request_serializer(request)
            return response_deserializer(_Call(self, path, data).result(timeout))

        return call

    def stream_unary(self, *_: Any, **__: Any) -> Callable[..., Any]:
        def call(_request: Any, **_: Any) -> Any:
            raise AssertionError("no world has so much to say that it takes several messages")

        return call

    def unary_stream(
        self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Callable[..., Any]:
        def call(request: Any, timeout: float) -> Any:
            assert timeout > 600.0, "no world lives so long that this deadline must be modelled"
            return Stream(self, path, request_serializer(request), response_deserializer)

        return call

    def close(self) -> None:
        pass

    def outdated(self, term: int) -> bool:
        """True for an answer of an older term than an earlier answer's, as the real channel checks."""
        self.term = max(self.term, term)
        return 0 < term < self.term


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
        """The connection breaks and the caller notices, or nothing happens until the deadline."""
        clock = self._channel.clock
        if clock.random.random() < 0.7:
            clock.call(self._channel.wires, 0.05 * clock.random.random(), lambda: self._end(UNAVAILABLE))

    def _answered(self, outcome: Outcome, term: int) -> None:
        if self._outcome is None and self._channel.outdated(term):
            outcome = MOVED
        self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        if self._outcome is None:
            self._outcome = outcome
            if self._caller is not None:
                self._channel.clock.wake(self._caller)

    def _arrive(self) -> None:
        server = self._channel.address.server
        if server is None or not server.process.alive:
            self._end(REFUSED)
        else:
            self._channel.clock.call(server.process, 0.0, lambda: self._serve(server))

    def _serve(self, server: Server) -> None:

        def unexpected(_data: bytes | None) -> None:
            raise AssertionError("a unary call writes nothing by itself")

        handler = server.method(self._path)
        context = Context(unexpected)
        call = handler.unary_unary or handler.stream_unary  # the latter refuses
        task = server.loop.inside(lambda: server.loop.create_task(call(self._data, context)))
        task.add_done_callback(lambda task: self._served(task, context))

    def _served(self, task: "asyncio.Task[bytes]", context: Context) -> None:
        outcome = outcome_of(task)
        clock = self._channel.clock
        copies = self._channel.link.fate()
        if copies:
            clock.call(self._channel.wires, copies[0], lambda: self._answered(outcome, context.term))
        else:
            self._lost()
