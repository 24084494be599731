"""NativeProducer: writes record batches by Produce. Runs on executors.

It has no thread: it sends and receives within its calls. Its connections outlive it (`session.py`), so that a
transaction costs the requests that it needs and nothing else.

In doubt it stops, and the slot fails: what is written belongs to one transaction, which is aborted and written again.
Only what leaders cannot take at the moment, and what a broken connection leaves open, is sent again, with the same
sequence.
"""

import itertools
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from onceward.connections.sockets.brokers import Brokers
from onceward.connections.sockets.coordinators import Coordinated, CoordinatorOf, Kind
from onceward.connections.sockets.errors import as_kafka_errors
from onceward.sinks.kafka.client.interface import GroupOffset, UnfitRecordError
from onceward.sinks.kafka.client.native.columns import encodable
from onceward.sinks.kafka.client.native.meanings import Meaning, meaning_of
from onceward.sinks.kafka.client.native.outgoing import Outgoing
from onceward.sinks.kafka.client.native.producing import Produced, ProduceRequest, Sending
from onceward.sinks.kafka.client.native.session import Session
from onceward.sinks.kafka.client.native.settings import ProduceSettings
from onceward.sinks.kafka.client.native.transacting import (
    NO_ONE,
    AddOffsets,
    AddPartitions,
    CommitOffset,
    EndTransaction,
    InitProducerId,
    NewProducerId,
)
from onceward_native import Batch, Encoder, RecordTooLargeError, WrongPartitionError
from onceward_native import UnfitRecordError as NativeUnfitError

__all__ = ["NativeProducer"]

_FRESH_S: Final = 1.0
"""Metadata older than this are asked for again before a producer writes: topics get more partitions."""
_MISSING_S: Final = 5.0
"""A partition that metadata do not have may be new, and its broker may not know it yet."""
_REQUEST_BYTES: Final = 8 << 20
"""A request has more only if it has one batch."""
_SLICE_S: Final = 0.5


