"""A channel to several coordinators that share a store: it follows the one that leads.

It watches the health of each (the standard service of gRPC): the server that leads says SERVING, from the moment when
it begins. A silent leader keeps its place until another one leads; then its calls in progress end, and are repeated at
the new one.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from onceward.client.channels import StubChannel
from onceward.common.backoff import Backoff
from onceward.common.errors import ConfigurationError
from onceward.common.printable import log_fields, logger
from onceward.wire.lead import TERM

__all__ = ["following"]

_log = logger("onceward.client")

_Bind: TypeAlias = Callable[[grpc.Channel], Any]
"""Binds a method to a channel."""

_FIND_S = 1.0
"""How long a call waits for a leader before it fails as UNAVAILABLE; then it is retried."""


def following(addresses: Sequence[str], open_one: Callable[[str], grpc.Channel]) -> grpc.Channel:
    """Return a channel for stubs.

    :param open_one: opens a channel to one address. Raises ConfigurationError.
    """
    return cast(grpc.Channel, _Following(addresses, open_one))


_OF_NO_LEADER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class _Unavailable(grpc.RpcError):
    """Looks like an error of gRPC."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self._why = why

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return self._why


class _Leader:
    """A channel to the coordinator that leads, as long as it does."""

    def __init__(self, address: str, open_one: Callable[[str], grpc.Channel]) -> None:
        self.address = address
        self._open = open_one
        self._channel: grpc.Channel | None = None

    def channel(self) -> grpc.Channel:
        """The channel. Raises UNAVAILABLE when the files of TLS cannot be read now."""
        if self._channel is None:
            try:
                self._channel = self._open(self.address)
            except ConfigurationError as error:
                raise _Unavailable(str(error)) from None
        return self._channel

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()


