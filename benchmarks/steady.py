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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition

from benchmarks.percentiles import percentile
from benchmarks.topics import Topics
from benchmarks.workloads import KEY_BYTES, stamp, stamped

__all__ = ["Reader", "figures"]

_SHARES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p99_9_ms": 0.999, "worst_ms": 1.0}
_SHARES_OF_A_SECOND = {"p50_ms": 0.5, "p99_ms": 0.99, "worst_ms": 1.0}
_DRAIN_S = 60.0
"""The output is complete if no more arrives for this long."""


@dataclass
class Reader(threading.Thread):
    """Reads the output until `stop`; counts how often each number arrived, and keeps latencies."""

    topics: Topics
    topic: str
    seen: int = 0
    twice: int = 0
    since: float = float("inf")
    until: float = float("inf")
    latencies: dict[int, list[float]] = field(default_factory=dict)
    """Of the records sent in each second since `since`."""

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._stop_reading = threading.Event()
        self._had = bytearray()

    def __hash__(self) -> int:
        return id(self)

    def stop(self) -> None:
        self._stop_reading.set()
        self.join()

    def run(self) -> None:
        consumer = self.topics.consumer(wait_ms=5)
        consumer.assign([TopicPartition(self.topic, partition, 0) for partition in self.topics.all])
        try:
            while not self._stop_reading.is_set():
                for message in consumer.consume(1_000, 0.01):
                    if message.error() is None:
                        self.take(message.value() or b"", time.time())
        finally:
            consumer.close()

    def take(self, value: bytes, now: float) -> None:
        """Count one record that was read at `now`."""
        at, number = stamp(value)
        if number >= len(self._had):
            self._had.extend(bytes(max(number + 1 - len(self._had), 1 << 16)))
        if self._had[number]:
            self.twice += 1
        else:
            self._had[number] = 1
            self.seen += 1
        if self.since <= at < self.until:
            self.latencies.setdefault(int(at - self.since), []).append(now - at)


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
    reader = Reader(topics, options["sink"])
    reader.start()
    producer = topics.producer(linger_ms=1)
    began = time.time()
    sent = 0
    while time.time() < min(began + options["limit_s"], reader.until):
        if reader.seen and reader.since == float("inf"):
            reader.since = time.time() + options["warm_s"]
            reader.until = reader.since + options["seconds"]
        due = int((time.time() - began) * options["rate"])
        while sent < due:
            producer.produce(
                options["source"],
                stamped(sent, time.time()),
                b"%0*d" % (KEY_BYTES, sent % 100_000),
                partition=sent % options["partitions"],
            )
            sent += 1
        producer.poll(0)
        time.sleep(0.002)
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
