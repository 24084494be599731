"""The channel to several coordinators, with real servers that say what a test wants."""

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, Self

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from onceward.client.following import following
from onceward.client.tls import renewing
from onceward.wire.lead import TERM
from tests.support.waiting import wait_until

_UNARY, _PIECES, _STREAM = "/test.Coordinator/Ask", "/test.Coordinator/AskInPieces", "/test.Coordinator/Watch"


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Says that it serves or not, and ends its streams with a status that a test gives."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._serving = False
        self._end: grpc.StatusCode | None = None

    def serve(self, *, serving: bool) -> None:
        with self._changed:
            self._serving = serving
            self._changed.notify_all()

    def end_with(self, code: grpc.StatusCode) -> None:
        """End all streams, also those to come."""
        with self._changed:
            self._end = code
            self._changed.notify_all()

    def Watch(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802 - gRPC's interface
        context.add_callback(self._wake)
        status, said = health_pb2.HealthCheckResponse, None
        while context.is_active():
            with self._changed:
                while self._end is None and said is self._serving and context.is_active():
                    self._changed.wait()
                end, said = self._end, self._serving
            if end is not None:
                context.abort(end, "no place")
            yield status(status=status.SERVING if said else status.NOT_SERVING)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Server:
    """Answers with its name and term. A context manager."""

    def __init__(self, name: str, term: int) -> None:
        self.name, self.term = name, term
        self.silent = False
        self.stuck = threading.Event()
        self.more = threading.Event()
        """Lets a stream write again."""
        self.health = Health()
        self._server = grpc.server(futures.ThreadPoolExecutor(16))
        handlers: dict[str, Any] = {
            "Ask": grpc.unary_unary_rpc_method_handler(lambda _request, context: self._answer(context)),
            "AskInPieces": grpc.stream_unary_rpc_method_handler(lambda _requests, context: self._answer(context)),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Coordinator", handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self.lead(leads=False)

    def lead(self, *, leads: bool) -> None:
        self.leads = leads
        self.health.serve(serving=leads)

    def _answer(self, context: Any) -> bytes:
        if self.silent:
            self.stuck.set()
            self.more.wait(60)
        if not self.leads:
            context.abort(grpc.StatusCode.UNAVAILABLE, "it stands by")
        context.set_trailing_metadata(((TERM, str(self.term)),))
        return self.name.encode()

    def _watch(self, _request: bytes, context: Any) -> Iterator[bytes]:
        context.send_initial_metadata(((TERM, str(self.term)),))
        yield self.name.encode()
        self.more.wait(60)
        yield b"late"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.more.set()
        self._server.stop(None)


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    with Server("first", 1) as first, Server("second", 2) as second:
        yield first, second


@pytest.fixture(params=["plain", "with files that may change"])
def channel(servers: tuple[Server, Server], request: pytest.FixtureRequest) -> Iterator[Any]:
    def open_one(address: str) -> grpc.Channel:
        if request.param == "plain":
            return grpc.insecure_channel(address)
        return renewing(lambda: grpc.insecure_channel(address), lambda: None)

    with following([server.address for server in servers], open_one) as channel:
        yield channel


def asks(channel: Any, method: str = _UNARY) -> str:
    """Ask until a coordinator answers."""
    answers: list[str] = []
    unanswered: list[grpc.StatusCode] = []

    def answered() -> bool:
        try:
            call: Callable[..., Any] = channel.unary_unary(method, None, None)
            answers.append(call(b"", timeout=60).decode())
        except grpc.RpcError as error:
            unanswered.append(error.code())
        return bool(answers)

    wait_until(answered, "a coordinator answers")
    assert set(unanswered) <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    return answers[0]


def refused(call: Callable[[], Any]) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as refused:
        call()
    return refused.value


def test_calls_go_to_the_one_that_leads_and_follow_the_lead(channel: Any, servers: tuple[Server, Server]) -> None:
    first, second = servers
    for leader, other in ((first, second), (second, first)):
        other.lead(leads=False)
        leader.lead(leads=True)
        leader.term = other.term + 1
        wait_until(lambda leader=leader: asks(channel) == leader.name, "the channel follows")  # type: ignore[misc]
        pieces: Any = channel.stream_unary(_PIECES, None, None)
        assert pieces(iter([b"a", b"b"]), timeout=60) == leader.name.encode()
        assert next(iter(channel.unary_stream(_STREAM, None, None)(b"", timeout=60))) == leader.name.encode()


def test_without_a_leader_the_error_says_what_each_one_does(channel: Any, servers: tuple[Server, Server]) -> None:
    first, second = servers
    reason = ""

    def known() -> bool:
        nonlocal reason
        error = refused(lambda: channel.unary_unary(_UNARY, None, None)(b"", timeout=60))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        reason = str(error.details())
        return "not asked" not in reason

    wait_until(known, "both were asked")
    assert reason == (f"none of the coordinators leads ({first.address}: it stands by; {second.address}: it stands by)")


@pytest.mark.parametrize("leads", [0, 1], ids=["the first leads", "the second leads"])
def test_a_leader_without_a_place_for_a_health_check_is_found_by_calls(
    channel: Any, servers: tuple[Server, Server], leads: int
) -> None:
    leader, other = servers[leads], servers[1 - leads]
    leader.lead(leads=True)
    for server in servers:
        server.health.end_with(grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert asks(channel) == leader.name
    other.term = leader.term + 1
    leader.lead(leads=False)
    other.lead(leads=True)
    assert asks(channel) == other.name


def test_a_leader_stays_when_it_has_no_place_for_a_health_check_any_more(
    channel: Any, servers: tuple[Server, Server]
) -> None:
    first, second = servers
    first.lead(leads=True)
    assert asks(channel) == "first"
    stream = iter(channel.unary_stream(_STREAM, None, None)(b"", timeout=60))
    assert next(stream) == b"first"
    for server in (second, first):
        server.health.end_with(grpc.StatusCode.RESOURCE_EXHAUSTED)
        wait_until(lambda server=server: "no place" in channel._why[server.address], "it is known")  # type: ignore[misc]
    assert asks(channel) == "first"
    first.more.set()
    assert next(stream) == b"late", "its channel is the same"


def test_a_call_at_a_silent_leader_ends_when_another_one_leads(channel: Any, servers: tuple[Server, Server]) -> None:
    first, second = servers
    first.lead(leads=True)
    assert asks(channel) == "first"
    first.silent = True
    with futures.ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(lambda: channel.unary_unary(_UNARY, None, None)(b"", timeout=600))
        assert first.stuck.wait(60)
        second.lead(leads=True)
        error = refused(lambda: stuck.result(60))
    assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert asks(channel) == "second"


def test_a_leader_whose_calls_fail_gives_way_to_another_one_that_says_it_leads(
    channel: Any, servers: tuple[Server, Server]
) -> None:
    """An old leader may still say so for a moment."""
    first, second = servers
    second.lead(leads=True)
    assert asks(channel) == "second"
    first.lead(leads=True)
    first.term = 3
    wait_until(lambda: asks(channel) == "first", "the one that began last")
    error = refused(lambda: channel.unary_unary("/test.Coordinator/Unknown", None, None)(b"", timeout=60))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    second.term = 3
    assert asks(channel) == "second"


def test_an_answer_of_an_older_term_is_not_believed(channel: Any, servers: tuple[Server, Server]) -> None:
    first, second = servers
    second.lead(leads=True)
    assert asks(channel) == "second"
    first.lead(leads=True)  # an old leader that does not know it yet
    error = None
    while error is None:
        try:
            answer = channel.unary_unary(_UNARY, None, None)(b"", timeout=60)
            assert answer == b"second"
        except grpc.RpcError as refusal:
            error = refusal if refusal.code() is grpc.StatusCode.UNAVAILABLE else None
    assert error.details() == f"the coordinator at {first.address} does not lead any more"


def test_a_stream_of_an_older_term_ends(channel: Any, servers: tuple[Server, Server]) -> None:
    """It was open before the other one led, and this side has not noticed the change of the leader yet."""
    first, second = servers
    first.lead(leads=True)
    assert asks(channel) == "first"
    stream = iter(channel.unary_stream(_STREAM, None, None)(b"", timeout=600))
    assert next(stream) == b"first"
    first.term = 2  # an answer that carries the term of the next leader
    assert asks(channel) == "first"
    first.more.set()
    assert refused(lambda: next(stream)).details() == f"the coordinator at {first.address} does not lead any more"
    assert second.term == 2


def test_a_closed_channel_takes_no_calls(channel: Any) -> None:
    channel.close()
    with pytest.raises(ValueError, match="closed"):
        channel.unary_unary(_UNARY, None, None)(b"", timeout=60)
