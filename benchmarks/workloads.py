"""The workloads: the records, the expected output, and how an output is compared with it.

A record is generated from its number, so none has to be kept: 100 bytes, a key of 8 and a value of 92, or a larger
value for a copy with larger records. The content of an output is its count and the sum of its records' checksums,
independent of order and partitions. Systems may format JSON differently, so a JSON record counts by its fields.
"""

import functools
import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["KEY_BYTES", "RECORD_BYTES", "Content", "Workload", "canonical", "expected", "record", "stamped", "stamps"]

RECORD_BYTES = 100
KEY_BYTES = 8
_VALUE_BYTES = RECORD_BYTES - KEY_BYTES
_KEYS = 100_000
_STAMP = struct.Struct(">dq")
_STAMPS = np.dtype([("at", ">f8"), ("number", ">i8")])
_KEPT = 100
"""The filter keeps one in this many records: those whose key ends in 00."""


class Workload(StrEnum):
    """The measured workloads; the first three process a topic that is full before they start."""

    COPY = "copy"
    JSON = "json"
    """Parse, multiply two fields, write another in capitals, serialise."""
    FILTER = "filter"
    """Keep 1 % of the records, by their keys."""
    STEADY = "steady"
    """Copy 20,000 records/s as they arrive: end-to-end latency."""
    BACKLOG = "backlog"
    """Copy a full topic while 20,000 records/s are added: the time until no record waits."""
    CYCLE = "cycle"
    """Checkpoints of 4 slots and 1,000 records, back to back; ours only."""

    @property
    def full(self) -> bool:
        """Whether the topic is full before the start and grows no further."""
        return self in (Workload.COPY, Workload.JSON, Workload.FILTER)


@dataclass(frozen=True, kw_only=True)
class Content:
    """The content of a topic, independent of order."""

    records: int
    checksum: int

    @classmethod
    def of(cls, contents: Iterable[bytes]) -> Self:
        """Summarise ``contents``, which are records as `canonical` converts them."""
        count = total = 0
        for content in contents:
            count += 1
            total += crc32(content)
        return cls(records=count, checksum=total % 2**64)


def record(workload: Workload, number: int, record_bytes: int = RECORD_BYTES) -> tuple[bytes, bytes]:
    """Return key and value of input record `number` (from 0); JSON records always have 100 bytes."""
    key = b"%08d" % (number % _KEYS)
    if workload is Workload.JSON:
        text = b'{"id":%d,"amount":%d,"quantity":%d,"currency":"eur","pad":"' % (number, number * 7 % 1000, number % 9)
        return key, text + _pad(_VALUE_BYTES - len(text) - 2) + b'"}'
    return key, b"%012d" % number + _pad(record_bytes - KEY_BYTES - 12)


def stamped(number: int, at: float) -> bytes:
    """Return a value of the steady workload: seconds since the epoch, and its number."""
    return _STAMP.pack(at, number) + _pad(_VALUE_BYTES - _STAMP.size)


@functools.cache
def _pad(size: int) -> bytes:
    return b"x" * size


def stamps(values: pa.Array) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return when values of the steady workload were created, and their numbers."""
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    first, last = values.offset * _VALUE_BYTES, (values.offset + len(values)) * _VALUE_BYTES
    fields = data[first:last].reshape(-1, _VALUE_BYTES)[:, : _STAMP.size].copy().view(_STAMPS).reshape(-1)
    return fields["at"].astype(np.float64), fields["number"].astype(np.int64)


def canonical(workload: Workload) -> Callable[[bytes, bytes], bytes]:
    """Return a function that extracts what must be right in an output record's key and value."""
    if workload is Workload.JSON:
        return _json_fields
    return lambda key, value: key + value


def _json_fields(key: bytes, value: bytes) -> bytes:
    fields = json.loads(value)
    return b"%s|%d|%d|%s|%d" % (key, fields["id"], fields["total"], fields["currency"].encode(), len(fields))


def expected(workload: Workload, records: int, record_bytes: int = RECORD_BYTES) -> Content:
    """Return the expected output for input records 0 to `records` - 1."""
    if workload is Workload.JSON:
        return Content.of(
            b"%08d|%d|%d|EUR|3" % (number % _KEYS, number, number * 7 % 1000 * (number % 9))
            for number in range(records)
        )
    kept = _KEPT if workload is Workload.FILTER else 1
    made = (record(workload, number, record_bytes) for number in range(0, records, kept))
    return Content.of(key + value for key, value in made)
