"""Calls to an embedded coordinator from its own process end as those by its socket do."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from onceward.client.calls import open_channel
from onceward.client.pieces import in_pieces
from onceward.client.session import connect
from onceward.common.errors import CoordinatorLostError
from onceward.coordinator.service.direct import DirectChannel
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.protocol.values import JobName
from onceward.wire.limits import MAX_MESSAGE_BYTES
from onceward.wire.v1 import participants_pb2 as pb
from onceward.wire.v1.participants_pb2_grpc import ParticipantServiceStub
from tests.support.scripted import SETTINGS, SINK, SOURCE, ScriptedDriver

REFUSED: dict[str, Callable[[Any], object]] = {
    "malformed": lambda stub: stub.Renew(pb.RenewRequest(job="no job", generation=1), timeout=30),
    "an unknown job": lambda stub: stub.Renew(pb.RenewRequest(job="unknown", generation=1, driver="d"), timeout=30),
    "in several pieces": lambda stub: stub.OpenJob(
        pb.OpenJobRequest(job="orders", driver="d" * (2 * MAX_MESSAGE_BYTES)), timeout=30
    ),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_a_refusal_has_the_code_and_the_text_that_it_has_by_the_socket(
    coordinator: EmbeddedCoordinator, call: Callable[[Any], object]
) -> None:
    said = []
    for channel in (coordinator.channel(), open_channel(coordinator.address)):
        with pytest.raises(grpc.RpcError) as refused:
            call(ParticipantServiceStub(in_pieces(channel)))
        error: Any = refused.value
        said.append((error.code(), error.details()))
        channel.close()
    assert said[0] == said[1]
    assert said[0][0] in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)


def test_a_method_that_does_not_exist_is_unimplemented(coordinator: EmbeddedCoordinator) -> None:
    channel: Any = coordinator.channel()
    unknown = channel.unary_unary("/onceward.v1.ParticipantService/Guess", lambda _: b"", bytes)
    with pytest.raises(grpc.RpcError) as refused:
        unknown(None)
    error: Any = refused.value
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_closed_client_ends_its_stream_and_says_that_it_was_closed(coordinator: EmbeddedCoordinator) -> None:
    client = connect(coordinator.address, channel=coordinator.channel())
    driver = ScriptedDriver(client, JobName("orders"))
    driver.wait_committed(3)
    client.close()
    with pytest.raises(CoordinatorLostError, match="the client was closed"):
        driver.session.renew()
    with pytest.raises(CoordinatorLostError, match="the client was closed"):
        client.open_job(JobName("orders"), (SOURCE, SINK), SETTINGS, None, driver="d")


def test_a_coordinator_that_stops_ends_the_stream_and_is_reported_as_lost(coordinator: EmbeddedCoordinator) -> None:
    with connect(coordinator.address, patience="1s", channel=coordinator.channel()) as client:
        driver = ScriptedDriver(client, JobName("orders"))
        driver.wait_committed(1)
        coordinator.close()
        with pytest.raises(CoordinatorLostError, match="UNAVAILABLE: the coordinator has stopped"):
            driver.session.renew()
        assert isinstance(driver.errors.get(timeout=60), CoordinatorLostError), "the stream, or a call, has given up"


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever)
    running.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    running.join(60)
    loop.close()


def test_a_call_without_an_answer_ends_at_its_deadline_and_is_not_carried_on(loop: asyncio.AbstractEventLoop) -> None:
    cancelled = threading.Event()

    async def hang(_data: bytes, _context: object) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return b""

    handler: Any = SimpleNamespace(unary_unary=hang)
    call = DirectChannel(loop, lambda _details: handler).unary_unary("/a/b", lambda _: b"", bytes)
    with pytest.raises(grpc.RpcError) as refused:
        call(None, timeout=0.1)
    error: Any = refused.value
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert cancelled.wait(60)


def test_an_error_of_a_handler_has_an_unknown_outcome(loop: asyncio.AbstractEventLoop) -> None:
    async def fail(_data: bytes, _context: object) -> bytes:
        raise RuntimeError("broken")

    handler: Any = SimpleNamespace(unary_unary=fail)
    call = DirectChannel(loop, lambda _details: handler).unary_unary("/a/b", lambda _: b"", bytes)
    with pytest.raises(grpc.RpcError, match="RuntimeError") as refused:
        call(None, timeout=30)
    error: Any = refused.value
    assert error.code() is grpc.StatusCode.UNKNOWN
