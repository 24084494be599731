"""Reads partitions on and on, from cut to cut, for a task that stays. Runs on executors.

One client keeps its partitions, connections and what it has fetched for as long as the task lives: nothing is fetched
twice. After a cut it waits for a record, which begins the slot's transaction, and takes all others that are there; then
it takes what has come every few milliseconds.

A position stands after the last record that was taken and what the client has passed behind it: markers, and records of
aborted transactions, which it never yields. It keeps the leader epoch of the offset before it (epochs.py). The brokers
may delete what was passed, so positions must not stay before it. When nothing else comes, a follower asks for a cut for
them alone.

Memory is bounded as in reader.py: a slow transform or broker slows reading down. limited.py has the limits that a user
sets.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, TopicPartition

from onceward.connections.limits import LOST_S
from onceward.sources.kafka.client import Consumer, Event, Records
from onceward.sources.kafka.executor.columns import bounded
from onceward.sources.kafka.executor.ranges import Range, confused, noted, stalled
from onceward.sources.kafka.executor.reader import KafkaSplitReader
from onceward.sources.kafka.positions import Partition

__all__ = ["Followed", "KafkaFollower"]

_FIRST_WAIT_S = 1.0
_WAIT_S = 0.05


class Followed:
    """A range while it grows."""

    def __init__(self, of: Range) -> None:
        self.range = of
        self._start = of.position
        self._epoch: int | None = None
        self.at_end = False
        """The client has reported the partition's end, and no record since."""
        self.left = False
        """The client does not read it any more."""

    @property
    def place(self) -> Partition:
        return Partition(self.range.topic, self.range.partition)

    @property
    def position(self) -> int:
        return min(self.range.position, self.range.end)

    @property
    def done(self) -> bool:
        return self.range.position >= self.range.end

    def kept(self, records: Records) -> Records | None:
        if self.done:
            return None  # fetched before the client left the partition
        kept, epoch = self.range.kept(records), records.last_epoch()
        self.at_end = False
        self._epoch = epoch if epoch >= 0 and self.range.position <= self.range.end else None
        return kept

    def passed(self, offset: int, epoch: int | None) -> bool:
        """Note that no record comes before ``offset`` any more; ``epoch`` is the one before it. Return whether that is
        new."""
        if offset <= self.range.position:
            return False
        self.range.position = offset
        self._epoch = epoch if offset <= self.range.end else None
        return True

    def grown(self) -> dict[str, Any]:
        """Return the split that was read since the last call."""
        of = self.range
        split = {"topic": of.topic, "partition": of.partition, "start": self._start, "end": self.position}
        if self._epoch is not None:
            split["epoch"] = self._epoch
        self._start, self._epoch = self.position, None
        return split

    def lag(self, known_end: int | None) -> int | None:
        if self.done or self.at_end:
            return 0
        return None if known_end is None else max(0, min(known_end, self.range.end) - self.position)


