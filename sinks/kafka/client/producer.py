"""ArrowProducer: a producer of librdkafka that takes Arrow batches. Runs on executors.

It raises and reports confluent-kafka's errors: KafkaException with a KafkaError, which says whether it is fatal, can be
retried, or requires an abort. It differs from confluent-kafka's own Producer in two points:

- the library drops the reports of delivered records (``delivery.report.only.error``); confluent-kafka takes the
  interpreter's lock for each of them;
- once the client has a fatal error (``rd_kafka_fatal_error``), every `poll` and `flush` raises.

Dropping the last reference destroys the client and leaves an open transaction open: nothing is aborted.
"""

import ctypes
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from onceward.connections.rdkafka.client import (
    PRODUCER,
    TEXT_BYTES,
    Callbacks,
    Rebootstrap,
    check,
    ms,
    new_client,
    released,
    topic_partitions,
)
from onceward.connections.rdkafka.library import COPY, PURGE_ALL, Metadata, lib, raise_error
from onceward.sinks.kafka.client.interface import GroupOffset
from onceward.sinks.kafka.client.messages import Partitioning, argument_lists, by_partition, column_of
from onceward.sinks.kafka.client.pending import InThread

__all__ = ["ArrowProducer"]

_ANSWERS = 5
"""At most this many metadata requests: two are enough, unless connections break meanwhile."""
_LOOK_MS = 2
"""Poll interval of `flush`. Deliveries are not reported, so the client must check whether all are done; by itself it
checks every 10 ms, which is as long as a small transaction takes in total."""


