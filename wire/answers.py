"""Answers, grants and instructions as messages. Decoding raises MalformedError."""

from datetime import timedelta
from typing import assert_never

from onceward.protocol import answers
from onceward.protocol.requests import Request
from onceward.wire.enums import ABORT_REASON, DECISION, VERDICT
from onceward.wire.malformed import (
    MalformedError,
    as_base,
    as_checkpoint,
    as_count,
    as_generation,
    as_owner,
    as_participant,
)
from onceward.wire.text import text_to_wire
from onceward.wire.v1 import participants_pb2 as pb
from onceward.wire.values import (
    completed_from_wire,
    completed_to_wire,
    participant_from_wire,
    participant_to_wire,
    slots_from_wire,
)

__all__ = [
    "answer_from_wire",
    "answer_to_wire",
    "grant_from_wire",
    "grant_to_wire",
    "instruction_from_wire",
    "instruction_to_wire",
]


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def _seconds(microseconds: int) -> float:
    return timedelta(microseconds=microseconds).total_seconds()


def answer_to_wire(answer: answers.Answer) -> pb.Answer:
    """Encode an answer without grant and request, which have their own fields."""
    return pb.Answer(
        verdict=VERDICT.to_wire(answer.verdict),  # type: ignore[arg-type]
        detail=text_to_wire(answer.detail),
        decision=DECISION.to_wire(answer.decision) if answer.decision is not None else None,  # type: ignore[arg-type]
        retry_after_us=_microseconds(answer.retry_after_s),
        may_return=answer.may_return,
        generation=answer.generation,
    )


def answer_from_wire(
    message: pb.Answer, *, grant: answers.Grant | None = None, request: Request | None = None
) -> answers.Answer:
    return answers.Answer(
        verdict=VERDICT.from_wire(message.verdict),
        detail=message.detail,
        decision=DECISION.from_wire(message.decision) if message.HasField("decision") else None,
        retry_after_s=_seconds(message.retry_after_us),
        may_return=message.may_return,
        generation=as_owner(message.generation),
        grant=grant,
        request=request,
    )


def grant_to_wire(grant: answers.Grant) -> pb.Grant:
    return pb.Grant(
        store_id=grant.store_id,
        generation=grant.generation,
        completed=completed_to_wire(grant.completed) if grant.completed is not None else None,
        former_participants=[participant_to_wire(participant) for participant in grant.former_participants],
        lease_us=_microseconds(grant.lease_s),
        lost=[pb.LostSlots(participant=name, slots=sorted(slots)) for name, slots in sorted(grant.lost.items())],
        new_run=grant.new_run,
    )


def grant_from_wire(message: pb.Grant) -> answers.Grant:
    return answers.Grant(
        store_id=message.store_id,
        generation=as_generation(message.generation),
        completed=completed_from_wire(message.completed) if message.HasField("completed") else None,
        former_participants=tuple(participant_from_wire(one) for one in message.former_participants),
        lease_s=_seconds(message.lease_us),
        lost={as_participant(one.participant): slots_from_wire(one.slots) for one in message.lost},
        new_run=message.new_run,
    )


def instruction_to_wire(instruction: answers.Instruction) -> pb.Instruction:
    match instruction:
        case answers.Trigger():
            trigger = pb.Trigger(checkpoint=instruction.checkpoint, base=instruction.base, at_once=instruction.at_once)
            return pb.Instruction(trigger=trigger)
        case answers.Complete():
            complete = pb.Complete(checkpoint=instruction.checkpoint, amendment=instruction.amendment)
            return pb.Instruction(complete=complete)
        case answers.Replay():
            replay = pb.Replay(
                checkpoint=instruction.checkpoint,
                participant=instruction.participant,
                slots=sorted(instruction.slots),
                amendment=instruction.amendment,
            )
            return pb.Instruction(replay=replay)
        case answers.Abort():
            abort = pb.Abort(
                checkpoint=instruction.checkpoint,
                base=instruction.base,
                reason=ABORT_REASON.to_wire(instruction.reason),  # type: ignore[arg-type]
                detail=text_to_wire(instruction.detail),
            )
            return pb.Instruction(abort=abort)
        case answers.Stop():
            return pb.Instruction(stop=pb.Stop())
        case answers.Cancel():
            return pb.Instruction(cancel=pb.Cancel())
        case answers.Fail():
            return pb.Instruction(fail=pb.Fail(reason=text_to_wire(instruction.reason)))
        case answers.Halt():
            return pb.Instruction(halt=pb.Halt(reason=text_to_wire(instruction.reason)))
        case _:
            assert_never(instruction)


def instruction_from_wire(message: pb.Instruction) -> answers.Instruction:
    match message.WhichOneof("content"):
        case "trigger":
            trigger = message.trigger
            return answers.Trigger(
                checkpoint=as_checkpoint(trigger.checkpoint), base=as_base(trigger.base), at_once=trigger.at_once
            )
        case "complete":
            complete = message.complete
            return answers.Complete(
                checkpoint=as_checkpoint(complete.checkpoint), amendment=as_count(complete.amendment, "amendment")
            )
        case "replay":
            return answers.Replay(
                checkpoint=as_checkpoint(message.replay.checkpoint),
                participant=as_participant(message.replay.participant),
                slots=slots_from_wire(message.replay.slots),
                amendment=as_count(message.replay.amendment, "amendment"),
            )
        case "abort":
            return answers.Abort(
                checkpoint=as_checkpoint(message.abort.checkpoint),
                base=as_base(message.abort.base, "base"),
                reason=ABORT_REASON.from_wire(message.abort.reason),
                detail=message.abort.detail,
            )
        case "stop":
            return answers.Stop()
        case "cancel":
            return answers.Cancel()
        case "fail":
            return answers.Fail(reason=message.fail.reason)
        case "halt":
            return answers.Halt(reason=message.halt.reason)
        case _:
            raise MalformedError("instruction: unknown; the coordinator speaks a newer protocol")
