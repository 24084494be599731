"""A job's document holds all of its durable state that has no column."""

from dataclasses import fields, replace

from coordinator.protocol.durable import AbortedCheckpoint, Durable, Loss, Resolution, UndecidedCheckpoint
from coordinator.protocol.facts import AbortReason
from coordinator.protocol.requests import Ending, Request, RequestState, Ruling
from coordinator.protocol.settings import CheckpointSettings
from coordinator.protocol.values import CheckpointId, CheckpointKind, Generation, Outcome, RequestId
from coordinator.store.codec import document_of, durable_parts
from tests.unit.protocol.histories import REPLAYING, SINK, SOURCE
from tests.unit.store.jobs import JOB

COLUMNS = {
    *("job", "store_id", "status", "status_detail", "generation", "driver", "last_id", "completed", "restore"),
    *("unreadable", "record_damaged"),
}
"""Kept elsewhere, or found out when the store is read."""

EMPTY = Durable(job=JOB, store_id="s")
FULL = replace(
    EMPTY,
    holders={Generation(3): "d1", Generation(4): "d2"},
    participants=(SOURCE, REPLAYING),
    settings=CheckpointSettings(interval="7s", num_retained=5),
    finished=CheckpointId(6),
    pending=UndecidedCheckpoint(
        id=CheckpointId(9), base=CheckpointId(7), kind=CheckpointKind.SAVEPOINT, request=RequestId("r2")
    ),
    aborted=AbortedCheckpoint(id=CheckpointId(8), generation=Generation(4), reason=AbortReason.EXPIRED, detail="late"),
    failures=2,
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
