"""Generations: who may drive a job, from when, until when."""

from dataclasses import replace

from coordinator.protocol.answers import Answer, Grant, Ready, Verdict
from coordinator.protocol.events import CloseJob, CloseReason, OpenJob, Renew, StreamLost, Watch
from coordinator.protocol.facts import (
    AbortReason,
    CheckpointAborted,
    Fact,
    GenerationGranted,
    JobClosed,
    JobStatus,
)
from coordinator.protocol.state import JobState, PendingCheckpoint, Session
from coordinator.protocol.values import MAX_ID, CheckpointId, Claim, Generation, Participant, Role

_FENCED = Answer(
    verdict=Verdict.FENCED,
    detail="a newer generation owns the job or this one was ended; change nothing more and stop",
)


def owns(state: JobState, generation: Generation) -> bool:
    """True when ``generation`` is the current one and was not ended."""
    return state.durable.driver is not None and generation == state.durable.generation


def fenced() -> Ready:
    return Ready(answer=_FENCED)


def open_job(state: JobState, event: OpenJob) -> tuple[JobState, Ready]:
    """Grant the next generation; the undecided checkpoint is aborted in the same store transaction."""
    durable = state.durable
    if durable.driver == event.driver and state.session is not None:
        return state, Ready(answer=_granted(state, durable.participants, Verdict.DUPLICATE))
    if durable.lost:
        detail = f"job {durable.job} is halted: {durable.status_detail}; nothing is written until a person has decided"
        return state, Ready(answer=Answer(verdict=Verdict.HALTED, detail=detail))
    refusal = _refusal(state, event)
    if refusal:
        return state, Ready(answer=Answer(verdict=Verdict.REFUSED, detail=refusal))
    wait = 0.0 if event.takeover else _wait(state, event.now)
    if wait > 0:
        detail = f"generation {durable.generation} of {durable.job} has a living driver"
        return state, Ready(answer=Answer(verdict=Verdict.BUSY, detail=detail, retry_after=wait))

    claimed = event.claim if event.adopt else None
    generation = Generation(max(durable.generation, claimed.generation if claimed else 0) + 1)
    last_id = CheckpointId(max(durable.last_id, claimed.settled if claimed else 0))
    former = durable.participants
    facts: list[Fact] = []
    if state.pending is not None:
        facts.append(_aborted(state.pending, AbortReason.REPLACED))
    facts.append(
        GenerationGranted(
            generation=generation,
            driver=event.driver,
            participants=event.participants,
            settings=event.settings,
            first_id=last_id,
        )
    )
    state = state.remember(
        status=JobStatus.RUNNING,
        status_detail="",
        generation=generation,
        driver=event.driver,
        participants=event.participants,
        settings=event.settings,
        last_id=last_id,
        pending=None,
        stop_requested=False,
    )
    lease_ends = event.now + event.settings.seconds("lease")
    state = JobState(
        durable=state.durable,
        session=Session(driver=event.driver, lease_ends=lease_ends, stream_lost_at=event.now, watched=False),
        next_trigger=event.now,
    )
    return state, Ready(answer=_granted(state, former, Verdict.ACCEPTED), facts=tuple(facts))


def _granted(state: JobState, former: tuple[Participant, ...], verdict: Verdict) -> Answer:
    durable = state.durable
    grant = Grant(
        store_id=durable.store_id,
        generation=durable.generation,
        completed=durable.completed,
        former_participants=former,
        lease=durable.settings.seconds("lease"),
    )
    return Answer(verdict=verdict, grant=grant)


def _wait(state: JobState, now: float) -> float:
    """Seconds until the living driver may be replaced; 0 when it may be replaced now."""
    if state.session is None:
        return 0.0
    waits = [state.session.lease_ends - now]
    if state.session.watched and state.session.stream_lost_at is not None:
        waits.append(state.session.stream_lost_at + state.durable.settings.seconds("stream_grace") - now)
    return max(0.0, min(waits))


def _refusal(state: JobState, event: OpenJob) -> str | None:
    durable = state.durable
    names = [participant.name for participant in event.participants]
    if len(set(names)) != len(names):
        return "two participants have the same name; names are unique within a job"
    if not {Role.SOURCE, Role.SINK} <= {participant.role for participant in event.participants}:
        return "a job needs at least one source and one sink"
    if durable.generation >= MAX_ID or durable.last_id >= MAX_ID:
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
                f"participant {', '.join(gone)} that has to commit it; start the job once with its former participants"
            )
    if event.claim is not None and not event.adopt:
        return _claim_refusal(state, event.claim)
    return None


