"""Runs the protocol core for all jobs: event in, facts on disk, answer out. Blind to gRPC and to asyncio."""

import logging
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from coordinator.errors import StoreError
from coordinator.killpoints import KillPoint, kill_point
from coordinator.protocol.answers import Answer, Instruction, Note, Verdict
from coordinator.protocol.core import step, wanted
from coordinator.protocol.deadlines import next_deadline
from coordinator.protocol.durable import Durable
from coordinator.protocol.events import Event, OpenJob, Tick
from coordinator.protocol.facts import (
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointSettled,
    CheckpointTriggered,
    Fact,
    GenerationEnded,
    GenerationGranted,
    JobHalted,
)
from coordinator.protocol.state import JobState, restart
from coordinator.protocol.values import NO_CHECKPOINT, NO_GENERATION, Generation, JobName
from coordinator.service.budget import Budget
from coordinator.service.deadlines import Deadlines
from coordinator.service.documents import Checkers
from coordinator.service.housekeeping import Housekeeping
from coordinator.service.story import tell
from coordinator.store.records import HistoryRecord
from coordinator.store.store import Store

__all__ = ["Engine", "UnknownJobError"]

_log = logging.getLogger("onceward.coordinator")

_KILL_POINTS: dict[type[Fact], tuple[KillPoint, KillPoint]] = {
    GenerationGranted: (KillPoint.COORDINATOR_BEFORE_GRANT, KillPoint.COORDINATOR_AFTER_GRANT),
    CheckpointTriggered: (KillPoint.COORDINATOR_BEFORE_TRIGGER, KillPoint.COORDINATOR_AFTER_TRIGGER),
    CheckpointCompleted: (KillPoint.COORDINATOR_BEFORE_DECISION, KillPoint.COORDINATOR_AFTER_DECISION),
    CheckpointAborted: (KillPoint.COORDINATOR_BEFORE_ABORT, KillPoint.COORDINATOR_AFTER_ABORT),
    CheckpointSettled: (KillPoint.COORDINATOR_BEFORE_SETTLED, KillPoint.COORDINATOR_AFTER_SETTLED),
    JobHalted: (KillPoint.COORDINATOR_BEFORE_SETTLED, KillPoint.COORDINATOR_AFTER_SETTLED),
    GenerationEnded: (KillPoint.COORDINATOR_BEFORE_CLOSE, KillPoint.COORDINATOR_AFTER_CLOSE),
}

T = TypeVar("T")


class UnknownJobError(LookupError):
    """No such job, checkpoint or request in this coordinator's store. The state is unchanged."""


