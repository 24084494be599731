"""Positions and committables as a job of the Kafka source and sink makes them."""

import secrets
from datetime import UTC, datetime, timedelta

from onceward.protocol.settings import CheckpointSettings, Duration
from onceward.protocol.values import (
    JobName,
    Outcome,
    Participant,
    ParticipantName,
    Role,
    Settlement,
    Snapshot,
)
from onceward.sinks.kafka.control.committables import KafkaCommittable, TopicRecords
from onceward.sinks.kafka.control.transactions import Transaction
from onceward.sources.kafka.positions import Cursor, KafkaPositions, TopicPosition

__all__ = ["PARTICIPANTS", "SINK", "SOURCE", "members", "read", "settings", "settlements", "written"]

SOURCE = ParticipantName("source")
SINK = ParticipantName("sink")
PARTICIPANTS = (
    Participant(name=SOURCE, role=Role.SOURCE, kind="kafka"),
    Participant(name=SINK, role=Role.SINK, kind="kafka"),
)


def members(sinks: int) -> tuple[Participant, ...]:
    """Return one source and ``sinks`` sinks."""
    more = (ParticipantName(f"sink-{number}") for number in range(2, sinks + 1))
    return (*PARTICIPANTS, *(Participant(name=name, role=Role.SINK, kind="kafka") for name in more))


_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
_TOPIC_ID = "w8aJ1sYwQdyGmJj4bXhA5g"
_PARTITIONS = 4
_RECORDS = 1_000
"""Of one slot in one checkpoint, of 100 bytes."""


def settings(interval: Duration | None, lease: Duration = "10s") -> CheckpointSettings:
    """The defaults but for these."""
    return CheckpointSettings(interval=interval, lease=lease)


def read(checkpoint: int) -> Snapshot:
    """What the source says: four partitions that moved on since the checkpoint before."""
    cursors = {number: Cursor(next=checkpoint * _RECORDS) for number in range(_PARTITIONS)}
    positions = KafkaPositions(
        cluster="main", cluster_id=_CLUSTER_ID, topics={"orders": TopicPosition(id=_TOPIC_ID, partitions=cursors)}
    )
    records = _PARTITIONS * _RECORDS
    return Snapshot(positions=positions.to_document(), records=records, bytes=100 * records)


def written(job: JobName, generation: int, checkpoint: int, slots: int, sink: ParticipantName = SINK) -> Snapshot:
    """What a sink says: one committable for each of ``slots``."""
    worker = f"{job}.{sink}.{generation}.{secrets.token_hex(4)}"
    committables = tuple(
        KafkaCommittable(
            slot=slot,
            checkpoint=checkpoint,
            cluster_name="main",
            cluster_id=_CLUSTER_ID,
            transaction=Transaction(id=f"{worker}.{slot}", producer_id=40_000 + slot, epoch=7, version=5),
            token=secrets.token_hex(16),
            topics={"orders-clean": TopicRecords(records=_RECORDS, partitions=tuple(range(_PARTITIONS)))},
            records=_RECORDS,
            bytes=100 * _RECORDS,
            inputs=[
                {
                    "topic": "orders",
                    "partition": slot % _PARTITIONS,
                    "start": (checkpoint - 1) * _RECORDS,
                    "stop": checkpoint * _RECORDS,
                }
            ],
            pre_committed=datetime.now(UTC),
            timeout=timedelta(minutes=15),
        ).to_committable()
        for slot in range(slots)
    )
    return Snapshot(committables=committables, records=slots * _RECORDS, bytes=100 * slots * _RECORDS)


def settlements(snapshot: Snapshot) -> list[Settlement]:
    """Everything is committed, with the evidence that the committer gives."""
    return [
        Settlement(slot=one.slot, outcome=Outcome.COMMITTED, evidence="EndTxn version 5 answered NONE (0)")
        for one in snapshot.committables
    ]
