"""Where calls come in: looks at a call before its request is read. Who makes it, and are too many open?

gRPC reads the request of a unary call before it runs the handler, so a peer could hold any number of calls by sending
nothing. Here every call is served as one with a stream of requests, which is the same on the wire.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Protocol, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError

from onceward.coordinator.service.needs import NEEDS
from onceward.coordinator.service.peers import Guard, PeerRefusedError
from onceward.coordinator.service.rights import Right
from onceward.coordinator.service.shares import Shares
from onceward.protocol.values import JobName
from onceward.wire.limits import MAX_HEALTH_CALLS, MAX_HEALTH_CALLS_OF_CONNECTION
from onceward.wire.malformed import MalformedError, as_job
from onceward.wire.v1.operators_pb2 import DescribeJobRequest

__all__ = ["CallsDoor", "Connections", "Door", "Entrance", "HealthDoor", "behind"]

T = TypeVar("T")
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

LISTINGS_AT_ONCE = 8
"""Calls that only look, read and answered at a time. More than a peer has reads of the store, so that the next one is
ready."""
_TURN_S = 0.25
"""After that a call no longer counts as one of them: one whose request never comes must not hold others up."""
_REQUEST_LIMIT_S = 5.0
"""How long the request of a health check may take."""
_LOOK_S = 1.0


class Door(Protocol):
    """Lets a call in, or raises PeerRefusedError."""

    limit_s: float | None
    """How long a request may take to arrive; None for no limit."""

    def open(self, method: str, context: Context) -> AbstractContextManager[None]: ...

    async def admit(self, method: str, context: Context) -> None:
        """Look further at a call that is open. Raises PeerRefusedError."""

    def turn(self, method: str, context: Context) -> AbstractAsyncContextManager[None]:
        """Wait until the call may be read and answered."""


class Connections:
    """The TCP connections that have open calls. gRPC names each by the port of its client; it does not say how many are
    idle. Those to a socket have no names."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()

    @property
    def count(self) -> int:
        return len(self._calls)

    @contextmanager
    def used(self, peer: str) -> Iterator[None]:
        if peer.startswith("unix:"):
            yield
            return
        self._calls[peer] += 1
        try:
            yield
        finally:
            self._calls[peer] -= 1
            if not self._calls[peer]:
                del self._calls[peer]


class CallsDoor:
    """For the calls of drivers, operators and their tools.

    :param most: open calls.
    :param most_of_peer: open calls of one peer, if peers are distinguished.
    """

    limit_s: float | None = None

    def __init__(self, guard: Guard, most: int, most_of_peer: int) -> None:
        self._guard = guard
        self.most, self._most_of_peer = most, most_of_peer
        self.count = 0
        """Of open calls."""
        self._of_peer: Counter[str] = Counter()
        self._listings = Shares(guard, LISTINGS_AT_ONCE)

    @contextmanager
    def open(self, method: str, context: Context) -> Iterator[None]:
        peers = self._guard.identify(context, method).names
        if self.count >= self.most:
            raise _too_many(f"the coordinator has {self.count} open calls and takes no more now")
        for peer in peers if self._guard.distinguishes else ():
            if self._of_peer[peer] >= self._most_of_peer:
                raise _too_many(f"{peer} has {self._of_peer[peer]} open calls, and may have no more")
        self.count += 1
        self._of_peer.update(peers)
        try:
            yield
        finally:
            self.count -= 1
            _release(self._of_peer, peers)

    async def admit(self, method: str, context: Context) -> None:
        needs = NEEDS[method]
        if not self._guard.has_any(needs):
            raise self._guard.refuse(method, needs, await _job(context))

    def turn(self, method: str, context: Context) -> AbstractAsyncContextManager[None]:
        """Few listings of a peer, or of a connection, at a time: hundreds that are opened at the same moment must not
        keep the loop from decisions."""
        if NEEDS[method].rights != (Right.VIEW,):
            return nullcontext()
        return self._listings.one(self._guard.calling or context.peer(), _TURN_S)


