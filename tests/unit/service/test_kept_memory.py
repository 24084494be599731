"""What a coordinator keeps of a checkpoint takes the memory of its text, from the wire and from the store."""

import gc
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from onceward.coordinator.service.documents import Checkers
from onceward.coordinator.store.codec import snapshots_from_text, snapshots_to_text
from onceward.protocol.values import Snapshot
from onceward.sinks.kafka.control.committables import KIND, KafkaCommittable, TopicRecords
from onceward.sinks.kafka.control.transactions import Transaction
from onceward.wire import requests
from onceward.wire.v1 import participants_pb2 as pb
from onceward.wire.values import snapshot_to_wire
from tests.support.scripted import SINK

SLOTS = 2_000
_OF_A_SLOT = 250
"""Bytes of the objects around its text: a coordinator with 200,000 slots needs them, too."""


def written() -> Snapshot:
    committables = tuple(
        KafkaCommittable(
            slot=slot,
            checkpoint=1,
            cluster_name="main",
            cluster_id="MkU3OEVBNTcwNTJENDM2Qk",
            transaction=Transaction(id=f"orders.sink.1.0011223344.{slot}", producer_id=slot, epoch=7, version=5),
            token=f"{slot:032x}",
            topics={"out": TopicRecords(records=25_000, partitions=(0, 1, 2, 3))},
            records=25_000,
            bytes=2_500_000,
            inputs=[{"topic": "orders", "partition": slot, "start": 1, "stop": 25_001}],
            pre_committed=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            timeout=timedelta(minutes=15),
        ).to_committable()
        for slot in range(SLOTS)
    )
    return Snapshot(committables=committables)


def request() -> pb.AcknowledgeRequest:
    one = pb.Acknowledgement(participant=SINK.name, snapshot=snapshot_to_wire(written()))
    return pb.AcknowledgeRequest(job="orders", generation=1, checkpoint=1, driver="d", acknowledgements=[one])


def kept_of(make: Callable[[], Snapshot]) -> int:
    """The bytes of memory that hang on what ``make`` returns."""
    make()  # what is imported and cached then is not of the snapshot
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        made = make()
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(made.committables) == SLOTS
    return after - before


@pytest.mark.parametrize("where", ["wire", "store"])
def test_a_kept_checkpoint_takes_the_memory_of_its_text(where: str) -> None:
    message = request()
    text = snapshots_to_text({SINK.name: written()})

    def from_wire() -> Snapshot:
        return requests.acknowledge(message, 0.0)[0].snapshot

    def from_store() -> Snapshot:
        return snapshots_from_text(text)[SINK.name]

    assert from_wire() == from_store() == written()
    assert kept_of(from_wire if where == "wire" else from_store) < message.ByteSize() + SLOTS * _OF_A_SLOT


def test_checkers_read_documents_and_leave_their_text() -> None:
    seen: list[type] = []
    checkers = Checkers({KIND: lambda found, base, author: seen.append(type(found.body))})
    snapshot = requests.acknowledge(request(), 0.0)[0].snapshot
    assert checkers._committables(snapshot.committables, None) is None  # type: ignore[arg-type]
    assert seen == [dict] * SLOTS
    assert type(snapshot.committables[0].document.body) is not dict
