"""Which records a topic or the client would refuse, found before one is produced. Runs on executors.

Imports only the standard library, pyarrow, numpy, confluent_kafka and our pure modules.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onceward.connections.cluster import KafkaCluster
from onceward.connectors.slots import Unfit, UnfitKind
from onceward.sinks.kafka.client.messages import column_of, record_sizes, wrongly_named
from onceward.sinks.kafka.executor.producers import record_bytes

__all__ = ["Fitting"]

_COMPRESSION = ("compression.type", "compression.codec")
_BATCH = 61
"""Bytes of a batch besides its records (https://kafka.apache.org/documentation/#recordbatch)."""
_UNKNOWN = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """What is known of the topics when the program starts. With compression, a record that the client takes may still
    be too large for its topic: only the brokers find that."""

    cluster: KafkaCluster
    topic: str | None
    """The topic of all records; None to route by the ``topic`` column."""
    topics: tuple[str, ...]
    limits: Mapping[str, int]
    """Bytes of the largest batch that a topic accepts; without those of which no broker reports it."""

    def unfit(self, records: pa.RecordBatch) -> Iterator[Unfit]:
        """Yield the records that cannot be written. ``records`` has the sink's columns."""
        yield from self._too_large(records)
        yield from self._elsewhere(records)
        yield from self._nameless(records)

    def _too_large(self, records: pa.RecordBatch) -> Iterator[Unfit]:
        sizes = record_sizes(records)
        of_client = record_bytes(self.cluster, tuple(self.limits.values()))
        for row in np.flatnonzero(sizes.at_client > of_client).tolist():
            yield _too_large(row, f"{sizes.at_client[row]} bytes, and the client takes {of_client} (message.max.bytes)")
        if any(str(self.cluster.config.get(key, "none")) != "none" for key in _COMPRESSION):
            return
        of_topic, in_batch = self._limits_of(records), sizes.in_batch + _BATCH
        for row in np.flatnonzero((in_batch > of_topic) & (sizes.at_client <= of_client)).tolist():
            limit = int(np.broadcast_to(of_topic, in_batch.shape)[row])
            yield _too_large(row, f"{in_batch[row]} bytes, and the topic takes {limit} (max.message.bytes)")

    def _limits_of(self, records: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The limit of each record's topic, or of all."""
        if self.topic is not None:
            return np.array([self.limits.get(self.topic, _UNKNOWN)], np.int64)
        named = records.column("topic").dictionary_encode()
        each = np.array([*(self.limits.get(one, _UNKNOWN) for one in named.dictionary.to_pylist()), _UNKNOWN], np.int64)
        return each.take(np.asarray(named.indices.fill_null(len(each) - 1)))

    def _elsewhere(self, records: pa.RecordBatch) -> Iterator[Unfit]:
        """Those whose topic or partition cannot be."""
        if self.topic is None:
            column = records.column("topic")
            known = pc.is_in(column, pa.array(self.topics, column.type)).fill_null(False)
            for row in pc.indices_nonzero(pc.invert(known)).to_pylist():
                yield _refused(
                    row, f"its topic is {column[row].as_py()!r}, and the sink declares {sorted(self.topics)}"
                )
        partitions = column_of(records, "partition")
        if partitions is not None:
            for row in pc.indices_nonzero(pc.less(partitions, 0)).to_pylist():
                yield _refused(row, f"its partition is {partitions[row].as_py()}")

    def _nameless(self, records: pa.RecordBatch) -> Iterator[Unfit]:
        for row in wrongly_named(records):
            yield Unfit(row=row, kind=UnfitKind.SCHEMA, reason="a header has no name, or one with a NUL character")


def _too_large(row: int, why: str) -> Unfit:
    return Unfit(row=row, kind=UnfitKind.TOO_LARGE, reason=f"the record has {why}")


def _refused(row: int, why: str) -> Unfit:
    return Unfit(row=row, kind=UnfitKind.REFUSED, reason=why)
