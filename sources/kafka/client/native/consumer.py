"""NativeConsumer: reads ranges by Fetch. Runs on executors.

It has no thread: it sends and receives within its calls. While the records of one answer are read, the next one is on
its way; it waits in the socket, so memory is bounded by one answer of each broker. A thread of its own opens each
connection.
"""

import logging
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import OFFSET_INVALID, KafkaError, TopicPartition

from onceward.connections.limits import LOST_S
from onceward.connections.sockets.brokers import Brokers
from onceward.connections.sockets.errors import as_kafka_errors
from onceward.connections.sockets.metadata import NO_ID
from onceward.connections.sockets.settings import ConnectionSettings
from onceward.sources.kafka.client.interface import Event, Fetched, Throttling
from onceward.sources.kafka.client.native.fetching import Answer, FetchRequest, Part, Wanted
from onceward.sources.kafka.client.native.meanings import Meaning, meaning_of
from onceward.sources.kafka.client.native.partition import Decoders, ReadPartition
from onceward.sources.kafka.client.native.pieces import Piece, Room, scan
from onceward.sources.kafka.client.native.questions import Questions
from onceward.sources.kafka.client.native.queues import NativeQueues
from onceward.sources.kafka.client.native.records import NativeRecords, decoded_columns
from onceward.sources.kafka.client.native.settings import FetchSettings

__all__ = ["NativeConsumer"]

_UNKNOWN_S: Final = 30.0
"""A topic or partition may be new, and its broker may not know it yet (librdkafka's
topic.metadata.propagation.max.ms)."""
_UNKNOWN_TOPIC_ID: Final = 100
_LEAST_ROOM: Final = 1 << 16
_KEPT_ROOM: Final = 1 << 22
"""Bytes of memory for answers that a client without partitions keeps for each broker."""

_Place = tuple[str, int]


