"""Jobs on a real Spark and a real broker that write to Delta tables, read by pyarrow and deltalake."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from onceward import CheckpointSettings, DeltaSink, KafkaSink, KafkaSource, Output, Pipeline
from onceward.driver.restarts import NO_RESTART
from onceward.protocol.events import CloseReason
from tests.support.object_store import ObjectStore
from tests.support.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

RECORDS = 300
ORDERS = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        ("amount", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("currency", pa.string()),
        ("note", pa.string()),
    ]
)


def order(n: int) -> dict[str, Any]:
    """The orders of the first partition are large enough that its tasks write files; the others vote with theirs."""
    return {
        "n": n,
        "amount": f"{n}.25",
        "at": f"2026-01-02T03:04:05.{n:06}Z",
        "currency": ("EUR", "USD")[n % 2],
        "note": "x" * 3000 if n < RECORDS else None,
    }


def row(n: int) -> dict[str, Any]:
    """The order as a table must have it."""
    at = datetime(2026, 1, 2, 3, 4, 5, n, UTC)
    return {**order(n), "amount": Decimal(f"{n}.25"), "at": at}


def parsed(df: "DataFrame") -> "DataFrame":
    columns = "n bigint, amount decimal(12,2), at timestamp, currency string, note string"
    return df.selectExpr("key", f"from_json(cast(value as string), '{columns}') as o").select("key", "o.*")


@pytest.fixture
def source(topics: Topics) -> str:
    name = topics.create("in", 3)
    for partition in range(3):
        fill(topics, name, range(partition * RECORDS, (partition + 1) * RECORDS), partition)
    return name


def fill(topics: Topics, source: str, numbers: range, partition: int = 0) -> None:
    topics.fill(source, [json.dumps(order(n)).encode() for n in numbers], partition=partition)


def run(topics: Topics, spark: "SparkSession", job: str, source: str, directory: Path, **written: Any) -> None:
    pipeline = Pipeline(
        job=job,
        source=KafkaSource(
            topics.servers, topics=[source], start="earliest", end="latest", max_offsets_per_checkpoint=700
        ),
        spark=spark,
        state_dir=directory / "state",
        settings=CheckpointSettings(interval="50ms"),
        restart=NO_RESTART,
        **written,
    )
    assert pipeline.run() is CloseReason.FINISHED


def rows(table: DeltaTable) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda each: int(each["n"]))


def test_a_dataframe_is_in_a_partitioned_table_once_over_two_runs(
    topics: Topics, spark: "SparkSession", job: str, source: str, tmp_path: Path
) -> None:
    DeltaTable.create(tmp_path / "orders", ORDERS, partition_by=["currency"])
    last = 3 * RECORDS
    for written in (last, last + 10):
        run(
            topics, spark, job, source, tmp_path,
            transform=lambda df: parsed(df).drop("key"),
            sink=DeltaSink(tmp_path / "orders"),
        )  # fmt: skip
        assert rows(DeltaTable(tmp_path / "orders")) == [row(n) for n in range(written)]
        fill(topics, source, range(last, last + 10), 1)
    table = DeltaTable(tmp_path / "orders")
    assert len(table.to_pyarrow_table(filters=[("currency", "=", "EUR")])) == (last + 10) // 2
    assert {one.name for one in (tmp_path / "orders").glob("*.parquet")} == {
        uri.rpartition("/")[2] for uri in table.file_uris()
    }


@pytest.fixture
def object_store() -> Iterator[ObjectStore]:
    store = ObjectStore()
    yield store
    store.stop()


def test_a_topic_and_a_table_in_s3_have_the_same_records_by_one_decision(
    topics: Topics, spark: "SparkSession", job: str, source: str, tmp_path: Path, object_store: ObjectStore
) -> None:
    """The secret is in a file, which Spark's Python workers read themselves."""
    secret, uri, plain = tmp_path / "secret", f"s3://{object_store.bucket}/orders", dict(object_store.options)
    secret.write_text(object_store.secret_key)
    DeltaTable.create(uri, ORDERS, storage_options=plain)
    out = topics.create("out", 2)
    options = {**plain, "aws_secret_access_key": f"file:{secret}"}
    run(
        topics, spark, job, source, tmp_path,
        transform=parsed,
        outputs={
            "topic": Output(KafkaSink(topics.servers, topic=out), select=["key", "cast(n as string) as value"]),
            "lake": Output(DeltaSink(uri, storage=options), select=["n", "amount", "at", "currency", "note"]),
        },
    )  # fmt: skip
    expected = range(3 * RECORDS)
    assert rows(DeltaTable(uri, storage_options=plain)) == [row(n) for n in expected]
    assert sorted(int(value or b"") for value in topics.values(out)) == [*expected]
