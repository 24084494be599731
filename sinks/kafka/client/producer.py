"""ArrowProducer: a producer of librdkafka that takes Arrow batches. Runs on executors.

What it raises and reports is confluent-kafka's: KafkaException with a KafkaError, which says whether it is fatal, may
be tried again, or asks for an abort. Unlike confluent-kafka's own Producer it

- lets the library drop the reports of delivered records (``delivery.report.only.error``), where confluent-kafka takes
  the interpreter's lock for each of them;
- raises in `poll` and `flush`, now and ever after, once the client cannot go on (``rd_kafka_fatal_error``).

When the last reference goes the client goes, and an open transaction stays as it is: nothing is aborted.
"""

import ctypes
import logging
import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sinks.kafka.client.library import (
    COPY,
    DELIVERED,
    ERRED,
    LOGGED,
    PURGE_ALL,
    Metadata,
    lib,
    raise_error,
)
from sinks.kafka.client.messages import argument_lists, by_partition, column_of

__all__ = ["ArrowProducer"]

_PRODUCER = 0
"""RD_KAFKA_PRODUCER"""
_TEXT_BYTES = 512
_LOOK_MS = 2
"""While it flushes. Deliveries are not reported, so the client must look whether all are over; by itself it does so
every 10 ms, which is as long as a small transaction takes in all."""
_LEVELS = (*[logging.CRITICAL] * 3, logging.ERROR, logging.WARNING, logging.INFO, logging.INFO, logging.DEBUG)
"""Of syslog's 0 to 7."""


class ArrowProducer:
    """One client with its threads and connections. Not for several threads at once."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        topics: Sequence[str],
        failed: Callable[[KafkaError], object],
        logger: logging.Logger,
    ) -> None:
        """``config``: librdkafka's properties. ``topics``: whose partitions `load_metadata` asks for. ``failed`` is
        called for each record that could not be delivered, within `poll` and `flush`. Raises KafkaException when the
        configuration is refused."""
        self.accepted = 0
        """Records that the client took, since it was made."""
        # The callbacks know nothing of this object: it must go when its last reference goes.
        callbacks = (DELIVERED(_reporting(failed)), ERRED(_ignored), LOGGED(_logging(logger)))
        self._client = _made({**config, "delivery.report.only.error": True, "log.queue": True}, callbacks)
        self._names = {topic.encode(): topic for topic in topics}
        self._topics: dict[str, int] = {}
        """Handles, made when they are needed first: with handles made before, `init_transactions` now and then missed
        what it waits for and took half a second."""
        self._counts: dict[str, int] = {}
        weakref.finalize(self, _destroy, self._client, self._topics, callbacks).atexit = False

    def __len__(self) -> int:
        """Records that wait to be delivered, and what is reported and not yet seen by `poll` or `flush`."""
        return int(lib.outq_len(self._client))

    def load_metadata(self, timeout: float) -> None:
        """Ask a broker for the topics' partitions; without it the client's partitioner places every record. Raises
        KafkaException."""
        found = ctypes.POINTER(Metadata)()
        _check(lib.metadata(self._client, 1, None, ctypes.byref(found), _ms(timeout)))
        try:
            said = found.contents
            listed = (said.topics[index] for index in range(said.topic_cnt))
            self._counts = {self._names[each.topic]: each.partition_cnt for each in listed if each.topic in self._names}
        finally:
            lib.metadata_destroy(found)

    def init_transactions(self, timeout: float) -> None:
        """Take the transactional id over, aborting what is open under it. Raises KafkaException."""
        raise_error(lib.init_transactions(self._client, _ms(timeout)))

    def begin_transaction(self) -> None:
        """Local: the brokers learn of it with the first record. Raises KafkaException."""
        raise_error(lib.begin_transaction(self._client))

    def abort_transaction(self, timeout: float) -> None:
        """Drop what waits and abort what the brokers know of. Raises KafkaException."""
        raise_error(lib.abort_transaction(self._client, _ms(timeout)))

    def produce(self, topic: str, records: pa.RecordBatch, full: Callable[[], None]) -> None:
        """Hand all ``records`` to the client, those of one partition in their order.

        ``records``: ``value`` and, where they are given, ``key``, ``partition``, ``timestamp`` and ``headers``, as the
        sink's columns are; partitions are not negative. ``full`` is called while the client's queue has no room: it
        waits, or raises to end it. Raises KafkaException when a record is refused, UnfitRecordError when one cannot be
        written at all; then some of the others may have been taken.
        """
        if any(column_of(records, name) is not None for name in ("headers", "timestamp")):
            self._one_by_one(topic, records, full)
        else:
            for partition, messages in by_partition(records, self._counts.get(topic, 0)):
                self._together(topic, partition, messages, full)

    def poll(self, timeout: float) -> None:
        """Serve reports and the log, for so long at most. Raises KafkaException when the client cannot go on."""
        lib.poll(self._client, _ms(timeout))
        self._refuse_broken()

    def flush(self, timeout: float) -> int:
        """Wait until nothing waits; how many still do. Raises KafkaException when the client cannot go on."""
        ends = time.monotonic() + timeout
        while lib.flush(self._client, _LOOK_MS) and time.monotonic() < ends:
            pass
        self._refuse_broken()
        return len(self)

    def purge(self) -> None:
        """Drop what waits; each record is reported as failed."""
        _check(lib.purge(self._client, PURGE_ALL))

    def send_offsets_to_transaction(self, group: str, positions: Sequence[TopicPartition], timeout: float) -> None:
        """Commit ``positions`` for ``group``, which has no members, with the transaction. Raises KafkaException."""
        members = lib.consumer_group_metadata_new(group.encode())
        offsets = lib.topic_partition_list_new(len(positions))
        try:
            for position in positions:
                added = lib.topic_partition_list_add(offsets, position.topic.encode(), position.partition).contents
                added.offset = position.offset
                if position.metadata:
                    text = position.metadata.encode()
                    added.metadata = lib.mem_malloc(None, len(text))  # freed with the list
                    added.metadata_size = len(text)
                    ctypes.memmove(added.metadata, text, len(text))
            raise_error(lib.send_offsets_to_transaction(self._client, offsets, members, _ms(timeout)))
        finally:
            lib.topic_partition_list_destroy(offsets)
            lib.consumer_group_metadata_destroy(members)

    # -- inside

    def _topic(self, name: str) -> int:
        """The topic's handle, made when it is needed first."""
        if name not in self._topics:
            handle = lib.topic_new(self._client, name.encode(), None)
            if not handle:
                raise KafkaException(KafkaError(lib.last_error(), f"topic {name!r} cannot be used"))
            self._topics[name] = handle
        return self._topics[name]

    def _together(self, topic: str, partition: int, messages: Any, full: Callable[[], None]) -> None:
        handle = self._topic(topic)
        while len(messages):
            taken = lib.produce_batch(handle, partition, COPY, messages.ctypes.data, len(messages))
            self.accepted += taken
            refused = messages["err"]
            for code in refused[(refused != 0) & (refused != KafkaError._QUEUE_FULL)][:1].tolist():
                raise KafkaException(KafkaError(code))
            # Once the queue is full for one, the client takes none that follows it: what is left is the end.
            messages = messages[taken:]
            if len(messages):
                full()

    def _one_by_one(self, topic: str, records: pa.RecordBatch, full: Callable[[], None]) -> None:
        made = argument_lists(self._topic(topic), records, self._counts.get(topic, 0))
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

    def _refuse_broken(self) -> None:
        if lib.fatal_error(self._client, None, 0):
            text = ctypes.create_string_buffer(_TEXT_BYTES)
            code = lib.fatal_error(self._client, text, _TEXT_BYTES)
            raise KafkaException(KafkaError(code, text.value.decode(errors="replace"), fatal=True))


