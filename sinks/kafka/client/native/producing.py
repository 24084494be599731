"""Produce, to and from bytes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from onceward.connections.sockets.encoding import Decoder, Encoder, GarbledError
from onceward.connections.sockets.requests import Api, Content, Request
from onceward_native import Batch

__all__ = ["Confirmed", "ProduceRequest", "Produced", "Sending"]

_ALL_REPLICAS: Final = -1
_LOG_STARTS, _MUTES, _REASONS = 5, 6, 8
"""Versions of the answer."""


class Sending(NamedTuple):
    """A batch on its way."""

    topic: str
    batch: Batch


class Confirmed(NamedTuple):
    """What a leader says of one batch."""

    error: int
    reason: str


@dataclass(frozen=True)
class Produced:
    """An answer."""

    throttled_s: float
    mutes: bool
    """Whether the broker waits for the client to wait (KIP-219)."""
    parts: Mapping[tuple[str, int], Confirmed]


class ProduceRequest(Request):
    """One batch for each of some partitions that a broker leads."""

    api = Api.PRODUCE

    def __init__(
        self,
        batches: Sequence[Sending],
        *,
        identifier: str | None,
        timeout_ms: int,
        answered: Callable[["ProduceRequest", Produced], None],
        lost: Callable[["ProduceRequest", str], None],
    ) -> None:
        """``identifier``: of the transaction. ``timeout_ms``: how long the leader waits for its followers."""
        self.batches = batches
        self._identifier, self._timeout_ms = identifier, timeout_ms
        self._answered, self._lost = answered, lost

    def encode(self, version: int, *, flexible: bool) -> Content:
        content: list[bytearray | memoryview] = []
        out = Encoder(flexible=flexible)
        if self._identifier is not None:
            out.text(self._identifier)
        elif flexible:
            out.uvarint(0)
        else:
            out.put("h", -1)
        out.put("hi", _ALL_REPLICAS, self._timeout_ms)
        topics: dict[str, list[Batch]] = {}
        for topic, batch in self.batches:
            topics.setdefault(topic, []).append(batch)
        out.array(len(topics))
        for topic, batches in topics.items():
            out.text(topic)
            out.array(len(batches))
            for batch in batches:
                out.put("i", batch.partition)
                out.array(batch.data.size)
                content += [out.data, memoryview(batch.data)]
                out.data = bytearray()
                out.no_tags()
            out.no_tags()
        out.no_tags()
        return [*content, out.data]

    def answered(self, version: int, answer: Decoder) -> None:
        self._answered(self, self._decoded(version, answer))

    def lost(self, why: str) -> None:
        self._lost(self, why)

    def _decoded(self, version: int, answer: Decoder) -> Produced:
        parts: dict[tuple[str, int], Confirmed] = {}
        for _ in answer.array():
            topic = answer.text() or ""
            for _ in answer.array():
                number, error, _, _ = answer.take("ihqq")
                if version >= _LOG_STARTS:
                    answer.take("q")
                reason = ""
                if version >= _REASONS:
                    for _ in answer.array():
                        answer.take("i")
                        reason = answer.text() or reason
                        answer.tags()
                    reason = answer.text() or reason
                answer.tags()
                parts[topic, number] = Confirmed(error, reason)
            answer.tags()
        throttled_ms = answer.number("i")
        answer.tags()
        if parts.keys() != {(topic, batch.partition) for topic, batch in self.batches}:
            raise GarbledError("it does not have exactly the partitions that were written to")
        return Produced(throttled_ms / 1000, version >= _MUTES, parts)
