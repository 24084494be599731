"""One job under test: its topics, its feeder, its driver that is killed and started again, and the verdict."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, assert_never

from onceward.coordinator.dev.managed_process import ManagedProcess
from onceward.coordinator.errors import ExitCode
from onceward.coordinator.killpoints import KillPoint
from onceward.coordinator.ops.verify import EVERYTHING, Grade, History, Property, judge
from onceward.coordinator.ops.verify.judge import NOT_AT_LEAST_ONCE
from onceward.coordinator.protocol.values import JsonObject
from tests.support.feeder import Feeder
from tests.support.harness import CLUSTER, Armed, Harness
from tests.support.recorder import Recorder
from tests.support.repeats import unexplained
from tests.support.schedules import Kill, Outcome, Schedule
from tests.support.topics import Topics
from tests.support.waiting import wait_until

__all__ = ["ANY_TIME", "SPARK_LIMIT_S", "Job", "Setup", "StuckError", "at_point", "judged"]

ANY_TIME = "any time"
_PARTITIONS = 3
_LIMIT_S = 120.0
"""Limit for every expected event; only a stalled machine needs this long."""
SPARK_LIMIT_S = 360.0
"""The same with Spark, which has to start and to detect lost processes."""
_REACH_LIMIT_S = 60.0
"""Limit for a kill point to be reached."""
_QUICK = {
    "interval": "100ms",
    "lease": "1s",
    "stream_grace": "200ms",
    "orphan_grace": "60s",
    "tolerable_failed_checkpoints": 1000,
    "num_retained": 100_000,
}


class StuckError(AssertionError):
    """An expected event did not happen; nothing is known about the records."""


class Setup:
    """How a job runs: the parameters of the driver's program."""

    def __init__(
        self,
        *,
        spark: str | None = None,
        transform: bool = False,
        batches: bool = False,
        adaptive: bool = False,
        min_partitions: int | None = None,
        at_least_once: bool = False,
        per_checkpoint: int | None = 300,
        transaction_timeout: str | None = None,
        settings: Mapping[str, Any] | None = None,
        rate: int = 100,
        output: Mapping[str, str] | None = None,
        source_on: Sequence[int] = (),
        sink_on: Sequence[int] = (),
    ) -> None:
        """``spark``: arguments of spark-submit; None = tasks run in the driver. ``transform``: through the JVM.
        ``batches``: through a function in the worker. Neither = a plain copy. ``rate``: records per second and
        partition. ``output``: settings of the output topic. ``source_on``, ``sink_on``: the brokers that hold every
        partition, the leader first; empty = the cluster chooses."""
        self.spark, self.transform, self.rate, self.output = spark, transform, rate, output
        self.per_checkpoint, self.transaction_timeout = per_checkpoint, transaction_timeout
        self.source_on, self.sink_on = source_on, sink_on
        self.batches, self.adaptive, self.min_partitions = batches, adaptive, min_partitions
        self.at_least_once = at_least_once
        self.settings = {**_QUICK, **(settings or {})}

    @property
    def promised(self) -> frozenset[Property]:
        """The properties that the judge checks."""
        promised = EVERYTHING
        if self.min_partitions is not None:
            promised -= {Property.ORDER, Property.PREFIX}
        if self.at_least_once:
            promised -= NOT_AT_LEAST_ONCE | {Property.PREFIX}
        return promised


def at_point(process: str, point: KillPoint, nth: int = 1) -> Kill:
    """A kill at the ``nth`` time that a process passes a kill point."""
    return Kill(process=process, place=f"{point.value}:{nth}")


def judged(
    harness: Harness, schedule: Schedule, setup: Setup, body: Callable[["Job"], None], armed: Armed | None = None
) -> Schedule:
    """Start a job, let ``body`` kill processes, let the job catch up, and judge. ``armed``: for the first driver."""
    with Job(harness, schedule, setup) as job:
        try:
            harness.serving()
            job.drive(armed)
            body(job)
            job.finish()
        except StuckError as stuck:
            job.give_up(stuck)
        except Exception as error:  # noqa: BLE001 - after any error nothing is known about the records
            schedule.outcome = Outcome.UNKNOWN
            schedule.reasons.append(repr(error))
            job.count()
    return schedule


