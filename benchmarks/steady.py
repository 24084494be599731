"""The load of the steady workload, and its measurement: ``python -m benchmarks.steady OPTIONS-AS-JSON``.

Sends records at a constant rate and reads the output like a read_committed reader, in one process, so that one clock
measures both ends of a latency. Sending begins at once; the measurement begins `warm_s` after the first output record.
Writes one JSON object: counts, percentiles in milliseconds over the records sent in the measured time, and some of them
for each second.
"""

import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import TopicPartition

from benchmarks.percentiles import percentile
from benchmarks.topics import Topics
from benchmarks.workloads import KEY_BYTES, stamped, stamps
from onceward.sources.kafka.client import Records

__all__ = ["Reader", "Stamped", "figures"]

_SHARES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p99_9_ms": 0.999, "worst_ms": 1.0}
_SHARES_OF_A_SECOND = {"p50_ms": 0.5, "p99_ms": 0.99, "worst_ms": 1.0}
_LINGER_MS = 5
"""As producers of Kafka 4 have it by default (KIP-1030)."""
_TICK_S = 0.002
_MOST = 50_000
_KEYS = 100_000
_DRAIN_S = 60.0
"""The output is complete if no more arrives for this long."""


class Reader(threading.Thread):
    """Reads the output until `stop`, and keeps latencies.

    It reads columns, so that at 100,000 records/s it takes a tenth of a core instead of a whole one.
    """

    def __init__(self, topics: Topics, topic: str) -> None:
        super().__init__(daemon=True)
        self._topics, self._topic = topics, topic
        self._stop_reading = threading.Event()
        self.seen = 0
        self.since = self.until = float("inf")
        self.latencies: dict[int, list[float]] = {}
        """Of the records sent in each second since `since`."""

    def stop(self) -> None:
        self._stop_reading.set()
        self.join()

    def run(self) -> None:
        consumer = self._topics.columns(wait_ms=5)
        consumer.assign([TopicPartition(self._topic, partition, 0) for partition in self._topics.all])
        try:
            while not self._stop_reading.is_set():
                # one record ends the wait; what came with it is taken without one
                for most, wait_s in ((1, 0.05), (_MOST, 0.0)):
                    with consumer.fetched(most, wait_s) as got:
                        now = time.time()
                        for records in got.records:
                            self.take(records, now)
        finally:
            consumer.close()

    def take(self, records: Records, now: float) -> None:
        """Count records that were read at `now`."""
        raise NotImplementedError

    def measure(self, at: npt.NDArray[np.float64], now: float) -> None:
        """Keep the latencies of records sent `at`, in the measured time, and read at `now`."""
        seconds = (at - self.since).astype(int)
        for second in np.unique(seconds):
            self.latencies.setdefault(int(second), []).extend((now - at[seconds == second]).tolist())


class Stamped(Reader):
    """Counts how often each number arrived."""

    def __init__(self, topics: Topics, topic: str) -> None:
        super().__init__(topics, topic)
        self._had = np.zeros(0, bool)
        self.twice = 0

    def take(self, records: Records, now: float) -> None:
        self.count(records.values(), now)

    def count(self, values: pa.Array, now: float) -> None:
        """Count records with these values that were read at `now`."""
        at, numbers = stamps(values)
        if int(numbers.max()) >= len(self._had):
            self._had = np.concatenate((self._had, np.zeros(max(int(numbers.max()) + 1, 1 << 16), bool)))
        known = np.unique(numbers)
        fresh = int((~self._had[known]).sum())
        self._had[known] = True
        self.seen += fresh
        self.twice += len(numbers) - fresh
        self.measure(at[(at >= self.since) & (at < self.until)], now)


def figures(latencies: Mapping[int, Sequence[float]]) -> dict[str, Any]:
    """Return percentiles over all seconds, and, in ``over_time``, for each second."""
    everything = sorted(latency for of in latencies.values() for latency in of)
    return {
        **_percentiles(everything, _SHARES),
        "measured": len(everything),
        "over_time": [
            {"second": second, **_percentiles(sorted(latencies[second]), _SHARES_OF_A_SECOND)}
            for second in sorted(latencies)
        ],
    }


def _percentiles(latencies: Sequence[float], shares: Mapping[str, float]) -> dict[str, float]:
    return {name: round(percentile(latencies, share) * 1000, 1) for name, share in shares.items()}


def main() -> None:
    options = json.loads(sys.argv[1])
    topics = Topics(options["servers"], options["partitions"])
    reader = Stamped(topics, options["sink"])
    reader.start()
    producer = topics.producer(linger_ms=_LINGER_MS)
    began = time.time()
    sent, partitions = 0, options["partitions"]
    while time.time() < min(began + options["limit_s"], reader.until):
        if reader.seen and reader.since == float("inf"):
            reader.since = time.time() + options["warm_s"]
            reader.until = reader.since + options["seconds"]
        due = int((time.time() - began) * options["rate"])
        now = time.time()
        for first in range(sent, min(due, sent + partitions)):
            numbers = range(first, due, partitions)
            made = [{"key": b"%0*d" % (KEY_BYTES, n % _KEYS), "value": stamped(n, now)} for n in numbers]
            producer.produce_batch(options["source"], made, first % partitions)
        sent = max(sent, due)
        producer.poll(0)
        time.sleep(_TICK_S)
    lost = producer.flush(_DRAIN_S)
    seen, changed = reader.seen, time.monotonic()
    while reader.seen < sent and time.monotonic() < changed + _DRAIN_S:
        if reader.seen != seen:
            seen, changed = reader.seen, time.monotonic()
        time.sleep(0.05)
    reader.stop()
    result: dict[str, Any] = {"sent": sent, "not_sent": lost, "seen": reader.seen, "twice": reader.twice}
    if reader.latencies:
        result |= figures(reader.latencies)
    Path(options["result"]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
