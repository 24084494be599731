"""The job that is measured, run as a process of its own: ``python -m benchmarks.copy_job OPTIONS-AS-JSON``."""

import json
import sys
from typing import TYPE_CHECKING

from coordinator import CheckpointSettings, Pipeline
from sinks import KafkaSink
from sources import KafkaSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame


def through_a_dataframe(df: "DataFrame") -> "DataFrame":
    """The least that a transform can do: rows go from the reader's worker through the JVM to the writer's."""
    return df.select("key", "value")


def through_batches(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """The least that a function on batches can do, in the worker that reads and writes."""
    for batch in batches:
        yield batch.select(["key", "value"])


def main() -> None:
    options = json.loads(sys.argv[1])
    Pipeline(
        job=options["job"],
        source=KafkaSource(
            options["bootstrap_servers"],
            topics=[options["source_topic"]],
            start="earliest",
            end="latest",
            max_offsets_per_checkpoint=options["records_per_checkpoint"],
        ),
        transform=through_a_dataframe if options["path"] == "dataframe" else None,
        transform_batches=through_batches if options["path"] == "batches" else None,
        sink=KafkaSink(options["bootstrap_servers"], topic=options["sink_topic"]),
        settings=CheckpointSettings(interval="0s"),
        state_dir=options["state_dir"],
    ).run()


if __name__ == "__main__":
    main()
