"""``python -m benchmarks settle``: how long a recovery takes to commit many pending transactions; JSON and a table.

Pre-commits one checkpoint of many slots with the product's own writer, and commits it with a system that has no
connection yet, as the next generation would. Also times the sweep before it, and a second commit of all transactions.
"""

import argparse
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from benchmarks.results import RESULTS, new_directory, say, write
from benchmarks.scratch import scratch_directory
from onceward import KafkaSink
from onceward.connectors.interfaces import JobContext
from onceward.connectors.tasks import CheckpointTask
from onceward.dev.kafka import LocalKafka
from onceward.driver.origins import slot_origins
from onceward.executor.slots import Attempt
from onceward.protocol.values import (
    Author,
    CheckpointId,
    Committable,
    Generation,
    JobName,
    Outcome,
    ParticipantName,
)
from onceward.sinks.kafka.control.system import KafkaSystem
from tests.support.slots import write_slot

__all__ = ["main"]

_JOB = JobName("settle")
_AUTHOR = Author(job=_JOB, participant=ParticipantName("sink"), generations=range(1, 2))
_TOPIC = "settled"
_PARTITIONS = 8


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; return the directory with the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks settle", description=__doc__)
    parser.add_argument("--transactions", type=int, help="default: 1,000")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--transaction-version", type=int, choices=(0, 1, 2), default=2)
    parser.add_argument("--quick", action="store_true", help="50 transactions: whether it works, not how fast it is")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the directory of the result goes")
    options = parser.parse_args(arguments)
    count = options.transactions or (50 if options.quick else 1_000)
    with scratch_directory(None) as scratch:
        machine = describe_machine(scratch)
    with LocalKafka(options.brokers, options.transaction_version, heap="384m") as kafka:
        began = time.monotonic()
        committables = _pre_committed(kafka.bootstrap_servers, count)
        say(f"pre-committed {count} transactions in {time.monotonic() - began:.0f} s")
        results: dict[str, Any] = {
            "machine": machine,
            "quick": options.quick,
            "brokers": options.brokers,
            "transaction_version": options.transaction_version,
            "transactions": len(committables),
            **_timed(kafka.bootstrap_servers, committables),
        }
    place = new_directory(options.results, "settle")
    write(results, place)
    console = Console()
    table = Table(title="committing pending transactions", title_justify="left", show_header=False)
    for name, value in results.items():
        if name != "machine":
            table.add_row(name.replace("_", " "), str(value))
    console.print(table)
    console.print(f"machine: {machine}\n{place}", markup=False)
    return place


def _pre_committed(servers: str, count: int) -> tuple[Committable, ...]:
    """Pre-commit one checkpoint whose slots each wrote a record."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(_TOPIC, _PARTITIONS, -1)])[_TOPIC].result(30)
    sink = KafkaSink(servers, topic=_TOPIC).connect(JobContext(job=_JOB, checkpoint_timeout=timedelta(minutes=2)))
    try:
        sink.preflight()
        sink.begin_generation(Generation(1))
        writer = sink.write()
        task = CheckpointTask(job=_JOB, generation=1, checkpoint=1, splits=(), columns=(), sinks={"sink": sink.offer()})
        votes = []
        for slot in range(count):
            batch = pa.RecordBatch.from_pydict({"key": [b"%d" % slot], "value": [b"%d" % slot]})
            votes.append(write_slot(writer, Attempt(task=task, slot=slot, number=slot), [batch]))
            if slot % 100 == 99:
                say(f"{slot + 1} of {count}")
        made = sink.pre_commit(CheckpointId(1), votes, slot_origins([[] for _ in votes], str), leftovers=False)
        return made.committables
    finally:
        sink.close()


def _timed(servers: str, committables: tuple[Committable, ...]) -> dict[str, float]:
    system = KafkaSystem.open(servers)
    try:
        began = time.perf_counter()
        swept = system.sweep(_JOB, keep=committables)
        sweep = time.perf_counter() - began
        settled = [system.commit(_AUTHOR, committables)]
        first = time.perf_counter() - began - sweep
        settled.append(system.commit(_AUTHOR, committables))
        again = time.perf_counter() - began - sweep - first
    finally:
        system.close()
    wrong = [each for group in settled for each in group if each.outcome is not Outcome.COMMITTED]
    if swept or wrong or any(len(group) != len(committables) for group in settled):
        raise SystemExit(f"not everything was committed: {swept[:3]} {wrong[:3]}")
    return {
        "sweep_seconds": round(sweep, 3),
        "commit_seconds": round(first, 3),
        "commit_again_seconds": round(again, 3),
        "commits_per_second": round(len(committables) / first),
    }
