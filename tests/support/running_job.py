"""A driver's generation and the real protocol core in one process: no broker, no Spark, no network, no clock."""

import io
import random
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from onceward.client.calls import generation_over
from onceward.common.errors import FencedError
from onceward.connectors.interfaces import Plan
from onceward.connectors.tasks import Vote
from onceward.driver.generation import GenerationRun
from onceward.driver.journal import Journal
from onceward.driver.members import Members
from onceward.driver.outputs import Inputs, OpenOutput, Votes
from onceward.driver.per_checkpoint import TasksPerCheckpoint
from onceward.driver.progress import Progress
from onceward.driver.restarts import NO_RESTART, Restart, Restarts
from onceward.driver.runtime import THREADS, Runtime
from onceward.driver.tracing import DriverTraces
from onceward.protocol import events
from onceward.protocol.answers import Answer, Grant, Instruction, Verdict
from onceward.protocol.committing import Age, PreCommitted
from onceward.protocol.core import step, wanted
from onceward.protocol.durable import Durable
from onceward.protocol.phases import Phases
from onceward.protocol.read_progress import ReadProgress
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.state import JobState, restart
from onceward.protocol.values import (
    Author,
    CheckpointId,
    Claim,
    Committable,
    Document,
    Generation,
    JobName,
    JsonObject,
    Outcome,
    Participant,
    ParticipantName,
    Role,
    Settlement,
    Snapshot,
)
from tests.support.documents import committable, document

JOB = JobName("orders")
SOURCE = Participant(name=ParticipantName("in"), role=Role.SOURCE, kind="test")
SINK = Participant(name=ParticipantName("out"), role=Role.SINK, kind="test")
SETTINGS = CheckpointSettings(
    interval=0, timeout="10s", lease="10min", orphan_grace="10min", tolerable_failed_checkpoints=3
)


def nothing(*_: Any) -> None:
    """The default hook: do nothing."""


