"""A running system: started, sampled and stopped from outside."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.errors import BenchmarkError
from benchmarks.guarded import Guarded
from benchmarks.processes import ProcessTree, Usage, processes
from benchmarks.progress import Look, Pauses, look_every, steady_rate
from benchmarks.systems import Command
from benchmarks.topics import Ends, Topics

__all__ = ["STANDSTILL_S", "Figures", "Running"]

Figures = dict[str, Any]

STANDSTILL_S = 600.0
_STOP_LIMIT_S = 30.0
_NOT_QUIET_LIMIT_S = 1_800.0
"""These limits guard against hangs; they are no measurements."""
_SAMPLE_S = 0.2
_QUIET_INTERVALS = 3
"""A run is complete when all additions are visible and none came for this many intervals, or this many times the
longest pause, at least for a second."""


class Running(Guarded):
    """A running system. A context manager, like every guarded process."""

    def __init__(self, name: str, command: Command, scratch: Path, brokers: Iterable[int]) -> None:
        """``name``: the output topic. ``scratch``: working directory, also for the log. ``brokers``: process ids."""
        self.looks: list[Look] = []
        self.usage = Usage()
        self._brokers = ProcessTree(*brokers)
        self._broker_before = self._broker_cpu = self._brokers.sample().cpu_seconds
        self._sampled = 0.0
        super().__init__(name, command.arguments, scratch / "log", directory=scratch, environment=command.environment)
        self.began = time.monotonic()

    def watch(self, topics: Topics, enough: Callable[[Ends], bool], *, interval_ms: int, quiet: bool) -> None:
        """Watch until `enough`; with `quiet` also until no more arrive and all additions are visible.

        Raises BenchmarkError if that does not happen.
        """
        every = look_every(len(topics.all))
        pauses = Pauses()
        while True:
            began = time.monotonic()
            look = Look(at=began - self.began, ends=topics.ends(self.name))
            self.looks.append(look)
            pause = pauses.seen(look)
            self.sample()
            quiet_s = max(1.0, _QUIET_INTERVALS * max(interval_ms / 1000, pauses.longest))
            settled = look.ends.appended == look.ends.visible and pause >= quiet_s
            if enough(look.ends) and (settled or not quiet):
                return
            self.must_run()
            if not quiet and look.at > _NOT_QUIET_LIMIT_S:
                raise BenchmarkError(
                    f"{self.name} did not catch up within {_NOT_QUIET_LIMIT_S:.0f} s; the load came too quickly."
                )
            if pause > STANDSTILL_S:
                raise self.failed(f"wrote nothing for {STANDSTILL_S:.0f} s")
            time.sleep(max(0.0, began + every - time.monotonic()))

    def sample(self) -> None:
        """Sample the processes, unless that was done a moment ago."""
        if time.monotonic() - self._sampled >= _SAMPLE_S:
            self._sample()

    def finish(self) -> None:
        """Ask it to stop; the figures exclude the cost of that."""
        self._sample()
        self.stop(_STOP_LIMIT_S)

    def resources(self) -> Figures:
        """Return its resources and those of the brokers, until the request to stop."""
        return {
            "cpu_s": round(self.usage.cpu_seconds, 2),
            "broker_cpu_s": round(self._broker_cpu - self._broker_before, 2),
            "peak_rss_mb": round(self.usage.peak_rss / 1e6),
            "peak_pss_mb": round(self.usage.peak_pss / 1e6),
        }

    def rates(self, records: int) -> Figures:
        """Return the figures of a run whose input held ``records``, all of which it has processed."""
        resources = self.resources()
        visible = self.looks[-1].ends.visible
        done = next(look.at for look in self.looks if look.ends.visible == visible)
        return {
            "records": records,
            "records_per_s": round(steady_rate(self.looks, records)),
            "records_per_s_whole": round(records / done),
            "cpu_s_per_million": round(resources["cpu_s"] / records * 1e6, 2),
            "broker_cpu_s_per_million": round(resources["broker_cpu_s"] / records * 1e6, 2),
        }

    def must_run(self) -> None:
        """Raise BenchmarkError with its last output if it has ended."""
        if self.exit_code is not None:
            raise self.failed("ended")

    def failed(self, what: str) -> BenchmarkError:
        return BenchmarkError(f"{self.name} {what} (exit code {self.exit_code}); it last said: {self.last_words()}")

    def _sample(self) -> None:
        now = processes()
        self.usage = self.tree.sample(now)
        self._broker_cpu = self._brokers.sample(now).cpu_seconds
        self._sampled = time.monotonic()
