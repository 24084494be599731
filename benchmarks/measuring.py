"""One run of one system: started, watched from outside until its work is visible, stopped, and its output checked.

Nothing is asked of the system itself. Progress is the broker's word: the ends of the output's partitions, as every
reader and as a read_committed reader see them, every 50 ms. A wrong output is no figure.
"""

import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.errors import BenchmarkError
from benchmarks.ours.system import EVENTS
from benchmarks.ours.timeline import Timeline
from benchmarks.processes import ProcessTree, Usage
from benchmarks.systems import Kind, System, Task
from benchmarks.topics import Ends, Topics
from benchmarks.workloads import Content, Workload, expected, record
from coordinator.dev.kafka import LocalKafka

__all__ = ["Bench", "Sizes", "steady_rate"]

Figures = dict[str, Any]

_LOOK_S = 0.05
_FROM, _TO = 0.25, 0.9
"""Shares of the output between which a rate is measured."""
_QUIET_INTERVALS = 3
"""Complete when nothing was added for so many intervals, a second at least, and all that was added is visible."""
_STOP_LIMIT_S = 30.0
_STANDSTILL_S = 600.0
_BACKLOG_LIMIT_S = 1_800.0
"""Hang guards, not measurements."""
# Ends a system whose benchmark is gone, however that ended: then the pipe to this little program closes.
_GUARD = "import os, signal, sys; sys.stdin.read(); os.killpg(int(sys.argv[1]), signal.SIGKILL)"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured."""

    records: int = 4_000_000
    partitions: int = 4
    threads: int = 2
    interval_ms: int = 1_000
    per_checkpoint: int = 0
    """0: each system as it does by itself; ours sizes its checkpoints by the time that they take."""
    rate: int = 20_000
    """Records/s of the steady load, and of what is added to a backlog."""
    steady_s: float = 20.0
    warm_s: float = 10.0
    small_checkpoints: int = 60
    small_records: int = 1_000


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was seen at one moment."""

    at: float
    """Seconds since the system was started."""
    ends: Ends


@dataclass
class Running:
    """A system that runs."""

    process: subprocess.Popen[bytes]
    tree: ProcessTree
    broker: ProcessTree
    began: float
    broker_before: float
    looks: list[Look] = field(default_factory=list)
    usage: Usage = field(default_factory=lambda: Usage(cpu_seconds=0, peak_rss=0, peak_pss=0))


