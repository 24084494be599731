"""Makes the readers of tasks that stay. Runs on executors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onceward.common.printable import logger
from onceward.connectors.tasks import ranges_of
from onceward.sources.kafka.client import new_consumer
from onceward.sources.kafka.executor.allowances import Allowances
from onceward.sources.kafka.executor.clients import LARGE
from onceward.sources.kafka.executor.columns import schema_of
from onceward.sources.kafka.executor.follower import Followed, KafkaFollower
from onceward.sources.kafka.executor.limited import LimitedFollower, queue_settings
from onceward.sources.kafka.executor.ranges import Range
from onceward.sources.kafka.executor.reader import KafkaSplitReader
from onceward.sources.kafka.rates import RateLimit

__all__ = ["KafkaFollowing"]

_KAFKA_LOG = logger("onceward.kafka")

_FETCH_BYTES = 256 * 1024


@dataclass(frozen=True, kw_only=True)
class KafkaFollowing:
    """A :data:`SplitFollower`; pickled to executors, where secrets are resolved."""

    reader: KafkaSplitReader
    rate: float | None = None
    """Records per second of each partition; None = no such limit."""

    def __call__(
        self, split: Mapping[str, Any], columns: frozenset[str], pace: Mapping[str, Any], news: Callable[..., None]
    ) -> KafkaFollower:
        """See :data:`SplitFollower`. ``split`` may have ``allowed``, as :meth:`KafkaFollower.cut`."""
        wait_ms = _fetch_wait_ms(1000 * pace["interval"])
        tuned = {"fetch.wait.max.ms": str(wait_ms), "fetch.min.bytes": str(_FETCH_BYTES)}
        schema, allowed = schema_of(self.reader.names), split.get("allowed")
        ranges = [Followed(Range.of(each, schema, columns)) for each in ranges_of(split)]
        limited = self.rate is not None or allowed is not None
        if limited:
            tuned |= queue_settings(len(ranges))
        consumer = new_consumer(self.reader.settings(LARGE, tuned), logger=_KAFKA_LOG)
        if not limited:
            return KafkaFollower(consumer, ranges, self.reader, hold=pace["hold"], news=news)
        shares = None if allowed is None else {each.place: int(n) for each, n in zip(ranges, allowed, strict=True)}
        # a new task begins with one record instead of a second's worth: tasks that follow each other keep the rate, too
        rate = None if self.rate is None else RateLimit(self.rate, interval=pace["interval"], begin=1.0)
        allowances = Allowances(shares, rate)
        return LimitedFollower(consumer, ranges, self.reader, allowances, hold=pace["hold"], news=news)


def _fetch_wait_ms(interval_ms: float) -> int:
    """Return how long a fetch may wait for enough records: half of a short interval, an eighth of a long one. Each
    fetch costs CPU, but a cut misses the records of the fetch that waits."""
    return int(max(2, min(interval_ms / 2, max(12, interval_ms / 8), 100)))
