"""The coordinator's process: the real service without sockets, on a store in memory that outlives it."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Protocol, cast

import grpc
from greenlet import GreenletExit

from onceward.coordinator.errors import StoreError
from onceward.coordinator.listings import GenerationSummary
from onceward.coordinator.protocol.answers import Answer, Note
from onceward.coordinator.protocol.durable import Durable
from onceward.coordinator.protocol.events import Event
from onceward.coordinator.protocol.evolve import evolve
from onceward.coordinator.protocol.facts import Fact, GenerationEnded, GenerationGranted
from onceward.coordinator.protocol.values import JobName
from onceward.coordinator.service.committers import Committers
from onceward.coordinator.service.coordinator import Coordinator
from onceward.coordinator.service.documents import Checkers
from onceward.coordinator.service.engine import CommitBatch, Engine, UnknownJobError
from onceward.coordinator.service.group_commit import GroupCommit
from onceward.coordinator.service.leading import Gate
from onceward.coordinator.service.orphan import Pace
from onceward.coordinator.service.orphans import Orphans
from onceward.coordinator.service.participants import participant_service
from onceward.coordinator.service.reports import Reports
from onceward.coordinator.service.watchers import Watchers
from onceward.coordinator.store.errors import LeadLostError
from onceward.coordinator.store.store import Store
from onceward.coordinator.store.term import Term
from onceward.sinks.kafka.documents import KIND, check_committable
from onceward.sources.kafka.positions import KIND as POSITIONS
from onceward.sources.kafka.positions import check_positions
from tests.simulation.loop import VirtualLoop
from tests.simulation.scheduler import EPOCH, Process, Scheduler
from tests.simulation.streams import break_streams, cut_streams

__all__ = ["STORE_ID", "CoordinatorHost", "MemoryStore", "StoreCopy", "wall_clock"]

STORE_ID = "5106a000-0000-4000-8000-000000000000"
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_PACE = Pace(longest_retry_s=2.0)
"""Fault periods are short, so an attempt that failed during one is retried soon after."""


def wall_clock(clock: Scheduler) -> datetime:
    return _BEGIN + timedelta(seconds=clock.now - EPOCH)


class FactListener(Protocol):
    def __call__(self, before: Durable, fact: Fact, after: Durable) -> None: ...


@dataclass(frozen=True, kw_only=True)
class StoreCopy:
    """What a store held at one moment, as an asynchronous standby of its database has it."""

    jobs: Mapping[JobName, Durable]
    newest: Mapping[JobName, GenerationSummary]
    term: int


class MemoryStore:
    """What is on the disk. A write can fail whether or not it took effect; the process that made it must exit."""

    def __init__(self, random: Random, listener: FactListener) -> None:
        self._random = random
        self._listener = listener
        self.store_id = STORE_ID
        self.jobs: dict[JobName, Durable] = {}
        self.newest: dict[JobName, GenerationSummary] = {}
        """The newest generation of each job."""
        self.failing = 0.0
        """The fraction of writes that fail."""
        self.failures = 0
        self.term = 0
        self.promotions = 0
        """How often a copy has replaced it."""

    def copy(self) -> StoreCopy:
        return StoreCopy(jobs=dict(self.jobs), newest=dict(self.newest), term=self.term)

    def promote(self, copy: StoreCopy) -> None:
        """Put a copy in its place. All connections to the former one are broken."""
        self.jobs, self.newest, self.term = dict(copy.jobs), dict(copy.newest), copy.term
        self.promotions += 1

    def write(self, steps: Sequence[tuple[Durable, Sequence[Fact]]], at: datetime) -> None:
        """Write all steps or none. Raises StoreError when the write fails; it may be durable nevertheless."""
        dice = self._random.random() if self.failing else 1.0
        if dice >= self.failing / 2:
            for after, facts in steps:
                durable = self.jobs.get(after.job) or Durable(job=after.job, store_id=self.store_id)
                for fact in facts:
                    before, durable = durable, evolve(durable, fact)
                    self._note(before.job, fact, at)
                    self._listener(before, fact, durable)
                assert durable == after, "what is in memory follows from what is on the disk"
                self.jobs[after.job] = durable
        if dice < self.failing:
            self.failures += 1
            raise StoreError("the disk said no")

    def _note(self, job: JobName, fact: Fact, at: datetime) -> None:
        if isinstance(fact, GenerationGranted):
            number, driver = fact.generation, fact.driver
            record = GenerationSummary(generation=number, driver=driver, granted_at=at, ended_at=None, detail="")
            self.newest[job] = record
        elif isinstance(fact, GenerationEnded):
            self.newest[job] = replace(self.newest[job], ended_at=at, detail=fact.detail)


class _Connection:
    """One process's access to the store: the part of ``Store`` that the engine uses. Begins a term.

    :param pause_s: seconds of silence after which the database ends the session; infinite for a file.
    """

    def __init__(self, store: MemoryStore, process: Process, now: Callable[[], float], pause_s: float) -> None:
        self._store = store
        self._process = process
        self._now = now
        self._pause_s = pause_s
        self._begun = now()
        self.store_id = store.store_id
        store.term += 1
        self.term = Term(number=store.term, address="")
        self._promotions = store.promotions

    @property
    def leads_for(self) -> float:
        return self._begun + self._pause_s - self._now()

    @property
    def confirm_in(self) -> float:
        return self._begun + self._pause_s / 4 - self._now()

    @property
    def silent(self) -> bool:
        """True when the database ends the session."""
        return self.leads_for <= 0

    def confirm(self) -> None:
        self._contact()

    def load_jobs(self) -> list[Durable]:
        return [self._store.jobs[job] for job in sorted(self._store.jobs)]

    def apply(self, steps: Sequence[tuple[Durable, Sequence[Fact]]], *, at: datetime) -> None:
        self._contact()
        self._store.write(steps, at)

    def _contact(self) -> None:
        if not self._process.alive:
            raise GreenletExit
        if (self._promotions, self.term.number) != (self._store.promotions, self._store.term):
            raise LeadLostError("another coordinator leads")
        self._begun = self._now()

    def note(self, job: JobName, notes: Sequence[tuple[Note, int]], *, at: datetime) -> None:
        """Does nothing: the history is for people, and nothing reads it back."""

    def generations(self, job: JobName, _limit: int) -> list[GenerationSummary]:
        return [self._store.newest[job]]

    def prune(self, jobs: Sequence[tuple[JobName, int]]) -> bool:
        """Does nothing: this store keeps only the newest completed checkpoint."""
        return True


class _HeardEngine(Engine):
    """The engine, reporting its answers to a listener."""

    def __init__(self, answered: Callable[[int, Event, Answer], None], store: Store, **arguments: Any) -> None:
        super().__init__(store, **arguments)
        self._heard = answered

    def work_out(self, batch: CommitBatch, job: JobName, event: Event, *, size: int = 0) -> Answer:
        state = self._latest.get(job) or self._states.get(job)
        generation = state.durable.generation if state is not None else 0
        answer = super().work_out(batch, job, event, size=size)
        self._heard(generation, event, answer)
        return answer


class _Call:
    """The call details that gRPC passes when it looks up a handler."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()