class Job:
    """One job in a schedule. A context manager. The coordinator must be serving before the first driver starts."""

    def __init__(self, harness: Harness, schedule: Schedule, setup: Setup | None = None) -> None:
        """The job takes its name from the schedule and records all events in it."""
        self.harness, self.schedule, self.setup = harness, schedule, setup or Setup()
        self.name = schedule.name
        self.topics = Topics(harness.paths.tests, self.name)
        self.source = self.topics.create("in", _PARTITIONS, led_by=self.setup.source_on)
        self.sink = self.topics.create("out", _PARTITIONS, config=self.setup.output, led_by=self.setup.sink_on)
        self.driver: ManagedProcess | None = None
        self._stack = ExitStack()
        self._began = time.monotonic()
        self.fed_besides = 0
        """Records in the input that did not come from the feeder."""
        self._events_read = 0
        self._events: list[JsonObject] = []

    def __enter__(self) -> Self:
        self.recorder = self._stack.enter_context(
            Recorder(
                self.topics.servers,
                job=self.name,
                inputs=[self.source],
                outputs=[self.sink],
                file=self.harness.directory / f"{self.name}.history.jsonl",
                coordinator=self.harness.address,
            )
        )
        self.feeder = self._stack.enter_context(
            Feeder(self.topics.servers, self.source, partitions=_PARTITIONS, rate=self.setup.rate)
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.driver is not None:
            self.driver.end()
        self._stack.close()
        self.schedule.seconds = time.monotonic() - self._began

    # -- drivers

    def drive(self, armed: Armed | None = None) -> ManagedProcess:
        """Kill what remains of the last driver and start the next one."""
        if self.driver is not None:
            self.driver.end()
        spec = {
            "job": self.name,
            "servers": self.harness.paths.drivers,
            "cluster": CLUSTER,
            "source": self.source,
            "sink": self.sink,
            "coordinator": self.harness.address_for_drivers,
            "spark": self.setup.spark is not None,
            "dataframe": self.setup.transform,
            "batches": self.setup.batches,
            "source_options": {
                "start": "earliest",
                "max_offsets_per_checkpoint": self.setup.per_checkpoint,
                "adaptive": self.setup.adaptive,
                "min_partitions": self.setup.min_partitions,
            },
            "sink_options": {
                "delivery": "at_least_once" if self.setup.at_least_once else "exactly_once",
                "transaction_timeout": self.setup.transaction_timeout,
            },
            "careless": self.setup.transaction_timeout is not None,
            "settings": self.setup.settings,
        }
        environment = {} if self.setup.spark is None else {"PYSPARK_SUBMIT_ARGS": f"{self.setup.spark} pyspark-shell"}
        environment |= armed.environment if armed else {}
        for kill in self.schedule.kills:
            if kill.process.startswith("driver") and not kill.back_at:
                kill.back_at = time.time()
        self.driver = self.harness.start(f"{self.name}.driver", ["tests.support.driver", json.dumps(spec)], environment)
        return self.driver

    def kill(self, kill: Kill, how: Callable[[], None]) -> None:
        """Kill a process now, through ``how``."""
        self.note(kill)
        kill.at = self.now()
        how()
        kill.reached = True

    def lives(self, seconds: float) -> None:
        """Let the job run for a while. If a driver leaves on its own, the next wait reports it."""
        time.sleep(seconds)

    def now(self) -> float:
        """Seconds since the epoch, as in the drivers' events."""
        return time.time()

    def dies(self, process: ManagedProcess, armed: Armed, limit_s: float = _REACH_LIMIT_S) -> bool:
        """Wait until ``process`` dies of ``armed``; False when it ends or continues otherwise, so not reached."""
        self.note(*armed.kills)
        limit = time.monotonic() + limit_s
        while process.exit_code is None and time.monotonic() < limit:
            time.sleep(0.02)
        reached = armed.look()
        process.end()  # its children die with it, as when a machine is lost
        return reached

    def note(self, *kills: Kill) -> None:
        """Add kills to the schedule, reached or not."""
        self.schedule.kills += kills

    def back(self) -> None:
        """Start the coordinator again."""
        at = self.harness.back()
        for kill in self.schedule.kills:
            if kill.process.startswith("coordinator") and not kill.back_at:
                kill.back_at = at

    # -- what it does

    def events(self, name: str | None = None) -> list[JsonObject]:
        """The events that this job's drivers have logged so far, oldest first."""
        if self.harness.events.exists():
            with self.harness.events.open("rb") as file:
                file.seek(self._events_read)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._events_read += len(whole) + len(newline)
            reported = (json.loads(line) for line in whole.splitlines())
            self._events += [event for event in reported if event["job"] == self.name]
        return [event for event in self._events if name is None or event["event"] == name]

    def settles(self, more: int = 1) -> None:
        """Wait until ``more`` further checkpoints are settled. Raises StuckError, also when the driver ends."""
        wanted = len(self.events("settled")) + more
        self.wait(lambda: len(self.events("settled")) >= wanted, f"{more} more checkpoints are settled")

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition while the driver runs. Raises StuckError, also when the driver ends."""
        driver = self.driver
        limit_s = _LIMIT_S if self.setup.spark is None else SPARK_LIMIT_S

        def ended() -> bool:
            return driver is not None and driver.exit_code is not None

        try:
            wait_until(lambda: condition() or ended(), what, limit_s)
        except AssertionError as error:
            raise StuckError(f"{error}\n{driver.tail() if driver else ''}") from None
        if ended() and not condition():
            assert driver is not None
            raise StuckError(f"the driver ended with {driver.exit_code} before {what}:\n{driver.tail()}")

    # -- the verdict

    def finish(self) -> None:
        """Let the running driver catch up, stop it, and judge. Raises StuckError."""
        fed = self.schedule.records = self.feeder.finish() + self.fed_besides
        # values are unique; count one that is repeated, as it may be without transactions, once
        self.wait(lambda: len({value for *_, value in self.topics.read(self.sink)}) >= fed, f"all {fed} are copied")
        assert self.driver is not None
        self.driver.terminate()
        self.driver.wait(_LIMIT_S)
        self.schedule.reasons += (
            []
            if self.driver.exit_code == 0
            else [f"the driver was asked to stop and ended with {self.driver.exit_code}:\n{self.driver.tail()}"]
        )
        self.judge()

    def judge(self) -> None:
        """Stop the recorder, judge all that was visible at rest and during the run, and set the outcome."""
        schedule = self.schedule
        self.count()
        self.harness.serving()
        history = self.recorder.finish(whole_input=True)
        verdict = judge(history, self.setup.promised)
        if self.setup.at_least_once:
            schedule.reasons += self._repeated(history)
        schedule.rulings = {ruling.property.value: ruling.grade.value for ruling in verdict.rulings.values()}
        match verdict.grade:
            case Grade.PASS:
                schedule.outcome = Outcome.FAIL if schedule.reasons else Outcome.PASS
            case Grade.FAIL:
                schedule.outcome = Outcome.FAIL
                schedule.reasons.append(verdict.text())
            case Grade.UNKNOWN:
                schedule.outcome = Outcome.FAIL if schedule.reasons else Outcome.UNKNOWN
                schedule.reasons.append(verdict.text())
            case _:
                assert_never(verdict.grade)

    def _repeated(self, history: History) -> list[str]:
        """Reasons against the records that are repeated, or against transactions where there should be none."""
        wrong = []
        if any(event["transactions"] for event in self.events("pre-committed")):
            wrong.append("the job wrote transactions")
        assert self.setup.per_checkpoint is not None
        # every generation but the first follows the death of a driver
        deaths = [event["checkpoint"] for event in self.events("recovered") if event["generation"] > 1]
        return [*wrong, *unexplained(history, deaths, self.setup.per_checkpoint)]

    def give_up(self, stuck: StuckError) -> None:
        """Record that the job is stuck: HALTED if the driver has halted, otherwise a failure."""
        self.count()
        halted = self.driver is not None and self.driver.exit_code == ExitCode.HALTED
        self.schedule.outcome = Outcome.HALTED if halted else Outcome.FAIL
        self.schedule.reasons.append(str(stuck))

    def count(self) -> None:
        """Fill in the totals from the drivers' events."""
        schedule = self.schedule
        recovered, settled = self.events("recovered"), self.events("settled")
        schedule.resumed = sum(event["resumed"] for event in recovered)
        schedule.aborted = sum(event["aborted"] for event in recovered)
        schedule.aborted += sum(event["transactions"] for event in self.events("aborted"))
        schedule.replayed = sum(event.get("transactions", 0) for event in self.events("replayed"))
        schedule.generations = max((event["generation"] for event in self.events()), default=0)
        schedule.checkpoints = len({event["checkpoint"] for event in settled})
        carried_over = {(event["generation"], event["checkpoint"]) for event in recovered}
        times = [e["at"] for e in settled if (e["generation"], e["checkpoint"]) not in carried_over]
        kills = sorted((kill for kill in schedule.kills if kill.reached), key=lambda kill: kill.at)
        for kill, following in zip(kills, [*(k.at for k in kills[1:]), float("inf")], strict=False):
            after = min((at for at in times if at > kill.at), default=0.0)
            if after < following:
                kill.recovered_at = after
