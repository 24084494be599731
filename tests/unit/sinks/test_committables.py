"""Committables as documents."""

import json
import re
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onceward.common.errors import HaltedError
from onceward.protocol.values import Author, Committable, Document
from onceward.sinks.kafka.control.committables import KafkaCommittable, TopicRecords
from onceward.sinks.kafka.control.transactions import Transaction
from onceward.sinks.kafka.documents import check_committable
from tests.support.documents import author

HANDLE = KafkaCommittable(
    slot=3,
    checkpoint=12,
    cluster_name="main",
    cluster_id="abc",
    transaction=Transaction(id="j.s.1.00112233.0", producer_id=2**40, epoch=32767, version=5),
    token="f00",
    topics={
        "out": TopicRecords(records=4, partitions=(0, 2), id="out's", count=3),
        "more": TopicRecords(records=1, partitions=(7,), id="more's", count=8),
    },
    records=5,
    bytes=99,
    inputs=[{"topic": "in", "partition": 1, "start": 5, "end": 9}],
    pre_committed=datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC),
    timeout=timedelta(minutes=15),
    began=datetime(2026, 1, 2, 3, 4, 1, 234000, tzinfo=UTC),
    replayable=True,
    input_text="in-1 offsets [5, 9)",
)

AUTHOR = author("j", "s", last=1)


def stored(handle: KafkaCommittable) -> KafkaCommittable:
    """Return the handle as a reader of the store gets it."""
    committable = handle.to_committable()
    body = json.loads(json.dumps(committable.document.body))
    return KafkaCommittable.of(replace(committable, document=replace(committable.document, body=body)))


@pytest.mark.parametrize("part", [KafkaCommittable, TopicRecords])
def test_stored_values_differ_from_the_defaults_of_missing_fields(part: Any) -> None:
    """Otherwise the tests in this file could not notice a lost field."""
    whole = HANDLE if part is KafkaCommittable else HANDLE.topics["out"]
    for field in fields(part):
        assert getattr(whole, field.name) not in (field.default, None, 0, "", ()), field.name


def test_a_committable_survives_json() -> None:
    assert stored(HANDLE) == HANDLE
    unknown = replace(HANDLE, began=None, replayable=False, inputs=[])
    assert stored(unknown) == unknown


def test_slots_of_a_shuffle_keep_their_common_inputs_as_one_list() -> None:
    document = HANDLE.to_committable().document
    both = [KafkaCommittable.of(Committable(slot=slot, document=document)) for slot in (0, 1)]
    assert both[0].inputs is both[1].inputs


@pytest.mark.parametrize(("kind", "version"), [("kafka-transaction", 2), ("kafka-transaction", 0), ("files", 1)])
def test_unknown_documents_are_refused_and_not_guessed_at(kind: str, version: int) -> None:
    document = replace(HANDLE.to_committable().document, kind=kind, version=version)
    with pytest.raises(HaltedError, match="neither committed nor aborted"):
        KafkaCommittable.of(Committable(slot=3, document=document))


OPTIONAL = {"began_ms", "replayable", "input_text"}


def test_a_document_of_an_earlier_release_is_read_and_is_never_replayed() -> None:
    document = HANDLE.to_committable().document
    body = {key: value for key, value in document.body.items() if key not in OPTIONAL}
    body["topics"] = {"out": {"records": 4, "partitions": [0, 2]}}
    earlier = KafkaCommittable.of(Committable(slot=3, document=replace(document, body=body)))
    topics = {"out": TopicRecords(records=4, partitions=(0, 2))}
    assert earlier == replace(HANDLE, began=None, replayable=False, input_text="", topics=topics)


@pytest.mark.parametrize(
    "damage",
    [
        {"inputs": "all"},
        {"inputs": [1]},
        {"inputs": {"topic": "in"}},
        {"epoch": "x"},
        {"topics": {"out": {"records": 4}}},
        {"began_ms": 10**30},
        {"cluster": {"name": "main"}},
        {"cluster": None},
    ],
    ids=repr,
)
def test_content_that_is_no_content_is_refused(damage: dict[str, Any]) -> None:
    document = HANDLE.to_committable().document
    with pytest.raises(HaltedError, match=r"The committable of slot 3 is a 'kafka-transaction' .*content is damaged"):
        KafkaCommittable.of(Committable(slot=3, document=replace(document, body={**document.body, **damage})))


@pytest.mark.parametrize("missing", sorted(HANDLE.to_committable().document.body.keys() - OPTIONAL))
def test_damaged_documents_are_refused(missing: str) -> None:
    body = {key: value for key, value in HANDLE.to_committable().document.body.items() if key != missing}
    with pytest.raises(HaltedError, match="damaged"):
        KafkaCommittable.of(Committable(slot=3, document=Document(kind="kafka-transaction", version=1, body=body)))


@pytest.mark.parametrize("lost", sorted(HANDLE.to_committable().document.body))
def test_the_coordinator_rejects_a_committable_that_cannot_be_ended(lost: str) -> None:
    document = HANDLE.to_committable().document
    check_committable(document, None, AUTHOR)
    less = replace(document, body={key: value for key, value in document.body.items() if key != lost})
    needed = {"cluster", "transactional_id", "producer_id", "epoch", "end_txn_version", "token", "records", "inputs"}
    if lost not in needed:
        check_committable(less, document, AUTHOR)
        return
    with pytest.raises(ValueError, match=f"lacks {lost}$"):
        check_committable(less, document, AUTHOR)


@pytest.mark.parametrize(
    ("named", "by"),
    [
        ("payments-service-7", AUTHOR),
        ("j.s.1.00112233", AUTHOR),
        ("j.s.1.00112233.0.0", AUTHOR),
        ("j-2.s.1.00112233.0", AUTHOR),
        ("j.t.1.00112233.0", AUTHOR),
        ("j.s.2.00112233.0", AUTHOR),
        ("j.s.1.00112233.0", author("j", "s", first=2, last=3)),
        ("j.s.4.00112233.0", author("j", "s", first=2, last=3)),
        (["j.s.1.00112233.0"], AUTHOR),
    ],
    ids=str,
)
def test_the_coordinator_rejects_a_committable_that_names_the_transaction_of_another(named: Any, by: Author) -> None:
    document = HANDLE.to_committable().document
    forged = replace(document, body={**document.body, "transactional_id": named})
    with pytest.raises(ValueError, match=re.escape(f"names transaction {str(named)!r}, which is none of {by}")):
        check_committable(forged, None, by)


@pytest.mark.parametrize("generation", [2, 3])
def test_what_is_read_again_may_be_of_any_generation_since_its_checkpoint(generation: int) -> None:
    """A later generation commits what an earlier one has written, and replaces what is lost by its own."""
    by = author("j", "s", first=2, last=3)
    handle = replace(HANDLE, transaction=replace(HANDLE.transaction, id=f"j.s.{generation}.00112233.0"))
    check_committable(handle.to_committable().document, None, by)
    assert KafkaCommittable.own(handle.to_committable(), by) == handle


def test_the_coordinator_names_all_that_a_committable_lacks_and_the_version_that_it_does_not_know() -> None:
    document = HANDLE.to_committable().document
    less = {key: value for key, value in document.body.items() if key not in ("token", "epoch")}
    with pytest.raises(ValueError, match=r"lacks epoch, token$"):
        check_committable(replace(document, body=less), None, AUTHOR)
    with pytest.raises(ValueError, match=r"version 2, .* only version 1"):
        check_committable(replace(document, version=2), None, AUTHOR)
