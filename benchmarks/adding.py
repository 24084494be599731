"""Adds records to a topic at a constant rate, while a system reads it."""

import threading
import time
from collections.abc import Callable
from functools import partial

from benchmarks.errors import BenchmarkError
from benchmarks.topics import Topics
from benchmarks.workloads import Workload, record

__all__ = ["Adding"]

_LIMIT_S = 120.0
_COPIED = partial(record, Workload.COPY)


class Adding(threading.Thread):
    """A thread that adds records, beginning with record ``first``."""

    def __init__(
        self,
        topics: Topics,
        topic: str,
        first: int,
        rate: int,
        make: Callable[[int], tuple[bytes, bytes]] = _COPIED,
    ) -> None:
        """``make``: key and value of a record, by its number."""
        super().__init__(daemon=True)
        self._topics, self.topic, self._first, self._rate, self._make = topics, topic, first, rate, make
        self._ended = threading.Event()
        self._not_there = 0
        self.there = first
        """Records in the topic, including those in flight."""

    def run(self) -> None:
        producer = self._topics.producer(linger_ms=2)
        began = time.monotonic()
        while not self._ended.wait(0.005):
            due = self._first + int((time.monotonic() - began) * self._rate)
            made = map(self._make, range(self.there, due))
            batch = [{"key": key, "value": value} for key, value in made]
            self._not_there += len(batch) - producer.produce_batch(self.topic, batch)
            self.there = due
            producer.poll(0)
        self._not_there += producer.flush(_LIMIT_S)

    def stop(self) -> None:
        """Stop; return once all added records are in the topic."""
        self._ended.set()
        self.join()

    def must_be_there(self) -> None:
        """Raise BenchmarkError if not all records reached the topic. Call it after `stop`."""
        if self._not_there:
            raise BenchmarkError(f"{self._not_there:,} records could not be added to {self.topic}: no load, no figure.")
