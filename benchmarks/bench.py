"""Runs and measures each workload. The system itself is not asked: progress is read from the broker, as the ends of the
output's partitions for any reader and for a read_committed reader. A wrong output gives no figure.
"""

import json
import secrets
import sys
from functools import partial
from pathlib import Path

from benchmarks.adding import Adding
from benchmarks.errors import BenchmarkError
from benchmarks.guarded import Guarded
from benchmarks.ours.system import EVENTS
from benchmarks.ours.timeline import Timeline
from benchmarks.running import STANDSTILL_S, Figures, Running
from benchmarks.sizes import Placed, Sizes
from benchmarks.systems import Kind, System
from benchmarks.topics import Topics
from benchmarks.workloads import Content, Workload, expected, record
from onceward.dev.kafka import LocalKafka

__all__ = ["BROKER", "Bench"]

# The controller must not give up a broker that is short of CPU for a while: that is for tests of crashes.
BROKER = {"broker.session.timeout.ms": "120000", "broker.heartbeat.interval.ms": "2000"}
"""Properties of the measured broker."""


class Bench:
    """Runs systems in sequence on one broker; input topics are filled once and kept until `close`."""

    def __init__(self, kafka: LocalKafka, sizes: Sizes, directory: Path) -> None:
        self._kafka = kafka
        self._sizes = sizes
        self._directory = directory
        self._topics = Topics(kafka.bootstrap_servers, sizes.partitions)
        self._inputs: dict[Workload, tuple[str, Content]] = {}
        self._of_run: list[str] = []
        """Topics to delete when the run ends, however it ends."""
        self._topics.warm_up()

    def run(self, system: System, workload: Workload, *, interval_ms: int | None = None) -> Figures:
        """Return the figures of one run. Raises BenchmarkError and NotOfferedError.

        ``interval_ms``: of the steady workload; None for that at which the system is fastest.
        """
        name = f"{system.name}-{workload}-{secrets.token_hex(3)}"
        try:
            figures = self._figures(system, name, workload, interval_ms)
        finally:
            while self._of_run:
                self._topics.delete(self._of_run.pop())
        if system.kind is Kind.OURS:
            timeline = Timeline.from_file(self._scratch(name) / EVENTS)
            if workload is Workload.CYCLE:
                figures = {**timeline.cycle(), **figures}
            figures |= {"aborted_checkpoints": timeline.aborted, "timeline": timeline.as_json()}
        return figures

    def close(self) -> None:
        """Delete the inputs."""
        for source in {source for source, _ in self._inputs.values()}:
            self._topics.delete(source)
        self._inputs.clear()

    # -- workloads

    def _figures(self, system: System, name: str, workload: Workload, interval_ms: int | None) -> Figures:
        match workload:
            case Workload.STEADY:
                return self._steady(system, name, system.steady_interval_ms if interval_ms is None else interval_ms)
            case Workload.BACKLOG:
                return self._backlog(system, name)
            case Workload.CYCLE:
                return self._cycle(system, name)
            case _:
                return self._full(system, name, workload)

    def _full(self, system: System, name: str, workload: Workload) -> Figures:
        records = self._sizes.records
        source, content = self._input(workload)
        with self._started(system, workload, name, source) as running:
            self._watch(running, content.records)
            running.finish()
        figures = self._checked(running, workload, content)
        return {**running.rates(records), **figures}

    def _cycle(self, system: System, name: str) -> Figures:
        """Only for our job; its journal has the time between settled checkpoints."""
        sizes = self._sizes
        records = sizes.small_checkpoints * sizes.small_records
        source = self._own_input(name, Workload.COPY, records)
        given = {"interval_ms": 0, "per_checkpoint": sizes.small_records}
        with self._started(system, Workload.CYCLE, name, source, **given) as running:
            self._watch(running, records)
            running.finish()
        return self._checked(running, Workload.COPY, expected(Workload.COPY, records, sizes.record_bytes))

    def _steady(self, system: System, name: str, interval_ms: int) -> Figures:
        source = self._own_input(name, Workload.STEADY, 0)
        given = {"interval_ms": interval_ms, "per_checkpoint": 0}
        with self._started(system, Workload.STEADY, name, source, **given) as running:
            figures = self._loaded(running, source)
            running.finish()
        if "measured" not in figures:
            raise running.failed("wrote nothing of what was sent in the measured time")
        if figures["seen"] != figures["sent"] or figures["twice"] or figures["not_sent"]:
            raise BenchmarkError(f"{name}: the output is not what was sent, each once: {figures}.")
        per_million = {"cpu_s_per_million": round(running.usage.cpu_seconds / figures["sent"] * 1e6, 2)}
        return {**figures, "interval_ms": interval_ms, **per_million, **running.resources()}

    def _loaded(self, running: Running, source: str) -> Figures:
        """Return the figures that the load's process has measured."""
        sizes, file = self._sizes, self._scratch(running.name) / "load.json"
        options = {
            "servers": self._kafka.bootstrap_servers,
            "partitions": sizes.partitions,
            "source": source,
            "sink": running.name,
            "rate": sizes.rate,
            "seconds": sizes.steady_s,
            "warm_s": sizes.warm_s,
            "limit_s": STANDSTILL_S,
            "result": str(file),
        }
        command = [sys.executable, "-m", "benchmarks.steady", json.dumps(options)]
        root = Path(__file__).resolve().parents[1]
        with Guarded(f"the load of {running.name}", command, file.with_suffix(".log"), directory=root) as load:
            while not load.wait(0.2):
                running.sample()
                running.must_run()
            if load.exit_code:
                raise BenchmarkError(f"{load.name} failed, so there is no figure: {load.last_words()}")
        figures: Figures = json.loads(file.read_text())
        return figures

    def _backlog(self, system: System, name: str) -> Figures:
        sizes = self._sizes
        source = self._own_input(name, Workload.COPY, sizes.records)
        adding = Adding(self._topics, source, sizes.records, sizes.rate)
        with self._started(system, Workload.BACKLOG, name, source) as running:
            adding.start()
            try:
                # At any time one second's worth of records is in flight.
                running.watch(
                    self._topics,
                    lambda ends: ends.visible >= adding.there - 2 * sizes.rate,
                    interval_ms=sizes.interval_ms,
                    quiet=False,
                )
                caught_up = running.looks[-1]
            finally:
                adding.stop()
            adding.must_be_there()
            self._watch(running, adding.there)
            running.finish()
        figures = self._checked(running, Workload.COPY, expected(Workload.COPY, adding.there))
        return {
            "caught_up_s": round(caught_up.at, 2),
            "records_per_s_whole": round(caught_up.ends.visible / caught_up.at),
            **figures,
        }

    # -- the run

    def _started(self, system: System, workload: Workload, name: str, source: str, **different: int) -> Running:
        scratch = self._scratch(name)
        scratch.mkdir(parents=True)
        task = self._sizes.task(
            workload,
            servers=self._kafka.bootstrap_servers,
            source=source,
            name=name,
            scratch=scratch,
            steady=workload is Workload.STEADY,
            **different,
        )
        command = system.command(task)
        self._topics.create(name)
        self._of_run.append(name)
        return Running(name, command, scratch, self._kafka.pids.values())

    def _watch(self, running: Running, records: int) -> None:
        """Watch until all records are there and no more arrive."""
        running.watch(
            self._topics, lambda ends: ends.appended >= records, interval_ms=self._sizes.interval_ms, quiet=True
        )

    def _checked(self, running: Running, workload: Workload, wanted: Content) -> Figures:
        """Return the figures that all runs share, after checking the output."""
        found = self._topics.content(running.name, workload)
        if found != wanted:
            raise BenchmarkError(
                f"{running.name}: the output is wrong: {found.records:,} records, checksum {found.checksum}, instead "
                f"of {wanted.records:,}, checksum {wanted.checksum}."
            )
        return {**running.resources(), "output_records": found.records, "output_checksum": found.checksum}

    # -- topics and files

    def _input(self, workload: Workload) -> tuple[str, Content]:
        """Return the full topic of a workload and the expected output; a filter reads the copy's topic."""
        if workload not in self._inputs:
            sizes = self._sizes
            content = expected(workload, sizes.records, sizes.record_bytes)
            if workload is Workload.FILTER and Workload.COPY in self._inputs:
                self._inputs[workload] = (self._inputs[Workload.COPY][0], content)
            else:
                source = self._new_input(f"all-{workload}-{secrets.token_hex(3)}", workload, sizes.records)
                self._inputs[workload] = (source, content)
        return self._inputs[workload]

    def _own_input(self, name: str, workload: Workload, records: int) -> str:
        """Create an input for this run only."""
        self._of_run.append(f"in-{name}")
        return self._new_input(name, workload, records)

    def _new_input(self, name: str, workload: Workload, records: int) -> str:
        topic = f"in-{name}"
        self._topics.create(topic)
        by_key = self._sizes.placed is Placed.BY_KEY
        size = self._sizes.record_bytes
        make = partial(record, workload, record_bytes=size)
        self._topics.fill(topic, make, records, record_bytes=size, by_key=by_key)
        return topic

    def _scratch(self, name: str) -> Path:
        return self._directory / name