@dataclass
class Coordinator:
    """The core as client and session of a driver. A test loses, repeats and delays its messages."""

    state: JobState = field(default_factory=lambda: JobState(durable=Durable(job=JOB, store_id="store-a")))
    now: float = 0.0
    sink: Participant = SINK
    answered: Callable[[events.Event, Answer], None] = nothing
    """Called after the core has answered. If it raises, the driver gets that error instead of the answer."""
    hears: Callable[[Instruction], bool] = lambda _: True
    """Whether an instruction reaches the driver."""
    job: JobName = JOB
    repeats: int = 1
    """How many times each wanted instruction is sent after an event."""
    _deliver: Callable[[Instruction], None] | None = None
    _one: threading.RLock = field(default_factory=threading.RLock)

    def handle(self, event: events.Event) -> Answer:
        """Process one event of any sender, then send the wanted instructions to the driver."""
        with self._one:
            self.state, ready = step(self.state, event)
            self.answered(event, ready.answer)
            self.send()
        if ready.answer.verdict is Verdict.FENCED:
            raise generation_over(JOB, self.grant.generation, ready.answer)
        return ready.answer

    def send(self) -> None:
        """Send every instruction that is wanted now."""
        if self._deliver is None:
            return
        for instruction in wanted(self.state) * self.repeats:
            if self.hears(instruction):
                self._deliver(instruction)

    def pass_time(self, seconds: float) -> None:
        """Let time-outs expire. The driver gets their instructions only after the next event."""
        with self._one:
            self.now += seconds
            self.state, _ = step(self.state, events.Tick(now=self.now))

    def restart(self) -> None:
        """Restart the coordinator: it forgets everything that is not durable."""
        with self._one:
            self.state = restart(self.state.durable, self.now)
            self.state, _ = step(self.state, events.Watch(now=self.now, generation=self.generation))

    def give_up(self) -> None:
        """Declare the driver dead: its stream is gone and it stays silent for a lease."""
        with self._one:
            self.state, _ = step(self.state, events.StreamLost(now=self.now, generation=self.generation))
            self.pass_time(SETTINGS.seconds("lease"))
        assert self.state.durable.driver is None

    def settle_for_it(self) -> None:
        """Let the coordinator take the next generation, because the driver does not return."""
        self.give_up()
        with self._one:
            self.pass_time(SETTINGS.seconds("orphan_grace"))
            self.state, _ = step(self.state, events.TakeOrphan(now=self.now, holder="coordinator"))
        assert self.state.durable.orphaned

    def replace_it(self) -> None:
        """Let another driver take the job over."""
        event = events.OpenJob(
            now=self.now,
            driver="another",
            participants=(SOURCE, self.sink),
            settings=SETTINGS,
            claim=None,
            instead_of=self.generation,
        )
        with self._one:
            self.state, _ = step(self.state, event)

    def cancel(self) -> None:
        """Cancel the job, as an operator does."""
        with self._one:
            self.state, _ = step(self.state, events.CancelJob(now=self.now))

    def hang_up(self) -> None:
        """Send the driver nothing any more."""
        self._deliver = None

    # -- as the client and the session

    @property
    def generation(self) -> Generation:
        return self.state.durable.generation

    @property
    def grant(self) -> Grant:
        assert self._granted is not None
        return self._granted

    _granted: Grant | None = None

    driver = ""

    asked_to_open: dict[str, Any] = field(default_factory=dict)
    """The claims and ``takeover`` of the last call to open the job."""

    def open_job(
        self, _job: JobName, _members: object, _settings: object, *claims: Claim | None, driver: str, **options: Any
    ) -> "Coordinator":
        self.driver = driver
        self.asked_to_open = {"claims": claims, "takeover": options["takeover"]}
        event = events.OpenJob(
            now=self.now,
            driver=driver,
            participants=(SOURCE, self.sink),
            settings=SETTINGS,
            claim=None,
            instead_of=self.generation,
        )
        self._granted = self.handle(event).grant
        return self

    def report_oldest(self, oldest: Callable[[], Age | None]) -> None:
        """Ignore it: no listing shows the job."""

    def report_progress(self, progress: Callable[[], ReadProgress | None]) -> None:
        """Do nothing: no listing is read here."""

    def report_aborted(self, aborted: Callable[[], CheckpointId]) -> None:
        """Ignore it: no caller waits for it."""

    def start_watch(self, deliver: Callable[[Instruction], None]) -> None:
        self._deliver = deliver
        self.handle(events.Watch(now=self.now, generation=self.generation))

    def acknowledge(
        self,
        checkpoint: CheckpointId,
        base: CheckpointId,
        snapshots: Mapping[ParticipantName, Snapshot],
        *,
        good_for_s: Callable[[], float | None],
        phases: Phases,
    ) -> tuple[Answer, ...]:
        return tuple(
            self.handle(
                events.Acknowledge(
                    now=self.now,
                    generation=self.grant.generation,
                    checkpoint=checkpoint,
                    participant=participant,
                    base=base,
                    snapshot=snapshot,
                    good_for_s=good_for_s(),
                    phases=phases,
                )
            )
            for participant, snapshot in snapshots.items()
        )

    def decline(
        self,
        checkpoint: CheckpointId,
        participant: ParticipantName,
        reason: str,
        *,
        phases: Phases = MappingProxyType({}),
    ) -> Answer:
        return self.handle(
            events.Decline(
                now=self.now,
                generation=self.grant.generation,
                checkpoint=checkpoint,
                participant=participant,
                reason=reason,
                phases=phases,
            )
        )

    def settle(
        self,
        checkpoint: CheckpointId,
        participant: ParticipantName,
        settlements: tuple[Settlement, ...],
        *,
        amendment: int = 0,
    ) -> Answer:
        return self.handle(
            events.Settle(
                now=self.now,
                generation=self.grant.generation,
                checkpoint=checkpoint,
                participant=participant,
                settlements=settlements,
                amendment=amendment,
            )
        )

    def amend(
        self,
        checkpoint: CheckpointId,
        participant: ParticipantName,
        amendment: int,
        slots: frozenset[int],
        committables: tuple[Committable, ...],
    ) -> Answer:
        return self.handle(
            events.Amend(
                now=self.now,
                generation=self.grant.generation,
                checkpoint=checkpoint,
                participant=participant,
                amendment=amendment,
                slots=slots,
                committables=committables,
            )
        )

    def close(self, reason: events.CloseReason, *, completed: CheckpointId) -> None:
        self.handle(events.CloseJob(now=self.now, generation=self.grant.generation, reason=reason, completed=completed))

    def renew(self) -> None:
        self.handle(events.Renew(now=self.now, generation=self.grant.generation))

    def let_go(self) -> None:
        self.hang_up()

    halted = False
    """Whether the driver left because an operator must decide."""

    left_because = ""
    back_within_s: float | None = None
    """When the driver that has left returns."""
    word: FencedError | None = None
    """The refusal that a leaving driver receives."""

    def abandon(self, detail: str, *, back_within_s: float | None, halted: bool) -> FencedError | None:
        """Leave as if the coordinator could not be reached."""
        self.left_because, self.back_within_s, self.halted = detail, back_within_s, halted
        return self.word


class _Told(Journal):
    """Keep every line."""

    def __init__(self) -> None:
        super().__init__(JOB)
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def log(self, event: str, **facts: Any) -> None:
        self.lines.append((event, facts))
        super().log(event, **facts)


