"""``make bench``: exactly-once copies on a broker of their own, as one JSON object on standard output.

``python -m benchmarks coordinator`` measures the coordinator by itself instead, without a broker, and
``python -m benchmarks settle`` how quickly many pending transactions are committed.

For each path (through a DataFrame, a function on Arrow batches, and no transform) runs over a backlog with
large checkpoints give records/s and CPU seconds; one with small checkpoints gives the cost of a checkpoint by itself.
With ``--rounds`` the paths take turns over the backlog, and the medians are given, so that a load on the machine
disturbs all of them alike; it is recorded.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.coordinator.main import main as coordinator
from benchmarks.cpu import CpuOfTree
from benchmarks.settle import main as settle
from coordinator.dev.kafka import LocalKafka
from coordinator.pipeline.journal import EVENTS_VARIABLE

PARTITIONS = 4
PATHS = ("dataframe", "batches", "copy")
VALUE_BYTES = 92
KEY_BYTES = 8


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--records", type=int, default=4_000_000, help="records of 100 bytes in the backlog")
    parser.add_argument("--per-checkpoint", type=int, default=1_000_000, help="offsets per large checkpoint")
    parser.add_argument("--rounds", type=int, default=1, help="runs over the backlog for each path, in turns")
    parser.add_argument("--small", type=int, default=40, help="small checkpoints to measure")
    options = parser.parse_args()
    with LocalKafka(heap="768m") as kafka, tempfile.TemporaryDirectory(prefix="onceward-bench-") as scratch:
        _say(f"loading {options.records:,} records of {KEY_BYTES + VALUE_BYTES} bytes")
        _load(kafka.bootstrap_servers, "backlog", options.records)
        _load(kafka.bootstrap_servers, "trickle", options.small * 1000)
        results: dict[str, Any] = {
            "cores": os.cpu_count(),
            "load": [os.getloadavg()[0]],
            "records": options.records,
            "partitions": PARTITIONS,
        }
        runs: dict[str, list[dict[str, float]]] = {path: [] for path in PATHS}
        for number, (path, done) in itertools.product(range(options.rounds), runs.items()):
            name = f"{path}-backlog-{number}"
            done.append(_run(kafka, Path(scratch), name, "backlog", options.per_checkpoint, path))
            results["load"].append(os.getloadavg()[0])
        for path, done in runs.items():
            results[path] = {
                "backlog": {what: statistics.median(run[what] for run in done) for what in done[0]},
                "records_per_second": [run["records_per_second"] for run in done],
                "small_checkpoints": _run(kafka, Path(scratch), f"{path}-small", "trickle", 1000, path),
            }
    print(json.dumps(results, indent=2))


def _load(bootstrap_servers: str, topic: str, records: int) -> None:
    _create(bootstrap_servers, topic)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "linger.ms": 20,
            "batch.num.messages": 10000,
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    for first in range(0, records, 10000):
        batch = [
            {"key": b"%08d" % ((first + i) % 100_000), "value": b"%d " % (first + i) + b"x" * (VALUE_BYTES - 9)}
            for i in range(min(10000, records - first))
        ]
        producer.produce_batch(topic, batch)
        producer.poll(0)
        while len(producer) > 1_000_000:
            producer.poll(0.05)
    producer.flush()


def _create(bootstrap_servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        future.result()


def _run(
    kafka: LocalKafka, scratch: Path, name: str, source_topic: str, per_checkpoint: int, path: str
) -> dict[str, float]:
    _say(f"running {name}")
    _create(kafka.bootstrap_servers, name)
    events = scratch / f"{name}.events"
    log = scratch / f"{name}.log"
    options = {
        "job": name,
        "bootstrap_servers": kafka.bootstrap_servers,
        "source_topic": source_topic,
        "sink_topic": name,
        "records_per_checkpoint": per_checkpoint,
        "path": path,
        "state_dir": str(scratch / name),
    }
    with log.open("wb") as output:
        job = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.copy_job", json.dumps(options)],
            env={**os.environ, EVENTS_VARIABLE: str(events)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        job_cpu, broker_cpu = CpuOfTree(job.pid), CpuOfTree(*kafka.pids.values())
        before = broker_cpu.sample()
        while job.poll() is None:
            job_cpu.sample()
            time.sleep(0.2)
    if job.returncode != 0:
        raise SystemExit(f"{name} ended with {job.returncode}:\n{log.read_text()[-4000:]}")
    measured = _from_events([json.loads(line) for line in events.read_text().splitlines()])
    measured["cpu_seconds_job"] = round(job_cpu.sample(), 1)
    measured["cpu_seconds_broker"] = round(broker_cpu.sample() - before, 1)
    return measured


def _from_events(events: list[dict[str, Any]]) -> dict[str, float]:
    """Rates over the checkpoints after the first two, which pay for the start of processes."""
    runs = [event for event in events if event["event"] == "pre-committed"]
    settled = [event for event in events if event["event"] == "settled"]
    steady = runs[2:] if len(runs) > 3 else runs
    first = steady[0]["at"] - steady[0]["seconds"]
    seconds = [event["seconds"] for event in steady]
    gaps = [b["at"] - a["at"] for a, b in itertools.pairwise(settled[2:])] or [0.0]
    return {
        "checkpoints": len(runs),
        "records_per_second": round(sum(event["written"] for event in steady) / (steady[-1]["at"] - first)),
        "records_per_second_whole": round(
            sum(event["written"] for event in runs) / (settled[-1]["at"] - runs[0]["at"] + runs[0]["seconds"])
        ),
        "run_ms_median": round(statistics.median(seconds) * 1000, 1),
        "checkpoint_ms_median": round(statistics.median(gaps) * 1000, 1),
        "checkpoint_ms_worst": round(max(gaps) * 1000, 1),
    }


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["coordinator"]:
        coordinator(sys.argv[2:])
    elif sys.argv[1:2] == ["settle"]:
        settle(sys.argv[2:])
    else:
        main()
