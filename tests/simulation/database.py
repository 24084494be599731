"""The coordinators' database: what is durable, who has the lead, and what becomes of a session that is late.

This is the part of PostgreSQL on which a store relies. A session that has the lock leads. The server ends a session
that is silent for too long: it rolls back what is not committed, and the lock is free. It does not end one for which it
works, however long that takes. What a client sends arrives in order, also after the client was stopped or has died. A
file is a database that ends no session of a living process.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar, cast

from onceward.common.errors import StoreError
from onceward.coordinator.store.errors import LeadLostError
from onceward.coordinator.store.term import next_number
from onceward.protocol.durable import Durable
from onceward.protocol.evolve import evolve
from onceward.protocol.facts import Fact, GenerationEnded, GenerationGranted
from onceward.protocol.values import JobName
from onceward.wire.rows import GenerationSummary
from tests.simulation.scheduler import Process, Scheduler, Task

__all__ = ["STORE_ID", "Database", "DatabaseCopy", "Session", "Step"]

T = TypeVar("T")

STORE_ID = "5106a000-0000-4000-8000-000000000000"
Step = tuple[Durable, Sequence[Fact]]
"""Facts, and the job's state after them."""


class FactListener(Protocol):
    def __call__(self, before: Durable, fact: Fact, after: Durable) -> None: ...


@dataclass(frozen=True, kw_only=True)
class DatabaseCopy:
    """What the database held at one moment, as its asynchronous standby has it."""

    jobs: Mapping[JobName, Durable]
    newest: Mapping[JobName, GenerationSummary]
    term: int
    timeline: int


class Database:
    """What is on the disk, and the sessions.

    :param pause_s: seconds of silence after which the server ends a session; infinite for a file.
    :param wrote: called with the term of each write, when it becomes durable.
    """

    waits = True
    """Whether a term begins only when no write of an earlier one is under way."""
    checks = True
    """Whether a write is refused when another term has begun."""
    rolls_back = True
    """Whether the end of a session undoes what it has not committed."""

    def __init__(
        self, clock: Scheduler, listener: FactListener, wrote: Callable[[int], None], *, pause_s: float = math.inf
    ) -> None:
        self.clock = clock
        self.pause_s = pause_s
        self._listener = listener
        self._wrote = wrote
        self.jobs: dict[JobName, Durable] = {}
        self.newest: dict[JobName, GenerationSummary] = {}
        """The newest generation of each job."""
        self.term = 0
        self.timeline = 1
        self.holder: Session | None = None
        """The one that has the lock."""
        self.sessions: list[Session] = []
        self.blocked: list[tuple[Session, _Statement[Any]]] = []
        """Statements that wait for a lock, in the order of their arrival."""
        self.failing = 0.0
        """The fraction of commits that fail, whether or not they took effect."""
        self.late = 0.0
        """The fraction of messages and commits that take about as long as the server tolerates silence, or longer."""
        self.failures = self.lates = self.ended = self.refused = self.outlived = self.waited = 0
        """Commits that failed; what was late; silent sessions that were ended; commits that came after their session's
        end; answers to commits that did; terms that waited for a write."""

    # -- what happens to it

    def copy(self) -> DatabaseCopy:
        return DatabaseCopy(jobs=dict(self.jobs), newest=dict(self.newest), term=self.term, timeline=self.timeline)

    def promote(self, copy: DatabaseCopy) -> None:
        """Put a copy in its place. All sessions are over."""
        self.jobs, self.newest, self.term = dict(copy.jobs), dict(copy.newest), copy.term
        self.timeline = copy.timeline + 1
        for session in list(self.sessions):
            session.end()

    def lose_lock(self) -> bool:
        """Free the lock while its session continues. PostgreSQL never does that; the term alone must hold then."""
        lost, self.holder = self.holder is not None, None
        self.wake()
        return lost

    def heal(self) -> None:
        self.failing = self.late = 0.0

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        self.clock.call(self.clock.outside, seconds, what)

    def wake(self) -> None:
        """Continue the statements for which the locks are free now."""
        for session, statement in list(self.blocked):
            if (session, statement) in self.blocked and statement.ready():
                self.blocked.remove((session, statement))
                session.finish(statement)

    # -- what a statement does

    def begin_term(self) -> int:
        self.term = next_number(self.term, self.timeline)
        return self.term

    def unwritten(self) -> bool:
        """True while no session has locked the record of the term."""
        return not self.waits or not any(session.writes for session in self.sessions)

    def require(self, term: int) -> None:
        """Raises LeadLostError when another term has begun."""
        if self.checks and term != self.term:
            raise LeadLostError("another coordinator leads")

    def write(self, term: int, steps: Sequence[Step], at: datetime) -> None:
        """Write all steps."""
        self._wrote(term)
        for after, facts in steps:
            durable = self.jobs.get(after.job) or Durable(job=after.job, store_id=STORE_ID)
            for fact in facts:
                before, durable = durable, evolve(durable, fact)
                self._note(before.job, fact, at)
                self._listener(before, fact, durable)
            self.jobs[after.job] = after

    def _note(self, job: JobName, fact: Fact, at: datetime) -> None:
        if isinstance(fact, GenerationGranted):
            number, driver = fact.generation, fact.driver
            record = GenerationSummary(generation=number, driver=driver, granted_at=at, ended_at=None, detail="")
            self.newest[job] = record
        elif isinstance(fact, GenerationEnded):
            self.newest[job] = replace(self.newest[job], ended_at=at, detail=fact.detail)

    # -- how long things take

    def travels(self) -> float:
        """Seconds for which a message is under way."""
        return self._late_s() or 0.001 * self.clock.random.random()

    def works(self) -> float:
        """Seconds that a commit takes."""
        random = self.clock.random
        return self._late_s() or random.random() * random.choice((0.001, 0.001, 0.02))

    def _late_s(self) -> float:
        random = self.clock.random
        if not self.late or random.random() >= self.late:
            return 0.0
        self.lates += 1
        return self.pause_s * random.choice((0.5, 1.0, 1.0, 1.5, 4.0))