class KafkaFollower:
    """A :class:`Follower`."""

    def __init__(
        self,
        consumer: Consumer,
        ranges: list[Followed],
        limits: KafkaSplitReader,
        *,
        hold: float,
        news: Callable[..., None],
    ) -> None:
        self._consumer = consumer
        self._ranges = {each.place: each for each in ranges}
        self._first = ranges[0].range
        self._limits, self._hold, self._news = limits, hold, news
        self._rows = limits.max_rows
        self._cut = threading.Event()
        self._closing, self._closed = threading.Lock(), False
        left = [each for each in ranges if not each.done]
        consumer.assign(
            [TopicPartition(each.range.topic, each.range.partition, each.position) for each in left],
            ends=[each.range.end for each in left],
            columns=self._first.columns,
        )
        self._said = "nothing"
        self._finished = False
        self._reported = False
        """Since the last cut, the driver has heard of passed offsets."""
        self._throttled = 0.0

    def cut(self, allowed: Sequence[int] = ()) -> None:
        """See :meth:`Follower.cut`. ``allowed``: for each range, the records until the next cut; only with limits."""
        self._cut.set()
        with self._closing:
            if not self._closed:
                self._wake()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """See :meth:`Follower.batches`. Raises CheckpointFailedError and KafkaException."""
        since: float | None = None
        heard = time.monotonic()
        while not self._cut.is_set():
            if self._all_done() and not self._finished:
                self._finished = True
                self._news()
            late = since is not None and time.monotonic() - since >= self._hold
            if self._finished or late:
                self._cut.wait()
                break
            most, wait = (1, _FIRST_WAIT_S) if since is None else (self._rows, _WAIT_S)
            made, heard = self._some(most, wait, heard)
            if made and since is None:
                since = time.monotonic()
                self._news()
                # Add all that is there: its transaction then reaches most partitions long before the cut, and less is
                # left to read and write after that.
                more, heard = self._some(self._rows, 0.0, heard)
                made = [pa.concat_batches([*made, *more])]
            for batch in made:
                yield from bounded(batch, self._limits.batch_bytes)
                heard = time.monotonic()  # the consumer of the batches may be slow
        self._cut.clear()
        self._reported = False

    def reached(self) -> dict[str, Any]:
        self._pass(self._ranges.values())
        lags = [each.lag(self._consumer.known_end(*place)) for place, each in self._ranges.items()]
        return {"ranges": [each.grown() for each in self._ranges.values()], "lags": lags}

    def held_back(self) -> float:
        """Return the seconds for which brokers have held the reading back since the last call."""
        seconds, self._throttled = self._throttled, 0.0
        return seconds

    def close(self) -> None:
        with self._closing:
            self._closed = True
        self._release()

    def _wake(self) -> None:
        self._consumer.wake()

    def _release(self) -> None:
        self._consumer.close()

    def _all_done(self) -> bool:
        return all(each.done for each in self._ranges.values())

    def _some(self, most: int, wait: float, heard: float) -> tuple[list[pa.RecordBatch], float]:
        """Return the batches of one call of the client, and when something came last."""
        made, events, came = self._fetch(most, wait)
        if throttled := self._consumer.throttling.taken():
            self._throttled += throttled
            heard = time.monotonic() + throttled  # the broker answers, and says how long it will not
        ended = []
        for event in events:
            of = self._ranges.get(Partition(event.topic or "", event.partition))
            if event.error.code() != KafkaError._PARTITION_EOF:
                said = noted(event, None if of is None else of.range, self._consumer, self._first)
                self._said = said or self._said
            elif of is not None:
                of.at_end = True
                ended.append((of, event.offset))
        passed = self._pass([of for of, _ in ended])
        if wait >= _FIRST_WAIT_S and not (came or events):  # markers alone may come, so fast that no end is seen
            passed = self._pass(self._ranges.values())
        for of, end in ended:  # compaction may leave offsets of which the client passes nothing
            passed |= of.passed(end, None)
        if passed and not self._reported:
            self._reported = True
            self._news(urgent=False)
        for batch in made:
            self._rows = self._limits.rows_like(batch)
        if came or events or passed:
            self._leave_done()
            return made, time.monotonic()
        self._refuse_stall(time.monotonic() - heard)
        return made, heard

    def _pass(self, ranges: Iterable[Followed]) -> bool:
        """Pass what the client has passed in ``ranges``. Return whether there was something new."""
        left = [each for each in ranges if not each.done]
        found = self._consumer.positions([each.place for each in left])
        return bool([each for each, position in zip(left, found, strict=True) if each.passed(*position)])

    def _fetch(self, most: int, wait: float) -> tuple[list[pa.RecordBatch], Sequence[Event], bool]:
        """Return batches of at most ``most`` records, events, and whether records have come. Waits for ``wait`` seconds
        at most."""
        with self._consumer.fetched(most, wait) as got:
            return self._made(got.records), got.events, bool(got.records)

    def _made(self, came: Iterable[Records]) -> list[pa.RecordBatch]:
        """Return a batch of each topic."""
        topics: dict[str, list[Records]] = {}
        for records in came:
            each = self._ranges.get(Partition(records.topic, records.partition))
            if each is None:
                raise confused(self._first, records)
            if (kept := each.kept(records)) is not None:
                topics.setdefault(records.topic, []).append(kept)
        return [self._first.build(parts[0].together(parts)) for parts in topics.values()]

    def _leave_done(self) -> None:
        done = [each for each in self._ranges.values() if each.done and not each.left]
        if done:
            self._consumer.incremental_unassign([TopicPartition(of.range.topic, of.range.partition) for of in done])
            for each in done:
                each.left = True

    def _refuse_stall(self, waited: float) -> None:
        behind = [each.range for each in self._ranges.values() if not (each.at_end or each.done)]
        if waited > LOST_S:
            self._consumer.rebootstrap()
        if behind and waited > self._limits.give_up_after:
            raise stalled(behind[0], self._limits.give_up_after, self._said)