class _Life:
    """One coordinator's process and what runs in it: a `Server`, and for its `Gate` a coordinator."""

    def __init__(self, host: "CoordinatorHost", process: Process, clock: Scheduler) -> None:
        self.process = process
        self.loop = VirtualLoop(clock, process, host.disk)
        self.watchers = Watchers()
        self.store = self.connection = _Connection(host.store, process, host.now, host.pause_s)
        self.engine = _HeardEngine(
            lambda generation, event, answer: host.heard(self, generation, event, answer),
            cast(Store, self.connection),
            clock=host.now,
            wall=lambda: wall_clock(clock),
            checkers=Checkers({POSITIONS: check_positions, KIND: check_committable}),
            changed=self._changed,
            failed=lambda: clock.call(process, 0.0, lambda: clock.kill(process)),
        )
        self.group_commit = self.loop.inside(lambda: GroupCommit(self.engine))
        self.services = (participant_service(self.engine, self.watchers, self.group_commit.handle, Reports()),)
        self.confirm = self.group_commit.confirm
        self._gate = Gate(())
        self._gate.open(cast(Coordinator, self))
        self._methods: dict[str, Any] = {}
        committers = host.committers(process)
        self._orphans = self.loop.inside(
            lambda: Orphans(self.engine, self.group_commit, committers, wall=lambda: wall_clock(clock), pace=_PACE)
        )
        self.loop.inside(self.group_commit.start)
        self.loop.inside(self._orphans.start)

    def method(self, path: str) -> Any:
        handler = self._methods.get(path)
        if handler is None:
            handler = self._methods[path] = self._gate.service(cast(grpc.HandlerCallDetails, _Call(path)))
        return handler

    def _changed(self, job: JobName) -> None:
        self.watchers.wake(job)
        self._orphans.changed(job)
        self.group_commit.hurry()


