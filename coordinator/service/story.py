"""One log line per durable fact, so that a job's log reads as a story. Never a document's content."""

import logging
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
    StopRequested,
)
from coordinator.protocol.values import Generation, JobName

__all__ = ["tell"]

_log = logging.getLogger("onceward.coordinator")


def tell(job: JobName, generation: Generation, fact: Fact) -> None:
    """Log ``job=... generation=... checkpoint=... event=...`` and what else there is to say."""
    level, fields = _fields(fact)
    if _log.isEnabledFor(level):
        said = {"job": job, "generation": generation, **fields}
        _log.log(level, "%s", " ".join(f"{key}={_quoted(value)}" for key, value in said.items()))


def _fields(fact: Fact) -> tuple[int, dict[str, object]]:
    match fact:
        case GenerationGranted():
            names = ",".join(participant.name for participant in fact.participants)
            return logging.INFO, {"event": "granted", "participants": names}
        case CheckpointTriggered():
            return logging.DEBUG, {"checkpoint": fact.checkpoint, "event": "triggered", "base": fact.base}
        case CheckpointCompleted():
            parts = fact.snapshots.values()
            return logging.INFO, {
                "checkpoint": fact.checkpoint,
                "event": "completed",
                "records": sum(part.records for part in parts if part.positions is None),
                "committables": sum(len(part.committables) for part in parts),
                "settled": fact.settled,
            }
        case CheckpointAborted():
            said = {"checkpoint": fact.checkpoint, "event": "aborted", "reason": fact.reason.value}
            return logging.WARNING, {**said, "detail": fact.detail}
        case CheckpointUnchanged():
            return logging.DEBUG, {"checkpoint": fact.checkpoint, "event": "unchanged"}
        case CheckpointSettled():
            return logging.INFO, {"checkpoint": fact.checkpoint, "event": "settled"}
        case JobHalted():
            return logging.ERROR, {"checkpoint": fact.checkpoint, "event": "halted", "reason": fact.reason}
        case StopRequested():
            return logging.INFO, {"event": "stop_requested"}
        case JobClosed():
            return logging.INFO, {"event": "closed", "status": fact.status.value, "detail": fact.detail}
        case _:
            assert_never(fact)


def _quoted(value: object) -> str:
    text = str(value).replace("\n", " ")
    return f'"{text}"' if " " in text or not text else text
