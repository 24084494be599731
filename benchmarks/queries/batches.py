"""Where the time of a query's batches goes. Pure.

Four records of one machine's clock are combined: Spark's progress, Spark's event log, the moments at which Spark calls
the sink and gets control back, and the sink's journal. Parts follow each other without a gap, so those of one batch add
up to its trigger.
"""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.percentiles import percentile

__all__ = ["OWNERS", "WARM_UP", "Batch", "Jobs", "batches_of", "figures", "jobs_of"]

OWNERS = {
    "latestOffset": "source",
    "getBatch": "Spark",
    "walCommit": "Spark",
    "queryPlanning": "Spark",
    "call": "Spark",
    "identify": "sink",
    "plan job": "Spark",
    "launch": "Spark",
    "tasks": "Spark",
    "produce": "Kafka",
    "flush": "Kafka",
    "end": "Spark",
    "collect": "Spark",
    "prove": "sink",
    "acknowledge": "sink",
    "decide": "sink",
    "settle": "sink",
    "return": "sink",
    "commitOffsets": "Spark",
    "rest": "Spark",
}
"""Whose time each part is, in the order of the parts: Spark's, that of Onceward's source or sink, or that of the Kafka
client in a task. benchmarks/README.md says where each part begins and ends."""

WARM_UP = 5
"""First batches of a query, which start its workers and its state."""

_OF_PROGRESS = ("latestOffset", "getBatch", "walCommit", "queryPlanning", "commitOffsets")
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Spark's local properties of a query's jobs."""


@dataclass(kw_only=True)
class Jobs:
    """Moments of the Spark jobs of one batch, in seconds since the epoch."""

    submitted: float = float("inf")
    launched: float = float("inf")
    """The first task."""
    finished: float = 0.0
    """The last task."""
    ended: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One batch that had records."""

    number: int
    rows: int
    trigger_ms: float
    parts: Mapping[str, float]
    """Milliseconds by part; they add up to ``trigger_ms``."""


def jobs_of(log: Iterable[str]) -> dict[tuple[str, int], Jobs]:
    """Return the jobs by query id and batch. ``log``: the lines of Spark's event log."""
    found: dict[tuple[str, int], Jobs] = {}
    of_job: dict[int, Jobs] = {}
    of_stage: dict[int, Jobs] = {}
    for line in log:
        event = json.loads(line)
        match event["Event"]:
            case "SparkListenerJobStart" if _BATCH in (properties := event.get("Properties", {})):
                jobs = found.setdefault((properties[_QUERY], int(properties[_BATCH])), Jobs())
                jobs.submitted = min(jobs.submitted, event["Submission Time"] / 1000)
                of_job[event["Job ID"]] = jobs
                of_stage |= dict.fromkeys(event["Stage IDs"], jobs)
            case "SparkListenerTaskEnd" if event["Stage ID"] in of_stage:
                jobs, task = of_stage[event["Stage ID"]], event["Task Info"]
                jobs.launched = min(jobs.launched, task["Launch Time"] / 1000)
                jobs.finished = max(jobs.finished, task["Finish Time"] / 1000)
            case "SparkListenerJobEnd" if event["Job ID"] in of_job:
                jobs = of_job[event["Job ID"]]
                jobs.ended = max(jobs.ended, event["Completion Time"] / 1000)
    return found


def batches_of(
    progress: Iterable[Mapping[str, Any]],
    calls: Mapping[int, tuple[float, float]],
    jobs: Mapping[tuple[str, int], Jobs],
    events: Iterable[Mapping[str, Any]] | None,
) -> list[Batch]:
    """Return the batches with records, without those of the warm-up.

    ``calls``: by batch, when Spark called the sink and when that returned, in seconds since the epoch. ``events``: of
    the sink's journal; None for a sink without one.
    """
    steps = None if events is None else _steps(events)
    found = [
        _batch(one, calls[number], jobs[one["id"], number], None if steps is None else steps[number])
        for one in progress
        if one["numInputRows"] and (number := one["batchId"]) in calls
    ]
    return found[WARM_UP:]


def _batch(
    progress: Mapping[str, Any],
    call: tuple[float, float],
    jobs: Jobs,
    steps: tuple[Mapping[str, Any], Mapping[str, Any]] | None,
) -> Batch:
    took = progress["durationMs"]
    parts: dict[str, float] = {name: took.get(name, 0) for name in _OF_PROGRESS}
    inside = _noop(call, jobs) if steps is None else _ours(call, jobs, *steps)
    parts |= {name: seconds * 1000 for name, seconds in inside.items()}
    parts["call"] = took["addBatch"] - (call[1] - call[0]) * 1000
    parts["rest"] = took["triggerExecution"] - sum(parts.values())
    return Batch(
        number=progress["batchId"],
        rows=progress["numInputRows"],
        trigger_ms=took["triggerExecution"],
        parts={name: parts[name] for name in OWNERS if name in parts},
    )


def _noop(call: tuple[float, float], jobs: Jobs) -> dict[str, float]:
    return {
        "plan job": jobs.submitted - call[0],
        "launch": jobs.launched - jobs.submitted,
        "tasks": jobs.finished - jobs.launched,
        "end": jobs.ended - jobs.finished,
        "collect": call[1] - jobs.ended,
    }


def _ours(
    call: tuple[float, float], jobs: Jobs, committed: Mapping[str, Any], settled: Mapping[str, Any]
) -> dict[str, float]:
    before, after = committed["steps"], settled["steps"]
    handed_over = committed["at"] - sum(took for step, took in before.items() if step != "plan")
    spark = _noop((handed_over, committed["at"] - before["prove"]), jobs)
    spark["tasks"] -= before["produce"] + before["flush"]
    return {
        "identify": handed_over - call[0],
        **spark,
        "produce": before["produce"],
        "flush": before["flush"],
        "prove": before["prove"],
        "acknowledge": settled["at"] - sum(after.values()) - committed["at"],
        **after,
        "return": call[1] - settled["at"],
    }


def _steps(events: Iterable[Mapping[str, Any]]) -> dict[int, tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return, by batch, the events of its pre-commit and its end."""
    committed: dict[int, Mapping[str, Any]] = {}
    found: dict[int, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
    for event in events:
        if event["event"] == "pre-committed" and "batch" in event:
            committed[event["checkpoint"]] = event
        elif event["event"] == "settled" and event["checkpoint"] in committed:
            first = committed[event["checkpoint"]]
            found[first["batch"]] = (first, event)
    return found


def figures(batches: Sequence[Batch]) -> dict[str, Any]:
    """Return the figures of one turn. Parts are means over the middle half of the batches, sorted by their duration:
    they add up to about the median, and rare slow batches do not count."""
    triggers = [batch.trigger_ms for batch in batches]
    ordered = sorted(batches, key=lambda batch: batch.trigger_ms)
    middle = ordered[len(ordered) // 4 : len(ordered) - len(ordered) // 4]
    return {
        "batches": len(batches),
        "rows": statistics.median(batch.rows for batch in batches),
        "batch_ms": round(percentile(triggers, 0.5), 1),
        "batch_p90_ms": round(percentile(triggers, 0.9), 1),
        "parts": {name: round(statistics.fmean(batch.parts[name] for batch in middle), 1) for name in middle[0].parts},
    }
