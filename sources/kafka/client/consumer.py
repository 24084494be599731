"""ArrowConsumer: a consumer of librdkafka that reads ranges without a Python object per record. Runs on executors."""

import ctypes
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import confluent_kafka
import numpy as np
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from onceward.common.printable import logger
from onceward.connections.rdkafka.client import (
    CONSUMER,
    Callbacks,
    Rebootstrap,
    check,
    ms,
    new_client,
    released,
    topic_partitions,
)
from onceward.connections.rdkafka.library import Metadata, TopicPositions, lib, raise_error
from onceward.sources.kafka.client.fetched import fetched
from onceward.sources.kafka.client.interface import Fetched, Throttling

if TYPE_CHECKING:
    from onceward.sources.kafka.client.queues import PartitionQueues

__all__ = ["ArrowConsumer", "slow_release"]

_LOGGER = logger("onceward.kafka")
_WORD = ctypes.sizeof(ctypes.c_void_p)


class ArrowConsumer:
    """A :class:`Consumer`: one client with its threads and connections."""

    def __init__(self, config: Mapping[str, Any], *, logger: logging.Logger) -> None:
        """``config``: librdkafka's properties. Raises KafkaException if librdkafka rejects the configuration."""
        self.throttling = Throttling()
        """What the brokers have said of quotas; updated in :meth:`fetched`."""
        callbacks = Callbacks.of(logger, throttled=self.throttling.add)
        client = new_client(CONSUMER, config, callbacks)
        lib.poll_set_consumer(client)
        self._client, self._queue = client, lib.queue_get_consumer(client)
        self.rebootstrap = Rebootstrap(client, config)
        """For a consumer that receives nothing."""
        self._release = released(self, _destroy, client, self._queue, callbacks)

    @property
    def closed(self) -> bool:
        """Whether the client is gone: nothing may be called but :meth:`close`. The garbage collector may have closed it
        before a generator that holds it ends: in a cycle, weak references are cleared first."""
        return not self._release.alive

    def assign(
        self, positions: Sequence[TopicPartition], *, ends: Sequence[int] = (), columns: frozenset[str] | None = None
    ) -> None:
        """The client fetches behind ``ends``, and ``columns`` are read from its memory when they are asked for."""
        with topic_partitions(positions) as listed:
            check(lib.assign(self._client, listed))

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop reading these partitions. Raises KafkaException."""
        with topic_partitions(partitions) as listed:
            raise_error(lib.incremental_unassign(self._client, listed))

    def unassign(self) -> None:
        """Stop reading all partitions. Raises KafkaException."""
        check(lib.assign(self._client, None))

    def queues(self, places: Iterable[tuple[str, int]]) -> "PartitionQueues":
        from onceward.sources.kafka.client.queues import PartitionQueues

        return PartitionQueues(self, places)

    @property
    def queue(self) -> int:
        """The address of the queue of all partitions without one of their own."""
        address: int = self._queue
        return address

    def queue_of(self, topic: str, partition: int) -> int:
        """Return the address of a new queue of a partition's own, which the caller destroys before :meth:`close`."""
        queue: int = lib.queue_get_partition(self._client, topic.encode(), partition)
        lib.queue_forward(queue, None)
        return queue

    @contextmanager
    def fetched(self, most: int, timeout: float, queue: int | None = None) -> Iterator[Fetched]:
        """Yield messages once there are ``most`` of them or ``timeout`` seconds have passed. They live until the block
        ends. Serves the log. ``queue``: that of one partition. Raises KafkaException."""
        held = lib.mem_malloc(None, _WORD * (most + 1))
        first = held + _WORD
        count = 0
        try:
            count = lib.consume_batch_queue(queue or self._queue, ms(timeout), first, most)
            if count < 0:
                raise KafkaException(KafkaError(lib.last_error()))
            yield fetched(np.array((ctypes.c_ssize_t * count).from_address(first), np.intp))
        finally:
            _give_back(held, max(count, 0))

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        """Return the first offset of the partition's log and the offset after its last, as reported by the leader.
        Raises KafkaException."""
        low, high = ctypes.c_int64(), ctypes.c_int64()
        topic, number = partition.topic.encode(), partition.partition
        check(lib.query_watermark_offsets(self._client, topic, number, low, high, ms(timeout)))
        return low.value, high.value

    def known_end(self, topic: str, partition: int) -> int | None:
        """Return the end of the partition's log, as the last fetch reported it; None before the first."""
        low, high = ctypes.c_int64(), ctypes.c_int64()
        if lib.get_watermark_offsets(self._client, topic.encode(), partition, ctypes.byref(low), ctypes.byref(high)):
            return None
        return high.value if high.value >= 0 else None

    def positions(self, places: Sequence[tuple[str, int]]) -> list[tuple[int, int | None]]:
        """Return the offset after everything that :meth:`fetched` has passed in these partitions, and the leader epoch
        before it. That includes what it does not yield: markers, and records of aborted transactions. The offset is
        negative where it has passed nothing yet, and the epoch None where it is unknown. Raises KafkaException."""
        with topic_partitions([TopicPartition(topic, number) for topic, number in places]) as listed:
            check(lib.position(self._client, listed))
            found = TopicPositions.from_address(listed).elems
            epochs = [lib.topic_partition_get_leader_epoch(ctypes.byref(found[n])) for n in range(len(places))]
            return [(found[n].offset, epoch if epoch >= 0 else None) for n, epoch in enumerate(epochs)]

    def wake(self) -> None:
        """End a wait in :meth:`fetched`, from any thread; without one, the next ends at once."""
        lib.queue_yield(self._queue)

    def topic_error(self, topic: str, timeout: float) -> KafkaError | None:
        """Return the error that a broker reports for the topic. The client does not report it for a partition that it
        cannot find a leader of. Raises KafkaException without an answer."""
        handle = lib.topic_new(self._client, topic.encode(), None)
        if not handle:
            raise KafkaException(KafkaError(lib.last_error()))
        found = ctypes.POINTER(Metadata)()
        try:
            check(lib.metadata(self._client, 0, handle, ctypes.byref(found), ms(timeout)))
            try:
                code = found.contents.topics[0].err
            finally:
                lib.metadata_destroy(found)
        finally:
            lib.topic_destroy(handle)
        return KafkaError(code) if code else None

    def close(self) -> None:
        """Close connections and end threads."""
        self._release()


