"""A driver's session with its coordinator: connect, open the job, watch, answer, settle, leave. Synchronous.

>>> client = connect("localhost:7878")
>>> session = client.open_job(job, participants, settings, claim, driver=token)
>>> session.start_watch(deliver)
"""

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Self, TypeVar

import grpc

from onceward.client.calls import Caller, generation_over, open_channel
from onceward.client.pieces import in_pieces
from onceward.client.renewing import RenewThread
from onceward.client.tls import CoordinatorTls
from onceward.client.watching import WatchThread
from onceward.common.errors import FencedError, HaltedError, JobBusyError, OncewardError, RefusedError
from onceward.common.links import Links
from onceward.common.printable import log_fields, logger
from onceward.protocol.answers import Answer, Grant, Instruction, Verdict
from onceward.protocol.committing import Age
from onceward.protocol.events import CloseReason
from onceward.protocol.phases import Phases
from onceward.protocol.read_progress import ReadProgress
from onceward.protocol.settings import CheckpointSettings, Duration, as_duration
from onceward.protocol.values import (
    NO_CHECKPOINT,
    CheckpointId,
    Claim,
    Committable,
    Generation,
    JobName,
    Participant,
    ParticipantName,
    Settlement,
    Snapshot,
)
from onceward.wire.answers import GRANT, answer_from_wire
from onceward.wire.channel import KeepAlive
from onceward.wire.enums import CLOSE_REASON
from onceward.wire.limits import MAX_TROUBLES
from onceward.wire.secret import fingerprint
from onceward.wire.text import text_to_wire
from onceward.wire.v1 import participants_pb2 as pb
from onceward.wire.v1.participants_pb2_grpc import ParticipantServiceStub
from onceward.wire.values import (
    AGE,
    CLAIM,
    PARTICIPANT,
    SETTLEMENT,
    TROUBLE,
    committable_to_wire,
    phases_to_wire,
    progress_to_wire,
    settings_to_wire,
    snapshot_to_wire,
)

__all__ = ["CoordinatorClient", "Session", "connect"]

_log = logger("onceward.client")

T = TypeVar("T")

_LONGEST_POLL_S = 0.5
_ABANDON_PATIENCE_S = 2.0


def connect(
    address: str,
    *,
    patience: Duration = "60s",
    broken: Callable[[], OncewardError | None] = lambda: None,
    keep_alive: KeepAlive | None = None,
    links: Links | None = None,
    tls: CoordinatorTls | None = None,
    token: str | None = None,
    channel: grpc.Channel | None = None,
) -> "CoordinatorClient":
    """Return a client of the coordinator at ``HOST:PORT``, ``[IPV6]:PORT`` or ``unix:PATH``. Connects on first use.

    :param patience: how long to retry an unreachable coordinator before it counts as lost.
    :param broken: for a coordinator in this process, ``lambda: embedded.failed``: do not wait for a broken store.
    :param links: records that the coordinator does not answer.
    :param tls: for a coordinator with TLS. A socket (``unix:``) never uses it.
    :param token: ``env:NAME`` or ``file:PATH``, for a coordinator that knows its peers by tokens.
    :param channel: that of a coordinator in this process, instead of a connection to ``address``.
    """
    seconds = as_duration(patience).total_seconds()
    if channel is None:
        channel = open_channel(address, keep_alive, tls, token)
    return CoordinatorClient(Caller(channel, address, patience_s=seconds, broken=broken, links=links, tls=tls))


