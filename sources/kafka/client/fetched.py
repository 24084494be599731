"""The result of one consumer call, as columns: all messages are read together, in place in the library's memory.

A message is a structure at an arbitrary address, with the addresses of its key and value (rd_kafka_message_t). The
functions here copy the structures into one array, then all keys or values into one Arrow column. Timestamps and headers
are not in the structure: they cost one call of the library per message.

`MessageRecords` hold addresses, so they are valid only while the library keeps the messages (`ArrowConsumer.fetched`).
Their methods return copies, which remain valid.
"""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import KafkaError

from onceward.connections.rdkafka.client import check
from onceward.connections.rdkafka.library import MESSAGE, lib
from onceward.sources.kafka.client.interface import Event, Fetched, Headers

__all__ = ["MessageRecords", "fetched"]

_WORD = 8
_WORDS = np.arange(MESSAGE.itemsize // _WORD)


@dataclass(frozen=True)
class MessageRecords:
    """:class:`Records` in the library's memory."""

    topic: str
    partition: int
    """-1: of several."""
    addresses: npt.NDArray[np.intp]
    """Addresses of the messages."""
    messages: npt.NDArray[Any]
    """Copies of the structures (`MESSAGE`)."""

    @classmethod
    def together(cls, parts: Sequence["MessageRecords"]) -> "MessageRecords":
        """Return the records of several partitions of a topic, one partition after the other."""
        if len(parts) == 1:
            return parts[0]
        addresses = np.concatenate([part.addresses for part in parts])
        return cls(parts[0].topic, -1, addresses, np.concatenate([part.messages for part in parts]))

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def partitions(self) -> npt.NDArray[np.int32]:
        return np.ascontiguousarray(self.messages["partition"])

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        return np.ascontiguousarray(self.messages["offset"])

    def last_epoch(self) -> int:
        """Return the leader epoch of the last record; epochs only grow."""
        return int(lib.message_leader_epoch(int(self.addresses[-1])))

    def below(self, offset: int) -> "MessageRecords":
        """Return the records before ``offset``."""
        kept = self.messages["offset"] < offset
        return MessageRecords(self.topic, self.partition, self.addresses[kept], self.messages[kept])

    def keys(self) -> pa.Array:
        """Return the keys: binary, null where a record has none."""
        return _binary(self.messages["key"], self.messages["key_len"])

    def values(self) -> pa.Array:
        """Return the values: binary, null for a tombstone."""
        return _binary(self.messages["payload"], self.messages["len"])

    def value_bytes(self) -> int:
        """Return the total bytes of all values."""
        return int(self.messages["len"].sum())

    def timestamps(self) -> tuple[npt.NDArray[np.intc], npt.NDArray[np.int64]]:
        """Return types (rd_kafka_timestamp_type_t) and milliseconds since 1970."""
        kinds = np.zeros(len(self), np.intc)
        times = map(lib.message_timestamp, self.addresses.tolist(), _places(kinds))
        return kinds, np.fromiter(times, np.int64, len(self))

    def headers(self) -> Headers:
        lists = np.zeros(len(self), np.uintp)
        missing = map(lib.message_headers, self.addresses.tolist(), _places(lists))
        some = np.fromiter(missing, np.intc, len(self)) == 0
        counts = np.zeros(len(self), np.int64)
        lists = lists[some]
        counts[some] = np.fromiter(map(lib.header_cnt, lists.tolist()), np.int64, len(lists))
        each = counts[some]
        names, contents, sizes = np.zeros((3, each.sum()), np.uintp)
        inside = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
        places = map(_places, (names, contents, sizes))
        for code in map(lib.header_get_all, np.repeat(lists, each).tolist(), inside.tolist(), *places):
            check(code)
        texts = (ctypes.c_char_p * len(names)).from_buffer(names)
        return Headers(counts, [(text or b"").decode(errors="replace") for text in texts], _binary(contents, sizes))


def fetched(addresses: npt.NDArray[np.intp]) -> Fetched:
    """Split the messages at ``addresses`` into records and events, in order."""
    messages = _structures(addresses)
    if not messages["err"].any():
        return Fetched(list(_by_partition(addresses, messages)), [])
    record = messages["err"] == 0
    events = list(map(_event, addresses[~record].tolist(), messages[~record]))
    return Fetched(list(_by_partition(addresses[record], messages[record])), events)


def _structures(addresses: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """Copy the messages at ``addresses``, which are multiples of eight, like those of any structure that contains a
    pointer."""
    if not len(addresses):
        return np.zeros(0, MESSAGE)
    first = int(addresses.min())
    memory = np.frombuffer(pa.foreign_buffer(first, int(addresses.max()) - first + MESSAGE.itemsize), np.int64)
    words: npt.NDArray[np.int64] = memory[((addresses - first) // _WORD)[:, None] + _WORDS]
    return words.view(MESSAGE).reshape(-1)


def _by_partition(addresses: npt.NDArray[np.intp], messages: npt.NDArray[Any]) -> Iterator[MessageRecords]:
    cuts = _cuts(messages)
    if len(cuts) > 1:  # of several fetches: join what each partition sent, because each piece costs half a millisecond
        order = np.lexsort((messages["partition"], messages["rkt"]))  # stable
        addresses, messages = addresses[order], messages[order]
        cuts = _cuts(messages)
    for begin, end in zip([0, *cuts], [*cuts, len(messages)], strict=True):
        if begin < end:
            first = messages[begin]
            yield MessageRecords(
                lib.topic_name(int(first["rkt"])).decode(),
                int(first["partition"]),
                addresses[begin:end],
                messages[begin:end],
            )


def _cuts(messages: npt.NDArray[Any]) -> list[int]:
    """Return where the partition changes."""
    topics, partitions = messages["rkt"], messages["partition"]
    cuts: list[int] = (np.flatnonzero((topics[1:] != topics[:-1]) | (partitions[1:] != partitions[:-1])) + 1).tolist()
    return cuts


def _event(address: int, message: np.void) -> Event:
    text = lib.message_errstr(address) or b""
    return Event(
        lib.topic_name(int(message["rkt"])).decode() if message["rkt"] else None,
        int(message["partition"]),
        int(message["offset"]),
        KafkaError(int(message["err"]), text.decode(errors="replace")),
    )


_INLINE = 12
"""Bytes; longer values are not stored in the view."""
_WINDOW_BITS = 30
"""A value begins in the first GiB of a window. The window is twice as long, so it also contains the value's end."""


def _binary(addresses: npt.NDArray[np.uintp], lengths: npt.NDArray[np.uintp]) -> pa.Array:
    """Copy the bytes at each address, with the given lengths; null for NULL.

    Arrow's binary_view is a layout for values at arbitrary places. A view is four words: the length, and either the
    value or its first four bytes, a buffer and the offset in it. The buffers are windows on the library's memory, and
    the cast copies the values.
    """
    present = addresses != 0
    sizes = np.where(present, lengths, 0).astype(np.int64)
    views = np.zeros((len(sizes), 4), np.uint32)
    views[:, 0] = sizes
    windows: list[pa.Buffer] = []
    filled = sizes > 0
    if filled.any():
        first = int(addresses[filled].min())
        starts = np.where(filled, addresses - np.uintp(first), 0).astype(np.int64)
        memory = pa.foreign_buffer(first, max(int((starts + sizes).max()), 4))
        _inline(views, memory, starts, sizes)
        windows = _point(views, memory, starts, sizes)
    valid = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    made = pa.Array.from_buffers(pa.binary_view(), len(sizes), [valid, pa.py_buffer(views), *windows])
    return made.cast(pa.binary())


def _inline(
    views: npt.NDArray[np.uint32], memory: pa.Buffer, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> None:
    """Fill in short values, and the first four bytes of the others. Reads no byte outside a value."""
    data = np.frombuffer(memory, np.uint8)
    words = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))  # one word starting at every byte
    some = _where(sizes >= 4)
    views[some, 1] = words[starts[some]]
    shortest = sizes.min()
    for byte in range(3) if shortest < 4 else ():
        some = _where((sizes < 4) & (sizes > byte))
        views[some, 1] |= data[starts[some] + byte].astype(np.uint32) << np.uint32(8 * byte)
    for word in (1, 2) if shortest <= _INLINE else ():
        some = _where((sizes <= _INLINE) & (sizes > 4 * word))
        beyond = np.maximum(4 * word + 4 - sizes[some], 0)  # bytes by which a value's last word begins earlier
        views[some, word + 1] = words[starts[some] + 4 * word - beyond] >> (8 * beyond).astype(np.uint32)


def _point(
    views: npt.NDArray[np.uint32], memory: pa.Buffer, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> list[pa.Buffer]:
    """Fill in the location of longer values; return the windows that contain them."""
    some = _where(sizes > _INLINE)
    begins = [0]
    if memory.size >> _WINDOW_BITS:
        used, views[some, 2] = np.unique(starts[some] >> _WINDOW_BITS, return_inverse=True)
        begins = [int(each) << _WINDOW_BITS for each in used]
    views[some, 3] = starts[some] & ((1 << _WINDOW_BITS) - 1)
    return [memory.slice(begin, min(memory.size - begin, (2 << _WINDOW_BITS) - 1)) for begin in begins]


def _where(mask: npt.NDArray[np.bool_]) -> "slice | npt.NDArray[np.intp]":
    """Select the elements of ``mask`` in the form that is fastest for numpy."""
    return slice(None) if mask.all() else np.flatnonzero(mask)


def _places(array: npt.NDArray[Any]) -> range:
    """Return the address of each element, for the library to write to."""
    return range(array.ctypes.data, array.ctypes.data + array.nbytes, array.itemsize)
