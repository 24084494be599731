"""The coordinators' processes: the real service without sockets, on a database that outlives them."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

import grpc
from greenlet import GreenletExit

from onceward.common.backoff import Backoff
from onceward.common.errors import StoreError
from onceward.coordinator.service.coordinator import Coordinator
from onceward.coordinator.service.documents import Checkers, Vetted
from onceward.coordinator.service.engine import CommitBatch, Engine, UnknownJobError
from onceward.coordinator.service.group_commit import GroupCommit
from onceward.coordinator.service.leading import Gate
from onceward.coordinator.service.orphan import Pace
from onceward.coordinator.service.orphans import Orphans
from onceward.coordinator.service.participants import participant_service
from onceward.coordinator.service.reports import Reports
from onceward.coordinator.service.systems import Systems
from onceward.coordinator.service.watchers import Watchers
from onceward.coordinator.store.store import Store
from onceward.coordinator.store.term import Term
from onceward.protocol.answers import Answer, Note
from onceward.protocol.durable import Durable
from onceward.protocol.events import Event
from onceward.protocol.values import JobName
from onceward.sinks.kafka.documents import KIND, check_committable
from onceward.sources.kafka.positions import KIND as POSITIONS
from onceward.sources.kafka.positions import check_positions
from onceward.wire.rows import GenerationSummary
from onceward.wire.v1 import participants_pb2
from tests.simulation.database import STORE_ID, Database, Session, Step
from tests.simulation.loop import VirtualLoop
from tests.simulation.scheduler import EPOCH, Process, Scheduler
from tests.simulation.streams import break_streams, cut_streams
from tests.support.table_documents import TableFiles

__all__ = ["CoordinatorHost", "wall_clock"]

T = TypeVar("T")

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_PACE = Pace(longest_retry_s=2.0)
"""Fault periods are short, so an attempt that failed during one is retried soon after."""
_SERVICE = participants_pb2.DESCRIPTOR.services_by_name["ParticipantService"]
_METHODS = [f"/{_SERVICE.full_name}/{method.name}" for method in _SERVICE.methods]
_UNNOTICED = 0.2
"""The fraction of deaths that the database notices by the silence alone, as when a machine is gone."""


def wall_clock(clock: Scheduler) -> datetime:
    return _BEGIN + timedelta(seconds=clock.now - EPOCH)


class _Connection:
    """A process's access to the database while it leads: the part of ``Store`` that the engine uses. Begins a term.

    Raises StoreError. After a failure every call raises it: whether the last write happened is unknown.
    """

    def __init__(self, database: Database, session: Session, now: Callable[[], float]) -> None:
        self._database = database
        self._session = session
        self._now = now
        self._confirmed = now()
        self._failure: StoreError | None = None
        self.store_id = STORE_ID
        self.term = Term(number=session.run(database.begin_term, ready=database.unwritten), address="")

    @property
    def leads_for(self) -> float:
        return self._confirmed + self._database.pause_s - self._now()

    @property
    def confirm_in(self) -> float:
        return self._confirmed + self._database.pause_s / 4 - self._now()

    def confirm(self) -> None:
        self._transact(lambda: self._session.run(lambda: self._database.require(self.term.number)))

    def load_jobs(self) -> list[Durable]:
        jobs = self._database.jobs
        return self._transact(lambda: self._session.run(lambda: [jobs[job] for job in sorted(jobs)]))

    def reader(self) -> None:
        """There is none: no listing is asked for."""

    def generations(self, job: JobName, _limit: int) -> list[GenerationSummary]:
        return self._transact(lambda: self._session.run(lambda: [self._database.newest[job]]))

    def apply(self, steps: Sequence[Step], *, at: datetime) -> None:
        self._transact(lambda: self._write(steps, at))

    def note(self, job: JobName, notes: Sequence[tuple[Note, int]], *, at: datetime) -> None:
        """Does nothing: the history is for people, and nothing reads it back."""

    def prune(self, jobs: Sequence[tuple[JobName, int]]) -> bool:
        """Does nothing: this store keeps only the newest completed checkpoint."""
        return True

    def _transact(self, transaction: Callable[[], T]) -> T:
        if self._failure is not None:
            raise self._failure
        begun = self._now()
        try:
            result = transaction()
        except StoreError as error:
            self._failure = error
            raise
        self._confirmed = begun
        return result

    def _write(self, steps: Sequence[Step], at: datetime) -> None:
        database, session = self._database, self._session
        session.run(self._lock)
        dice = database.clock.random.random() if database.failing else 1.0
        if database.failing / 2 <= dice < database.failing:
            self._break("the connection broke before the commit")
        session.run(lambda: self._commit(steps, at), takes=database.works())
        if dice < database.failing / 2:
            self._break("the answer to the commit is lost")
        database.outlived += session.over

    def _lock(self) -> None:
        self._database.require(self.term.number)
        self._session.writes = True

    def _commit(self, steps: Sequence[Step], at: datetime) -> None:
        self._database.write(self.term.number, steps, at)
        self._session.writes = False
        self._database.wake()

    def _break(self, why: str) -> None:
        self._database.failures += 1
        self._session.leave()
        raise StoreError(why)


class _HeardEngine(Engine):
    """The engine, reporting its answers to a listener."""

    def __init__(self, answered: Callable[[int, Event, Answer], None], store: Store, **arguments: Any) -> None:
        super().__init__(store, **arguments)
        self._heard = answered

    def work_out(
        self, batch: CommitBatch, job: JobName, event: Event, *, size: int = 0, vetted: Vetted | None = None
    ) -> Answer:
        state = self._latest.get(job) or self._states.get(job)
        generation = state.durable.generation if state is not None else 0
        answer = super().work_out(batch, job, event, size=size, vetted=vetted)
        self._heard(generation, event, answer)
        return answer


class _Call:
    """The call details that gRPC passes when it looks up a handler."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()