class CoordinatorClient:
    """One connection. Thread-safe."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._stub = ParticipantServiceStub(in_pieces(caller.channel))

    def open_job(
        self,
        job: JobName,
        participants: Sequence[Participant],
        settings: CheckpointSettings,
        claim: Claim | None,
        *more_claims: Claim,
        driver: str,
        takeover: bool = False,
        wait: Duration | None = None,
        on_error: Callable[[OncewardError], None] = lambda _error: None,
        on_wait: Callable[[str], None] | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> "Session":
        """Request the next generation; wait while another driver is alive or has just vanished.

        :param claim: the newest one that the systems of the job's sinks show; ``more_claims``: the others there.
        :param driver: the secret of the generation: a random token of this attempt, never shown or stored.
        :param takeover: replace a driver that seems alive: the caller knows that it is gone. The call names that
            driver's generation, so a late call fences no other.
        :param wait: how long to wait for another driver; its lease and a bit more by default.
        :param on_error: called from a background thread when the session is over (see :class:`Session`).
        :param on_wait: called once with the reason for waiting; logged by default.
        :param stopping: when true, ends the wait with JobBusyError.
        :raises HaltedError: a person must decide first.
        :raises JobBusyError: another driver stays alive.
        :raises RefusedError: the claim names another store, a participant is missing.
        :raises CoordinatorLostError: the coordinator cannot be reached.
        """
        request = pb.OpenJobRequest(
            job=job,
            driver=driver,
            participants=[PARTICIPANT.to_wire(participant) for participant in participants],
            settings=settings_to_wire(settings),
            claim=CLAIM.to_wire(claim) if claim is not None else None,
            more_claims=map(CLAIM.to_wire, more_claims),
        )
        begun, waits, coordinator = time.monotonic(), False, ""
        longest = as_duration(wait).total_seconds() if wait is not None else settings.seconds("lease") + 1.0
        while True:
            answer, answered_by = self._caller.call(self._stub.OpenJob, request, _opened, doing=f"opening job {job}")
            match answer.verdict:
                case Verdict.ACCEPTED | Verdict.DUPLICATE if answer.grant is not None:
                    return Session(self._caller, job, answer.grant, driver, on_error)
                case Verdict.BUSY if takeover and answer.generation != request.instead_of:
                    request.instead_of = answer.generation
                    continue
                case Verdict.BUSY:
                    if wait is None:
                        longest = max(longest, answer.retry_after_s + 1.0)
                        if answered_by != coordinator:
                            # a coordinator that begins gives each lease its whole time again
                            begun, coordinator = time.monotonic(), answered_by
                case Verdict.HALTED:
                    raise HaltedError(_sentence(answer.detail))
                case _:
                    raise RefusedError(f"The coordinator refused to open job {job}: {_sentence(answer.detail)}")
            if time.monotonic() - begun >= longest or stopping():
                raise JobBusyError(
                    f"Job {job} was not opened: {answer.detail}. Nothing was read or written. Stop the other driver "
                    f"(onceward stop {job}), or permit the next start to replace it, which fences it and keeps every "
                    f"record exactly once: onceward takeover {job} --reason WHY"
                )
            if not waits:
                waits = True
                if on_wait is not None:
                    on_wait(answer.detail)
                else:
                    said = {"job": job, "event": "waiting_for_driver", "up_to_s": longest, "detail": answer.detail}
                    _log.info("%s", log_fields(said))
            time.sleep(min(max(answer.retry_after_s, 0.01), _LONGEST_POLL_S))

    def close(self) -> None:
        """Close the connection. Sessions are closed separately."""
        self._caller.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Session:
    """One generation of a job. Thread-safe. Renews its lease from the start.

    All calls raise FencedError when a newer generation owns the job, GenerationEndedError when this one was ended and
    no other driver owns the job, CoordinatorLostError when the coordinator cannot be reached, RefusedError when it does
    not know the job or cannot interpret the request.
    """

    def __init__(
        self, caller: Caller, job: JobName, grant: Grant, secret: str, on_error: Callable[[OncewardError], None]
    ) -> None:
        self._caller = caller
        self._stub = ParticipantServiceStub(in_pieces(caller.channel))
        self._on_error = on_error
        self._watch: WatchThread | None = None
        self._oldest: Callable[[], Age | None] = lambda: None
        self._aborted: Callable[[], CheckpointId] = lambda: NO_CHECKPOINT
        self._progress: Callable[[], ReadProgress | None] = lambda: None
        self.job = job
        self.grant = grant
        self._secret = secret
        self.driver = fingerprint(secret)
        """What identifies this driver in the store and in claims."""
        self.generation: Generation = grant.generation
        self._renewing = RenewThread(grant.lease_s / 3, renew=self.renew, on_error=on_error)

    def report_oldest(self, oldest: Callable[[], Age | None]) -> None:
        """Include the age of the oldest pre-committed transaction in each renewal, for listings. A background thread
        calls ``oldest``."""
        self._oldest = oldest

    def report_aborted(self, aborted: Callable[[], CheckpointId]) -> None:
        """Include the last abort that the main loop has carried out in each renewal: a driver that leaves an abort
        undone is given up. A background thread calls ``aborted``."""
        self._aborted = aborted

    def report_progress(self, progress: Callable[[], ReadProgress | None]) -> None:
        """Include how far and how fast the input is read in each renewal, for listings. A background thread calls
        ``progress``."""
        self._progress = progress

    def start_watch(self, deliver: Callable[[Instruction], None]) -> None:
        """Call ``deliver`` with each instruction, from one background thread; repeats are possible.

        Start it soon after opening: a driver without a stream may be replaced after ``stream_grace``. No checkpoint is
        triggered before.
        """
        request = pb.WatchRequest(job=self.job, generation=self.generation, driver=self._secret)
        self._watch = WatchThread(self._caller, request, deliver=deliver, on_error=self._on_error)

    def acknowledge(
        self,
        checkpoint: CheckpointId,
        base: CheckpointId,
        snapshots: Mapping[ParticipantName, Snapshot],
        *,
        good_for_s: Callable[[], float | None] = lambda: None,
        phases: Phases = MappingProxyType({}),
    ) -> tuple[Answer, ...]:
        """Acknowledge for several participants in one call; returns an answer for each, in the order of ``snapshots``.

        ``good_for_s`` returns the seconds in which the checkpoint can still be committed, None for no limit; called
        before each attempt. ``phases``: those of the checkpoint, for listings. Raises CheckpointFailedError, before
        anything is sent, when the snapshots are too large.
        """
        doing = f"acknowledging checkpoint {checkpoint} for {' and '.join(snapshots)}"
        request = pb.AcknowledgeRequest(
            job=self.job,
            generation=self.generation,
            driver=self._secret,
            checkpoint=checkpoint,
            base=base,
            acknowledgements=_encoded(
                lambda: [
                    pb.Acknowledgement(participant=participant, snapshot=snapshot_to_wire(snapshot))
                    for participant, snapshot in snapshots.items()
                ],
                doing,
            ),
            phases=phases_to_wire(phases),
        )

        def send(request: pb.AcknowledgeRequest, timeout: float) -> pb.AcknowledgeResponse:
            if (seconds := good_for_s()) is not None:
                request.good_for_us = max(0, int(seconds * 1e6))
            return self._stub.Acknowledge(request, timeout=timeout)

        answers = self._caller.call(send, request, _all_answered, doing=doing)
        return tuple(self._unless_fenced(answer) for answer in answers)

    def decline(
        self,
        checkpoint: CheckpointId,
        participant: ParticipantName,
        reason: str,
        *,
        phases: Phases = MappingProxyType({}),
    ) -> Answer:
        """Have the checkpoint aborted. ``phases``: those that were over."""
        request = pb.DeclineRequest(
            job=self.job,
            generation=self.generation,
            driver=self._secret,
            checkpoint=checkpoint,
            participant=participant,
            reason=text_to_wire(reason),
            phases=phases_to_wire(phases),
        )
        doing = f"declining checkpoint {checkpoint} for {participant}"
        return self._unless_fenced(self._caller.call(self._stub.Decline, request, _answered, doing=doing))

    def settle(
        self,
        checkpoint: CheckpointId,
        participant: ParticipantName,
        settlements: Sequence[Settlement],
        *,
        amendment: int = 0,
    ) -> Answer:
        """Report outcomes of a completed checkpoint's committables.

        :param amendment: of the instruction to complete: says which committables the outcomes belong to.
        """
        request = pb.SettleRequest(
            job=self.job,
            generation=self.generation,
            driver=self._secret,
            checkpoint=checkpoint,
            participant=participant,
            settlements=[SETTLEMENT.to_wire(settlement) for settlement in settlements],
            amendment=amendment,
        )
        doing = f"settling checkpoint {checkpoint} for {participant}"
        return self._unless_fenced(self._caller.call(self._stub.Settle, request, _answered, doing=doing))

    def amend(
        self,
        checkpoint: CheckpointId,
        participant: ParticipantName,
        amendment: int,
        slots: Iterable[int],
        committables: Sequence[Committable],
    ) -> Answer:
        """Amend a completed checkpoint whose lost slots were written again: ``committables`` replace the lost ones.

        :param amendment: of the instruction to replay.
        :param committables: of ``slots``, in their order; none for a slot that had nothing to write.
        :raises CheckpointFailedError: before anything is sent, when they are too large.
        """
        doing = f"amending checkpoint {checkpoint} for {participant}"
        request = pb.AmendRequest(
            job=self.job,
            generation=self.generation,
            driver=self._secret,
            checkpoint=checkpoint,
            participant=participant,
            amendment=amendment,
            slots=sorted(slots),
            committables=_encoded(lambda: [committable_to_wire(one) for one in committables], doing),
        )
        return self._unless_fenced(self._caller.call(self._stub.Amend, request, _answered, doing=doing))

    def close(self, reason: CloseReason, detail: str = "", *, completed: CheckpointId = NO_CHECKPOINT) -> None:
        """Leave: stop the lease and report to the coordinator, however long that takes. The stream ends after the
        report: a waiting driver may replace one without a stream (``stream_grace``).

        :param completed: the newest completed checkpoint that the driver knows. If the coordinator does not know it, an
            older copy of its store was put back: FencedError.
        """
        self._unless_fenced(self._close(reason, detail, None, completed=completed))

    def abandon(self, detail: str, *, back_within_s: float | None = None, halted: bool = False) -> FencedError | None:
        """Leave after a failure. Reports to the coordinator if it answers quickly; else the lease expires. Never
        raises.

        :param back_within_s: seconds after which the driver opens its next generation; None = it does not come back.
        :param halted: a person must act first.
        :return: the reason why the driver must not come back: another driver owns the job, or the job is at rest.
        """
        left = CloseReason.HALTED if halted else CloseReason.FAILED
        reason = left if back_within_s is None else CloseReason.RESTARTING
        try:
            self._unless_fenced(self._close(reason, detail, _ABANDON_PATIENCE_S, back_within_s or 0.0))
        except FencedError as over:
            return over
        except OncewardError:
            pass
        return None

    def let_go(self) -> None:
        """End stream and lease without a report to the coordinator."""
        self._renewing.close()
        if self._watch is not None:
            self._watch.close()

    def _close(
        self,
        reason: CloseReason,
        detail: str,
        patience_s: float | None,
        back_within_s: float = 0.0,
        *,
        completed: CheckpointId = NO_CHECKPOINT,
    ) -> Answer:
        request = pb.CloseJobRequest(
            job=self.job,
            generation=self.generation,
            driver=self._secret,
            reason=CLOSE_REASON.to_wire(reason),  # type: ignore[arg-type]
            detail=text_to_wire(detail),
            back_within_us=round(back_within_s * 1e6),
            completed=completed,
        )
        doing = f"closing job {self.job}"
        self._renewing.close()
        if self._watch is not None:
            self._watch.silence()
        try:
            return self._caller.call(self._stub.CloseJob, request, _answered, doing=doing, patience_s=patience_s)
        finally:
            self.let_go()

    def renew(self) -> None:
        """Renew the lease, and check that this is still the current generation."""
        oldest, progress = self._oldest(), self._progress()
        request = pb.RenewRequest(
            job=self.job,
            generation=self.generation,
            driver=self._secret,
            troubles=[TROUBLE.to_wire(one) for one in self._caller.links.troubles()[:MAX_TROUBLES]],
            oldest=AGE.to_wire(oldest) if oldest is not None else None,
            aborted=self._aborted(),
            progress=progress_to_wire(progress) if progress is not None else None,
            machine=text_to_wire(f"{socket.gethostname()}:{os.getpid()}"),
        )
        self._unless_fenced(self._caller.call(self._stub.Renew, request, _answered, doing="renewing the lease"))

    def _unless_fenced(self, answer: Answer) -> Answer:
        if answer.verdict is Verdict.FENCED:
            raise generation_over(self.job, self.generation, answer)
        return answer


def _opened(response: pb.OpenJobResponse) -> tuple[Answer, str]:
    """The answer, and the name of the coordinator that gives it."""
    grant = GRANT.from_wire(response.grant) if response.HasField("grant") else None
    return answer_from_wire(response.answer, grant=grant), response.coordinator


def _encoded(encode: Callable[[], T], doing: str) -> T:
    try:
        return encode()
    except (ValueError, TypeError) as error:
        raise RefusedError(f"Not sent while {doing}: a document is not JSON: {error}.") from error


def _all_answered(response: pb.AcknowledgeResponse) -> list[Answer]:
    return [answer_from_wire(answer) for answer in response.answers]


def _answered(
    response: pb.DeclineResponse | pb.SettleResponse | pb.AmendResponse | pb.RenewResponse | pb.CloseJobResponse,
) -> Answer:
    return answer_from_wire(response.answer)


def _sentence(detail: str) -> str:
    return detail[:1].upper() + detail[1:] + ("" if detail.endswith(".") else ".")
