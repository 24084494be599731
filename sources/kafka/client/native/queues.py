"""The queues of a native consumer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from onceward.sources.kafka.client.interface import Fetched

__all__ = ["NativeQueues", "Queued"]

_Place = tuple[str, int]


class Queued(Protocol):
    """A consumer that keeps what has come of each partition apart."""

    def taken_of(self, place: _Place | None, most: int) -> Fetched:
        """Take what has come of one partition; for None, events of none."""

    def waiting(self, place: _Place) -> bool: ...

    def wait(self, timeout: float) -> None:
        """Wait until something comes into an empty queue."""

    def wake(self) -> None: ...


class NativeQueues:
    """:class:`Queues`."""

    def __init__(self, consumer: Queued) -> None:
        self._consumer = consumer

    @contextmanager
    def fetched(self, place: _Place | None, most: int) -> Iterator[Fetched]:
        yield self._consumer.taken_of(place, most)

    def waiting(self, place: _Place) -> bool:
        return self._consumer.waiting(place)

    def wait(self, timeout: float) -> None:
        self._consumer.wait(timeout)

    def wake(self) -> None:
        self._consumer.wake()

    def close(self) -> None:
        """The queues end with the consumer."""
