"""Runs the protocol core for all jobs: event in, facts on disk, answer out. Independent of gRPC and asyncio."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import TypeVar

from onceward.common.errors import StoreError
from onceward.common.killpoints import KillPoint, kill_point
from onceward.common.printable import log_fields, logger
from onceward.coordinator.service.budget import Budget
from onceward.coordinator.service.commit_times import RecentCommits
from onceward.coordinator.service.deadlines import Deadlines
from onceward.coordinator.service.documents import Checkers, Vetted
from onceward.coordinator.service.housekeeping import Chores, Housekeeping
from onceward.coordinator.service.observer import Observer
from onceward.coordinator.service.quotas import jobs_refusal, quota_refusal
from onceward.coordinator.service.transition_log import log_transition
from onceward.coordinator.store.reader import Reader
from onceward.coordinator.store.store import Store
from onceward.protocol.answers import Answer, Instruction, Note, Verdict
from onceward.protocol.core import next_deadline, note_of, step, wanted
from onceward.protocol.durable import Durable
from onceward.protocol.events import Event, OpenJob, PermitAdoption, Tick
from onceward.protocol.facts import (
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointSettled,
    CheckpointTriggered,
    Fact,
    GenerationEnded,
    GenerationGranted,
    JobHalted,
)
from onceward.protocol.generations import fenced_answer
from onceward.protocol.state import JobState, restart
from onceward.protocol.status import JobStatus
from onceward.protocol.values import MAX_ID, Generation, JobName

__all__ = ["CommitBatch", "Engine", "UnknownJobError"]

_log = logger("onceward.coordinator")

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


@dataclass(eq=False)
class CommitBatch:
    """The changes of some events, stored as one write. They are worked out as events arrive, then stored, then
    published."""

    steps: list[tuple[Durable, Sequence[Fact]]] = field(default_factory=list)
    """What to write, in order: facts, and the job's durable state after them."""
    states: dict[JobName, JobState] = field(default_factory=dict)
    """The jobs' states after these steps."""
    refused: list[tuple[JobName, Note]] = field(default_factory=list)
    stored_s: float = 0.0
    """How long the write took."""

    def add(self, later: "CommitBatch") -> None:
        """Append ``later``, which was worked out after this one."""
        self.steps += later.steps
        self.states |= later.states
        self.refused += later.refused


