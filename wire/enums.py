"""Closed enumerations on the wire: UNSPECIFIED and numbers of a newer schema are rejected, never guessed."""

from enum import StrEnum
from typing import Final, Generic, TypeVar

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from onceward.protocol.answers import Decision, Verdict
from onceward.protocol.events import CloseReason
from onceward.protocol.facts import AbortReason
from onceward.protocol.requests import Ending, RequestState, Ruling
from onceward.protocol.status import JobStatus
from onceward.protocol.values import CheckpointKind, CheckpointState, OnLost, Outcome, Role
from onceward.wire.malformed import MalformedError
from onceward.wire.rows import CoordinatorRole
from onceward.wire.v1 import operators_pb2 as operators
from onceward.wire.v1 import participants_pb2 as participants

__all__ = [
    "ABORT_REASON",
    "CHECKPOINT_KIND",
    "CHECKPOINT_STATE",
    "CLOSE_REASON",
    "COORDINATOR_ROLE",
    "DECISION",
    "ENDING",
    "JOB_STATUS",
    "ON_LOST",
    "OUTCOME",
    "REQUEST_STATE",
    "ROLE",
    "RULING",
    "VERDICT",
    "ClosedEnum",
]

E = TypeVar("E", bound=StrEnum)


class ClosedEnum(Generic[E]):
    """One enum of the protocol and its numbers on the wire; both must have the same members."""

    def __init__(self, enum: type[E], wire: object) -> None:
        assert isinstance(wire, EnumTypeWrapper)
        self.enum = enum
        self.field = str(wire.DESCRIPTOR.name)
        prefix = "".join(f"_{c}" if c.isupper() else c.upper() for c in self.field).lstrip("_") + "_"
        numbers = {name.removeprefix(prefix): number for name, number in wire.items() if number != 0}
        if numbers.keys() != {member.name for member in enum}:
            raise TypeError(f"{enum.__name__} and {self.field} on the wire differ: {sorted(numbers)}")
        self._to_wire = {member: numbers[member.name] for member in enum}
        self._from_wire = {number: member for member, number in self._to_wire.items()}

    def to_wire(self, member: E) -> int:
        return self._to_wire[member]

    def from_wire(self, number: int) -> E:
        """Decode a number. Raises MalformedError."""
        try:
            return self._from_wire[number]
        except KeyError:
            what = "is not specified" if number == 0 else f"has the unknown number {number}"
            raise MalformedError(f"{self.field}: {what}") from None


ROLE: Final = ClosedEnum(Role, participants.Role)
ON_LOST: Final = ClosedEnum(OnLost, participants.OnLost)
CHECKPOINT_KIND: Final = ClosedEnum(CheckpointKind, participants.CheckpointKind)
CHECKPOINT_STATE: Final = ClosedEnum(CheckpointState, operators.CheckpointState)
OUTCOME: Final = ClosedEnum(Outcome, participants.Outcome)
CLOSE_REASON: Final = ClosedEnum(CloseReason, participants.CloseReason)
VERDICT: Final = ClosedEnum(Verdict, participants.Verdict)
DECISION: Final = ClosedEnum(Decision, participants.Decision)
ABORT_REASON: Final = ClosedEnum(AbortReason, participants.AbortReason)
JOB_STATUS: Final = ClosedEnum(JobStatus, operators.JobStatus)
ENDING: Final = ClosedEnum(Ending, operators.Ending)
REQUEST_STATE: Final = ClosedEnum(RequestState, operators.RequestState)
RULING: Final = ClosedEnum(Ruling, operators.Ruling)
COORDINATOR_ROLE: Final = ClosedEnum(CoordinatorRole, operators.CoordinatorRole)
