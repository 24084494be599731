"""The records that one partition has in an answer of Fetch, as Arrow columns."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pyarrow as pa

from onceward_native.errors import error_of_batch
from onceward_native.library import ArrowArray, lib

__all__ = ["Chunk", "Column", "Decoder", "columns_schema"]

Column = Literal["key", "value", "offset", "timestamp", "timestamp_type", "headers"]
_NAMES: tuple[str, ...] = get_args(Column)
_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "offset": pa.int64(),
    "timestamp": pa.int64(),
    "timestamp_type": pa.int32(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}


def columns_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the schema of chunks with these columns, in this order.

    - ``key``, ``value``: binary; null where the record has none
    - ``offset``: int64
    - ``timestamp``: int64, milliseconds since 1970, as in the log: any number, -1 for none
    - ``timestamp_type``: int32; 0 is CreateTime (the producer's), 1 is LogAppendTime (the broker's)
    - ``headers``: a list of pairs of a name (string) and a value (binary, may be null); null where there are none
    """
    return pa.schema([(name, _TYPES[name]) for name in columns])


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Consecutive records of one partition. Its memory is freed with the last array that points into it."""

    records: pa.RecordBatch
    """At least one; the columns that the decoder was made for."""
    next_offset: int
    """The offset after the last batch of the chunk (not after its last record: compaction and transactions leave gaps),
    and at most the range's end."""
    leader_epoch: int
    """The leader's epoch of the last batch of the chunk, which KIP-320 calls the last fetched epoch; -1 if unknown."""


class Decoder:
    """Reads the records of one partition at a time.

    One thread at a time may use it; its calls release the interpreter's lock. What it returns stays valid without it,
    and does not keep the answer.
    """

    def __init__(self, columns: Sequence[Column], *, check_crc: bool = False) -> None:
        """Take the columns' names, each at most once. ``check_crc``: compute each batch's checksum and compare it.

        Raises ``ValueError`` for unknown columns and repetitions.
        """
        if len({*columns}) != len(columns) or not {*columns} <= {*_NAMES}:
            raise ValueError(f"columns must be different ones of {', '.join(_NAMES)}, not {', '.join(columns)}")
        self._schema = columns_schema(columns)
        self._made = lib.decoder_new(bytes(map(_NAMES.index, columns)), len(columns), check_crc)
        if not self._made:
            raise MemoryError("There is no memory for a decoder.")
        self._progress = self._made.contents
        self._data: Any = None
        self._aborted: Any = None
        self.open(b"", start=0, end=0)

    def open(self, data: Any, *, start: int, end: int, aborted: Sequence[tuple[int, int]] = ()) -> None:
        """Begin to read the ``records`` of one partition in an answer of Fetch, and forget what was open before.

        ``data``: any object with the buffer protocol; it is not copied, and must not change until the next ``open``.
        It may begin with batches before ``start`` and may end inside a batch, as brokers send it.
        ``start``, ``end``: the offsets to return, ``start <= offset < end``.
        ``aborted``: the answer's aborted transactions, as pairs of producer id and first offset, in any order. Leave it
        out to read uncommitted records. Control batches are left out in any case.
        """
        buffer = pa.py_buffer(data)
        pairs = [number for pair in sorted(aborted, key=lambda pair: pair[1]) for number in pair]
        listed = (ctypes.c_int64 * len(pairs))(*pairs)
        lib.decoder_open(self._made, buffer.address, buffer.size, start, end, listed, len(aborted))
        self._data, self._aborted = buffer, listed

    def read(self, most_bytes: int = 1 << 20) -> Chunk | None:
        """Return the records of the next batches, None after the last whole batch or at the range's end.

        A chunk has whole batches, and no further one when it has ``most_bytes`` (16 for each record, and those of its
        keys, values and headers). Raises a ``CodecError`` if the next batch cannot be read. The records before it have
        been returned, ``next_offset`` and ``bytes_used`` stay before it, and each further call raises the same.
        """
        array = ArrowArray()
        rows = lib.decoder_read(self._made, most_bytes, array)
        progress = self._progress
        if rows < 0:
            raise error_of_batch(rows, progress.offset, progress.position, progress.record)
        if not rows:
            return None
        records = pa.RecordBatch._import_from_c(ctypes.addressof(array), self._schema)
        return Chunk(records=records, next_offset=progress.next_offset, leader_epoch=progress.leader_epoch)

    @property
    def next_offset(self) -> int:
        """The offset where the next fetch begins: after the last batch that was read, at most ``end``, and at least
        ``start``. It also passes batches without visible records."""
        return int(self._progress.next_offset)

    @property
    def leader_epoch(self) -> int:
        """The leader's epoch of the last batch that was read; -1 if none was, or if it is unknown."""
        return int(self._progress.leader_epoch)

    @property
    def bytes_used(self) -> int:
        """Bytes of whole batches that were read. 0 after ``read`` returned None, although there is data and the range
        is not empty: the first batch is larger than what was fetched, or its length is damaged."""
        return int(self._progress.bytes_used)

    def __del__(self) -> None:
        made = getattr(self, "_made", None)
        if made:
            lib.decoder_free(made)