class _Life:
    """A coordinator while it leads: a `Server`, and for its `Gate` a coordinator."""

    def __init__(self, host: "CoordinatorHost", process: Process, clock: Scheduler, session: Session) -> None:
        self.process = process
        self.failed = False
        """True when the store has failed."""
        self._clock = clock
        self._thread = clock.task
        self.loop = VirtualLoop(clock, process)
        self.watchers = Watchers()
        self.store = _Connection(host.database, session, host.now)
        self.engine = _HeardEngine(
            lambda generation, event, answer: host.heard(self, generation, event, answer),
            cast(Store, self.store),
            clock=host.now,
            wall=lambda: wall_clock(clock),
            checkers=Checkers({POSITIONS: check_positions, KIND: check_committable, TableFiles.KIND: TableFiles.check}),
            changed=self._changed,
            failed=self._fail,
        )
        self.group_commit = self.loop.inside(lambda: GroupCommit(self.engine, drivers=lambda: self.watchers.count))
        self.services = (participant_service(self.engine, self.watchers, self.group_commit.handle, Reports()),)
        self.confirm = self.group_commit.confirm
        self._gate = Gate(_METHODS)
        self._gate.open(cast(Coordinator, self))
        self._methods: dict[str, Any] = {}
        systems = host.systems(process)
        self._orphans = self.loop.inside(
            lambda: Orphans(self.engine, self.group_commit, systems, wall=lambda: wall_clock(clock), pace=_PACE)
        )
        self.loop.inside(self.group_commit.start)
        self.loop.inside(self._orphans.start)

    def method(self, path: str) -> Any:
        handler = self._methods.get(path)
        if handler is None:
            handler = self._methods[path] = self._gate.service(cast(grpc.HandlerCallDetails, _Call(path)))
        return handler

    def stop(self) -> None:
        """Stop as a `CoordinatorServer` that stands by. The thread of the process waits for it."""
        self._gate.close("this coordinator has lost its store")
        self._methods.clear()
        stopped = self.loop.inside(lambda: self.loop.create_task(self._stop()))
        stopped.add_done_callback(lambda _: self._wake())
        while not stopped.done():
            self._clock.suspend(None)

    async def _stop(self) -> None:
        await self._orphans.stop()
        self.watchers.stop()
        await self.group_commit.stop()

    def _fail(self) -> None:
        self.failed = True
        self._wake()

    def _wake(self) -> None:
        assert self._thread is not None
        self._clock.wake(self._thread)

    def _changed(self, job: JobName) -> None:
        self.watchers.wake(job)
        self._orphans.changed(job)
        self.group_commit.hurry()