class NativeProducer:
    """A :class:`Producer`."""

    slow_to_make = False

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        topics: Sequence[str],
        failed: Callable[[KafkaError], object],
        logger: logging.Logger,
    ) -> None:
        """As :class:`ArrowProducer`; of ``config``, nothing is unfollowed."""
        self.accepted = 0
        self.partitions: dict[str, set[int]] = {}
        self._confirmed = 0
        self._settings = ProduceSettings.of(config)
        self._topics, self._failed = topics, failed
        self._session = Session.take(config, logger)
        self._producer = NO_ONE
        self._encoders: dict[str, tuple[Encoder, Iterator[int]]] = {}
        """By topic; each with the partition that the keyless records of the next batch go to."""
        self._outgoing: dict[tuple[str, int], Outgoing] = {}
        self._missing: dict[tuple[str, int], float] = {}
        """Since when metadata do not have a partition (monotonic)."""
        self._in_flight: dict[int, int] = {}
        """Produce requests without an answer, by broker."""
        self._adding: AddPartitions | None = None
        self._offset_sent = False
        self._open_since: float | None = None
        """When the oldest record came that is in no ended batch."""
        self._stopped: KafkaError | None = None
        """Why nothing more is sent."""
        self._lost = False
        """Whether the session cannot be used any more."""

    def __len__(self) -> int:
        return self.accepted - self._confirmed

    @property
    def _brokers(self) -> Brokers:
        return self._session.brokers

    def rebootstrap(self) -> None:
        self._brokers.rebootstrap()

    # -- before the first record

    def load_metadata(self, timeout: float) -> None:
        now = time.monotonic()
        stale = {*self._brokers.unheard(self._topics, now - _FRESH_S), *filter(self._is_unclear, self._topics)}
        self._brokers.refresh(stale)
        self._wait(lambda: not self._brokers.unheard(stale, now), timeout, "no broker answered")
        if self._settings.identifier is None and self._producer == NO_ONE:
            self._take_new_id(timeout)

    def _is_unclear(self, topic: str) -> bool:
        known = self._brokers.topic(topic)
        return known is None or bool(known.error) or not known.leaders

    def partitions_of(self, topic: str) -> int | None:
        known = self._brokers.topic(topic)
        return None if known is None or known.error or not known.leaders else len(known.leaders)

    def _take_new_id(self, timeout: float) -> None:
        request = NewProducerId()

        def answered() -> bool:
            if request.code is None and not request.sent:
                request.sent = True
                request.sent = self._brokers.send_any(request) and request.sent
            return request.code is not None

        self._wait(answered, timeout, "no broker gave a producer's id")
        if request.code:
            raise KafkaException(KafkaError(request.code))
        self._producer = request.producer

    def init_transactions(self, timeout: float) -> None:
        request = InitProducerId(self._identifier, self._settings.transaction_ms)
        self._ask(request, timeout)
        self._producer = request.producer

    def begin_transaction(self) -> None:
        if self._stopped is not None:
            raise KafkaException(self._stopped)

    @property
    def _identifier(self) -> str:
        assert self._settings.identifier is not None, "the producer has a transactional id"
        return self._settings.identifier

    # -- records

    def produce(self, topic: str, records: pa.RecordBatch, full: Callable[[], None]) -> None:
        self.begin_transaction()
        encoder, keyless = self._encoder(topic)
        now = time.monotonic()
        try:
            ended = encoder.add(encodable(records), keyless=next(keyless))
        except RecordTooLargeError as error:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, str(error))) from None
        except WrongPartitionError as error:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION, str(error))) from None
        except NativeUnfitError as error:
            raise UnfitRecordError(str(error)) from None
        self.accepted += records.num_rows
        used = self.partitions.setdefault(topic, set())
        for batch in ended:
            used.add(batch.partition)
            self._add(topic, batch)
        for number in encoder.open_partitions():
            used.add(number)
            self._outgoing_of(topic, number)
        if self._open_since is None:
            self._open_since = now

    def _encoder(self, topic: str) -> tuple[Encoder, Iterator[int]]:
        made = self._encoders.get(topic)
        if made is None:
            known = self._brokers.topic(topic)
            if known is None or known.error or not known.leaders:
                code = KafkaError.LEADER_NOT_AVAILABLE if known is not None else KafkaError._UNKNOWN_TOPIC
                raise KafkaException(KafkaError(known.error if known is not None and known.error else code))
            encoder = Encoder(
                max(known.leaders) + 1,
                most_bytes=max(self._settings.most_bytes, self._settings.batch_bytes),
                usual_bytes=self._settings.batch_bytes,
                compression=self._settings.compression,
                level=self._settings.level,
                transactional=self._settings.identifier is not None,
            )
            encoder.begin(*self._producer)
            made = self._encoders[topic] = encoder, self._keyless(topic)
        return made

    def _keyless(self, topic: str) -> Iterator[int]:
        """Yield the partition for the records without a key of each batch: as in Java's producers, the next one, and
        only partitions that have a leader, if there are such."""
        known = self._brokers.topic(topic)
        assert known is not None
        numbers = sorted(known.leaders)
        led = [number for number in numbers if known.leaders[number].node >= 0] or numbers
        first = secrets.randbelow(len(led))
        return itertools.cycle([*led[first:], *led[:first]])

    def _outgoing_of(self, topic: str, number: int) -> Outgoing:
        found = self._outgoing.get((topic, number))
        if found is None:
            found = self._outgoing[topic, number] = Outgoing(topic, number)
            found.added = self._settings.identifier is None
        return found

    def _add(self, topic: str, batch: Batch) -> None:
        self._outgoing_of(topic, batch.partition).add(batch)

    def _end_batches(self) -> None:
        self._open_since = None
        for topic, (encoder, _) in self._encoders.items():
            for batch in encoder.take():
                self._add(topic, batch)

    # -- sending

    def poll(self, timeout: float) -> None:
        if self._open_since is not None and time.monotonic() - self._open_since >= self._settings.linger_s:
            self._end_batches()
        self._serve(timeout)

    def flush(self, timeout: float) -> int:
        self._end_batches()
        until = time.monotonic() + timeout
        while len(self) and (left := until - time.monotonic()) > 0:
            self._serve(left)
        self._serve(0)
        return len(self)

    def purge(self) -> None:
        self._stop(KafkaError(KafkaError._PURGE_QUEUE))

    def _serve(self, timeout: float) -> None:
        """Send what can be sent, and wait until something happens. Raises KafkaException after a fatal error."""
        self._refuse_fatal()
        try:
            with as_kafka_errors():
                if self._stopped is None:
                    self._send()
                self._session.serve(min(timeout, self._until_due()))
        except KafkaException as error:
            self._lost = True
            self._stop(error.args[0])
            raise
        self._refuse_fatal()

    def _refuse_fatal(self) -> None:
        if self._stopped is not None and self._stopped.fatal():
            raise KafkaException(self._stopped)

    def _until_due(self) -> float:
        now = time.monotonic()
        return min((each.again - now for each in self._outgoing.values() if each.again > now), default=3600.0)

    def _send(self) -> None:
        if self._adding is not None:
            if self._adding.done:
                self._added(self._adding)
            elif self._adding.code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                self._brokers.refresh({topic for topic, _ in self._adding.places})
        self._add_partitions()
        now = time.monotonic()
        wanted: dict[int, list[Outgoing]] = {}
        for outgoing in self._outgoing.values():
            if not self._exists(outgoing, now) or not outgoing.wants(now):
                continue
            leader = self._brokers.leader(*outgoing.place)
            if leader is None:
                self._brokers.refresh([outgoing.topic])
            elif not outgoing.flying or outgoing.node == leader.node:
                wanted.setdefault(leader.node, []).append(outgoing)
        for node, outgoings in wanted.items() if self._stopped is None else ():
            while self._in_flight.get(node, 0) < self._settings.in_flight:
                if not self._send_to(node, [each for each in outgoings if each.wants(now)]):
                    break

    def _exists(self, outgoing: Outgoing, now: float) -> bool:
        """Return whether the topic has the partition; stop if it does not for a while. A topic may have been created
        again, with fewer."""
        known = self._brokers.topic(outgoing.topic)
        if known is not None and not known.error and outgoing.number in known.leaders:
            self._missing.pop(outgoing.place, None)
            return True
        self._brokers.refresh([outgoing.topic])
        if now - self._missing.setdefault(outgoing.place, now) > _MISSING_S:
            self._stop(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, f"there is no partition {outgoing.place}"))
        return False

    def _send_to(self, node: int, outgoings: Sequence[Outgoing]) -> bool:
        """Send the next batch of as many partitions as a request takes. Return whether there was one to send."""
        chosen: list[Outgoing] = []
        size = 0
        for outgoing in outgoings:
            size += outgoing.next().data.size
            if chosen and size > _REQUEST_BYTES:
                break
            chosen.append(outgoing)
        if not chosen:
            return False
        request = ProduceRequest(
            [Sending(each.topic, each.next()) for each in chosen],
            identifier=self._settings.identifier,
            timeout_ms=self._settings.replicas_ms,
            answered=lambda request, answer: self._answered(node, request, answer),
            lost=lambda request, why: self._not_answered(node, request, why),
        )
        # Both before the request is sent: it may be lost at once.
        self._in_flight[node] = self._in_flight.get(node, 0) + 1
        for each in chosen:
            each.sent(node)
        if not self._brokers.send(node, request):
            self._in_flight[node] -= 1
            for each in chosen:
                each.unsent()
            return False
        return True

    def _answered(self, node: int, request: ProduceRequest, answer: Produced) -> None:
        self._in_flight[node] -= 1
        if answer.throttled_s and answer.mutes:
            self._brokers.mute(node, answer.throttled_s)
        for topic, batch in request.batches:
            part = answer.parts[topic, batch.partition]
            self._settle(topic, batch, meaning_of(part.error), part.error, part.reason)

    def _not_answered(self, node: int, request: ProduceRequest, why: str) -> None:
        self._in_flight[node] -= 1
        for topic, batch in request.batches:
            self._settle(topic, batch, Meaning.MOVED, KafkaError._TRANSPORT, why)

    def _settle(self, topic: str, batch: Batch, meaning: Meaning, code: int, reason: str) -> None:
        """Note what is known of a batch that was sent."""
        if self._stopped is not None:
            return
        if meaning is Meaning.MOVED:
            self._brokers.refresh([topic])
        confirmed = self._outgoing[topic, batch.partition].answered(batch, meaning, time.monotonic())
        if confirmed is not None:
            self._confirmed += confirmed
        elif meaning is Meaning.FENCED:
            self._stop(KafkaError(KafkaError._FENCED, reason or KafkaError(code).str(), fatal=True))
        else:
            error = KafkaError(code, reason) if reason else KafkaError(code)
            for _ in range(batch.records):
                self._failed(error)
            self._confirmed += batch.records
            self._stop(error)

    def _stop(self, error: KafkaError) -> None:
        """Send nothing more, and report what is not confirmed as dropped."""
        if self._stopped is not None:
            return
        self._stopped = error
        self._session.coordinators.give_up()
        dropped = KafkaError(KafkaError._PURGE_QUEUE)
        for _ in range(len(self)):
            self._failed(dropped)
        self._confirmed = self.accepted

    # -- the transaction

    def _add_partitions(self) -> None:
        """Add partitions that have records, one request at a time."""
        if self._adding is not None or self._stopped is not None or self._settings.identifier is None:
            return
        places = [each.place for each in self._outgoing.values() if not each.added]
        if places:
            self._adding = AddPartitions(self._identifier, self._producer, places)
            self._session.coordinators.ask(self._adding)

    def _added(self, request: AddPartitions) -> None:
        self._adding = None
        if request.error is not None:
            self._stop(_of_transaction(request.error))
            return
        for place in request.places:
            self._outgoing[place].added = True

    def send_offset(self, offset: GroupOffset, timeout: float) -> "_OffsetOnItsWay":
        self._offset_sent = True
        return _OffsetOnItsWay(self, offset, timeout)

    def abort_transaction(self, timeout: float) -> None:
        until = time.monotonic() + timeout
        began = bool(self._outgoing) or self._offset_sent
        self._stop(KafkaError(KafkaError._PURGE_QUEUE))
        self._wait(lambda: not self._awaits, timeout, "a request of the transaction was not answered")
        if began:
            self._ask(EndTransaction(self._identifier, self._producer), until - time.monotonic())

    @property
    def _awaits(self) -> bool:
        """Whether an answer is awaited."""
        return any(self._in_flight.values()) or not self._session.coordinators.idle

    # -- inside

    def _ask(self, request: Coordinated, timeout: float) -> None:
        """Ask a coordinator. Raises KafkaException."""
        self._session.coordinators.ask(request)
        self._wait(lambda: request.done, timeout, f"{request.api.name} was not answered")
        if request.error is not None:
            raise KafkaException(_of_transaction(request.error))

    def _wait(self, done: Callable[[], bool], timeout: float, otherwise: str) -> None:
        """Serve until ``done``. Raises KafkaException."""
        until = time.monotonic() + timeout
        while not done():
            left = until - time.monotonic()
            if left <= 0:
                self._lost = True
                why = f"{otherwise} in {timeout:g} s"
                trouble = self._session.trouble
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{why} ({trouble})" if trouble else why))
            try:
                with as_kafka_errors():
                    self._session.serve(min(left, _SLICE_S))
            except KafkaException:
                self._lost = True
                raise

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is None:
            return
        if self._lost or self._awaits or self._stopped is not None:
            session.close()
        else:
            session.give_back()


