"""``python -m benchmarks queries``: Structured Streaming queries; JSON and tables.

Measures what a batch of `StreamSink` costs beside the same query into noop, in alternating turns of one session, and
whose time each part of a batch is.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.bench import BROKER
from benchmarks.errors import BenchmarkError
from benchmarks.machine import describe_machine
from benchmarks.options import add_options, rounds_of
from benchmarks.queries.batches import OWNERS
from benchmarks.queries.overhead import SYSTEMS, Load, measure
from benchmarks.queries.workloads import QueryWorkload
from benchmarks.report import Spread, print_summary, summary, values
from benchmarks.results import new_directory, say, write
from benchmarks.rounds import Run
from benchmarks.scratch import scratch_directory
from onceward.coordinator.dev.kafka import LocalKafka

__all__ = ["longer", "main", "profile"]

_WORKLOADS = (QueryWorkload.COPY, QueryWorkload.RUNNING_COUNT)
_RATES = (400, 20_000)
_LONGER_MS = 100
"""The goal: a batch of ours takes at most this much longer than the same batch into noop."""
_ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
_STORES: dict[str, dict[str, str]] = {"hdfs": {}, "rocksdb": _ROCKSDB}


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; return the directory with the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks queries", description=__doc__)
    parser.add_argument("--workloads", default=",".join(_WORKLOADS), help="some of: " + ", ".join(QueryWorkload))
    parser.add_argument("--rates", default=",".join(map(str, _RATES)), help="records/s; default: 400,20000")
    parser.add_argument("--batches", type=int, help="of one turn, after its warm-up; default: 40")
    parser.add_argument("--partitions", type=int, default=2, help="of input, state and output; default: 2")
    parser.add_argument("--store", choices=_STORES, default="rocksdb", help="Spark's state store")
    add_options(parser)
    options = parser.parse_args(arguments)
    rounds = rounds_of(options)
    conf = {
        "spark.sql.shuffle.partitions": str(options.partitions),
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
        **_STORES[options.store],
    }
    loads = [
        Load(
            workload=QueryWorkload(workload),
            rate=int(rate),
            batches=options.batches or (4 if options.quick else 40),
            partitions=options.partitions,
            threads=2,
            conf=conf,
        )
        for workload in options.workloads.split(",")
        for rate in options.rates.split(",")
    ]
    place = new_directory(options.results, "queries")
    runs: list[Run] = []
    failed: dict[str, str] = {}
    with scratch_directory(options.directory) as scratch:
        results: dict[str, Any] = {
            "machine": describe_machine(scratch), "quick": options.quick, "rounds": rounds, "conf": conf,
            "failed": failed, "runs": runs,
        }  # fmt: skip
        with LocalKafka(heap="768m", directory=scratch / "kafka", properties=BROKER) as kafka:
            for load in loads:
                say(load.title)
                try:
                    for run in measure(kafka, load, rounds, scratch):
                        runs.append(run)
                        write(results, place)
                except BenchmarkError as error:
                    failed[load.title] = str(error)
                    say(f"{load.title} FAILED: {error}")
    results |= {"summary": summary(runs), "longer": longer(runs), "profile": profile(runs)}
    write(results, place)
    _print(results, Console())
    Console().print(f"machine: {results['machine']}\n{place}", markup=False)
    return place


def longer(runs: Sequence[Run]) -> dict[str, Any]:
    """Return, by load, by how many ms a batch of ours takes longer than one into noop: medians of a round's turns."""
    found = {}
    for title in dict.fromkeys(run["workload"] for run in runs):
        ours, noop = (values(runs, title, system, "batch_ms") for system in ("ours", "noop"))
        if both := [ours[number] - noop[number] for number in sorted(ours.keys() & noop.keys())]:
            spread = Spread.of(both)
            found[title] = {**spread.as_json(), "reached": spread.median <= _LONGER_MS}
    return found


def profile(runs: Sequence[Run]) -> dict[str, dict[str, dict[str, float]]]:
    """Return, by load, system and part of a batch, ms: the median over the rounds of each round's median."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for run in runs:
        for part, took in run.get("figures", {}).get("parts", {}).items():
            found.setdefault(run["workload"], {}).setdefault(run["system"], {}).setdefault(part, []).append(took)
    return {
        title: {
            system: {part: round(statistics.median(took), 1) for part, took in parts.items()}
            for system, parts in systems.items()
        }
        for title, systems in found.items()
    }


def _print(results: Mapping[str, Any], console: Console) -> None:
    for title, systems in results["summary"].items():
        print_summary(title, systems, console)
        if title in results["profile"]:
            console.print(_profile_table(title, results["profile"][title]))
    for title, spread in results["longer"].items():
        verdict = "reached" if spread["reached"] else "not reached"
        console.print(
            f"{title}: a batch of ours takes {spread['median']:,.0f} ms longer than one into noop "
            f"({spread['min']:,.0f} to {spread['max']:,.0f}; goal: at most {_LONGER_MS}): {verdict}"
        )
    for title, reason in results["failed"].items():
        console.print(f"  {title}: {reason}", markup=False)


def _profile_table(title: str, systems: Mapping[str, Mapping[str, float]]) -> Table:
    """A row per part, then the sums of each owner."""
    names = [system for system in SYSTEMS if system in systems]
    table = Table(title=f"{title}: whose time a batch is, ms (medians of parts)", title_justify="left")
    table.add_column("part")
    table.add_column("whose")
    for name in names:
        table.add_column(name, justify="right")
    for part, owner in OWNERS.items():
        if any(part in systems[name] for name in names):
            cells = (f"{systems[name][part]:,.1f}" if part in systems[name] else "-" for name in names)
            table.add_row(part, owner, *cells)
    table.add_section()
    for owner in dict.fromkeys(OWNERS.values()):
        sums = (sum(took for part, took in systems[name].items() if OWNERS[part] == owner) for name in names)
        table.add_row("sum", owner, *(f"{took:,.1f}" for took in sums))
    return table
