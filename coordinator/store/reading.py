"""Rows to values, for listings and for a restore. Every row is verified before use, and a damaged row is listed as
damaged.

A client of PostgreSQL holds a whole result in memory. So each query here has a limit, or reads one large column of one
row."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Connection, RowMapping, func, select, true

from onceward.coordinator.store.codec import (
    document_from_text,
    phases_from_text,
    snapshots_from_text,
    state_from_text,
)
from onceward.coordinator.store.errors import NoSuchCheckpointError
from onceward.coordinator.store.schema import (
    checkpoints,
    generations,
    history,
    jobs,
    losses,
    settlements,
    text_checksum,
    unsealed,
)
from onceward.protocol.answers import Verdict
from onceward.protocol.facts import AbortReason
from onceward.protocol.values import (
    NO_CHECKPOINT,
    NO_GENERATION,
    CheckpointId,
    CheckpointKind,
    CheckpointState,
    CompletedCheckpoint,
    Document,
    Generation,
    JobName,
    Name,
    Outcome,
    ParticipantName,
    Settlement,
)
from onceward.wire.rows import (
    CheckpointDescription,
    CheckpointSummary,
    GenerationSummary,
    HistoryEntry,
    LossReport,
    RecordedSettlement,
)

__all__ = [
    "LastCompleted",
    "checkpoint_description",
    "checkpoint_summaries",
    "completed_checkpoint",
    "completed_from",
    "generation_summaries",
    "history_entries",
    "last_completed",
    "loss_reports",
    "savepoint_count",
    "unfinished_checkpoints",
]

Row = RowMapping
N = TypeVar("N", bound=Name)

_DAMAGED = "this record is not what was written: its checksum differs. Nothing depends on it"
_NO_DOCUMENT = Document(kind="unreadable", version=1, body={})

_LISTED = [column for column in checkpoints.columns if column.name != "snapshots"]
_UNFINISHED = (CheckpointState.TRIGGERED.value, CheckpointState.COMPLETED.value)
_DECIDED_FOR = (CheckpointState.COMPLETED.value, CheckpointState.SETTLED.value)


@dataclass(frozen=True, kw_only=True)
class LastCompleted:
    """A job's newest completed checkpoint, even if it cannot be read; no memory keeps it then."""

    id: CheckpointId = NO_CHECKPOINT
    at: datetime | None = None
    """When it was completed."""


def completed_from(job: JobName, checkpoint: int, row: Mapping[str, Any] | Row | None) -> CompletedCheckpoint:
    """The checkpoint in ``row``. Raises NoSuchCheckpointError if it is missing, damaged, not completed or not
    readable."""
    what = f"checkpoint {checkpoint} of job {job}"
    if row is None:
        raise NoSuchCheckpointError(f"{what} is not in the store.")
    if _damaged(row, row["snapshots"]):
        raise NoSuchCheckpointError(f"{what} is not what was written: its checksum differs.")
    if row["state"] not in _DECIDED_FOR:
        raise NoSuchCheckpointError(f"{what} is {row['state']}, not completed.")
    try:
        snapshots = snapshots_from_text(row["snapshots"])
    except (KeyError, TypeError, ValueError) as error:
        raise NoSuchCheckpointError(f"{what} cannot be read: {error!r}.") from error
    return CompletedCheckpoint(
        id=CheckpointId(checkpoint),
        base=CheckpointId(row["base"]),
        generation=Generation(row["generation"]),
        snapshots=snapshots,
        settled=row["state"] == CheckpointState.SETTLED,
        kind=CheckpointKind(row["kind"]),
        amendment=row["amendment"],
    )


def _damaged(row: Mapping[str, Any] | Row, text: object) -> bool:
    """True when a checkpoint's row, including its snapshots, differs from what was written.

    :param text: the snapshots.
    """
    if unsealed(checkpoints, row):
        return True
    seal = row["snapshots_checksum"]
    if text is None:
        return seal is not None
    return not isinstance(text, str) or not text.isascii() or text_checksum(text) != seal


def completed_checkpoint(connection: Connection, job: JobName, checkpoint: CheckpointId) -> CompletedCheckpoint:
    """The completed checkpoint with this id. Raises NoSuchCheckpointError."""
    return completed_from(job, checkpoint, _found(connection, job, checkpoint))


def _found(connection: Connection, job: JobName, checkpoint: CheckpointId) -> Row | None:
    query = select(checkpoints).where(checkpoints.c.job == job, checkpoints.c.checkpoint == checkpoint)
    return connection.execute(query).mappings().one_or_none()


