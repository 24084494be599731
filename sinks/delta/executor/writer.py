"""Writes data files of a Delta table."""

from collections.abc import Hashable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from time import time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from onceward.connections.storage import Storage
from onceward.connectors.slots import Library
from onceward.sinks.delta.documents import DataFile
from onceward.sinks.delta.executor.partitions import divided
from onceward.sinks.delta.executor.stats import nan_columns, statistics
from onceward.sinks.delta.location import TableLocation
from onceward.sinks.lake.executor.writer import LakeSlotWriter

__all__ = ["DeltaSlotWriter", "libraries_at"]


def libraries_at(location: TableLocation) -> Sequence[Library]:
    """Return what executors need to write there. Only the driver needs deltalake."""
    return (Library("obstore", "0.12.1", "onceward[delta]"),) if location.options is not None else ()


@dataclass(frozen=True, kw_only=True)
class DeltaSlotWriter(LakeSlotWriter):
    """See :class:`LakeSlotWriter`. The key of a partition is its values, as the table's log writes them."""

    folder = ""

    location: TableLocation
    columns: bytes
    """The table's columns as a serialised Arrow schema."""
    partition_columns: tuple[str, ...] = ()
    indexed: int = 32
    """How many of the first columns have statistics in the table's log, -1 for all."""

    @property
    def libraries(self) -> Sequence[Library]:
        """See :class:`NeedsLibraries`."""
        return libraries_at(self.location)

    @cached_property
    def schema(self) -> pa.Schema:
        """See :meth:`LakeSlotWriter.schema`."""
        return pa.ipc.read_schema(pa.py_buffer(self.columns))

    @cached_property
    def file_schema(self) -> pa.Schema:
        """The columns that are in files: the log has the values of the others."""
        return pa.schema([one for one in self.schema if one.name not in self.partition_columns])

    def storage(self) -> Storage:
        """See :meth:`LakeSlotWriter.storage`."""
        return self.location.storage()

    def divided(self, batch: pa.RecordBatch) -> Iterator[tuple[Hashable, pa.RecordBatch]]:
        """See :meth:`LakeSlotWriter.divided`."""
        return divided(batch, self.partition_columns)

    def parquet(self, file: Any, footer: list[pq.FileMetaData]) -> pq.ParquetWriter:
        """See :meth:`LakeSlotWriter.parquet`."""
        return pq.ParquetWriter(file, self.file_schema, metadata_collector=footer, store_schema=False)

    def with_nan(self, group: pa.Table) -> Set[str]:
        """See :meth:`LakeSlotWriter.with_nan`: the footer's bounds leave them out."""
        return nan_columns(self.file_schema, group)

    def written(self, name: str, size: int, footer: pq.FileMetaData, partition: Any, with_nan: Set[str]) -> DataFile:
        """See :meth:`LakeSlotWriter.written`."""
        return DataFile(
            path=name,
            size=size,
            records=footer.num_rows,
            partition_values=dict(zip(self.partition_columns, partition, strict=True)),
            stats=statistics(footer, self.file_schema, indexed=self.indexed, with_nan=with_nan),
            modified_ms=int(time() * 1000),
        )
