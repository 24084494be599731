"""One of the benchmark's workloads in Quix Streams; runs until SIGTERM. The argument is the task.

Run by the Python of Quix's own environment, so it imports nothing of ours. One process uses one core, so as many as
threads are wanted run as one consumer group.
"""

import json
import multiprocessing
import signal
import sys
from typing import Any

from quixstreams import Application  # type: ignore[import-not-found]


def application(task: dict[str, Any]) -> None:
    """One member of the group."""
    steady = task["steady"]
    app = Application(
        broker_address=task["servers"],
        consumer_group=task["name"],
        processing_guarantee="exactly-once",
        commit_interval=task["interval_ms"] / 1000,
        auto_offset_reset="earliest",
        auto_create_topics=False,
        loglevel="WARNING",
        state_dir=f"{task['scratch']}/state",
        consumer_extra_config={
            "fetch.wait.max.ms": 5 if steady else 100,
            "fetch.queue.backoff.ms": 2,
            "queued.min.messages": 100_000,
        },
        producer_extra_config={"linger.ms": 1 if steady else 50, "batch.num.messages": 10_000},
    )
    form = "json" if task["workload"] == "json" else "bytes"
    source = app.topic(task["source"], key_deserializer="bytes", value_deserializer=form)
    sink = app.topic(task["sink"], key_serializer="bytes", value_serializer=form)
    stream = app.dataframe(source)
    if task["workload"] == "json":
        stream = stream.apply(
            lambda row: {
                "id": row["id"],
                "total": row["amount"] * row["quantity"],
                "currency": row["currency"].upper(),
            }
        )
    elif task["workload"] == "filter":
        stream = stream.filter(lambda value, key, timestamp, headers: key[-2:] == b"00", metadata=True)
    stream.to_topic(sink)
    app.run()


def main() -> None:
    task: dict[str, Any] = json.loads(sys.argv[1])
    members = [multiprocessing.Process(target=application, args=(task,)) for _ in range(task["threads"])]
    for member in members:
        member.start()

    def stop(*_: object) -> None:
        for member in members:
            member.terminate()

    signal.signal(signal.SIGTERM, stop)
    for member in members:
        member.join()
    sys.exit(max(abs(member.exitcode or 0) for member in members))


if __name__ == "__main__":
    main()
