"""The memory that requests may take in the coordinator is bounded over all connections, and released."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from onceward.client.calls import open_channel
from onceward.wire.limits import MAX_HELD_BYTES, MAX_MESSAGE_BYTES
from onceward.wire.v1 import participants_pb2 as pb
from tests.support.scripted import CoordinatorProcess
from tests.support.waiting import wait_until

_ACKNOWLEDGE = "/onceward.coordinator.v1.ParticipantService/Acknowledge"
_CALLS = 10
"""Twice as many as there is room for."""
_BYTES = 30 * 1024 * 1024


@pytest.fixture
def process(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    process = CoordinatorProcess(tmp_path / "c").wait_ready()
    with open_channel(process.address) as channel:
        method: Any = channel.unary_unary(_ACKNOWLEDGE, None, None)
        # it listens before it leads, and answers UNAVAILABLE until then
        wait_until(lambda: method.future(a_request(0), timeout=100).code() is grpc.StatusCode.NOT_FOUND, "it leads")
    yield process
    process.end()


def memory(process: CoordinatorProcess, what: str) -> int:
    """Return bytes: VmRSS is the current value, VmHWM the peak so far."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(what))


def at_once(call: Callable[[], object]) -> None:
    threads = [threading.Thread(target=call) for _ in range(_CALLS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)


def a_request(size: int = _BYTES - 200) -> bytes:
    """A request for a job that does not exist, with a document of some ``size`` bytes."""
    document = pb.Document(kind="test", version=1, body='{"a":"' + "x" * size + '"}')
    snapshot = pb.Snapshot(committables=[pb.Committable(slot=0, document=document)])
    acknowledgement = pb.Acknowledgement(participant="sink", snapshot=snapshot)
    request = pb.AcknowledgeRequest(
        job="absent", generation=1, checkpoint=1, driver="d", acknowledgements=[acknowledgement]
    )
    return request.SerializeToString()


def test_long_messages_are_refused_before_they_are_read(process: CoordinatorProcess) -> None:
    data, answers = a_request(), Counter[grpc.StatusCode]()
    before = memory(process, "VmRSS")

    def call() -> None:
        # not the project's client: it sends requests of any size
        with grpc.insecure_channel(process.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            method: Any = channel.unary_unary(_ACKNOWLEDGE, None, None)
            answers[method.future(data, timeout=100).code()] += 1

    at_once(call)
    assert answers == {grpc.StatusCode.RESOURCE_EXHAUSTED: _CALLS}
    assert memory(process, "VmHWM") - before < _BYTES, "not even one of them was held"


@pytest.mark.slow
def test_long_requests_at_once_are_held_within_a_bound_and_their_memory_comes_back(process: CoordinatorProcess) -> None:
    data, answers = a_request(), Counter[grpc.StatusCode]()
    before = memory(process, "VmRSS")

    def call() -> None:
        with open_channel(process.address) as channel:
            method: Any = channel.stream_unary(_ACKNOWLEDGE, None, None)
            pieces = (data[at : at + MAX_MESSAGE_BYTES] for at in range(0, len(data), MAX_MESSAGE_BYTES))
            answers[method.future(pieces, timeout=100).code()] += 1

    for _ in range(3):
        at_once(call)
    assert answers.keys() <= {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.NOT_FOUND}
    assert answers[grpc.StatusCode.NOT_FOUND], "as many as there is room for are read, and answered"
    assert answers.total() == 3 * _CALLS
    # the held bytes, a second copy while they are parsed, and the bytes in transit on connections
    assert memory(process, "VmHWM") - before < 3 * MAX_HELD_BYTES
    wait_until(lambda: memory(process, "VmRSS") - before < MAX_HELD_BYTES // 2, "the memory is given back")