class CoordinatorHost:
    """Runs coordinators, each of which stands by and leads in turn, and notices when a process ends."""

    def __init__(
        self,
        clock: Scheduler,
        database: Database,
        died: Callable[[Process], None],
        answered: Callable[[int, Event, Answer], None],
        systems: Callable[[Process], Systems],
        note: Callable[[str, str], None],
        *,
        movable: bool,
    ) -> None:
        """``answered`` receives every answer of the leader: the generation before it, the event, the answer.

        ``systems``: those with which a process ends the transactions of orphans. ``movable``: the lead
        moves to another process when one fails; otherwise the process ends.
        """
        self.systems = systems
        self.database = database
        self.elections = self.returns = 0
        """Leads that took the place of another process's; processes that led again after they had stepped down."""
        self._answered = answered
        self._clock = clock
        self._died = died
        self._note = note
        self._movable = movable
        self._starts = 0
        self._readings = 0
        self._sessions: dict[Process, Session] = {}
        self._lives: dict[Process, _Life] = {}
        """Those that lead, or do not know yet that they lead no more, the last one last."""

    @property
    def server(self) -> _Life | None:
        """The leader that clients follow: the last one that began to lead."""
        return next(reversed(self._lives.values()), None)

    @property
    def process(self) -> Process | None:
        """The leader's."""
        return None if self.server is None else self.server.process

    def start(self) -> Process:
        """Start a new process on the same database."""
        self._starts += 1
        process = Process(f"coordinator-{self._starts}", "coordinator", self._gone)
        self._clock.running = process
        self._clock.spawn(process, "main", lambda: self._take_turns(process))
        self._clock.running = None
        return process

    def ask(self, event: Event) -> None:
        """Let a person ask the coordinator for something."""
        server = self.server
        if server is None:
            return

        def handle() -> None:
            with contextlib.suppress(StoreError, UnknownJobError):
                for job in list(self.database.jobs):
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

    def now(self) -> float:
        """The time. It advances a little with each reading; otherwise a loop that waits for the next moment would never
        end."""
        self._readings += 1
        return self._clock.now + self._readings * 1e-9

    def _take_turns(self, process: Process) -> None:
        """Stand by and lead in turn, as ``onceward serve`` does."""
        backoff, led = Backoff(first=0.1, longest=1.0), False
        while True:
            session = self._sessions[process] = Session(self.database, process)
            with contextlib.suppress(StoreError):
                session.take_lead()
                life = _Life(self, process, self._clock, session)
                self.returns += led
                led = True
                self._lead(life)
            session.leave()
            self._clock.sleep(backoff.next())

    def _lead(self, life: _Life) -> None:
        process, former = life.process, self.server
        self._lives[process] = life
        self._note(process.name, f"leads, term {life.store.term.number}")
        if former is not None:
            self.elections += 1
            cut_streams(former.process)  # clients follow the new one, sooner or later
        while not life.failed:
            self._clock.suspend(None)
        if not self._movable:
            self._clock.kill(process)
            raise GreenletExit
        self._note(process.name, f"steps down: {life.engine.failure}")
        del self._lives[process]
        life.stop()

    def _gone(self, process: Process) -> None:
        life = self._lives.pop(process, None)
        if life is not None:
            life.watchers._stopping = True  # its streams end, and the dead engine gets no more events
        if not self._movable or self._clock.random.random() >= _UNNOTICED:
            self._sessions.pop(process).leave()
        break_streams(process)
        self._died(process)
