"""A small job whose classes are archived: a shuffle, Python tasks, Arrow, and a streaming query with state.

Run as a program, in a JVM that records its classes.
"""

from pathlib import Path
from typing import Any

from onceward.driver.spark.session import make_session

_BATCHES = 3


def main() -> None:
    """Run the job, and return when the JVM has ended."""
    spark, _ = make_session("class archive")
    gateway: Any = spark.sparkContext._gateway
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    rows = spark.range(0, 100, 1, 2).selectExpr("id", "cast(id % 7 as string) AS key")
    rows.mapInArrow(lambda batches: batches, rows.schema).groupBy("key").count().collect()
    spark.sparkContext.parallelize(range(4), 2).mapPartitions(list).collect()

    def run(batch: Any, _: int) -> None:
        batch.mapInArrow(lambda batches: batches, batch.schema).write.format("noop").mode("append").save()

    place = Path(spark.sparkContext._temp_dir, "checkpoint")
    counts = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load().groupBy("value").count()
    query = counts.writeStream.outputMode("update").option("checkpointLocation", str(place)).foreachBatch(run).start()
    while query.lastProgress is None or query.lastProgress["batchId"] < _BATCHES:
        if query.awaitTermination(1):
            break
    query.stop()
    spark.stop()
    # the JVM ends with its standard input, and then writes the archive
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main()
