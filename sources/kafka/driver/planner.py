"""What planners of batch reads and of streaming queries have in common. They run in Python processes that Spark starts
beside the driver."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from onceward.common.errors import HaltedError
from onceward.common.links import Links
from onceward.sources.kafka.driver.offsets import ranges_between
from onceward.sources.kafka.driver.options import Bound, ReadOptions
from onceward.sources.kafka.driver.resolution import resolve_bound
from onceward.sources.kafka.driver.splitting import split_ranges
from onceward.sources.kafka.driver.subscription import Subscription
from onceward.sources.kafka.executor.partitions import PartitionReader
from onceward.sources.kafka.executor.reader import KafkaSplitReader
from onceward.sources.kafka.positions import KafkaPositions

__all__ = ["Planner", "halts_queries"]

_DISCOVERY: Final = timedelta(seconds=5)
"""Between two searches for new partitions, which take a few ms."""


class Planner(PartitionReader):
    """Plans what the executors' part reads. Pickled, it becomes the executors' part."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        super().__init__(KafkaSplitReader(cluster=options.cluster, group_id=options.group_id, names=columns))
        self._options = options

    def __reduce__(self) -> tuple[Any, ...]:
        return PartitionReader, (self._reader,)

    @cached_property
    def _subscription(self) -> Subscription:
        options = self._options
        return Subscription(
            options.cluster,
            options.topics,
            options.pattern,
            assigned=options.assigned,
            links=Links(),
            discovery_interval=_DISCOVERY,
        )

    def _resolved(self, *bounds: Bound) -> list[KafkaPositions]:
        """Return the positions of all partitions at each of ``bounds``."""
        subscription = self._subscription
        found = subscription.found()
        partitions = subscription.partitions(found)
        return [subscription.positions(found, resolve_bound(subscription.view, partitions, bound)) for bound in bounds]

    def _splits(self, start: KafkaPositions, end: KafkaPositions) -> list[InputPartition]:
        splits = split_ranges(ranges_between(start, end), self._options.min_partitions)
        return [InputPartition(split) for split in splits if split["end"] > split["start"]]


@contextmanager
def halts_queries() -> Iterator[None]:
    """Add to an error that halts what a person does for a query, which is not a job."""
    try:
        yield
    except HaltedError as error:
        raise HaltedError(
            f"{error} A query of Spark has no name for onceward's commands: start it with a new checkpointLocation, "
            "and with startingOffsets= where it is to continue."
        ) from None
