"""``spark.read.format("onceward")``: reads once, from offsets to offsets."""

from collections.abc import Sequence

from pyspark.sql.datasource import DataSourceReader, InputPartition

from onceward.sources.kafka.driver.planner import Planner

__all__ = ["KafkaBatchReader"]


class KafkaBatchReader(Planner, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        """Resolve both bounds, now."""
        return self._splits(*self._resolved(self._options.start, self._options.end))
