"""Rows to values: what a restart and a listing need. Every row is checked before it is believed."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, select

from coordinator.protocol.facts import AbortReason, JobStatus
from coordinator.protocol.state import Durable
from coordinator.protocol.values import (
    CheckpointId,
    CompletedCheckpoint,
    Generation,
    JobName,
    Outcome,
    ParticipantName,
    Settlement,
)
from coordinator.store.codec import participants_from_text, settings_from_text, snapshots_from_text
from coordinator.store.errors import StoreDamagedError
from coordinator.store.records import (
    CheckpointDetails,
    CheckpointRecord,
    CheckpointState,
    JobRecord,
    RecordedSettlement,
)
from coordinator.store.schema import checkpoints, jobs, settlements, unsealed

__all__ = ["checkpoint_details", "checkpoint_records", "durable_jobs", "job_records", "sealed_rows"]

Row = RowMapping


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
    """All jobs, after checking every row of every table."""
    for _ in sealed_rows(connection, settlements, select(settlements), "job", "checkpoint", "participant", "slot"):
        pass
    rows = list(sealed_rows(connection, jobs, select(jobs).order_by(jobs.c.job), "job"))
    wanted = {(row["job"], row[key]) for row in rows for key in ("completed", "pending")}
    found: dict[tuple[str, int], Row] = {}
    for row in sealed_rows(connection, checkpoints, select(checkpoints), "job", "checkpoint"):
        if (row["job"], row["checkpoint"]) in wanted:
            found[row["job"], row["checkpoint"]] = row
    return [_durable(row, found, store_id) for row in rows]


def _durable(row: Row, found: Mapping[tuple[str, int], Row], store_id: str) -> Durable:
    job = JobName(row["job"])
    completed = pending = None
    if row["completed"] is not None:
        completed = _completed(job, row["completed"], found.get((job, row["completed"])))
    if row["pending"] is not None:
        record = found.get((job, row["pending"]))
        if record is None or record["state"] != CheckpointState.TRIGGERED:
            raise _missing(job, row["pending"], "undecided")
        pending = (CheckpointId(row["pending"]), CheckpointId(row["pending_base"]))
    return Durable(
        job=job,
        store_id=store_id,
        status=JobStatus(row["status"]),
        status_detail=row["status_detail"],
        generation=Generation(row["generation"]),
        driver=row["driver"],
        participants=participants_from_text(row["participants"]),
        settings=settings_from_text(row["settings"]),
        last_id=CheckpointId(row["last_id"]),
        completed=completed,
        pending=pending,
        stop_requested=row["stop_requested"],
        lost=row["lost"],
    )


def _completed(job: JobName, checkpoint: int, row: Row | None) -> CompletedCheckpoint:
    if row is None or row["state"] not in (CheckpointState.COMPLETED, CheckpointState.SETTLED):
        raise _missing(job, checkpoint, "newest completed")
    return CompletedCheckpoint(
        id=CheckpointId(checkpoint),
        base=CheckpointId(row["base"]),
        generation=Generation(row["generation"]),
        snapshots=snapshots_from_text(row["snapshots"]),
        settled=row["state"] == CheckpointState.SETTLED,
    )


def _missing(job: JobName, checkpoint: int, what: str) -> StoreDamagedError:
    return StoreDamagedError(
        f"Checkpoint {checkpoint}, the {what} one of job {job}, is missing in the store: somebody has removed or "
        "changed it. Going on without it would write records twice or not at all; nothing was started. Restore the "
        "store from a backup."
    )


def job_records(connection: Connection) -> list[JobRecord]:
    query = select(
        jobs, checkpoints.c.decided_at.label("completed_at"), checkpoints.c.state.label("completed_state")
    ).outerjoin(checkpoints, (checkpoints.c.job == jobs.c.job) & (checkpoints.c.checkpoint == jobs.c.completed))
    return [
        JobRecord(
            job=JobName(row["job"]),
            status=JobStatus(row["status"]),
            status_detail=row["status_detail"],
            generation=Generation(row["generation"]),
            last_id=CheckpointId(row["last_id"]),
            completed=CheckpointId(row["completed"]) if row["completed"] is not None else None,
            completed_at=_time(row["completed_at"]),
            settled=row["completed_state"] in (None, CheckpointState.SETTLED),
            stop_requested=row["stop_requested"],
        )
        for row in sealed_rows(connection, jobs, query.order_by(jobs.c.job), "job")
    ]


def checkpoint_records(connection: Connection, job: JobName, limit: int) -> list[CheckpointRecord]:
    query = select(checkpoints).where(checkpoints.c.job == job).order_by(checkpoints.c.checkpoint.desc()).limit(limit)
    return [_record(row) for row in sealed_rows(connection, checkpoints, query, "job", "checkpoint")]


def checkpoint_details(connection: Connection, job: JobName, checkpoint: CheckpointId) -> CheckpointDetails | None:
    query = select(checkpoints).where(checkpoints.c.job == job, checkpoints.c.checkpoint == checkpoint)
    rows = list(sealed_rows(connection, checkpoints, query, "job", "checkpoint"))
    if not rows:
        return None
    evidence = (
        select(settlements)
        .where(settlements.c.job == job, settlements.c.checkpoint == checkpoint)
        .order_by(settlements.c.participant, settlements.c.slot)
    )
    recorded = tuple(
        RecordedSettlement(
            participant=ParticipantName(row["participant"]),
            settlement=Settlement(slot=row["slot"], outcome=Outcome(row["outcome"]), evidence=row["evidence"]),
            recorded_at=_known_time(row["recorded_at"]),
        )
        for row in sealed_rows(connection, settlements, evidence, "job", "checkpoint", "participant", "slot")
    )
    snapshots = snapshots_from_text(rows[0]["snapshots"]) if rows[0]["snapshots"] is not None else {}
    return CheckpointDetails(record=_record(rows[0]), snapshots=snapshots, settlements=recorded)


def _record(row: Row) -> CheckpointRecord:
    return CheckpointRecord(
        id=CheckpointId(row["checkpoint"]),
        base=CheckpointId(row["base"]),
        generation=Generation(row["generation"]),
        state=CheckpointState(row["state"]),
        abort_reason=AbortReason[row["abort_reason"].upper()] if row["abort_reason"] is not None else None,
        detail=row["detail"],
        triggered_at=_known_time(row["triggered_at"]),
        decided_at=_time(row["decided_at"]),
        settled_at=_time(row["settled_at"]),
        records_read=row["records_read"],
        records_written=row["records_written"],
        committables=row["committables"],
    )


def _known_time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _time(milliseconds: int | None) -> datetime | None:
    return _known_time(milliseconds) if milliseconds is not None else None
