"""One of the benchmark's workloads in Flink SQL; runs until SIGTERM. The argument is the task.

Run by the Python of Flink's own environment, so it imports nothing of ours.
"""

import json
import sys
from typing import Any

from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]

_RAW = {"key.format": "raw", "key.fields": "k", "value.fields-include": "EXCEPT_KEY"}

# Values begin with their event time in milliseconds, 13 digits; benchmarks/queries/workloads.py has the sizes.
_TIMED = (
    "k STRING, v STRING, t AS TO_TIMESTAMP_LTZ(CAST(SUBSTRING(v FROM 1 FOR 13) AS BIGINT), 3), "
    "WATERMARK FOR t AS t - INTERVAL '10' SECOND"
)
_WINDOWS = """
    SELECT CONCAT(k, '@', CAST(TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', window_start) AS STRING), '000'),
        CAST(COUNT(*) AS STRING)
    FROM TABLE(TUMBLE(TABLE src, DESCRIPTOR(t), INTERVAL '10' SECOND))
    GROUP BY k, window_start, window_end
"""
_JOIN = """
    SELECT l.k, CONCAT(SUBSTRING(l.v FROM 1 FOR 13), '-', SUBSTRING(r.v FROM 1 FOR 13))
    FROM src l JOIN other r ON l.k = r.k AND r.t BETWEEN l.t AND l.t + INTERVAL '0.4' SECOND
"""
_STATEFUL = {
    "join": (_TIMED, "k STRING, v STRING", _JOIN),
    "window-count": (_TIMED, "k STRING, v STRING", _WINDOWS),
    "running-count": (
        "k STRING, v STRING",
        "k STRING, v STRING, PRIMARY KEY (k) NOT ENFORCED",
        "SELECT k, CAST(COUNT(*) AS STRING) FROM src GROUP BY k",
    ),
}
"""Columns of source and sink, and the query."""
_BATCHED = {
    "table.local-time-zone": "UTC",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.size": "50000",
}


def main() -> None:
    task: dict[str, Any] = json.loads(sys.argv[1])
    environment = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    workload = task["workload"]
    steady = task["steady"]
    allowed = "50 ms" if steady else "500 ms"
    for name, value in {
        "pipeline.jars": f"file://{sys.argv[2]}",
        "pipeline.object-reuse": "true",
        "parallelism.default": str(task["threads"]),
        "execution.checkpointing.interval": f"{max(task['interval_ms'], 10)} ms",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": f"file://{task['scratch']}/checkpoints",
        "execution.buffer-timeout.interval": "5 ms" if steady else "100 ms",
        "table.exec.source.idle-timeout": "1 s",
        **({**_BATCHED, "table.exec.mini-batch.allow-latency": allowed} if workload in _STATEFUL else {}),
    }.items():
        environment.get_config().set(name, value)
    is_json = workload == "json"
    read, written, query = "k BYTES, v BYTES", "k BYTES, v BYTES", "SELECT k, v FROM src"
    if is_json:
        read = "k BYTES, id BIGINT, amount BIGINT, quantity BIGINT, currency STRING"
        written = "k BYTES, id BIGINT, total BIGINT, currency STRING"
        query = "SELECT k, id, amount * quantity, UPPER(currency) FROM src"
    elif workload in _STATEFUL:
        read, written, query = _STATEFUL[workload]
    elif workload == "filter":
        read, written = "k STRING, v BYTES", "k STRING, v BYTES"
        query = "SELECT k, v FROM src WHERE k LIKE '%00'"
    common = {
        "connector": "kafka",
        "properties.bootstrap.servers": task["servers"],
        "value.format": "json" if is_json else "raw",
        **_RAW,
    }
    source = {
        **common,
        "topic": task["source"],
        "properties.group.id": task["name"],
        "scan.startup.mode": "earliest-offset",
        "properties.fetch.max.wait.ms": "5" if steady else "100",
    }
    sink = {
        **common,
        "topic": task["sink"],
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": task["name"],
        "properties.transaction.timeout.ms": "600000",
        "properties.linger.ms": "2" if steady else "50",
        "properties.batch.size": "1000000",
    }
    if workload == "running-count":
        sink["connector"] = "upsert-kafka"
        del sink["key.fields"]  # the primary key
    environment.execute_sql(f"CREATE TABLE src ({read}) WITH ({_with(source)})")
    if workload == "join":
        other = {**source, "topic": task["source"] + "-right"}
        environment.execute_sql(f"CREATE TABLE other ({read}) WITH ({_with(other)})")
    environment.execute_sql(f"CREATE TABLE dst ({written}) WITH ({_with(sink)})")
    environment.execute_sql(f"INSERT INTO dst {query}").wait()


def _with(options: dict[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in options.items())


if __name__ == "__main__":
    main()
