"""Messages in memory, laid out as librdkafka lays them out, without librdkafka."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onceward.connections.rdkafka.library import MESSAGE
from onceward.sources.kafka.client.fetched import MessageRecords

Row = tuple[int, bytes | None, bytes | None]
"""Offset, key and value."""


class Memory:
    """Structures, keys and values, each at a separate address. They live as long as this object."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def forget(self) -> None:
        """Overwrite everything, so that a reader that still points here sees other bytes."""
        for each in self._kept:
            ctypes.memset(each, 0xFF, ctypes.sizeof(each))

    def message(self, row: Row, *, partition: int = 0, topic: int = 0, error: int = 0) -> int:
        """Store a message and return its address. ``topic`` is the address of a handle."""
        offset, key, value = row
        made = np.zeros(1, MESSAGE)
        made["offset"], made["partition"], made["rkt"], made["err"] = offset, partition, topic, error
        made["key"], made["key_len"] = self._bytes(key)
        made["payload"], made["len"] = self._bytes(value)
        # an address aligned to 8 bytes, not to 16, is enough
        room = (ctypes.c_uint64 * (MESSAGE.itemsize // 8))()
        ctypes.memmove(room, made.ctypes.data, MESSAGE.itemsize)
        self._kept.append(room)
        return ctypes.addressof(room)

    def records(self, topic: str, partition: int, rows: Sequence[Row]) -> MessageRecords:
        addresses = np.array([self.message(row, partition=partition) for row in rows], np.intp)
        return MessageRecords(topic, partition, addresses, self._copied(addresses))

    def _bytes(self, content: bytes | None) -> tuple[int, int]:
        if content is None:
            return 0, 0
        room = ctypes.create_string_buffer(content)
        self._kept.append(room)
        return ctypes.addressof(room), len(content)

    @staticmethod
    def _copied(addresses: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        each = [ctypes.string_at(address, MESSAGE.itemsize) for address in addresses.tolist()]
        return np.frombuffer(b"".join(each), MESSAGE)
