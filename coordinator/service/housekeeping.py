"""Background writes: rejected calls for the history, and rows that retention does not keep. They are collected for a
while, so that a flood of calls takes bounded memory and not one write each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from onceward.coordinator.service.deadlines import Deadlines
from onceward.protocol.answers import Note, Verdict
from onceward.protocol.values import NO_CHECKPOINT, NO_GENERATION, JobName

__all__ = ["MAX_DISTINCT", "Chores", "Housekeeping"]

MAX_DISTINCT = 100
"""Distinct rejected calls of one job that are counted separately between two writes."""

_REFUSED_WAIT_S = 1.0
_PRUNE_WAIT_S = 10.0
"""With a checkpoint every second, a job has some more rows meanwhile and a tenth of the prunes."""

_REST = Note(
    what="Others",
    verdict=Verdict.REFUSED,
    generation=NO_GENERATION,
    checkpoint=NO_CHECKPOINT,
    participant="",
    detail=f"further calls that changed nothing, beyond {MAX_DISTINCT} different ones within a second",
)


@dataclass(kw_only=True)
class Chores:
    """The chores of one job. Its history has grown, so retention may have rows to delete."""

    job: JobName
    due: float = math.inf
    """Monotonic seconds."""
    notes: dict[tuple[object, ...], tuple[Note, int]] = field(default_factory=dict)

    @property
    def refused(self) -> Sequence[tuple[Note, int]]:
        """Calls that changed nothing, each with its count."""
        return list(self.notes.values())


class Housekeeping:
    """Chores by job, in the order in which they are due."""

    def __init__(self) -> None:
        self._jobs: dict[JobName, Chores] = {}
        self._due = Deadlines()

    def refused(self, job: JobName, note: Note, now: float) -> None:
        """Count a rejected call. Of equal calls the first one's detail is kept."""
        notes = self._of(job, now + _REFUSED_WAIT_S).notes
        key = _key(note)
        if key not in notes and len(notes) >= MAX_DISTINCT:
            note, key = _REST, _key(_REST)
        first, count = notes.get(key, (note, 0))
        notes[key] = first, count + 1

    def grown(self, job: JobName, now: float) -> None:
        """Note that the job has more rows."""
        self._of(job, now + _PRUNE_WAIT_S)

    def found(self, job: JobName) -> None:
        """Note that the store has rows of an earlier process. They are overdue: that process may not have lived long
        enough to prune."""
        self._of(job, -math.inf)

    @property
    def due(self) -> float | None:
        """When the next chore is due, in monotonic seconds."""
        return self._due.first()

    def take(self, now: float) -> Chores | None:
        """Remove and return the longest overdue chores; None when nothing is due by ``now``."""
        job = self._due.pop(now)
        return self._jobs.pop(job) if job is not None else None

    def take_refused(self, job: JobName) -> Sequence[tuple[Note, int]]:
        """Remove and return the rejected calls of ``job``."""
        chores = self._jobs.get(job)
        if chores is None:
            return ()
        refused = chores.refused
        chores.notes.clear()
        return refused

    def _of(self, job: JobName, due: float) -> Chores:
        chores = self._jobs.setdefault(job, Chores(job=job))
        if due < chores.due:
            chores.due = due
            self._due.note(job, due)
        return chores


def _key(note: Note) -> tuple[object, ...]:
    return note.what, note.verdict, note.generation, note.checkpoint, note.participant
