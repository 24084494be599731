"""One query of ours over a topic: ``python -m benchmarks.queries.job TASK-AS-JSON``; runs until SIGTERM."""

import json
import sys
from typing import TYPE_CHECKING, Any

import onceward
from benchmarks.queries.dataframes import COLUMNS, OUTPUT_MODES, result
from benchmarks.queries.workloads import QueryWorkload, inputs
from onceward import KafkaSink, StreamingPipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__: list[str] = []


def main() -> None:
    task: dict[str, Any] = json.loads(sys.argv[1])
    workload = QueryWorkload(task["workload"])
    StreamingPipeline(
        job=task["name"],
        query=lambda spark: _result(spark, task, workload),
        sink=KafkaSink(task["servers"], topic=task["sink"]),
        checkpoint_location=f"{task['scratch']}/checkpoint",
        output_mode=OUTPUT_MODES[workload],
        trigger={"processingTime": "0 seconds"},  # back to back: an interval would limit the rate at a full topic
        state_dir=f"{task['scratch']}/state",
    ).run()


def _result(spark: "SparkSession", task: dict[str, Any], workload: QueryWorkload) -> "DataFrame":
    onceward.register(spark)
    options = {"kafka.bootstrap.servers": task["servers"], "startingOffsets": "earliest"}
    if task["per_checkpoint"]:
        options["maxOffsetsPerTrigger"] = str(task["per_checkpoint"] // len(inputs(workload)))
    source = spark.readStream.format("onceward").options(**options)
    source = source.schema(COLUMNS.get(workload, "key binary, value binary"))
    return result(workload, lambda topic: source.option("subscribe", task["source"] + topic).load())


if __name__ == "__main__":
    main()
