"""``python -m benchmarks queries``: Structured Streaming queries; JSON and tables.

Measures what a batch of `StreamSink` costs beside the same query into noop, in alternating turns of one session, and
whose time each part of a batch is. Measures stateful queries over a full topic, on request beside their peers.
"""

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.bench import BROKER
from benchmarks.errors import BenchmarkError
from benchmarks.machine import describe_machine
from benchmarks.options import add_options, chosen, rounds_of
from benchmarks.peers.flink.system import Flink
from benchmarks.peers.streams.system import Streams
from benchmarks.queries.batches import OWNERS
from benchmarks.queries.dataframes import QUERIES
from benchmarks.queries.full import FullTopic
from benchmarks.queries.ground import Ground
from benchmarks.queries.overhead import SYSTEMS, Load, measure
from benchmarks.queries.steady import SteadyLoad
from benchmarks.queries.systems import ROCKSDB, OurQuery
from benchmarks.queries.workloads import QueryWorkload
from benchmarks.report import Spread, print_summary, ratios, summary, values
from benchmarks.results import new_directory, say, write
from benchmarks.rounds import Run, run_rounds, set_up
from benchmarks.scratch import scratch_directory
from benchmarks.sizes import Placed, Sizes
from benchmarks.systems import System
from onceward.dev.kafka import LocalKafka

__all__ = ["against_peers", "longer", "main", "profile"]

_WORKLOADS = (QueryWorkload.COPY, QueryWorkload.RUNNING_COUNT)
_RATES = (400, 20_000)
_LONGER_MS = 100
"""The goal: a batch of ours takes at most this much longer than the same batch into noop."""
_FULL = (QueryWorkload.WINDOW_COUNT, QueryWorkload.RUNNING_COUNT, QueryWorkload.JOIN)
_PEERS: tuple[System, ...] = (Flink(), Streams())
_AGAINST_FLINK = 0.7
"""The goal: at least this share of Flink's records per second."""
_SIZES = Sizes(records=12_000_000, placed=Placed.BY_KEY, per_checkpoint=2_000_000, steady_s=40.0)
_QUICK = Sizes(records=400_000, placed=Placed.BY_KEY, per_checkpoint=100_000, steady_s=10.0)
_BATCHES = ("batches", "rows", "batch_ms", "batch_p90_ms")
_RATE = ("records_per_s", "records_per_s_whole", "cpu_s_per_million", "peak_pss_mb")
_LATENCY = ("p50_ms", "p99_ms", "p99_9_ms", "cpu_s_per_million", "peak_pss_mb")
"""What the tables show; the result has everything."""
_STORES: dict[str, dict[str, str]] = {"hdfs": {}, "rocksdb": ROCKSDB}


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; return the directory with the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks queries", description=__doc__)
    parser.add_argument("--peers", default="", help="at a full topic; all, or some of: flink, streams")
    parser.add_argument("--workloads", default=",".join(_WORKLOADS), help="batches of: " + ", ".join(QUERIES))
    parser.add_argument("--rates", default=",".join(map(str, _RATES)), help="records/s; default: 400,20000")
    parser.add_argument("--batches", type=int, help="of one turn, after its warm-up; default: 40")
    parser.add_argument("--full", default="all", help="full topics; all, or some of: " + ", ".join(_FULL))
    parser.add_argument("--steady", default="all", help="at 20,000 records/s; all, or some of: " + ", ".join(_FULL))
    parser.add_argument("--records", type=int, help=f"in a full topic; default: {_SIZES.records:,}")
    parser.add_argument("--per-checkpoint", type=int, help="maxOffsetsPerTrigger of ours at a full topic")
    parser.add_argument("--store", choices=_STORES, default="rocksdb", help="Spark's state store")
    add_options(parser)
    options = parser.parse_args(arguments)
    rounds = rounds_of(options)
    conf = _STORES[options.store]
    known = {workload.value: workload for workload in QUERIES}
    loads = [
        Load(
            workload=workload,
            rate=int(rate),
            batches=options.batches or (4 if options.quick else 40),
            partitions=2,
            threads=2,
            conf={
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.streaming.numRecentProgressUpdates": "100000",
                **conf,
            },
        )
        for workload in chosen(parser, "--workloads", options.workloads, known)
        for rate in options.rates.split(",")
    ]
    stateful = {workload.value: workload for workload in _FULL}
    full = chosen(parser, "--full", options.full, stateful)
    steady = chosen(parser, "--steady", options.steady, stateful)
    peers = chosen(parser, "--peers", options.peers, {peer.name: peer for peer in _PEERS})
    given = {name: getattr(options, name) for name in ("records", "per_checkpoint")}
    sizes = replace(
        _QUICK if options.quick else _SIZES, **{name: value for name, value in given.items() if value is not None}
    )

    place = new_directory(options.results, "queries")
    runs: list[Run] = []
    failed: dict[str, str] = {}
    with scratch_directory(options.directory) as scratch:
        systems = [OurQuery(conf=conf), *peers] if full or steady else []
        reasons = set_up(systems, say)
        results: dict[str, Any] = {
            "machine": describe_machine(scratch),
            "quick": options.quick,
            "rounds": rounds,
            "conf": conf,
            "sizes": asdict(sizes),
            "systems": {system.name: {"versions": system.versions, "settings": system.settings} for system in systems},
            "set_up": reasons,
            "failed": failed,
            "runs": runs,
        }
        with LocalKafka(heap="768m", directory=scratch / "kafka", properties=BROKER) as kafka:
            for run in _measured(kafka, loads, rounds, scratch, failed):
                runs.append(run)
                write(results, place)
            ready = [system for system in systems if reasons[system.name] is None]
            ground = Ground(kafka, sizes, scratch)
            for how, runner, workloads in (
                ("at a full topic", FullTopic(ground), full),
                (f"at a steady {sizes.rate:,} records/s", SteadyLoad(ground), steady),
            ):
                for run in run_rounds(runner, ready, workloads, rounds, say):
                    runs.append({**run, "workload": f"{run['workload']} {how}"})
                    write(results, place)
    results |= {
        "summary": summary(runs), "longer": longer(runs), "profile": profile(runs), "ratios": against_peers(runs)
    }  # fmt: skip
    write(results, place)
    _print(results, Console())
    Console().print(f"machine: {results['machine']}\n{place}", markup=False)
    return place