class Bench:
    """Runs systems one after the other on one broker; input topics are filled once and kept."""

    def __init__(self, kafka: LocalKafka, sizes: Sizes, directory: Path) -> None:
        self._kafka = kafka
        self._sizes = sizes
        self._directory = directory
        self._topics = Topics(kafka.bootstrap_servers, sizes.partitions)
        self._inputs: dict[Workload, tuple[str, Content]] = {}
        self._topics.warm_up()

    def run(self, system: System, workload: Workload) -> Figures:
        """Figures of one run. Raises BenchmarkError and NotOfferedError."""
        name = f"{system.name}-{workload}-{secrets.token_hex(3)}"
        match workload:
            case Workload.STEADY:
                figures = self._steady(system, name)
            case Workload.BACKLOG:
                figures = self._backlog(system, name)
            case Workload.CYCLE:
                figures = self._cycle(system, name)
            case _:
                figures = self._full(system, name, workload)
        if system.kind is Kind.OURS:
            figures["timeline"] = Timeline.from_file(self._scratch(name) / EVENTS).as_json()
        return figures

    # -- workloads

    def _full(self, system: System, name: str, workload: Workload) -> Figures:
        records = self._sizes.records
        with self._started(system, workload, name, self._input(workload)) as running:
            content = self._inputs[workload][1]
            self._watch(running, name, lambda ends: ends.appended >= content.records, quiet=True)
            self._stop(running)
        figures = self._of_all(running, name, workload, content)
        visible = running.looks[-1].ends.visible
        done = next(look.at for look in running.looks if look.ends.visible == visible)
        return {
            "records": records,
            "records_per_s": round(steady_rate(running.looks, records, content.records)),
            "records_per_s_whole": round(records / done),
            "cpu_s_per_million": round(figures["cpu_s"] / records * 1e6, 2),
            "broker_cpu_s_per_million": round(figures["broker_cpu_s"] / records * 1e6, 2),
            **figures,
        }

    def _cycle(self, system: System, name: str) -> Figures:
        """Ours alone: the time between settled checkpoints, from the journal."""
        sizes = self._sizes
        records = sizes.small_checkpoints * sizes.small_records
        source = self._new_input(name, Workload.COPY, records)
        given = {"interval_ms": 0, "per_checkpoint": sizes.small_records}
        with self._started(system, Workload.CYCLE, name, source, **given) as running:
            self._watch(running, name, lambda ends: ends.appended >= records, quiet=True)
            self._stop(running)
        figures = self._of_all(running, name, Workload.COPY, expected(Workload.COPY, records))
        timeline = Timeline.from_file(self._scratch(name) / EVENTS)
        self._topics.delete(source)
        return {**timeline.cycle(), **figures}

    def _steady(self, system: System, name: str) -> Figures:
        sizes = self._sizes
        source = self._new_input(name, Workload.STEADY, 0)
        options = {
            "servers": self._kafka.bootstrap_servers,
            "partitions": sizes.partitions,
            "source": source,
            "sink": name,
            "rate": sizes.rate,
            "seconds": sizes.steady_s,
            "warm_s": sizes.warm_s,
            "limit_s": _STANDSTILL_S,
        }
        given = {"interval_ms": system.steady_interval_ms, "per_checkpoint": 0}
        with self._started(system, Workload.STEADY, name, source, **given) as running:
            load = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.steady", json.dumps(options)], stdout=subprocess.PIPE, text=True
            )
            try:
                while load.poll() is None and running.process.poll() is None:
                    self._sample(running)
                    time.sleep(0.2)
                if load.poll() is None:
                    raise BenchmarkError(self._words(running, name, "ended"))
                assert load.stdout is not None
                figures: Figures = json.loads(load.stdout.read())
            finally:
                load.kill()
                load.wait()
            self._stop(running)
        if figures["seen"] != figures["sent"] or figures["twice"] or figures["not_sent"]:
            raise BenchmarkError(f"{name}: the output is not what was sent, each once: {figures}.")
        if "measured" not in figures:
            raise BenchmarkError(self._words(running, name, f"wrote nothing within {_STANDSTILL_S:.0f} s"))
        self._topics.delete(name)
        self._topics.delete(source)
        per_million = {"cpu_s_per_million": round(running.usage.cpu_seconds / figures["sent"] * 1e6, 2)}
        return {**figures, "interval_ms": system.steady_interval_ms, **per_million, **self._resources(running)}

    def _backlog(self, system: System, name: str) -> Figures:
        sizes = self._sizes
        source = self._new_input(name, Workload.COPY, sizes.records)
        adding = _Adding(self._topics, source, sizes.records, sizes.rate)
        with self._started(system, Workload.BACKLOG, name, source) as running:
            adding.start()
            try:
                # A second's worth of records is on its way at any time.
                self._watch(running, name, lambda ends: ends.visible >= adding.there - 2 * sizes.rate, quiet=False)
                caught_up = running.looks[-1]
            finally:
                adding.stop()
            self._watch(running, name, lambda ends: ends.appended >= adding.there, quiet=True)
            self._stop(running)
        figures = self._of_all(running, name, Workload.COPY, expected(Workload.COPY, adding.there))
        self._topics.delete(source)
        return {
            "caught_up_s": round(caught_up.at, 2),
            "records_per_s_whole": round(caught_up.ends.visible / caught_up.at),
            **figures,
        }

    # -- the run

    @contextmanager
    def _started(
        self, system: System, workload: Workload, name: str, source: str, **different: int
    ) -> Iterator[Running]:
        sizes, scratch = self._sizes, self._scratch(name)
        scratch.mkdir(parents=True)
        given = {"interval_ms": sizes.interval_ms, "per_checkpoint": sizes.per_checkpoint, **different}
        task = Task(
            workload=workload,
            servers=self._kafka.bootstrap_servers,
            source=source,
            sink=name,
            name=name,
            partitions=sizes.partitions,
            threads=sizes.threads,
            scratch=scratch,
            interval_ms=given["interval_ms"],
            per_checkpoint=given["per_checkpoint"],
        )
        command = system.command(task)
        self._topics.create(name)
        broker = ProcessTree(*self._kafka.pids.values())
        before = broker.sample().cpu_seconds
        with (scratch / "log").open("wb") as log:
            process = subprocess.Popen(
                command.arguments,
                env={**os.environ, **command.environment},
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        running = Running(process, ProcessTree(process.pid), broker, time.monotonic(), before)
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, str(process.pid)], stdin=subprocess.PIPE, start_new_session=True
        )
        try:
            yield running
        finally:
            guard.kill()
            guard.communicate()
            running.tree.kill()
            process.wait()

    def _watch(self, running: Running, name: str, enough: Callable[[Ends], bool], *, quiet: bool) -> None:
        """Until `enough`, and with `quiet` until nothing more comes and all that came is visible."""
        changed = time.monotonic()
        quiet_s = max(1.0, _QUIET_INTERVALS * self._sizes.interval_ms / 1000)
        sampled = 0.0
        while True:
            now = time.monotonic()
            look = Look(at=now - running.began, ends=self._topics.ends(name))
            if not running.looks or look.ends != running.looks[-1].ends:
                changed = now
            running.looks.append(look)
            if now - sampled >= 0.2:
                self._sample(running)
                sampled = now
            settled = look.ends.appended == look.ends.visible and now - changed >= quiet_s
            if enough(look.ends) and (settled or not quiet):
                return
            if running.process.poll() is not None:
                raise BenchmarkError(self._words(running, name, "ended"))
            if not quiet and look.at > _BACKLOG_LIMIT_S:
                raise BenchmarkError(
                    f"{name} did not catch up within {_BACKLOG_LIMIT_S:.0f} s; the load came too quickly."
                )
            if now - changed > _STANDSTILL_S:
                raise BenchmarkError(self._words(running, name, f"wrote nothing for {_STANDSTILL_S:.0f} s"))
            time.sleep(max(0.0, now + _LOOK_S - time.monotonic()))

    def _sample(self, running: Running) -> None:
        running.usage = running.tree.sample()
        running.broker.sample()

    def _stop(self, running: Running) -> None:
        self._sample(running)
        running.process.send_signal(signal.SIGTERM)
        try:
            running.process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            running.process.kill()

    def _resources(self, running: Running) -> Figures:
        usage = running.usage
        return {
            "cpu_s": round(usage.cpu_seconds, 2),
            "broker_cpu_s": round(running.broker.sample().cpu_seconds - running.broker_before, 2),
            "peak_rss_mb": round(usage.peak_rss / 1e6),
            "peak_pss_mb": round(usage.peak_pss / 1e6),
        }

    def _of_all(self, running: Running, name: str, workload: Workload, wanted: Content) -> Figures:
        """What every run says, once its output is what it should be; the output is deleted then."""
        resources = self._resources(running)
        found = self._topics.content(name, workload)
        if found != wanted:
            raise BenchmarkError(
                f"{name}: the output is wrong: {found.records:,} records, checksum {found.checksum}, instead of "
                f"{wanted.records:,}, checksum {wanted.checksum}."
            )
        self._topics.delete(name)
        return {**resources, "output_records": found.records, "output_checksum": found.checksum}

    # -- topics and files

    def _input(self, workload: Workload) -> str:
        """The full topic of a workload; a filter reads what a copy reads."""
        if workload not in self._inputs:
            content = expected(workload, self._sizes.records)
            if workload is Workload.FILTER and Workload.COPY in self._inputs:
                self._inputs[workload] = (self._inputs[Workload.COPY][0], content)
            else:
                source = self._new_input(f"all-{workload}", workload, self._sizes.records)
                self._inputs[workload] = (source, content)
        return self._inputs[workload][0]

    def _new_input(self, name: str, workload: Workload, records: int) -> str:
        topic = f"in-{name}"
        self._topics.create(topic)
        self._topics.fill(topic, workload, records)
        return topic

    def _scratch(self, name: str) -> Path:
        return self._directory / name

    def _words(self, running: Running, name: str, what: str) -> str:
        log = (self._scratch(name) / "log").read_text(errors="replace").strip()
        return f"{name} {what} (exit code {running.process.poll()}); it last said: {log[-1500:]}"