class ArrowProducer:
    """A :class:`Producer`: one client with its threads and connections."""

    slow_to_make = True

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        topics: Sequence[str],
        failed: Callable[[KafkaError], object],
        logger: logging.Logger,
    ) -> None:
        """``config``: librdkafka's properties. ``topics``: every topic that it will write to. ``failed`` is called for
        each record that could not be delivered, during `poll` and `flush`. Raises KafkaException if librdkafka rejects
        the configuration."""
        self.accepted = 0
        """Records that the client accepted since it was created."""
        self.partitions: dict[str, set[int]] = {}
        """By topic, the partitions of those records, and of records that the client refused."""
        callbacks = Callbacks.of(logger, _reporting(failed))
        self._client = new_client(PRODUCER, {**config, "delivery.report.only.error": True}, callbacks)
        self.rebootstrap = Rebootstrap(self._client, config)
        """For a producer whose records are not being delivered."""
        self._topics: dict[str, int] = {}
        """Topic handles."""
        released(self, _destroy, self._client, self._topics, callbacks)
        for topic in topics:
            self._topics[topic] = self._handle(topic)
        self._places: dict[str, Iterator[Partitioning] | KafkaError] = {}
        """Per topic, the places for successive batches; or why the brokers do not report its partitions."""

    def __len__(self) -> int:
        """Return the number of undelivered records and of reports that `poll` or `flush` has not yet served."""
        return int(lib.outq_len(self._client))

    def load_metadata(self, timeout: float) -> None:
        """Load the topics' partitions from the brokers, before any other request. Raises KafkaException.

        The client drops its connection to a bootstrap server once it knows the brokers, and `init_transactions` waits
        for half a second if there is no other connection. Therefore this repeats the request until a broker answers on
        a connection that lasts."""
        ends = time.monotonic() + timeout
        for _ in range(_ANSWERS):
            found = ctypes.POINTER(Metadata)()
            left = max(0.0, ends - time.monotonic())
            # only topics that the client has handles of, not all topics of the cluster
            check(lib.metadata(self._client, 0, None, ctypes.byref(found), ms(left)))
            try:
                said = found.contents
                self._places = {each.topic.decode(): _places(each) for each in said.topics[: said.topic_cnt]}
                if said.orig_broker_id >= 0:
                    return
            finally:
                lib.metadata_destroy(found)

    def partitions_of(self, topic: str) -> int | None:
        """Return how many partitions ``topic`` had when the metadata was loaded; None if that is not known."""
        known = self._places.get(topic)
        return None if known is None or isinstance(known, KafkaError) else next(known).partitions

    def init_transactions(self, timeout: float) -> None:
        """Take over the transactional id and abort its open transaction. Raises KafkaException."""
        raise_error(lib.init_transactions(self._client, ms(timeout)))

    def begin_transaction(self) -> None:
        """Begin locally: the brokers learn of it with the first record. Raises KafkaException."""
        raise_error(lib.begin_transaction(self._client))

    def abort_transaction(self, timeout: float) -> None:
        """Drop undelivered records and abort the transaction at the brokers. Raises KafkaException."""
        raise_error(lib.abort_transaction(self._client, ms(timeout)))

    def produce(self, topic: str, records: pa.RecordBatch, full: Callable[[], None]) -> None:
        """Hand all ``records`` to the client, in order within each partition.

        ``records`` has the sink's columns: ``value`` and optionally ``key``, ``partition``, ``timestamp`` and
        ``headers``; partitions are not negative. ``full`` is called while the client's queue is full: it waits, or
        raises to give up. Raises KafkaException if a record is refused, UnfitRecordError if one cannot be written at
        all; some of the others may have been taken by then.
        """
        used = self.partitions.setdefault(topic, set())
        if any(column_of(records, name) is not None for name in ("headers", "timestamp")):
            used |= self._one_by_one(topic, records, full)
        else:
            for partition, messages in by_partition(records, self._next_places(topic)):
                used.add(partition)
                self._together(topic, partition, messages, full)

    def poll(self, timeout: float) -> None:
        """Serve reports and log lines for up to ``timeout`` s. Raises KafkaException after a fatal error."""
        lib.poll(self._client, ms(timeout))
        self._refuse_broken()

    def flush(self, timeout: float) -> int:
        """Wait for delivery; return the number of undelivered records. Raises KafkaException after a fatal error."""
        ends = time.monotonic() + timeout
        while lib.flush(self._client, _LOOK_MS) and time.monotonic() < ends:
            pass
        self._refuse_broken()
        return len(self)

    def purge(self) -> None:
        """Drop undelivered records; each is reported as failed."""
        check(lib.purge(self._client, PURGE_ALL))

    def send_offset(self, offset: GroupOffset, timeout: float) -> InThread:
        return InThread(lambda: self.commit_offset(offset, timeout))

    def commit_offset(self, offset: GroupOffset, timeout: float) -> None:
        """Commit an offset in the transaction. Raises KafkaException."""
        position = TopicPartition(offset.topic, offset.partition, offset.offset, metadata=offset.metadata)
        members = lib.consumer_group_metadata_new(offset.group.encode())
        try:
            with topic_partitions([position]) as offsets:
                raise_error(lib.send_offsets_to_transaction(self._client, offsets, members, ms(timeout)))
        finally:
            lib.consumer_group_metadata_destroy(members)

    # -- inside

    def _handle(self, topic: str) -> int:
        handle = lib.topic_new(self._client, topic.encode(), None)
        if not handle:
            raise KafkaException(KafkaError(lib.last_error(), f"topic {topic!r} cannot be used"))
        return int(handle)

    def _next_places(self, topic: str) -> Partitioning:
        known = self._places.get(topic)
        if known is None or isinstance(known, KafkaError):
            raise KafkaException(known or KafkaError(KafkaError._UNKNOWN_TOPIC))
        return next(known)

    def _together(self, topic: str, partition: int, messages: Any, full: Callable[[], None]) -> None:
        handle = self._topics[topic]
        while len(messages):
            taken = lib.produce_batch(handle, partition, COPY, messages.ctypes.data, len(messages))
            self.accepted += taken
            refused = messages["err"]
            for code in refused[(refused != 0) & (refused != KafkaError._QUEUE_FULL)][:1].tolist():
                raise KafkaException(KafkaError(code))
            # Once the queue is full for a record, the client takes none after it: the rest is a suffix.
            messages = messages[taken:]
            if len(messages):
                full()

    def _one_by_one(self, topic: str, records: pa.RecordBatch, full: Callable[[], None]) -> Set[int]:
        """Return the partitions of the records."""
        made = argument_lists(self._topics[topic], records, self._next_places(topic))
        client, call = self._client, lib.produceva
        for first, count in zip(made.firsts, made.counts, strict=True):
            while error := call(client, first, count):
                try:
                    raise_error(error)
                except KafkaException as refused:
                    if refused.args[0].code() != KafkaError._QUEUE_FULL:
                        raise
                full()
            self.accepted += 1
        return made.partitions

    def _refuse_broken(self) -> None:
        if lib.fatal_error(self._client, None, 0):
            text = ctypes.create_string_buffer(TEXT_BYTES)
            code = lib.fatal_error(self._client, text, TEXT_BYTES)
            raise KafkaException(KafkaError(code, text.value.decode(errors="replace"), fatal=True))


def _destroy(client: int, topics: dict[str, int], _callbacks: object) -> None:
    """Destroy the client and drop undelivered records. The callbacks must live until then."""
    for handle in topics.values():
        lib.topic_destroy(handle)
    lib.destroy(client)


def _places(topic: Any) -> Iterator[Partitioning] | KafkaError:
    """Yield places from the metadata of ``topic``. As in Java's and the client's own producers, all keyless records of
    a batch go to one partition, those of the next batch to the next; a partition without a leader is skipped if another
    has one."""
    count = topic.partition_cnt
    if topic.err or not count:
        return KafkaError(topic.err or KafkaError.LEADER_NOT_AVAILABLE)
    parts = topic.partitions[:count]
    led = [part.id for part in parts if part.leader >= 0] or [part.id for part in parts]
    first = secrets.randbelow(len(led))
    return (Partitioning(count, keyless) for keyless in itertools.cycle([*led[first:], *led[:first]]))


def _reporting(failed: Callable[[KafkaError], object]) -> Callable[[int, int, int], None]:
    def report(_client: int, message: int, _opaque: int) -> None:
        if code := ctypes.c_int.from_address(message).value:  # the first member of a message
            failed(KafkaError(code))

    return report
