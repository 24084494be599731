"""The slots and positions that the page of a checkpoint lists."""

from typing import Any

from onceward.protocol.values import (
    CheckpointState,
    Committable,
    Document,
    Outcome,
    ParticipantName,
    Settlement,
    Snapshot,
)
from onceward.sinks.delta.documents import DeltaCommittable
from onceward.sinks.postgres.documents import PostgresCommittable, StagedTable
from onceward.watch.web.slots import MAX_SLOTS, positions_of, slots_of
from onceward.wire.rows import CheckpointDescription, RecordedSettlement
from tests.unit.web.rows import checkpoint

SINK = ParticipantName("sink")


def described(
    state: CheckpointState, bodies: list[dict[str, Any]], *outcomes: tuple[int, Outcome]
) -> CheckpointDescription:
    documents = [Document(kind="other", version=1, body=body) for body in bodies]
    committables = tuple(Committable(slot=slot, document=one) for slot, one in enumerate(documents))
    settlements = tuple(
        RecordedSettlement(
            participant=SINK,
            settlement=Settlement(slot=slot, outcome=outcome, evidence=f"why {slot}"),
            recorded_at=None,
        )
        for slot, outcome in outcomes
    )
    return CheckpointDescription(
        summary=checkpoint(state=state), snapshots={SINK: Snapshot(committables=committables)}, settlements=settlements
    )


def test_kafka_s_documents_say_what_a_slot_holds() -> None:
    body = {
        "transactional_id": "a.b.1",
        "records": 7,
        "bytes": 900,
        "topics": {"out": {}},
        "inputs": [{"topic": "in", "partition": 0, "start": 10, "end": 20}],
    }
    said = {**body, "input_text": "in-0 offsets [10, 20)"}
    (found,) = slots_of(described(CheckpointState.COMPLETED, [said, body]))
    slot, earlier = found.slots
    assert (slot.transaction, slot.records, slot.bytes, slot.where) == ("a.b.1", 7, 900, "out")
    assert slot.input == "in-0 offsets [10, 20)"
    assert earlier.input == '[{"topic": "in", "partition": 0, "start": 10, "end": 20}]', "of an earlier release"


def test_documents_of_tables_say_what_a_slot_holds_and_where_it_goes() -> None:
    about: dict[str, Any] = {
        "job": "orders",
        "sink": "sink",
        "generation": 1,
        "checkpoint": 2,
        "columns": (),
        "bytes": 900,
        "inputs": (),
        "input_text": "in-0 offsets [10, 20)",
    }
    postgres = PostgresCommittable(
        **about,
        system="7/5",
        database="shop",
        timeline=1,
        store="s",
        token="t",
        after=None,
        target=("public", "orders"),
        tables=(StagedTable(name="a", slot=0, records=3), StagedTable(name="b", slot=1, records=4)),
    )
    delta = DeltaCommittable(
        **{**about, "columns": {}},
        slot=0,
        table_id="i",
        uri="/data/orders",
        transaction=5,
        files=(),
    )
    bodies = [dict(one.to_committable().document.body) for one in (postgres, delta)]
    (found,) = slots_of(described(CheckpointState.COMPLETED, bodies))
    assert [(one.where, one.records, one.bytes, one.input) for one in found.slots] == [
        ("public.orders of database shop", 7, 900, "in-0 offsets [10, 20)"),
        ("/data/orders", 0, 900, "in-0 offsets [10, 20)"),
    ]


def test_an_outcome_is_shown_only_where_it_is_known() -> None:
    bodies: list[dict[str, Any]] = [{}, {}]
    for state, first in ((CheckpointState.COMPLETED, None), (CheckpointState.SETTLED, Outcome.COMMITTED)):
        (found,) = slots_of(described(state, bodies, (1, Outcome.IN_DOUBT)))
        assert [(one.number, one.outcome) for one in found.slots] == [(1, Outcome.IN_DOUBT), (0, first)]


def test_many_slots_and_documents_of_any_form_are_bounded() -> None:
    strange: list[dict[str, Any]] = [
        {"inputs": 5, "topics": [1], "records": True, "bytes": "x"},
        {"inputs": [5, None, {"ranges": 3}, {"a": "b" * 999}]},
        {"input_text": ["x" * 999]},
    ]
    (found,) = slots_of(described(CheckpointState.COMPLETED, strange + [{}] * (MAX_SLOTS + 50), (240, Outcome.LOST)))
    assert (len(found.slots), found.more) == (MAX_SLOTS, 53)
    assert found.slots[0].number == 240, "what a person must know is shown in any case"
    assert found.slots[1].records is None
    assert {slot.input for slot in found.slots if not slot.input.startswith("[")} == {"", "5"}
    assert max(len(slot.input) for slot in found.slots) == 500


def test_positions_are_by_partition_and_others_are_left_to_the_json() -> None:
    body = {"topics": {"in": {"partitions": {"0": {"next": 5, "end": None}, "1": {"next": 7, "end": 9}}}}}
    assert [(one.topic, one.partition, one.next, one.end) for one in positions_of(body)] == [
        ("in", "0", 5, None),
        ("in", "1", 7, 9),
    ]
    for other in ({}, {"topics": 3}, {"topics": {"in": {"partitions": {"0": 5}}}}, {"query": "q", "batch": 3}):
        assert positions_of(other) == []