class _Adding(threading.Thread):
    """Adds copy records to a topic at a constant rate."""

    def __init__(self, topics: Topics, topic: str, first: int, rate: int) -> None:
        super().__init__(daemon=True)
        self._topics, self._topic, self._first, self._rate = topics, topic, first, rate
        self._ended = threading.Event()
        self.there = first
        """Records in the topic, counting those on their way to it."""

    def run(self) -> None:
        producer = self._topics.producer(linger_ms=2)
        began = time.monotonic()
        while not self._ended.wait(0.005):
            due = self._first + int((time.monotonic() - began) * self._rate)
            made = (record(Workload.COPY, number) for number in range(self.there, due))
            producer.produce_batch(self._topic, [{"key": key, "value": value} for key, value in made])
            self.there = due
            producer.poll(0)
        producer.flush()

    def stop(self) -> None:
        """Returns when everything added is in the topic."""
        self._ended.set()
        self.join()


def steady_rate(looks: Sequence[Look], records: int, outputs: int) -> float:
    """Input records/s between a quarter and nine tenths of the output.

    What a start costs is not in it, nor what a system needs to find its pace: compiled code, checkpoints that begin
    small.
    """
    began, ended = (_reached(looks, outputs * share) for share in (_FROM, _TO))
    return (_TO - _FROM) * records / max(ended - began, _LOOK_S)


def _reached(looks: Sequence[Look], outputs: float) -> float:
    """When so many were appended, in a straight line between two looks."""
    for before, after in itertools.pairwise(looks):
        if before.ends.appended < outputs <= after.ends.appended:
            share = (outputs - before.ends.appended) / (after.ends.appended - before.ends.appended)
            return before.at + share * (after.at - before.at)
    return looks[0].at
