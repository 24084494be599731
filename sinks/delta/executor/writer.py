"""Writes one slot as data files in the table's directory. Runs on executors.

Imports only the standard library, pyarrow and our pure modules.

No reader sees a file before a commit adds it to the table. Each file is written once, under a name of its own, and is
durable before the vote.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from os import SEEK_CUR
from time import time

import pyarrow as pa
import pyarrow.parquet as pq

from onceward.common.errors import CheckpointFailedError
from onceward.common.killpoints import KillPoint, kill_point
from onceward.connections.storage import NewFile, Storage, StorageError
from onceward.connectors.slots import OpenSlot, SlotContext
from onceward.connectors.tasks import Vote
from onceward.sinks.delta.documents import DataFile
from onceward.sinks.delta.executor.partitions import PartitionValues, divided
from onceward.sinks.delta.executor.stats import nan_columns, statistics
from onceward.sinks.delta.identifiers import StagedName, staged_folder
from onceward.sinks.delta.location import TableLocation

__all__ = ["REFUSED", "DeltaSlotWriter"]

REFUSED = "does not fit the column"
"""In every error about a value that a column of the table cannot hold."""

_GROUP_BYTES = 32 * 2**20
"""Arrow bytes that are held, of all partitions; then the largest becomes a row group. Small ones are slow to read."""
_FILE_BYTES = 128 * 2**20
"""A file that has reached this size is closed, and the next one begun."""
_OPEN_FILES = 64
"""Partitions whose files are open at a time. Beyond that, the one that was written longest ago is closed."""


@dataclass(frozen=True)
class DeltaSlotWriter:
    """Opens slots; pickled to executors."""

    location: TableLocation
    columns: bytes
    """The table's columns as a serialised Arrow schema."""
    partition_columns: tuple[str, ...] = ()
    indexed: int = 32
    """How many of the first columns have statistics in the table's log, -1 for all."""
    group_bytes: int = _GROUP_BYTES
    file_bytes: int = _FILE_BYTES

    def open(self, context: SlotContext) -> OpenSlot:
        """Return a slot that begins its first file with the first records."""
        return _Slot(self, context)

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.columns))

    @cached_property
    def file_schema(self) -> pa.Schema:
        """The columns that are in files: the log has the values of the others."""
        return pa.schema([one for one in self.schema if one.name not in self.partition_columns])


class _Slot:
    def __init__(self, writer: DeltaSlotWriter, context: SlotContext) -> None:
        self._writer, self._context = writer, context
        self._schema = writer.schema
        self._storage = writer.location.storage()
        self._partitions: dict[PartitionValues, _Partition] = {}
        self._buffered = 0
        """Bytes in all partitions."""
        self._open: dict[PartitionValues, _ParquetFile] = {}
        """The one that was written last is the last."""
        self._written: list[_ParquetFile] = []
        self._records = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Raises CheckpointFailedError for a value that a column cannot hold, StorageError."""
        if batch.num_rows == 0:
            return
        self._records += batch.num_rows
        try:
            for values, part in divided(_fitted(batch, self._schema), self._writer.partition_columns):
                self._partitions.setdefault(values, _Partition()).add(part)
                self._buffered += part.nbytes
        except ValueError as error:
            raise CheckpointFailedError(
                f"{error}: Delta reads it as null. Nothing of the checkpoint becomes visible. Correct the transform."
            ) from error
        while self._partitions and self._buffered >= self._writer.group_bytes:
            self._write_group(max(self._partitions, key=lambda values: self._partitions[values].bytes))

    def finish(self) -> Vote:
        """Raises StorageError."""
        for values in list(self._partitions):
            self._write_group(values)
        for values in list(self._open):
            self._close_file(values)
        kill_point(KillPoint.TASK_AFTER_FLUSH)
        files = [one.result for one in self._written]
        body = {"files": [one.to_json() for one in files]} if files else {}
        return Vote(
            slot=self._context.slot,
            attempt=self._context.attempt,
            records=self._records,
            bytes=sum(one.size for one in files),
            body=body,
        )

    def abandon(self) -> None:
        for one in (*self._written, *self._open.values()):
            one.discard()

    def _write_group(self, values: PartitionValues) -> None:
        partition = self._partitions.pop(values)
        self._buffered -= partition.bytes
        file = self._open.pop(values, None) or self._new_file(values)
        self._open[values] = file
        file.write(pa.Table.from_batches(partition.batches))
        if file.size >= self._writer.file_bytes:
            self._close_file(values)
        elif len(self._open) > _OPEN_FILES:
            self._close_file(next(iter(self._open)))

    def _new_file(self, values: PartitionValues) -> "_ParquetFile":
        task = self._context.task
        name = StagedName.new(
            job=task.job,
            sink=self._context.sink,
            generation=task.generation,
            checkpoint=task.checkpoint,
            slot=self._context.slot,
            attempt=self._context.attempt,
        )
        partition = dict(zip(self._writer.partition_columns, values, strict=True))
        return _ParquetFile(self._storage, str(name), name.job, self._writer, partition)

    def _close_file(self, values: PartitionValues) -> None:
        file = self._open.pop(values)
        self._written.append(file)
        file.close()


class _Partition:
    """Records of one partition that wait for their row group."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)
        self.bytes += batch.nbytes


