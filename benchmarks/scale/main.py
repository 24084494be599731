"""``python -m benchmarks scale``: how our job's figures change with partitions, executors, the size of records, and the
slots of a checkpoint; JSON, tables and pictures.

One thing is varied at a time. What failed, or wrote the wrong output, is in the result with the reason, and has no
figures.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.bench import BROKER, Bench
from benchmarks.errors import BenchmarkError
from benchmarks.machine import describe_machine
from benchmarks.options import add_options, rounds_of
from benchmarks.report import print_steps, print_summary, steps, summary
from benchmarks.results import draw, new_directory, say, write
from benchmarks.rounds import Run, measured
from benchmarks.scale.axes import Axis, Point, axes
from benchmarks.scratch import scratch_directory
from benchmarks.workloads import Workload
from onceward.dev.kafka import LocalKafka

__all__ = ["main", "more"]


def main(arguments: Sequence[str]) -> Path:
    """Returns the directory with the results."""
    names = [axis.name for axis in axes(quick=True)]
    parser = argparse.ArgumentParser(prog="python -m benchmarks scale", description=__doc__)
    parser.add_argument("--axis", choices=names, action="append", help="vary only this; may be repeated")
    add_options(parser)
    options = parser.parse_args(arguments)
    chosen = [axis for axis in axes(quick=options.quick) if axis.name in (options.axis or names)]
    rounds = rounds_of(options)
    console = Console()
    place = new_directory(options.results, "scale")
    runs: list[Run] = []
    with scratch_directory(options.directory) as scratch:
        results: dict[str, Any] = {
            "machine": describe_machine(scratch),
            "quick": options.quick,
            "rounds": rounds,
            "axes": {axis.name: _described(axis) for axis in chosen},
            "runs": runs,
        }
        with LocalKafka(heap="768m", directory=scratch / "kafka", properties=BROKER) as kafka:
            for axis in chosen:
                for run in _measured(axis, kafka, scratch, rounds):
                    runs.append(run)
                    write(results, place)
    results |= {"summary": summary(runs), "steps": steps(runs)}
    results["plots"] = "left out" if options.no_plots else draw(results, place)
    write(results, place)
    for axis in chosen:
        print_summary(axis.title, results["summary"][axis.name], console, axis.figures)
    print_steps(results["steps"], console)
    console.print(f"machine: {results['machine']}\n{place}", markup=False)
    return place


def _described(axis: Axis) -> dict[str, Any]:
    """For the result and the pictures."""
    return {
        "title": axis.title,
        "unit": axis.unit,
        "figures": list(axis.figures),
        "points": {
            axis.named(point): {"at": point.at, "sizes": asdict(point.sizes), "settings": point.system.settings}
            for point in axis.points
        },
    }


def _measured(axis: Axis, kafka: LocalKafka, scratch: Path, rounds: int) -> Iterator[Run]:
    """In each round one point after the other, so that what the machine does for a while meets them all."""
    benches = {point.at: Bench(kafka, point.sizes, scratch) for point in axis.points}
    try:
        for number in range(1, rounds + 1):
            for point in axis.points:
                run: Run = {"workload": axis.name, "system": axis.named(point), "round": number}
                yield measured(run, rounds, partial(_figures, axis, point, benches[point.at]), say)
    finally:
        for bench in benches.values():
            bench.close()


def _figures(axis: Axis, point: Point, bench: Bench) -> dict[str, Any]:
    figures = bench.run(point.system, axis.workload)
    return figures | more(axis.workload, point, figures)


def more(workload: Workload, point: Point, figures: dict[str, Any]) -> dict[str, Any]:
    """Figures that follow from others. Raises BenchmarkError when they are about something else than they should."""
    size = point.sizes.record_bytes
    if workload is not Workload.CYCLE:
        return {
            "mb_per_s": round(figures["records_per_s"] * size / 1e6, 1),
            "cpu_s_per_gb": round(figures["cpu_s_per_million"] / size * 1e3, 2),
        }
    if figures.get("slots") != point.at:
        raise BenchmarkError(f"Checkpoints had {figures.get('slots')} slots and not {point.at}: they say nothing.")
    return {"ms_per_slot": round(figures["cycle_ms"] / point.at, 2)}
