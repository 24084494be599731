"""Fetch, to and from bytes."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from onceward.connections.sockets.encoding import Decoder, Encoder, GarbledError
from onceward.connections.sockets.metadata import NO_ID
from onceward.connections.sockets.requests import Api, Content, Request
from onceward.sources.kafka.client.native.settings import FetchSettings

__all__ = ["Answer", "FetchRequest", "Part", "Wanted"]

_READ_COMMITTED: Final = 1
_SESSIONS, _MUTES, _EPOCHS, _RACKS, _LAST_EPOCHS, _IDS, _WITHOUT_REPLICA = 7, 8, 9, 11, 12, 13, 15
_LOG_STARTS = 5
_DIVERGING = 0
"""A tag."""


class Wanted(NamedTuple):
    """What to fetch of a partition."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    """Of the leader as known here; another leader answers with an error. -1: not checked."""
    last_epoch: int
    """Of the batch before the offset; a log that has another one there answers so. -1: not checked."""


class Part(NamedTuple):
    """What was answered for one partition."""

    error: int
    stable: int
    """The offset after the last committed record: the end for a ``read_committed`` reader."""
    aborted: Sequence[tuple[int, int]]
    """Producer id and first offset of each aborted transaction in `records`."""
    records: memoryview
    """Batches; the last one may be cut."""
    diverged: tuple[int, int] | None
    """The log is not the one that was read: an epoch, and where it ends in the leader's log."""


class Answer(NamedTuple):
    error: int
    throttled_s: float
    mutes: bool
    """The client must wait for the throttled time (KIP-219); otherwise the broker waited."""
    parts: Mapping[tuple[str, int], Part]


class FetchRequest(Request):
    api = Api.FETCH

    def __init__(
        self,
        wanted: Sequence[Wanted],
        ids: Mapping[str, uuid.UUID],
        settings: FetchSettings,
        *,
        room: Callable[[int], memoryview],
        answered: Callable[["FetchRequest", Answer], None],
        lost: Callable[["FetchRequest", str], None],
    ) -> None:
        """``ids``: of all topics; `NO_ID` where brokers have none."""
        self.wanted, self._ids, self._settings = wanted, ids, settings
        self._room, self._answered, self._lost = room, answered, lost
        self.highest = _IDS - 1 if NO_ID in ids.values() else None

    def encode(self, version: int, *, flexible: bool) -> Content:
        settings, out = self._settings, Encoder(flexible=flexible)
        if version < _WITHOUT_REPLICA:
            out.put("i", -1)
        out.put("iiib", settings.wait_ms, settings.least_bytes, settings.answer_bytes, _READ_COMMITTED)
        if version >= _SESSIONS:
            out.put("ii", 0, -1)
        topics: dict[str, list[Wanted]] = {}
        for each in self.wanted:
            topics.setdefault(each.topic, []).append(each)
        out.array(len(topics))
        for topic, parts in topics.items():
            if version >= _IDS:
                out.raw(self._ids[topic].bytes)
            else:
                out.text(topic)
            out.array(len(parts))
            for each in parts:
                out.put("i", each.partition)
                if version >= _EPOCHS:
                    out.put("i", each.leader_epoch)
                out.put("q", each.offset)
                if version >= _LAST_EPOCHS:
                    out.put("i", each.last_epoch)
                if version >= _LOG_STARTS:
                    out.put("q", -1)
                out.put("i", settings.partition_bytes)
                out.no_tags()
            out.no_tags()
        if version >= _SESSIONS:
            out.array(0)
        if version >= _RACKS:
            out.text("")
        out.no_tags()
        return [out.data]

    def room(self, size: int) -> memoryview:
        return self._room(size)

    def answered(self, version: int, answer: Decoder) -> None:
        self._answered(self, self._decoded(version, answer))

    def lost(self, why: str) -> None:
        self._lost(self, why)

    def _decoded(self, version: int, answer: Decoder) -> Answer:
        throttled_ms, error = answer.number("i"), 0
        if version >= _SESSIONS:
            error, _ = answer.take("hi")
        names = {known.bytes: topic for topic, known in self._ids.items()} if version >= _IDS else {}
        asked = {(each.topic, each.partition) for each in self.wanted}
        parts: dict[tuple[str, int], Part] = {}
        for _ in answer.array():
            topic = names.get(answer.raw(16)) if version >= _IDS else answer.text()
            for _ in answer.array():
                number, part = _part(version, answer)
                if topic is None or (topic, number) not in asked or (topic, number) in parts:
                    raise GarbledError(f"it has partition {topic}-{number}, which was not asked, or twice")
                parts[topic, number] = part
            answer.tags()
        answer.tags()
        return Answer(error, throttled_ms / 1000, version >= _MUTES, parts)


def _part(version: int, answer: Decoder) -> tuple[int, Part]:
    number, error, high, stable = answer.take("ihqq")
    if version >= _LOG_STARTS:
        answer.take("q")
    aborted: list[tuple[int, int]] = []
    for _ in answer.array():
        producer, first = answer.take("qq")
        aborted.append((producer, first))
        answer.tags()
    if version >= _RACKS:
        answer.take("i")  # a replica to prefer: only for clients that name their rack
    size = max(0, answer.size("i"))
    at = answer.skip(size)
    diverged: list[tuple[int, int]] = []

    def tagged(tag: int, content: Decoder) -> None:
        if tag == _DIVERGING:
            epoch, end = content.take("iq")
            diverged.append((epoch, end))

    answer.tags(tagged)
    part = Part(
        error=error,
        stable=high if stable < 0 else stable,
        aborted=aborted,
        records=answer.view[at : at + size],
        diverged=diverged[0] if diverged else None,
    )
    return number, part
