"""Rows to values: what a restart and a listing need. Every row is checked before it is believed."""

import contextlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, select, true

from coordinator.protocol.answers import Verdict
from coordinator.protocol.durable import Durable, RestoreOrder
from coordinator.protocol.facts import AbortReason
from coordinator.protocol.status import JobStatus
from coordinator.protocol.values import (
    CheckpointId,
    CheckpointKind,
    CompletedCheckpoint,
    Generation,
    JobName,
    Outcome,
    ParticipantName,
    Settlement,
)
from coordinator.store.codec import document_from_text, durable_parts, snapshots_from_text
from coordinator.store.errors import NoSuchCheckpointError, StoreDamagedError
from coordinator.store.records import (
    CheckpointDetails,
    CheckpointRecord,
    CheckpointState,
    GenerationRecord,
    HistoryRecord,
    JobRecord,
    LossRecord,
    RecordedSettlement,
)
from coordinator.store.schema import (
    checkpoints,
    generations,
    history,
    jobs,
    losses,
    settlements,
    text_checksum,
    unsealed,
)

__all__ = [
    "checkpoint_details",
    "checkpoint_records",
    "completed_checkpoint",
    "durable_jobs",
    "generation_records",
    "history_records",
    "job_records",
    "loss_records",
    "sealed_rows",
]

Row = RowMapping

_DECIDED_FOR = (CheckpointState.COMPLETED.value, CheckpointState.SETTLED.value)


def sealed_rows(connection: Connection, table: Table, query: Any, *names: str) -> Iterator[Row]:
    """The rows of ``query``. Raises StoreDamagedError naming the first that is not what was written."""
    for row in connection.execute(query).mappings():
        if unsealed(table, row):
            what = " ".join(f"{name}={row[name]}" for name in names)
            raise StoreDamagedError(
                f"The store's record {table.name} {what} is not what was written: its checksum differs. Nothing was "
                "changed or guessed. Restore the store from a backup; the claim on the sink's cluster tells whether "
                "the backup is too old."
            )
        yield row


def durable_jobs(connection: Connection, store_id: str) -> list[Durable]:
    """All jobs, after checking every row that does not belong to one checkpoint alone. Memory holds one row at a time.

    A damaged completed checkpoint concerns its job alone; whatever else is damaged keeps the whole store from opening.
    """
    for table, names in (
        (settlements, ("job", "checkpoint", "participant", "slot")),
        (losses, ("job", "checkpoint", "participant", "slot")),
        (generations, ("job", "generation")),
        (history, ("seq",)),
    ):
        for _ in sealed_rows(connection, table, select(table), *names):
            pass
    rows = list(sealed_rows(connection, jobs, select(jobs).order_by(jobs.c.job), "job"))
    known = {row["job"] for row in rows}
    for job in connection.execute(select(checkpoints.c.job).distinct()).scalars():
        if job not in known:
            raise StoreDamagedError(
                f"The store has checkpoints of job {job} and no such job. Nothing was changed or guessed. "
                "Restore the store from a backup."
            )
    return [_durable(connection, row, store_id) for row in rows]


def _durable(connection: Connection, row: Row, store_id: str) -> Durable:
    job = JobName(row["job"])
    try:
        parts = durable_parts(row["document"])
    except (KeyError, TypeError, ValueError) as error:
        raise StoreDamagedError(
            f"The store's record of job {job} cannot be read: {error!r}. Nothing was changed or guessed. Use the "
            "version of onceward that wrote the store, or a newer one."
        ) from error
    pending = parts["pending"]
    if pending is not None:
        record = _found(connection, job, pending.id)
        if record is None or unsealed(checkpoints, record) or record["state"] != CheckpointState.TRIGGERED:
            raise StoreDamagedError(
                f"Checkpoint {pending.id}, the undecided one of job {job}, is missing in the store or was changed. "
                "Nothing was started. Restore the store from a backup."
            )
    completed, unreadable = None, ""
    if row["completed"] is not None:
        try:
            completed = completed_checkpoint(connection, job, row["completed"])
        except NoSuchCheckpointError as error:
            unreadable = f"{error} {_readable(connection, job)}"
    restore = None
    if row["restore_from"] is not None:
        try:
            source = completed_checkpoint(connection, job, row["restore_from"])
        except NoSuchCheckpointError as error:
            completed, unreadable = None, f"the job is to be restored, but {error} {_readable(connection, job)}"
        else:
            restore = RestoreOrder(source=source, reason=row["restore_reason"])
    return Durable(
        job=job,
        store_id=store_id,
        status=JobStatus(row["status"]),
        status_detail=row["status_detail"],
        generation=Generation(row["generation"]),
        driver=row["driver"],
        last_id=CheckpointId(row["last_id"]),
        completed=completed,
        unreadable=unreadable,
        restore=restore,
        **parts,
    )


