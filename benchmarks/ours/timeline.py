"""The steps of checkpoints in time, as the job's journal reports them (docs/reference/events.md).

``pre-committed`` reports seconds of the steps up to its own moment, ``settled`` of those after the acknowledgement.
Steps that the job cannot separate come as one, for example ``read+transform`` where they share Spark's JVM.
"""

import itertools
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

__all__ = ["STEPS", "Span", "Timeline"]

STEPS = (
    "plan",
    "schedule",
    "queue",
    "read",
    "transform",
    "read+transform",
    "produce",
    "flush",
    "vote",
    "prove",
    "decide",
    "settle",
)
"""In the order in which they follow each other."""

_WARM_UP = 3
"""Checkpoints that pay for the start of processes."""
_SHOWN = 12
"""Checkpoints in a picture."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """One step of one checkpoint."""

    checkpoint: int
    step: str
    began: float
    """Seconds since the epoch."""
    ended: float


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Of one run: its checkpoints that were settled and had read something, without those that came first."""

    spans: tuple[Span, ...]
    settled: tuple[float, ...]
    """Moments, in seconds since the epoch."""
    jobs: tuple[float, ...]
    """Seconds from the end of a checkpoint's plan to the proof of its votes."""
    read: tuple[int, ...]
    """Offsets."""
    slots: tuple[int, ...]
    """With something in them, so with a transaction; 0 where the job writes none."""
    checkpoints: int
    """All that were settled, with the first ones."""
    aborted: int
    """Checkpoints that came to nothing: the output is right all the same, but what they did is in every figure."""

    @classmethod
    def from_file(cls, file: Path) -> Self:
        """A journal; an empty one is an empty timeline."""
        return cls.of([json.loads(line) for line in file.read_text().splitlines()])

    @classmethod
    def of(cls, events: Iterable[Mapping[str, Any]]) -> Self:
        committed: dict[int, Mapping[str, Any]] = {}
        settled: dict[int, Mapping[str, Any]] = {}
        aborted = 0
        for event in events:
            aborted += event["event"] == "aborted"
            if event["event"] == "pre-committed":
                committed[event["checkpoint"]] = event
            elif event["event"] == "settled" and event["checkpoint"] in committed:
                settled[event["checkpoint"]] = event
        counted = sorted(settled)[_WARM_UP:]
        return cls(
            spans=tuple(
                span
                for checkpoint in counted
                for event in (committed[checkpoint], settled[checkpoint])
                for span in _spans(checkpoint, event)
            ),
            settled=tuple(settled[checkpoint]["at"] for checkpoint in counted),
            jobs=tuple(committed[checkpoint]["seconds"] for checkpoint in counted),
            read=tuple(committed[checkpoint]["read"] for checkpoint in counted),
            slots=tuple(committed[checkpoint]["transactions"] for checkpoint in counted),
            checkpoints=len(settled),
            aborted=aborted,
        )

    def cycle(self) -> dict[str, Any]:
        """Milliseconds from one settled checkpoint to the next, and of the Spark job within; the slots that it had."""
        gaps = [b - a for a, b in itertools.pairwise(self.settled)]
        if not gaps:
            return {"checkpoints": self.checkpoints}
        return {
            "checkpoints": self.checkpoints,
            "cycle_ms": _ms(statistics.median(gaps)),
            "cycle_ms_worst": _ms(max(gaps)),
            "job_ms": _ms(statistics.median(self.jobs)),
            "slots": statistics.median(self.slots),
        }

    def overlaps(self) -> list[float]:
        """Seconds that each checkpoint went on after the next one had begun, as far as they were both there."""
        whole: dict[int, tuple[float, float]] = {}
        for span in self.spans:
            began, ended = whole.get(span.checkpoint, (span.began, span.ended))
            whole[span.checkpoint] = (min(began, span.began), max(ended, span.ended))
        return [max(0.0, one[1] - next_[0]) for one, next_ in itertools.pairwise(whole.values())]

    def as_json(self) -> dict[str, Any]:
        """For the result and the picture: medians of all checkpoints, and spans of the last ones in seconds."""
        took: dict[str, list[float]] = {}
        for span in self.spans:
            took.setdefault(span.step, []).append(span.ended - span.began)
        shown = set(list(dict.fromkeys(span.checkpoint for span in self.spans))[-_SHOWN:])
        zero = min((span.began for span in self.spans if span.checkpoint in shown), default=0.0)
        return {
            "checkpoints": len(self.settled),
            "median_read": _median(self.read),
            "median_ms": {step: _ms(statistics.median(took[step])) for step in _in_order(took)},
            "median_overlap_ms": _ms(_median(self.overlaps())),
            "spans": [
                {
                    "checkpoint": span.checkpoint,
                    "step": span.step,
                    "began_s": round(span.began - zero, 6),
                    "ended_s": round(span.ended - zero, 6),
                }
                for span in self.spans
                if span.checkpoint in shown
            ],
        }


def _in_order(steps: Iterable[str]) -> list[str]:
    """Steps that are not known here come last: the journal of another version may report them."""
    return sorted(steps, key=lambda step: STEPS.index(step) if step in STEPS else len(STEPS))


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _spans(checkpoint: int, event: Mapping[str, Any]) -> list[Span]:
    """The event's steps one after the other, the last one until the event's own moment."""
    made: list[Span] = []
    ended = event["at"]
    for step, took in reversed(event["steps"].items()):
        made.insert(0, Span(checkpoint=checkpoint, step=step, began=ended - took, ended=ended))
        ended -= took
    return made