def _made(config: Mapping[str, Any], callbacks: tuple[Any, Any, Any]) -> int:
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    conf = lib.conf_new()
    try:
        for key, value in config.items():
            said = str(value).lower() if isinstance(value, bool) else str(value)
            if lib.conf_set(conf, key.encode(), said.encode(), text, _TEXT_BYTES):
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text.value.decode(errors="replace")))
        delivered, erred, logged = callbacks
        lib.conf_set_dr_msg_cb(conf, delivered)
        lib.conf_set_error_cb(conf, erred)
        lib.conf_set_log_cb(conf, logged)
        client = lib.new(_PRODUCER, conf, text, _TEXT_BYTES)
        if not client:
            raise KafkaException(KafkaError(lib.last_error(), text.value.decode(errors="replace")))
    except BaseException:
        lib.conf_destroy(conf)
        raise
    lib.set_log_queue(client, None)  # the log is handed over by `poll` and `flush`, in the caller's thread
    return int(client)


def _destroy(client: int, topics: dict[str, int], _callbacks: object) -> None:
    """What waits is dropped. The callbacks must live until then."""
    for handle in topics.values():
        lib.topic_destroy(handle)
    lib.destroy(client)


def _reporting(failed: Callable[[KafkaError], object]) -> Callable[[int, int, int], None]:
    def report(_client: int, message: int, _opaque: int) -> None:
        if code := ctypes.c_int.from_address(message).value:  # the first member of a message
            failed(KafkaError(code))

    return report


def _ignored(*_: object) -> None:
    """What must not be missed is asked for (fatal errors) or reported (records); the log has the rest."""


def _logging(logger: logging.Logger) -> Callable[[int, int, bytes, bytes], None]:
    def log(client: int, level: int, facility: bytes, line: bytes) -> None:
        name = lib.name(client) or b""
        text = (part.decode(errors="replace") for part in (facility, name, line))
        logger.log(_LEVELS[min(level, len(_LEVELS) - 1)], "%s [%s] %s", *text)

    return log


def _check(code: int) -> None:
    if code:
        raise KafkaException(KafkaError(code))


def _ms(seconds: float) -> int:
    return math.ceil(seconds * 1000)
