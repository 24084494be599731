"""Drivers with broken protocols, for the real broker: ``python -m tests.checker.broken SPEC-AS-JSON``, with a ``bug``.

Each bug sits on the interface between the pipeline and a source, a sink or a committer, where a wrong implementation
would have it. A process with a bug runs the same program as every other test.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onceward import KafkaSource
from onceward.connectors.interfaces import Plan
from onceward.connectors.slots import OpenSlot, SlotContext, SlotWriter
from onceward.connectors.tasks import Vote
from onceward.protocol.committing import PreCommitted
from onceward.protocol.values import Author, Committable, Document, JobName, Outcome, Settlement
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.driver.session import KafkaSinkSession
from onceward.sinks.kafka.identifiers import TransactionalId
from tests.support import driver

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BROKEN"]

Change = tuple[type, str, Callable[..., Any]]
"""A class, the name of one of its methods, and the function that replaces it."""

_pre_commit, _write = KafkaSinkSession.pre_commit, KafkaSinkSession.write
_plan, _snapshot = KafkaSource.plan, KafkaSource.snapshot
_commit, _sweep = KafkaSystem.commit, KafkaSystem.sweep

_lowered: set[int] = set()
"""Ids of the sources that have reported positions one too low."""
_planned: set[int] = set()
"""Ids of the sources that have read everything again."""


def _commits_at_once(self: KafkaSinkSession, *arguments: Any, **named: Any) -> PreCommitted:
    made = _pre_commit(self, *arguments, **named)
    self.system().commit(self._granted().author, made.committables)
    return made


def _aborts_on_unknown(
    self: KafkaSystem,
    author: Author,
    committables: Sequence[Committable],
    *,
    give_up: Callable[[], bool] = lambda: False,
    **_: Any,
) -> Sequence[Settlement]:
    """Abort what another process prepared, because this process does not know the outcome."""
    own = self._generation()
    unknown = [one for one in committables if _generation_of(one) != own]
    self.abort(author, unknown)
    assumed = [Settlement(slot=one.slot, outcome=Outcome.COMMITTED, evidence="assumed") for one in unknown]
    return [*assumed, *_commit(self, author, [one for one in committables if one not in unknown], give_up=give_up)]


def _generation_of(committable: Committable) -> int:
    identifier = TransactionalId.parse(KafkaCommittable.of(committable).transaction.id)
    assert identifier is not None
    return identifier.generation


def _sweeps_all(self: KafkaSystem, job_name: JobName, *, keep: Sequence[Committable] = (), **_: Any) -> Sequence[str]:
    return _sweep(self, job_name)


def _goes_on(
    self: KafkaSystem,
    author: Author,
    committables: Sequence[Committable],
    *,
    give_up: Callable[[], bool] = lambda: False,
    **_: Any,
) -> Sequence[Settlement]:
    return [replace(one, outcome=Outcome.COMMITTED) for one in _commit(self, author, committables, give_up=give_up)]


def _forgets_one(self: KafkaSinkSession, *arguments: Any, **named: Any) -> PreCommitted:
    made = _pre_commit(self, *arguments, **named)
    if len(made.committables) > 1:
        made.committables = made.committables[:-1]
    return made


def _one_too_few(self: KafkaSource, plan: Plan) -> Document:
    """In the first checkpoint of a process that has records, report positions one too low."""
    document = _snapshot(self, plan)
    if plan.records == 0 or id(self) in _lowered:
        return document  # a job whose positions never reach the end would read its last records for ever
    _lowered.add(id(self))
    topics = {
        name: {
            **topic,
            "partitions": {
                number: {**cursor, "next": max(0, cursor["next"] - 1)} for number, cursor in topic["partitions"].items()
            },
        }
        for name, topic in document.body["topics"].items()
    }
    return replace(document, body={**document.body, "topics": topics})


class _Miscounting:
    """Never sends the last record of a slot, but counts it in the vote."""

    def __init__(self, writer: SlotWriter) -> None:
        self._writer = writer

    def open(self, context: SlotContext) -> OpenSlot:
        return _MiscountingSlot(self._writer.open(context))


class _MiscountingSlot:
    def __init__(self, slot: OpenSlot) -> None:
        self._slot = slot
        self._held: list[pa.RecordBatch] = []

    def write(self, batch: "pa.RecordBatch") -> None:
        if batch.num_rows:
            self._held.append(batch)

    def finish(self) -> Vote:
        missing = int(sum(batch.num_rows for batch in self._held) > 1)
        if missing:
            self._held[-1] = self._held[-1].slice(0, self._held[-1].num_rows - 1)
        for batch in self._held:
            self._slot.write(batch)
        vote = self._slot.finish()
        return replace(vote, records=vote.records + missing)

    def abandon(self) -> None:
        self._slot.abandon()


def _counts_what_was_not_written(self: KafkaSinkSession) -> SlotWriter:
    return _Miscounting(_write(self))


def _from_the_beginning(self: KafkaSource, base: Document) -> Plan:
    """In the first plan of a process, read everything again, but report the usual positions."""
    plan = _plan(self, base)
    if plan.records == 0 or id(self) in _planned:
        return plan
    _planned.add(id(self))
    splits = tuple({**split, "start": 0} for split in plan.splits)
    return replace(plan, splits=splits, records=sum(split["end"] - split["start"] for split in splits))


BROKEN: Mapping[str, Sequence[Change]] = {
    "commits before the decision": [(KafkaSinkSession, "pre_commit", _commits_at_once)],
    "aborts what has no answer": [(KafkaSystem, "commit", _aborts_on_unknown)],
    "sweeps what is decided": [(KafkaSystem, "sweep", _sweeps_all), (KafkaSystem, "commit", _goes_on)],
    "forgets a committable": [(KafkaSinkSession, "pre_commit", _forgets_one)],
    "votes for what was not written": [(KafkaSinkSession, "write", _counts_what_was_not_written)],
    "positions are one too low": [(KafkaSource, "snapshot", _one_too_few)],
    "reads everything again after a crash": [(KafkaSource, "plan", _from_the_beginning)],
    "nothing": [],
}
"""Name of the bug -> the methods that it replaces."""


def main() -> int:
    for owner, method, broken in BROKEN[json.loads(sys.argv[1])["bug"]]:
        setattr(owner, method, broken)
    return driver.main()


if __name__ == "__main__":
    sys.exit(main())
