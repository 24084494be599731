"""What one call of a consumer gave, as columns: messages are read where the library has them, all of them at once.

A message is a structure somewhere in memory, with the addresses of its key and its value (rd_kafka_message_t). The
functions here copy the structures into one array, and then all keys or values into one Arrow column. Timestamps and
headers have no place in the structure: they cost a call of the library for each message.

`Records` hold addresses, so they are of use only as long as the library keeps the messages
(`ArrowConsumer.fetched`). What their methods return is a copy and stays.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError

from connections.rdkafka.client import check
from connections.rdkafka.library import MESSAGE, lib

__all__ = ["Event", "Fetched", "Headers", "Records", "fetched"]

_WORD = 8
_WORDS = np.arange(MESSAGE.itemsize // _WORD)


@dataclass(frozen=True)
class Event:
    """Not a record: the end of a partition, or something that went wrong."""

    topic: str | None
    partition: int
    offset: int
    error: KafkaError


class Headers(NamedTuple):
    """Of some records."""

    counts: npt.NDArray[np.int64]
    """How many each record has."""
    names: list[str]
    """Those of all records, in their order; what is not UTF-8 is replaced, as in Java."""
    contents: pa.Array
    """binary, one for each name."""


@dataclass(frozen=True)
class Records:
    """Messages that came one after the other from one partition."""

    topic: str
    partition: int
    addresses: npt.NDArray[np.intp]
    """Of the messages."""
    messages: npt.NDArray[Any]
    """Copies of them (`MESSAGE`)."""

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        return np.ascontiguousarray(self.messages["offset"])

    def below(self, offset: int) -> "Records":
        """Those before ``offset``."""
        kept = self.messages["offset"] < offset
        return Records(self.topic, self.partition, self.addresses[kept], self.messages[kept])

    def keys(self) -> pa.Array:
        """binary, null where there is none."""
        return _binary(self.messages["key"], self.messages["key_len"])

    def values(self) -> pa.Array:
        """binary, null for a tombstone."""
        return _binary(self.messages["payload"], self.messages["len"])

    def value_bytes(self) -> int:
        """Of all values together."""
        return int(self.messages["len"].sum())

    def timestamps(self) -> tuple[npt.NDArray[np.intc], npt.NDArray[np.int64]]:
        """Types (rd_kafka_timestamp_type_t) and milliseconds since 1970."""
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


class Fetched(NamedTuple):
    """What one call of a consumer gave."""

    records: list[Records]
    """In the order in which they came."""
    events: list[Event]


def fetched(addresses: npt.NDArray[np.intp]) -> Fetched:
    """The messages at ``addresses``, in their order."""
    messages = _structures(addresses)
    if not messages["err"].any():
        return Fetched(list(_by_partition(addresses, messages)), [])
    record = messages["err"] == 0
    events = list(map(_event, addresses[~record].tolist(), messages[~record]))
    return Fetched(list(_by_partition(addresses[record], messages[record])), events)


def _structures(addresses: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """Copies of the messages at ``addresses``, which are multiples of eight as those of all structures with a pointer
    in them."""
    if not len(addresses):
        return np.zeros(0, MESSAGE)
    first = int(addresses.min())
    memory = np.frombuffer(pa.foreign_buffer(first, int(addresses.max()) - first + MESSAGE.itemsize), np.int64)
    words: npt.NDArray[np.int64] = memory[((addresses - first) // _WORD)[:, None] + _WORDS]
    return words.view(MESSAGE).reshape(-1)


def _by_partition(addresses: npt.NDArray[np.intp], messages: npt.NDArray[Any]) -> Iterator[Records]:
    topics, partitions = messages["rkt"], messages["partition"]
    cuts = np.flatnonzero((topics[1:] != topics[:-1]) | (partitions[1:] != partitions[:-1])) + 1
    for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(messages)], strict=True):
        if begin < end:
            yield Records(
                lib.topic_name(int(topics[begin])).decode(),
                int(partitions[begin]),
                addresses[begin:end],
                messages[begin:end],
            )


def _event(address: int, message: np.void) -> Event:
    text = lib.message_errstr(address) or b""
    return Event(
        lib.topic_name(int(message["rkt"])).decode() if message["rkt"] else None,
        int(message["partition"]),
        int(message["offset"]),
        KafkaError(int(message["err"]), text.decode(errors="replace")),
    )


def _binary(addresses: npt.NDArray[np.uintp], lengths: npt.NDArray[np.uintp]) -> pa.Array:
    """A copy of so many bytes at each address; null for NULL.

    The memory between the first value and the last is seen as one column in which each value is followed by whatever
    lies up to the next, and every second element is taken. What is in between is not looked at.
    """
    present = addresses != 0
    if not present.any():
        return pa.nulls(len(addresses), pa.binary())
    first = int(addresses[present].min())
    # null is taken for an empty value at first
    starts = np.where(present, addresses - np.uintp(first), 0).astype(np.int64)
    sizes = np.where(present, lengths, 0).astype(np.int64)
    last = int((starts + sizes).max())
    offsets = np.empty(2 * len(starts) + 1, np.int64)
    offsets[0:-1:2], offsets[1:-1:2] = starts, starts + sizes
    # Arrow expects the elements' mean size, of all of them, and makes room for it
    offsets[-1] = starts[0] + 2 * int(sizes.sum())
    memory = pa.foreign_buffer(first, max(last, int(offsets[-1]), 1))
    column = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), memory])
    taken = pc.take(column, pa.array(np.arange(0, len(column), 2)), boundscheck=False).cast(pa.binary())
    return taken if present.all() else pc.if_else(pa.array(present), taken, pa.scalar(None, pa.binary()))


def _places(array: npt.NDArray[Any]) -> range:
    """Where each element lies, for the library to put something there."""
    return range(array.ctypes.data, array.ctypes.data + array.nbytes, array.itemsize)
