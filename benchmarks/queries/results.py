"""Reads the results of a query while it runs: how late each of them is, and whether all are there."""

import numpy as np
import pyarrow as pa

from benchmarks.queries.workloads import KEYS, QueryWorkload, last_needed
from benchmarks.steady import Reader
from benchmarks.topics import Topics
from onceward.sources.kafka.client import Records

__all__ = ["Results"]


class Results(Reader):
    """Reads an output topic until :meth:`stop`."""

    def __init__(self, topics: Topics, topic: str, workload: QueryWorkload, rate: int) -> None:
        """``rate``: input records/s, if they are due at a constant rate."""
        super().__init__(topics, topic)
        self._workload, self._rate = workload, rate
        self._counts = np.zeros(KEYS, np.int64)
        self.began = float("inf")
        """When record 0 was due, in seconds since the epoch."""

    def complete(self, records: int, results: int) -> bool:
        """Return whether all results have arrived: the newest counts of a running count, which writes any number of
        updates, add up to ``records`` input records; another query has written ``results`` results."""
        if self._workload is QueryWorkload.RUNNING_COUNT:
            return bool(self._counts.sum() >= records)
        return self.seen >= results

    def take(self, records: Records, now: float) -> None:
        self.count(records.keys(), records.values(), now)

    def count(self, output_keys: pa.Array, values: pa.Array, now: float) -> None:
        """Count results that were read at ``now``."""
        keys, counts, needed = last_needed(self._workload, output_keys, values)
        self.seen += len(keys)
        if self._workload is QueryWorkload.RUNNING_COUNT:
            np.maximum.at(self._counts, keys, counts)
        due = self.began + needed / self._rate
        self.measure(due[(due >= self.since) & (due < self.until)], now)
