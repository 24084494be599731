"""The report: what is shown, and what is written under ``build/network`` (report.json, report.md)."""

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from platform import python_version

from onceward.dev.toxiproxy.binary import VERSION
from tests.network.results import RECOVERY_LIMIT_S, Run
from tests.support.schedules import Outcome

__all__ = ["line", "numbers", "passed", "write"]


def passed(runs: Sequence[Run]) -> bool:
    """True when every run is good. Recovery times depend on the machine, so they do not count."""
    return bool(runs) and all(run.good for run in runs)


def line(run: Run) -> str:
    """A run in one line, followed by its reasons."""
    recovery = "" if run.recovery_s is None else f", back after {run.recovery_s:.1f} s"
    left = "" if run.left is None else f", the driver had left with {run.left}"
    killed = "" if run.killed is None else f" and the {run.killed} killed"
    lines = [
        f"{run.outcome.value:<7} {run.scenario}, {run.phase}{killed}: fault {run.fault_s:.0f} s{recovery}{left}, "
        f"connections {run.connections[0]} -> {run.connections[1]}, {run.seconds:.0f} s"
    ]
    lines += [f"    {text}" for reason in run.reasons for text in reason.splitlines()]
    return "\n".join(lines)


def numbers(runs: Sequence[Run]) -> dict[str, object]:
    """Totals and recovery times."""
    times = [run.recovery_s for run in runs if run.recovery_s is not None]
    return {
        "runs": len(runs),
        "good": sum(run.good for run in runs),
        "outcomes": {outcome.value: sum(run.outcome is outcome for run in runs) for outcome in Outcome},
        "void on purpose": sum(run.expected is Outcome.UNKNOWN for run in runs),
        "recovery_s": {
            "measured": len(times),
            "median": round(statistics.median(times), 2) if times else None,
            "worst": max(times, default=None),
            f"within {RECOVERY_LIMIT_S:.0f} s": sum(time <= RECOVERY_LIMIT_S for time in times),
        },
    }


def write(directory: Path, runs: Sequence[Run], *, seed: int, seconds: float) -> None:
    """Write both files. Called after every job, so that an interrupted suite leaves its results."""
    names = ("onceward", "pyspark", "confluent-kafka", "kafka-python", "grpcio")
    totals = {
        **numbers(runs),
        "seed": seed,
        "seconds": round(seconds),
        "passed": passed(runs),
        "versions": {"python": python_version(), "toxiproxy": VERSION, **{name: version(name) for name in names}},
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.json").write_text(json.dumps({"totals": totals, "runs": [asdict(r) for r in runs]}, indent=1))
    (directory / "report.md").write_text("\n".join(_markdown(runs, totals)) + "\n")


def _markdown(runs: Sequence[Run], totals: dict[str, object]) -> Iterator[str]:
    yield "# make network"
    yield ""
    yield from (f"- {name}: {json.dumps(value)}" for name, value in totals.items())
    yield ""
    yield "| scenario | row | phase | killed | outcome | good | fault s | back s | left | connections | per s | run s |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for run in runs:
        left = "" if run.left is None else run.left
        back = "" if run.recovery_s is None else f"{run.recovery_s:.1f}"
        yield (
            f"| {run.scenario} | {run.row} | {run.phase} | {run.killed or ''} | {run.outcome.value} "
            f"| {'yes' if run.good else 'NO'} | {run.fault_s:.1f} | {back} | {left} "
            f"| {run.connections[0]} → {run.connections[1]} | {run.connects_per_s} | {run.seconds:.0f} |"
        )
    for run in runs:
        if run.reasons:
            yield from ("", f"## {run.scenario}, {run.phase}", "", "```", *run.reasons, "```")
