"""Our job, run as a process of its own: ``python -m benchmarks.ours.job TASK-AS-JSON``."""

import inspect
import json
import sys
from typing import Any

from benchmarks.ours.transforms import on_batches, on_dataframes, through_spark
from benchmarks.workloads import Workload
from onceward import CheckpointSettings, KafkaSink, KafkaSource, Pipeline

__all__ = ["takes_delivery"]


def takes_delivery(delivery: str) -> bool:
    """Whether this version's KafkaSink delivers in that way."""
    return delivery in str(inspect.signature(KafkaSink.__init__).parameters["delivery"].annotation)


def main() -> None:
    task: dict[str, Any] = json.loads(sys.argv[1])
    workload = Workload(task["workload"])
    transform: dict[str, Any] = {}
    columns: tuple[str, ...] | None = None
    if task["path"] == "dataframe":
        transform["transform"] = on_dataframes(workload)
    elif task["path"] == "spark":
        transform["transform"] = through_spark
    elif task["path"] == "batches":
        transform["transform_batches"] = on_batches(workload)
        columns = ("key", "value")
    delivery: dict[str, Any] = {} if task["delivery"] == "exactly_once" else {"delivery": task["delivery"]}
    Pipeline(
        job=task["name"],
        source=KafkaSource(
            task["servers"],
            topics=[task["source"]],
            start="earliest",
            columns=columns,
            max_offsets_per_checkpoint=task["per_checkpoint"] or None,
            # what is measured there is a number of slots: small ranges must not be joined to fewer
            min_partitions=task["partitions"] if workload is Workload.CYCLE else None,
        ),
        sink=KafkaSink(task["servers"], topic=task["sink"], **delivery),
        settings=CheckpointSettings(interval=f"{task['interval_ms']}ms"),
        state_dir=f"{task['scratch']}/state",
        **({} if task["tasks"] == "per_checkpoint" else {"tasks": task["tasks"]}),
        **transform,
    ).run()


if __name__ == "__main__":
    main()
