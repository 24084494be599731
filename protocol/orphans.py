"""Orphans: the coordinator ends the transactions of a lost driver, in a generation that it grants to itself.

The generation fences the driver if it was only cut off; the next generation fences the coordinator. The coordinator
writes no records and runs no checkpoint. Its generation lasts until a driver opens the job, so there is one per lost
driver.
"""

from onceward.protocol.answers import Answer, Ready, Verdict
from onceward.protocol.events import TakeOrphan
from onceward.protocol.facts import Fact, GenerationGranted
from onceward.protocol.generations import Step, claim_refusal, granted, moved, terminal_transition
from onceward.protocol.state import JobState, record
from onceward.protocol.status import JobStatus
from onceward.protocol.values import COORDINATOR, MAX_ID, NO_GENERATION, Generation

__all__ = ["due", "reach_end", "take"]

_ENDED = (JobStatus.FINISHED, JobStatus.CANCELLED)


def due(state: JobState) -> float | None:
    """When the coordinator may take the job, in monotonic seconds. None when it may not: the job has a driver, awaits
    one, is already taken, has never run, has ended with everything settled, or its newest completed checkpoint cannot
    be read (then it is unknown which transactions are decided)."""
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
    """Grant the next generation to the coordinator. The undecided checkpoint was aborted when the driver was given up.

    A job that is already taken is granted again, so that the work continues after a restart of the coordinator. The
    claims are compared again too: another copy of the store may have run the job since.
    """
    durable = state.durable
    taken = durable.orphaned and not durable.unreadable
    if not taken:
        since = due(state)
        if since is None or durable.generation >= MAX_ID:
            return state, Ready(answer=Answer(verdict=Verdict.TOO_LATE, detail=f"job {durable.job} is no orphan"))
        if event.now < since:
            detail = f"a driver of job {durable.job} may still come back"
            return state, Ready(answer=Answer(verdict=Verdict.BUSY, detail=detail, retry_after_s=since - event.now))
    for claim in event.claims:
        refusal = claim_refusal(durable, claim)
        if refusal is not None:
            return state, Ready(answer=Answer(verdict=Verdict.REFUSED, detail=refusal))
    if taken:
        return state, Ready(answer=granted(durable, durable.participants, Verdict.DUPLICATE))
    fact = GenerationGranted(
        generation=Generation(durable.generation + 1),
        driver=COORDINATOR,
        holder=event.holder,
        participants=durable.participants,
        settings=durable.settings,
        first_id=durable.last_id,
    )
    state = record(state, (fact,))
    answer = granted(state.durable, durable.participants, Verdict.ACCEPTED)
    return state, Ready(answer=answer, facts=(fact,))


def reach_end(state: JobState, _now: float) -> Step:
    """End the job when a person asked for that, its driver was lost, and the coordinator has settled the rest."""
    durable = state.durable
    transition = terminal_transition(durable)
    if not durable.orphaned or durable.status is not JobStatus.SUSPENDED or transition is None:
        return state, ()
    facts: tuple[Fact, ...] = (moved(durable, transition),)
    return record(state, facts), facts
