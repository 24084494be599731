"""Runs the protocol core for all jobs: event in, facts on disk, answer out. Blind to gRPC and to asyncio."""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from coordinator.errors import StoreError
from coordinator.killpoints import KillPoint, kill_point
from coordinator.protocol.answers import Answer, Instruction, Verdict
from coordinator.protocol.core import step, wanted
from coordinator.protocol.deadlines import next_deadline
from coordinator.protocol.events import Acknowledge, Event, OpenJob, Tick
from coordinator.protocol.facts import (
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointSettled,
    CheckpointTriggered,
    Fact,
    GenerationGranted,
    JobClosed,
    JobHalted,
)
from coordinator.protocol.state import Durable, JobState, restart
from coordinator.protocol.values import Generation, JobName
from coordinator.service.documents import Checkers
from coordinator.service.story import tell
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
    JobClosed: (KillPoint.COORDINATOR_BEFORE_CLOSE, KillPoint.COORDINATOR_AFTER_CLOSE),
}

T = TypeVar("T")


class UnknownJobError(LookupError):
    """No such job in this coordinator's store. The state is unchanged."""


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
        self._states = {durable.job: restart(durable, clock()) for durable in store.load_jobs()}
        self._deadlines: dict[JobName, float] = {}
        for job, state in self._states.items():
            self._note_deadline(job, state)

    @property
    def store_id(self) -> str:
        return self._store.store_id

    def handle(self, job: JobName, event: Event) -> Answer:
        """Apply one event. Raises UnknownJobError; raises StoreError once the store has failed."""
        self._require_store()
        state = self._states.get(job)
        if state is None:
            if not isinstance(event, OpenJob):
                raise UnknownJobError(f"job {job} is unknown to this coordinator (store {self.store_id})")
            state = JobState(durable=Durable(job=job, store_id=self.store_id))
        if isinstance(event, Acknowledge):
            problem = self._checkers.problem(state, event)
            if problem is not None:
                return Answer(verdict=Verdict.INVALID, detail=problem)
        after, ready = step(state, event)
        if ready.facts:
            self._persist(job, ready.facts, after.durable.generation)
        if ready.facts or job in self._states:  # a refused new job leaves no trace
            self._states[job] = after
            self._note_deadline(job, after)
            self._changed(job)
        return ready.answer

    def tick(self) -> None:
        """Let time act on every job that is due."""
        now = self.clock()
        for job in [job for job, deadline in self._deadlines.items() if deadline <= now]:
            self.handle(job, Tick(now=now))

    def next_deadline(self) -> float | None:
        """When :meth:`tick` is due, on the monotonic clock."""
        return min(self._deadlines.values(), default=None)

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
            raise UnknownJobError(f"job {job} is unknown to this coordinator (store {self.store_id})") from None

    def read(self, query: Callable[[Store], T]) -> T:
        """Ask the store for a listing. Raises StoreError."""
        self._require_store()
        try:
            return query(self._store)
        except StoreError as error:
            self._fail(error)
            raise

    def _persist(self, job: JobName, facts: Sequence[Fact], generation: Generation) -> None:
        points = [_KILL_POINTS[type(fact)] for fact in facts if type(fact) in _KILL_POINTS]
        for before, _ in points:
            kill_point(before)
        try:
            self._store.apply(job, facts, at=self._wall())
        except StoreError as error:
            self._fail(error)
            raise
        for _, after in points:
            kill_point(after)
        for fact in facts:
            tell(job, generation, fact)

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

    def _note_deadline(self, job: JobName, state: JobState) -> None:
        deadline = next_deadline(state)
        if deadline is None:
            self._deadlines.pop(job, None)
        else:
            self._deadlines[job] = deadline