class _ParquetFile:
    """One data file, and its note in the folder of what is staged."""

    def __init__(
        self,
        storage: Storage,
        path: str,
        job: str,
        writer: DeltaSlotWriter,
        partition: Mapping[str, str | None],
    ) -> None:
        self._storage, self._path, self._partition = storage, path, partition
        self._schema, self._indexed = writer.file_schema, writer.indexed
        self._with_nan: set[str] = set()
        self._note = f"{staged_folder(job)}/{path}"
        storage.put(self._note, b"")  # first: a file without a note would not be found
        self._file: NewFile = storage.open(path)
        self._footer: list[pq.FileMetaData] = []
        self._parquet = pq.ParquetWriter(
            self._file.file, self._schema, metadata_collector=self._footer, store_schema=False
        )
        self.result: DataFile
        """Set when it is closed."""

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._file.file.seek(0, SEEK_CUR)

    def write(self, group: pa.Table) -> None:
        self._with_nan |= nan_columns(self._schema, group)
        try:
            self._parquet.write_table(group, row_group_size=group.num_rows)
        except OSError as error:
            raise _failed(self._path, error) from error

    def close(self) -> None:
        try:
            self._parquet.close()
        except OSError as error:
            raise _failed(self._path, error) from error
        size = self._file.close()
        (footer,) = self._footer
        self.result = DataFile(
            path=self._path,
            size=size,
            records=footer.num_rows,
            partition_values=self._partition,
            stats=statistics(footer, self._schema, indexed=self._indexed, with_nan=self._with_nan),
            modified_ms=int(time() * 1000),
        )

    def discard(self) -> None:
        with suppress(OSError, ValueError, pa.ArrowException):
            self._parquet.close()  # it may not write to the file later
        self._file.discard()
        with suppress(StorageError):
            self._storage.delete([self._note])


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of ``schema`` by name, with its types. Columns that ``batch`` lacks are null."""
    unknown = set(batch.schema.names) - set(schema.names)
    if unknown:
        raise CheckpointFailedError(
            f"The table has no column {', '.join(sorted(unknown))}. Nothing of the checkpoint becomes visible. Select "
            "the columns of the table, or add them to it."
        )
    return pa.RecordBatch.from_arrays([_column(batch, one) for one in schema], schema=schema)


def _column(batch: pa.RecordBatch, wanted: pa.Field) -> pa.Array:
    position = batch.schema.get_field_index(wanted.name)
    column = pa.nulls(batch.num_rows, wanted.type) if position < 0 else batch.column(position)
    if column.null_count and not wanted.nullable:
        raise _refused("null", wanted)
    if column.type == wanted.type:
        return column
    try:
        return column.cast(wanted.type)
    except pa.ArrowException as error:
        raise _refused(f"a value ({error})", wanted) from error


def _refused(what: str, column: pa.Field) -> CheckpointFailedError:
    kind = f"{column.type}" + ("" if column.nullable else " not null")
    return CheckpointFailedError(
        f"{what} {REFUSED} {column.name} of the table, which is {kind}. Nothing of the checkpoint becomes visible. "
        "Correct the transform, or the table."
    )


def _failed(path: str, error: OSError) -> StorageError:
    return StorageError(f"{path} could not be written: {error}. Nothing of the checkpoint becomes visible.")
