"""A job under test whose processes are killed and started again: its kills, its events, and its totals."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

from onceward.common.errors import ExitCode
from onceward.common.killpoints import KillPoint
from onceward.dev.demo.events import Event, EventReader
from tests.support.harness import Armed, Harness
from tests.support.processes import Process
from tests.support.schedules import Kill, Outcome, Schedule
from tests.support.topics import Topics
from tests.support.waiting import wait_until

__all__ = ["ANY_TIME", "REACH_LIMIT_S", "SPARK_LIMIT_S", "KilledJob", "at_point", "conduct"]

ANY_TIME = "any time"
SPARK_LIMIT_S = 360.0
"""Limit for every expected event with Spark, which has to start and to detect lost processes."""
_SKIPPED = "the brokers had skipped"
"""Words of the warning about each transaction whose markers a driver writes."""
REACH_LIMIT_S = 60.0
"""Limit for a kill point to be reached."""


def at_point(process: str, point: KillPoint, nth: int = 1) -> Kill:
    """A kill at the ``nth`` time that a process passes a kill point."""
    return Kill(process=process, place=f"{point.value}:{nth}")


class KilledJob(ABC):
    """One job in a schedule. A context manager. The coordinator must be serving before the first driver starts."""

    def __init__(self, harness: Harness, schedule: Schedule, limit_s: float) -> None:
        """The job takes its name from the schedule and records all events in it. ``limit_s``: for every expected
        event; only a stalled machine needs this long."""
        self.harness, self.schedule = harness, schedule
        self.name = schedule.name
        self.topics = Topics(harness.paths.tests, self.name)
        self.driver: Process | None = None
        self._limit_s = limit_s
        self._stack = ExitStack()
        self._began = time.monotonic()
        self._reader = EventReader(harness.events_file)
        self._events: list[Event] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.driver is not None:
            self.driver.end()
        self._stack.close()
        self.schedule.seconds = time.monotonic() - self._began

    # -- drivers

    @abstractmethod
    def drive(self, armed: Armed | None = None) -> Process:
        """Kill what remains of the last driver and start the next one."""

    def _start(self, program: str, spec: Mapping[str, Any], spark: str | None, armed: Armed | None) -> Process:
        """Start ``program`` as the next driver. ``spark``: arguments of spark-submit."""
        environment = {} if spark is None else {"PYSPARK_SUBMIT_ARGS": f"{spark} pyspark-shell"}
        environment |= armed.environment if armed else {}
        for kill in self.schedule.kills:
            if kill.process.startswith("driver") and not kill.back_at:
                kill.back_at = time.time()
        self.driver = self.harness.start_driver(f"{self.name}.driver", program, spec, environment)
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

    def dies(self, process: Process, armed: Armed, limit_s: float = REACH_LIMIT_S) -> bool:
        """Wait until ``process`` dies of ``armed``; False when it ends or continues otherwise, so not reached."""
        self.note(*armed.kills)
        return self.harness.dies(process, armed, limit_s)

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

    def events(self, name: str | None = None) -> list[Event]:
        """The events that this job's drivers have logged so far, oldest first."""
        self._events += [event for event in self._reader.new() if event["job"] == self.name]
        return [event for event in self._events if name is None or event["event"] == name]

    def settles(self, more: int = 1) -> None:
        """Wait until ``more`` further checkpoints are settled. Raises AssertionError, also when the driver ends."""
        wanted = len(self.events("settled")) + more
        self.wait(lambda: len(self.events("settled")) >= wanted, f"{more} more checkpoints are settled")

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition while the driver runs. Raises AssertionError, also when the driver ends."""
        driver = self.driver

        def ended() -> bool:
            return driver is not None and driver.exit_code is not None

        try:
            wait_until(lambda: condition() or ended(), what, self._limit_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{driver.tail() if driver else ''}") from None
        if ended() and not condition():
            assert driver is not None
            raise AssertionError(f"the driver ended with {driver.exit_code} before {what}:\n{driver.tail()}")

    # -- the verdict

    @abstractmethod
    def finish(self) -> None:
        """Let the running driver catch up, stop it, and judge. Raises AssertionError."""

    def _stop(self) -> None:
        """Stop the driver, which must leave well."""
        assert self.driver is not None
        self.driver.terminate()
        if (code := self.driver.wait(self._limit_s)) != 0:
            self.schedule.reasons.append(f"the driver was asked to stop and ended with {code}:\n{self.driver.tail()}")

    def give_up(self, stuck: AssertionError) -> None:
        """Record that the job is stuck: HALTED if the driver has halted, otherwise a failure."""
        self.count()
        halted = self.driver is not None and self.driver.exit_code == ExitCode.HALTED
        self.schedule.outcome = Outcome.HALTED if halted else Outcome.FAIL
        self.schedule.reasons.append(str(stuck))

    def unmarked(self) -> int:
        """Return how many transactions drivers have finished whose markers the brokers had skipped."""
        return 0 if self.driver is None else self.driver.log.read_text(errors="replace").count(_SKIPPED)

    def count(self) -> None:
        """Fill in the totals from the drivers' events."""
        schedule = self.schedule
        recovered, settled = self.events("recovered"), self.events("settled")
        schedule.resumed = sum(event["resumed"] for event in recovered)
        schedule.aborted = sum(event["aborted"] for event in recovered)
        schedule.aborted += sum(event["transactions"] for event in self.events("aborted"))
        schedule.replayed = sum(event.get("transactions", 0) for event in self.events("replayed"))
        schedule.unmarked = self.unmarked()
        schedule.generations = max((event["generation"] for event in self.events()), default=0)
        schedule.checkpoints = len({event["checkpoint"] for event in settled})
        carried_over = {(event["generation"], event["checkpoint"]) for event in recovered}
        times = [e["at"] for e in settled if (e["generation"], e["checkpoint"]) not in carried_over]
        kills = sorted((kill for kill in schedule.kills if kill.reached), key=lambda kill: kill.at)
        for kill, following in zip(kills, [*(k.at for k in kills[1:]), float("inf")], strict=False):
            after = min((at for at in times if at > kill.at), default=0.0)
            if after < following:
                kill.recovered_at = after


_Job = TypeVar("_Job", bound=KilledJob)


def conduct(job: _Job, body: Callable[[_Job], None]) -> Schedule:
    """Let ``body`` start the job and kill its processes, let the job catch up, and judge."""
    schedule = job.schedule
    with job:
        try:
            job.harness.serving()
            body(job)
            job.finish()
        except AssertionError as stuck:
            job.give_up(stuck)
        except Exception as error:  # noqa: BLE001 - after any error nothing is known about the records
            schedule.outcome = Outcome.UNKNOWN
            schedule.reasons.append(repr(error))
            job.count()
    return schedule
