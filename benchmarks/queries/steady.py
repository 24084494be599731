"""A query under a constant load: how long after the last record that a result needs a reader sees it.

Records are due at a constant rate, and a latency is counted from when its record was due: a late sender makes no result
look fast.
"""

import secrets
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.adding import Adding
from benchmarks.errors import BenchmarkError
from benchmarks.queries.ground import Ground
from benchmarks.queries.results import Results
from benchmarks.queries.workloads import QueryWorkload, expected, found, inputs, trailer
from benchmarks.running import STANDSTILL_S, Figures, Running
from benchmarks.steady import figures
from benchmarks.systems import System
from benchmarks.workloads import Content

__all__ = ["SteadyLoad"]


class SteadyLoad:
    """Runs systems in sequence, each over an input of its own."""

    def __init__(self, ground: Ground) -> None:
        self._ground, self._topics, self._sizes = ground, ground.topics, ground.sizes

    def run(self, system: System, workload: QueryWorkload) -> Figures:
        """Return the figures of one run. Raises BenchmarkError and NotOfferedError."""
        source = f"steady-{secrets.token_hex(3)}"
        made = inputs(workload)
        for end in made:
            self._topics.create(source + end)
        try:
            with self._ground.started(system, workload, source, steady=True) as running:
                results = Results(self._topics, running.name, workload, self._sizes.rate)
                rate = self._sizes.rate // len(made)
                adding = [Adding(self._topics, source + end, 0, rate, make) for end, make in made.items()]
                results.start()
                try:
                    sent, wanted = self._loaded(running, results, adding, workload)
                finally:
                    results.stop()
                running.finish()
                content = found(workload, self._topics.read(running.name))
        finally:
            for end in made:
                self._topics.delete(source + end)
        if content != wanted:
            raise BenchmarkError(f"{running.name}: the output of {sent:,} records is wrong: {content}.")
        if not results.latencies:
            raise BenchmarkError(f"{running.name}: no result of the measured time.")
        per_million = {"cpu_s_per_million": round(running.usage.cpu_seconds / sent * 1e6, 2)}
        measured: dict[str, Any] = figures(results.latencies)
        return {**measured, "sent": sent, **per_million, **running.resources()}

    def _loaded(
        self, running: Running, results: Results, adding: Sequence[Adding], workload: QueryWorkload
    ) -> tuple[int, Content]:
        """Send and read until all results of what was sent are there; return how many records that was, and the
        expected output."""
        results.began = time.time()
        for one in adding:
            one.start()
        try:
            limit = time.monotonic() + STANDSTILL_S
            while time.time() < results.until:
                if results.seen and results.since == float("inf"):
                    results.since = time.time() + self._sizes.warm_s
                    results.until = results.since + self._sizes.steady_s
                if not results.seen and time.monotonic() > limit:
                    raise running.failed(f"wrote nothing for {STANDSTILL_S:.0f} s")
                running.sample()
                running.must_run()
                time.sleep(0.1)
        finally:
            for one in adding:
                one.stop()
        for one in adding:
            one.must_be_there()
        # a record has no match if the other topic got fewer
        sent = min(one.there for one in adding) * len(adding)
        if workload is QueryWorkload.WINDOW_COUNT:
            self._topics.to_each(adding[0].topic, *trailer(sent))
        wanted = expected(workload, sent)
        running.watch(
            self._topics,
            lambda _: results.complete(sent, wanted.records),
            interval_ms=self._sizes.interval_ms,
            quiet=True,
        )
        return sent, wanted
