"""Facts to rows: what one transaction of the protocol changes."""

from collections.abc import Sequence
from typing import Any, assert_never

from sqlalchemy import Connection, bindparam, delete, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from coordinator.protocol.facts import (
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointSettled,
    CheckpointTriggered,
    CheckpointUnchanged,
    Fact,
    GenerationGranted,
    JobClosed,
    JobHalted,
    JobStatus,
    StopRequested,
)
from coordinator.protocol.settings import CheckpointSettings
from coordinator.protocol.values import CheckpointId, JobName, Outcome
from coordinator.store.codec import participants_to_text, settings_to_text, snapshots_to_text
from coordinator.store.errors import StoreDamagedError
from coordinator.store.records import CheckpointState
from coordinator.store.schema import checkpoints, checksum, jobs, settlements, unsealed

__all__ = ["FactWriter"]

_KEPT_ABORTED = 100
_DECIDED_FOR = (CheckpointState.COMPLETED.value, CheckpointState.SETTLED.value)

# Built once: SQLAlchemy then finds them compiled.
_ROW = (checkpoints.c.job == bindparam("j")) & (checkpoints.c.checkpoint == bindparam("n"))
_SELECT_JOB = select(jobs).where(jobs.c.job == bindparam("j"))
_INSERT_JOB = insert(jobs)
_UPDATE_JOB = update(jobs).where(jobs.c.job == bindparam("j"))
_SELECT_CHECKPOINT = select(checkpoints).where(_ROW)
_INSERT_CHECKPOINT = insert(checkpoints)
_UPDATE_CHECKPOINT = update(checkpoints).where(_ROW)
_DELETE_CHECKPOINT = delete(checkpoints).where(_ROW)
_inserted = upsert(settlements)
_UPSERT_SETTLEMENT = _inserted.on_conflict_do_update(
    index_elements=[column.name for column in settlements.primary_key.columns],
    set_={name: _inserted.excluded[name] for name in ("outcome", "evidence", "recorded_at", "checksum")},
)


def _beyond(states: tuple[str, ...]) -> Any:
    """Rows of the job that come before the ``keep``-th newest one in ``states``."""
    return (
        select(checkpoints.c.checkpoint)
        .where(checkpoints.c.job == bindparam("j"), checkpoints.c.state.in_(states))
        .order_by(checkpoints.c.checkpoint.desc())
        .limit(1)
        .offset(bindparam("newer"))
        .scalar_subquery()
    )


_PRUNE_COMPLETED = delete(checkpoints).where(
    checkpoints.c.job == bindparam("j"),
    checkpoints.c.state.in_(_DECIDED_FOR),
    checkpoints.c.checkpoint < _beyond(_DECIDED_FOR),
)
_PRUNE_SETTLEMENTS = delete(settlements).where(
    settlements.c.job == bindparam("j"), settlements.c.checkpoint < _beyond(_DECIDED_FOR)
)
_PRUNE_ABORTED = delete(checkpoints).where(
    checkpoints.c.job == bindparam("j"),
    checkpoints.c.state == CheckpointState.ABORTED.value,
    checkpoints.c.checkpoint < _beyond((CheckpointState.ABORTED.value,)),
)