class _Statement(Generic[T]):
    """What a client has sent, and whose answer it waits for."""

    def __init__(self, work: Callable[[], T], ready: Callable[[], bool], takes: float, task: Task) -> None:
        self.work = work
        self.ready = ready
        self.takes = takes
        self.task = task
        self.answer: Callable[[], T] | None = None
        """Returns what the work returned, or raises."""


class Session:
    """One connection of a process, at both ends."""

    def __init__(self, database: Database, process: Process) -> None:
        self.process = process
        self.over = False
        """The server has ended it."""
        self.writes = False
        """In a transaction that has locked the record of the term."""
        self._database = database
        self._heard = database.clock.now
        """Since when the server waits for the next statement."""
        self._statement: _Statement[Any] | None = None
        """The one for which the server works."""
        self._left = False
        self._arrival = 0.0
        database.sessions.append(self)
        if math.isfinite(database.pause_s):
            database.later(database.pause_s, self._expire)

    # -- the client's end

    def run(self, work: Callable[[], T], *, ready: Callable[[], bool] = lambda: True, takes: float = 0.0) -> T:
        """Let the server do ``work`` as soon as it is ``ready``, and wait for the answer.

        Raises what ``work`` raises, and StoreError when the session is over: then it is unknown whether it was done.
        """
        clock = self._database.clock
        clock.require_alive()
        assert clock.task is not None, "a callback may not wait"
        statement = _Statement(work, ready, takes, clock.task)
        self._send(lambda: self._arrive(statement))
        while statement.answer is None:
            clock.suspend(None)
        return statement.answer()

    def take_lead(self) -> None:
        """Wait for the lock. Raises StoreError."""

        def take() -> None:
            self._database.holder = self

        self.run(take, ready=lambda: self._database.holder is None)

    def leave(self) -> None:
        """Close the connection: the server notices when it has done what was sent before."""
        self._send(self._hang_up)

    def _send(self, what: Callable[[], None]) -> None:
        clock = self._database.clock
        self._arrival = max(self._arrival + 1e-6, clock.now + self._database.travels())
        self._database.later(self._arrival - clock.now, what)

    # -- the server's end

    def end(self) -> None:
        """End it: undo what it has not committed, and free its lock."""
        if self.over:
            return
        database, self.over = self._database, True
        if database.rolls_back:
            self._forget()
        database.sessions.remove(self)
        if database.holder is self:
            database.holder = None
        database.wake()

    def finish(self, statement: _Statement[Any]) -> None:
        """Do what a statement is for, and answer."""
        if statement is not self._statement:
            return  # the session was ended while it worked
        try:
            result = statement.work()
        except StoreError as error:
            self._answer(statement, error)
        else:
            self._answer(statement, None, result)
        self._statement, self._heard = None, self._database.clock.now
        if self._left:
            self.end()

    def _arrive(self, statement: _Statement[Any]) -> None:
        if self.over and (self._database.rolls_back or not self.writes):
            self._database.refused += self.writes
            self._answer(statement, StoreError("the session is over"))
            return
        self._statement = statement
        self._database.later(statement.takes, lambda: self._try(statement))

    def _try(self, statement: _Statement[Any]) -> None:
        if statement is not self._statement or statement.ready():
            self.finish(statement)
        else:
            self._database.waited += self._database.holder is self
            self._database.blocked.append((self, statement))

    def _answer(self, statement: _Statement[T], error: StoreError | None, result: T | None = None) -> None:
        def answer() -> T:
            if error is not None:
                raise error
            return cast(T, result)

        def arrive() -> None:
            statement.answer = answer
            self._database.clock.wake(statement.task)

        self._database.later(self._database.travels(), arrive)

    def _forget(self) -> None:
        statement, self._statement = self._statement, None
        if statement is not None:
            blocked = self._database.blocked
            blocked[:] = [one for one in blocked if one[0] is not self]
            self._answer(statement, StoreError("the session was ended"))

    def _hang_up(self) -> None:
        self._left = True
        if self._statement is None or any(session is self for session, _ in self._database.blocked):
            self.end()

    def _expire(self) -> None:
        if self.over:
            return
        now, pause_s = self._database.clock.now, self._database.pause_s
        due = now + pause_s if self._statement is not None else self._heard + pause_s
        if now >= due:
            self._database.ended += 1
            self.end()
        else:
            self._database.later(max(due - now, 1e-6), self._expire)
