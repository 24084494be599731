"""Plans reads of a compacted topic: which partitions, not how far."""

from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from onceward.coordinator.errors import ConfigurationError
from onceward.sources.kafka.driver.planner import Planner
from onceward.sources.kafka.executor.partitions import TableReader

__all__ = ["KafkaTableReader"]

_POLICY = "cleanup.policy"


class KafkaTableReader(Planner, DataSourceReader):
    def __reduce__(self) -> tuple[Any, ...]:
        return TableReader, (self._reader,)

    def partitions(self) -> Sequence[InputPartition]:
        subscription = self._subscription
        found = subscription.found()
        for name, settings in subscription.view.topic_settings(found, [_POLICY]).items():
            policy = None if settings is None else settings.get(_POLICY)
            if policy is not None and "compact" not in policy:
                raise ConfigurationError(
                    f"Topic {name} has {_POLICY}={policy}, so retention deletes the latest values of its keys, and a "
                    f"table of them would be incomplete. Nothing was read. Set {_POLICY}=compact."
                )
        return [
            InputPartition({"topic": partition.topic, "partition": partition.number})
            for partition in subscription.partitions(found)
        ]
