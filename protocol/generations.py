"""Generations: who may drive a job, and when."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import assert_never

from onceward.protocol.answers import Answer, Grant, Ready, Verdict
from onceward.protocol.durable import Durable, RestoreOrder
from onceward.protocol.events import (
    Acknowledge,
    Amend,
    CloseJob,
    CloseReason,
    Decline,
    Event,
    OpenJob,
    Renew,
    Settle,
    StreamLost,
    Watch,
)
from onceward.protocol.facts import (
    AbortReason,
    CheckpointAborted,
    CheckpointRestored,
    Fact,
    GenerationEnded,
    GenerationGranted,
    RequestEnded,
    StatusChanged,
)
from onceward.protocol.requests import Ending, RequestState
from onceward.protocol.state import JobState, LiveDriver, record
from onceward.protocol.status import JobStatus, Transition, after
from onceward.protocol.values import (
    MAX_ID,
    CheckpointId,
    CheckpointKind,
    Claim,
    Generation,
    Participant,
    RequestId,
    Role,
    Snapshot,
)

Step = tuple[JobState, tuple[Fact, ...]]

_AT_REST = (JobStatus.FINISHED, JobStatus.CANCELLED, JobStatus.HALTED, JobStatus.FORGOTTEN)
"""States that a person requested or has to inspect. A fenced driver that missed the change must not start the job
again."""


def may_drive(state: JobState, generation: Generation) -> bool:
    """True when ``generation`` is the current one and was not ended. Always False while the newest completed checkpoint
    cannot be read: no work of a driver could build on it."""
    return state.durable.driven and may_report(state, generation)


def may_report(state: JobState, generation: Generation) -> bool:
    """Like :func:`may_drive`, but also True for a generation that the coordinator has taken: both report outcomes of
    commits."""
    durable = state.durable
    return durable.driver is not None and generation == durable.generation and not durable.unreadable


def fenced_answer(durable: Durable, generation: Generation) -> Answer:
    """The FENCED answer to ``generation``, which is not the current one or was ended.

    A driver may return even if the coordinator has taken the job to settle for it: the coordinator gives way to every
    driver, and holds at most one generation between those of two drivers.
    """
    alone = durable.generation == generation or (durable.orphaned and durable.generation == generation + 1)
    if durable.record_damaged:
        detail = f"{durable.unreadable}; change nothing more and stop"
    elif generation > durable.generation:
        detail = (
            f"generation {generation} was never granted by this store, which knows {durable.generation} of job "
            f"{durable.job}: perhaps an older copy was put back. Change nothing more and stop"
        )
    elif not alone:
        detail = "a newer generation owns the job; change nothing more and stop"
    elif durable.status in _AT_REST:
        detail = f"the job is {durable.status.value}; change nothing more and stop"
    else:
        detail = "it was ended, and no other driver has the job; change nothing more for it, and open the next one"
        return Answer(verdict=Verdict.FENCED, detail=detail, may_return=True)
    return Answer(verdict=Verdict.FENCED, detail=detail)


def impostor_answer(durable: Durable, event: Event) -> Answer | None:
    """The answer to a call for the current generation by a process that is not its driver; None for all others."""
    match event:
        case Watch() | Renew() | Acknowledge() | Decline() | Settle() | Amend() | CloseJob() if (
            event.driver is not None
            and event.generation == durable.generation
            and durable.driver is not None
            and event.driver != durable.driver
        ):
            detail = f"generation {durable.generation} belongs to another process; change nothing more and stop"
            return Answer(verdict=Verdict.FENCED, detail=detail)
        case _:
            return None


def over_damage(durable: Durable, event: Event) -> Answer:
    """The answer to every request for a job whose record is damaged."""
    match event:
        case OpenJob():
            return Answer(verdict=Verdict.HALTED, detail=durable.unreadable)
        case Watch() | StreamLost() | Renew() | Acknowledge() | Decline() | Settle() | Amend() | CloseJob():
            return fenced_answer(durable, event.generation)
        case _:
            return Answer(verdict=Verdict.REFUSED, detail=durable.unreadable)


def fenced(state: JobState, generation: Generation) -> Ready:
    return Ready(answer=fenced_answer(state.durable, generation))


def open_job(state: JobState, event: OpenJob) -> tuple[JobState, Ready]:
    """Grant the next generation. The undecided checkpoint is aborted in the same store transaction."""
    durable = state.durable
    session = state.session
    if durable.driver == event.driver and session is not None and not durable.unreadable:
        # Counts as a sign of life: after a crash of the coordinator the next call may come almost a lease later.
        alive = _alive(state, event.now, stream_lost_at=session.stream_lost_at, watched=session.watched)
        return alive, Ready(answer=granted(durable, durable.participants, Verdict.DUPLICATE))
    if durable.lost and durable.restore is None:
        detail = f"job {durable.job} is halted: {durable.status_detail}; nothing is written until a person decides"
        return state, Ready(answer=Answer(verdict=Verdict.HALTED, detail=detail))
    refusal = _refusal(durable, event)
    if refusal:
        return state, Ready(answer=Answer(verdict=Verdict.REFUSED, detail=refusal))
    wait = 0.0 if durable.generation in (event.instead_of, durable.takeover) else _wait(state, event.now)
    if wait > 0:
        detail = f"generation {durable.generation} of {durable.job} has a living driver"
        busy = Answer(verdict=Verdict.BUSY, detail=detail, retry_after_s=wait, generation=durable.generation)
        return state, Ready(answer=busy)

    # never ahead of this store unless adopted: otherwise they were refused above
    generation = Generation(max([durable.generation, *(claim.generation for claim in event.claims)]) + 1)
    last_id = CheckpointId(max([durable.last_id, *(claim.completed for claim in event.claims)]))
    facts: list[Fact] = []
    if durable.pending is not None:
        facts.append(abort_fact(state, AbortReason.REPLACED, "", event.now))
    if durable.driver is not None:
        failed = durable.driven and durable.generation != durable.takeover
        why = f"its driver did not leave, and {AbortReason.REPLACED.value}" if failed else AbortReason.REPLACED.value
        facts.append(GenerationEnded(generation=durable.generation, detail=why, failed=failed))
    facts += fail_requests(durable, "its generation was replaced")
    facts.append(
        GenerationGranted(
            generation=generation,
            driver=event.driver,
            participants=event.participants,
            settings=event.settings,
            first_id=last_id,
            adopted=durable.adoption if _ruled_out(durable, event.claims) else None,
        )
    )
    if durable.restore is not None:
        facts.append(_restored(durable, durable.restore, CheckpointId(last_id + 1), generation))
    if durable.ending is None:
        facts.append(moved(durable, Transition.OPENED))
    else:
        facts.append(moved(durable, Transition.OPENED_TO_END, f"asked to {durable.ending.value}"))
    state = record(state, facts)
    lease_ends = event.now + event.settings.seconds("lease")
    state = JobState(
        durable=state.durable,
        session=LiveDriver(driver=event.driver, lease_ends=lease_ends, stream_lost_at=event.now, watched=False),
        next_trigger=event.now,
        completed_at=state.completed_at,
    )
    answer = granted(state.durable, durable.participants, Verdict.ACCEPTED)
    return state, Ready(answer=answer, facts=tuple(facts))


def moved(durable: Durable, transition: Transition, detail: str = "") -> StatusChanged:
    """A change of the job's status."""
    return StatusChanged(transition=transition, status=after(durable.status, transition), detail=detail)


