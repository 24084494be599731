"""ListOffsets, to and from bytes: where a log begins, and where what is committed ends."""

from collections.abc import Callable
from typing import Final, NamedTuple

from onceward.connections.sockets.encoding import Decoder, Encoder, GarbledError
from onceward.connections.sockets.requests import Api, Content, Request

__all__ = ["EARLIEST", "LATEST", "Found", "OffsetRequest"]

EARLIEST: Final = -2
LATEST: Final = -1
_READ_COMMITTED: Final = 1
_EPOCHS = 4


class Found(NamedTuple):
    error: int
    offset: int


class OffsetRequest(Request):
    """Asks a leader for one offset of one partition."""

    api = Api.LIST_OFFSETS

    def __init__(
        self, topic: str, partition: int, which: int, answered: Callable[[Found], None], lost: Callable[[str], None]
    ) -> None:
        """``which``: `EARLIEST` or `LATEST`."""
        self._topic, self._partition, self._which = topic, partition, which
        self._answered, self._lost = answered, lost

    def encode(self, version: int, *, flexible: bool) -> Content:
        out = Encoder(flexible=flexible)
        out.put("ib", -1, _READ_COMMITTED)
        out.array(1)
        out.text(self._topic)
        out.array(1)
        out.put("i", self._partition)
        if version >= _EPOCHS:
            out.put("i", -1)
        out.put("q", self._which)
        for _partition_topic_and_request in range(3):
            out.no_tags()
        return [out.data]

    def answered(self, version: int, answer: Decoder) -> None:
        answer.take("i")  # throttle
        found: list[Found] = []
        for _ in answer.array():
            topic = answer.text()
            for _ in answer.array():
                partition, error, _, offset = answer.take("ihqq")
                if version >= _EPOCHS:
                    answer.take("i")
                answer.tags()
                if (topic, partition) == (self._topic, self._partition):
                    found.append(Found(error, offset))
            answer.tags()
        if len(found) != 1:
            raise GarbledError(f"it does not have partition {self._topic}-{self._partition} once")
        self._answered(found[0])

    def lost(self, why: str) -> None:
        self._lost(why)
