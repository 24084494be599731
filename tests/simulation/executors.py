"""Executors: worker processes that run the real slot writer, one task at a time; some die, some outlive their
driver."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, cast

import pyarrow as pa
from greenlet import GreenletExit

from onceward.connectors.interfaces import Plan, SplitFollower, writer_options
from onceward.connectors.slots import SlotWriter, StayingWriter
from onceward.connectors.tasks import CheckpointTask, check_ballots, ranges_of
from onceward.driver.outputs import Inputs, Votes
from onceward.executor.link import Link, TaskCredentials
from onceward.executor.slots import Attempt, Routed, TaskSlots
from onceward.executor.staying import StayingTask
from onceward.protocol.values import CheckpointId, Generation, JobName, ParticipantName
from tests.simulation.links import connect
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.source import InputTopic
from tests.simulation.systems import ConnectedSink
from tests.simulation.threads import Condition

__all__ = ["Executors", "TaskFaults", "WorkerTasks"]

_ATTEMPTS = 4


class TaskLostError(Exception):
    """What Spark raises when a task failed too often or its job was cancelled."""


@dataclass(frozen=True, kw_only=True)
class TaskFaults:
    """How often an attempt meets each fault."""

    fails: float = 0.0
    """The transform or the reader raises."""
    killed: float = 0.0
    """The worker process dies."""
    declared_lost: float = 0.0
    """Spark declares the attempt lost and starts another, while the first continues."""
    stopped: float = 0.0
    """The worker process stops for a while, then continues."""
    slow: float = 0.0
    """Maximum seconds per batch."""
    idle: float = 0.0
    """The worker process ends after its task, as an idle one does."""


class Executors:
    """Worker processes of one Spark application. They outlive their driver by some seconds."""

    def __init__(
        self,
        clock: Scheduler,
        name: str,
        died: Callable[[Process], None],
        adopt: Callable[[Process], Process],
    ) -> None:
        self.clock = clock
        self.name = name
        self.workers: list[Process] = []
        self.busy: set[str] = set()
        self._died = died
        self._adopt = adopt
        self._forked = 0

    def idle(self) -> Process:
        """Pick a worker process without a task: partition-to-worker is not stable."""
        free = [
            worker for worker in self.workers if worker.alive and not worker.paused and worker.name not in self.busy
        ]
        if free and self.clock.random.random() < 0.9:
            return self.clock.random.choice(free)
        self._forked += 1
        worker = self._adopt(Process(f"{self.name}/worker-{self._forked}", "worker", self._lost))
        self.workers.append(worker)
        return worker

    def leave(self) -> None:
        """The driver is gone: workers end within seconds, stopped ones when they wake."""
        random = self.clock.random
        for worker in self.workers:
            self.clock.call(worker, random.choice((0.0, 0.5, 3.0)) * random.random(), partial(self.clock.kill, worker))

    def _lost(self, worker: Process) -> None:
        self.workers.remove(worker)
        self._died(worker)


@dataclass(kw_only=True, eq=False)
class _Slot:
    number: int
    attempts: int = 0
    current: int = -1
    """The attempt whose result counts."""
    result: str | None = None
    """Its vote; of a staying task, any text once it has ended."""


@dataclass(kw_only=True, eq=False)
class _Job:
    body: "_Body"
    moments: tuple[float, ...]
    """Within how many seconds of its start a fault hits an attempt: one of these at random."""
    slots: list[_Slot] = field(default_factory=list)
    changed: Condition = field(default_factory=Condition)
    failure: str | None = None


_Body: TypeAlias = Callable[[int, int, bool, float], str]
"""(slot, attempt, whether it fails, maximum seconds per batch) -> result."""


class WorkerTasks:
    """The driver's ``Tasks``: one task per split, up to four attempts each; results of superseded attempts are dropped.
    Also the ``StayingJob`` of staying tasks."""

    columns = ("value",)

    def __init__(
        self,
        *,
        executors: Executors,
        driver: Process,
        job: JobName,
        sinks: Sequence[ConnectedSink],
        topic: InputTopic,
        faults: Callable[[], TaskFaults],
        begun: Callable[[Process, str], None],
        before: Callable[[CheckpointId], None],
        room: int,
    ) -> None:
        """``before`` receives the checkpoint of every job, before its first task begins. ``room``: staying tasks that
        can run at a time."""
        self._room = room
        self._before = before
        self._executors = executors
        self._clock = executors.clock
        self._driver = driver
        self._job_name = job
        self._sinks = {sink.participant.name: sink for sink in sinks}
        self._topic = topic
        self._faults = faults
        self._begun = begun
        self._attempts = 0
        self._running: _Job | None = None
        self._staying: _Job | None = None

    def start(self) -> None:
        self._clock.sleep(0.05 + 0.2 * self._clock.random.random())

    def alive(self) -> bool:
        return True

    def quiet(self) -> AbstractContextManager[None]:
        return nullcontext()

    def inputs(self, plan: Plan, votes: Votes) -> Inputs:
        inputs = [[split] for split in plan.splits]
        return dict.fromkeys(votes, inputs)

    def cancel(self) -> None:
        if self._running is not None:
            self._fail(self._running, "cancelled")

    def run(
        self, *, generation: Generation, checkpoint: CheckpointId, plan: Plan, sinks: Collection[ParticipantName]
    ) -> Votes:
        text = CheckpointTask(
            job=self._job_name,
            generation=generation,
            checkpoint=checkpoint,
            splits=plan.splits,
            columns=self.columns,
            sinks={name: writer_options(self._sinks[name].session) for name in sinks},
        ).to_json()
        self._before(checkpoint)
        writers: dict[str, SlotWriter] = {name: self._sinks[name].session.write() for name in sinks}

        def body(slot: int, attempt: int, fails: bool, slow: float) -> str:
            task = CheckpointTask.from_json(text)
            batches = self._batches(task, slot, fails, slow)
            routed = ((name, batch) for batch in batches for name in sinks)
            return TaskSlots(writers, Attempt(task=task, slot=slot, number=attempt)).write(routed).to_json()

        job = self._running = _Job(body=body, moments=(0.01, 0.05, 0.2))
        try:
            ballots = self._results(job, len(plan.splits))
        finally:
            self._running = None
        votes = check_ballots(ballots, sinks, len(plan.splits))
        return {name: votes[name] for name in sinks}

    # -- staying tasks

    def room(self) -> int:
        return self._room

    def reach(self) -> tuple[tuple[str, int], str]:
        return ("driver", 0), "driver"

    def stay(
        self,
        slots: int,
        follow: SplitFollower,
        writers: Mapping[str, StayingWriter],
        driver: tuple[str, int],
        credentials: TaskCredentials,
    ) -> None:
        def body(slot: int, attempt: int, fails: bool, slow: float) -> str:
            link = connect(driver, credentials)

            def route(batches: Iterator[pa.RecordBatch]) -> Routed:
                made = self._troubled(batches, fails=fails, slow=slow)
                return ((name, batch) for batch in made for name in writers)

            try:
                StayingTask(cast(Link, link), slot, attempt, follow, writers, route, frozenset(self.columns)).run()
            finally:
                link.close()
            return "ended"

        job = self._staying = _Job(body=body, moments=(0.05, 0.5, 3.0))
        self._results(job, slots)

    def cancel_staying(self) -> None:
        if self._staying is not None:
            self._fail(self._staying, "cancelled")

    def _troubled(self, batches: Iterator[pa.RecordBatch], *, fails: bool, slow: float) -> Iterator[pa.RecordBatch]:
        clock = self._clock
        for batch in batches:
            if slow:
                clock.sleep(clock.random.random() * slow)
            if fails and clock.random.random() < 0.5:
                raise ValueError("the transform raised")
            yield batch

    # -- attempts

    def _results(self, job: _Job, slots: int) -> Sequence[str]:
        """Run one task for each slot. Raises TaskLostError."""
        job.slots = [_Slot(number=number) for number in range(slots)]
        for slot in job.slots:
            self._attempt(job, slot)
        with job.changed:
            job.changed.wait_for(lambda: job.failure is not None or all(slot.result for slot in job.slots))
        if job.failure is not None:
            raise TaskLostError(f"Job aborted due to stage failure: {job.failure}")
        return [slot.result or "" for slot in job.slots]

    def _attempt(self, job: _Job, slot: _Slot) -> None:
        if slot.attempts == _ATTEMPTS:
            self._fail(job, f"task {slot.number} failed {_ATTEMPTS} times")
            return
        slot.attempts += 1
        self._attempts += 1
        attempt = slot.current = self._attempts
        executors, clock = self._executors, self._clock
        worker = executors.idle()
        executors.busy.add(worker.name)
        faults = self._faults()
        dice = clock.random.random()
        if dice < faults.killed:
            clock.call(worker, self._moment(job), lambda: self._kill(worker))
        elif dice < faults.killed + faults.stopped:
            clock.call(worker, self._moment(job), lambda: self._stop(worker))
        elif dice < faults.killed + faults.stopped + faults.declared_lost:
            clock.call(self._driver, self._moment(job), lambda: self._lost(job, slot, attempt, "declared lost"))
        fails = clock.random.random() < faults.fails

        def body() -> None:
            try:
                result = job.body(slot.number, attempt, fails, faults.slow)
            except GreenletExit:
                raise
            except Exception as error:  # noqa: BLE001 - for Spark, any exception is a failed attempt
                why = f"{type(error).__name__}: {error}"
                clock.call(self._driver, 0.001, lambda: self._lost(job, slot, attempt, why))
            else:
                clock.call(self._driver, 0.001, lambda: self._ended(job, slot, attempt, result))
                if faults.idle and clock.random.random() < faults.idle:
                    clock.call(worker, 0.05, lambda: self._kill(worker))
            executors.busy.discard(worker.name)

        self._begun(worker, f"task of slot {slot.number}, attempt {attempt}")
        clock.spawn(worker, "task", body, 0.002 * clock.random.random())
        self._watch_over(worker, job, slot, attempt)

    def _moment(self, job: _Job) -> float:
        return self._clock.random.random() * self._clock.random.choice(job.moments)

    def _watch_over(self, worker: Process, job: _Job, slot: _Slot, attempt: int) -> None:
        """Let the driver notice early that a worker process has ended, and late that one does not respond."""
        clock = self._clock
        heard = clock.now

        def look() -> None:
            nonlocal heard
            if slot.current != attempt or slot.result is not None or job.failure is not None:
                return
            if worker.alive and not worker.paused:
                heard = clock.now
            if not worker.alive or clock.now - heard > 2.0:
                self._lost(job, slot, attempt, "worker lost")
            else:
                clock.call(self._driver, 0.1, look)

        clock.call(self._driver, 0.1, look)

    def _kill(self, worker: Process) -> None:
        self._clock.kill(worker)

    def _stop(self, worker: Process) -> None:
        clock = self._clock
        clock.pause(worker)
        later = clock.random.random() * clock.random.choice((0.1, 3.0, 30.0))
        clock.call(clock.outside, later, lambda: clock.resume(worker))

    def _batches(self, task: CheckpointTask, slot: int, fails: bool, slow: float) -> Iterator[pa.RecordBatch]:
        clock = self._clock
        for split in ranges_of(task.splits[slot]):
            partition, start, end = int(split["partition"]), int(split["start"]), int(split["end"])
            cut = clock.random.randint(start, end)
            for first, last in ((start, cut), (cut, end)):
                if slow:
                    clock.sleep(clock.random.random() * slow)
                if fails and first == cut:
                    raise ValueError("the transform raised")
                records = self._topic.records(partition, range(first, last))
                if records.num_rows:
                    yield records

    def _ended(self, job: _Job, slot: _Slot, attempt: int, text: str) -> None:
        if slot.current == attempt and slot.result is None:
            slot.result = text
            job.changed.notify_all()

    def _lost(self, job: _Job, slot: _Slot, attempt: int, why: str) -> None:
        if slot.current != attempt or slot.result is not None or job.failure is not None:
            return
        if slot.attempts == _ATTEMPTS:
            self._fail(job, f"task {slot.number} failed {_ATTEMPTS} times, last: {why}")
        else:
            self._attempt(job, slot)

    def _fail(self, job: _Job, why: str) -> None:
        """Fail the job. Running tasks continue for some seconds; their votes are ignored."""
        if job.failure is None:
            job.failure = why
            job.changed.notify_all()
