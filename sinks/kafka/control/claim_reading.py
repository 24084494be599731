"""Reads the claim on a job (docs/protocol.md#claim)."""

from onceward.connections.codes import ErrorCode
from onceward.protocol.values import Claim
from onceward.sinks.kafka.control.claim_offsets import failed, offset_of, parse
from onceward.sinks.kafka.control.clock import Clock, broker_backoff
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.fencing import PATIENCE_S
from onceward.sinks.kafka.control.hidden_claims import HiddenClaim
from onceward.sinks.kafka.control.outcomes import EndAnswer, classify
from onceward.sinks.kafka.identifiers import claim_name

__all__ = ["read_claim", "read_written_claim"]


def read_claim(control: ControlPlane, job: str, clock: Clock) -> Claim | None:
    """Return the claim on ``job``, or None if it was never claimed (or the claim expired).

    A claim that is being written at this moment may be missing: only a :class:`ClaimHolder` sees it.
    Raises ControlPlaneError if the brokers do not answer within 30 s, HaltedError if the claim is unreadable.
    """
    group = claim_name(job)
    deadline = clock.monotonic() + PATIENCE_S
    backoff = broker_backoff()
    while True:
        offset = offset_of(control, group, stable=False)
        if offset.code == ErrorCode.NONE:
            return parse(job, offset)
        if classify(offset.code) is EndAnswer.DOUBT or clock.monotonic() >= deadline:
            raise failed("read", job, offset.code)
        clock.wait(backoff.next())


def read_written_claim(control: ControlPlane, job: str, clock: Clock) -> Claim | None:
    """Like :func:`read_claim`, and None is proved: a first claim that is being written is waited for, and one whose
    marker the brokers have skipped is ended as they had decided. Also raises what :meth:`HiddenClaim.end` raises."""
    hidden, backoff = HiddenClaim(control, job, clock), broker_backoff()
    deadline = clock.monotonic() + PATIENCE_S
    while (claim := read_claim(control, job, clock)) is None:
        offset = offset_of(control, claim_name(job), stable=True)
        if offset.code == ErrorCode.NONE:
            return parse(job, offset)
        if clock.monotonic() >= deadline:
            raise failed("read", job, offset.code)
        if offset.code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
            hidden.end()
        clock.wait(backoff.next())
    return claim