class _OffsetOnItsWay:
    """An offset that is committed in a transaction: added first, then written."""

    def __init__(self, producer: NativeProducer, offset: GroupOffset, timeout: float) -> None:
        self._producer = producer
        self._until = time.monotonic() + timeout
        identifier, number = producer._identifier, producer._producer
        self._steps: list[Coordinated] = [
            AddOffsets(identifier, number, offset.group),
            CommitOffset(
                identifier, number, offset.group, (offset.topic, offset.partition), offset.offset, offset.metadata
            ),
        ]
        producer._session.coordinators.find(CoordinatorOf(Kind.GROUP, offset.group))
        producer._session.coordinators.ask(self._steps[0])
        producer._session.coordinators.ask(self._steps[1], after=self._steps[0])

    def join(self) -> None:
        """Aborting waits for answers by itself."""

    def result(self) -> None:
        left = max(0.0, self._until - time.monotonic())
        self._producer._wait(
            lambda: any(each.error for each in self._steps) or self._steps[-1].done, left, "the offset"
        )
        for step in self._steps:
            if step.error is not None:
                raise KafkaException(_of_transaction(step.error))


def _of_transaction(error: KafkaError) -> KafkaError:
    """Mark the errors after which nothing can be done under the id."""
    if error.code() in (KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED):
        return KafkaError(KafkaError._FENCED, error.str(), fatal=True)
    return error
