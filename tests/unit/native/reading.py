"""Reading with the codec, as tuples that a test can compare."""

from collections.abc import Sequence
from typing import Any

from onceward_native import Column, Decoder
from tests.support.record_batches import Batch

__all__ = ["COLUMNS", "FOREVER", "encoded", "expected", "memory", "rows"]

COLUMNS: tuple[Column, ...] = ("offset", "key", "value", "timestamp", "timestamp_type", "headers")
FOREVER = 2**62


def encoded(batches: Sequence[Batch]) -> bytes:
    return b"".join(batch.encoded() for batch in batches)


def expected(batches: Sequence[Batch], start: int = 0, end: int = FOREVER) -> list[tuple[Any, ...]]:
    """What a reader returns of batches that are neither aborted nor control batches."""
    return [
        (
            *(record.offset, record.key, record.value, batch.timestamp_of(record)),
            *(int(batch.append_time is not None), [*map(tuple, record.headers)] or None),
        )
        for batch in batches
        for record in batch.records
        if start <= record.offset < end
    ]


def rows(decoder: Decoder, most_bytes: int = 1 << 20) -> list[tuple[Any, ...]]:
    """All that is open in a decoder of COLUMNS."""
    found: list[tuple[Any, ...]] = []
    while (chunk := decoder.read(most_bytes)) is not None:
        chunk.records.validate(full=True)
        assert chunk.records.num_rows
        assert chunk.next_offset == decoder.next_offset
        assert chunk.leader_epoch == decoder.leader_epoch
        *columns, headers = (column.to_pylist() for column in chunk.records.columns)
        pairs = [each and [(pair["key"], pair["value"]) for pair in each] for each in headers]
        found += zip(*columns, pairs, strict=True)
    return found


def memory() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
