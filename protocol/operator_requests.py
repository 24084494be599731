"""Operators' requests: checkpoints on demand, savepoints, an ending, a return to an older checkpoint, permissions."""

from dataclasses import replace

from onceward.protocol.answers import Answer, Ready, Verdict
from onceward.protocol.checkpoints import abort
from onceward.protocol.events import (
    AcknowledgeLoss,
    CancelJob,
    CloseOutput,
    ForgetJob,
    PermitAdoption,
    PermitTakeover,
    ReleaseSavepoint,
    RequestCheckpoint,
    RequestRestore,
    StopJob,
)
from onceward.protocol.facts import (
    AbortReason,
    AdoptionPermitted,
    EndingRequested,
    Fact,
    GenerationEnded,
    JobForgotten,
    LossAcknowledged,
    OutputClosed,
    RequestQueued,
    RestoreRequested,
    SavepointReleased,
    TakeoverPermitted,
)
from onceward.protocol.generations import fail_requests, moved
from onceward.protocol.requests import MAX_QUEUED, Ending, Request
from onceward.protocol.state import JobState, record
from onceward.protocol.status import JobStatus, Transition
from onceward.protocol.values import CheckpointKind, Role

_ACCEPTED = Answer(verdict=Verdict.ACCEPTED)
_DUPLICATE = Answer(verdict=Verdict.DUPLICATE)
_REQUESTED = (CheckpointKind.CHECKPOINT, CheckpointKind.SAVEPOINT)


def request_checkpoint(state: JobState, event: RequestCheckpoint) -> tuple[JobState, Ready]:
    """Queue a request. It comes before the interval's next checkpoint and waits for no pause."""
    durable = state.durable
    request = Request(id=event.request, kind=event.kind, name=event.name, stop=event.stop)
    known = next((one for one in durable.requests if one.id == event.request), None)
    if known is not None:
        if known.same_content(request):
            return state, Ready(answer=replace(_DUPLICATE, request=known))
        return state, _refused("another request was made under the same id")
    if request.kind not in _REQUESTED or (request.name and request.kind is not CheckpointKind.SAVEPOINT):
        return state, _refused("only checkpoints and savepoints can be asked for, and only savepoints have names")
    if request.stop and request.kind is not CheckpointKind.SAVEPOINT:
        return state, _refused("a job is stopped with a savepoint, or without one; not with a checkpoint")
    if durable.status is not JobStatus.RUNNING:
        detail = f"job {durable.job} is not running: {durable.status.value}"
        return state, Ready(answer=Answer(verdict=Verdict.TOO_LATE, detail=detail))
    if len(durable.open_requests) >= MAX_QUEUED:
        detail = f"{MAX_QUEUED} requests wait for job {durable.job}; retry when some have ended"
        return state, Ready(answer=Answer(verdict=Verdict.QUEUE_FULL, detail=detail))
    facts = (RequestQueued(request=request),)
    asked = {one.id: state.asked[one.id] for one in durable.open_requests if one.id in state.asked}
    state = replace(record(state, facts), asked={**asked, request.id: event.now})
    return state, Ready(answer=replace(_ACCEPTED, request=request), facts=facts)


def stop(state: JobState, event: StopJob) -> tuple[JobState, Ready]:
    """End the job after the running checkpoint."""
    return _end(state, event.now, Ending.STOP)


def cancel(state: JobState, event: CancelJob) -> tuple[JobState, Ready]:
    """Abort the running checkpoint, settle what is decided, end the job."""
    durable = state.durable
    left = durable.status is JobStatus.HALTED and not durable.driven and durable.settled
    if (durable.status is JobStatus.SUSPENDED and durable.ending is not Ending.CANCEL) or left:
        if not durable.settled:
            return state, _refused(_unsettled(state))
        facts = (EndingRequested(ending=Ending.CANCEL), moved(durable, Transition.CANCELLED))
        return record(state, facts), Ready(answer=_ACCEPTED, facts=facts)
    return _end(state, event.now, Ending.CANCEL)


def _end(state: JobState, now: float, ending: Ending) -> tuple[JobState, Ready]:
    durable = state.durable
    if durable.ending in (ending, Ending.CANCEL):
        return state, Ready(answer=_DUPLICATE)
    if durable.status not in (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.FINISHING):
        detail = f"job {durable.job} is not running: {durable.status.value}"
        return state, Ready(answer=Answer(verdict=Verdict.TOO_LATE, detail=detail))
    facts: tuple[Fact, ...] = ()
    if ending is Ending.CANCEL and durable.pending is not None:
        state, facts = abort(state, now, AbortReason.CANCELLED, "")
    why = f"asked to {ending.value}"
    running = durable.pending.request if durable.pending is not None and ending is Ending.STOP else None
    more = fail_requests(state.durable, f"the job was {why}", but=running)
    more.append(EndingRequested(ending=ending))
    if durable.status is JobStatus.RUNNING:
        more.append(moved(durable, Transition.ENDING, why))
    return record(state, more), Ready(answer=_ACCEPTED, facts=(*facts, *more))


def restore(state: JobState, event: RequestRestore) -> tuple[JobState, Ready]:
    """Make the next generation begin with older positions. Output after them repeats."""
    durable = state.durable
    if durable.driven or durable.awaits_driver:
        return state, _refused(f"job {durable.job} has a driver ({durable.status.value}); stop it first")
    if not durable.settled and not durable.unreadable:
        return state, _refused(_unsettled(state))
    if durable.restore is not None and durable.restore.source.id == event.source.id:
        return state, Ready(answer=_DUPLICATE)
    if durable.completed is not None and durable.completed.id == event.source.id:
        return state, _refused(f"checkpoint {event.source.id} is the newest one: the job continues from it anyway")
    facts = (RestoreRequested(source=event.source, reason=event.reason),)
    return record(state, facts), Ready(answer=_ACCEPTED, facts=facts)


