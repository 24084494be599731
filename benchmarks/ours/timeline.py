"""A checkpoint's steps in time, as the job's journal tells them.

Read from the events: ``pre-committed`` (`seconds`: from the plan to the votes) and ``settled``. A journal that tells
more is understood: ``planned`` and ``completed`` at the moment when planning ended and when the decision arrived, and a
``steps`` object in ``pre-committed`` with seconds of `schedule`, `read`, `transform`, `produce`, `flush` and `vote`, of
the slowest slot. What no event tells is named as missing, and shown as part of the span around it.
"""

import itertools
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

__all__ = ["STEPS", "Span", "Timeline"]

STEPS = {
    "plan": "event `planned` (checkpoint, seconds)",
    "schedule": "`steps.schedule` in event `pre-committed`",
    "read": "`steps.read` in event `pre-committed`",
    "transform": "`steps.transform` in event `pre-committed`",
    "produce": "`steps.produce` in event `pre-committed`",
    "flush": "`steps.flush` in event `pre-committed`",
    "vote": "`steps.vote` in event `pre-committed`",
    "decide": "event `completed` (checkpoint) when the decision arrives",
    "settle": "event `completed`, which ends `decide` and begins `settle`",
}
"""Each step, and what the journal has to tell for it."""

_IN_TASKS = ("schedule", "read", "transform", "produce", "flush", "vote")
_WARM_UP = 3
"""Checkpoints that pay for the start of processes."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """One step, or several that the journal does not tell apart."""

    checkpoint: int
    step: str
    began: float
    """Seconds since the first span of the timeline."""
    ended: float


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Of one run; `settled` are the moments at which checkpoints were settled."""

    spans: tuple[Span, ...]
    settled: tuple[float, ...]
    runs: tuple[float, ...]
    """Seconds from a checkpoint's plan to its votes."""
    missing: dict[str, str]
    """Steps that are not told, with the event that would tell them."""

    @classmethod
    def read(cls, file: Path) -> Self:
        """From a journal; an empty one is an empty timeline."""
        return cls.of([json.loads(line) for line in file.read_text().splitlines()])

    @classmethod
    def of(cls, events: list[dict[str, Any]]) -> Self:
        found: dict[str, dict[int, dict[str, Any]]] = {}
        for event in events:
            if "checkpoint" in event:
                found.setdefault(event["event"], {})[event["checkpoint"]] = event
        spans: list[Span] = []
        for checkpoint, run in found.get("pre-committed", {}).items():
            marks = {name: of[checkpoint] for name, of in found.items() if checkpoint in of}
            spans += _spans(checkpoint, run, marks)
        zero = min((span.began for span in spans), default=0.0)
        told = {step for span in spans for step in span.step.split("+") if "+" not in span.step}
        settled = found.get("settled", {})
        return cls(
            spans=tuple(
                Span(checkpoint=s.checkpoint, step=s.step, began=s.began - zero, ended=s.ended - zero) for s in spans
            ),
            settled=tuple(settled[checkpoint]["at"] - zero for checkpoint in sorted(settled)),
            runs=tuple(run["seconds"] for run in found.get("pre-committed", {}).values()),
            missing={step: event for step, event in STEPS.items() if step not in told},
        )

    def cycle(self) -> dict[str, Any]:
        """Milliseconds from one settled checkpoint to the next, and of the Spark job within, without the first ones."""
        gaps = [b - a for a, b in itertools.pairwise(self.settled[_WARM_UP:])]
        if not gaps:
            return {"checkpoints": len(self.settled), "timeline": self.as_json()}
        return {
            "checkpoints": len(self.settled),
            "cycle_ms": round(statistics.median(gaps) * 1000, 1),
            "cycle_ms_worst": round(max(gaps) * 1000, 1),
            "job_ms": round(statistics.median(self.runs[_WARM_UP:]) * 1000, 1),
            "timeline": self.as_json(),
        }

    def as_json(self) -> dict[str, Any]:
        """For the result and the picture: spans of the last checkpoints, medians of all, and what is missing."""
        last = {span.checkpoint for span in self.spans}
        shown = set(sorted(last)[-12:])
        took: dict[str, list[float]] = {}
        for span in self.spans:
            took.setdefault(span.step, []).append((span.ended - span.began) * 1000)
        return {
            "median_ms": {step: round(statistics.median(values), 1) for step, values in took.items()},
            "missing": self.missing,
            "spans": [
                {"checkpoint": s.checkpoint, "step": s.step, "began_s": round(s.began, 4), "ended_s": round(s.ended, 4)}
                for s in self.spans
                if s.checkpoint in shown
            ],
        }


def _spans(checkpoint: int, run: dict[str, Any], marks: dict[str, dict[str, Any]]) -> list[Span]:
    """The steps of one checkpoint, in order, without gaps but the one in which it waits for its turn."""
    made: list[Span] = []

    def add(step: str, began: float, ended: float) -> None:
        made.append(Span(checkpoint=checkpoint, step=step, began=began, ended=max(began, ended)))

    began, ended = run["at"] - run["seconds"], run["at"]
    if planned := marks.get("planned"):
        add("plan", planned["at"] - planned.get("seconds", 0.0), planned["at"])
    told = run.get("steps", {})
    if told:
        at = began
        for step in _IN_TASKS:
            if step in told:
                add(step, at, at + told[step])
                at += told[step]
    else:
        add("+".join(_IN_TASKS), began, ended)
    settled = marks.get("settled")
    if completed := marks.get("completed"):
        add("decide", ended, completed["at"])
        if settled:
            add("settle", completed["at"], settled["at"])
    elif settled:
        add("decide+settle", ended, settled["at"])
    return made
