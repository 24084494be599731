"""Answers, grants and instructions as messages. Decoding raises MalformedError."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from onceward.protocol import answers
from onceward.protocol.requests import Request
from onceward.protocol.values import ParticipantName
from onceward.wire.codec import By, Codec
from onceward.wire.malformed import MalformedError, as_owner, as_participant
from onceward.wire.v1 import participants_pb2 as pb
from onceward.wire.values import slots_from_wire

__all__ = ["ANSWER", "GRANT", "answer_from_wire", "instruction_from_wire", "instruction_to_wire"]


def _lost_to_wire(lost: Mapping[ParticipantName, frozenset[int]]) -> list[pb.LostSlots]:
    return [pb.LostSlots(participant=name, slots=sorted(slots)) for name, slots in sorted(lost.items())]


def _lost_from_wire(messages: Iterable[pb.LostSlots]) -> dict[ParticipantName, frozenset[int]]:
    return {as_participant(one.participant): slots_from_wire(one.slots) for one in messages}


ANSWER: Final = Codec(answers.Answer, pb.Answer, without=("grant", "request"), generation=By(from_wire=as_owner))
"""Grant and request have fields of their own beside the answer."""
GRANT: Final = Codec(answers.Grant, pb.Grant, lost=By(to_wire=_lost_to_wire, from_wire=_lost_from_wire))
_INSTRUCTIONS: Final[dict[type[answers.Instruction], tuple[str, Codec[Any, Any]]]] = {
    answers.Trigger: ("trigger", Codec(answers.Trigger, pb.Trigger)),
    answers.Complete: ("complete", Codec(answers.Complete, pb.Complete)),
    answers.Replay: ("replay", Codec(answers.Replay, pb.Replay)),
    answers.Abort: ("abort", Codec(answers.Abort, pb.Abort)),
    answers.Stop: ("stop", Codec(answers.Stop, pb.Stop)),
    answers.Cancel: ("cancel", Codec(answers.Cancel, pb.Cancel)),
    answers.Fail: ("fail", Codec(answers.Fail, pb.Fail)),
    answers.Halt: ("halt", Codec(answers.Halt, pb.Halt)),
}
_FROM_WIRE: Final = {name: codec.from_wire for name, codec in _INSTRUCTIONS.values()}


def answer_from_wire(
    message: pb.Answer, *, grant: answers.Grant | None = None, request: Request | None = None
) -> answers.Answer:
    answer = ANSWER.from_wire(message)
    return replace(answer, grant=grant, request=request) if grant is not None or request is not None else answer


def instruction_to_wire(instruction: answers.Instruction) -> pb.Instruction:
    name, codec = _INSTRUCTIONS[type(instruction)]
    return pb.Instruction(**{name: codec.to_wire(instruction)})


def instruction_from_wire(message: pb.Instruction) -> answers.Instruction:
    name = message.WhichOneof("content")
    if name is None:
        raise MalformedError("instruction: unknown; the coordinator speaks a newer protocol")
    instruction: answers.Instruction = _FROM_WIRE[name](getattr(message, name))
    return instruction