def abort_fact(state: JobState, reason: AbortReason, detail: str, now: float) -> CheckpointAborted:
    """The abort of the undecided checkpoint. It counts as a failure when the reason does, but not for a savepoint: a
    failed savepoint does not show that checkpoints fail (Flink: CheckpointFailureManager)."""
    pending, known = state.durable.pending, state.pending
    assert pending is not None
    assert known is not None
    return CheckpointAborted(
        checkpoint=pending.id,
        generation=state.durable.generation,
        reason=reason,
        detail=detail,
        counted=reason.counted and pending.kind is CheckpointKind.CHECKPOINT,
        ran_s=now - known.started,
        phases=known.phases,
    )


def fail_requests(durable: Durable, why: str, *, but: RequestId | None = None) -> list[Fact]:
    """Fail all open requests except ``but``: this generation will not serve them."""
    return [
        RequestEnded(request=replace(request, state=RequestState.FAILED, detail=why))
        for request in durable.open_requests
        if request.id != but
    ]


def _restored(
    durable: Durable, order: RestoreOrder, checkpoint: CheckpointId, generation: Generation
) -> CheckpointRestored:
    source = order.source
    return CheckpointRestored(
        checkpoint=checkpoint,
        source=source.id,
        former=durable.base,
        generation=generation,
        snapshots={name: Snapshot(positions=snapshot.positions) for name, snapshot in source.snapshots.items()},
        reason=order.reason,
    )


