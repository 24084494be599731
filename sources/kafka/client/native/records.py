"""Records as Arrow columns, decoded."""

from collections.abc import Sequence
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onceward.sources.kafka.client.interface import Headers
from onceward.sources.kafka.client.native.pieces import Epochs

__all__ = ["NativeRecords", "decoded_columns"]

_CREATE_TIME: Final = 1
"""RD_KAFKA_TIMESTAMP_CREATE_TIME; the codec counts from 0."""
_SOURCES: Final = {
    "key": ("key",),
    "value": ("value",),
    "timestamp": ("timestamp", "timestamp_type"),
    "timestampType": ("timestamp", "timestamp_type"),
    "headers": ("headers",),
}
"""What is decoded for a column."""


def decoded_columns(columns: frozenset[str] | None) -> list[str]:
    """Return the codec's columns for those of the source; None = all."""
    chosen = _SOURCES if columns is None else [name for name in _SOURCES if name in columns]
    return list(dict.fromkeys(["offset", *(part for name in chosen for part in _SOURCES[name])]))


class NativeRecords:
    """:class:`Records` that stay valid."""

    def __init__(self, topic: str, partition: int, batch: pa.RecordBatch, epochs: Epochs, record_bytes: int) -> None:
        """``batch``: as of `decoded_columns`. ``record_bytes``: of one record, as it was fetched."""
        self.topic, self.partition = topic, partition
        self._batch, self._epochs, self._record_bytes = batch, epochs, record_bytes
        self._partitions: npt.NDArray[np.int32] | None = None

    def together(self, parts: Sequence[Self]) -> Self:
        if len(parts) == 1:
            return parts[0]
        batch = pa.concat_batches([part._batch for part in parts])
        made = type(self)(self.topic, -1, batch, Epochs(), self._record_bytes)
        made._partitions = np.concatenate([part.partitions for part in parts])
        return made

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    @property
    def partitions(self) -> npt.NDArray[np.int32]:
        return np.full(len(self), self.partition, np.int32) if self._partitions is None else self._partitions

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        found: npt.NDArray[np.int64] = self._batch.column("offset").to_numpy()
        return found

    def last_epoch(self) -> int:
        return self._epochs.of(int(self.offsets[-1]))

    def below(self, offset: int) -> Self:
        return self.rows(0, int(np.searchsorted(self.offsets, offset)))

    def rows(self, begin: int, count: int) -> Self:
        """Return ``count`` records from the one with number ``begin`` on."""
        return type(self)(self.topic, self.partition, self._batch.slice(begin, count), self._epochs, self._record_bytes)

    def keys(self) -> pa.Array:
        return self._batch.column("key")

    def values(self) -> pa.Array:
        return self._batch.column("value")

    def value_bytes(self) -> int:
        if "value" not in self._batch.schema.names:
            return self._record_bytes * len(self)
        column = self._batch.column("value")
        places = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
        return int(places[-1]) - int(places[0])

    def timestamps(self) -> tuple[npt.NDArray[np.intc], npt.NDArray[np.int64]]:
        kinds = self._batch.column("timestamp_type").to_numpy() + np.intc(_CREATE_TIME)
        return kinds, self._batch.column("timestamp").to_numpy()

    def headers(self) -> Headers:
        column = self._batch.column("headers")
        counts = column.value_lengths().fill_null(0).to_numpy().astype(np.int64)
        names, contents = column.flatten().flatten()
        return Headers(counts, names, contents)
