"""Whose positions a skip moves, and the error where none can be moved. Kafka's installed plug-in moves them."""

import pytest

from onceward.coordinator.service.skipping import Skip, Where, skip_of
from onceward.protocol.values import (
    CheckpointId,
    CompletedCheckpoint,
    Document,
    Generation,
    ParticipantName,
    Snapshot,
)
from onceward.sources.kafka.positions import Cursor, KafkaPositions, TopicPosition

SINK = Snapshot(positions=None)


def positions(topic: str, *, epoch: int | None = None) -> Document:
    where = TopicPosition(id="t", partitions={0: Cursor(next=7, epoch=epoch)})
    return KafkaPositions(cluster="main", cluster_id="c", topics={topic: where}).to_document()


def completed(**snapshots: Snapshot) -> CompletedCheckpoint:
    return CompletedCheckpoint(
        id=CheckpointId(5),
        base=CheckpointId(4),
        generation=Generation(1),
        snapshots={ParticipantName(name): snapshot for name, snapshot in snapshots.items()},
    )


def test_the_source_that_reads_the_partition_is_moved() -> None:
    found = completed(
        bills=Snapshot(positions=positions("bills")), orders=Snapshot(positions=positions("orders")), out=SINK
    )
    moved = Cursor(next=50)
    document = KafkaPositions(
        cluster="main", cluster_id="c", topics={"orders": TopicPosition(id="t", partitions={0: moved})}
    ).to_document()
    assert skip_of(found, Where(topic="orders", partition=0, offset=50)) == Skip(
        base=CheckpointId(5), participant=ParticipantName("orders"), positions=document, skipped="orders-0 [7, 50)"
    )


def test_a_partition_left_in_place_moves_past_the_replaced_records() -> None:
    found = completed(orders=Snapshot(positions=positions("orders", epoch=3)))
    skip = skip_of(found, Where(topic="orders", partition=0, offset=7))
    assert isinstance(skip, Skip)
    assert skip.skipped == "what replaced records before offset 7 of orders-0"
    assert skip.positions == positions("orders")


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (completed(out=SINK), "checkpoint 5 has no positions"),
        (
            completed(files=Snapshot(positions=Document(kind="files", version=1, body={}))),
            "files: no plug-in can move positions of kind files",
        ),
        (
            completed(a=Snapshot(positions=positions("bills")), b=Snapshot(positions=positions("orders"))),
            "a: orders-0 has no position; there are positions of bills-0; "
            "b: orders-0 is read next from offset 7; 6 is not after it",
        ),
    ],
)
def test_every_source_reports_why_its_positions_cannot_move(found: CompletedCheckpoint, why: str) -> None:
    assert skip_of(found, Where(topic="orders", partition=0, offset=6)) == why