def last_completed(connection: Connection, job: JobName | None = None) -> dict[JobName, LastCompleted]:
    """The newest completed checkpoints of all readable jobs, or of ``job`` only."""
    only = jobs.c.job == job if job is not None else true()
    newest = (checkpoints.c.job == jobs.c.job) & (checkpoints.c.checkpoint == jobs.c.completed)
    completed_at = {
        row["job"]: _time(row["decided_at"])
        for row in connection.execute(select(*_LISTED).join(jobs, newest).where(only)).mappings()
        if not unsealed(checkpoints, row)
    }
    return {
        JobName(row["job"]): LastCompleted(id=CheckpointId(row["completed"] or 0), at=completed_at.get(row["job"]))
        for row in connection.execute(select(jobs).where(only)).mappings()
        if not unsealed(jobs, row)
    }


def unfinished_checkpoints(connection: Connection) -> list[tuple[JobName, CheckpointSummary]]:
    """Each job's undecided checkpoint, and its completed one that is not settled, without those that are damaged."""
    of_job = (checkpoints.c.job == jobs.c.job) & checkpoints.c.checkpoint.in_((jobs.c.completed, jobs.c.last_id))
    query = select(*_LISTED).join(jobs, of_job).where(checkpoints.c.state.in_(_UNFINISHED))
    rows = connection.execute(query).mappings()
    return [(JobName(row["job"]), _checkpoint(row, damaged=False)) for row in rows if not unsealed(checkpoints, row)]


def checkpoint_summaries(
    connection: Connection, job: JobName, limit: int, kept_by: ParticipantName | None
) -> list[CheckpointSummary]:
    """The newest checkpoints. Snapshots can be large, so each is loaded and verified separately.

    :param kept_by: each with the state of this participant.
    """
    query = select(*_LISTED).where(checkpoints.c.job == job).order_by(checkpoints.c.checkpoint.desc()).limit(limit)

    def summary(row: Row) -> CheckpointSummary:
        text = _snapshots(connection, job, row["checkpoint"])
        damaged = _damaged(row, text)
        kept = state_from_text(text, kept_by) if isinstance(text, str) and kept_by and not damaged else None
        return _checkpoint(row, damaged=damaged, kept=kept)

    return [summary(row) for row in connection.execute(query).mappings().all()]


def savepoint_count(connection: Connection, job: JobName) -> int:
    """How many savepoints the job has, without those that were aborted."""
    query = select(func.count()).where(
        checkpoints.c.job == job,
        checkpoints.c.kind == CheckpointKind.SAVEPOINT.value,
        checkpoints.c.state.in_(_DECIDED_FOR),
    )
    return int(connection.execute(query).scalar_one())


def _snapshots(connection: Connection, job: JobName, checkpoint: CheckpointId) -> object:
    query = select(checkpoints.c.snapshots).where(checkpoints.c.job == job, checkpoints.c.checkpoint == checkpoint)
    return connection.execute(query).scalar_one_or_none()


def checkpoint_description(
    connection: Connection, job: JobName, checkpoint: CheckpointId
) -> CheckpointDescription | None:
    row = _found(connection, job, checkpoint)
    if row is None:
        return None
    evidence = (
        select(settlements)
        .where(settlements.c.job == job, settlements.c.checkpoint == checkpoint)
        .order_by(settlements.c.participant, settlements.c.slot)
    )
    recorded = tuple(_settlement(one) for one in connection.execute(evidence).mappings())
    summary = _checkpoint(row, damaged=_damaged(row, row["snapshots"]))
    readable = summary.state is not CheckpointState.UNREADABLE and row["snapshots"] is not None
    return CheckpointDescription(
        summary=summary, snapshots=snapshots_from_text(row["snapshots"]) if readable else {}, settlements=recorded
    )


def loss_reports(
    connection: Connection, of: Sequence[JobName] | None, limit: int, *, acknowledged: bool
) -> list[LossReport]:
    query = select(losses).order_by(losses.c.recorded_at.desc(), losses.c.job, losses.c.checkpoint, losses.c.slot)
    if of is not None:
        query = query.where(losses.c.job.in_(of))
    if not acknowledged:
        query = query.where(losses.c.acknowledged_at.is_(None))
    return [_loss(row) for row in connection.execute(query.limit(limit)).mappings()]


def generation_summaries(connection: Connection, job: JobName, limit: int) -> list[GenerationSummary]:
    query = select(generations).where(generations.c.job == job).order_by(generations.c.generation.desc()).limit(limit)
    return [_generation(row) for row in connection.execute(query).mappings()]


