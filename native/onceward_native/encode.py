"""Arrow columns as record batches for Produce, one open batch per partition."""

import ctypes
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from onceward_native.compression import COMPRESSIONS, LEVELS, Compression, compressions
from onceward_native.errors import UnsupportedCompressionError, error_of_ending, error_of_row
from onceward_native.library import ArrowArray, lib

__all__ = ["Batch", "Encoder"]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_string(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_int64(kind) or (pa.types.is_timestamp(kind) and kind.unit == "ms"))


def _is_headers(kind: pa.DataType) -> bool:
    """Whatever the names of the fields, and whether they may be null."""
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    pair = kind.value_type
    return pair.num_fields == 2 and all(_is_text(pair.field(n).type) for n in range(2))


_COLUMNS: dict[str, tuple[int, Callable[[pa.DataType], bool], str]] = {
    "key": (0, _is_text, "binary or string"),
    "value": (1, _is_text, "binary or string"),
    "partition": (2, pa.types.is_int32, "int32"),
    "timestamp": (3, _is_time, "int64 or timestamp[ms]"),
    "headers": (4, _is_headers, "a list of pairs of a name and a value, each binary or string"),
}
"""Their numbers in encode.c, and the types that they may have."""
_DEFAULT_LEVEL = -(2**31)
_LARGEST = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """A finished batch. It is sent as it is, also when it is sent again."""

    partition: int
    data: pa.Buffer
    """Its memory is freed with the last reference to it."""
    records: int
    base_sequence: int
    """Of the first record; -1 without a producer's id."""
    max_timestamp: int
    """The latest of its records, in milliseconds."""


class Encoder:
    """Builds the batches of one topic. One thread at a time may use it; its calls release the interpreter's lock."""

    def __init__(
        self,
        partitions: int,
        *,
        most_bytes: int,
        usual_bytes: int | None = None,
        compression: Compression = "none",
        level: int | None = None,
        transactional: bool = True,
    ) -> None:
        """Open no batch yet.

        ``partitions``: of the topic. ``most_bytes``: the size that no batch exceeds, with its header of 61 bytes: at
        most the topic's ``max.message.bytes``. It counts before compression, and a batch that compression would not
        make smaller stays uncompressed. ``usual_bytes``: only a batch of one record exceeds this; by default
        ``most_bytes``. ``level``: of the compression, None for its library's default.

        Raises ``ValueError`` for a wrong argument, ``UnsupportedCompressionError`` if the codec's library is missing.
        """
        if partitions < 1:
            raise ValueError(f"a topic has at least one partition, not {partitions}")
        if not 0 < most_bytes <= _LARGEST:
            raise ValueError(f"most_bytes must be from 1 to {_LARGEST}, not {most_bytes}")
        usual = most_bytes if usual_bytes is None else usual_bytes
        if not 0 < usual <= most_bytes:
            raise ValueError(f"usual_bytes must be from 1 to most_bytes ({most_bytes}), not {usual}")
        if compression not in COMPRESSIONS:
            raise ValueError(f"compression must be one of {', '.join(COMPRESSIONS)}, not {compression!r}")
        if level is not None and level not in LEVELS.get(compression, ()):
            raise ValueError(f"{compression} has no level {level}")
        if compression not in compressions():
            raise UnsupportedCompressionError(
                f"The library for {compression} is not installed; nothing can be written."
            )
        self._partitions, self._most, self._compression = partitions, most_bytes, compression
        self._made = lib.encoder_new(
            partitions,
            COMPRESSIONS.index(compression),
            _DEFAULT_LEVEL if level is None else level,
            transactional,
            usual,
            most_bytes,
        )
        if not self._made:
            raise MemoryError("There is no memory for an encoder.")
        self._report = self._made.contents
        self.begin(-1, -1)

    def begin(self, producer_id: int, producer_epoch: int) -> None:
        """Begin with a producer's id and epoch, -1 for none. Sequences begin at 0, and open batches are dropped."""
        lib.encoder_begin(self._made, producer_id, producer_epoch)

    def add(self, records: pa.RecordBatch, *, keyless: int, now_ms: int | None = None) -> list[Batch]:
        """Add all rows, in order within each partition, and return the batches that became full meanwhile.

        The columns, all optional:

        - ``key``, ``value``: binary or string; null for none
        - ``partition``: int32. Where it is null or absent, the key's partition as Java's producers compute it; without
          a key, ``keyless``.
        - ``timestamp``: milliseconds, int64 or a timestamp. Where it is null or absent, ``now_ms``, by default the
          time of the call.
        - ``headers``: a list of pairs of a name and a value; null or empty for none

        Raises ``ValueError`` for other columns and types, before anything is added; ``UnfitRecordError`` for a row that
        cannot be written. Then a part of the rows was added, so what was built since ``begin`` must not be committed.
        """
        numbers, now = _numbers(records.schema), time.time_ns() // 1_000_000 if now_ms is None else now_ms
        full: list[Batch] = []
        array = ArrowArray()
        records._export_to_c(ctypes.addressof(array))
        try:
            row = 0
            while (row := lib.encoder_add(self._made, array, numbers, row, keyless, now)) < records.num_rows:
                report = self._report
                if row < 0:
                    raise error_of_row(row, report.row, report.partition, report.bytes, self._partitions, self._most)
                full.append(self._take(report.partition))
        finally:
            lib.release(array)
        return full

    def take(self, least_bytes: int = 0) -> list[Batch]:
        """End the open batches of this many bytes or more, before compression, and return them by partition."""
        return [self._take(partition) for partition in self.open_partitions(least_bytes)]

    def open_partitions(self, least_bytes: int = 0) -> Iterator[int]:
        """Yield the partitions whose open batch has records, and this many bytes or more before compression."""
        partition = -1
        while (partition := lib.encoder_ready(self._made, partition + 1, least_bytes)) >= 0:
            yield partition

    def _take(self, partition: int) -> Batch:
        array = ArrowArray()
        size = lib.encoder_take(self._made, partition, array)
        if size < 0:
            raise error_of_ending(size, self._compression)
        report = self._report
        return Batch(
            partition=partition,
            data=pa.Array._import_from_c(ctypes.addressof(array), pa.uint8()).buffers()[1],
            records=report.count,
            base_sequence=report.sequence,
            max_timestamp=report.max_timestamp,
        )

    def __del__(self) -> None:
        made = getattr(self, "_made", None)
        if made:
            lib.encoder_free(made)


def _numbers(schema: pa.Schema) -> bytes:
    """Return the columns' numbers. Raises ``ValueError`` for columns that no record has."""
    names = schema.names
    if len({*names}) != len(names) or not {*names} <= {*_COLUMNS}:
        raise ValueError(f"columns must be different ones of {', '.join(_COLUMNS)}, not {', '.join(names)}")
    for field in schema:
        _, fits, types = _COLUMNS[field.name]
        if not fits(field.type):
            raise ValueError(f"the column {field.name} must be {types}, not {field.type}")
    return bytes(_COLUMNS[name][0] for name in names)
