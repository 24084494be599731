"""``python -m benchmarks settle``: how long a recovery takes to commit many pending transactions, as JSON.

Pre-commits one checkpoint of many slots with the product's own writer, and commits it with a committer that has no
connection yet, as the next generation would. Also timed: the sweep before it, and committing everything once more.
"""

import argparse
import json
import os
import time
from datetime import timedelta
from typing import Any

import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.results import say
from coordinator.dev.kafka import LocalKafka
from coordinator.pipeline.interfaces import JobContext
from coordinator.pipeline.tasks import CheckpointTask
from coordinator.protocol.values import CheckpointId, Committable, Generation, JobName, Outcome
from sinks import KafkaSink
from sinks.kafka.committer import KafkaCommitter

__all__ = ["main"]

_JOB = JobName("settle")
_TOPIC = "settled"
_PARTITIONS = 8


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks settle", description=__doc__)
    parser.add_argument("--transactions", type=int, default=1_000)
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--transaction-version", type=int, choices=(0, 1, 2), default=2)
    options = parser.parse_args(arguments)
    with LocalKafka(options.brokers, options.transaction_version, heap="384m") as kafka:
        began = time.monotonic()
        committables = _pre_committed(kafka.bootstrap_servers, options.transactions)
        say(f"pre-committed {options.transactions} transactions in {time.monotonic() - began:.0f} s")
        results: dict[str, Any] = {
            "cores": os.cpu_count(),
            "brokers": options.brokers,
            "transactions": len(committables),
            **_timed(kafka.bootstrap_servers, committables),
        }
    print(json.dumps(results, indent=2))


def _pre_committed(servers: str, count: int) -> tuple[Committable, ...]:
    """One checkpoint whose slots each wrote a record."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(_TOPIC, _PARTITIONS, -1)])[_TOPIC].result(30)
    sink = KafkaSink(servers, topic=_TOPIC)
    sink.open(JobContext(job=_JOB, checkpoint_timeout=timedelta(minutes=2)))
    try:
        sink.preflight()
        sink.begin_generation(Generation(1))
        write = sink.write()
        task = CheckpointTask(
            job=_JOB, generation=1, checkpoint=1, splits=(), columns=(), sink="sink", sink_options=sink.options()
        )
        votes = []
        for slot in range(count):
            batch = pa.RecordBatch.from_pydict({"key": [b"%d" % slot], "value": [b"%d" % slot]})
            votes.append(write(task, slot, slot, iter([batch])))
            if slot % 100 == 99:
                say(f"{slot + 1} of {count}")
        return sink.pre_commit(CheckpointId(1), votes, [[] for _ in votes], unsettled=())
    finally:
        sink.close()


def _timed(servers: str, committables: tuple[Committable, ...]) -> dict[str, float]:
    committer = KafkaCommitter([servers])
    try:
        began = time.perf_counter()
        swept = committer.sweep(_JOB, keep=committables)
        sweep = time.perf_counter() - began
        settled = [committer.commit(committables)]
        first = time.perf_counter() - began - sweep
        settled.append(committer.commit(committables))
        again = time.perf_counter() - began - sweep - first
    finally:
        committer.close()
    wrong = [each for group in settled for each in group if each.outcome is not Outcome.COMMITTED]
    if swept or wrong or any(len(group) != len(committables) for group in settled):
        raise SystemExit(f"not everything was committed: {swept[:3]} {wrong[:3]}")
    return {
        "sweep_seconds": round(sweep, 3),
        "commit_seconds": round(first, 3),
        "commit_again_seconds": round(again, 3),
        "commits_per_second": round(len(committables) / first),
    }