def _completed(job: JobName, checkpoint: int, row: Row | None) -> CompletedCheckpoint:
    """Raises NoSuchCheckpointError."""
    what = f"checkpoint {checkpoint} of job {job}"
    if row is None:
        raise NoSuchCheckpointError(f"{what} is not in the store.")
    if _damaged(row):
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


def _damaged(row: Row) -> bool:
    """True when a checkpoint's row, its snapshots included, is not what was written."""
    if unsealed(checkpoints, row):
        return True
    text, seal = row["snapshots"], row["snapshots_checksum"]
    if text is None or seal is None:
        return text is not seal
    return not isinstance(text, str) or not text.isascii() or text_checksum(text) != seal


def _readable(connection: Connection, job: JobName) -> str:
    """Which ones a person could name instead."""
    query = select(checkpoints.c.checkpoint).where(checkpoints.c.job == job).order_by(checkpoints.c.checkpoint.desc())
    ids = []
    for checkpoint in connection.execute(query).scalars().all():
        with contextlib.suppress(NoSuchCheckpointError):
            ids.append(str(completed_checkpoint(connection, job, checkpoint).id))
    return f"Completed and readable are: {', '.join(ids) or 'none'}"


def completed_checkpoint(connection: Connection, job: JobName, checkpoint: CheckpointId) -> CompletedCheckpoint:
    """Raises NoSuchCheckpointError."""
    return _completed(job, checkpoint, _found(connection, job, checkpoint))


def _found(connection: Connection, job: JobName, checkpoint: CheckpointId) -> Row | None:
    query = select(checkpoints).where(checkpoints.c.job == job, checkpoints.c.checkpoint == checkpoint)
    return connection.execute(query).mappings().one_or_none()


def job_records(connection: Connection, job: JobName | None = None) -> list[JobRecord]:
    """By name; only one of them, if ``job`` is named."""
    only = jobs.c.job == job if job is not None else true()
    columns = [column for column in checkpoints.columns if column.name != "snapshots"]
    newest = (checkpoints.c.job == jobs.c.job) & (checkpoints.c.checkpoint == jobs.c.completed)
    completed_at = {
        row["job"]: _time(row["decided_at"])
        for row in connection.execute(select(*columns).join(jobs, newest).where(only)).mappings()
        if not unsealed(checkpoints, row)
    }
    return [
        JobRecord(
            job=JobName(row["job"]),
            status=JobStatus(row["status"]),
            generation=Generation(row["generation"]),
            last_id=CheckpointId(row["last_id"]),
            completed=CheckpointId(row["completed"]) if row["completed"] is not None else None,
            completed_at=completed_at.get(row["job"]),
        )
        for row in sealed_rows(connection, jobs, select(jobs).where(only).order_by(jobs.c.job), "job")
    ]


def checkpoint_records(connection: Connection, job: JobName, limit: int) -> list[CheckpointRecord]:
    query = select(checkpoints).where(checkpoints.c.job == job).order_by(checkpoints.c.checkpoint.desc()).limit(limit)
    return [_record(row) for row in connection.execute(query).mappings()]


def checkpoint_details(connection: Connection, job: JobName, checkpoint: CheckpointId) -> CheckpointDetails | None:
    row = _found(connection, job, checkpoint)
    if row is None:
        return None
    evidence = (
        select(settlements)
        .where(settlements.c.job == job, settlements.c.checkpoint == checkpoint)
        .order_by(settlements.c.participant, settlements.c.slot)
    )
    recorded = tuple(
        RecordedSettlement(
            participant=ParticipantName(one["participant"]),
            settlement=Settlement(slot=one["slot"], outcome=Outcome(one["outcome"]), evidence=one["evidence"]),
            recorded_at=_known_time(one["recorded_at"]),
        )
        for one in sealed_rows(connection, settlements, evidence, "job", "checkpoint", "participant", "slot")
    )
    record = _record(row)
    readable = record.state is not CheckpointState.UNREADABLE and row["snapshots"] is not None
    return CheckpointDetails(
        record=record, snapshots=snapshots_from_text(row["snapshots"]) if readable else {}, settlements=recorded
    )


