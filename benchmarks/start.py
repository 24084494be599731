"""``python -m benchmarks start``: how long a job takes from the start of its process to its first settled checkpoint,
and how long after its driver was killed; JSON and a table.

The driver and all its processes are killed with SIGKILL once a checkpoint is settled, and started again on what they
left.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.bench import BROKER
from benchmarks.errors import BenchmarkError
from benchmarks.guarded import Guarded
from benchmarks.machine import describe_machine
from benchmarks.options import chosen
from benchmarks.ours.system import EVENTS, OURS, Ours
from benchmarks.results import RESULTS, new_directory, say, write
from benchmarks.scratch import scratch_directory
from benchmarks.systems import Task
from benchmarks.topics import Topics
from benchmarks.workloads import Workload
from onceward.dev.kafka import LocalKafka

__all__ = ["main"]

_SYSTEMS = ("ours", "ours-staying")
_PARTITIONS = 2
_LIMIT_S = 300.0
"""Guards against hangs; it is no measurement."""
_STEPS = {"recovered_s": "recovered", "spark_s": "planned", "settled_s": "settled"}
"""Figure: the event that ends the step."""


@dataclass(frozen=True, kw_only=True)
class _Job:
    """One job, started again and again on one store."""

    topics: Topics
    task: Task
    system: Ours

    def started(self) -> dict[str, float]:
        """Start it with a record in each partition, wait until a checkpoint with them is settled, kill it; return the
        seconds from the start of its process to the end of each step, and its CPU seconds."""
        events = self.task.scratch / EVENTS
        events.unlink(missing_ok=True)
        self.topics.to_each(self.task.source, b"key", b"value")
        command = self.system.command(self.task)
        began, limit = time.time(), time.monotonic() + _LIMIT_S
        log = self.task.scratch / "log"
        job = Guarded(self.task.name, command.arguments, log, directory=log.parent, environment=command.environment)
        with job:
            while "settled_s" not in (found := _steps(_lines(events), began)):
                if job.exit_code is not None or time.monotonic() > limit:
                    raise BenchmarkError(f"{self.task.name} settled no checkpoint; it last said: {job.last_words()}")
                time.sleep(0.02)
            found["cpu_s"] = round(job.tree.sample().cpu_seconds, 2)
            job.tree.kill()
        return found


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; return the directory with the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks start", description=__doc__)
    parser.add_argument("--ours", default="all", help="all, or some of: " + ", ".join(_SYSTEMS))
    parser.add_argument("--rounds", type=int, default=3, help="starts after a kill")
    parser.add_argument("--quick", action="store_true", help="one round: whether it works, not how fast it is")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the directory of the result goes")
    options = parser.parse_args(arguments)
    systems = chosen(parser, "--ours", options.ours, {one.name: one for one in OURS if one.name in _SYSTEMS})
    rounds = 1 if options.quick else options.rounds
    rows: list[dict[str, Any]] = []
    with scratch_directory(None) as scratch:
        machine = describe_machine(scratch)
        with LocalKafka(heap="384m", properties=BROKER) as kafka:
            topics = Topics(kafka.bootstrap_servers, _PARTITIONS)
            topics.warm_up()
            for system in systems:
                rows += _measured(system, topics, kafka.bootstrap_servers, scratch, rounds)
    place = new_directory(options.results, "start")
    write({"machine": machine, "quick": options.quick, "rounds": rounds, "starts": rows}, place)
    console = Console()
    console.print(_table(rows))
    console.print(f"machine: {machine}\n{place}", markup=False)
    return place


def _measured(system: Ours, topics: Topics, servers: str, scratch: Path, rounds: int) -> Iterator[dict[str, Any]]:
    name = f"start-{system.name}"
    place = scratch / name
    place.mkdir()
    for topic in (f"{name}-in", f"{name}-out"):
        topics.create(topic)
    task = Task(
        workload=Workload.STEADY,
        servers=servers,
        source=f"{name}-in",
        sink=f"{name}-out",
        name=name,
        partitions=_PARTITIONS,
        threads=2,
        interval_ms=100,
        per_checkpoint=0,
        scratch=place,
        steady=True,
    )
    job = _Job(topics=topics, task=task, system=system)
    for number in range(rounds + 1):
        start = "first" if number == 0 else "after a kill"
        row = {"system": system.name, "start": start, **job.started()}
        say(str(row))
        yield row


def _steps(lines: Sequence[Mapping[str, Any]], began: float) -> dict[str, float]:
    """The steps that are over. The checkpoint that settles is one with transactions: the first one only notes where the
    source begins, and what is recovered was settled before."""
    over: dict[str, float] = {}
    for line in lines:
        if line["event"] == "settled" and not (line["transactions"] and "spark_s" in over):
            continue
        for figure, event in _STEPS.items():
            if line["event"] == event:
                over.setdefault(figure, round(line["at"] - began, 2))
    return over


def _lines(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [
        json.loads(line) for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")
    ]


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Medians."""
    figures = [*_STEPS, "cpu_s"]
    table = Table("system", "start", *figures, title="seconds from the start of the process", title_justify="left")
    for system, start in dict.fromkeys((row["system"], row["start"]) for row in rows):
        those = [row for row in rows if (row["system"], row["start"]) == (system, start)]
        table.add_row(system, start, *(f"{statistics.median(row[figure] for row in those):.2f}" for figure in figures))
    return table
