"""A job's states, and every way from one to another."""

from collections.abc import Mapping
from enum import StrEnum

__all__ = ["TRANSITIONS", "JobStatus", "Transition", "after"]


class JobStatus(StrEnum):
    """A job's state between and during its runs."""

    CREATED = "created"
    """Known, never run."""
    RUNNING = "running"
    """A driver owns it."""
    RESTARTING = "restarting"
    """Its generation failed; the driver ends it and comes back as the next one by itself."""
    SUSPENDED = "suspended"
    """No driver; the next one continues."""
    FINISHING = "finishing"
    """It was asked to stop or to cancel; what is decided is being settled."""
    FINISHED = "finished"
    """Its bounded input is processed, or it was stopped; everything is settled."""
    CANCELLED = "cancelled"
    """Cancelled by a person; everything that was decided is settled."""
    HALTED = "halted"
    """Needs a person."""
    FORGOTTEN = "forgotten"
    """A person had it deleted. Only its name and its last ids are left, so that nothing uses them again."""


class Transition(StrEnum):
    """Why a job's state changes. The texts are fixed."""

    OPENED = "a driver was granted a generation"
    OPENED_TO_END = "a driver was granted a generation, to end what it was asked to end"
    FAILED = "the generation failed"
    LEFT = "the driver left"
    GIVEN_UP = "the driver is gone"
    ENDING = "a person asked for the end"
    FINISHED = "everything is done and settled"
    CANCELLED = "it was cancelled, and everything decided is settled"
    HALTED = "a person must decide"
    RESOLVED = "a person has decided"
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
        frozenset({JobStatus.SUSPENDED, JobStatus.FINISHED, JobStatus.CANCELLED, JobStatus.HALTED}),
        JobStatus.FORGOTTEN,
    ),
}
"""From where, and where to."""


def after(status: JobStatus, transition: Transition) -> JobStatus:
    """The state that follows. Raises ValueError for a transition that must not happen in ``status``."""
    sources, target = TRANSITIONS[transition]
    if status not in sources:
        raise ValueError(f"a job that is {status} cannot change because {transition}")
    return target
