"""One log line per durable fact, so that a job's log shows its whole course. Never logs a document's content.

What every checkpoint of a healthy job does is at DEBUG: a coordinator has hundreds of jobs.
"""

import logging
from typing import assert_never

from onceward.common.printable import log_fields, logger
from onceward.protocol import facts
from onceward.protocol.values import CheckpointKind, Generation, JobName

__all__ = ["log_transition"]

_log = logger("onceward.coordinator")


def log_transition(job: JobName, generation: Generation, fact: facts.Fact) -> None:
    """Log ``job=... generation=... checkpoint=... event=...`` and the details of the fact."""
    level, fields = _fields(fact)
    if _log.isEnabledFor(level):
        said = {"job": job, "generation": generation, **fields}
        _log.log(level, "%s", log_fields(said))


def _fields(fact: facts.Fact) -> tuple[int, dict[str, object]]:
    match fact:
        case facts.GenerationGranted():
            names = ",".join(participant.name for participant in fact.participants)
            return logging.INFO, {"event": "granted", "participants": names}
        case facts.GenerationFailed():
            return logging.WARNING, {"event": "failed", "reason": fact.reason}
        case facts.GenerationEnded():
            return logging.INFO, {"event": "ended", "detail": fact.detail}
        case facts.StatusChanged():
            return logging.INFO, {"event": "status", "status": fact.status.value, "because": fact.transition.value}
        case facts.JobHalted():
            return logging.ERROR, {"checkpoint": fact.checkpoint, "event": "halted", "reason": fact.reason}
        case facts.LossRecorded():
            slots = ",".join(str(settlement.slot) for settlement in fact.settlements)
            said = {"checkpoint": fact.checkpoint, "event": "lost", "participant": fact.participant}
            return logging.ERROR, {**said, "slots": slots}
        case facts.LossSkipped():
            slots = ",".join(str(settlement.slot) for settlement in fact.settlements)
            said = {"checkpoint": fact.checkpoint, "event": "given_up", "participant": fact.participant}
            return logging.ERROR, {**said, "slots": slots, "reason": fact.reason}
        case facts.LossAcknowledged():
            slots = ",".join(map(str, sorted(fact.slots)))
            said = {"checkpoint": fact.checkpoint, "event": "loss_acknowledged", "participant": fact.participant}
            return logging.WARNING, {**said, "slots": slots, "reason": fact.reason}
        case facts.SlotsResolved():
            slots = ",".join(map(str, sorted(fact.slots)))
            said = {"checkpoint": fact.checkpoint, "event": "resolved", "participant": fact.participant, "slots": slots}
            return logging.WARNING, {**said, "ruling": fact.ruling.value, "forced": fact.forced, "reason": fact.reason}
        case facts.JobForgotten():
            return logging.WARNING, {"event": "forgotten", "reason": fact.reason}
        case facts.InputSkipped():
            said = {"checkpoint": fact.checkpoint, "event": "input_skipped", "participant": fact.participant}
            return logging.WARNING, {**said, "skipped": fact.skipped, "reason": fact.reason}
        case facts.RequestQueued():
            request = fact.request
            return logging.INFO, {"event": "requested", "kind": request.kind.value, "stop": request.stop}
        case facts.RequestEnded():
            state, detail = fact.request.state.value, fact.request.detail
            said = {"event": "request_ended", "state": state, "checkpoint": fact.request.checkpoint}
            return logging.INFO, {**said, "detail": detail} if detail else said
        case facts.EndingRequested():
            return logging.INFO, {"event": "ending_requested", "ending": fact.ending.value}
        case facts.RestoreRequested():
            said = {"event": "restore_requested", "source": fact.source.id}
            return logging.WARNING, {**said, "reason": fact.reason}
        case facts.TakeoverPermitted():
            said = {"event": "takeover_permitted", "from": fact.generation}
            return logging.WARNING, {**said, "reason": fact.reason}
        case facts.OutputClosed():
            return logging.INFO, {"event": "output_closed", "participant": fact.participant, "reason": fact.reason}
        case facts.AdoptionPermitted():
            claim = fact.claim
            said = {"event": "adoption_permitted", "claim": f"{claim.store_id}:{claim.generation}:{claim.completed}"}
            return logging.WARNING, {**said, "reason": fact.reason}
        case (
            facts.CheckpointTriggered()
            | facts.CheckpointCompleted()
            | facts.CheckpointAborted()
            | facts.CheckpointUnchanged()
            | facts.CheckpointSettled()
            | facts.CheckpointAmended()
            | facts.CheckpointRestored()
            | facts.SavepointReleased()
        ):
            level, event, said = _of_checkpoint(fact)
            return level, {"checkpoint": fact.checkpoint, "event": event, **said}
        case _:
            assert_never(fact)


def _of_checkpoint(
    fact: facts.CheckpointTriggered
    | facts.CheckpointCompleted
    | facts.CheckpointAborted
    | facts.CheckpointUnchanged
    | facts.CheckpointSettled
    | facts.CheckpointAmended
    | facts.CheckpointRestored
    | facts.SavepointReleased,
) -> tuple[int, str, dict[str, object]]:
    match fact:
        case facts.CheckpointTriggered():
            said: dict[str, object] = {"base": fact.base}
            if fact.kind is not CheckpointKind.CHECKPOINT:
                said["kind"] = fact.kind.value
            return logging.DEBUG, "triggered", said
        case facts.CheckpointCompleted():
            parts = fact.snapshots.values()
            said = {
                "records": sum(part.records for part in parts if part.positions is None),
                "committables": sum(len(part.committables) for part in parts),
                "settled": fact.settled,
            }
            return logging.DEBUG, "completed", said
        case facts.CheckpointAborted():
            return logging.WARNING, "aborted", {"reason": fact.reason.value, "detail": fact.detail}
        case facts.CheckpointUnchanged():
            return logging.DEBUG, "unchanged", {}
        case facts.CheckpointSettled():
            return logging.DEBUG, "settled", {}
        case facts.CheckpointAmended():
            said = {"participant": fact.participant, "amendment": fact.amendment, "slots": len(fact.slots)}
            return logging.WARNING, "amended", said
        case facts.CheckpointRestored():
            said = {"source": fact.source, "former": fact.former, "reason": fact.reason}
            return logging.WARNING, "restored", said
        case facts.SavepointReleased():
            return logging.INFO, "released", {}
        case _:
            assert_never(fact)
