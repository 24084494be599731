"""Traces of a driver: what it does of each checkpoint, with the work of its tasks as their votes report it. Executors
need no package."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onceward.connectors.tasks import Vote
from onceward.coordinator.service.observer import Observer
from onceward.protocol.values import NO_CHECKPOINT, CheckpointId, Generation, JobName
from onceward.watch.traces.ids import TraceIds, ids_of
from onceward.watch.traces.names import Attribute, Attributes, SpanName, identity

if TYPE_CHECKING:
    from onceward.watch.traces.spans import Spans

__all__ = ["MAX_SLOTS", "NOT_TRACED", "DriverTraces", "Traced", "trace"]

MAX_SLOTS = 100
"""Slots of one checkpoint with spans: those that took longest. A batch of the SDK holds 512 spans."""

_STEPS = (SpanName.READ, SpanName.TRANSFORM, SpanName.READ_TRANSFORM, SpanName.PRODUCE, SpanName.FLUSH)
"""Of a slot, in the order in which they are drawn."""


class DriverTraces:
    """Records spans of one job when they have ended. Thread-safe: the driver's main thread and its settler call it."""

    def __init__(self, spans: "Spans", job: JobName) -> None:
        self._spans = spans
        self._job = job
        self._store_id = ""
        self._generation = 0
        self._aborted = NO_CHECKPOINT
        """The last one with a span. A driver aborts what it declines, and again when it gets the decision."""

    def opened(self, store_id: str, generation: Generation) -> None:
        """A generation begins."""
        self._store_id, self._generation = store_id, generation

    def wrote(
        self,
        checkpoint: CheckpointId,
        votes: Sequence[Vote],
        *,
        plan_s: float,
        run_s: float,
        prove_s: float,
        read: int,
        transactions: int,
    ) -> None:
        """A checkpoint was pre-committed just now; the durations are those of its steps."""
        ids, given, now = self._of(checkpoint)
        voted = now - prove_s
        began = voted - run_s
        self._spans.child(ids, SpanName.PLAN, began - plan_s, began, {**given, Attribute.RECORDS_READ: read})
        run = self._spans.child(ids, SpanName.RUN, began, voted, {**given, **_sums(votes), Attribute.SLOTS: len(votes)})
        self._slots(ids, run, votes, given, began, voted)
        self._spans.child(ids, SpanName.PROVE, voted, now, {**given, Attribute.TRANSACTIONS: transactions})

    def not_written(self, checkpoint: CheckpointId, *, plan_s: float, run_s: float) -> None:
        """Running or proving a checkpoint has just failed; :meth:`aborted` records why."""
        ids, given, now = self._of(checkpoint)
        began = now - run_s
        self._spans.child(ids, SpanName.PLAN, began - plan_s, began, given)
        self._spans.child(ids, SpanName.RUN, began, now, given, "it failed; the span abort says why")

    def settled(self, checkpoint: CheckpointId, *, seconds: float, transactions: int) -> None:
        """The transactions of a checkpoint were committed and recorded just now."""
        ids, given, now = self._of(checkpoint)
        given = {**given, Attribute.TRANSACTIONS: transactions}
        self._spans.child(ids, SpanName.SETTLE, now - seconds, now, given, parent=ids.settle)

    def replayed(self, checkpoint: CheckpointId, votes: Sequence[Vote], *, seconds: float, transactions: int) -> None:
        """Lost slots were written again just now."""
        ids, given, now = self._of(checkpoint)
        attributes = {**given, **_sums(votes), Attribute.SLOTS: len(votes), Attribute.TRANSACTIONS: transactions}
        replay = self._spans.child(ids, SpanName.REPLAY, now - seconds, now, attributes)
        self._slots(ids, replay, votes, given, now - seconds, now)

    def replay_declined(self, checkpoint: CheckpointId, reason: str) -> None:
        """Lost slots cannot be written again."""
        ids, given, now = self._of(checkpoint)
        self._spans.child(ids, SpanName.REPLAY, now, now, given, reason)

    def aborted(self, checkpoint: CheckpointId, reason: str, *, seconds: float, transactions: int) -> None:
        """The transactions of a checkpoint were aborted just now."""
        if checkpoint == self._aborted:
            return
        self._aborted = checkpoint
        ids, given, now = self._of(checkpoint)
        given = {**given, Attribute.TRANSACTIONS: transactions}
        self._spans.child(ids, SpanName.ABORT, now - seconds, now, given, reason)

    def _of(self, checkpoint: CheckpointId) -> tuple[TraceIds, dict[Attribute, str | int], float]:
        given = identity(self._job, self._generation, checkpoint)
        return ids_of(self._store_id, self._job, checkpoint), given, time.time()

    def _slots(
        self,
        ids: TraceIds,
        parent: int,
        votes: Sequence[Vote],
        given: Attributes,
        began: float,
        ended: float,
    ) -> None:
        """Record the slots below ``parent``, which lasted from ``began`` to ``ended``."""
        reported = sorted((vote for vote in votes if vote.steps), key=_took, reverse=True)
        # clocks of executors may differ from the driver's: a slot lies within its checkpoint's run
        begins = [max(began, min(began + vote.steps["schedule"], ended - _took(vote))) for vote in reported]
        for vote, at in list(zip(reported, begins, strict=True))[:MAX_SLOTS]:
            attributes = {**given, Attribute.SLOT: vote.slot, **_sums((vote,))}
            slot = self._spans.child(ids, SpanName.SLOT, at, at + _took(vote), attributes, parent=parent)
            for step, seconds in _steps(vote):
                named = {**given, Attribute.SLOT: vote.slot}
                self._spans.child(ids, step, at, at + seconds, named, parent=slot)
                at += seconds
        if reported:
            last = max(at + _took(vote) for vote, at in zip(reported, begins, strict=True))
            self._spans.child(ids, SpanName.VOTE, last, ended, given, parent=parent)


def _steps(vote: Vote) -> Iterator[tuple[SpanName, float]]:
    return ((step, vote.steps[step]) for step in _STEPS if step in vote.steps)


def _took(vote: Vote) -> float:
    """Seconds of a slot's task."""
    return sum(seconds for _, seconds in _steps(vote))


def _sums(votes: Iterable[Vote]) -> dict[Attribute, str | int]:
    votes = tuple(votes)
    return {
        Attribute.RECORDS_WRITTEN: sum(vote.records for vote in votes),
        Attribute.BYTES_WRITTEN: sum(vote.bytes for vote in votes),
    }


@dataclass(frozen=True, kw_only=True)
class Traced:
    """What records a job's spans; None for each without traces."""

    traces: DriverTraces | None = None
    observer: Observer | None = None
    """Of the embedded coordinator, if there is one."""


NOT_TRACED = Traced()


def trace(stack: contextlib.ExitStack, wanted: bool, job: JobName, *, embedded: bool) -> Traced:
    """Export a job's traces until ``stack`` closes. Raises ConfigurationError for variables OTEL_* that cannot be
    used."""
    if not wanted:
        return NOT_TRACED
    from onceward.watch.traces.coordinator import CoordinatorTraces
    from onceward.watch.traces.spans import Spans

    spans = Spans("onceward-driver")
    stack.callback(spans.close)
    return Traced(traces=DriverTraces(spans, job), observer=CoordinatorTraces(spans) if embedded else None)
