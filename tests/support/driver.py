"""A driver in its own process: ``python -m tests.support.driver SPEC-AS-JSON``.

It copies keys and values. Tasks run in the driver process, so that it starts in a second. With ``spark``
PYSPARK_SUBMIT_ARGS or spark-submit sets the master and all other options.
"""

import json
import logging
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from onceward import CheckpointSettings, KafkaCluster, KafkaSink, KafkaSource, Pipeline
from onceward.coordinator.pipeline.restarts import Restart
from onceward.sinks.kafka.driver import preflight
from tests.support.sparkless import SparklessPipeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["main"]


def _through_the_jvm(df: "DataFrame") -> "DataFrame":
    """A filter, which forces reader and writer into different Python workers."""
    return df.select("key", "value").where("partition >= 0")


def _in_the_worker(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    for batch in batches:
        yield batch.select(["key", "value"])


def main() -> int:
    """Run until stopped or killed; turn errors into the product's exit codes."""
    spec: dict[str, Any] = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s %(message)s")
    logging.getLogger("kafka").setLevel(logging.WARNING)
    if spec.get("careless"):  # a transaction may time out soon, which the preflight refuses and an outage causes
        preflight.RESTART_ALLOWANCE = timedelta(days=-1)
    cluster = KafkaCluster(spec["servers"], name=spec["cluster"]) if "cluster" in spec else spec["servers"]
    kind = Pipeline if spec.get("spark") else SparklessPipeline
    pipeline = kind(
        job=spec["job"],
        source=KafkaSource(cluster, topics=[spec["source"]], **{"adaptive": False, **spec.get("source_options", {})}),
        transform=_through_the_jvm if spec.get("dataframe") else None,
        transform_batches=_in_the_worker if spec.get("batches") else None,
        sink=KafkaSink(cluster, topic=spec["sink"], **spec.get("sink_options", {})),
        coordinator=spec.get("coordinator"),
        settings=CheckpointSettings(**{"interval": "200ms", **spec.get("settings", {})}),
        state_dir=spec.get("state_dir"),
        restart=Restart(initial="100ms", maximum="1s"),
    )
    print("ended:", pipeline.run().value)
    return 0


if __name__ == "__main__":
    sys.exit(main())