class FactWriter:
    """Writes the facts of one step inside a transaction that the caller began. Raises StoreDamagedError."""

    def __init__(self, connection: Connection, job: JobName, at: int) -> None:
        self._connection = connection
        self._job = job
        self._at = at

    def write(self, facts: Sequence[Fact]) -> None:
        found = self._connection.execute(_SELECT_JOB, {"j": self._job}).mappings().one_or_none()
        if found is not None and unsealed(jobs, found):
            raise _damaged(f"job {self._job}")
        row = dict(found) if found is not None else _new_job(self._job)
        for fact in facts:
            row |= self._apply(fact, row)
        row["changed_at"] = self._at
        row["checksum"] = checksum(jobs, row)
        if found is None:
            self._connection.execute(_INSERT_JOB, row)
        else:
            row.pop("job")
            self._connection.execute(_UPDATE_JOB, {"j": self._job, **row})

    def _apply(self, fact: Fact, row: dict[str, Any]) -> dict[str, Any]:
        """Write what the fact says of checkpoints; return what it changes in the job's row."""
        match fact:
            case GenerationGranted():
                return {
                    "status": JobStatus.RUNNING.value,
                    "status_detail": "",
                    "generation": fact.generation,
                    "driver": fact.driver,
                    "participants": participants_to_text(fact.participants),
                    "settings": settings_to_text(fact.settings),
                    "last_id": fact.first_id,
                    "pending": None,
                    "pending_base": None,
                    "stop_requested": False,
                }
            case CheckpointTriggered():
                self._trigger(fact)
                return {"last_id": fact.checkpoint, "pending": fact.checkpoint, "pending_base": fact.base}
            case CheckpointCompleted():
                self._complete(fact)
                return {"completed": fact.checkpoint, "pending": None, "pending_base": None}
            case CheckpointAborted():
                self._change(
                    fact.checkpoint,
                    state=CheckpointState.ABORTED.value,
                    abort_reason=fact.reason.name.lower(),
                    detail=fact.detail,
                    decided_at=self._at,
                )
                self._connection.execute(_PRUNE_ABORTED, {"j": self._job, "newer": _KEPT_ABORTED - 1})
                return {"pending": None, "pending_base": None}
            case CheckpointUnchanged():
                self._connection.execute(_DELETE_CHECKPOINT, {"j": self._job, "n": fact.checkpoint})
                return {"pending": None, "pending_base": None}
            case CheckpointSettled():
                self._change(fact.checkpoint, state=CheckpointState.SETTLED.value, settled_at=self._at)
                return {}
            case JobHalted():
                self._record_settlements(fact)
                lost = any(one.outcome is Outcome.LOST for one in fact.settlements)
                return {
                    "status": JobStatus.HALTED.value,
                    "status_detail": fact.reason,
                    "lost": row["lost"] or lost,
                }
            case StopRequested():
                return {"stop_requested": True}
            case JobClosed():
                return {
                    "status": fact.status.value,
                    "status_detail": fact.detail,
                    "driver": None,
                    "pending": None,
                    "pending_base": None,
                }
            case _:
                assert_never(fact)

    def _trigger(self, fact: CheckpointTriggered) -> None:
        row: dict[str, Any] = {
            "job": self._job,
            "checkpoint": fact.checkpoint,
            "base": fact.base,
            "generation": fact.generation,
            "state": CheckpointState.TRIGGERED.value,
            "abort_reason": None,
            "detail": "",
            "triggered_at": self._at,
            "decided_at": None,
            "settled_at": None,
            "records_read": 0,
            "records_written": 0,
            "committables": 0,
            "snapshots": None,
        }
        row["checksum"] = checksum(checkpoints, row)
        self._connection.execute(_INSERT_CHECKPOINT, row)

    def _complete(self, fact: CheckpointCompleted) -> None:
        parts = fact.snapshots.values()
        state = CheckpointState.SETTLED if fact.settled else CheckpointState.COMPLETED
        self._change(
            fact.checkpoint,
            state=state.value,
            decided_at=self._at,
            settled_at=self._at if fact.settled else None,
            records_read=sum(part.records for part in parts if part.positions is not None),
            records_written=sum(part.records for part in parts if part.positions is None),
            committables=sum(len(part.committables) for part in parts),
            snapshots=snapshots_to_text(fact.snapshots),
        )
        retained = {"j": self._job, "newer": fact.keep - 1}
        self._connection.execute(_PRUNE_SETTLEMENTS, retained)
        self._connection.execute(_PRUNE_COMPLETED, retained)

    def _record_settlements(self, fact: JobHalted) -> None:
        rows: list[dict[str, Any]] = [
            {
                "job": self._job,
                "checkpoint": fact.checkpoint,
                "participant": fact.participant,
                "slot": settlement.slot,
                "outcome": settlement.outcome.value,
                "evidence": settlement.evidence,
                "recorded_at": self._at,
            }
            for settlement in fact.settlements
        ]
        for row in rows:
            row["checksum"] = checksum(settlements, row)
        self._connection.execute(_UPSERT_SETTLEMENT, rows)

    def _change(self, checkpoint: CheckpointId, **changes: Any) -> None:
        key = {"j": self._job, "n": checkpoint}
        found = self._connection.execute(_SELECT_CHECKPOINT, key).mappings().one_or_none()
        if found is None or unsealed(checkpoints, found):
            raise _damaged(f"checkpoint {checkpoint} of job {self._job}")
        changes["checksum"] = checksum(checkpoints, {**found, **changes})
        self._connection.execute(_UPDATE_CHECKPOINT, {**key, **changes})


def _new_job(job: JobName) -> dict[str, Any]:
    return {
        "job": job,
        "status": JobStatus.CREATED.value,
        "status_detail": "",
        "generation": 0,
        "driver": None,
        "participants": participants_to_text(()),
        "settings": settings_to_text(CheckpointSettings()),
        "last_id": 0,
        "completed": None,
        "pending": None,
        "pending_base": None,
        "stop_requested": False,
        "lost": False,
    }


def _damaged(what: str) -> StoreDamagedError:
    return StoreDamagedError(
        f"The store's record of {what} is missing or is not what was written. The last write was taken back; nothing "
        "was guessed. Restore the store from a backup; the claim on the sink's cluster tells whether it is too old."
    )
