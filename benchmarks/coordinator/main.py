"""``python -m benchmarks coordinator``: what one coordinator process on one core can carry.

The server is ``onceward serve`` on a core of its own with its store on disk; the load comes from this process. What the
disk and the rest of the machine do meanwhile is part of every number, so several runs say more than one.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table

from benchmarks.coordinator.committables import measure_committables
from benchmarks.coordinator.held import measure_held
from benchmarks.coordinator.jobs import measure_jobs, measure_participants, measure_slow_disk, measure_stores
from benchmarks.coordinator.listings import measure_listings
from benchmarks.coordinator.memory import measure_memory
from benchmarks.coordinator.page import measure_page, measure_readings
from benchmarks.coordinator.size import measure_decisions, measure_size
from benchmarks.machine import describe_machine
from benchmarks.results import RESULTS
from benchmarks.scratch import scratch_directory

__all__ = ["PARTS", "main"]

Rows: TypeAlias = list[dict[str, Any]]

PARTS: dict[str, tuple[str, Callable[[Path], Rows], Callable[[Path], Rows]]] = {
    "committables": (
        "one checkpoint by the committables of its sink, medians",
        lambda place: measure_committables(place, (10, 100, 1_000, 10_000), 7),
        lambda place: measure_committables(place, (10, 100), 2),
    ),
    "jobs": (
        "jobs with a checkpoint of 4 committables every second",
        lambda place: measure_jobs(place, (1, 10, 50, 200), 30.0),
        lambda place: measure_jobs(place, (1, 5), 3.0),
    ),
    "participants": (
        "1,000 jobs of a source and four sinks, by the interval of their checkpoints and the lease of their drivers",
        lambda place: measure_participants(place, 1_000, ((60, 10), (30, 10), (60, 30), (30, 30), (20, 30)), 30.0),
        lambda place: measure_participants(place, 5, ((1, 10),), 3.0),
    ),
    "stores": (
        "jobs with a checkpoint of 4 committables every second, by the kind of store",
        lambda place: measure_stores(place, (1, 50, 200), 30.0),
        lambda place: measure_stores(place, (2,), 3.0),
    ),
    "listings": (
        "40 jobs on PostgreSQL, with a checkpoint as often as they can, beside open listings; by turns",
        lambda place: measure_listings(place, 40, 400, 10.0, 3),
        lambda place: measure_listings(place, 2, 5, 2.0, 1),
    ),
    "decisions": (
        "the write of a decision, by the kind of store",
        lambda place: measure_decisions(place, 1_000),
        lambda place: measure_decisions(place, 20),
    ),
    "slow-disk": (
        "100 jobs with a checkpoint of 4 committables every second, where a commit takes so much longer",
        lambda place: measure_slow_disk(place, 100, (0, 20, 100), 60.0),
        lambda place: measure_slow_disk(place, 5, (20,), 3.0),
    ),
    "held": (
        "jobs that only hold their stream and their lease; the coordinator is killed and started again",
        lambda place: measure_held(place, (1, 100, 1_000), 20.0),
        lambda place: measure_held(place, (5,), 1.0),
    ),
    "memory": (
        "the coordinator's memory: 20 jobs with checkpoints of 10,000 committables",
        lambda place: measure_memory(place, 20, 10_000, 2),
        lambda place: measure_memory(place, 3, 100, 2),
    ),
    "page": (
        "the page, open in a browser, while 100 jobs take checkpoints of 4 committables; shares of one core",
        lambda place: measure_page(place, 100, (0, 10, 1), 20.0, 4),
        lambda place: measure_page(place, 3, (1,), 3.0, 1),
    ),
    "readings": (
        "one reading of the page of 100 jobs",
        lambda place: measure_readings(place, 100, 20),
        lambda place: measure_readings(place, 3, 2),
    ),
    "size": (
        "the store after so many settled checkpoints of 20 jobs, of which each keeps 10",
        lambda place: measure_size(place, 100_000),
        lambda place: measure_size(place, 2_000),
    ),
}
"""Name: what it says, and how it is measured in full and quickly, given a directory that it may make."""


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks coordinator", description=__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be repeated")
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it works, not how fast it is")
    parser.add_argument("--directory", type=Path, help="where the stores are kept meanwhile: the disk that is measured")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON file goes")
    options = parser.parse_args(arguments)
    console = Console()
    with scratch_directory(options.directory) as scratch:
        results: dict[str, Any] = {"machine": describe_machine(scratch), "quick": options.quick}
        for name in options.part or PARTS:
            title, full, quick = PARTS[name]
            with console.status(f"{name}: {title}"):
                results[name] = (quick if options.quick else full)(scratch / name)
            console.print(_table(f"{name}: {title}", results[name]))
    options.results.mkdir(parents=True, exist_ok=True)
    file = options.results / f"coordinator-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    console.print(f"machine: {results['machine']}\n{file}")


def _table(title: str, rows: Rows) -> Table:
    """What was measured has the longer side of the table."""
    table = Table(title=title, title_justify="left", show_header=False)
    columns = [[str(name), *(str(row[name]) for row in rows)] for name in rows[0]]
    lines = list(zip(*columns, strict=True)) if len(rows) > len(columns) else columns
    for number, line in enumerate(lines):
        table.add_row(*line, end_section=number == 0)
    return table
