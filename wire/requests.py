"""Decode requests of drivers and operators to the protocol's events. Raises MalformedError."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, TypeVar

from google.protobuf.message import Message

from onceward.protocol import events
from onceward.protocol.values import Claim, Committable, Participant
from onceward.wire.codec import By, decoder
from onceward.wire.documents import require_few_values
from onceward.wire.limits import MAX_BACK_WITHIN_S, MAX_LABEL, MAX_LISTED, MAX_PARTICIPANTS
from onceward.wire.malformed import (
    MalformedError,
    as_base,
    as_checkpoint,
    as_generation,
    as_microseconds,
    as_owner,
    as_participant,
    as_reason,
    as_token,
)
from onceward.wire.secret import fingerprint
from onceward.wire.v1 import operators_pb2 as operators
from onceward.wire.v1 import participants_pb2 as pb
from onceward.wire.values import (
    CLAIM,
    PARTICIPANT,
    committables_from_wire,
    phases_from_wire,
    slots_from_wire,
    snapshot_from_wire,
)

__all__ = [
    "acknowledge",
    "acknowledge_loss",
    "amend",
    "cancel_job",
    "close_job",
    "close_output",
    "decline",
    "delete_savepoint",
    "forget_job",
    "limit",
    "open_job",
    "permit_adoption",
    "permit_takeover",
    "renew",
    "request_checkpoint",
    "resolve_slots",
    "settle",
    "stop_job",
    "watch",
]

E = TypeVar("E")
M = TypeVar("M", bound=Message)

_LISTED = 20


def _driver(secret: str) -> str:
    """Return what identifies the driver with this secret. The secret itself goes no further."""
    return fingerprint(as_token(secret, "driver"))


def _participants(messages: Collection[pb.Participant]) -> tuple[Participant, ...]:
    if not 2 <= len(messages) <= MAX_PARTICIPANTS:
        raise MalformedError(f"participants: {len(messages)}, must be 2 to {MAX_PARTICIPANTS}")
    return tuple(map(PARTICIPANT.from_wire, messages))


def _more_claims(messages: Collection[pb.Claim]) -> tuple[Claim, ...]:
    if len(messages) >= MAX_PARTICIPANTS:
        raise MalformedError(f"more_claims: {len(messages)}, must be less than {MAX_PARTICIPANTS}")
    return tuple(map(CLAIM.from_wire, messages))


def _amended(messages: Collection[pb.Committable]) -> tuple[Committable, ...]:
    require_few_values(one.document.body for one in messages)
    return committables_from_wire(messages, keep_text=True)


def _back_within(microseconds: int) -> float:
    seconds = as_microseconds(microseconds, "back_within_us").total_seconds()
    if seconds > MAX_BACK_WITHIN_S:
        raise MalformedError(f"back_within_us: {microseconds} is more than {MAX_BACK_WITHIN_S} s")
    return seconds


def _label(name: str) -> str:
    if len(name) > MAX_LABEL or not name.isprintable():
        raise MalformedError(f"name: must be at most {MAX_LABEL} printable characters")
    return name


def _slots_or_all(slots: Collection[int]) -> frozenset[int]:
    return slots_from_wire(slots) if slots else frozenset()


def _call(event: type[E], message: type[M], *, unread: Sequence[str] = (), **others: By) -> Callable[[M, float], E]:
    return decoder(event, message, unread=unread, driver=By(from_wire=_driver), **others)


_REASON: Final = By(from_wire=as_reason)
_REQUIRED: Final = By(required=True)

open_job: Final = _call(
    events.OpenJob,
    pb.OpenJobRequest,
    participants=By(from_wire=_participants),
    settings=_REQUIRED,
    more_claims=By(from_wire=_more_claims),
    instead_of=By(from_wire=lambda number: as_owner(number, "instead_of")),
)
watch: Final = _call(events.Watch, pb.WatchRequest)
renew: Final = _call(events.Renew, pb.RenewRequest, unread=("troubles", "oldest", "progress", "machine"))
decline: Final = _call(events.Decline, pb.DeclineRequest)
settle: Final = _call(events.Settle, pb.SettleRequest)
amend: Final = _call(events.Amend, pb.AmendRequest, committables=By(from_wire=_amended))
close_job: Final = _call(events.CloseJob, pb.CloseJobRequest, back_within_s=By(from_wire=_back_within))

request_checkpoint: Final = decoder(
    events.RequestCheckpoint, operators.TriggerCheckpointRequest, name=By(from_wire=_label)
)
stop_job: Final = decoder(events.StopJob, operators.StopJobRequest)
cancel_job: Final = decoder(events.CancelJob, operators.CancelJobRequest)
permit_takeover: Final = decoder(events.PermitTakeover, operators.PermitTakeoverRequest, reason=_REASON)
permit_adoption: Final = decoder(
    events.PermitAdoption, operators.PermitAdoptionRequest, claim=_REQUIRED, reason=_REASON
)
delete_savepoint: Final = decoder(events.ReleaseSavepoint, operators.DeleteSavepointRequest)
resolve_slots: Final = decoder(events.Resolve, operators.ResolveSlotsRequest, reason=_REASON)
acknowledge_loss: Final = decoder(
    events.AcknowledgeLoss, operators.AcknowledgeLossRequest, slots=By(from_wire=_slots_or_all), reason=_REASON
)
close_output: Final = decoder(events.CloseOutput, operators.CloseOutputRequest, reason=_REASON)
forget_job: Final = decoder(events.ForgetJob, operators.ForgetJobRequest, reason=_REASON)


def acknowledge(request: pb.AcknowledgeRequest, now: float) -> list[events.Acknowledge]:
    """Return one event for each acknowledgement; if one cannot be decoded, none has an effect."""
    if not 1 <= len(request.acknowledgements) <= MAX_PARTICIPANTS:
        raise MalformedError(f"acknowledgements: {len(request.acknowledgements)}, must be 1 to {MAX_PARTICIPANTS}")
    if not all(one.HasField("snapshot") for one in request.acknowledgements):
        raise MalformedError("snapshot: missing")
    require_few_values(body for one in request.acknowledgements for body in _bodies(one.snapshot))
    good_for_s, driver = None, _driver(request.driver)
    if request.HasField("good_for_us"):
        good_for_s = as_microseconds(request.good_for_us, "good_for_us").total_seconds()
    phases = phases_from_wire(request.phases)
    return [
        events.Acknowledge(
            now=now,
            generation=as_generation(request.generation),
            checkpoint=as_checkpoint(request.checkpoint),
            participant=as_participant(one.participant),
            base=as_base(request.base),
            snapshot=snapshot_from_wire(one.snapshot, keep_text=True),
            good_for_s=good_for_s,
            driver=driver,
            phases=phases,
        )
        for one in request.acknowledgements
    ]


def _bodies(snapshot: pb.Snapshot) -> Iterator[str]:
    yield snapshot.positions.body
    yield snapshot.state.body
    yield snapshot.shared_body
    yield from (one.document.body for one in snapshot.committables)


def limit(number: int, otherwise: int = _LISTED) -> int:
    """Return the limit of a listing: 0 stands for ``otherwise``."""
    if not 0 <= number <= MAX_LISTED:
        raise MalformedError(f"limit: {number} is not within 1 and {MAX_LISTED}")
    return number or otherwise
