"""Decode requests of drivers and operators to the protocol's events. Raises MalformedError."""

from collections.abc import Iterator

from onceward.protocol import events
from onceward.protocol.values import RequestId
from onceward.wire.documents import require_few_values
from onceward.wire.enums import CHECKPOINT_KIND, CLOSE_REASON, RULING
from onceward.wire.limits import MAX_BACK_WITHIN_S, MAX_LABEL, MAX_LISTED, MAX_PARTICIPANTS
from onceward.wire.malformed import (
    MalformedError,
    as_base,
    as_checkpoint,
    as_count,
    as_generation,
    as_microseconds,
    as_owner,
    as_participant,
    as_reason,
    as_text,
    as_token,
)
from onceward.wire.secret import fingerprint
from onceward.wire.v1 import operators_pb2 as operators
from onceward.wire.v1 import participants_pb2 as pb
from onceward.wire.values import (
    CLAIM,
    PARTICIPANT,
    SETTLEMENT,
    committables_from_wire,
    phases_from_wire,
    settings_from_wire,
    slots_from_wire,
    snapshot_from_wire,
)

__all__ = [
    "acknowledge",
    "acknowledge_loss",
    "amend",
    "cancel_job",
    "close_job",
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

_LISTED = 20


def open_job(request: pb.OpenJobRequest, now: float) -> events.OpenJob:
    if not 2 <= len(request.participants) <= MAX_PARTICIPANTS:
        raise MalformedError(f"participants: {len(request.participants)}, must be 2 to {MAX_PARTICIPANTS}")
    if not request.HasField("settings"):
        raise MalformedError("settings: missing")
    return events.OpenJob(
        now=now,
        driver=_driver(request.driver),
        participants=tuple(PARTICIPANT.from_wire(participant) for participant in request.participants),
        settings=settings_from_wire(request.settings),
        claim=CLAIM.from_wire(request.claim) if request.HasField("claim") else None,
        instead_of=as_owner(request.instead_of, "instead_of"),
    )


def watch(request: pb.WatchRequest, now: float) -> events.Watch:
    return events.Watch(now=now, generation=as_generation(request.generation), driver=_driver(request.driver))


def renew(request: pb.RenewRequest, now: float) -> events.Renew:
    return events.Renew(
        now=now,
        generation=as_generation(request.generation),
        aborted=as_base(request.aborted, "aborted"),
        driver=_driver(request.driver),
    )


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
    yield snapshot.shared_body
    yield from (one.document.body for one in snapshot.committables)


def decline(request: pb.DeclineRequest, now: float) -> events.Decline:
    return events.Decline(
        now=now,
        generation=as_generation(request.generation),
        checkpoint=as_checkpoint(request.checkpoint),
        participant=as_participant(request.participant),
        reason=as_text(request.reason, "reason"),
        driver=_driver(request.driver),
        phases=phases_from_wire(request.phases),
    )


def settle(request: pb.SettleRequest, now: float) -> events.Settle:
    return events.Settle(
        now=now,
        generation=as_generation(request.generation),
        checkpoint=as_checkpoint(request.checkpoint),
        participant=as_participant(request.participant),
        settlements=tuple(SETTLEMENT.from_wire(settlement) for settlement in request.settlements),
        amendment=as_count(request.amendment, "amendment"),
        driver=_driver(request.driver),
    )


def amend(request: pb.AmendRequest, now: float) -> events.Amend:
    require_few_values(one.document.body for one in request.committables)
    return events.Amend(
        now=now,
        generation=as_generation(request.generation),
        checkpoint=as_checkpoint(request.checkpoint),
        participant=as_participant(request.participant),
        amendment=as_count(request.amendment, "amendment"),
        slots=slots_from_wire(request.slots),
        committables=committables_from_wire(request.committables, keep_text=True),
        driver=_driver(request.driver),
    )


def close_job(request: pb.CloseJobRequest, now: float) -> events.CloseJob:
    return events.CloseJob(
        now=now,
        generation=as_generation(request.generation),
        reason=CLOSE_REASON.from_wire(request.reason),
        detail=as_text(request.detail, "detail"),
        back_within_s=_back_within(request.back_within_us),
        completed=as_base(request.completed, "completed"),
        driver=_driver(request.driver),
    )


def _driver(secret: str) -> str:
    """Return what identifies the driver with this secret. The secret itself goes no further."""
    return fingerprint(as_token(secret, "driver"))


def _back_within(microseconds: int) -> float:
    seconds = as_microseconds(microseconds, "back_within_us").total_seconds()
    if seconds > MAX_BACK_WITHIN_S:
        raise MalformedError(f"back_within_us: {microseconds} is more than {MAX_BACK_WITHIN_S} s")
    return seconds


def request_checkpoint(request: operators.TriggerCheckpointRequest, now: float) -> events.RequestCheckpoint:
    if len(request.name) > MAX_LABEL or not request.name.isprintable():
        raise MalformedError(f"name: must be at most {MAX_LABEL} printable characters")
    return events.RequestCheckpoint(
        now=now,
        request=RequestId(as_token(request.request, "request")),
        kind=CHECKPOINT_KIND.from_wire(request.kind),
        name=request.name,
        stop=request.stop,
    )


def stop_job(_request: operators.StopJobRequest, now: float) -> events.StopJob:
    return events.StopJob(now=now)


def cancel_job(_request: operators.CancelJobRequest, now: float) -> events.CancelJob:
    return events.CancelJob(now=now)


def permit_takeover(request: operators.PermitTakeoverRequest, now: float) -> events.PermitTakeover:
    return events.PermitTakeover(
        now=now, generation=as_generation(request.generation), reason=as_reason(request.reason)
    )


def permit_adoption(request: operators.PermitAdoptionRequest, now: float) -> events.PermitAdoption:
    if not request.HasField("claim"):
        raise MalformedError("claim: missing")
    return events.PermitAdoption(now=now, claim=CLAIM.from_wire(request.claim), reason=as_reason(request.reason))


def delete_savepoint(request: operators.DeleteSavepointRequest, now: float) -> events.ReleaseSavepoint:
    return events.ReleaseSavepoint(now=now, checkpoint=as_checkpoint(request.checkpoint))


def resolve_slots(request: operators.ResolveSlotsRequest, now: float) -> events.Resolve:
    return events.Resolve(
        now=now,
        checkpoint=as_checkpoint(request.checkpoint),
        participant=as_participant(request.participant),
        slots=slots_from_wire(request.slots),
        ruling=RULING.from_wire(request.ruling),
        reason=as_reason(request.reason),
        evidence=tuple(SETTLEMENT.from_wire(settlement) for settlement in request.evidence),
        forced=request.forced,
    )


def acknowledge_loss(request: operators.AcknowledgeLossRequest, now: float) -> events.AcknowledgeLoss:
    return events.AcknowledgeLoss(
        now=now,
        checkpoint=as_checkpoint(request.checkpoint),
        participant=as_participant(request.participant),
        slots=slots_from_wire(request.slots) if request.slots else frozenset(),
        reason=as_reason(request.reason),
    )


def forget_job(request: operators.ForgetJobRequest, now: float) -> events.ForgetJob:
    return events.ForgetJob(now=now, reason=as_reason(request.reason))


def limit(number: int, otherwise: int = _LISTED) -> int:
    """Return the limit of a listing: 0 stands for ``otherwise``."""
    if not 0 <= number <= MAX_LISTED:
        raise MalformedError(f"limit: {number} is not within 1 and {MAX_LISTED}")
    return number or otherwise
