"""Requests of drivers and people, decoded to the protocol's events. Raises MalformedError."""

from coordinator.protocol.events import (
    Acknowledge,
    CloseJob,
    Decline,
    OpenJob,
    Renew,
    Settle,
    StopJob,
    Watch,
)
from coordinator.v1 import operators_pb2 as operators
from coordinator.v1 import participants_pb2 as pb
from coordinator.wire.enums import CLOSE_REASON
from coordinator.wire.limits import MAX_PARTICIPANTS
from coordinator.wire.malformed import (
    MalformedError,
    as_base,
    as_checkpoint,
    as_generation,
    as_participant,
    as_text,
    as_token,
)
from coordinator.wire.values import (
    claim_from_wire,
    participant_from_wire,
    settings_from_wire,
    settlement_from_wire,
    snapshot_from_wire,
)

__all__ = ["acknowledge", "close_job", "decline", "open_job", "renew", "settle", "stop_job", "watch"]


def open_job(request: pb.OpenJobRequest, now: float) -> OpenJob:
    if not 2 <= len(request.participants) <= MAX_PARTICIPANTS:
        raise MalformedError(f"participants: {len(request.participants)}, must be 2 to {MAX_PARTICIPANTS}")
    if not request.HasField("settings"):
        raise MalformedError("settings: missing")
    return OpenJob(
        now=now,
        driver=as_token(request.driver, "driver"),
        participants=tuple(participant_from_wire(participant) for participant in request.participants),
        settings=settings_from_wire(request.settings),
        claim=claim_from_wire(request.claim) if request.HasField("claim") else None,
        takeover=request.takeover,
        adopt=request.adopt,
    )


def watch(request: pb.WatchRequest, now: float) -> Watch:
    return Watch(now=now, generation=as_generation(request.generation))


def renew(request: pb.RenewRequest, now: float) -> Renew:
    return Renew(now=now, generation=as_generation(request.generation))


def acknowledge(request: pb.AcknowledgeRequest, now: float) -> Acknowledge:
    if not request.HasField("snapshot"):
        raise MalformedError("snapshot: missing")
    return Acknowledge(
        now=now,
        generation=as_generation(request.generation),
        checkpoint=as_checkpoint(request.checkpoint),
        participant=as_participant(request.participant),
        base=as_base(request.base),
        snapshot=snapshot_from_wire(request.snapshot),
    )


def decline(request: pb.DeclineRequest, now: float) -> Decline:
    return Decline(
        now=now,
        generation=as_generation(request.generation),
        checkpoint=as_checkpoint(request.checkpoint),
        participant=as_participant(request.participant),
        reason=as_text(request.reason, "reason"),
    )


def settle(request: pb.SettleRequest, now: float) -> Settle:
    return Settle(
        now=now,
        generation=as_generation(request.generation),
        checkpoint=as_checkpoint(request.checkpoint),
        participant=as_participant(request.participant),
        settlements=tuple(settlement_from_wire(settlement) for settlement in request.settlements),
    )


def close_job(request: pb.CloseJobRequest, now: float) -> CloseJob:
    return CloseJob(
        now=now,
        generation=as_generation(request.generation),
        reason=CLOSE_REASON.from_wire(request.reason),
        detail=as_text(request.detail, "detail"),
    )


def stop_job(_request: operators.StopJobRequest, now: float) -> StopJob:
    return StopJob(now=now)