class NativeConsumer:
    """A :class:`Consumer`."""

    def __init__(self, config: Mapping[str, Any], *, logger: logging.Logger) -> None:
        """``config``: librdkafka's properties, of which none is unfollowed."""
        self.throttling = Throttling()
        self._fetch = FetchSettings.of(config)
        self._brokers = Brokers(ConnectionSettings.of(config), logger=logger, trouble=self._trouble)
        self._questions = Questions(self._brokers, self._serve)
        self._partitions: dict[_Place, ReadPartition] = {}
        self._turn: deque[_Place] = deque()
        """The partition that is fetched first is first."""
        self._decoders = Decoders(decoded_columns(None), check=self._fetch.check)
        self._rooms: dict[int, Room] = {}
        """By broker."""
        self._fetching: dict[int, FetchRequest] = {}
        """The fetch that is on its way, by broker."""
        self._events: list[Event] = []
        self._troubles: set[str] = set()
        """What was reported since the last records: the same is not reported again."""
        self._queued = False
        """Each partition's pieces have memory of their own: some of them may have to wait for long."""
        self._came = False
        """Something has come into an empty queue."""
        self.closed = False

    def rebootstrap(self) -> None:
        lost = time.monotonic() - LOST_S
        if any(read.heard < lost and not (read.waiting or read.done) for read in self._partitions.values()):
            self._brokers.rebootstrap()

    # -- what is read

    def assign(
        self, positions: Sequence[TopicPartition], *, ends: Sequence[int] = (), columns: frozenset[str] | None = None
    ) -> None:
        self.unassign()
        self._decoders = Decoders(decoded_columns(columns), check=self._fetch.check)
        for number, each in enumerate(positions):
            end = ends[number] if ends else None
            read = ReadPartition(each.topic, each.partition, each.offset, end)
            self._partitions[read.place] = read
        self._turn.extend(self._partitions)

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            left = self._partitions.pop((each.topic, each.partition), None)
            if left is not None:
                left.clear(self._decoders)
                self._turn.remove(left.place)

    def unassign(self) -> None:
        for left in self._partitions.values():
            left.clear(self._decoders)
        self._partitions.clear()
        self._turn.clear()
        self._events.clear()
        self._rooms = {node: room for node, room in self._rooms.items() if len(room.memory) <= _KEPT_ROOM}

    def queues(self, places: Iterable[_Place]) -> NativeQueues:
        self._queued = True
        return NativeQueues(self)

    # -- reading

    @contextmanager
    def fetched(self, most: int, timeout: float) -> Iterator[Fetched]:
        until = time.monotonic() + timeout
        got = self._taken(most)
        while not (got.records or got.events):
            left = until - time.monotonic()
            woken = self._serve(max(0.0, left))
            got = self._taken(most)
            if woken or left <= 0:
                break
        yield got

    def _taken(self, most: int) -> Fetched:
        """Take what has come."""
        records: list[NativeRecords] = []
        events, self._events = self._events, []
        for place in [*self._turn]:
            if most <= 0:
                break
            read = self._partitions[place]
            if read.waiting:
                made, ended = read.take(most, self._decoders)
                records += made
                events += ended
                most -= sum(map(len, made))
        if records:
            self._troubles.clear()
        return Fetched(records, events)

    def taken_of(self, place: _Place | None, most: int) -> Fetched:
        """Take what has come of one partition; for None, events of none."""
        if place is None:
            events, self._events = self._events, []
            return Fetched([], events)
        read = self._partitions.get(place)
        made, ended = ([], []) if read is None else read.take(most, self._decoders)
        if made:
            self._troubles.clear()
        return Fetched(made, ended)

    def waiting(self, place: _Place) -> bool:
        read = self._partitions.get(place)
        return read is not None and read.waiting

    def wait(self, timeout: float) -> None:
        """Wait until something comes into an empty queue."""
        until = time.monotonic() + timeout
        self._came = bool(self._events)
        while True:
            left = until - time.monotonic()
            if self._serve(max(0.0, left)) or self._came or self._events or left <= 0:
                return

    def _serve(self, timeout: float) -> bool:
        """Fetch what is wanted, and wait until something happens. Return whether it was woken."""
        with as_kafka_errors():
            self._ask()
            return self._brokers.serve(min(timeout, self._until_due()))

    def _until_due(self) -> float:
        now = time.monotonic()
        return min((read.again - now for read in self._partitions.values() if read.again > now), default=3600.0)

    # -- fetching

    def _ask(self) -> None:
        """Send a fetch to each broker that has none and leads a partition that is wanted."""
        now = time.monotonic()
        wanted: dict[int, list[ReadPartition]] = {}
        for place in self._turn:
            read = self._partitions[place]
            if not read.wants(now, ahead=self._fetch.ahead) or not self._is_known(read, now):
                continue
            leader = self._brokers.leader(*place)
            if leader is None:
                self._brokers.refresh([read.topic])
                read.again = now + read.pauses.next()
            elif leader.node not in self._fetching:
                wanted.setdefault(leader.node, []).append(read)
        for node, reads in wanted.items():
            self._ask_broker(node, reads)

    def _ask_broker(self, node: int, reads: Sequence[ReadPartition]) -> None:
        wanted, ids = [], {}
        for read in reads:
            leader = self._brokers.leader(*read.place)
            assert leader is not None
            wanted.append(Wanted(read.topic, read.number, read.next, leader.epoch, read.epoch))
            ids[read.topic] = self._id(read.topic)
        request = FetchRequest(
            wanted,
            ids,
            self._fetch,
            room=lambda size: self._room(node, size),
            answered=lambda request, answer: self._answered(node, request, reads, answer),
            lost=lambda request, why: self._lost(node, request, reads),
        )
        self._fetching[node] = request
        for read in reads:
            read.asked = True
        if self._brokers.send(node, request):
            self._turn.rotate(-1)
        else:
            self._lost(node, request, reads)

    def _id(self, topic: str) -> uuid.UUID:
        known = self._brokers.topic(topic)
        return NO_ID if known is None else known.id

    def _is_known(self, read: ReadPartition, now: float) -> bool:
        """Return whether the partition's topic is known, and the one that it was; report if it is not."""
        topic = self._brokers.topic(read.topic)
        if topic is None:
            self._brokers.refresh([read.topic])
            return False
        if topic.error or read.number not in topic.leaders:
            self._refused(read, topic.error or KafkaError.UNKNOWN_TOPIC_OR_PART, "as metadata say", now)
            return False
        if read.topic_id not in (None, topic.id):
            why = (
                "the topic was deleted and recreated since its first records were read; nothing was read of the new one"
            )
            self._stop(read, _UNKNOWN_TOPIC_ID, why)
            return False
        return True

    def _room(self, node: int, size: int) -> memoryview:
        room = self._rooms.get(node)
        if room is None or room.pieces or len(room.memory) < size:
            room = self._rooms[node] = Room(memoryview(bytearray(max(_LEAST_ROOM, size + size // 4))))
        return room.memory

    def _lost(self, node: int, request: FetchRequest, reads: Sequence[ReadPartition]) -> None:
        """Note that a fetch has no answer."""
        if self._fetching.get(node) is request:
            del self._fetching[node]
        for read in reads:
            read.asked = False

    def _answered(self, node: int, request: FetchRequest, reads: Sequence[ReadPartition], answer: Answer) -> None:
        self._lost(node, request, reads)
        if answer.throttled_s:
            self.throttling.add(answer.throttled_s)
            if answer.mutes:
                self._brokers.mute(node, answer.throttled_s)
        now = time.monotonic()
        for read, each in zip(reads, request.wanted, strict=True):
            if self._partitions.get(read.place) is not read or read.next != each.offset or read.stopped:
                continue  # it was left, or assigned again, since then
            part = answer.parts.get(read.place)
            error = answer.error or (KafkaError.UNKNOWN_TOPIC_OR_PART if part is None else part.error)
            if error or part is None:
                self._refused(read, error, f"as broker {node} answered", now)
            elif part.diverged is not None:
                epoch, end = part.diverged
                self._stop(
                    read,
                    KafkaError._AUTO_OFFSET_RESET,
                    f"the log is not the one that was read: leader epoch {each.last_epoch} was read up to offset "
                    f"{each.offset}, and the leader's log has epoch {epoch} up to offset {end}",
                )
            else:
                self._take_in(node, read, part)
        self._ask()

    def _take_in(self, node: int, read: ReadPartition, part: Part) -> None:
        read.pauses.reset()
        read.heard = time.monotonic()
        read.unknown_since = None
        read.topic_id = read.topic_id or self._id(read.topic)
        found = scan(part.records, read.next)
        piece = Piece(
            records=part.records,
            start=read.next,
            aborted=part.aborted,
            stable=part.stable,
            next=found.next,
            epochs=found.epochs,
        )
        if self._queued:
            piece.records = bytes(part.records)
        elif len(part.records):
            piece.room = self._rooms[node]
            piece.room.pieces += 1
        was_empty = not read.waiting
        if read.came(piece):
            self._came |= was_empty
        else:
            piece.release()

    def _refused(self, read: ReadPartition, error: int, where: str, now: float) -> None:
        """Act on an error for a partition."""
        match meaning_of(error):
            case Meaning.GONE:
                self._stop(read, KafkaError._AUTO_OFFSET_RESET, f"offset {read.next} is out of range, {where}")
            case Meaning.FAIL:
                self._stop(read, error, where)
            case Meaning.UNKNOWN if read.unknown_since is not None and now - read.unknown_since > _UNKNOWN_S:
                self._stop(read, error, f"{where} for {_UNKNOWN_S:.0f} s")
            case meaning:
                if meaning is Meaning.UNKNOWN and read.unknown_since is None:
                    read.unknown_since = now
                read.again = now + read.pauses.next()
                if meaning is not Meaning.RETRY:
                    self._brokers.refresh([read.topic])
                self._trouble(f"{read.topic}-{read.number}: {KafkaError(error).str()}, {where}")

    def _stop(self, read: ReadPartition, code: int, why: str) -> None:
        read.stopped = True
        self._events.append(read.failed(code, why))

    def _trouble(self, why: str) -> None:
        if why not in self._troubles:
            self._troubles.add(why)
            self._events.append(Event(None, -1, -1, KafkaError(KafkaError._TRANSPORT, why)))

    # -- questions

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        return self._questions.watermarks(partition.topic, partition.partition, timeout)

    def known_end(self, topic: str, partition: int) -> int | None:
        read = self._partitions.get((topic, partition))
        return None if read is None else read.known_end

    def positions(self, places: Sequence[_Place]) -> list[tuple[int, int | None]]:
        nothing = OFFSET_INVALID, None
        reads = [self._partitions.get(place) for place in places]
        return [nothing if read is None or read.passed is None else read.passed for read in reads]

    def topic_error(self, topic: str, timeout: float) -> KafkaError | None:
        return self._questions.topic_error(topic, timeout)

    # -- from outside

    def wake(self) -> None:
        self._brokers.wake()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.unassign()
            self._brokers.close()
