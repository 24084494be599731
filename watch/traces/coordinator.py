"""Traces of a coordinator: the span of each whole checkpoint, and what the coordinator itself does of it.

The coordinator owns the root, because it alone knows the beginning and the end of every checkpoint, whatever becomes of
drivers: both are in its store, so another leader ends what this one began. See docs/reference/traces.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from onceward.coordinator.service.observer import Unfinished, View
from onceward.protocol.answers import Note
from onceward.protocol.durable import Durable
from onceward.protocol.facts import (
    CheckpointAborted,
    CheckpointAmended,
    CheckpointCompleted,
    CheckpointRestored,
    CheckpointSettled,
    CheckpointTriggered,
    CheckpointUnchanged,
    Fact,
    JobForgotten,
)
from onceward.protocol.values import CheckpointId, JobName
from onceward.watch.traces.ids import ids_of
from onceward.watch.traces.names import Attribute, Attributes, SpanName, identity
from onceward.watch.traces.spans import Spans

__all__ = ["CoordinatorTraces"]


@dataclass(kw_only=True)
class _Open:
    """A checkpoint that is not settled and not aborted. Times are seconds since the epoch."""

    triggered: float
    waited: float
    completed: float | None = None
    attributes: dict[Attribute, str | int] = field(default_factory=dict)


class CoordinatorTraces:
    """Observes one process: it outlives each coordinator that it is attached to. See ``service/observer.py``."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._open: dict[JobName, dict[CheckpointId, _Open]] = {}
        """At most two of each job: the undecided one, and the one that settles."""

    def attached(
        self, view: View, completed_at: Mapping[JobName, datetime], term: int = 0, unfinished: Unfinished = ()
    ) -> None:
        self._open = {}
        for job, one in unfinished:
            if one.triggered_at is None:
                continue
            attributes = identity(job, one.generation, one.checkpoint)
            waited = one.waited.total_seconds()
            found = _Open(triggered=one.triggered_at.timestamp(), waited=waited, attributes=attributes)
            if one.decided_at is not None:
                found.completed = one.decided_at.timestamp()
                found.attributes |= _counted(
                    read=one.records_read,
                    written=one.records_written,
                    size=one.bytes_written,
                    transactions=one.committables,
                )
            if one.amendment:
                found.attributes[Attribute.AMENDMENT] = one.amendment
            self._open.setdefault(job, {})[one.checkpoint] = found

    def detached(self) -> None:
        self._open = {}

    def published(self, durable: Durable, facts: Sequence[Fact], at: datetime, stored_s: float = 0.0) -> None:
        now = at.timestamp()
        for fact in facts:
            match fact:
                case CheckpointTriggered():
                    attributes = identity(durable.job, fact.generation, fact.checkpoint)
                    mine = self._open.setdefault(durable.job, {})
                    mine[fact.checkpoint] = _Open(triggered=now, waited=fact.waited_s, attributes=attributes)
                case CheckpointCompleted():
                    self._completed(durable, fact, now, stored_s)
                case CheckpointAborted():
                    self._spans_of_decision(durable, fact.checkpoint, now, stored_s, 0.0)
                    reason = f"{fact.reason.value}: {fact.detail}" if fact.detail else fact.reason.value
                    self._ended(durable, fact.checkpoint, now, "aborted", reason)
                case CheckpointSettled():
                    self._ended(durable, fact.checkpoint, now, "settled")
                case CheckpointRestored():
                    reason = f"a person restored checkpoint {fact.source} instead"
                    self._ended(durable, fact.former, now, "restored", reason)
                case CheckpointAmended():
                    if (found := self._found(durable.job, fact.checkpoint)) is not None:
                        found.attributes[Attribute.AMENDMENT] = fact.amendment
                case CheckpointUnchanged():
                    self._open.get(durable.job, {}).pop(fact.checkpoint, None)
                case JobForgotten():
                    self._open.pop(durable.job, None)
                case _:
                    pass

    def refused(self, note: Note) -> None:
        """Record nothing: a refused call changes no checkpoint."""

    def rejected(self, call: str, reason: str) -> None:
        """Record nothing."""

    def committed(self, seconds: float) -> None:
        """Record nothing here: :meth:`published` gets the time of its own write."""

    def _found(self, job: JobName, checkpoint: CheckpointId) -> _Open | None:
        return self._open.get(job, {}).get(checkpoint)

    def _completed(self, durable: Durable, fact: CheckpointCompleted, now: float, stored_s: float) -> None:
        found = self._found(durable.job, fact.checkpoint)
        if found is None:
            return
        sources = [one for one in fact.snapshots.values() if one.positions is not None]
        sinks = [one for one in fact.snapshots.values() if one.positions is None]
        found.completed = now
        found.attributes |= _counted(
            read=sum(one.records for one in sources),
            written=sum(one.records for one in sinks),
            size=sum(one.bytes for one in sinks),
            transactions=sum(len(one.committables) for one in sinks),
        )
        self._spans_of_decision(durable, fact.checkpoint, now, stored_s, fact.decided_s)
        if fact.settled:
            self._ended(durable, fact.checkpoint, now, "settled")

    def _spans_of_decision(
        self, durable: Durable, checkpoint: CheckpointId, now: float, stored_s: float, decided_s: float
    ) -> None:
        found = self._found(durable.job, checkpoint)
        if found is None:
            return
        ids, given = ids_of(durable.store_id, durable.job, checkpoint), _named(found.attributes)
        written = now - stored_s
        self._spans.child(ids, SpanName.WAIT, found.triggered - found.waited, found.triggered, given)
        if decided_s:
            self._spans.child(ids, SpanName.DECIDE, written - decided_s, written, given)
        self._spans.child(ids, SpanName.STORE_COMMIT, written, now, given)

    def _ended(
        self, durable: Durable, checkpoint: CheckpointId, now: float, result: str, error: str | None = None
    ) -> None:
        found = self._open.get(durable.job, {}).pop(checkpoint, None)
        if found is None:
            return
        ids = ids_of(durable.store_id, durable.job, checkpoint)
        if found.completed is not None and found.completed < now:
            given = {**_named(found.attributes), Attribute.GENERATION: durable.generation}
            self._spans.child(ids, SpanName.SETTLE, found.completed, now, given, error, span_id=ids.settle)
        attributes = {**found.attributes, Attribute.RESULT: result}
        self._spans.root(ids, found.triggered - found.waited, now, attributes, error)


def _named(attributes: Attributes) -> dict[Attribute, str | int]:
    """Only those that say which checkpoint it is."""
    return {name: attributes[name] for name in (Attribute.JOB, Attribute.GENERATION, Attribute.CHECKPOINT)}


def _counted(*, read: int, written: int, size: int, transactions: int) -> dict[Attribute, str | int]:
    return {
        Attribute.RECORDS_READ: read,
        Attribute.RECORDS_WRITTEN: written,
        Attribute.BYTES_WRITTEN: size,
        Attribute.TRANSACTIONS: transactions,
    }
