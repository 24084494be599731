"""A job's document holds every part of its durable state that has no column."""

import json
import math
from dataclasses import fields, replace
from typing import Any

import pytest

from onceward.coordinator.store.codec import (
    document_of,
    document_to_text,
    durable_parts,
    snapshots_from_text,
    snapshots_to_text,
    state_from_text,
)
from onceward.protocol.durable import AbortedCheckpoint, Durable, Loss, Resolution, UndecidedCheckpoint
from onceward.protocol.facts import AbortReason
from onceward.protocol.requests import Ending, Request, RequestState, Ruling
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import (
    CheckpointId,
    CheckpointKind,
    Claim,
    Committable,
    Document,
    Generation,
    Outcome,
    ParticipantName,
    RequestId,
    Snapshot,
)
from tests.support.events import SINK, SOURCE
from tests.support.histories import REPLAYING
from tests.support.stored_jobs import JOB

COLUMNS = {
    *("job", "store_id", "status", "status_detail", "generation", "driver", "last_id", "completed", "restore"),
    *("unreadable", "record_damaged"),
}
"""Fields stored elsewhere, or determined when the store is read."""

EMPTY = Durable(job=JOB, store_id="s")
FULL = replace(
    EMPTY,
    holders={Generation(3): "d1", Generation(4): "d2"},
    participants=(SOURCE, replace(REPLAYING, place="Kafka topic out", branch=True)),
    gone=(replace(SINK, place="Kafka topic former", branch=False),),
    settings=CheckpointSettings(interval="7s", num_retained=5),
    finished=CheckpointId(6),
    pending=UndecidedCheckpoint(
        id=CheckpointId(9), base=CheckpointId(7), kind=CheckpointKind.SAVEPOINT, request=RequestId("r2")
    ),
    aborted=AbortedCheckpoint(id=CheckpointId(8), generation=Generation(4), reason=AbortReason.EXPIRED, detail="late"),
    failures=2,
    former_failures=3,
    failure="it broke",
    ending=Ending.CANCEL,
    requests=(
        Request(
            id=RequestId("r1"),
            kind=CheckpointKind.CHECKPOINT,
            state=RequestState.FAILED,
            checkpoint=CheckpointId(5),
            detail="declined",
        ),
        Request(
            id=RequestId("r2"),
            kind=CheckpointKind.SAVEPOINT,
            name="before-upgrade",
            stop=True,
            state=RequestState.RUNNING,
            checkpoint=CheckpointId(9),
        ),
    ),
    replaying={SINK.name: frozenset({1, 4})},
    lost=True,
    takeover=Generation(4),
    adoption=Claim(store_id="former", generation=Generation(9), completed=CheckpointId(41)),
    outcomes={SINK.name: {1: Outcome.LOST, 4: Outcome.COMMITTED}},
    resolution=Resolution(
        checkpoint=CheckpointId(7), participant=SINK.name, slots=frozenset({2, 3}), ruling=Ruling.GIVEN_UP
    ),
    losses=(Loss(checkpoint=CheckpointId(2), participant=SINK.name, slots=frozenset({0, 5})),),
)


def test_every_field_that_has_no_column_is_read_as_it_was_written() -> None:
    named = [field.name for field in fields(Durable) if field.name not in COLUMNS]
    for name in named:
        assert getattr(FULL, name) != getattr(EMPTY, name), f"{name} is put to the test"
    for durable in (EMPTY, FULL):
        assert durable_parts(document_of(durable)) == {name: getattr(durable, name) for name in named}


def test_what_an_older_program_has_written_is_read_without_places_and_branches() -> None:
    document = json.loads(document_of(FULL))
    del document["places"], document["branches"]
    found = durable_parts(json.dumps(document))
    assert found["participants"] == (SOURCE, REPLAYING)
    assert found["gone"] == (SINK,)


def test_snapshots_survive_a_round_trip_with_their_shared_parts() -> None:
    shared = {"epoch": 3, "topics": ["out"]}
    snapshots = {
        SOURCE.name: Snapshot(positions=document({"in-0": 7}), records=4, bytes=5, unchanged=True),
        SINK.name: Snapshot(
            committables=tuple(Committable(slot=slot, document=document({**shared, "id": slot})) for slot in (1, 4, 6)),
            records=6,
            bytes=7,
            state=document({"counted": 8}),
        ),
    }
    text = snapshots_to_text(snapshots)
    assert snapshots_from_text(text) == snapshots
    states = [state_from_text(text, name) for name in (SOURCE.name, SINK.name, ParticipantName("absent"))]
    assert states == [None, document({"counted": 8}), None]


def test_a_number_that_no_json_can_hold_is_never_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        document_to_text(document({"at": math.nan}))


def document(body: dict[str, Any]) -> Document:
    return Document(kind="test", version=2, body=body)
