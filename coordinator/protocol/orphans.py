"""Orphans: what a driver that is gone has left is ended by the coordinator, as a generation of its own.

So it fences the driver, should that only have been cut off, and is fenced itself by the next one. It writes nothing and
runs no checkpoint. Its generation lasts until a driver opens the job: there is one for each driver that was lost.
"""

from onceward.coordinator.protocol.answers import Answer, Ready, Verdict
from onceward.coordinator.protocol.events import TakeOrphan
from onceward.coordinator.protocol.facts import Fact, GenerationGranted
from onceward.coordinator.protocol.generations import Step, claim_refusal, granted, moved, terminal_transition
from onceward.coordinator.protocol.state import JobState, record
from onceward.coordinator.protocol.status import JobStatus
from onceward.coordinator.protocol.values import COORDINATOR, MAX_ID, NO_GENERATION, Generation

__all__ = ["due", "reach_end", "take"]

_ENDED = (JobStatus.FINISHED, JobStatus.CANCELLED)


def due(state: JobState) -> float | None:
    """When the coordinator may take the job, monotonic seconds; None when that is not to be: it has a driver, awaits
    one, is taken, has ended with everything settled, or its newest completed checkpoint cannot be read (nobody could
    tell which transactions are decided)."""
    durable = state.durable
    if (
        state.driverless_since is None
        or durable.driver is not None
        or durable.awaits_driver
        or durable.generation == NO_GENERATION
        or durable.status in _ENDED
        or durable.unreadable
    ):
        return None
    return state.driverless_since + durable.settings.seconds("orphan_grace")


def take(state: JobState, event: TakeOrphan) -> tuple[JobState, Ready]:
    """Grant the next generation to the coordinator. What was undecided is aborted since the driver was given up.

    A taken job is granted again after a restart of the coordinator, so that the work goes on.
    """
    durable = state.durable
    if durable.orphaned and not durable.unreadable:
        return state, Ready(answer=granted(durable, durable.participants, Verdict.DUPLICATE))
    since = due(state)
    if since is None or durable.generation >= MAX_ID:
        return state, Ready(answer=Answer(verdict=Verdict.TOO_LATE, detail=f"job {durable.job} is no orphan"))
    if event.now < since:
        detail = f"a driver of job {durable.job} may still come back"
        return state, Ready(answer=Answer(verdict=Verdict.BUSY, detail=detail, retry_after=since - event.now))
    for claim in event.claims:
        refusal = claim_refusal(durable, claim)
        if refusal is not None:
            return state, Ready(answer=Answer(verdict=Verdict.REFUSED, detail=refusal))
    fact = GenerationGranted(
        generation=Generation(durable.generation + 1),
        driver=COORDINATOR,
        participants=durable.participants,
        settings=durable.settings,
        first_id=durable.last_id,
    )
    state = record(state, (fact,))
    answer = granted(state.durable, durable.participants, Verdict.ACCEPTED)
    return state, Ready(answer=answer, facts=(fact,))


def reach_end(state: JobState, _now: float) -> Step:
    """A person asked for the job's end, its driver was lost, and the coordinator has settled the rest."""
    durable = state.durable
    transition = terminal_transition(durable)
    if not durable.orphaned or durable.status is not JobStatus.SUSPENDED or transition is None:
        return state, ()
    facts: tuple[Fact, ...] = (moved(durable, transition),)
    return record(state, facts), facts