class CoordinatorHost:
    """Runs coordinators: starts them, and notices when a process ends. The newest one leads.

    :param pause_s: seconds of silence after which the store takes the lead from a process, for another one.
    """

    def __init__(
        self,
        clock: Scheduler,
        store: MemoryStore,
        died: Callable[[Process], None],
        answered: Callable[[int, Event, Answer], None],
        committers: Callable[[Process], Committers],
        *,
        pause_s: float = math.inf,
    ) -> None:
        """``answered`` receives every answer of the leader: the generation before it, the event, the answer.

        ``committers`` makes the committers with which a process ends the transactions of orphans.
        """
        self.committers = committers
        self.store = store
        self.pause_s = pause_s
        self._answered = answered
        self._clock = clock
        self._died = died
        self._starts = 0
        self._readings = 0
        self._lives: dict[Process, _Life] = {}
        self.server: _Life | None = None
        """The leader."""

    @property
    def process(self) -> Process | None:
        """The leader's."""
        return None if self.server is None else self.server.process

    @property
    def silent(self) -> bool:
        """True when there is no leader, or the store has taken the lead from it."""
        return self.server is None or self.server.connection.silent

    def start(self) -> Process:
        """Start a new process on the same store; it leads."""
        self._starts += 1
        process = Process(f"coordinator-{self._starts}", "coordinator", self._gone)
        if self.server is not None:
            cut_streams(self.server.process)  # clients follow the new one, sooner or later
        self.server = self._lives[process] = _Life(self, process, self._clock)
        return process

    def ask(self, event: Event) -> None:
        """Let a person ask the coordinator for something."""
        server = self.server
        if server is None:
            return

        def handle() -> None:
            with contextlib.suppress(StoreError, UnknownJobError):
                for job in list(self.store.jobs):
                    asked = replace(event, now=self.now())
                    server.loop.inside(lambda job=job, asked=asked: server.group_commit.handle(job, asked))  # type: ignore[misc]

        self._clock.call(server.process, 0.0, handle)

    def heard(self, life: _Life, generation: int, event: Event, answer: Answer) -> None:
        if life is self.server:
            self._answered(generation, event, answer)

    def close(self) -> None:
        """End the streams: the world is over."""
        for life in self._lives.values():
            life.watchers._stopping = True

    def _gone(self, process: Process) -> None:
        life = self._lives.pop(process)
        life.watchers._stopping = True  # its streams end, and the dead engine gets no more events
        if life is self.server:
            self.server = None
        break_streams(process)
        self._died(process)

    def now(self) -> float:
        """The time. It advances a little with each reading; otherwise a loop that waits for the next moment would never
        end."""
        self._readings += 1
        return self._clock.now + self._readings * 1e-9

    def disk(self) -> tuple[float, float]:
        random = self._clock.random
        return random.random() * random.choice((0.001, 0.001, 0.02)), 0.0005 * random.random()
