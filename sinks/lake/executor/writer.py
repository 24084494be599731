"""Writes one slot as data files in the table's directory. Runs on executors.

Imports only the standard library, pyarrow and our pure modules.

No reader sees a file before a commit adds it to the table. Each file is written once, under a name of its own, and is
durable before the vote.

A slot with few records may write no file: its vote has the records, and the driver writes those of all such slots into
one file. Otherwise a job with short checkpoints would make a small file for each of its tasks, all the time.
"""

from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Hashable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from os import SEEK_CUR
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from onceward.common.errors import CheckpointFailedError
from onceward.common.killpoints import KillPoint, kill_point
from onceward.connections.storage import NewFile, Storage, StorageError
from onceward.connectors.slots import OpenSlot, SlotContext, Unfit, UnfitKind, at_fault
from onceward.connectors.tasks import Vote
from onceward.sinks.lake.documents import WrittenFile
from onceward.sinks.lake.identifiers import StagedName, data_path, staged_folder

__all__ = ["REFUSED", "LakeSlotWriter", "few_records"]

REFUSED = "does not fit the column"
"""In every error about a value that a column of the table cannot hold."""

_GROUP_BYTES = 32 * 2**20
"""Arrow bytes that are held, of all partitions; then the largest becomes a row group. Small ones are slow to read."""
_FILE_BYTES = 128 * 2**20
"""A file that has reached this size is closed, and the next one begun."""
_OPEN_FILES = 64
"""Partitions whose files are open at a time. Beyond that, the one that was written longest ago is closed."""
_VOTING_SLOTS = 128
"""Slots that may vote with their records, the first ones: so what the driver gets is limited, whatever their number."""
_FEW = "few"
"""The key in the body of a vote."""


@dataclass(frozen=True, kw_only=True)
class LakeSlotWriter(ABC):
    """Opens slots; pickled to executors. Partitions are known by a key of the sink's own."""

    folder: ClassVar[str]
    """Of the table's data files, relative to the table; empty for none."""

    group_bytes: int = _GROUP_BYTES
    file_bytes: int = _FILE_BYTES
    vote_bytes: int = 0
    """Arrow bytes up to which the vote of a slot has its records; 0 for none."""

    def open(self, context: SlotContext) -> OpenSlot:
        """Return a slot that begins its first file with the first records."""
        return _Slot(self, context)

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The table's columns."""

    @abstractmethod
    def storage(self) -> Storage:
        """Return the table's directory."""

    @abstractmethod
    def divided(self, batch: pa.RecordBatch) -> Iterator[tuple[Hashable, pa.RecordBatch]]:
        """Yield the records of each partition of ``batch``, which has the table's columns, as they go into files.
        Raises ValueError that names the column for a value that cannot be in a partition."""

    @abstractmethod
    def parquet(self, file: Any, footer: list[pq.FileMetaData]) -> pq.ParquetWriter:
        """Begin a file. ``footer`` gets what is at its end."""

    def with_nan(self, group: pa.Table) -> Set[str]:
        """The columns of ``group`` with a value that is not a number, if statistics need them."""
        return frozenset()

    @abstractmethod
    def written(
        self, name: str, size: int, footer: pq.FileMetaData, partition: Hashable, with_nan: Set[str]
    ) -> WrittenFile:
        """Describe a file as the table will name it. ``with_nan``: of all its groups."""