class Job:
    """Source, sink, committer and tasks of one driver: each checkpoint reads ten records and writes one transaction."""

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        until: int,
        running: Callable[[int], None] = nothing,
        runtime: Runtime = THREADS,
        restart: Restart = NO_RESTART,
        last: bool = False,
        traces: DriverTraces | None = None,
    ) -> None:
        """``until``: stop after this checkpoint was run; ``running``: called in its Spark job."""
        self.coordinator = coordinator
        self.until = until
        self.running = running
        self.committing: Callable[[int], None] = nothing
        self.participant: Any = coordinator.sink
        self.ran: list[int] = []
        self.read: dict[int, tuple[int, int]] = {}
        """Checkpoint -> the range that it read."""
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self.ending: Callable[[JobName], Sequence[str]] = lambda _job: ()
        self.swept_beside: list[list[int]] = []
        """The checkpoints that each sweep had to spare."""
        self._journal = _Told()
        source: Any = Input()
        self.source: Any = source
        """The source, which a test may change."""
        same: Any = self
        self.generation = GenerationRun(
            Members(
                job=JOB,
                source=source,
                outputs=(OpenOutput(sink=same, system=same),),
                tasks=same,
                checkpoint_tasks=TasksPerCheckpoint,
                settings=SETTINGS,
                journal=self._journal,
                progress=Progress(JOB, stream=io.StringIO()),
                runtime=runtime,
                traces=traces,
            ),
            same.coordinator,
            Restarts(restart, random.Random(1)),
            takeover=True,
            last=last,
        )

    def told_of(self, event: str) -> list[dict[str, Any]]:
        """Return the facts of the journal's lines about this event, in order."""
        return [facts for reported, facts in self._journal.lines if reported == event]

    # -- tasks

    def start(self) -> None: ...

    def alive(self) -> bool:
        return True

    def quiet(self) -> AbstractContextManager[None]:
        return nullcontext()

    def cancel(self) -> None: ...

    def run(
        self, *, generation: Generation, checkpoint: CheckpointId, plan: Plan, sinks: Collection[ParticipantName]
    ) -> Votes:
        self.ran.append(checkpoint)
        self.read[checkpoint] = (plan.splits[0]["start"], plan.splits[0]["end"])
        self.running(checkpoint)
        if checkpoint >= self.until:
            self.generation.stop()
        return {name: [Vote(slot=0, attempt=0, records=plan.records, bytes=plan.records)] for name in sinks}

    def inputs(self, plan: Plan, votes: Votes) -> Inputs:
        inputs = [plan.splits]
        return dict.fromkeys(votes, inputs)

    # -- sink

    def begin_generation(self, generation: Generation) -> None: ...

    def read_claim(self, job: JobName) -> Claim | None:
        return None

    def take_claim(self, job: JobName, claim: Claim, seen: Collection[Claim]) -> None: ...

    def prepare_claim(self, claim: Claim) -> None: ...

    def renew_claim(self, claim: Claim, *, give_up: Callable[[], bool], **_: Any) -> bool:
        return True

    def on_settled(self, checkpoint: CheckpointId, committables: Sequence[Committable]) -> None: ...

    def pre_commit(self, checkpoint: CheckpointId, *_: Any, leftovers: bool) -> PreCommitted:
        return PreCommitted(committables=(committable(0, checkpoint=checkpoint),))

    # -- committer

    def check(self, author: Author, committables: Sequence[Committable]) -> None: ...

    def confirm(self, committables: Sequence[Committable]) -> None: ...

    def commit(self, author: Author, committables: Sequence[Committable], **_: Any) -> Sequence[Settlement]:
        for checkpoint in _checkpoints(committables):
            self.committing(checkpoint)
            self.committed.append(checkpoint)
        return [Settlement(slot=each.slot, outcome=Outcome.COMMITTED, evidence="") for each in committables]

    def age(self, _committable: Committable) -> Age | None:
        return None

    def abort(self, author: Author, committables: Sequence[Committable]) -> None:
        self.aborted += _checkpoints(committables)

    def sweep(
        self, _job: JobName, *, keep: Collection[Committable] = (), known: Sequence[PreCommitted] = (), **_: Any
    ) -> Sequence[str]:
        if not known:
            self.swept_beside.append(_checkpoints(keep))
        return []


class Input:
    """A source that always has ten more records."""

    participant = SOURCE
    idle_poll_s = 0.05

    def resolve(self) -> Document:
        return _at(0)

    def restore(self, positions: Document) -> None: ...

    def wakes(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    def has_news(self) -> bool:
        return False

    def plan(self, base: Document) -> Plan:
        start = base.body["next"]
        split = {"start": start, "end": start + 10}
        return Plan(splits=(split,), positions=_at(start + 10), records=10, lag=0, finished=False)

    def observe_run(self, plan: Plan, seconds: float, *, failed: bool = False, held: float = 0.0) -> None: ...

    def snapshot(self, plan: Plan) -> Document:
        return plan.positions

    def on_settled(self, positions: Document) -> None: ...

    def mirror(self, positions: Document) -> None: ...

    def diagnose(self, _error: BaseException) -> None:
        return None

    def check_replay(self, splits: Sequence[JsonObject], positions: Document) -> None: ...

    def describe(self, splits: Sequence[JsonObject]) -> str:
        return str(splits)


def _at(offset: int) -> Document:
    return document(next=offset)


def _checkpoints(committables: Collection[Committable]) -> list[int]:
    return [each.document.body["checkpoint"] for each in committables]
