"""Kafka's record batches (format 2) in plain Python, by the format's description, to hold the codec against."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import pyarrow as pa

__all__ = [
    "ABORT",
    "CODECS",
    "COMMIT",
    "Batch",
    "Headers",
    "Record",
    "compressed",
    "marker",
    "old_message",
    "varint",
    "with_crc",
]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""By their number in a batch."""
Headers = Sequence[tuple[str, bytes | None]]
ABORT, COMMIT = 0, 1
_HEADER = struct.Struct(">qiiBIhiqqqhii")
_CRC_AT, _CHECKED_FROM = 17, 21


class Record(NamedTuple):
    """``offset`` and ``timestamp`` are absolute; the timestamp is in milliseconds."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch with all that its header can say. Its offsets may have gaps, as compaction leaves them."""

    records: Sequence[Record]
    base: int | None = None
    last: int | None = None
    codec: str = "none"
    xerial: bool = False
    epoch: int = 0
    producer: int = -1
    transactional: bool = False
    control: bool = False
    append_time: int | None = None
    base_timestamp: int | None = None

    @property
    def base_offset(self) -> int:
        return self.records[0].offset if self.base is None else self.base

    @property
    def last_offset(self) -> int:
        return self.records[-1].offset if self.last is None else self.last

    def timestamp_of(self, record: Record) -> int:
        return record.timestamp if self.append_time is None else self.append_time

    def encoded(self) -> bytes:
        base = self.base_offset
        times = [record.timestamp for record in self.records] or [-1]
        first = times[0] if self.base_timestamp is None else self.base_timestamp
        body = compressed(
            b"".join(record_bytes(each, base, first) for each in self.records), self.codec, xerial=self.xerial
        )
        attributes = CODECS.index(self.codec)
        attributes |= 0x08 * (self.append_time is not None) | 0x10 * self.transactional | 0x20 * self.control
        most = max(times) if self.append_time is None else self.append_time
        header = _HEADER.pack(
            *(base, _HEADER.size - 12 + len(body), self.epoch, 2, 0, attributes, self.last_offset - base, first, most),
            *(self.producer, 0 if self.producer >= 0 else -1, -1, len(self.records)),
        )
        return with_crc(header + body)


def marker(offset: int, producer: int, kind: int, epoch: int = 0) -> Batch:
    """The control batch that ends a transaction; ``kind`` is ABORT or COMMIT."""
    record = Record(offset, 0, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))
    return Batch(records=[record], producer=producer, transactional=True, control=True, epoch=epoch)


def with_crc(batch: bytes) -> bytes:
    """Return the batch with the checksum of what it holds."""
    return batch[:_CRC_AT] + struct.pack(">I", crc32c(batch[_CHECKED_FROM:])) + batch[_CHECKED_FROM:]


def old_message(magic: int, value: bytes = b"old") -> bytes:
    """A message of format 0 or 1."""
    body = bytes([magic, 0]) + (struct.pack(">q", 5) if magic else b"") + struct.pack(">i", -1)
    body += struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", 0, len(body) + 4, 0) + body


def record_bytes(record: Record, base: int, first: int) -> bytes:
    delta = (record.timestamp - first + 2**63) % 2**64 - 2**63  # wraps, as Java's
    body = b"\0" + varint(delta) + varint(record.offset - base) + sized(record.key) + sized(record.value)
    body += varint(len(record.headers))
    body += b"".join(sized(name.encode()) + sized(value) for name, value in record.headers)
    return varint(len(body)) + body


def varint(number: int) -> bytes:
    """Zigzag, then seven bits per byte."""
    left = (number << 1 ^ number >> 63) & 2**64 - 1
    made = bytearray()
    while left > 0x7F:
        made.append(left & 0x7F | 0x80)
        left >>= 7
    made.append(left)
    return bytes(made)


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def compressed(data: bytes, codec: str, *, xerial: bool = False) -> bytes:
    """Compress by Arrow's codecs. ``xerial``: with the frame of Java's Snappy, in small blocks."""
    if codec == "none":
        return data
    compress = pa.Codec(codec).compress
    if not xerial:
        return bytes(compress(data, asbytes=True))
    blocks = [bytes(compress(data[at : at + 100], asbytes=True)) for at in range(0, len(data), 100)]
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in blocks)


def _crc_of_byte(number: int) -> int:
    return reduce(lambda crc, _: crc >> 1 ^ 0x82F63B78 * (crc & 1), range(8), number)


_CRC_OF_BYTE = [_crc_of_byte(number) for number in range(256)]


def crc32c(data: Iterable[int]) -> int:
    return reduce(lambda crc, byte: _CRC_OF_BYTE[(crc ^ byte) & 0xFF] ^ crc >> 8, data, 2**32 - 1) ^ 2**32 - 1
