"""A request to a broker, and the versions of it that this code speaks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from onceward.connections.sockets.encoding import Decoder

__all__ = ["Api", "Content", "Request", "Spoken", "UnspokenError", "spoken"]

Content: TypeAlias = Sequence[bytes | bytearray | memoryview]
"""Bytes in pieces, so that large ones need not be joined."""


class Api(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    SASL_AUTHENTICATE = 36


class Spoken(NamedTuple):
    """What this code speaks of a request."""

    lowest: int
    highest: int
    flexible: int
    """The first flexible version."""


_SPOKEN: Mapping[Api, Spoken] = {
    Api.PRODUCE: Spoken(3, 11, 9),
    Api.FETCH: Spoken(4, 18, 12),
    Api.LIST_OFFSETS: Spoken(2, 7, 6),
    Api.METADATA: Spoken(5, 12, 9),
    Api.FIND_COORDINATOR: Spoken(1, 3, 3),
    Api.SASL_HANDSHAKE: Spoken(1, 1, 99),
    Api.API_VERSIONS: Spoken(0, 0, 99),
    Api.INIT_PRODUCER_ID: Spoken(0, 6, 2),
    Api.ADD_PARTITIONS_TO_TXN: Spoken(0, 3, 3),
    Api.ADD_OFFSETS_TO_TXN: Spoken(0, 3, 3),
    Api.END_TXN: Spoken(0, 3, 3),
    Api.TXN_OFFSET_COMMIT: Spoken(2, 3, 3),
    Api.SASL_AUTHENTICATE: Spoken(0, 1, 2),
}


class UnspokenError(Exception):
    """A broker and this code have no version of a request in common."""


def spoken(api: Api, offered: Mapping[int, tuple[int, int]], highest: int | None = None) -> tuple[int, bool]:
    """Return the highest version that both sides speak, and whether it is flexible. ``offered``: the lowest and highest
    version of each request that the broker takes. ``highest``: the caller's limit. Raises UnspokenError."""
    ours, theirs = _SPOKEN[api], offered.get(api, (0, -1))
    version = min(ours.highest if highest is None else highest, theirs[1])
    if version < max(ours.lowest, theirs[0]):
        raise UnspokenError(
            f"the broker takes {api.name} in versions {theirs[0]} to {theirs[1]}, this client speaks {ours.lowest} to "
            f"{ours.highest}"
        )
    return version, version >= ours.flexible


class Request(ABC):
    """A request on its way. Exactly one of :meth:`answered` and :meth:`lost` is called, once."""

    api: Api
    highest: int | None = None
    """The highest version that may be used; None = that of this code."""

    @abstractmethod
    def encode(self, version: int, *, flexible: bool) -> Content:
        """Return the body. It must not change until the answer has come."""

    @abstractmethod
    def answered(self, version: int, answer: Decoder) -> None:
        """Take the answer. ``answer`` reads the memory that :meth:`room` returned. Raises GarbledError."""

    @abstractmethod
    def lost(self, why: str) -> None:
        """Note that no answer comes: the connection is lost."""

    def room(self, size: int) -> memoryview:
        """Return memory of at least ``size`` bytes for the answer."""
        return memoryview(bytearray(size))
