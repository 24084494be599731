"""``onceward state``: read the state of a Structured Streaming query with Spark's state data source."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from onceward.common.errors import ConfigurationError, RefusedError
from onceward.operate.connecting import CoordinatorLocation, job_name, operators
from onceward.operate.tables import Column, Listing, print_json, print_listings
from onceward.protocol.values import SPARK_BATCH, JsonObject

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

__all__ = ["list_operators", "show_state"]

_UNREAD = "Nothing was changed"


def list_operators(job: str, place: CoordinatorLocation, *, as_json: bool) -> None:
    """List the stateful operators of a job's query: what there is to read, and for which batches."""
    location = _location(job, place)
    with _spark() as spark:
        rows = spark.read.format("state-metadata").load(location).collect()
    found = [_operator(row) for row in rows]
    if as_json:
        print_json({"location": location, "operators": found})
        return
    shown = Listing(
        *("operator", "name", "store", Column(name="variables", text=True), "partitions", "batches"),
        title=location,
        if_empty=f"The query of job {job} keeps no state: {location}",
    )
    for one in found:
        batches = f"{one['first_batch']} to {one['last_batch']}"
        cells = (one["operator"], one["name"], one["store"], ", ".join(one["variables"]), one["partitions"], batches)
        shown.add(*map(str, cells))
    print_listings([shown])


def show_state(
    job: str, place: CoordinatorLocation, operator: int, options: Mapping[str, str], limit: int, *, as_json: bool
) -> None:
    """Show rows of an operator's state. ``options``: further options of the data source ``statestore``."""
    location = _location(job, place)
    with _spark() as spark:
        state = spark.read.format("statestore").options(**options).option("operatorId", operator).load(location)
        rows = state.limit(limit).selectExpr("to_json(struct(*)) AS row").collect()
    found = [json.loads(row["row"]) for row in rows]
    if as_json:
        print_json(found)
        return
    columns = [column for column in state.columns if column != "partition_id"]
    shown = Listing(*columns, "partition", if_empty=f"Operator {operator} of job {job} has no state.")
    for row in found:
        shown.add(*(_text(row.get(column)) for column in columns), str(row["partition_id"]))
    print_listings([shown])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _operator(row: "Row") -> JsonObject:
    properties = json.loads(row["operatorProperties"] or "{}")
    return {
        "operator": row["operatorId"],
        "name": row["operatorName"],
        "store": row["stateStoreName"],
        "variables": [variable["stateName"] for variable in properties.get("stateVariables", ())],
        "partitions": row["numPartitions"],
        "first_batch": row["minBatchId"],
        "last_batch": row["maxBatchId"],
    }


def _location(job: str, place: CoordinatorLocation) -> str:
    """Return the checkpointLocation of a job's query. Raises RefusedError if it has none."""
    name = job_name(job)
    with operators(place) as (client, _):
        newest = client.job(name).last_completed
        snapshots = client.checkpoint(name, newest).snapshots if newest else {}
    found = [one.positions.body for one in snapshots.values() if one.positions and one.positions.kind == SPARK_BATCH]
    if not found or not found[0].get("location"):
        raise RefusedError(
            f"Job {job} has completed no batch of a Structured Streaming query, and only such a query keeps state. "
            f"{_UNREAD}. The state of other jobs is their positions: onceward checkpoints {job} --show ID."
        )
    return str(found[0]["location"])


@contextmanager
def _spark() -> "Iterator[SparkSession]":
    """A session of this process. Raises ConfigurationError for what Spark refuses."""
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        from onceward.common.jvm.spark import light_start, start_from_archive
    except ImportError as error:
        raise ConfigurationError(
            f"Spark reads the state, and {error.name} is not installed here. {_UNREAD}. Install it with: pip install "
            "'onceward[spark]'"
        ) from error
    running = SparkSession.getActiveSession()
    start_from_archive()
    with light_start():
        spark = running or SparkSession.builder.appName("onceward state").getOrCreate()
    try:
        yield spark
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigurationError(f"Spark cannot read the state: {reason} {_UNREAD}.") from error
    finally:
        if running is None:
            spark.stop()
