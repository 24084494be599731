"""A queue for each partition of a consumer, so that one is read while another waits. Runs on executors.

The client fetches into each queue up to its limits (``queued.min.messages``, ``queued.max.messages.kbytes``), and no
further while it is not read: what waits is not fetched twice, as it would be after a pause.
"""

import contextlib
import os
import select
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from onceward.connections.rdkafka.library import lib
from onceward.sources.kafka.client.consumer import ArrowConsumer
from onceward.sources.kafka.client.interface import Fetched

__all__ = ["PartitionQueues"]

_SIGNAL = b"\1"
_MOST_SIGNALS = 4096


class PartitionQueues:
    """The queues of one consumer. Made before the consumer reads the partitions; closed before the consumer."""

    def __init__(self, consumer: ArrowConsumer, places: Iterable[tuple[str, int]]) -> None:
        """``places``: topics and partitions."""
        self._consumer = consumer
        self._came, self._signal = os.pipe()
        for end in (self._came, self._signal):
            os.set_blocking(end, False)
        self._queues = {place: consumer.queue_of(*place) for place in places}
        for queue in (*self._queues.values(), consumer.queue):
            lib.queue_io_event_enable(queue, self._signal, _SIGNAL, len(_SIGNAL))

    @contextmanager
    def fetched(self, place: tuple[str, int] | None, most: int) -> Iterator[Fetched]:
        """Yield at most ``most`` messages of a partition that are there; for None, what belongs to no partition. As
        :meth:`ArrowConsumer.fetched`."""
        with self._consumer.fetched(most, 0, None if place is None else self._queues[place]) as got:
            yield got

    def waiting(self, place: tuple[str, int]) -> bool:
        """Return whether something of the partition has come and was not taken."""
        return bool(lib.queue_length(self._queues[place]))

    def wait(self, timeout: float) -> None:
        """Wait until something comes into an empty queue, or :meth:`wake`; at most ``timeout`` seconds."""
        select.select([self._came], [], [], timeout)
        with contextlib.suppress(BlockingIOError):
            os.read(self._came, _MOST_SIGNALS)

    def wake(self) -> None:
        """End a wait, from any thread; without one, the next ends at once."""
        with contextlib.suppress(BlockingIOError):  # it is full of signals
            os.write(self._signal, _SIGNAL)

    def close(self) -> None:
        """Give the queues back. Must not be called while another thread calls :meth:`wake`."""
        for queue in (*self._queues.values(), self._consumer.queue):
            lib.queue_io_event_enable(queue, -1, None, 0)
        for queue in self._queues.values():
            lib.queue_destroy(queue)
        os.close(self._came)
        os.close(self._signal)