def _measured(
    kafka: LocalKafka, loads: Sequence[Load], rounds: int, scratch: Path, failed: dict[str, str]
) -> Iterator[Run]:
    """Yield the turns under each load; add to ``failed`` why a load has none."""
    for load in loads:
        say(load.title)
        try:
            yield from measure(kafka, load, rounds, scratch)
        except BenchmarkError as error:
            failed[load.title] = str(error)
            say(f"{load.title} FAILED: {error}")


def against_peers(runs: Sequence[Run]) -> dict[str, dict[str, dict[str, float]]]:
    """Return, by full topic and peer, our rate as a multiple of the peer's: the spread over the rounds."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for title in dict.fromkeys(run["workload"] for run in runs):
        for peer in _PEERS:
            ratio = ratios(runs, title, "records_per_s", "ours", (peer.name,))
            if ratio is not None:
                found.setdefault(title, {})[peer.name] = ratio[1].as_json()
    return found


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
        steady = any("p50_ms" in figures for figures in systems.values())
        shown = _BATCHES if title in results["profile"] else _LATENCY if steady else _RATE
        print_summary(title, systems, console, shown)
        if title in results["profile"]:
            console.print(_profile_table(title, results["profile"][title]))
    for title, spread in results["longer"].items():
        verdict = "reached" if spread["reached"] else "not reached"
        console.print(
            f"{title}: a batch of ours takes {spread['median']:,.0f} ms longer than one into noop "
            f"({spread['min']:,.0f} to {spread['max']:,.0f} in {spread['rounds']} rounds; "
            f"goal: at most {_LONGER_MS}): {verdict}"
        )
    for title, peers in results["ratios"].items():
        for peer, spread in peers.items():
            goal = f"; goal: at least {_AGAINST_FLINK}" if peer == "flink" else ""
            console.print(
                f"{title}: {spread['median']:.2f} times the rate of {peer} "
                f"({spread['min']:.2f} to {spread['max']:.2f} in {spread['rounds']} rounds{goal})"
            )
    for system, reason in results["set_up"].items():
        if reason:
            console.print(f"  {system} was not measured: {reason}", markup=False)
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