def _destroy(client: int, queue: int, _callbacks: object) -> None:
    """Destroy the client. The callbacks must live until then."""
    lib.queue_destroy(queue)
    lib.consumer_close(client)
    lib.destroy(client)


def _give_back(held: int, count: int) -> None:
    """Free messages. ``held``: space for a count, then the message addresses, in the layout of rd_kafka_messages_t."""
    if _TOGETHER:
        ctypes.c_size_t.from_address(held).value = count
        lib.messages_destroy(held)
        return
    for message in (ctypes.c_void_p * count).from_address(held + _WORD):
        lib.message_destroy(message)
    lib.mem_free(None, held)


_LISTS_KNOWN = range(0x02100000, 0x02110000)
"""Library versions whose message lists are known to have the layout that `_give_back` uses: 2.16. The library has no
function to create a list and does not publish the layout, but freeing messages one by one costs 0.1 us per record."""


def _given_back_together(version: int) -> bool:
    """Return whether the library accepts our message list as its own: its version is known, and it reads back what we
    stored in a list."""
    if version not in _LISTS_KNOWN or None in (lib.messages_destroy, lib.messages_count, lib.messages_get):
        return False
    # addresses of readable memory, in case the library dereferences them
    known = [ctypes.c_size_t(), ctypes.c_size_t()]
    addresses = [ctypes.addressof(each) for each in known]
    trial = (ctypes.c_size_t * 3)(2, *addresses)
    return lib.messages_count(trial) == 2 and [lib.messages_get(trial, n) for n in range(2)] == addresses


_TOGETHER = _given_back_together(confluent_kafka.libversion()[1])


def slow_release() -> str | None:
    """Return why messages are freed one by one, which takes longer; None if they are freed together."""
    if _TOGETHER:
        return None
    return f"librdkafka {confluent_kafka.libversion()[0]} frees messages one by one (0.1 us each): only 2.16 is known"


if (_why := slow_release()) is not None:
    _LOGGER.warning("%s; records are the same. Use confluent-kafka 2.16 for full speed.", _why)
