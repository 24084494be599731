"""A follower within the limits that a user sets. Runs on executors.

Each partition has a queue of its own. One that has used up its allowance is not read: the client keeps what it has
fetched, so positions stay exact and nothing is fetched twice. It is read again after the next cut, or when its rate
permits. Neither waits for the other partitions, and a cut waits for neither.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from onceward.sources.kafka.client import Consumer, Event
from onceward.sources.kafka.executor.allowances import Allowances
from onceward.sources.kafka.executor.follower import Followed, KafkaFollower
from onceward.sources.kafka.executor.reader import KafkaSplitReader

__all__ = ["LimitedFollower", "queue_settings"]

_KIB = 1024
_FETCH_KIB = (64, 2 * _KIB)
_QUEUED_KIB = (256, 32 * _KIB)
_QUEUED_RECORDS = (100, 10_000)


def queue_settings(partitions: int) -> dict[str, str]:
    """Return librdkafka's settings for a queue per partition: its limits hold for each, so all together may have as
    much as one queue of all (clients.py)."""

    def part(limits: tuple[int, int]) -> int:
        least, whole = limits
        return max(least, whole // partitions)

    return {
        "fetch.message.max.bytes": str(part(_FETCH_KIB) * _KIB),
        "queued.max.messages.kbytes": str(part(_QUEUED_KIB)),
        "queued.min.messages": str(part(_QUEUED_RECORDS)),
    }


class LimitedFollower(KafkaFollower):
    """A :class:`Follower` that takes no more than its allowances."""

    def __init__(
        self,
        consumer: Consumer,
        ranges: list[Followed],
        limits: KafkaSplitReader,
        allowances: Allowances,
        *,
        hold: float,
        news: Callable[..., None],
    ) -> None:
        self._allowances = allowances
        self._next: Sequence[int] = ()
        self._asked = False
        """The next cut was asked for."""
        self._order = [each.place for each in ranges]
        """The partition that was read least recently is first."""
        self._queues = consumer.queues(self._order)
        super().__init__(consumer, ranges, limits, hold=hold, news=news)

    def cut(self, allowed: Sequence[int] = ()) -> None:
        self._next = allowed
        super().cut()

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from super().batches()
        if self._next:
            self._allowances.begin(dict(zip(self._ranges, self._next, strict=True)))
        self._asked = False

    def reached(self) -> dict[str, Any]:
        for place, each in self._ranges.items():
            if self._queues.waiting(place):
                each.at_end = False  # it was, when it was read last
        return super().reached()

    def _wake(self) -> None:
        self._queues.wake()

    def _release(self) -> None:
        self._queues.close()
        super()._release()

    def _some(self, most: int, wait: float, heard: float) -> tuple[list[pa.RecordBatch], float]:
        made, heard = super()._some(most, wait, heard)
        # a partition that must wait for its limit says nothing about its broker
        return made, time.monotonic() if self._held_back() else heard

    def _fetch(self, most: int, wait: float) -> tuple[list[pa.RecordBatch], Sequence[Event], bool]:
        made, events, came = self._take(most)
        if came or events:
            return made, events, came
        self._ask_for_cut()
        self._queues.wait(min(wait, self._allowances.wait(time.monotonic())))
        return self._take(most)

    def _take(self, most: int) -> tuple[list[pa.RecordBatch], Sequence[Event], bool]:
        """Take what is there of the partitions that may be read."""
        with self._queues.fetched(None, 1) as got:
            events = list(got.events)
        made: list[pa.RecordBatch] = []
        taken = 0
        for place in list(self._order):
            each = self._ranges[place]
            allowed = min(most - taken, self._allowances.of(place, time.monotonic()))
            if each.done or allowed <= 0:
                continue
            with self._queues.fetched(place, allowed) as got:
                made += self._made(got.records)
                count = sum(map(len, got.records))
                events += got.events
            if count:
                self._allowances.took(place, count)
                self._order.remove(place)
                self._order.append(place)
                taken += count
        self._asked |= bool(made)  # the first record after a cut does it
        return made, events, taken > 0

    def _held_back(self) -> bool:
        now = time.monotonic()
        return any(
            not (each.at_end or each.done) and self._allowances.of(place, now) <= 0
            for place, each in self._ranges.items()
        )

    def _ask_for_cut(self) -> None:
        """Ask for a cut if nothing but the next one lets a partition be read: it may have had no share of this one."""
        if not self._asked and any(
            not each.done and self._allowances.shared_out(place) and self._queues.waiting(place)
            for place, each in self._ranges.items()
        ):
            self._asked = True
            self._news()
