"""A compacted topic as a table: the latest value of each key, for joins of streams with tables.

Spark plans a read of a table once per query, and runs it in every batch. So the plan holds only which partitions to
read, and each task finds out for itself how far its partition reaches.

Spark imports this module in executors' workers, as format.py explains.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from onceward.connections.cluster import KafkaCluster
from onceward.sources.kafka.driver.format import OncewardDataSource, columns_of, make_known

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["OncewardTable", "kafka_table"]


def kafka_table(spark: "SparkSession", cluster: str | KafkaCluster, topic: str) -> "DataFrame":
    """Return the latest value of each key of a compacted topic: ``key, value, partition, offset, timestamp``.

    A key whose latest value is null (a tombstone) is not in the table, and neither are records without a key. Each
    evaluation reads the committed records that are there when its tasks start, so a streaming query sees the table as
    it is in each batch; a batch that runs again may see a newer one.

    Latest means the highest offset in the key's partition. Evaluation fails if a key has records in two partitions,
    because then no order is known, and if retention deletes latest values: the topic is not compacted, or not only.

    cluster: bootstrap servers, or a KafkaCluster.
    """
    from pyspark.sql import functions as sql

    make_known(spark, OncewardTable)
    described = KafkaCluster.of(cluster)
    options = {f"kafka.{key}": str(value) for key, value in described.config.items()}
    records = (
        spark.read.format(OncewardTable.name())
        .schema("key binary, value binary, partition int, offset bigint, timestamp timestamp")
        .options(**options, subscribe=topic, **{"kafka.bootstrap.servers": described.bootstrap_servers})
        .load()
    )
    latest = sql.struct("value", "partition", "offset", "timestamp")
    keys = records.where("key is not null").groupBy("key")
    found = keys.agg(sql.max_by(latest, "offset").alias("latest"), sql.count_distinct("partition").alias("partitions"))
    where = sql.lit(f"topic {topic} cannot be read as a table: a key has records in several partitions, key (hex): ")
    one = sql.assert_true(sql.col("partitions") == 1, sql.concat(where, sql.hex("key")))
    return found.where(one.isNull()).select("key", "latest.*").where("value is not null")


class OncewardTable(OncewardDataSource):
    """Reads whole partitions, each up to its end when its task starts."""

    @classmethod
    def name(cls) -> str:
        return "onceward-table"

    def reader(self, schema: "StructType") -> DataSourceReader:
        from onceward.sources.kafka.driver.options import Mode, ReadOptions
        from onceward.sources.kafka.driver.table_reader import KafkaTableReader

        return KafkaTableReader(ReadOptions.parse(self.options, Mode.BATCH), columns_of(schema))
