"""Hunts for bugs of the claim: two stores run the same job, and each is paused at every step of the other.

The stores are the core, the brokers are modelled. The driver's work is reimplemented here in short form, around the
sink's own claim, sweep and commit.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from random import Random
from typing import Any, NamedTuple

from onceward.common.errors import ClaimChangedError, FencedError, RefusedError
from onceward.protocol.answers import Answer, Verdict
from onceward.protocol.core import step
from onceward.protocol.durable import Durable
from onceward.protocol.events import Acknowledge, Event, OpenJob, Settle, TakeOrphan, Tick, Watch
from onceward.protocol.state import JobState, restart
from onceward.protocol.values import (
    CheckpointId,
    Claim,
    Committable,
    Generation,
    Outcome,
    Snapshot,
)
from onceward.sinks.kafka.control.claim_reading import read_claim
from onceward.sinks.kafka.control.claims import ClaimHolder
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.committables import KafkaCommittable, TopicRecords
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.control.transactions import Transaction
from tests.mutants.breaking import Break
from tests.mutants.mutant import Finding
from tests.simulation.checker import Invariant
from tests.support.documents import author, document
from tests.support.kafka_model import Call, DirectTransport, SimControl
from tests.support.kafka_model.bench import Bench, Ids
from tests.support.running_job import JOB, SETTINGS, SINK, SOURCE

__all__ = ["Fork", "Rivals", "claimed"]

_START = datetime(2026, 1, 1, tzinfo=UTC)
_RECORDS = 3
_COPIED = 3
"""The checkpoint during which the second store is copied from the first."""
_LIVES = 3
"""Maximum generations that one driver process tries. It retries when the claim changed while it opened the job."""


class _Turn(NamedTuple):
    who: int
    requests: int
    killed: bool = False
    """Whether the driver is killed after the turn and started again."""

    def __str__(self) -> str:
        return f"{self.requests} requests of {'ab'[self.who]}{' and a kill' if self.killed else ''}"


@dataclass(frozen=True, kw_only=True)
class Rivals:
    """Two drivers, each with its own store. Every record must be visible once, wherever and however long one is paused.

    Afterwards both are started again, one after the other.
    """

    name: str
    copy: bool
    """Whether the second store is a copy of the first, made before a decision; otherwise both are new."""
    together: bool = False
    """Whether both drivers start on such a copy. Otherwise the first one continues from where the copy was made."""
    every: int = 1
    """Requests between two points at which the second driver is paused."""
    chances: int = 0
    """Additional random schedules, in which both are paused often, and killed."""

    def find(self, breaks: Break) -> Finding | None:
        tried = 0
        with breaks():
            for schedule in (*self._pauses(), *self._by_chance()):
                tried += 1
                seen = _World(self).play(schedule)
                wrong = [offset for offset, times in Counter(seen).items() if times > 1]
                how = ", ".join(str(turn) for turn in schedule)
                if wrong:
                    text = f"records {wrong} are visible twice: {how}"
                    return Finding(invariant=Invariant.I2, text=text, effort=f"{tried:,} schedules")
                if len(seen) < _RECORDS:
                    text = f"only records {seen} are visible: {how}"
                    return Finding(invariant=Invariant.I8, text=text, effort=f"{tried:,} schedules")
        return None

    def _pauses(self) -> Iterator[list[_Turn]]:
        alone = [_World(self).requests(first=first) for first in (True, False)]
        for first, second in product(range(alone[0] + 1), range(0, alone[1] + self.every, self.every)):
            yield [_Turn(0, first), _Turn(1, second)]

    def _by_chance(self) -> Iterator[list[_Turn]]:
        for number in range(self.chances):
            random = Random(number)
            yield [
                _Turn(turn % 2, random.choice((1, 3, 7, 15)) + random.randint(0, 3), random.random() < 0.3)
                for turn in range(random.randint(4, 12))
            ]


@dataclass(frozen=True, kw_only=True)
class Fork:
    """Two copies of one store grant the same generations, and each completes the same checkpoint. Only one commits it.
    The other must be refused, although it knows as many generations and checkpoints as are claimed."""

    name: str = "two copies of one store that complete the same checkpoint"
    orphan: bool = False
    """Whether the coordinator has the generation on the one that commits nothing."""

    def find(self, breaks: Break) -> Finding | None:
        with breaks():
            world = _World(Rivals(name=self.name, copy=True, together=not self.orphan))
            seen = world.orphan() if self.orphan else world.fork()
        twice = [offset for offset, times in Counter(seen).items() if times > 1]
        if not twice and len(seen) == _RECORDS:
            return None
        invariant = Invariant.I2 if twice else Invariant.I8
        return Finding(invariant=invariant, text=f"records {seen} are visible", effort="1 schedule")


class _World:
    def __init__(self, what: Rivals) -> None:
        self._bench = Bench()
        self._first = _Driver(self._bench, "a", JobState(durable=Durable(job=JOB, store_id="store-a")))
        self._second = _Driver(self._bench, "b", JobState(durable=Durable(job=JOB, store_id="store-b")))
        self._what = what
        if what.copy:
            self._first.run(until=lambda: self._first.pending == _COPIED)
            copy = self._first.state.durable
            self._second.state = restart(copy, 0.0)
            if what.together:
                self._first = _Driver(self._bench, "c", restart(copy, 0.0))

    def requests(self, *, first: bool) -> int:
        """How many requests one of them sends when it runs alone."""
        driver = self._first if first else self._second
        before = driver.requests
        driver.run()
        return driver.requests - before

    def play(self, schedule: Sequence[_Turn]) -> list[int]:
        """What readers see after the schedule, when both have ended and were started again."""
        drivers = [self._first, self._second]
        for turn in schedule:
            driver = drivers[turn.who]
            driver.run(requests=turn.requests)
            if turn.killed:
                driver.kill()
                drivers[turn.who] = driver.again()
        return self._ended(*drivers)

    def fork(self) -> list[int]:
        """What readers see at the end."""
        first, second = self._first, self._second
        first.run(until=lambda: first.state.durable.generation == 2)
        second.run(until=lambda: second.state.durable.base > _COPIED)  # not claimed, so not committed
        second.kill()
        again = second.again()
        again.run(until=lambda: again.state.durable.generation == 3)  # on its own claim, which it has not taken again
        # It has committed the same checkpoint, and only decided the next.
        first.run(until=lambda: first.state.durable.base > second.state.durable.base)
        first.kill()
        return self._ended(again, first)

    def orphan(self) -> list[int]:
        """The same, of a driver that is killed after a decision: its coordinator takes the generation that the other
        copy grants to a driver."""
        self._first.kill()
        first, second = self._first.again(), self._second
        first.run(until=lambda: first.state.durable.generation == 2)
        second.state = restart(first.state.durable, 0.0)  # a copy in which no id is burnt yet
        first.run(until=lambda: first.state.durable.base > _COPIED)  # not claimed, so not committed
        first.kill()
        first.orphan()
        second.run(until=lambda: len(self._visible()) == 2)
        second.kill()
        assert first.state.durable.generation == second.state.durable.generation
        return self._ended(first, second)

    def _ended(self, *drivers: "_Driver") -> list[int]:
        for driver in drivers:
            driver.run()
        for driver in drivers:
            driver.again().run()
        return self._visible()

    def _visible(self) -> list[int]:
        self._bench.wait(1)
        return [int(value or b"") for value in self._bench.visible()]


class _Killed(BaseException):
    """The process was killed."""


class _Driver(DirectTransport):
    """One driver with its store, in a thread that runs only when released, from request to request."""

    def __init__(self, bench: Bench, name: str, state: JobState) -> None:
        super().__init__()
        self.name = name
        self.state = state
        self.requests = 0
        self._bench = bench
        self._control = SimControl(bench.cluster, self)
        self._clock = Clock(
            now=lambda: _START + timedelta(seconds=self.now()), monotonic=self.now, wait=bench.transport.sleep
        )
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._ended = self._killed = False
        self._failure: BaseException | None = None
        self._ids = 0
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def again(self) -> "_Driver":
        """The next process of this driver, with what is durable."""
        return _Driver(self._bench, chr(ord(self.name) + 4), restart(self.state.durable, 0.0))

    # -- control by the world

    @property
    def pending(self) -> int:
        return self.state.durable.pending.id if self.state.durable.pending is not None else 0

    def run(self, *, requests: int = 100_000, until: Callable[[], bool] = lambda: False) -> None:
        """Run for the given number of requests, or to the end."""
        for _ in range(requests):
            if self._ended or until():
                break
            self._go.release()
            self._stopped.acquire()
        if self._failure is not None:
            raise self._failure

    def kill(self) -> None:
        if not self._ended:
            self._killed = True
            self.run(requests=1)

    def orphan(self) -> None:
        """Let the coordinator take the job: the driver that had it is given up."""
        self.state = restart(self.state.durable, 0.0)
        for event in (Tick(now=1e6), TakeOrphan(now=2e6, holder=f"coordinator of {self.name}")):
            self._tell(event)
        assert self.state.durable.orphaned

    def now(self) -> float:
        return self._bench.transport.now()

    def send(self, calls: Sequence[Call]) -> list[Any]:
        self._stopped.release()
        self._go.acquire()
        if self._killed:
            raise _Killed
        self.requests += 1
        self._bench.wait(0.001)
        return [call.apply(self.now(), 1) for call in calls]

    # -- the driver's work

    def _live(self) -> None:
        self._go.acquire()
        try:
            for life in range(_LIVES):
                try:
                    self._generation(f"{self.name}-{life}")
                except ClaimChangedError:
                    continue
                except (FencedError, RefusedError):
                    pass
                break
        except _Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - ``run`` raises it in the test
            self._failure = error
        self._ended = True
        self._stopped.release()

    def _generation(self, token: str) -> None:
        seen = read_claim(self._control, JOB, self._clock)
        former = self.state.durable.generation
        event = OpenJob(
            now=0.0, driver=token, participants=(SOURCE, SINK), settings=SETTINGS, claim=seen, instead_of=former
        )
        answer = self._tell(event)
        if answer.verdict is not Verdict.ACCEPTED:
            raise RefusedError(answer.detail)
        generation = self.state.durable.generation
        holder = ClaimHolder(self._control, JOB, self._clock)
        holder.take(claimed(self.state.durable, token), () if seen is None else (seen,))
        committer = KafkaSystem(self._control, clock=self._clock, generation=lambda: generation)
        completed = self.state.durable.completed
        decided: tuple[Committable, ...] = ()
        if completed is not None and not completed.settled:
            decided = completed.snapshots[SINK.name].committables
        committer.sweep(JOB, keep=decided)
        following = _following(completed.snapshots[SOURCE.name]) if completed is not None else 0
        self._settle(holder, committer, generation, token, decided)
        self._tell(Watch(now=0.0, generation=generation))
        while following < _RECORDS:
            if self.state.durable.pending is None:
                self._tell(Tick(now=self.state.next_trigger))
                continue
            checkpoint, first = self.state.durable.pending.id, self.state.durable.completed is None
            written: tuple[Committable, ...] = ()
            if not first:
                written = (self._written(checkpoint, generation, following),)
                following += 1
            for participant, snapshot in (
                (SOURCE, Snapshot(positions=document(next=following))),
                (SINK, Snapshot(committables=written)),
            ):
                self._tell(
                    Acknowledge(
                        now=0.0,
                        generation=generation,
                        checkpoint=checkpoint,
                        participant=participant.name,
                        base=self.state.durable.pending.base if self.state.durable.pending else CheckpointId(0),
                        snapshot=snapshot,
                    )
                )
            self._settle(holder, committer, generation, token, written)

    def _settle(
        self,
        holder: ClaimHolder,
        committer: KafkaSystem,
        generation: Generation,
        token: str,
        decided: Sequence[Committable],
    ) -> None:
        if not decided:
            return
        holder.renew(claimed(self.state.durable, token))
        settlements = tuple(committer.commit(author(JOB, SINK.name), decided))
        checkpoint = self.state.durable.base
        if any(one.outcome is not Outcome.COMMITTED for one in settlements):
            # It is lost, so it is written again.
            assert self.state.durable.completed is not None
            offset = _following(self.state.durable.completed.snapshots[SOURCE.name]) - 1
            self._settle(holder, committer, generation, token, [self._written(checkpoint, generation, offset)])
            return
        self._tell(
            Settle(
                now=0.0,
                generation=generation,
                checkpoint=checkpoint,
                participant=SINK.name,
                settlements=settlements,
            )
        )

    def _tell(self, event: Event) -> Answer:
        self.state, ready = step(self.state, event)
        return ready.answer

    def _written(self, checkpoint: CheckpointId, generation: Generation, offset: int) -> Committable:
        """Write one record in a prepared transaction, with its receipt."""
        worker = self.name.encode().hex().rjust(8, "0")
        self._ids += 1
        ids: Ids = self._bench.open(f"{JOB}.{SINK.name}.{generation}.{worker}.{self._ids}", values=[b"%d" % offset])
        return KafkaCommittable(
            slot=0,
            checkpoint=checkpoint,
            cluster_name="simulated",
            cluster_id=self._bench.cluster.settings.cluster_id,
            transaction=Transaction(id=ids[0], producer_id=ids[1], epoch=ids[2], version=4),
            token="token",
            topics={"out": TopicRecords(records=1, partitions=(0,))},
            records=1,
            bytes=1,
            inputs=[],
            pre_committed=_START,
            timeout=timedelta(seconds=60),
        ).to_committable()


def claimed(durable: Durable, token: str) -> Claim:
    """What a driver claims for its store, as in the pipeline."""
    return Claim(store_id=durable.store_id, generation=durable.generation, completed=durable.base, holder=token)


def _following(snapshot: Snapshot) -> int:
    assert snapshot.positions is not None
    return int(snapshot.positions.body["next"])