class HealthDoor:
    """For health checks, by anybody. They take no place of other calls, and their streams none of single checks.

    If peers are distinguished, those that ``guard`` does not know have half of the places at most: clients find the
    leader by these streams.
    """

    limit_s: float | None = _REQUEST_LIMIT_S
    most = MAX_HEALTH_CALLS
    """Of each method. A client that knows several coordinators holds a stream to each."""
    most_of_connection = MAX_HEALTH_CALLS_OF_CONNECTION
    """Of each method. The clients of a process share a connection."""

    def __init__(self, guard: Guard, most_of_peer: int) -> None:
        self._guard = guard
        self._most_of_peer = most_of_peer
        self._open: Counter[tuple[str, str]] = Counter()
        """By method and place: all, strangers, one peer, one connection."""

    @contextmanager
    def open(self, method: str, context: Context) -> Iterator[None]:
        places = list(self._places(context))
        for place, most, whose in places:
            if self._open[method, place] >= most:
                raise _too_many(f"{whose} {most} open health checks, and the coordinator takes no more now")
        taken = [(method, place) for place, _, _ in places]
        self._open.update(taken)
        try:
            yield
        finally:
            _release(self._open, taken)

    def _places(self, context: Context) -> Iterator[tuple[str, int, str]]:
        """Where a check takes a place, how many are there, and whose they are."""
        yield "all", self.most, "there are"
        if self._guard.distinguishes:
            peer = self._guard.known(context)
            if peer is None:
                yield "strangers", self.most // 2, "unknown peers have"
            else:
                for name in peer.names:
                    yield f"peer {name}", self._most_of_peer, f"{name} has"
        connection = context.peer()
        if not connection.startswith("unix:"):  # these have no names
            yield f"connection {connection}", self.most_of_connection, "this connection has"

    async def admit(self, method: str, context: Context) -> None:
        pass

    def turn(self, method: str, context: Context) -> AbstractAsyncContextManager[None]:
        return nullcontext()


def behind(door: Door, handler: grpc.GenericRpcHandler, connections: Connections) -> grpc.GenericRpcHandler:
    """Return ``handler`` with ``door`` before all of its calls. ``connections`` counts theirs."""
    return _Behind(door, handler, connections)


class Entrance:
    """What the generated functions that add a service take for a server: puts ``door`` before the service."""

    def __init__(self, server: grpc.aio.Server, door: Door, connections: Connections) -> None:
        self._server, self._door, self._connections = server, door, connections

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        found = tuple(behind(self._door, handler, self._connections) for handler in handlers)
        self._server.add_generic_rpc_handlers(found)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, object]) -> None:
        """Add nothing: these are the same methods, for a look-up that would bypass the door."""


class _Behind(grpc.GenericRpcHandler):
    def __init__(self, door: Door, handler: grpc.GenericRpcHandler, connections: Connections) -> None:
        self._door, self._handler, self._connections = door, handler, connections

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        found: Any = self._handler.service(handler_call_details)
        if found is None:
            return None
        method = str(handler_call_details.method).rpartition("/")[2]
        streaming = found.response_streaming
        made: Any = grpc.stream_stream_rpc_method_handler if streaming else grpc.stream_unary_rpc_method_handler
        call = self._call(method, found)
        return made(call, found.request_deserializer, found.response_serializer)  # type: ignore[no-any-return]

    def _call(self, method: str, found: Any) -> Any:
        door, connections = self._door, self._connections

        async def call(requests: Any, context: Context) -> Any:
            try:
                with door.open(method, context), connections.used(context.peer()):
                    await door.admit(method, context)
                    if found.request_streaming:
                        async with door.turn(method, context):
                            return await found.stream_unary(requests, context)
                    request = await _one(context, door.limit_s)
                    return await (found.unary_stream or found.unary_unary)(request, context)
            except PeerRefusedError as error:
                refusal = error.code, str(error)
            await context.abort(*refusal)
            raise AssertionError("abort raises")

        async def stream(requests: Any, context: Context) -> AsyncIterator[Any]:
            try:
                with door.open(method, context), connections.used(context.peer()):
                    await door.admit(method, context)
                    async for response in found.stream_stream(requests, context):
                        yield response
                    return
            except PeerRefusedError as error:
                refusal = error.code, str(error)
            await context.abort(*refusal)

        return stream if found.request_streaming and found.response_streaming else call


def _release(taken: "Counter[T]", places: Iterable[T]) -> None:
    for place in places:
        taken[place] -= 1
        if not taken[place]:
            del taken[place]


def _too_many(what: str) -> PeerRefusedError:
    return PeerRefusedError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{what}; retry")


async def _job(context: Context) -> JobName | None:
    """The job that a refused call would have been for, so that its history can say so; None if the beginning of the
    request does not name it."""
    with suppress(TimeoutError, DecodeError, MalformedError):
        async with asyncio.timeout(_LOOK_S):
            beginning: Any = await context.read()
        if isinstance(beginning, bytes):
            return as_job(DescribeJobRequest.FromString(beginning).job)
    return None


async def _one(context: Context, limit_s: float | None) -> Any:
    """Read the only request of a call."""
    try:
        async with asyncio.timeout(limit_s):
            request: Any = await context.read()
    except TimeoutError:
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no request came within {limit_s:g} s")
    if request is grpc.aio.EOF:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a call has one request, and this one has none")
    return request
