"""A driver in its own process: ``python -m tests.support.job SPEC-AS-JSON``."""

import json
import logging
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from onceward import CheckpointSettings, KafkaSink, KafkaSource, Pipeline
from onceward.coordinator.pipeline.restarts import Restart
from onceward.sinks.kafka.driver import preflight
from tests.support.sparkless import SparklessPipeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame


def keep_all(df: "DataFrame") -> "DataFrame":
    """Copy through the JVM, which forces reader and writer into different Python workers."""
    return df.select("key", "value").where("partition >= 0")  # a choice of columns alone would not need Spark


def keep_all_batches(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Copy in the worker that reads and writes."""
    for batch in batches:
        yield batch.select(["key", "value"])


def main() -> int:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    if spec.get("careless"):  # a transaction may time out soon, which the preflight refuses and an outage causes
        preflight.RESTART_ALLOWANCE = timedelta(days=-1)
    kind = SparklessPipeline if spec.get("sparkless") else Pipeline
    pipeline = kind(
        job=spec["job"],
        source=KafkaSource(
            spec["servers"], topics=[spec["source"]], **{"adaptive": False, **spec.get("source_options", {})}
        ),
        transform=keep_all if spec.get("dataframe") else None,
        transform_batches=keep_all_batches if spec.get("batches") else None,
        sink=KafkaSink(spec["servers"], topic=spec["sink"], **spec.get("sink_options", {})),
        coordinator=spec.get("coordinator"),
        settings=CheckpointSettings(**{"interval": "200ms", **spec.get("settings", {})}),
        state_dir=spec.get("state_dir"),
        takeover=spec.get("takeover", False),
        adopt=spec.get("adopt", False),
        restart=Restart(initial="100ms", maximum="1s"),
    )
    print("ended:", pipeline.run().value)
    return 0


if __name__ == "__main__":
    sys.exit(main())
