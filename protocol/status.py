"""The states of a job, and every transition between them."""

from collections.abc import Mapping
from enum import StrEnum

__all__ = ["TRANSITIONS", "JobStatus", "Transition", "after"]


class JobStatus(StrEnum):
    """The state of a job, during and between its runs."""

    CREATED = "created"
    """Known, but has never run."""
    RUNNING = "running"
    """A driver owns it."""
    RESTARTING = "restarting"
    """Its generation failed. The driver ends it and returns by itself with the next one."""
    SUSPENDED = "suspended"
    """No driver; the next one continues the job."""
    FINISHING = "finishing"
    """Asked to stop or cancel; what is decided is being settled."""
    FINISHED = "finished"
    """Its bounded input is processed, or it was stopped. Everything is settled."""
    CANCELLED = "cancelled"
    """A person cancelled it. Everything that was decided is settled."""
    HALTED = "halted"
    """Needs a person to decide."""
    FORGOTTEN = "forgotten"
    """A person deleted it. Only its name and last ids remain, so that they are not used again."""


class Transition(StrEnum):
    """Why a job's state changes. The texts are fixed."""

    OPENED = "a driver was granted a generation"
    OPENED_TO_END = "a driver was granted a generation, to end what it was asked to end"
    FAILED = "the generation failed"
    LEFT = "the driver left"
    GIVEN_UP = "the driver is gone"
    ENDING = "an operator requested the end"
    FINISHED = "everything is done and settled"
    CANCELLED = "it was cancelled, and everything decided is settled"
    HALTED = "a person must decide"
    RESOLVED = "an operator decided"
    FORGOTTEN = "a person had it deleted"


_OWNED = frozenset({JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.FINISHING})

TRANSITIONS: Mapping[Transition, tuple[frozenset[JobStatus], JobStatus]] = {
    Transition.OPENED: (frozenset(JobStatus), JobStatus.RUNNING),
    Transition.OPENED_TO_END: (
        frozenset({JobStatus.RESTARTING, JobStatus.SUSPENDED, JobStatus.FINISHING, JobStatus.HALTED}),
        JobStatus.FINISHING,
    ),
    Transition.FAILED: (_OWNED, JobStatus.RESTARTING),
    Transition.LEFT: (_OWNED, JobStatus.SUSPENDED),
    Transition.GIVEN_UP: (_OWNED, JobStatus.SUSPENDED),
    Transition.ENDING: (frozenset({JobStatus.RUNNING}), JobStatus.FINISHING),
    Transition.FINISHED: (_OWNED | {JobStatus.SUSPENDED}, JobStatus.FINISHED),
    Transition.CANCELLED: (_OWNED | {JobStatus.SUSPENDED, JobStatus.HALTED}, JobStatus.CANCELLED),
    Transition.HALTED: (_OWNED | {JobStatus.SUSPENDED, JobStatus.HALTED}, JobStatus.HALTED),
    Transition.RESOLVED: (frozenset({JobStatus.HALTED}), JobStatus.SUSPENDED),
    Transition.FORGOTTEN: (
        frozenset({JobStatus.CREATED, JobStatus.SUSPENDED, JobStatus.FINISHED, JobStatus.CANCELLED, JobStatus.HALTED}),
        JobStatus.FORGOTTEN,
    ),
}
"""For each transition: the states it may start from, and the state it leads to."""


def after(status: JobStatus, transition: Transition) -> JobStatus:
    """The state after ``transition``. Raises ValueError when the transition is not allowed in ``status``."""
    sources, target = TRANSITIONS[transition]
    if status not in sources:
        raise ValueError(f"a job that is {status} cannot change because {transition}")
    return target