def permit_takeover(state: JobState, event: PermitTakeover) -> tuple[JobState, Ready]:
    """Let the next driver replace the live driver of one generation."""
    durable = state.durable
    if not durable.driven:
        detail = f"job {durable.job} has no live driver: the next one that starts gets the job"
        return state, Ready(answer=Answer(verdict=Verdict.TOO_LATE, detail=detail))
    if event.generation != durable.generation:
        detail = f"generation {event.generation} has ended, and generation {durable.generation} has a live driver"
        return state, Ready(answer=Answer(verdict=Verdict.TOO_LATE, detail=detail))
    if durable.takeover == event.generation:
        return state, Ready(answer=_DUPLICATE)
    facts = (TakeoverPermitted(generation=event.generation, reason=event.reason),)
    return record(state, facts), Ready(answer=_ACCEPTED, facts=facts)


def permit_adoption(state: JobState, event: PermitAdoption) -> tuple[JobState, Ready]:
    """Let a driver open the job although it finds this claim. Valid for a job that is new to this store."""
    claim = replace(event.claim, holder="", amendment=0)
    if state.durable.adoption == claim:
        return state, Ready(answer=_DUPLICATE)
    facts = (AdoptionPermitted(claim=claim, reason=event.reason),)
    return record(state, facts), Ready(answer=_ACCEPTED, facts=facts)


def release(state: JobState, event: ReleaseSavepoint) -> tuple[JobState, Ready]:
    """Release a savepoint to retention. The caller has checked that it exists."""
    durable = state.durable
    if durable.restore is not None and durable.restore.source.id == event.checkpoint:
        return state, _refused(f"the next generation of job {durable.job} begins with savepoint {event.checkpoint}")
    if durable.pending is not None and durable.pending.id == event.checkpoint:
        return state, _refused(f"savepoint {event.checkpoint} is not decided yet")
    facts = (SavepointReleased(checkpoint=event.checkpoint),)
    return record(state, facts), Ready(answer=_ACCEPTED, facts=facts)


def forget(state: JobState, event: ForgetJob) -> tuple[JobState, Ready]:
    """Delete the job. Its ids are never used again, so the work of an old task cannot be taken for a new job's."""
    durable = state.durable
    if durable.status is JobStatus.FORGOTTEN:
        return state, Ready(answer=_DUPLICATE)
    if durable.driven or durable.awaits_driver or durable.pending is not None:
        return state, _refused(f"job {durable.job} has a driver ({durable.status.value}); stop it first")
    if not durable.settled:
        return state, _refused(_unsettled(state))
    if durable.losses:
        return state, _refused(
            f"records of job {durable.job} were given up, and the loss is not acknowledged: onceward losses "
            f"{durable.job}"
        )
    facts: list[Fact] = []
    if durable.driver is not None:  # the generation is the coordinator's
        facts.append(GenerationEnded(generation=durable.generation, detail=Transition.FORGOTTEN.value))
    facts += (JobForgotten(reason=event.reason), moved(durable, Transition.FORGOTTEN, event.reason))
    return record(JobState(durable=durable), facts), Ready(answer=_ACCEPTED, facts=tuple(facts))


def acknowledge_loss(state: JobState, event: AcknowledgeLoss) -> tuple[JobState, Ready]:
    """Remove a loss from the unacknowledged ones. Changes nothing else."""
    key = (event.checkpoint, event.participant)
    unknown = next((one.slots for one in state.durable.losses if (one.checkpoint, one.participant) == key), frozenset())
    slots = event.slots or unknown
    if not slots or not slots <= unknown:
        which = f"slots {sorted(slots - unknown)}" if slots else "slots"
        detail = (
            f"no loss of {which} of {event.participant} in checkpoint {event.checkpoint} waits to be acknowledged; "
            "it was acknowledged before, or there was none"
        )
        return state, _refused(detail)
    fact = LossAcknowledged(
        checkpoint=event.checkpoint, participant=event.participant, slots=slots, reason=event.reason
    )
    return record(state, (fact,)), Ready(answer=_ACCEPTED, facts=(fact,))


def close_output(state: JobState, event: CloseOutput) -> tuple[JobState, Ready]:
    """Take an output off the list of those that the job no longer has."""
    durable, name = state.durable, event.participant
    if not any(one.name == name for one in durable.gone):
        known = any((one.name, one.role) == (name, Role.SINK) for one in durable.participants)
        which = "the job's last driver has it" if known else "it was closed before, or there was none"
        return state, _refused(f"output {name} of job {durable.job} is none that is gone: {which}")
    fact = OutputClosed(participant=name, reason=event.reason)
    return record(state, (fact,)), Ready(answer=_ACCEPTED, facts=(fact,))


def _unsettled(state: JobState) -> str:
    completed = state.durable.completed
    if completed is None:
        return f"whether everything that was decided is settled is not known: {state.durable.unreadable}"
    return (
        f"checkpoint {completed.id} is completed and not settled: its transactions are decided and may still be open. "
        "Start the job once, so that it commits them, then retry"
    )


def _refused(detail: str) -> Ready:
    return Ready(answer=Answer(verdict=Verdict.REFUSED, detail=detail))
