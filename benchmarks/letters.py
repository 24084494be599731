"""``python -m benchmarks letters``: what dead letters cost a job, without a bad record and with 1 % of them; JSON and a
table.

Each job parses JSON: by a function on records, a function on batches, or a DataFrame. In alternating rounds, on one
Spark session, it reads records that are all good, without ``dead_letters=`` and with it, and records of which 1 % are
bad.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from benchmarks.errors import BenchmarkError
from benchmarks.machine import describe_machine
from benchmarks.results import RESULTS, new_directory, say, write
from benchmarks.scratch import scratch_directory
from benchmarks.topics import Topics
from onceward import (
    CheckpointSettings,
    DeadLetters,
    KafkaSink,
    KafkaSource,
    Output,
    Pipeline,
    parse_json,
    per_record,
)
from onceward.dev.kafka import LocalKafka
from onceward.driver.restarts import NO_RESTART
from onceward.driver.spark.session import make_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["main"]

_PARTITIONS = 4
_BAD = 100
"""Every hundredth record."""
_OUT, _DEAD = "parsed", "dead"
_CASES = {"without": ("good", False), "none bad": ("good", True), "1 % bad": ("bad", True)}
"""The input topic, and whether the job has dead letters."""


def main(arguments: list[str]) -> Path:
    """Run the benchmark; return the directory with the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks letters", description=__doc__)
    parser.add_argument("--records", type=int, help="default: 1,000,000")
    parser.add_argument("--rounds", type=int, default=3, help="after a first one that does not count")
    parser.add_argument("--quick", action="store_true", help="2,000 records: whether it works, not how fast it is")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the directory of the result goes")
    options = parser.parse_args(arguments)
    records = options.records or (2_000 if options.quick else 1_000_000)
    with scratch_directory(None) as scratch, LocalKafka(heap="768m") as kafka:
        machine = describe_machine(scratch)
        topics = Topics(kafka.bootstrap_servers, _PARTITIONS)
        for name in ("good", "bad", _OUT, _DEAD):
            topics.create(name)
        topics.fill("good", _good, records)
        topics.fill("bad", _some_bad, records)
        spark, _ = make_session("letters")
        seconds = _seconds(partial(_run, spark, kafka.bootstrap_servers, scratch), options.rounds)
        spark.stop()
        letters = sum(1 for _ in topics.read(_DEAD))
    results = {
        "machine": machine,
        "quick": options.quick,
        "records": records,
        "letters": letters,
        "seconds": seconds,
    }
    place = new_directory(options.results, "letters")
    write(results, place)
    table = Table("a job with", *_CASES, title="seconds, median; in brackets the speed", title_justify="left")
    for way in _WAYS:
        without = seconds[f"{way}, without"]
        shown = []
        for case in _CASES:
            measured = seconds[f"{way}, {case}"]
            speed = median(a / b for a, b in zip(without, measured, strict=True))
            shown.append(f"{median(measured):.1f} ({speed:.2f})")
        table.add_row(way, *shown)
    console = Console()
    console.print(table)
    console.print(f"machine: {machine}\n{place}", markup=False)
    runs = len(_WAYS) * (options.rounds + 1)
    if letters != (expected := runs * -(-records // _BAD)):
        raise BenchmarkError(f"{runs} runs over {records} records left {letters} dead letters instead of {expected}.")
    return place


def _seconds(run: "partial[None]", rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each round."""
    seconds: dict[str, list[float]] = {f"{way}, {case}": [] for way in _WAYS for case in _CASES}
    for number in range(rounds + 1):
        for at, way in enumerate(_WAYS):
            for index, case in enumerate(_CASES):
                began = time.perf_counter()
                run(f"r{number}-{at}-{index}", way, case)
                if number:
                    seconds[f"{way}, {case}"].append(time.perf_counter() - began)
        say(f"round {number} of {rounds}")
    return seconds


def _run(spark: "SparkSession", servers: str, directory: Path, job: str, way: str, case: str) -> None:
    topic, letters = _CASES[case]
    options = _WAYS[way](servers, letters)
    if letters:
        where = "reason is not null" if way == "a DataFrame" else None
        options["dead_letters"] = DeadLetters(KafkaSink(servers, topic=_DEAD), rate="5%", where=where)
    Pipeline(
        job=job,
        source=KafkaSource(
            servers,
            topics=[topic],
            start="earliest",
            end="latest",
            mirror_offsets=False,
            include_headers=letters and way == "a DataFrame",
        ),
        **options,
        spark=spark,
        state_dir=directory / job,
        settings=CheckpointSettings(interval="1s"),
        restart=NO_RESTART,
        accept_risks=["replication"],
    ).run()


def _on_records(servers: str, _letters: bool) -> dict[str, Any]:
    return {"transform_batches": per_record(_parsed), "sink": KafkaSink(servers, topic=_OUT)}


def _parsed(record: dict[str, Any]) -> dict[str, Any]:
    return {"key": record["key"], "value": str(json.loads(record["value"])["amount"])}


def _on_batches(servers: str, _letters: bool) -> dict[str, Any]:
    return {"transform_batches": _closed, "sink": KafkaSink(servers, topic=_OUT)}


def _closed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Raise for a batch with a value that does not end as JSON does."""
    for batch in batches:
        values = batch.column("value").cast(pa.string())
        if not pc.all(pc.ends_with(values, "}")).as_py():
            raise ValueError("a value is not closed")
        yield pa.RecordBatch.from_pydict({"key": batch.column("key"), "value": pc.utf8_upper(values)})


def _dataframe(servers: str, letters: bool) -> dict[str, Any]:
    sink = KafkaSink(servers, topic=_OUT)
    select = ["key", "cast(p.record.amount as string) as value"]
    outputs = {"out": Output(sink, where="reason is null", select=select)}
    return {"transform": _marked, "outputs": outputs}


def _marked(df: "DataFrame") -> "DataFrame":
    return df.withColumn("p", parse_json("value", "id bigint, amount int, currency string")).select("*", "p.reason")


_WAYS: dict[str, Callable[[str, bool], dict[str, Any]]] = {
    "a function on records": _on_records,
    "a function on batches": _on_batches,
    "a DataFrame": _dataframe,
}


def _good(number: int) -> tuple[bytes, bytes]:
    currency = b"EUR" if number % 3 else b"USD"
    return b"%d" % number, b'{"id": %d, "amount": %d, "currency": "%s"}' % (number, number % 100, currency)


def _some_bad(number: int) -> tuple[bytes, bytes]:
    key, value = _good(number)
    return key, value if number % _BAD else value[:-1]