class UnfitValueError(CheckpointFailedError):
    """A column of the table cannot hold a value."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}. Nothing of the checkpoint becomes visible. Correct the transform, or the table.")
        self.reason = reason


class _Slot:
    """A :class:`CheckingSlot`."""

    def __init__(self, writer: LakeSlotWriter, context: SlotContext) -> None:
        self._writer, self._context = writer, context
        self._schema = writer.schema
        self._storage = writer.storage()
        self._partitions: dict[Hashable, _Partition] = {}
        self._buffered = 0
        """Bytes in all partitions."""
        self._open: dict[Hashable, _ParquetFile] = {}
        """The one that was written last is the last."""
        self._written: list[_ParquetFile] = []
        self._few = _FewRecords(writer.vote_bytes if context.slot < _VOTING_SLOTS else 0)
        self._records = 0
        self._fits: tuple[pa.RecordBatch, pa.RecordBatch, Sequence[tuple[Hashable, pa.RecordBatch]]] | None = None
        """The last batch that was found to fit, and what is made of it."""

    def unfit(self, batch: pa.RecordBatch) -> Iterator[Unfit]:
        """See :meth:`CheckingSlot.unfit`. Raises CheckpointFailedError for a column that the table lacks."""

        def fault(some: pa.RecordBatch) -> str | None:
            try:
                made = self._made(some)
            except UnfitValueError as error:
                return error.reason
            if some is batch:
                self._fits = batch, *made
            return None

        for row, reason in at_fault(batch, fault):
            yield Unfit(row=row, kind=UnfitKind.SCHEMA, reason=reason)

    def write(self, batch: pa.RecordBatch) -> None:
        """Raises CheckpointFailedError for a value that a column cannot hold, StorageError."""
        if batch.num_rows == 0:
            return
        known, self._fits = self._fits, None
        fitted, parts = known[1:] if known is not None and known[0] is batch else self._made(batch)
        self._records += batch.num_rows
        self._few.add(fitted)
        for values, part in parts:
            self._partitions.setdefault(values, _Partition()).add(part)
            self._buffered += part.nbytes
        while self._partitions and self._buffered >= self._writer.group_bytes:
            self._write_group(max(self._partitions, key=lambda values: self._partitions[values].bytes))

    def _made(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Sequence[tuple[Hashable, pa.RecordBatch]]]:
        """Return ``batch`` as the table has it, and as it goes into files. Raises UnfitValueError."""
        fitted = _fitted(batch, self._schema)
        try:
            return fitted, list(self._writer.divided(fitted))
        except ValueError as error:
            raise UnfitValueError(str(error)) from error

    def finish(self) -> Vote:
        """Raises StorageError."""
        body: dict[str, Any] = {}
        if self._few.batches and not self._open and not self._written:
            body, size = {_FEW: self._few.to_text()}, self._buffered
        else:
            for values in list(self._partitions):
                self._write_group(values)
            for values in list(self._open):
                self._close_file(values)
            files = [one.result for one in self._written]
            size = sum(one.size for one in files)
            if files:
                body = {"files": [one.to_json() for one in files]}
        kill_point(KillPoint.TASK_AFTER_FLUSH)
        return Vote(
            slot=self._context.slot, attempt=self._context.attempt, records=self._records, bytes=size, body=body
        )

    def abandon(self) -> None:
        for one in (*self._written, *self._open.values()):
            one.discard()

    def _write_group(self, values: Hashable) -> None:
        partition = self._partitions.pop(values)
        self._buffered -= partition.bytes
        file = self._open.pop(values, None) or self._new_file(values)
        self._open[values] = file
        file.write(pa.Table.from_batches(partition.batches))
        if file.size >= self._writer.file_bytes:
            self._close_file(values)
        elif len(self._open) > _OPEN_FILES:
            self._close_file(next(iter(self._open)))

    def _new_file(self, values: Hashable) -> "_ParquetFile":
        task = self._context.task
        name = StagedName.new(
            job=task.job,
            sink=self._context.sink,
            generation=task.generation,
            checkpoint=task.checkpoint,
            slot=self._context.slot,
            attempt=self._context.attempt,
        )
        return _ParquetFile(self._storage, name, self._writer, values)

    def _close_file(self, values: Hashable) -> None:
        file = self._open.pop(values)
        self._written.append(file)
        file.close()


class _FewRecords:
    """All records of a slot, as long as they are few enough for its vote; then none."""

    def __init__(self, most: int) -> None:
        self.batches: list[pa.RecordBatch] = []
        self._left = most

    def add(self, batch: pa.RecordBatch) -> None:
        self._left -= batch.nbytes
        if self._left >= 0:
            self.batches.append(batch)
        else:
            self.batches.clear()

    def to_text(self) -> str:
        table = pa.Table.from_batches(self.batches).combine_chunks()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
            stream.write_table(table)
        return b64encode(sink.getvalue()).decode("ascii")


def few_records(vote: Vote) -> Iterator[pa.RecordBatch]:
    """Yield the records that a vote has."""
    if text := vote.body.get(_FEW):
        yield from pa.ipc.open_stream(b64decode(text))


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

    def __init__(self, storage: Storage, name: StagedName, writer: LakeSlotWriter, partition: Hashable) -> None:
        self._storage, self._writer, self._partition = storage, writer, partition
        self._name, self._path = str(name), data_path(writer.folder, str(name))
        self._with_nan: set[str] = set()
        self._note = f"{staged_folder(name.job)}/{name}"
        storage.put(self._note, b"")  # first: a file without a note would not be found
        kill_point(KillPoint.TABLE_AFTER_NOTE)
        self._file: NewFile = storage.open(self._path)
        self._footer: list[pq.FileMetaData] = []
        self._parquet = writer.parquet(self._file.file, self._footer)
        self.result: WrittenFile
        """Set when it is closed."""

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._file.file.seek(0, SEEK_CUR)

    def write(self, group: pa.Table) -> None:
        self._with_nan |= self._writer.with_nan(group)
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
        kill_point(KillPoint.TABLE_AFTER_FILE)
        if self._storage.size(self._note) is None:
            raise StorageError(
                f"{self._path} was swept while it was written: this attempt has lost, or its checkpoint is over. "
                "Nothing of it becomes visible."
            )
        (footer,) = self._footer
        self.result = self._writer.written(self._name, size, footer, self._partition, self._with_nan)

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


def _refused(what: str, column: pa.Field) -> UnfitValueError:
    kind = f"{column.type}" + ("" if column.nullable else " not null")
    return UnfitValueError(f"{what} {REFUSED} {column.name} of the table, which is {kind}")


def _failed(path: str, error: OSError) -> StorageError:
    return StorageError(f"{path} could not be written: {error}. Nothing of the checkpoint becomes visible.")