class Engine:
    """All jobs of one store. One thread only.

    :param clock: monotonic seconds, for time-outs.
    :param wall: aware wall clock, for people.
    :param changed: called with a job's name after each of its events.
    :param failed: called once when the store has failed.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float],
        wall: Callable[[], datetime],
        checkers: Checkers,
        changed: Callable[[JobName], None] = lambda _job: None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._wall = wall
        self._checkers = checkers
        self._changed = changed
        self._failed = failed
        self.clock = clock
        self.failure: StoreError | None = None
        """The store failed: nothing is answered any more, because nothing in memory can be trusted."""
        self._budget = Budget()
        self._housekeeping = Housekeeping()
        self._deadlines = Deadlines()
        self._states = {durable.job: restart(durable, clock()) for durable in store.load_jobs()}
        for job, state in self._states.items():
            self._deadlines.note(job, next_deadline(state))

    @property
    def store_id(self) -> str:
        return self._store.store_id

    def handle(self, job: JobName, event: Event, *, size: int = 0) -> Answer:
        """Apply one event. Raises UnknownJobError; raises StoreError once the store has failed.

        :param size: bytes that the event took on the wire.
        """
        self._require_store()
        state = self._states.get(job)
        if state is None:
            if not isinstance(event, OpenJob):
                raise self._unknown(job)
            state = JobState(durable=Durable(job=job, store_id=self.store_id))
        problem = self._checkers.problem(state, event) or self._budget.problem(state, event, size)
        if problem is not None:
            return self.refuse(job, event, Answer(verdict=Verdict.INVALID, detail=problem))
        after, ready = step(state, event)
        if ready.facts:
            self._persist(after.durable, ready.facts)
        if ready.facts or job in self._states:  # a refused new job leaves no trace
            self._states[job] = after
            self._deadlines.note(job, next_deadline(after))
            if ready.note is not None:
                self._housekeeping.refused(job, ready.note, self.clock())
            self._changed(job)
        return ready.answer

    def refuse(self, job: JobName, event: Event, answer: Answer) -> Answer:
        """Answer for the protocol what it cannot know; visible in the history."""
        note = Note(
            what=type(event).__name__,
            verdict=answer.verdict,
            generation=getattr(event, "generation", NO_GENERATION),
            checkpoint=getattr(event, "checkpoint", NO_CHECKPOINT),
            participant=getattr(event, "participant", ""),
            detail=answer.detail,
        )
        self._housekeeping.refused(job, note, self.clock())
        self._changed(job)
        return answer

    def tick(self, most: int | None = None) -> int:
        """Let time act on the jobs that are due, the longest first; returns how many these were.

        :param most: at most so many, so that calls are answered in between.
        """
        now, due = self.clock(), list[JobName]()
        while (most is None or len(due) < most) and (job := self._deadlines.pop(now)) is not None:
            due.append(job)
        for job in due:
            self.handle(job, Tick(now=now))
        return len(due)

    def tidy(self, now: float = math.inf) -> bool:
        """Do for one job what nobody waits for: refused calls go to the history, and what retention does not keep goes.

        :param now: only if that is due by then. Returns False when there was nothing to do.
        """
        self._require_store()
        chores = self._housekeeping.take(now)
        if chores is None:
            return False
        self._note(chores.job, chores.refused)
        if chores.prune:
            retained = self._states[chores.job].durable.settings.num_retained
            self._using(lambda: self._store.prune(chores.job, retained))
        return True

    def history(self, job: JobName, limit: int) -> list[HistoryRecord]:
        """What happened to a job, newest first, the refused calls of this moment included. Raises StoreError."""
        self._require_store()
        self._note(job, self._housekeeping.take_refused(job))
        return self.read(lambda store: store.history(job, limit))

    def next_deadline(self) -> float | None:
        """When :meth:`tick` or :meth:`tidy` is due, on the monotonic clock."""
        due = (self._deadlines.first(), self._housekeeping.due)
        return min((deadline for deadline in due if deadline is not None), default=None)

    def wanted(self, job: JobName, generation: Generation) -> tuple[Instruction, ...] | None:
        """What the driver of ``generation`` is wanted to do; None when it is fenced."""
        state = self._states.get(job)
        if state is None or state.durable.driver is None or state.durable.generation != generation:
            return None
        return wanted(state)

    def state(self, job: JobName) -> JobState:
        """Raises UnknownJobError."""
        try:
            return self._states[job]
        except KeyError:
            raise self._unknown(job) from None

    def read(self, query: Callable[[Store], T]) -> T:
        """Ask the store for a listing. Raises StoreError."""
        self._require_store()
        return self._using(lambda: query(self._store))

    def _note(self, job: JobName, refused: Sequence[tuple[Note, int]]) -> None:
        if refused:
            self._using(lambda: self._store.note(job, refused, at=self._wall()))

    def _persist(self, durable: Durable, facts: Sequence[Fact]) -> None:
        points = [_KILL_POINTS[type(fact)] for fact in facts if type(fact) in _KILL_POINTS]
        for before, _ in points:
            kill_point(before)
        self._using(lambda: self._store.apply(durable, facts, at=self._wall()))
        for _, after in points:
            kill_point(after)
        for fact in facts:
            tell(durable.job, durable.generation, fact)
        if any(isinstance(fact, CheckpointCompleted) for fact in facts):
            self._housekeeping.completed(durable.job, self.clock())

    def _using(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except StoreError as error:
            self._fail(error)
            raise

    def _require_store(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _fail(self, error: StoreError) -> None:
        if self.failure is None:
            self.failure = error
            _log.critical("event=store_failed detail=%r", str(error))
            self._failed()
            for job in self._states:
                self._changed(job)

    def _unknown(self, job: JobName) -> UnknownJobError:
        return UnknownJobError(f"job {job} is unknown to this coordinator (store {self.store_id})")