def loss_records(connection: Connection, job: JobName | None, limit: int, *, acknowledged: bool) -> list[LossRecord]:
    query = select(losses).order_by(losses.c.recorded_at.desc(), losses.c.job, losses.c.checkpoint, losses.c.slot)
    if job is not None:
        query = query.where(losses.c.job == job)
    if not acknowledged:
        query = query.where(losses.c.acknowledged_at.is_(None))
    return [
        LossRecord(
            job=JobName(row["job"]),
            checkpoint=CheckpointId(row["checkpoint"]),
            participant=ParticipantName(row["participant"]),
            settlement=Settlement(slot=row["slot"], outcome=Outcome(row["outcome"]), evidence=row["evidence"]),
            document=document_from_text(row["document"]),
            reason=row["reason"],
            recorded_at=_known_time(row["recorded_at"]),
            acknowledged_at=_time(row["acknowledged_at"]),
            acknowledgement=row["acknowledgement"] or "",
        )
        for row in sealed_rows(connection, losses, query.limit(limit), "job", "checkpoint", "participant", "slot")
    ]


def generation_records(connection: Connection, job: JobName, limit: int) -> list[GenerationRecord]:
    query = select(generations).where(generations.c.job == job).order_by(generations.c.generation.desc()).limit(limit)
    return [
        GenerationRecord(
            generation=Generation(row["generation"]),
            driver=row["driver"],
            granted_at=_known_time(row["granted_at"]),
            ended_at=_time(row["ended_at"]),
            detail=row["detail"],
        )
        for row in sealed_rows(connection, generations, query, "job", "generation")
    ]


def history_records(connection: Connection, job: JobName, limit: int) -> list[HistoryRecord]:
    query = select(history).where(history.c.job == job).order_by(history.c.seq.desc()).limit(limit)
    return [
        HistoryRecord(
            at=_known_time(row["at"]),
            event=row["event"],
            verdict=Verdict(row["verdict"]) if row["verdict"] is not None else None,
            generation=Generation(row["generation"]),
            checkpoint=CheckpointId(row["checkpoint"]),
            participant=row["participant"],
            detail=row["detail"],
            count=row["count"],
        )
        for row in sealed_rows(connection, history, query, "seq")
    ]


def _record(row: Row) -> CheckpointRecord:
    damaged = _damaged(row)
    kind = CheckpointKind.CHECKPOINT if damaged else CheckpointKind(row["kind"])
    reason = None if damaged or row["abort_reason"] is None else AbortReason[row["abort_reason"].upper()]
    return CheckpointRecord(
        id=CheckpointId(row["checkpoint"]),
        base=CheckpointId(0 if damaged else row["base"]),
        generation=Generation(0 if damaged else row["generation"]),
        kind=kind,
        name="" if damaged else row["name"],
        state=CheckpointState.UNREADABLE if damaged else CheckpointState(row["state"]),
        abort_reason=reason,
        detail="it is not what was written: its checksum differs" if damaged else row["detail"],
        triggered_at=_known_time(0 if damaged else row["triggered_at"]),
        decided_at=None if damaged else _time(row["decided_at"]),
        settled_at=None if damaged else _time(row["settled_at"]),
        waited=0.0 if damaged else row["waited"] / 1e6,
        ran=None if damaged else _seconds(row["ran"]),
        decided=None if damaged else _seconds(row["decided"]),
        settled=None if damaged else _seconds(row["settled"]),
        **{name: 0 if damaged else row[name] for name in _COUNTS},
    )


_COUNTS: Iterable[str] = (
    "records_read", "records_written", "bytes_read", "bytes_written", "committables", "amendment"
)  # fmt: skip


def _known_time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _time(milliseconds: int | None) -> datetime | None:
    return _known_time(milliseconds) if milliseconds is not None else None


def _seconds(microseconds: int | None) -> float | None:
    return microseconds / 1e6 if microseconds is not None else None
