"""A query over a full topic: its rate, from the ends of the output's partitions, as for the other full topics."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.errors import BenchmarkError
from benchmarks.queries.ground import Ground
from benchmarks.queries.results import Results
from benchmarks.queries.workloads import QueryWorkload, expected, found, inputs, trailer
from benchmarks.running import Figures
from benchmarks.systems import System
from benchmarks.topics import Ends

__all__ = ["FullTopic", "without_short_rate"]

_LEAST_S = 3.0
"""Output comes in bursts, a batch or an interval each: a rate over less time than this is chance."""


def without_short_rate(figures: Figures) -> Figures:
    """Return the figures without their rate if it was measured over too short a time."""
    if figures["records"] / figures["records_per_s"] >= _LEAST_S:
        return figures
    return {name: value for name, value in figures.items() if name != "records_per_s"}


class FullTopic:
    """Runs systems in sequence over one input for all queries with the same records."""

    def __init__(self, ground: Ground) -> None:
        self._ground, self._topics, self._sizes = ground, ground.topics, ground.sizes
        self._filled: dict[int, str] = {}

    def _input(self, workload: QueryWorkload) -> str:
        records, made = self._sizes.records, inputs(workload)
        if len(made) in self._filled:
            return self._filled[len(made)]
        name = f"all-{secrets.token_hex(3)}"
        for end, make in made.items():
            self._topics.create(name + end)
            self._topics.fill(name + end, make, records // len(made), by_key=True)
        if len(made) == 1:
            self._topics.to_each(name, *trailer(records))
        self._filled[len(made)] = name
        return name

    def run(self, system: System, workload: QueryWorkload) -> Figures:
        """Return the figures of one run. Raises BenchmarkError and NotOfferedError."""
        sizes = self._sizes
        source = self._input(workload)
        wanted = expected(workload, sizes.records)  # before the run: it takes seconds of a core that the system may use
        with self._ground.started(system, workload, source) as running:
            with self._enough(workload, running.name, wanted.records) as enough:
                running.watch(self._topics, enough, interval_ms=sizes.interval_ms, quiet=True)
            running.finish()
            content = found(workload, self._topics.read(running.name))
        if content != wanted:
            raise BenchmarkError(
                f"{running.name}: the output is wrong: {content.records:,} results, checksum {content.checksum}, "
                f"instead of {wanted.records:,}, checksum {wanted.checksum}."
            )
        figures = {**running.rates(sizes.records), **running.resources(), "output_records": content.records}
        return without_short_rate(figures)

    @contextmanager
    def _enough(self, workload: QueryWorkload, name: str, least: int) -> Iterator[Callable[[Ends], bool]]:
        """Yield what says whether the output is complete. The number of updates of a running count says nothing, so its
        output is read while it grows."""
        if workload is not QueryWorkload.RUNNING_COUNT:
            yield lambda ends: ends.appended >= least
            return
        results = Results(self._topics, name, workload, self._sizes.rate)
        results.start()
        try:
            yield lambda _: results.complete(self._sizes.records, least)
        finally:
            results.stop()
