"""Plans reads of a compacted topic: which partitions, not how far."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from onceward.common.errors import ConfigurationError
from onceward.sources.kafka.driver.planner import Planner
from onceward.sources.kafka.executor.partitions import TableReader

__all__ = ["KafkaTableReader"]

_POLICY = "cleanup.policy"
_RETENTION = ("retention.ms", "retention.bytes")
_UNLIMITED = "-1"


class KafkaTableReader(Planner, DataSourceReader):
    def __reduce__(self) -> tuple[Any, ...]:
        return TableReader, (self._reader,)

    def partitions(self) -> Sequence[InputPartition]:
        subscription = self._subscription
        found = subscription.found()
        for name, settings in subscription.view.topic_settings(found, [_POLICY, *_RETENTION]).items():
            if settings is not None and (problem := _incomplete(settings)):
                raise ConfigurationError(
                    f"Topic {name} has {problem}, so retention deletes the latest values of its keys, and a table of "
                    f"them would be incomplete. Nothing was read. Set {_POLICY}=compact."
                )
        return [
            InputPartition({"topic": partition.topic, "partition": partition.number})
            for partition in subscription.partitions(found)
        ]


def _incomplete(settings: Mapping[str, str]) -> str:
    """Return the settings by which the brokers delete the latest value of a key; empty if none do."""
    policy = settings.get(_POLICY, "compact")
    if "delete" not in policy:
        return ""
    limits = [f"{key}={settings[key]}" for key in _RETENTION if settings.get(key, _UNLIMITED) != _UNLIMITED]
    if "compact" in policy and not limits:
        return ""
    return " and ".join([f"{_POLICY}={policy}", *limits])
