"""One log line per durable fact, so that a job's log shows its whole course. Never logs a document's content."""

import logging
from typing import assert_never

from onceward.coordinator.printable import logger
from onceward.coordinator.protocol.facts import (
    AdoptionPermitted,
    CheckpointAborted,
    CheckpointAmended,
    CheckpointCompleted,
    CheckpointRestored,
    CheckpointSettled,
    CheckpointTriggered,
    CheckpointUnchanged,
    EndingRequested,
    Fact,
    GenerationEnded,
    GenerationFailed,
    GenerationGranted,
    InputSkipped,
    JobForgotten,
    JobHalted,
    LossAcknowledged,
    LossRecorded,
    LossSkipped,
    RequestEnded,
    RequestQueued,
    RestoreRequested,
    SavepointReleased,
    SlotsResolved,
    StatusChanged,
    TakeoverPermitted,
)
from onceward.coordinator.protocol.values import CheckpointKind, Generation, JobName

__all__ = ["log_transition"]

_log = logger("onceward.coordinator")


def log_transition(job: JobName, generation: Generation, fact: Fact) -> None:
    """Log ``job=... generation=... checkpoint=... event=...`` and the details of the fact."""
    level, fields = _fields(fact)
    if _log.isEnabledFor(level):
        said = {"job": job, "generation": generation, **fields}
        _log.log(level, "%s", " ".join(f"{key}={_quoted(value)}" for key, value in said.items()))


def _fields(fact: Fact) -> tuple[int, dict[str, object]]:
    match fact:
        case GenerationGranted():
            names = ",".join(participant.name for participant in fact.participants)
            return logging.INFO, {"event": "granted", "participants": names}
        case GenerationFailed():
            return logging.WARNING, {"event": "failed", "reason": fact.reason}
        case GenerationEnded():
            return logging.INFO, {"event": "ended", "detail": fact.detail}
        case StatusChanged():
            return logging.INFO, {"event": "status", "status": fact.status.value, "because": fact.transition.value}
        case JobHalted():
            return logging.ERROR, {"checkpoint": fact.checkpoint, "event": "halted", "reason": fact.reason}
        case LossRecorded():
            slots = ",".join(str(settlement.slot) for settlement in fact.settlements)
            said = {"checkpoint": fact.checkpoint, "event": "lost", "participant": fact.participant}
            return logging.ERROR, {**said, "slots": slots}
        case LossSkipped():
            slots = ",".join(str(settlement.slot) for settlement in fact.settlements)
            said = {"checkpoint": fact.checkpoint, "event": "given_up", "participant": fact.participant}
            return logging.ERROR, {**said, "slots": slots, "reason": fact.reason}
        case LossAcknowledged():
            slots = ",".join(map(str, sorted(fact.slots)))
            said = {"checkpoint": fact.checkpoint, "event": "loss_acknowledged", "participant": fact.participant}
            return logging.WARNING, {**said, "slots": slots, "reason": fact.reason}
        case SlotsResolved():
            slots = ",".join(map(str, sorted(fact.slots)))
            said = {"checkpoint": fact.checkpoint, "event": "resolved", "participant": fact.participant, "slots": slots}
            return logging.WARNING, {**said, "ruling": fact.ruling.value, "forced": fact.forced, "reason": fact.reason}
        case JobForgotten():
            return logging.WARNING, {"event": "forgotten", "reason": fact.reason}
        case InputSkipped():
            said = {"checkpoint": fact.checkpoint, "event": "input_skipped", "participant": fact.participant}
            return logging.WARNING, {**said, "skipped": fact.skipped, "reason": fact.reason}
        case RequestQueued():
            request = fact.request
            return logging.INFO, {"event": "requested", "kind": request.kind.value, "stop": request.stop}
        case RequestEnded():
            state, detail = fact.request.state.value, fact.request.detail
            said = {"event": "request_ended", "state": state, "checkpoint": fact.request.checkpoint}
            return logging.INFO, {**said, "detail": detail} if detail else said
        case EndingRequested():
            return logging.INFO, {"event": "ending_requested", "ending": fact.ending.value}
        case RestoreRequested():
            said = {"event": "restore_requested", "source": fact.source.id}
            return logging.WARNING, {**said, "reason": fact.reason}
        case TakeoverPermitted():
            said = {"event": "takeover_permitted", "from": fact.generation}
            return logging.WARNING, {**said, "reason": fact.reason}
        case AdoptionPermitted():
            claim = fact.claim
            said = {"event": "adoption_permitted", "claim": f"{claim.store_id}:{claim.generation}:{claim.completed}"}
            return logging.WARNING, {**said, "reason": fact.reason}
        case (
            CheckpointTriggered()
            | CheckpointCompleted()
            | CheckpointAborted()
            | CheckpointUnchanged()
            | CheckpointSettled()
            | CheckpointAmended()
            | CheckpointRestored()
            | SavepointReleased()
        ):
            level, event, said = _of_checkpoint(fact)
            return level, {"checkpoint": fact.checkpoint, "event": event, **said}
        case _:
            assert_never(fact)


def _of_checkpoint(
    fact: CheckpointTriggered
    | CheckpointCompleted
    | CheckpointAborted
    | CheckpointUnchanged
    | CheckpointSettled
    | CheckpointAmended
    | CheckpointRestored
    | SavepointReleased,
) -> tuple[int, str, dict[str, object]]:
    match fact:
        case CheckpointTriggered():
            said: dict[str, object] = {"base": fact.base}
            if fact.kind is not CheckpointKind.CHECKPOINT:
                said["kind"] = fact.kind.value
            return logging.DEBUG, "triggered", said
        case CheckpointCompleted():
            parts = fact.snapshots.values()
            said = {
                "records": sum(part.records for part in parts if part.positions is None),
                "committables": sum(len(part.committables) for part in parts),
                "settled": fact.settled,
            }
            return logging.INFO, "completed", said
        case CheckpointAborted():
            return logging.WARNING, "aborted", {"reason": fact.reason.value, "detail": fact.detail}
        case CheckpointUnchanged():
            return logging.DEBUG, "unchanged", {}
        case CheckpointSettled():
            return logging.INFO, "settled", {}
        case CheckpointAmended():
            said = {"participant": fact.participant, "amendment": fact.amendment, "slots": len(fact.slots)}
            return logging.WARNING, "amended", said
        case CheckpointRestored():
            said = {"source": fact.source, "former": fact.former, "reason": fact.reason}
            return logging.WARNING, "restored", said
        case SavepointReleased():
            return logging.INFO, "released", {}
        case _:
            assert_never(fact)


def _quoted(value: object) -> str:
    text = str(value).replace("\n", " ")
    return f'"{text}"' if " " in text or not text else text