class Engine:
    """All jobs of one store. Use from one thread only.

    :param clock: monotonic seconds, for timeouts.
    :param wall: aware wall clock, for display.
    :param changed: called with a job's name after each of its events.
    :param failed: called once when the store has failed.
    :param calling: the name of the peer whose event is worked out; empty if peers have no names.
    :param memory: bytes that the process may use; by default what the machine or the container has.
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
        calling: Callable[[], str] = lambda: "",
        memory: int | None = None,
    ) -> None:
        self._store = store
        self._wall = wall
        self._checkers = checkers
        self._changed = changed
        self._failed = failed
        self.clock = clock
        self.observer: Observer | None = None
        """Is called as facts and refusals pass."""
        self.commits = RecentCommits(clock)
        """How fast the store is. Read it while nothing is written."""
        self.failure: StoreError | None = None
        """Set when the store has failed. Nothing is answered then, because the state in memory cannot be trusted."""
        self._budget = Budget(memory, calling)
        self._housekeeping = Housekeeping()
        self._deadlines = Deadlines()
        self._latest: dict[JobName, JobState] = {}
        """States worked out but not yet published; they may not be on disk."""
        self._states = {durable.job: restart(durable, clock()) for durable in store.load_jobs()}
        self._kept = sum(map(_is_kept, self._states.values()))
        """How many jobs count towards the limit, with what is worked out but not yet published."""
        for job, state in self._states.items():
            self._deadlines.note(job, next_deadline(state))
            self._housekeeping.found(job)
            self._budget.follow(state)
            if state.durable.unreadable:
                said = {"job": job, "event": "unreadable", "detail": state.durable.unreadable}
                _log.error("%s", log_fields(said))

    @property
    def store_id(self) -> str:
        return self._store.store_id

    @property
    def leads_for(self) -> float:
        """For how many seconds no other coordinator can lead; not above 0 if the store must be asked first."""
        return self._store.leads_for

    @property
    def confirm_in(self) -> float:
        """In how many seconds the store is to be asked again whether this coordinator leads."""
        return self._store.confirm_in

    def vet(self, job: JobName, event: Event) -> Vetted:
        """Check the documents of a long event, for :meth:`work_out`. May be called in any thread."""
        state = self._latest.get(job) or self._states.get(job)
        durable = state.durable if state is not None else Durable(job=job, store_id=self.store_id)
        return self._checkers.vet(durable, event)

    def work_out(
        self, batch: CommitBatch, job: JobName, event: Event, *, size: int = 0, vetted: Vetted | None = None
    ) -> Answer:
        """Add the event's changes to ``batch``. Send the answer only after ``batch`` is stored and published.

        Builds on everything worked out before, stored or not. Raises UnknownJobError, and StoreError once the store has
        failed.

        :param size: size of the event on the wire, in bytes.
        :param vetted: what :meth:`vet` found; the documents are checked now if there is none.
        """
        self._require_store()
        state = self._latest.get(job) or self._states.get(job)
        known = state is not None
        if state is None:
            if not isinstance(event, OpenJob | PermitAdoption):  # a wiped store does not know the job
                raise self._unknown(job)
            state = JobState(durable=Durable(job=job, store_id=self.store_id))
        if (refusal := quota_refusal(event)) is not None:
            return refusal
        verdict, problem = Verdict.INVALID, self._checkers.problem(state, event, vetted)
        if problem is None:
            verdict, problem = Verdict.REFUSED, self._budget.problem(state, event, size)
        if problem is not None:
            answer = Answer(verdict=verdict, detail=problem)
            if (note := note_of(event, answer)) is not None:
                batch.refused.append((job, note))
            return answer
        after, ready = step(state, event)
        more = _is_kept(after) - (known and _is_kept(state))
        if more > 0 and ready.facts and (refusal := jobs_refusal(self._kept)) is not None:
            return refusal
        if ready.facts:
            batch.steps.append((after.durable, ready.facts))
        if ready.facts or known:  # a rejected call for a new job leaves no trace
            batch.states[job] = self._latest[job] = after
            self._kept += more
            self._budget.follow(after)
            if ready.note is not None:
                batch.refused.append((job, ready.note))
        return ready.answer

    def keep(self, batch: CommitBatch) -> None:
        """Store the batch in one write; it is on disk when this returns. Raises StoreError.

        May run in any thread. Other events may be worked out meanwhile, but nothing else may use the store.
        """
        facts = [fact for _, facts in batch.steps for fact in facts]
        points = [_KILL_POINTS[type(fact)] for fact in facts if type(fact) in _KILL_POINTS]
        for before, _ in points:
            kill_point(before)
        began = self.clock()
        self._store.apply(batch.steps, at=self._wall())
        batch.stored_s = self.clock() - began
        self.commits.add(batch.stored_s)
        if self.observer is not None:
            self.observer.committed(batch.stored_s)
        for _, after in points:
            kill_point(after)

    def publish(self, batch: CommitBatch) -> None:
        """Make the changes visible; they are on disk now. Call it for batches in the order in which they were begun."""
        for durable, facts in batch.steps:
            for fact in facts:
                log_transition(durable.job, durable.generation, fact)
            if any(isinstance(fact, CheckpointCompleted | CheckpointAborted | GenerationEnded) for fact in facts):
                self._housekeeping.grown(durable.job, self.clock())
        for job, state in batch.states.items():
            self._states[job] = state
            if self._latest.get(job) is state:
                del self._latest[job]
            self._deadlines.note(job, next_deadline(self._latest.get(job, state)))
        for job, note in batch.refused:
            self._housekeeping.refused(job, note, self.clock())
        if self.observer is not None:
            self._show(batch, self.observer)
        for job in {**batch.states, **dict(batch.refused)}:
            self._changed(job)

    def _show(self, batch: CommitBatch, observer: Observer) -> None:
        now = self._wall()
        for durable, facts in batch.steps:
            observer.published(durable, facts, now, batch.stored_s)
        for _, note in batch.refused:
            observer.refused(note)

    def at_rest(self, job: JobName) -> bool:
        """True when no change of the job is worked out but unpublished."""
        return job not in self._latest

    def due(self, batch: CommitBatch, most: int) -> None:
        """Let time act on at most ``most`` due jobs, the longest overdue first, as part of ``batch``."""
        now = self.clock()
        for _ in range(most):
            job = self._deadlines.pop(now)
            if job is None:
                return
            self.work_out(batch, job, Tick(now=now))

    def tidy(self) -> None:
        """Do all housekeeping now, due or not. Raises StoreError."""
        try:
            while chores := self.chores(math.inf, 1):
                self.do(chores)
        except StoreError as error:
            self.fail(error)
            raise

    def chores(self, now: float, most: int) -> Sequence[tuple[Chores, int]]:
        """Take the due chores, to pass to :meth:`do`, each with the number of checkpoints to retain."""
        self._require_store()
        taken = islice(iter(lambda: self._housekeeping.take(now), None), most)
        return [(one, self._retained(one.job)) for one in taken]

    def _retained(self, job: JobName) -> int:
        durable = self._states[job].durable
        return durable.settings.num_retained if not durable.record_damaged else MAX_ID  # its settings are unknown

    def do(self, chores: Sequence[tuple[Chores, int]]) -> None:
        """Do the chores. Raises StoreError. May run in any thread, like :meth:`keep`."""
        for one, _ in chores:
            if one.refused:
                self._store.note(one.job, one.refused, at=self._wall())
        self._store.prune([(one.job, retained) for one, retained in chores])

    def take_refused(self, job: JobName) -> Callable[[Store], None] | None:
        """A query for :meth:`ask` that writes the job's rejected calls to its history; None if all are written."""
        refused, at = self._housekeeping.take_refused(job), self._wall()
        return (lambda store: store.note(job, refused, at=at)) if refused else None

    def refused(self, job: JobName, note: Note) -> bool:
        """Have the history show a call that was refused before it became an event. False for a job that is not known:
        it has none."""
        if job not in self._states:
            return False
        self._housekeeping.refused(job, note, self.clock())
        self._changed(job)
        return True

    def next_deadline(self) -> float | None:
        """When :meth:`due` or :meth:`chores` next has something to do, on the monotonic clock."""
        due = (self._deadlines.first(), self._housekeeping.due)
        return min((deadline for deadline in due if deadline is not None), default=None)

    def wanted(self, job: JobName, generation: Generation, driver: str | None) -> tuple[Instruction, ...] | None:
        """The instructions for ``driver``, the one of ``generation``; None when it is fenced."""
        state = self._states.get(job)
        if state is None or state.durable.driver is None or state.durable.generation != generation:
            return None
        if driver != state.durable.driver:
            return None
        return wanted(state)

    def fenced_answer(self, job: JobName, generation: Generation) -> Answer:
        """The answer to the fenced driver of ``generation``. Raises UnknownJobError."""
        return fenced_answer(self.state(job).durable, generation)

    def state(self, job: JobName) -> JobState:
        """The published state of ``job``. Raises UnknownJobError."""
        try:
            return self._states[job]
        except KeyError:
            raise self._unknown(job) from None

    def jobs(self) -> list[JobName]:
        """All known jobs."""
        return list(self._states)

    def states(self) -> list[JobState]:
        """The published states of all known jobs. May be called in any thread."""
        return list(self._states.values())

    def reader(self) -> Reader | None:
        """What lists the store beside its writes, in one other thread; None if nothing can."""
        return self._store.reader()

    def ask(self, query: Callable[[Store], T]) -> T:
        """Run a query on the store. Raises StoreError. May run in any thread, like :meth:`keep`."""
        return query(self._store)

    def _require_store(self) -> None:
        if self.failure is not None:
            raise self.failure

    def fail(self, error: StoreError) -> None:
        """Record that the store failed: the state in memory cannot be trusted. On the engine's thread."""
        if self.failure is None:
            self.failure = error
            _log.critical("%s", log_fields({"event": "store_failed", "detail": error}))
            self._failed()
            for job in self._states:
                self._changed(job)

    def _unknown(self, job: JobName) -> UnknownJobError:
        return UnknownJobError(f"job {job} is unknown to this coordinator (store {self.store_id})")


def _is_kept(state: JobState) -> bool:
    return state.durable.status is not JobStatus.FORGOTTEN