def granted(durable: Durable, former: tuple[Participant, ...], verdict: Verdict) -> Answer:
    """The answer with everything that the recovery of the current generation needs."""
    grant = Grant(
        store_id=durable.store_id,
        generation=durable.generation,
        completed=durable.completed,
        lost=durable.replaying,
        new_run=durable.completed is not None and durable.completed.id == durable.finished,
        former_participants=former,
        lease_s=durable.settings.seconds("lease"),
    )
    return Answer(verdict=verdict, grant=grant)


def _wait(state: JobState, now: float) -> float:
    """Seconds until the live driver may be replaced; 0 when it may be replaced now."""
    if state.session is None:
        return 0.0
    waits = [state.session.lease_ends - now]
    if state.session.watched and state.session.stream_lost_at is not None:
        waits.append(state.session.stream_lost_at + state.durable.settings.seconds("stream_grace") - now)
    return max(0.0, min(waits))


def _refusal(durable: Durable, event: OpenJob) -> str | None:
    names = [participant.name for participant in event.participants]
    if len(set(names)) != len(names):
        return "two participants have the same name; names are unique within a job"
    if not {Role.SOURCE, Role.SINK} <= {participant.role for participant in event.participants}:
        return "a job needs at least one source and one sink"
    if durable.unreadable and durable.restore is None:
        return (
            f"the newest completed checkpoint of job {durable.job} cannot be read: {durable.unreadable}. To continue "
            "without it would write records twice or not at all, so nothing was started. Restore a copy of the store "
            "that has this checkpoint (an older one is refused), or name an older checkpoint, after which the output "
            f"repeats: onceward restore {durable.job} --from ID --reason 'NAME: REASON'"
        )
    if durable.generation >= MAX_ID or durable.last_id >= MAX_ID - 1:
        return f"the job has used up its ids ({MAX_ID}); begin a new job"
    if durable.completed is not None and not durable.completed.settled:
        here = {(participant.name, participant.kind) for participant in event.participants}
        gone = [
            participant.name
            for participant in durable.participants
            if durable.completed.snapshots.get(participant.name) is not None
            and durable.completed.snapshots[participant.name].committables
            and (participant.name, participant.kind) not in here
        ]
        if gone:
            return (
                f"checkpoint {durable.completed.id} is completed but not settled, and this driver lacks the "
                f"participant {', '.join(gone)} that has to commit it; start the job once with its former "
                "participants, or, if that is impossible, give its records up: "
                f"onceward resolve {durable.job} --sink {gone[0]} --give-up SLOTS --force --reason 'NAME: REASON'"
            )
    return _claims_refusal(durable, event.claims)


def _claims_refusal(durable: Durable, claims: Sequence[Claim]) -> str | None:
    """Why one of ``claims`` rules out running the job from this store; None if none does, or a person has permitted it.

    The permission names the newest claim of a store. It covers an older one of that store: its driver had not renewed
    it on another system. It still does once this store has replaced the newest one.
    """
    ruled_out, permitted = _ruled_out(durable, claims), durable.adoption
    covered: list[Claim] = []
    if permitted is not None:
        begun = any(one not in ruled_out and one.generation > permitted.generation for one in claims)
        of_store = [one for one in ruled_out if one.store_id == permitted.store_id]
        newest = next((replace(one, holder="", amendment=0) for one in of_store), None)
        if newest == permitted or begun:
            covered = [
                one
                for one in of_store
                if one.generation <= permitted.generation and one.completed <= permitted.completed
            ]
    return next((claim_refusal(durable, claim) for claim in ruled_out if claim not in covered), None)