class _Following(StubChannel):
    def __init__(self, addresses: Sequence[str], open_one: Callable[[str], grpc.Channel]) -> None:
        self._addresses = tuple(addresses)
        self._open = open_one
        self._changed = threading.Condition()
        self._serving: dict[str, bool | None] = dict.fromkeys(addresses, False)
        """In the order in which they began to serve, the last one last. None for one that has no place for a health
        check: it may lead."""
        self._why: dict[str, str] = dict.fromkeys(addresses, "not asked yet")
        self._unreachable: dict[str, bool | None] = dict.fromkeys(addresses)
        """None for one that has not been asked yet."""
        self._leader: _Leader | None = None
        self._led = False
        """True once there was a leader."""
        self._term = 0
        self._closed = False
        self._watched = [open_one(address) for address in addresses]
        for address, channel in zip(self._addresses, self._watched, strict=True):
            threading.Thread(
                target=self._watch, args=(address, channel), name=f"onceward-health-{address}", daemon=True
            ).start()

    def method(self, kind: str, *arguments: Any, **options: Any) -> Callable[..., Any]:
        call = self._stream if kind == "unary_stream" else self._answer
        return lambda *request, **given: call(
            lambda channel: getattr(channel, kind)(*arguments, **options), request, given
        )

    def close(self) -> None:
        with self._changed:
            self._closed = True
            leader, self._leader = self._leader, None
            self._changed.notify_all()
        for channel in (*self._watched, *(() if leader is None else (leader,))):
            channel.close()

    def _answer(self, bind: _Bind, request: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
        leader, channel = self._find()
        try:
            answer, done = bind(channel).with_call(*request, **given)
        except grpc.RpcError as error:
            self._doubt(leader, error)
            raise
        except ValueError:  # the channel was closed because another coordinator leads
            raise self._moved(leader) from None
        self._require(leader, done.trailing_metadata())
        return answer

    def _stream(self, bind: _Bind, request: tuple[Any, ...], given: Mapping[str, Any]) -> "_Stream":
        leader, channel = self._find()
        stream = bind(channel)(*request, **given)
        return _Stream(
            stream, lambda metadata: self._require(leader, metadata), lambda error: self._doubt(leader, error)
        )

    def _find(self) -> tuple[_Leader, grpc.Channel]:
        """Return the leader. Raises ValueError if this channel is closed, UNAVAILABLE if there is none for a while, or
        none to be expected."""
        limit = time.monotonic() + _FIND_S
        with self._changed:
            while not self._closed:
                if self._leader is not None:
                    return self._leader, self._leader.channel()
                left = limit - time.monotonic()
                if left <= 0 or self._hopeless():
                    known = "; ".join(f"{address}: {why}" for address, why in self._why.items())
                    raise _Unavailable(f"none of the coordinators leads ({known})")
                self._changed.wait(left)
        raise ValueError("the channel is closed")

    def _hopeless(self) -> bool:
        """True when no leader is to be expected soon, so that the caller finds out at once what keeps it from one."""
        unreachable = self._unreachable.values()
        return None not in unreachable and (all(unreachable) or (any(unreachable) and not self._led))

    def _watch(self, address: str, channel: grpc.Channel) -> None:
        stub, backoff = health_pb2_grpc.HealthStub(channel), Backoff(first=0.05, longest=0.5)
        while not self._closed:
            why, unknown = "the connection ended", False
            try:
                for response in stub.Watch(health_pb2.HealthCheckRequest()):
                    backoff.reset()
                    serving = response.status == health_pb2.HealthCheckResponse.SERVING
                    self._note(address, serving, "it leads" if serving else "it stands by", unreachable=False)
            except grpc.RpcError as error:
                why = f"{error.code().name}: {error.details()}"
                unknown = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            except ValueError:
                return
            self._note(address, None if unknown else False, why, unreachable=not unknown)
            time.sleep(backoff.next())

    def _note(self, address: str, serving: bool | None, why: str, *, unreachable: bool) -> None:
        with self._changed:
            self._unreachable[address] = unreachable
            self._changed.notify_all()
            if serving is not self._serving[address]:
                del self._serving[address]
                followed = self._leader is not None and self._leader.address == address
                last = serving or (serving is None and followed)
                self._serving = {**self._serving, address: serving} if last else {address: serving, **self._serving}
            self._why[address] = why
            self._choose()

    def _doubt(self, leader: _Leader, error: grpc.RpcError) -> None:
        """A call to the leader failed. Prefer another one that says it leads. If it does not say so itself, it may have
        refused the call because it stands by: try another one that may lead."""
        with self._changed:
            if leader is self._leader and (self._serving[leader.address] or error.code() in _OF_NO_LEADER):
                self._serving = {leader.address: self._serving[leader.address], **self._serving}
                self._choose()

    def _choose(self) -> None:
        """Follow the one that began to serve last. If none says that it serves, try one that may: a coordinator that
        stands by refuses the call, and the next one is tried."""
        newest_first = [*reversed(self._serving.items())]
        leads, may_lead = ([one for one, serving in newest_first if serving is wanted] for wanted in (True, None))
        address = next(iter([*leads, *may_lead]), None)
        before = self._leader
        if self._closed or (before.address if before is not None else None) == address:
            return
        self._leader = None if address is None else _Leader(address, self._open)
        if before is not None:
            # in a thread of its own: it waits for calls whose own errors may need this lock
            threading.Thread(target=before.close, daemon=True).start()
        self._led = self._led or address is not None
        if address is None:
            _log.info("%s", log_fields({"event": "coordinator_lost"}))
        elif leads:
            _log.info("%s", log_fields({"event": "coordinator_found", "address": address}))
        self._changed.notify_all()

    def _require(self, leader: _Leader, metadata: Sequence[tuple[str, Any]] | None) -> None:
        """Raise UNAVAILABLE for an answer of a coordinator whose term is over."""
        term = next((int(value) for key, value in metadata or () if key == TERM), None)
        if term is None:
            return
        with self._changed:
            self._term = max(self._term, term)
            outdated = term < self._term
        if outdated:
            raise self._moved(leader)

    def _moved(self, leader: _Leader) -> _Unavailable:
        return _Unavailable(f"the coordinator at {leader.address} does not lead any more")


class _Stream:
    """A stream that ends as soon as its coordinator's term is over."""

    def __init__(self, stream: Any, require: Callable[[Any], None], doubt: Callable[[grpc.RpcError], None]) -> None:
        self._stream, self._require, self._doubt = stream, require, doubt

    def __iter__(self) -> Iterator[Any]:
        try:
            for message in self._stream:
                self._require(self._stream.initial_metadata())
                yield message
        except grpc.RpcError as error:
            self._doubt(error)
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
