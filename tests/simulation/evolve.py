"""Facts to durable state, until the product has it."""

from dataclasses import replace
from typing import assert_never

from coordinator.protocol.facts import (
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointSettled,
    CheckpointTriggered,
    CheckpointUnchanged,
    Fact,
    GenerationGranted,
    JobClosed,
    JobHalted,
    JobStatus,
    StopRequested,
)
from coordinator.protocol.state import Durable
from coordinator.protocol.values import CompletedCheckpoint, Outcome


def evolve(durable: Durable, fact: Fact) -> Durable:
    match fact:
        case GenerationGranted():
            return replace(
                durable,
                status=JobStatus.RUNNING,
                status_detail="",
                generation=fact.generation,
                driver=fact.driver,
                participants=fact.participants,
                settings=fact.settings,
                last_id=fact.first_id,
                pending=None,
                stop_requested=False,
            )
        case CheckpointTriggered():
            return replace(durable, last_id=fact.checkpoint, pending=(fact.checkpoint, fact.base))
        case CheckpointCompleted():
            assert durable.pending is not None
            completed = CompletedCheckpoint(
                id=fact.checkpoint,
                base=durable.pending[1],
                generation=durable.generation,
                snapshots=fact.snapshots,
                settled=fact.settled,
            )
            return replace(durable, completed=completed, pending=None)
        case CheckpointAborted() | CheckpointUnchanged():
            return replace(durable, pending=None)
        case CheckpointSettled():
            assert durable.completed is not None
            return replace(durable, completed=replace(durable.completed, settled=True))
        case JobHalted():
            lost = any(one.outcome is Outcome.LOST for one in fact.settlements)
            return replace(durable, status=JobStatus.HALTED, status_detail=fact.reason, lost=durable.lost or lost)
        case StopRequested():
            return replace(durable, stop_requested=True)
        case JobClosed():
            return replace(durable, status=fact.status, status_detail=fact.detail, driver=None, pending=None)
        case _:
            assert_never(fact)