def _ruled_out(durable: Durable, claims: Iterable[Claim]) -> Sequence[Claim]:
    """The claims that rule out running the job from this store, newest first. One is enough: a store is at work only
    while the claims on all systems are its own. If some are this store's, it has begun to adopt the job."""
    return newest_first(claim for claim in claims if claim_refusal(durable, claim) is not None)


def newest_first(claims: Iterable[Claim]) -> Sequence[Claim]:
    """The claims, each once. Those of different stores are in the order in which one adopted the job of another."""
    return sorted(set(claims), key=lambda one: (one.generation, one.completed, one.amendment, one.holder), reverse=True)


def claim_refusal(durable: Durable, claim: Claim) -> str | None:
    """Why ``claim`` rules out running the job from this store; None if it does not."""
    named = f"{claim.store_id}:{claim.generation}:{claim.completed}"
    adopt = f"or, if that one is permanently lost: onceward adopt {durable.job} --claim {named} --reason WHY"
    if claim.store_id != durable.store_id:
        return (
            f"the sink's cluster says that job {durable.job} belongs to store {claim.store_id} (generation "
            f"{claim.generation}, through checkpoint {claim.completed}), this is store {durable.store_id}; "
            f"two stores for one job write everything twice. Use the former store; {adopt}"
        )
    if claim.holder and durable.holders.get(claim.generation, claim.holder) != claim.holder:
        return (
            f"the sink's cluster says that generation {claim.generation} of job {durable.job} belongs to a process to "
            "which this store never granted it: another copy of this store has run the job. Going on from this one "
            f"could write records twice. Use the copy that ran the job last; {adopt}"
        )
    # Burnt ids do not count: a copy from before a decision knows the id but not the decision. If the newest completed
    # checkpoint cannot be read, its id is unknown, and a person has ordered to repeat output.
    newest = durable.last_id if durable.unreadable else durable.base
    if claim.generation > durable.generation or claim.completed > newest:
        return (
            f"the sink's cluster has seen generation {claim.generation} and checkpoint {claim.completed} of job "
            f"{durable.job}, this store only generation {durable.generation} and checkpoint {newest}: it is "
            f"an old copy. Going on from it would write records twice. Restore the newest store; {adopt}"
        )
    if claim.completed == newest and claim.amendment > durable.amendment and not durable.unreadable:
        return (
            f"the sink's cluster has seen lost slots of checkpoint {claim.completed} of job {durable.job} replaced "
            f"{claim.amendment} times, this store only {durable.amendment} times: it is an old copy. Going on from it "
            f"would write their records twice. Restore the newest store; {adopt}"
        )
    return None


def watch(state: JobState, event: Watch) -> tuple[JobState, Ready]:
    if not may_drive(state, event.generation):
        return state, fenced(state, event.generation)
    return _alive(state, event.now, stream_lost_at=None, watched=True), Ready(answer=Answer(verdict=Verdict.ACCEPTED))


def stream_lost(state: JobState, event: StreamLost) -> tuple[JobState, Ready]:
    if may_drive(state, event.generation) and state.session is not None:
        state = replace(state, session=replace(state.session, stream_lost_at=event.now))
    return state, Ready(answer=Answer(verdict=Verdict.ACCEPTED))


def renew(state: JobState, event: Renew) -> tuple[JobState, Ready]:
    if not may_drive(state, event.generation):
        return state, fenced(state, event.generation)
    if event.aborted > state.carried_out:
        state = replace(state, carried_out=event.aborted, owing_since=event.now)
    return record_contact(state, event), Ready(answer=Answer(verdict=Verdict.ACCEPTED))


def record_contact(state: JobState, event: Acknowledge | Decline | Settle | Amend | Renew) -> JobState:
    """Count an accepted call from the current driver as a sign of life. After a restart of the coordinator the lease
    renewal may be the last of a driver's calls to get through."""
    if not may_drive(state, event.generation):
        return state
    lost_at = state.session.stream_lost_at if state.session else event.now
    watched = state.session is None or state.session.watched
    return _alive(state, event.now, stream_lost_at=lost_at, watched=watched)


