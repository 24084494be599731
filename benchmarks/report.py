"""Medians, ratios and tables of runs.

A ratio is computed per round, between runs made in succession, and its median counts: whatever disturbed the machine in
one round affected both sides.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.ours.timeline import STEPS
from benchmarks.rounds import Run

__all__ = ["GOALS", "Spread", "goals", "print_report", "print_steps", "print_summary", "ratios", "steps", "summary"]

_NO_FIGURES = ("records", "output_records", "output_checksum", "measured", "sent", "seen", "twice", "not_sent")


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Spread of one figure over the rounds."""

    median: float
    least: float
    most: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(median=statistics.median(values), least=min(values), most=max(values), rounds=len(values))

    def as_json(self) -> dict[str, float]:
        return {"median": self.median, "min": self.least, "max": self.most, "rounds": self.rounds}


def values(runs: Iterable[Run], workload: str, system: str, figure: str) -> dict[int, float]:
    """Return the figure by round; omits rounds without it."""
    return {
        run["round"]: run["figures"][figure]
        for run in runs
        if (run["workload"], run["system"]) == (workload, system) and figure in run.get("figures", {})
    }


def summary(runs: Sequence[Run]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return, by workload, system and figure, the spread over the rounds, or the reason why there is none."""
    made: dict[str, dict[str, dict[str, Any]]] = {}
    for run in runs:
        figures = made.setdefault(run["workload"], {}).setdefault(run["system"], {})
        for reason in ("failed", "not_offered"):
            if reason in run:
                figures.setdefault(reason, []).append(run[reason])
        for figure, value in run.get("figures", {}).items():
            if isinstance(value, int | float) and figure not in _NO_FIGURES and figure not in figures:
                found = values(runs, run["workload"], run["system"], figure)
                figures[figure] = Spread.of(list(found.values())).as_json()
    return made


def steps(runs: Iterable[Run]) -> dict[str, dict[str, dict[str, float]]]:
    """Return, by workload, system and step of a checkpoint, the milliseconds: the median over the rounds of each
    round's median. Besides the steps: `overlap` with the next checkpoint, and `offsets` read."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for run in runs:
        timeline = run.get("figures", {}).get("timeline")
        if timeline and timeline["checkpoints"]:
            of = found.setdefault(run["workload"], {}).setdefault(run["system"], {})
            more = {"overlap": timeline["median_overlap_ms"], "offsets": timeline["median_read"]}
            for name, value in {**timeline["median_ms"], **more}.items():
                of.setdefault(name, []).append(value)
    return {
        workload: {
            system: {name: statistics.median(measured) for name, measured in of.items()}
            for system, of in systems.items()
        }
        for workload, systems in found.items()
    }


def ratios(
    runs: Sequence[Run], workload: str, figure: str, system: str, others: Sequence[str], *, least: bool = False
) -> tuple[str, Spread] | None:
    """Return the best of `others` by its median, and the ratio of `system`'s figure to the best one's, per round;
    None if either is missing.

    `least`: the lowest median is the best.
    """
    ours = values(runs, workload, system, figure)
    medians = {other: statistics.median(found.values()) for other in others if (found := values(
        runs, workload, other, figure
    ))}  # fmt: skip
    if not ours or not medians:
        return None
    best = (min if least else max)(medians, key=medians.__getitem__)
    theirs = values(runs, workload, best, figure)
    both = [ours[number] / theirs[number] for number in sorted(ours.keys() & theirs.keys()) if theirs[number]]
    return (best, Spread.of(both)) if both else None


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A figure to reach: the figure itself if `others` is empty, else its ratio to the best of them."""

    name: str
    workload: str
    figure: str
    system: str = "ours"
    others: tuple[str, ...] = ()
    reach: float
    at_most: bool = False
    """Whether the goal is an upper bound: less is better."""


_PEERS = ("flink", "streams", "quix")
_RATE = "records_per_s"
GOALS = (
    Goal(name="copy, fused, against the best peer", workload="copy", figure=_RATE, others=_PEERS, reach=1.5),
    Goal(name="copy, fused, against the C program", workload="copy", figure=_RATE, others=("c",), reach=0.9),
    Goal(
        name="copy, DataFrame, against the best peer",
        workload="copy", figure=_RATE, system="ours-dataframe", others=_PEERS, reach=1.0,
    ),
    Goal(
        name="JSON in DataFrame functions against Flink SQL",
        workload="json", figure=_RATE, system="ours-dataframe", others=("flink",), reach=1.0,
    ),
    Goal(
        name="exactly once against our own at least once",
        workload="copy", figure=_RATE, others=("ours-at-least-once",), reach=0.95,
    ),
    Goal(name="checkpoint of 4 slots, 1,000 records, ms", workload="cycle", figure="cycle_ms", reach=100, at_most=True),
    Goal(name="end to end at 20k records/s, p50 ms", workload="steady", figure="p50_ms", reach=160, at_most=True),
    Goal(name="end to end at 20k records/s, p99 ms", workload="steady", figure="p99_ms", reach=280, at_most=True),
    Goal(
        name="CPU seconds per million, fused, against the best JVM peer",
        workload="copy", figure="cpu_s_per_million", others=("flink", "streams"), reach=1.0, at_most=True,
    ),
    Goal(
        name="peak memory (PSS) for the copy against Flink",
        workload="copy", figure="peak_pss_mb", others=("flink",), reach=1.0, at_most=True,
    ),
)  # fmt: skip


def goals(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return each goal with the measurement, or with None if a side is missing."""
    rows = []
    for goal in GOALS:
        against, spread = None, None
        if goal.others:
            found = ratios(runs, goal.workload, goal.figure, goal.system, goal.others, least=goal.at_most)
            if found is not None:
                against, spread = found
        elif measured := values(runs, goal.workload, goal.system, goal.figure):
            spread = Spread.of(list(measured.values()))
        reached = None
        if spread is not None:
            reached = spread.median <= goal.reach if goal.at_most else spread.median >= goal.reach
        rows.append(
            {
                "goal": goal.name,
                "reach": goal.reach,
                "at_most": goal.at_most,
                "against": against,
                "measured": spread.as_json() if spread else None,
                "reached": reached,
            }
        )
    return rows


def print_report(results: dict[str, Any], console: Console) -> None:
    """Print the result as tables: a row per system and workload, then the goals."""
    for workload, systems in results["summary"].items():
        print_summary(workload, systems, console)
    for system, reason in results["set_up"].items():
        if reason:
            console.print(f"  {system} was not measured: {reason}", markup=False)
    print_steps(results["steps"], console)
    table = Table(title="goals", title_justify="left")
    for name in ("figure", "reach", "measured", "min", "max", "against", ""):
        table.add_column(name)
    for row in results["goals"]:
        measured = row["measured"]
        cells = [f"{measured[name]:,.2f}" for name in ("median", "min", "max")] if measured else ["-", "-", "-"]
        verdict = {True: "reached", False: "not reached", None: "not measured"}[row["reached"]]
        bound = "at most" if row["at_most"] else "at least"
        table.add_row(row["goal"], f"{bound} {row['reach']:g}", *cells, row["against"] or "", verdict)
    console.print(table)


def print_summary(
    title: str, systems: Mapping[str, Mapping[str, Any]], console: Console, figures: Sequence[str] = ()
) -> None:
    """Print one workload of the summary: a row per system, and reasons for missing figures. No ``figures``: all."""
    table = Table(title=title, title_justify="left")
    names = figures or list(dict.fromkeys(name for of in systems.values() for name in of if name not in _REASONS))
    for name in ("system", *names):
        table.add_column(name.replace("_", " "), justify="left" if name == "system" else "right")
    for system, found in systems.items():
        table.add_row(system, *(_cell(found.get(name)) for name in names))
    console.print(table)
    for system, found in systems.items():
        for reason in dict.fromkeys(text for kind in _REASONS for text in found.get(kind, ())):
            console.print(f"  {system}: {reason}", markup=False)


def print_steps(workloads: Mapping[str, Mapping[str, Mapping[str, float]]], console: Console) -> None:
    """Print the steps of checkpoints as a table per workload, a column per system."""
    for workload, systems in workloads.items():
        reported = {name for of in systems.values() for name in of}
        table = Table(title=f"{workload}: medians of a checkpoint: ms of its steps, offsets", title_justify="left")
        table.add_column("step")
        for system in systems:
            table.add_column(system, justify="right")
        for name in (*(step for step in STEPS if step in reported), *sorted(reported.difference(STEPS))):
            table.add_row(name, *(f"{of[name]:,g}" if name in of else "-" for of in systems.values()))
        console.print(table)


_REASONS = ("failed", "not_offered")


def _cell(spread: dict[str, float] | None) -> str:
    if spread is None:
        return "-"
    if spread["min"] == spread["max"]:
        return f"{spread['median']:,g}"
    return f"{spread['median']:,g} ({spread['min']:,g}-{spread['max']:,g})"
