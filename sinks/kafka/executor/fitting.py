"""Which records a topic or the client would refuse, found before one is produced. Runs on executors.

Imports only the standard library, pyarrow, numpy, confluent_kafka and our pure modules.
"""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaException

from onceward.connections.cluster import KafkaCluster
from onceward.connections.per_process import PerProcess
from onceward.connectors.slots import Unfit, UnfitKind
from onceward.sinks.kafka.client.messages import column_of, record_sizes, wrongly_named
from onceward.sinks.kafka.errors import DeliveryError
from onceward.sinks.kafka.executor.producers import batch_limits, connected, producer_settings, record_bytes
from onceward.sinks.kafka.topic_limits import TopicLimits

__all__ = ["Fitting"]

_COMPRESSION = ("compression.type", "compression.codec")
_BATCH = 61
"""Bytes of a batch besides its records (https://kafka.apache.org/documentation/#recordbatch)."""
_UNKNOWN = 2**31 - 1
_KNOWN_S = 1.0
"""How long a partition that is not known is not asked for again: topics get more of them, but seldom."""
_known: "PerProcess[tuple[KafkaCluster, tuple[str, ...]], tuple[float, Mapping[str, int]]]" = PerProcess()
"""When a process asked for the partitions of its topics, and how many they had."""


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """What is known of the topics when the program starts. With compression, a record that the client takes may still
    be too large for its topic: only the brokers find that."""

    cluster: KafkaCluster
    topic: str | None
    """The topic of all records; None to route by the ``topic`` column."""
    topics: tuple[str, ...]
    limits: tuple[TopicLimits, ...]

    def unfit(self, records: pa.RecordBatch) -> Iterator[Unfit]:
        """Yield the records that cannot be written. ``records`` has the sink's columns."""
        yield from self._too_large(records)
        yield from self._elsewhere(records)
        yield from self._keyless(records)
        yield from self._nameless(records)

    def _too_large(self, records: pa.RecordBatch) -> Iterator[Unfit]:
        sizes = record_sizes(records)
        of_client = record_bytes(self.cluster, batch_limits(self.limits))
        for row in np.flatnonzero(sizes.at_client > of_client).tolist():
            yield _too_large(row, f"{sizes.at_client[row]} bytes, and the client takes {of_client} (message.max.bytes)")
        if any(str(self.cluster.config.get(key, "none")) != "none" for key in _COMPRESSION):
            return
        limits = {one.topic: one.batch_bytes for one in self.limits if one.batch_bytes is not None}
        of_topic, in_batch = self._of_topics(records, limits), sizes.in_batch + _BATCH
        for row in np.flatnonzero((in_batch > of_topic) & (sizes.at_client <= of_client)).tolist():
            limit = int(np.broadcast_to(of_topic, in_batch.shape)[row])
            yield _too_large(row, f"{in_batch[row]} bytes, and the topic takes {limit} (max.message.bytes)")

    def _of_topics(self, records: pa.RecordBatch, numbers: Mapping[str, int]) -> npt.NDArray[np.int64]:
        """What ``numbers`` has of the topic of each record, or of all; more than any where it has nothing."""
        if self.topic is not None:
            return np.array([numbers.get(self.topic, _UNKNOWN)], np.int64)
        named = records.column("topic").dictionary_encode()
        each = np.array([*(numbers.get(one, _UNKNOWN) for one in named.dictionary.to_pylist()), _UNKNOWN], np.int64)
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
        column = column_of(records, "partition")
        if column is None:
            return
        partitions = np.asarray(column.fill_null(0))
        wrong = np.flatnonzero((partitions < 0) | (partitions >= self._partitions_of(records, partitions)))
        for row in wrong.tolist():
            yield _refused(row, f"its partition is {partitions[row]}, which its topic lacks")

    def _partitions_of(self, records: pa.RecordBatch, named: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """How many partitions the topic of each record has, or that of all. ``named``: those that the records name."""
        mine = _known.mine()
        key = self.cluster, self.topics
        asked, known = mine.get(key, (-math.inf, {}))
        counts = self._of_topics(records, known)
        if (not known or (named >= counts).any()) and time.monotonic() - asked > _KNOWN_S:
            mine[key] = time.monotonic(), (known := self._ask())
            counts = self._of_topics(records, known)
        return counts

    def _ask(self) -> Mapping[str, int]:
        """Raises DeliveryError."""
        try:
            producer, _ = connected(self.cluster.client_config(**producer_settings(self.cluster, ())), self.topics)
        except KafkaException as error:
            raise DeliveryError(
                f"How many partitions {', '.join(self.topics)} have is unknown: {error}. Nothing was written; the "
                "records are written again. Check that the brokers can be reached from the executors."
            ) from error
        found = {topic: producer.partitions_of(topic) for topic in self.topics}
        return {topic: count for topic, count in found.items() if count is not None}

    def _keyless(self, records: pa.RecordBatch) -> Iterator[Unfit]:
        keyed = [one.topic for one in self.limits if one.keyed]
        column = column_of(records, "key")
        if not keyed or (column is not None and not column.null_count):
            return
        without = pa.repeat(True, len(records)) if column is None else column.is_null()
        if self.topic is None:
            named = records.column("topic")
            without = pc.and_(without, pc.is_in(named, pa.array(keyed, named.type)))
        elif self.topic not in keyed:
            return
        for row in pc.indices_nonzero(without).to_pylist():
            yield _refused(row, "it has no key, and its topic is compacted")

    def _nameless(self, records: pa.RecordBatch) -> Iterator[Unfit]:
        for row in wrongly_named(records):
            yield Unfit(row=row, kind=UnfitKind.SCHEMA, reason="a header has no name, or one with a NUL character")


def _too_large(row: int, why: str) -> Unfit:
    return Unfit(row=row, kind=UnfitKind.TOO_LARGE, reason=f"the record has {why}")


def _refused(row: int, why: str) -> Unfit:
    return Unfit(row=row, kind=UnfitKind.REFUSED, reason=why)
