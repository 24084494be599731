"""``python -m benchmarks latency``: end-to-end latency as a curve over the interval between commits or checkpoints, for
each rate of records and number of partitions; JSON, tables and a picture.

A system that cannot keep up with a load, or writes a wrong output, has no figures there; the result gives the reason.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.bench import BROKER, Bench
from benchmarks.machine import describe_machine
from benchmarks.options import add_options, chosen, rounds_of
from benchmarks.ours.system import OURS
from benchmarks.peers import PEERS
from benchmarks.report import print_summary, summary
from benchmarks.results import draw, new_directory, say, write
from benchmarks.rounds import Run, measured, set_up
from benchmarks.scratch import scratch_directory
from benchmarks.sizes import Sizes
from benchmarks.systems import System
from benchmarks.workloads import Workload
from onceward.dev.kafka import LocalKafka

__all__ = ["Load", "loads", "main"]

_FIGURES = ("p50_ms", "p99_ms", "p99_9_ms", "cpu_s_per_million", "aborted_checkpoints")
_OURS = ("ours", "ours-staying")


class Load(NamedTuple):
    """What is sent."""

    rate: int
    """Records/s."""
    partitions: int

    def __str__(self) -> str:
        return f"{self.rate:,} records/s, {self.partitions} partition{'s' if self.partitions > 1 else ''}"


def loads(rates: Sequence[int], partitions: Sequence[int]) -> tuple[Load, ...]:
    """Return every rate at the first number of partitions, and every number of partitions at the first rate."""
    return tuple(
        dict.fromkeys((*(Load(rate, partitions[0]) for rate in rates), *(Load(rates[0], many) for many in partitions)))
    )


def main(arguments: Sequence[str]) -> Path:
    """Returns the directory with the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks latency", description=__doc__)
    parser.add_argument("--peers", default="", help="all, or some of: " + ", ".join(peer.name for peer in PEERS))
    parser.add_argument("--ours", default="all", help="all, or some of: " + ", ".join(_OURS))
    parser.add_argument("--rates", type=_numbers, help="records/s; the first one with each number of partitions")
    parser.add_argument("--partitions", type=_numbers, help="of input and output; the first one with each rate")
    parser.add_argument("--intervals", type=_numbers, help="milliseconds between commits or checkpoints")
    parser.add_argument("--threads", type=int, default=Sizes().threads, help="of each system; default: 2")
    add_options(parser)
    options = parser.parse_args(arguments)
    ours: dict[str, System] = {system.name: system for system in OURS if system.name in _OURS}
    peers: dict[str, System] = {system.name: system for system in PEERS}
    systems = [*chosen(parser, "--ours", options.ours, ours), *chosen(parser, "--peers", options.peers, peers)]
    quick = options.quick
    sizes = replace(Sizes(steady_s=2.0, warm_s=0.5) if quick else Sizes(), threads=options.threads)
    wanted = loads(
        options.rates or ((2_000,) if quick else (20_000, 1_000, 100_000)),
        options.partitions or ((4,) if quick else (4, 1, 16)),
    )
    intervals = options.intervals or ((50,) if quick else (25, 50, 100, 250, 1_000))
    rounds = rounds_of(options)
    console, place = Console(), new_directory(options.results, "latency")
    runs: list[Run] = []
    with scratch_directory(options.directory) as scratch:
        reasons = set_up(systems, say)
        ready = [system for system in systems if reasons[system.name] is None]
        results: dict[str, Any] = {
            "machine": describe_machine(scratch),
            "quick": quick,
            "rounds": rounds,
            "sizes": asdict(sizes),
            "loads": [str(load) for load in wanted],
            "systems": {s.name: {"versions": s.versions, "settings": s.settings} for s in systems},
            "set_up": reasons,
            "runs": runs,
        }
        with LocalKafka(heap="768m", directory=scratch / "kafka", properties=BROKER) as kafka:
            for load in wanted:
                of_load = replace(sizes, rate=load.rate, partitions=load.partitions)
                for run in _measured(Bench(kafka, of_load, scratch), load, ready, intervals, rounds):
                    runs.append(run)
                    write(results, place)
    results["summary"] = summary(runs)
    results["plots"] = "left out" if options.no_plots else draw(results, place)
    write(results, place)
    for load in wanted:
        print_summary(str(load), results["summary"].get(str(load), {}), console, _FIGURES)
    console.print(f"machine: {results['machine']}\n{place}", markup=False)
    return place


def _measured(
    bench: Bench, load: Load, systems: Sequence[System], intervals: Sequence[int], rounds: int
) -> Iterator[Run]:
    """In each round one point after the other, so that what the machine does for a while meets them all."""
    for number, interval_ms, system in product(range(1, rounds + 1), intervals, systems):
        name = f"{system.name} at {interval_ms:,} ms"
        run: Run = {"workload": str(load), "system": name, "round": number}
        run |= {"of": system.name, "interval_ms": interval_ms}
        yield measured(run, rounds, partial(bench.run, system, Workload.STEADY, interval_ms=interval_ms), say)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))