def _alive(state: JobState, now: float, *, stream_lost_at: float | None, watched: bool) -> JobState:
    assert state.durable.driver is not None
    session = LiveDriver(
        driver=state.durable.driver,
        lease_ends=now + state.durable.settings.seconds("lease"),
        stream_lost_at=stream_lost_at,
        watched=watched,
    )
    return replace(state, session=session)


def close_job(state: JobState, event: CloseJob) -> tuple[JobState, Ready]:
    """End the generation because the driver leaves. Unsettled commits, a halt and a requested ending carry over to the
    next generation."""
    durable = state.durable
    if durable.driver is None and event.generation == durable.generation:
        return state, Ready(answer=Answer(verdict=Verdict.DUPLICATE))
    if not may_drive(state, event.generation):
        return state, fenced(state, event.generation)
    if event.completed > durable.base:
        detail = (
            f"its driver knows checkpoint {event.completed} as completed, this store only {durable.base}: an older "
            "copy was put back. Change nothing more and stop"
        )
        return state, Ready(answer=Answer(verdict=Verdict.FENCED, detail=detail))
    back = event.now + event.back_within_s + durable.settings.seconds("lease")
    failed = event.reason in (CloseReason.RESTARTING, CloseReason.FAILED)
    state, facts = end_generation(
        state, event.now, _leaving(state, event), event.detail, AbortReason.CLOSED, failed=failed
    )
    if state.durable.awaits_driver:
        state = replace(state, restart_due=back)
    return state, Ready(answer=Answer(verdict=Verdict.ACCEPTED), facts=facts)


def _leaving(state: JobState, event: CloseJob) -> Transition:
    match event.reason:
        case CloseReason.RESTARTING:
            return Transition.FAILED
        case CloseReason.HALTED:
            return Transition.HALTED
        case CloseReason.FINISHED if state.settled:
            return Transition.FINISHED
        case CloseReason.STOPPED | CloseReason.CANCELLED | CloseReason.FAILED | CloseReason.FINISHED:
            return terminal_transition(state.durable) or Transition.LEFT
        case _:
            assert_never(event.reason)


def terminal_transition(durable: Durable) -> Transition | None:
    """The ending that a person requested, if everything is settled; None otherwise. The caller ensures that no driver
    remains."""
    if durable.ending is None or not durable.settled:
        return None
    return Transition.FINISHED if durable.ending is Ending.STOP else Transition.CANCELLED


def give_up_lost_driver(state: JobState, now: float) -> Step:
    """Give up a driver whose lease and stream are both gone, or that does not return in time."""
    session = state.session
    if session is not None:
        if session.stream_lost_at is None or now < session.lease_ends:
            return state, ()
        detail = "its driver is lost: no renewal within the lease and no instruction stream"
        return end_generation(
            state, now, terminal_transition(state.durable) or Transition.GIVEN_UP, detail, AbortReason.DRIVER_LOST
        )
    if state.restart_due is None or now < state.restart_due:
        return state, ()
    detail = f"its driver did not come back after: {state.durable.status_detail}"
    facts = (moved(state.durable, terminal_transition(state.durable) or Transition.GIVEN_UP, detail),)
    return replace(record(state, facts), restart_due=None, driverless_since=now), facts


def end_generation(
    state: JobState, now: float, transition: Transition, detail: str, reason: AbortReason, *, failed: bool = True
) -> Step:
    """End the generation. A halted job stays halted."""
    durable = state.durable
    facts: list[Fact] = []
    if durable.pending is not None:
        facts.append(abort_fact(state, reason, detail, now))
    facts += fail_requests(durable, f"the generation ended: {detail or transition.value}")
    facts.append(GenerationEnded(generation=durable.generation, detail=detail or transition.value, failed=failed))
    if durable.status is not JobStatus.HALTED:
        facts.append(moved(durable, transition, detail))
    state = record(state, facts)
    return JobState(durable=state.durable, completed_at=state.completed_at, driverless_since=now), tuple(facts)
