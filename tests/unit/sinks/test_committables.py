"""Committables as documents."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from coordinator.errors import HaltedError
from coordinator.protocol.values import Committable, Document
from sinks.kafka.committables import KafkaCommittable, TopicRecords
from sinks.kafka.transactions import Transaction

HANDLE = KafkaCommittable(
    slot=3,
    checkpoint=12,
    cluster_name="main",
    cluster_id="abc",
    transaction=Transaction(id="j.s.1.00112233.0", producer_id=2**40, epoch=32767, version=5),
    token="f00",
    topics={"out": TopicRecords(records=4, partitions=(0, 2))},
    records=4,
    bytes=99,
    inputs=[{"topic": "in", "partition": 1, "start": 5, "end": 9}],
    pre_committed=datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC),
    timeout=timedelta(minutes=15),
)


def test_a_committable_survives_json() -> None:
    document = HANDLE.to_committable().document
    body = json.loads(json.dumps(document.body))
    assert KafkaCommittable.of(Committable(slot=3, document=replace(document, body=body))) == HANDLE


@pytest.mark.parametrize(("kind", "version"), [("kafka-transaction", 2), ("kafka-transaction", 0), ("files", 1)])
def test_unknown_documents_are_refused_and_not_guessed_at(kind: str, version: int) -> None:
    document = replace(HANDLE.to_committable().document, kind=kind, version=version)
    with pytest.raises(HaltedError, match="neither committed nor aborted"):
        KafkaCommittable.of(Committable(slot=3, document=document))


OPTIONAL = {"began_ms", "replayable"}


def test_a_document_of_an_earlier_release_is_read_and_is_never_replayed() -> None:
    document = replace(HANDLE, replayable=True).to_committable().document
    body = {key: value for key, value in document.body.items() if key not in OPTIONAL}
    assert not KafkaCommittable.of(Committable(slot=3, document=replace(document, body=body))).replayable


@pytest.mark.parametrize("missing", sorted(HANDLE.to_committable().document.body.keys() - OPTIONAL))
def test_damaged_documents_are_refused(missing: str) -> None:
    body = {key: value for key, value in HANDLE.to_committable().document.body.items() if key != missing}
    with pytest.raises(HaltedError, match="damaged"):
        KafkaCommittable.of(Committable(slot=3, document=Document(kind="kafka-transaction", version=1, body=body)))