def history_entries(connection: Connection, job: JobName, limit: int) -> list[HistoryEntry]:
    query = select(history).where(history.c.job == job).order_by(history.c.seq.desc()).limit(limit)
    return [_entry(row) for row in connection.execute(query).mappings()]


def _settlement(row: Row) -> RecordedSettlement:
    damaged = unsealed(settlements, row)
    return RecordedSettlement(
        participant=_key(ParticipantName, row["participant"]),
        settlement=Settlement(
            slot=_number(row["slot"]),
            outcome=Outcome.IN_DOUBT if damaged else Outcome(row["outcome"]),
            evidence=_DAMAGED if damaged else row["evidence"],
        ),
        recorded_at=None if damaged else _time(row["recorded_at"]),
    )


def _loss(row: Row) -> LossReport:
    damaged = unsealed(losses, row)
    acknowledged = row["acknowledged_at"] is not None
    return LossReport(
        job=_key(JobName, row["job"]),
        checkpoint=CheckpointId(_number(row["checkpoint"])),
        participant=_key(ParticipantName, row["participant"]),
        settlement=Settlement(
            slot=_number(row["slot"]),
            outcome=Outcome.IN_DOUBT if damaged else Outcome(row["outcome"]),
            evidence=_DAMAGED if damaged else row["evidence"],
        ),
        document=_NO_DOCUMENT if damaged else document_from_text(row["document"]),
        reason="" if damaged else row["reason"],
        recorded_at=None if damaged else _time(row["recorded_at"]),
        acknowledged_at=None if damaged else _time(row["acknowledged_at"]),
        acknowledgement=_DAMAGED if damaged and acknowledged else row["acknowledgement"] or "",
    )


def _generation(row: Row) -> GenerationSummary:
    number = Generation(_number(row["generation"]))
    if unsealed(generations, row):
        return GenerationSummary(generation=number, driver="", granted_at=None, ended_at=None, detail=_DAMAGED)
    return GenerationSummary(
        generation=number,
        driver=row["driver"],
        granted_at=_time(row["granted_at"]),
        ended_at=_time(row["ended_at"]),
        detail=row["detail"],
    )


def _entry(row: Row) -> HistoryEntry:
    if unsealed(history, row):
        return HistoryEntry(
            at=None,
            event="Unreadable",
            verdict=None,
            generation=NO_GENERATION,
            checkpoint=NO_CHECKPOINT,
            participant="",
            detail=_DAMAGED,
            count=1,
        )
    return HistoryEntry(
        at=_time(row["at"]),
        event=row["event"],
        verdict=Verdict(row["verdict"]) if row["verdict"] is not None else None,
        generation=Generation(row["generation"]),
        checkpoint=CheckpointId(row["checkpoint"]),
        participant=row["participant"],
        detail=row["detail"],
        count=row["count"],
    )


def _checkpoint(row: Row, *, damaged: bool, kept: Document | None = None) -> CheckpointSummary:
    kind = CheckpointKind.CHECKPOINT if damaged else CheckpointKind(row["kind"])
    reason = None if damaged or row["abort_reason"] is None else AbortReason[row["abort_reason"].upper()]
    return CheckpointSummary(
        checkpoint=CheckpointId(row["checkpoint"]),
        base=CheckpointId(0 if damaged else row["base"]),
        generation=Generation(0 if damaged else row["generation"]),
        kind=kind,
        name="" if damaged else row["name"],
        state=CheckpointState.UNREADABLE if damaged else CheckpointState(row["state"]),
        abort_reason=reason,
        detail=_DAMAGED if damaged else row["detail"],
        triggered_at=None if damaged else _time(row["triggered_at"]),
        decided_at=None if damaged else _time(row["decided_at"]),
        settled_at=None if damaged else _time(row["settled_at"]),
        waited=timedelta(microseconds=0 if damaged else row["waited"]),
        ran=None if damaged else _duration(row["ran"]),
        decided=None if damaged else _duration(row["decided"]),
        settled=None if damaged else _duration(row["settled"]),
        phases={} if damaged else phases_from_text(row["phases"]),
        kept=kept,
        **{name: 0 if damaged else row[name] for name in _COUNTS},
    )


_COUNTS: Iterable[str] = (
    "records_read", "records_written", "bytes_read", "bytes_written", "committables", "amendment"
)  # fmt: skip


def _key(kind: type[N], key: object) -> N:
    try:
        return kind(str(key))
    except ValueError:
        return kind("unreadable")


def _number(key: object) -> int:
    return key if isinstance(key, int) else 0


def _time(milliseconds: int | None) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds is not None else None


def _duration(microseconds: int | None) -> timedelta | None:
    return timedelta(microseconds=microseconds) if microseconds is not None else None
