"""``onceward transactions``: list what is open, unsettled or in doubt, with its owner and what is known about it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from onceward.client.operators import OperatorClient
from onceward.common.readable import duration
from onceward.operate.brokers import Brokers, Seen, brokers
from onceward.operate.connecting import CoordinatorLocation, job_name, operators
from onceward.operate.prompts import say
from onceward.operate.tables import Column, Listing, print_json, print_listings, status
from onceward.protocol.committing import OpenTransaction, TransactionHandle
from onceward.protocol.values import JobName, Outcome, ParticipantName, Role
from onceward.wire.rows import CheckpointDescription, JobDescription

__all__ = ["TransactionRow", "list_transactions", "rows"]

_UNKNOWN = "unknown"
_ENDED = "not open"
_NONE = "-"


@dataclass(frozen=True, kw_only=True)
class TransactionRow:
    """One transaction of a job, with everything known about it. A text is ``unknown`` when no source knows it."""

    job: str
    transaction: str
    """Its id in the system; ``-`` if that gives it none."""
    cluster: str
    sink: str
    generation: int | None
    """The generation that began it."""
    checkpoint: int | None
    """The completed, unsettled checkpoint that it belongs to, if any; likewise ``slot``."""
    slot: int | None
    decision: str
    """From the coordinator's store: ``completed`` (it must be committed), ``none`` (it belongs to the running
    checkpoint or to something that was aborted), or ``unknown`` (it is newer than this store)."""
    state: str
    """The system's name for the state; ``not open`` when it lists no such transaction, ``-`` when it lists none at
    all."""
    age_s: float | None
    left_s: float | None
    """Seconds until the system aborts it."""
    outcome: str
    """For an unsettled transaction: ``committed``, ``lost``, ``in_doubt``; as recorded when the job halted, unless more
    is known now."""
    evidence: str
    holds: str
    """Which records, from which input; empty for a transaction that is only open."""
    details: Mapping[str, str] = field(default_factory=dict)
    """For an open transaction: what else the system reports."""


def list_transactions(job: str | None, place: CoordinatorLocation, clusters: Path | None, *, as_json: bool) -> None:
    """List the transactions of one job, or of all. Unanswered questions go to standard error and show as unknown."""
    found: list[TransactionRow] = []
    with operators(place) as (client, _), brokers(clusters) as reached:
        names = [job_name(job)] if job is not None else [JobName(one.job) for one in client.jobs()]
        for name in names:
            listed, problems = rows(client, reached, name)
            found += listed
            for problem in problems:
                say(problem)
    if as_json:
        print_json(found)
        return
    asked = "" if reached.reached else " that the store knows of (no system was asked: name them with --systems FILE)"
    shown = Listing(
        "job",
        "transaction",
        Column(name="sink", spare=3),
        Column(name="checkpoint", spare=1),
        Column(name="slot", spare=2),
        "decision",
        "state",
        Column(name="open for", spare=4),
        "aborted in",
        "outcome",
        Column(name="evidence", text=True),
        if_empty=f"Nothing is open, unsettled or in doubt{asked}.",
    )
    for row in found:
        shown.add(
            row.job,
            row.transaction,
            row.sink,
            str(row.checkpoint or "-"),
            str(row.slot if row.slot is not None else "-"),
            row.decision,
            row.state,
            _duration(row.age_s),
            _duration(row.left_s),
            status(row.outcome) if row.outcome else "-",
            ". ".join(filter(None, (row.holds, _text(row.details), row.evidence))),
        )
    print_listings([shown])


def rows(client: OperatorClient, reached: Brokers, job: JobName) -> tuple[list[TransactionRow], list[str]]:
    """Return the unsettled committables of a job, its other open transactions, and which questions failed."""
    description = client.describe(job)
    kinds = {one.name: one.kind for one in description.participants if one.role is Role.SINK}
    open_ones: dict[TransactionHandle, OpenTransaction] = {}
    problems: list[str] = []
    for kind in sorted(set(kinds.values())):
        found, unasked = reached.open_transactions(job, kind)
        open_ones |= {one.handle: one for one in found}
        problems += unasked
    listed: list[TransactionRow] = []
    for sink, checkpoint in _unsettled(client, description):
        for seen in reached.look(kinds[sink], checkpoint.snapshots[sink].committables):
            transaction = open_ones.pop(seen.handle, None) if seen.handle is not None else None
            row = _unsettled_row(description, checkpoint, sink, seen)
            complete = not problems and reached.reached and seen.handle is not None
            listed.append(_with_state(row, transaction, complete=complete))
            if seen.unasked and reached.reached:
                problems.append(f"job {job}, slot {seen.committable.slot}: {seen.unasked}")
    listed += (_open_row(description, one) for one in open_ones.values())
    return listed, problems


def _unsettled(
    client: OperatorClient, description: JobDescription
) -> Iterable[tuple[ParticipantName, CheckpointDescription]]:
    """Yield the sinks that still have something to commit."""
    summary = description.summary
    if summary.settled or not summary.last_completed or summary.unreadable:
        return
    checkpoint = client.checkpoint(summary.job, summary.last_completed)
    for name, snapshot in sorted(checkpoint.snapshots.items()):
        if snapshot.committables:
            yield name, checkpoint


def _unsettled_row(
    description: JobDescription, checkpoint: CheckpointDescription, sink: ParticipantName, seen: Seen
) -> TransactionRow:
    slot = seen.committable.slot
    said = {(one.participant, one.settlement.slot): one.settlement for one in checkpoint.settlements}
    recorded = said.get((sink, slot))
    settlement = seen.settlement
    if settlement is None or (settlement.outcome is Outcome.IN_DOUBT and recorded is not None):
        settlement = recorded or settlement  # a proof remains valid when its evidence can no longer be seen
    known: Mapping[int, Outcome] = description.unresolved.get(sink, {})
    unlisted = _NONE if seen.holds else _UNKNOWN  # its system was asked, and has no name for it
    outcome = settlement.outcome if settlement is not None else known.get(slot)
    return TransactionRow(
        job=description.summary.job,
        transaction=seen.handle.id if seen.handle is not None else unlisted,
        cluster=_UNKNOWN,
        sink=sink,
        generation=checkpoint.summary.generation,
        checkpoint=checkpoint.summary.checkpoint,
        slot=slot,
        decision="completed",
        state=_UNKNOWN if seen.handle is not None else unlisted,
        age_s=None,
        left_s=None,
        outcome=outcome.value if outcome is not None else _UNKNOWN,
        evidence=settlement.evidence if settlement is not None else seen.unasked,
        holds=seen.holds,
    )


def _with_state(row: TransactionRow, transaction: OpenTransaction | None, *, complete: bool) -> TransactionRow:
    """``complete``: all systems listed their open transactions, so what they do not list is not open."""
    if transaction is None:
        return replace(row, state=_ENDED) if complete else row
    return replace(
        row,
        cluster=transaction.cluster,
        state=transaction.state,
        age_s=_seconds(transaction.age),
        left_s=_seconds(transaction.left),
        details=transaction.details,
    )


def _open_row(description: JobDescription, transaction: OpenTransaction) -> TransactionRow:
    known = transaction.generation <= description.summary.generation
    row = TransactionRow(
        job=description.summary.job,
        transaction=transaction.handle.id,
        cluster=transaction.cluster,
        sink=transaction.participant,
        generation=transaction.generation,
        checkpoint=None,
        slot=None,
        decision="none" if known else _UNKNOWN,
        state="",
        age_s=None,
        left_s=None,
        outcome="",
        evidence=_whose(description, transaction),
        holds="",
    )
    return _with_state(row, transaction, complete=True)


def _whose(description: JobDescription, transaction: OpenTransaction) -> str:
    generation = description.summary.generation
    if transaction.generation > generation:
        return f"of generation {transaction.generation}; this store knows {generation}: another store runs this job"
    if transaction.generation < generation:
        return "of an older generation: it will not be committed, the next sweep aborts it"
    if description.connected:
        return "of the living driver: it belongs to the running checkpoint, or its driver aborts it"
    return "of the last driver: if it is not decided, the next generation aborts it"


def _text(details: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in details.items())


def _seconds(duration: timedelta | None) -> float | None:
    return duration.total_seconds() if duration is not None else None


def _duration(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)
