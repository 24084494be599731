"""``python -m benchmarks outputs``: one job with several outputs beside as many jobs with one each; JSON and a table.

Both write the same records to the same topics, in alternating rounds, on one Spark session: each output filters and
builds JSON from a common part that parses the input. The jobs of one output run one after the other.
"""

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from benchmarks.results import RESULTS, new_directory, say, write
from benchmarks.scratch import scratch_directory
from benchmarks.topics import Topics
from onceward import CheckpointSettings, KafkaSink, KafkaSource, Output, Pipeline
from onceward.dev.kafka import LocalKafka
from onceward.driver.restarts import NO_RESTART
from onceward.driver.spark.session import make_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["main"]

_TOPIC = "parsed"
_PARTITIONS = 4
_COUNTS = (1, 2, 4)


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; return the directory with the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks outputs", description=__doc__)
    parser.add_argument("--records", type=int, help="default: 1,000,000")
    parser.add_argument("--rounds", type=int, default=3, help="after a first one that does not count")
    parser.add_argument("--quick", action="store_true", help="2,000 records: whether it works, not how fast it is")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the directory of the result goes")
    options = parser.parse_args(arguments)
    records = options.records or (2_000 if options.quick else 1_000_000)
    with scratch_directory(None) as scratch, LocalKafka(heap="768m") as kafka:
        machine = describe_machine(scratch)
        topics = Topics(kafka.bootstrap_servers, _PARTITIONS)
        topics.create(_TOPIC)
        for number in range(max(_COUNTS)):
            topics.create(_name(number))
        topics.fill(_TOPIC, _record, records)
        spark, _ = make_session("outputs")
        run = partial(_run, spark, kafka.bootstrap_servers, scratch)
        seconds = _seconds(run, options.rounds)
        spark.stop()
    ratios = {
        count: median(a / b for a, b in zip(seconds[f"{count} jobs"], seconds[f"{count} outputs"], strict=True))
        for count in _COUNTS
    }
    results = {"machine": machine, "quick": options.quick, "records": records, "seconds": seconds, "ratio": ratios}
    place = new_directory(options.results, "outputs")
    write(results, place)
    table = Table("written by", "seconds, median", title="one job or several", title_justify="left")
    for name, measured in seconds.items():
        table.add_row(name, f"{median(measured):.1f}")
    console = Console()
    console.print(table)
    for count, ratio in ratios.items():
        console.print(f"{count}: as many jobs take {ratio:.2f} times as long as one job (median of the rounds)")
    console.print(f"machine: {machine}\n{place}", markup=False)
    return place


def _seconds(run: "partial[None]", rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each round."""
    seconds: dict[str, list[float]] = {f"{count} {kind}": [] for count in _COUNTS for kind in ("outputs", "jobs")}
    for number in range(rounds + 1):
        for count in _COUNTS:
            together = [range(count)]
            alone = [range(one, one + 1) for one in range(count)]
            for kind, jobs in (("outputs", together), ("jobs", alone)):
                began = time.perf_counter()
                for written in jobs:
                    run(f"r{number}-{kind}-{count}-{written.start}", written)
                if number:
                    seconds[f"{count} {kind}"].append(time.perf_counter() - began)
        say(f"round {number} of {rounds}")
    return seconds


def _run(spark: "SparkSession", servers: str, directory: Path, job: str, written: Sequence[int]) -> None:
    """Run a job that writes these outputs."""
    Pipeline(
        job=job,
        source=KafkaSource(servers, topics=[_TOPIC], start="earliest", end="latest", mirror_offsets=False),
        transform=_parsed,
        outputs={_name(number): _output(servers, number) for number in written},
        spark=spark,
        state_dir=directory / job,
        settings=CheckpointSettings(interval="1s"),
        restart=NO_RESTART,
        accept_risks=["replication"],
    ).run()


def _output(servers: str, number: int) -> Output:
    """A quarter of the records."""
    return Output(
        KafkaSink(servers, topic=_name(number)), where=f"amount % 4 = {number}", select=["to_json(struct(*)) as value"]
    )


def _parsed(df: "DataFrame") -> "DataFrame":
    return df.selectExpr("from_json(cast(value as string), 'id bigint, amount int, currency string') as r").select(
        "r.*"
    )


def _record(number: int) -> tuple[bytes, bytes]:
    currency = b"EUR" if number % 3 else b"USD"
    return b"%d" % number, b'{"id": %d, "amount": %d, "currency": "%s"}' % (number, number % 100, currency)


def _name(number: int) -> str:
    return f"out-{number}"