def _claim_refusal(state: JobState, claim: Claim) -> str | None:
    durable = state.durable
    if claim.store_id != durable.store_id:
        return (
            f"the sink's cluster says that job {durable.job} belongs to store {claim.store_id} (generation "
            f"{claim.generation}, settled through checkpoint {claim.settled}), this is store {durable.store_id}; "
            "two stores for one job write everything twice. Use the former store, or adopt the job explicitly"
        )
    if claim.generation > durable.generation or claim.settled > durable.last_id:
        return (
            f"the sink's cluster has seen generation {claim.generation} and checkpoint {claim.settled} of job "
            f"{durable.job}, this store only generation {durable.generation} and checkpoint {durable.last_id}: it is "
            "an old copy. Going on from it would write records twice. Restore the newest store, or adopt the job "
            "explicitly"
        )
    return None


def watch(state: JobState, event: Watch) -> tuple[JobState, Ready]:
    if not owns(state, event.generation):
        return state, fenced()
    return _alive(state, event.now, stream_lost_at=None, watched=True), Ready(answer=Answer(verdict=Verdict.ACCEPTED))


def stream_lost(state: JobState, event: StreamLost) -> tuple[JobState, Ready]:
    if owns(state, event.generation) and state.session is not None:
        state = replace(state, session=replace(state.session, stream_lost_at=event.now))
    return state, Ready(answer=Answer(verdict=Verdict.ACCEPTED))


def renew(state: JobState, event: Renew) -> tuple[JobState, Ready]:
    if not owns(state, event.generation):
        return state, fenced()
    lost_at = state.session.stream_lost_at if state.session else event.now
    watched = state.session is None or state.session.watched
    state = _alive(state, event.now, stream_lost_at=lost_at, watched=watched)
    return state, Ready(answer=Answer(verdict=Verdict.ACCEPTED))


def _alive(state: JobState, now: float, *, stream_lost_at: float | None, watched: bool) -> JobState:
    assert state.durable.driver is not None
    session = Session(
        driver=state.durable.driver,
        lease_ends=now + state.durable.settings.seconds("lease"),
        stream_lost_at=stream_lost_at,
        watched=watched,
    )
    return replace(state, session=session)


def close_job(state: JobState, event: CloseJob) -> tuple[JobState, Ready]:
    """The driver leaves. Unsettled commits stay for whoever comes next; so does a halt."""
    if state.durable.driver is None and event.generation == state.durable.generation:
        return state, Ready(answer=Answer(verdict=Verdict.DUPLICATE))
    if not owns(state, event.generation):
        return state, fenced()
    status = {
        CloseReason.FINISHED: JobStatus.FINISHED,
        CloseReason.STOPPED: JobStatus.STOPPED,
        CloseReason.FAILED: JobStatus.SUSPENDED,
    }[event.reason]
    if not state.settled and status is not JobStatus.SUSPENDED:
        status = JobStatus.SUSPENDED
    return _end(state, status, event.detail, AbortReason.CLOSED)


def give_up_lost_driver(state: JobState, now: float) -> tuple[JobState, tuple[Fact, ...]]:
    """When lease and stream are both gone: no driver will answer for the undecided checkpoint."""
    session = state.session
    if session is None or session.stream_lost_at is None or now < session.lease_ends:
        return state, ()
    detail = "its driver is gone: no sign of life for the lease and no instruction stream"
    state, ready = _end(state, JobStatus.SUSPENDED, detail, AbortReason.DRIVER_LOST)
    return state, ready.facts


def _end(state: JobState, status: JobStatus, detail: str, reason: AbortReason) -> tuple[JobState, Ready]:
    if state.durable.status is JobStatus.HALTED:
        status, detail = JobStatus.HALTED, state.durable.status_detail
    facts: list[Fact] = []
    if state.pending is not None:
        facts.append(_aborted(state.pending, reason))
    facts.append(JobClosed(generation=state.durable.generation, status=status, detail=detail))
    state = state.remember(status=status, status_detail=detail, driver=None, pending=None)
    return JobState(durable=state.durable), Ready(answer=Answer(verdict=Verdict.ACCEPTED), facts=tuple(facts))


def _aborted(pending: PendingCheckpoint, reason: AbortReason) -> CheckpointAborted:
    return CheckpointAborted(checkpoint=pending.id, reason=reason, detail="")
