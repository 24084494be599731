"""A client is freed with its last reference: its threads and connections do not wait for garbage collection."""

import gc
import itertools
import logging
import weakref
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from onceward.sinks.kafka.client import ArrowProducer
from onceward.sinks.kafka.client.messages import Partitioning
from onceward.sinks.kafka.errors import DeliveryError
from onceward.sinks.kafka.executor import delivery as module
from onceward.sinks.kafka.executor.delivery import Delivery
from tests.support.waiting import wait_until

RECORDS = pa.RecordBatch.from_pydict({"value": [b"a", b"b", b"c"]})


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Only reference counting frees objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def threads() -> set[str]:
    return {task.name for task in Path("/proc/self/task").iterdir()}


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("failing", [False, True])
def test_a_client_and_its_threads_go_with_the_delivery(failing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threads()
    its: set[str] = set()

    def deliver() -> "weakref.ref[ArrowProducer]":
        producer = ArrowProducer(
            {"bootstrap.servers": "127.0.0.1:1", "log_level": 0},
            topics=["out"],
            failed=print,
            logger=logging.getLogger(),
        )
        producer._places["out"] = itertools.repeat(Partitioning(1, 0))  # no broker reports the partitions
        delivery = Delivery(producer, [], topic="out", topics=("out",), limit_ms=60_000, failed=DeliveryError)
        delivery.produce(RECORDS)
        delivery.produce(RECORDS)
        its.update(threads() - before)
        assert its
        if failing:
            monkeypatch.setattr(module, "_STALLED_S", 0.1)
            monkeypatch.setattr(module, "_FLUSH_SLICE_S", 0.05)
            with pytest.raises(DeliveryError):
                delivery.flush()
        return weakref.ref(producer)

    assert deliver()() is None
    wait_until(lambda: not its & threads(), "its threads are gone")
