"""The executors' part of ``format("onceward")``: what Spark's tasks call."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from onceward.sources.kafka.executor.reader import KafkaSplitReader

__all__ = ["PartitionReader", "TableReader"]


class PartitionReader:
    """Reads the partitions of a query."""

    def __init__(self, reader: KafkaSplitReader) -> None:
        self._reader = reader

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """``partition``: an ``InputPartition`` whose value is a split, or None if there is nothing to read."""
        if partition.value is not None:
            yield from self._reader(partition.value, frozenset(self._reader.names))


class TableReader(PartitionReader):
    """Reads whole partitions."""

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """``partition``: an ``InputPartition`` whose value names a topic and a partition."""
        start, end = self._reader.readable(**partition.value)
        yield from self._reader({**partition.value, "start": start, "end": end}, frozenset(self._reader.names))
