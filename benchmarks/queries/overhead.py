"""What a batch costs beside the same query into noop: turns of all sinks in one session, under one load."""

import json
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.adding import Adding
from benchmarks.errors import BenchmarkError
from benchmarks.guarded import Guarded
from benchmarks.ours.system import environment
from benchmarks.queries.batches import WARM_UP, Jobs, batches_of, figures, jobs_of
from benchmarks.queries.systems import submitted
from benchmarks.queries.workloads import QueryWorkload, record
from benchmarks.results import say
from benchmarks.rounds import Run, measured
from benchmarks.topics import Topics
from onceward.dev.kafka import LocalKafka

__all__ = ["SYSTEMS", "Load", "measure"]

SYSTEMS = ("noop", "noop-python", "ours")
_TURN_LIMIT_S = 600.0
"""A guard against hangs."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is measured at a time: one query under one load."""

    workload: QueryWorkload
    rate: int
    """Records per second."""
    batches: int
    """Of one turn, without its warm-up."""
    partitions: int
    threads: int
    conf: dict[str, str]
    """Of Spark."""

    @property
    def title(self) -> str:
        return f"{self.workload} at {self.rate:,} records/s"


def measure(kafka: LocalKafka, load: Load, rounds: int, directory: Path) -> Iterator[Run]:
    """Yield a run per round and system. A round before the first one warms the session up and does not count."""
    topics = Topics(kafka.bootstrap_servers, load.partitions)
    name = f"{load.workload}-{load.rate}-{secrets.token_hex(3)}"
    turns = [
        {"name": f"{name}-{number}-{system}", "system": system, "round": number}
        for number in range(rounds + 1)
        for system in SYSTEMS
    ]
    made = [name, *(str(turn["name"]) for turn in turns)]
    for topic in made:
        topics.create(topic)
    try:
        turns_done, jobs = _turns(kafka, load, name, turns, topics, directory / name)
        for done in turns_done:
            if done["round"]:
                run: Run = {"workload": load.title, "system": done["system"], "round": done["round"]}
                yield measured(run, rounds, partial(_figures, load, done, jobs, topics), say)
    finally:
        for topic in made:
            topics.delete(topic)


def _turns(
    kafka: LocalKafka, load: Load, name: str, turns: Sequence[dict[str, Any]], topics: Topics, scratch: Path
) -> tuple[list[dict[str, Any]], dict[tuple[str, int], Jobs]]:
    """Return what the session reports of each turn, and the jobs in Spark's event log."""
    logs = scratch / "spark"
    logs.mkdir(parents=True)
    result = scratch / "turns.jsonl"
    options = {
        "workload": load.workload,
        "servers": kafka.bootstrap_servers,
        "source": name,
        "batches": WARM_UP + load.batches,
        "turns": turns,
        "scratch": str(scratch),
        "result": str(result),
    }
    command = [sys.executable, "-m", "benchmarks.queries.batch_job", json.dumps(options)]
    log_conf = {"enabled": "true", "rolling.enabled": "false", "compress": "false", "dir": str(logs)}
    adding = Adding(topics, name, 0, load.rate, record)
    conf = {f"spark.eventLog.{key}": value for key, value in log_conf.items()}
    started = environment(scratch, submitted(load.threads, {**conf, **load.conf}))
    with Guarded(name, command, scratch / "log", directory=scratch, environment=started) as session:
        adding.start()
        try:
            ended = session.wait(len(turns) * _TURN_LIMIT_S)
        finally:
            adding.stop()
        if not ended or session.exit_code:
            raise BenchmarkError(f"{load.title}: exit code {session.exit_code}; it last said: {session.last_words()}")
    adding.must_be_there()
    (log,) = logs.iterdir()
    with log.open(encoding="utf-8") as lines:
        jobs = jobs_of(lines)
    return [json.loads(line) for line in result.read_text().splitlines()], jobs


def _figures(load: Load, done: dict[str, Any], jobs: dict[tuple[str, int], Jobs], topics: Topics) -> dict[str, Any]:
    """Return the figures of a turn. Raises BenchmarkError if there are none."""
    if done["system"] == "ours":
        _check_output(load, done, topics)
    calls = {int(number): call for number, call in done["calls"].items()}
    events = done["events"] if done["system"] == "ours" else None
    batches = batches_of(done["progress"], calls, jobs, events)
    if not batches:
        raise BenchmarkError(f"{done['name']}: no batch with records after the warm-up.")
    return figures(batches)


def _check_output(load: Load, done: dict[str, Any], topics: Topics) -> None:
    """Raise BenchmarkError if the output is not what was read, each record once."""
    read = sum(one["numInputRows"] for one in done["progress"])
    match load.workload:
        case QueryWorkload.COPY:
            found = sum(1 for _ in topics.read(done["name"]))
        case QueryWorkload.RUNNING_COUNT:
            found = sum({key: int(value) for key, value in topics.read(done["name"])}.values())
        case QueryWorkload.WINDOW_COUNT:
            return  # windows that are still open are not in the output; the runs at a full topic check them
    if found != read:
        raise BenchmarkError(f"{done['name']}: the output is wrong: it counts {found:,} records of {read:,} read.")
