"""A driver in its own process: ``python -m tests.support.driver SPEC-AS-JSON``.

It copies keys and values. Tasks run in the driver process, so that it starts in a second. With ``spark``
PYSPARK_SUBMIT_ARGS or spark-submit sets the master and all other options. With ``query`` the driver is a Structured
Streaming query that remembers each value, which keeps no order.
"""

import json
import logging
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from onceward import (
    CheckpointSettings,
    DeadLetters,
    KafkaCluster,
    KafkaSink,
    KafkaSource,
    Output,
    Pipeline,
    per_record,
)
from onceward.driver import checkpoint_writer
from onceward.driver.restarts import Restart
from onceward.sinks.kafka.driver import preflight
from tests.support.sparkless import SparklessPipeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from onceward import StreamingPipeline

__all__ = ["is_letter", "main"]


def _through_the_jvm(df: "DataFrame") -> "DataFrame":
    """A filter, which forces reader and writer into different Python workers."""
    return df.select("key", "value").where("partition >= 0")


def _in_the_worker(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    for batch in batches:
        yield batch.select(["key", "value"])


def _mark_fiftieth(df: "DataFrame") -> "DataFrame":
    """Give the same records a reason."""
    number = "try_cast(substring_index(cast(value as string), '-', -1) as bigint)"
    return df.selectExpr("*", f"case when {number} % 50 = 0 then 'a fiftieth' end as reason")


def _batches_without_fiftieth(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Copy whole batches, and raise for one with such a record."""
    for batch in _in_the_worker(batches):
        if any(map(is_letter, batch.column("value").to_pylist())):
            raise ValueError("a fiftieth among them")
        yield batch


def _unless_fiftieth(record: dict[str, Any]) -> dict[str, Any]:
    """Copy, and raise for one record in 50 of the feeder."""
    if is_letter(record["value"]):
        raise ValueError("a fiftieth")
    return {"key": record["key"], "value": record["value"]}


def _misplace_fiftieth(record: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Copy into two outputs, and send one record in 50 to a partition that one of them lacks."""
    copied = {"key": record["key"], "value": record["value"], "partition": None}
    return [("out-1", copied), ("out-2", copied | ({"partition": 99} if is_letter(record["value"]) else {}))]


def is_letter(value: bytes | None) -> bool:
    """Whether a driver with ``letters`` sets the record aside."""
    return value is not None and value.rpartition(b"-")[2].isdigit() and int(value.rpartition(b"-")[2]) % 50 == 0


def _copy(spec: dict[str, Any], cluster: KafkaCluster | str) -> Pipeline:
    kind = Pipeline if spec.get("spark") else SparklessPipeline
    return kind(
        source=KafkaSource(
            cluster,
            topics=[spec["source"]],
            include_headers=_marks(spec),
            **{"adaptive": False, **spec.get("source_options", {})},
        ),
        transform=_on_dataframes(spec),
        transform_batches=_on_batches(spec),
        dead_letters=_letters(spec, cluster),
        tasks=spec.get("tasks", "per_checkpoint"),
        **_common(spec, cluster),
    )


def _on_dataframes(spec: dict[str, Any]) -> Any:
    if not spec.get("dataframe"):
        return None
    return _mark_fiftieth if spec.get("letters") else _through_the_jvm


def _on_batches(spec: dict[str, Any]) -> Any:
    if spec.get("refusing"):
        import pyarrow as pa

        columns = [("key", pa.binary()), ("value", pa.binary()), ("partition", pa.int32())]
        return per_record(_misplace_fiftieth, schema=pa.schema(columns))
    if spec.get("letters") and not _marks(spec):
        return _batches_without_fiftieth if spec.get("batches") else per_record(_unless_fiftieth)
    return _in_the_worker if spec.get("batches") else None


def _marks(spec: dict[str, Any]) -> bool:
    """Whether a DataFrame marks the letters."""
    return bool(spec.get("letters") and (spec.get("dataframe") or spec.get("query")))


def _letters(spec: dict[str, Any], cluster: KafkaCluster | str) -> DeadLetters | None:
    if not spec.get("letters"):
        return None
    sink = KafkaSink(cluster, topic=spec["letters"], **spec.get("sink_options", {}))
    # a record that is too large fails its checkpoint, as the suites want it to
    on = ("transform", "refused") if spec.get("refusing") else ("transform",)
    return DeadLetters(sink, on=on, rate="10%", where="reason is not null" if _marks(spec) else None)


def _query(spec: dict[str, Any], cluster: KafkaCluster | str) -> "StreamingPipeline":
    from onceward import StreamingPipeline, register  # they load PySpark, which takes a third of a driver's start

    def distinct(spark: "SparkSession") -> "DataFrame":
        register(spark)
        spark.conf.set("spark.sql.shuffle.partitions", 2)
        source = spark.readStream.format("onceward").option("kafka.bootstrap.servers", spec["servers"])
        source = source.option("subscribe", spec["source"]).option("startingOffsets", "earliest")
        limit = spec["source_options"]["max_offsets_per_checkpoint"]
        every = source.option("maxOffsetsPerTrigger", limit).load().dropDuplicates(["value"])
        return _mark_fiftieth(every) if spec.get("letters") else every.select("key", "value")

    return StreamingPipeline(
        query=distinct,
        dead_letters=_letters(spec, cluster),
        checkpoint_location=spec["query"],
        trigger={"processingTime": "200 milliseconds"},
        **_common(spec, cluster),
    )


def _written(spec: dict[str, Any], cluster: KafkaCluster | str) -> dict[str, Any]:
    options = spec.get("sink_options", {})
    if _marks(spec):
        sink = KafkaSink(cluster, topic=spec["sink"], **options)
        return {"outputs": {"out": Output(sink, where="reason is null", select=["key", "value"])}}
    if not spec.get("sinks"):
        return {"sink": KafkaSink(cluster, topic=spec["sink"], **options)}
    sinks = [KafkaSink(cluster, topic=topic, **options) for topic in spec["sinks"]]
    outputs = {f"out-{number}": Output(sink) for number, sink in enumerate(sinks, 1)}
    for table in spec.get("tables", ()):
        from onceward import DeltaSink, IcebergSink, PostgresSink

        kinds = {"delta": DeltaSink, "iceberg": IcebergSink, "postgres": PostgresSink}
        kind = table.pop("kind")
        outputs[kind] = Output(kinds[kind](**table))
    return {"outputs": outputs}


def _common(spec: dict[str, Any], cluster: KafkaCluster | str) -> dict[str, Any]:
    return {
        "job": spec["job"],
        **_written(spec, cluster),
        "coordinator": spec.get("coordinator"),
        "settings": CheckpointSettings(**{"interval": "200ms", **spec.get("settings", {})}),
        "state_dir": spec.get("state_dir"),
        "restart": Restart(initial="100ms", maximum="1s"),
        "metrics": spec.get("metrics"),
        "traces": spec.get("traces", False),
    }


def main() -> int:
    """Run until stopped or killed; turn errors into the product's exit codes."""
    spec: dict[str, Any] = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s %(message)s")
    logging.getLogger("kafka").setLevel(logging.WARNING)
    if "sweep_s" in spec:
        checkpoint_writer._SWEEP_INTERVAL = spec["sweep_s"]
    if spec.get("careless"):  # a transaction may time out soon, which the preflight refuses and an outage causes
        preflight.RESTART_ALLOWANCE = timedelta(days=-1)
    cluster = KafkaCluster(spec["servers"], name=spec.get("cluster", "main"), config=spec.get("config", {}))
    pipeline = _query(spec, cluster) if spec.get("query") else _copy(spec, cluster)
    print("ended:", pipeline.run().value)
    return 0


if __name__ == "__main__":
    sys.exit(main())
