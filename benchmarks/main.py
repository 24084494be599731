"""``make bench``: our job, and with ``PEERS=`` its peers, on one broker in one run; JSON, tables and plots.

First sets up the dependencies of the chosen peers. A system that cannot be set up, ends early, or writes a wrong output
has no figures; the result gives the reason.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.bench import BROKER, Bench
from benchmarks.machine import describe_machine
from benchmarks.options import add_options, chosen, rounds_of
from benchmarks.ours.system import OURS
from benchmarks.peers import PEERS
from benchmarks.report import goals, print_report, steps, summary
from benchmarks.results import draw, new_directory, say, write
from benchmarks.rounds import Run, run_rounds, set_up
from benchmarks.scratch import scratch_directory
from benchmarks.sizes import Sizes
from benchmarks.systems import System
from benchmarks.workloads import Workload
from onceward.dev.kafka import LocalKafka

__all__ = ["main"]

_QUICK = Sizes(
    records=20_000, interval_ms=200, steady_s=2.0, warm_s=0.5, rate=2_000, small_checkpoints=6, small_records=100
)  # fmt: skip


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; return the directory with the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--peers", default="", help="all, or some of: " + ", ".join(peer.name for peer in PEERS))
    parser.add_argument("--ours", default="all", help="all, or some of: " + ", ".join(ours.name for ours in OURS))
    parser.add_argument("--workloads", default="all", help="all, or some of: " + ", ".join(Workload))
    parser.add_argument("--records", type=int, help=f"in a full topic; default: {Sizes().records:,}")
    parser.add_argument("--per-checkpoint", type=int, help="most records of one checkpoint of ours; 0: adaptive")
    parser.add_argument("--threads", type=int, help="of each system; default: 2")
    parser.add_argument("--rate", type=int, help="records/s of steady and backlog; default: 20,000")
    add_options(parser)
    options = parser.parse_args(arguments)
    console = Console()
    ours: dict[str, System] = {system.name: system for system in OURS}
    peers: dict[str, System] = {system.name: system for system in PEERS}
    systems = [*chosen(parser, "--ours", options.ours, ours), *chosen(parser, "--peers", options.peers, peers)]
    workloads = chosen(parser, "--workloads", options.workloads, {workload.value: workload for workload in Workload})
    given = {name: getattr(options, name) for name in ("records", "per_checkpoint", "threads", "rate")}
    base = _QUICK if options.quick else Sizes()
    sizes = Sizes(**{**asdict(base), **{name: value for name, value in given.items() if value is not None}})
    rounds = rounds_of(options)

    place = new_directory(options.results, "systems")
    runs: list[Run] = []
    with scratch_directory(options.directory) as scratch:
        reasons = set_up(systems, say)
        ready = [system for system in systems if reasons[system.name] is None]
        results: dict[str, Any] = {
            "machine": describe_machine(scratch),
            "quick": options.quick,
            "rounds": rounds,
            "sizes": asdict(sizes),
            "systems": {s.name: {"versions": s.versions, "settings": s.settings} for s in systems},
            "set_up": reasons,
            "runs": runs,
        }
        with LocalKafka(heap="768m", directory=scratch / "kafka", properties=BROKER) as kafka:
            for run in run_rounds(Bench(kafka, sizes, scratch), ready, workloads, rounds, say):
                runs.append(run)
                write(results, place)  # so that a later failure does not lose hours of work
    results |= {"summary": summary(runs), "steps": steps(runs), "goals": goals(runs)}
    results["plots"] = "left out" if options.no_plots else draw(results, place)
    write(results, place)
    print_report(results, console)
    console.print(f"machine: {results['machine']}\n{place}", markup=False)
    return place
