"""Facts to rows: the changes of one protocol transaction.

A damaged row blocks no job. What the job needs is in memory and written again; other damaged rows stay unchanged.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, assert_never

from sqlalchemy import Connection, Table, bindparam, insert, select

from onceward.common.printable import log_fields, logger
from onceward.coordinator.store.audit import entry_of_fact, entry_of_note
from onceward.coordinator.store.checkpoint_rows import CheckpointRows, Unfinished
from onceward.coordinator.store.codec import document_of, document_to_text, phases_to_text, snapshots_to_text
from onceward.coordinator.store.schema import (
    checkpoints,
    checksum,
    generations,
    history,
    jobs,
    losses,
    replacing,
    settlements,
    text_checksum,
    unsealed,
)
from onceward.coordinator.store.statements import Row, Statement
from onceward.protocol import facts
from onceward.protocol.answers import Note
from onceward.protocol.durable import Durable
from onceward.protocol.values import (
    CheckpointId,
    CheckpointKind,
    CheckpointState,
    CompletedCheckpoint,
    JobName,
    Outcome,
    ParticipantName,
    RequestId,
    Settlement,
    Snapshot,
)

__all__ = ["FactWriter", "write_notes", "write_steps"]

_log = logger("onceward.store")


_WRITE_JOB = Statement(replacing(jobs))
_SELECT_POINTERS = Statement(
    select(jobs.c.completed, jobs.c.restore_from, jobs.c.restore_reason).where(jobs.c.job == bindparam("j"))
)
_WRITE_SETTLEMENT = Statement(replacing(settlements))
_WRITE_LOSS = Statement(replacing(losses))
_SELECT_LOSS = Statement(
    select(losses).where(
        (losses.c.job == bindparam("j"))
        & (losses.c.checkpoint == bindparam("n"))
        & (losses.c.participant == bindparam("p"))
        & (losses.c.slot == bindparam("s"))
    )
)
_WRITE_GENERATION = Statement(replacing(generations))
_GENERATION = (generations.c.job == bindparam("j")) & (generations.c.generation == bindparam("n"))
_SELECT_GENERATION = Statement(select(generations).where(_GENERATION))
_INSERT_HISTORY = Statement(insert(history).inline())  # without asking for the number that the database gave it
_DELETE_ALL = [
    Statement(table.delete().where(table.c.job == bindparam("j")))
    for table in (checkpoints, settlements, losses, generations, history)
]


def write_steps(
    connection: Connection,
    steps: Sequence[tuple[Durable, Sequence[facts.Fact]]],
    at: int,
    unfinished: Unfinished,
) -> None:
    """Write each step's facts and the job's state after them, inside the caller's transaction.

    A statement costs more than a row. So rows of the same kind are written together for all steps, and each job's row
    only once, in its final state.

    :param at: Unix time in milliseconds.
    :param unfinished: the rows that earlier writes of this process left there; empty at first.
    """
    rows = CheckpointRows(connection, unfinished)
    entries: list[dict[str, Any]] = []
    last: dict[JobName, FactWriter] = {}
    for durable, recorded in steps:
        last[durable.job] = writer = FactWriter(connection, rows, durable, at)
        entries += writer.write(recorded)
    job_rows = [writer.job_row() for writer in last.values()]
    rows.flush()
    _write_history(connection, entries)
    _WRITE_JOB.run(connection, job_rows)


class FactWriter:
    """Writes the changes that one step makes to checkpoints and generations."""

    def __init__(self, connection: Connection, rows: CheckpointRows, durable: Durable, at: int) -> None:
        self._connection = connection
        self._rows = rows
        self._after = durable
        self._job = durable.job
        self._at = at

    def write(self, recorded: Sequence[facts.Fact]) -> list[dict[str, Any]]:
        """Write checkpoints and generations; return the history entries."""
        for fact in recorded:
            self._apply(fact)
        said = (entry_of_fact(fact, self._after.generation) for fact in recorded)
        return [{"job": self._job, "at": self._at, **entry} for entry in said if entry is not None]

    def job_row(self) -> dict[str, Any]:
        """The job's row after the step."""
        after = self._after
        pointers: dict[str, Any] = {
            "completed": after.base or None,
            "restore_from": after.restore.source.id if after.restore is not None else None,
            "restore_reason": after.restore.reason if after.restore is not None else None,
        }
        if after.unreadable:  # keep the pointer to the unreadable checkpoint
            (stored,) = _SELECT_POINTERS.rows(self._connection, {"j": self._job})
            pointers = {**pointers, "completed": stored["completed"]} if after.restore is not None else stored
        row: dict[str, Any] = {
            "job": after.job,
            "status": after.status.value,
            "status_detail": after.status_detail,
            "generation": after.generation,
            "driver": after.driver,
            "last_id": after.last_id,
            **pointers,
            "document": document_of(after),
            "changed_at": self._at,
        }
        return {**row, "checksum": checksum(jobs, row)}

    def _apply(self, fact: facts.Fact) -> None:
        """Write the fact's changes to checkpoints and generations."""
        match fact:
            case facts.GenerationGranted():
                self._write_generation(fact.generation, fact.driver, self._at, None, "")
            case facts.GenerationEnded():
                self._end_generation(fact)
            case facts.CheckpointTriggered():
                self._rows.insert(
                    self._new_checkpoint(
                        fact.checkpoint,
                        base=fact.base,
                        generation=fact.generation,
                        kind=fact.kind,
                        name=self._name(fact.request),
                        state=CheckpointState.TRIGGERED,
                        waited=_microseconds(fact.waited_s),
                    )
                )
            case facts.CheckpointCompleted():
                state = CheckpointState.SETTLED if fact.settled else CheckpointState.COMPLETED
                self._change(
                    fact.checkpoint,
                    state=state.value,
                    decided_at=self._at,
                    settled_at=self._at if fact.settled else None,
                    ran=_microseconds(fact.ran_s),
                    decided=_microseconds(fact.decided_s),
                    settled=0 if fact.settled else None,
                    phases=phases_to_text(fact.phases),
                    **_counts(fact.snapshots.values()),
                    **_sealed(fact.snapshots),
                )
            case facts.CheckpointRestored():
                instead = f"instead of {fact.former or 'one that could not be read'}: {fact.reason}"
                self._insert_by_hand(fact, base=fact.source, kind=CheckpointKind.RESTORE, detail=instead)
            case facts.CheckpointAborted():
                self._change(
                    fact.checkpoint,
                    state=CheckpointState.ABORTED.value,
                    abort_reason=fact.reason.name.lower(),
                    detail=fact.detail,
                    decided_at=self._at,
                    ran=_microseconds(fact.ran_s),
                    phases=phases_to_text(fact.phases),
                )
            case facts.CheckpointUnchanged():
                self._rows.delete((self._job, fact.checkpoint))
            case facts.CheckpointSettled():
                self._change(
                    fact.checkpoint,
                    state=CheckpointState.SETTLED.value,
                    settled_at=self._at,
                    settled=_microseconds(fact.took_s),
                )
            case facts.LossRecorded():
                self._record_settlements(fact.checkpoint, fact.participant, fact.settlements)
            case facts.LossSkipped():
                self._record_settlements(fact.checkpoint, fact.participant, fact.settlements)
                self._record_losses(fact)
                self._change(fact.checkpoint, **self._committables_now())
            case facts.LossAcknowledged():
                self._acknowledge(fact)
            case facts.JobHalted():
                self._record_settlements(fact.checkpoint, fact.participant, fact.settlements)
            case facts.CheckpointAmended():
                self._change(fact.checkpoint, amendment=fact.amendment, **self._committables_now())
            case facts.SavepointReleased():
                self._change(fact.checkpoint, kind=CheckpointKind.CHECKPOINT.value)
            case facts.SlotsResolved():
                # Proofs only: an earlier proof must not be overwritten. The history has evidence that proves nothing.
                proofs = [one for one in fact.evidence if one.outcome is not Outcome.IN_DOUBT]
                self._record_settlements(fact.checkpoint, fact.participant, proofs)
                self._change(fact.checkpoint, **self._committables_now())
            case facts.JobForgotten():
                self._rows.forget(self._job)
                for statement in _DELETE_ALL:
                    statement.run(self._connection, [{"j": self._job}])
            case facts.InputSkipped():
                without = f"without {fact.skipped}: {fact.reason}"
                self._insert_by_hand(fact, base=fact.base, kind=CheckpointKind.SKIP, detail=without)
            case (
                facts.GenerationFailed()
                | facts.StatusChanged()
                | facts.OutputClosed()
                | facts.RequestQueued()
                | facts.RequestEnded()
                | facts.EndingRequested()
                | facts.RestoreRequested()
                | facts.TakeoverPermitted()
                | facts.AdoptionPermitted()
            ):
                pass  # changes of the job only: its row and the history have them
            case _:
                assert_never(fact)

    def _committables_now(self) -> dict[str, Any]:
        completed = self._after.completed
        assert completed is not None, "only a completed checkpoint is amended or resolved"
        count = sum(len(part.committables) for part in completed.snapshots.values())
        return {"committables": count, **_sealed(completed.snapshots)}

    def _name(self, request: RequestId | None) -> str:
        return next((one.name for one in self._after.requests if one.id == request), "")

    def _insert_by_hand(
        self,
        fact: facts.CheckpointRestored | facts.InputSkipped,
        *,
        base: CheckpointId,
        kind: CheckpointKind,
        detail: str,
    ) -> None:
        """Insert a checkpoint that a person made: nothing ran for it, and nothing waits to be settled."""
        row = self._new_checkpoint(
            fact.checkpoint,
            base=base,
            generation=fact.generation,
            kind=kind,
            name="",
            state=CheckpointState.SETTLED,
            waited=0,
            detail=detail,
            decided_at=self._at,
            settled_at=self._at,
            snapshots=fact.snapshots,
        )
        self._rows.insert(row)

    def _new_checkpoint(
        self,
        checkpoint: CheckpointId,
        *,
        base: CheckpointId,
        generation: int,
        kind: CheckpointKind,
        name: str,
        state: CheckpointState,
        waited: int,
        detail: str = "",
        decided_at: int | None = None,
        settled_at: int | None = None,
        snapshots: Mapping[ParticipantName, Snapshot] | None = None,
    ) -> dict[str, Any]:
        return {
            "job": self._job,
            "checkpoint": checkpoint,
            "base": base,
            "generation": generation,
            "kind": kind.value,
            "name": name,
            "state": state.value,
            "abort_reason": None,
            "detail": detail,
            "triggered_at": self._at,
            "decided_at": decided_at,
            "settled_at": settled_at,
            "waited": waited,
            "ran": None,
            "decided": None,
            "settled": None,
            "records_read": 0,
            "records_written": 0,
            "bytes_read": 0,
            "bytes_written": 0,
            "committables": 0,
            "amendment": 0,
            "phases": None,
            **(_sealed(snapshots) if snapshots is not None else {"snapshots": None, "snapshots_checksum": None}),
        }

    def _change(self, checkpoint: CheckpointId, **changes: Any) -> None:
        if self._rows.change((self._job, checkpoint), changes):
            return
        self._set_aside("checkpoint", checkpoint)
        completed = self._after.completed
        if completed is not None and completed.id == checkpoint:  # the job needs it, and memory has all of it
            self._rows.replace({**self._remembered(completed), **changes})

    def _remembered(self, completed: CompletedCheckpoint) -> dict[str, Any]:
        """The newest completed checkpoint's row, except when it was triggered."""
        return {
            **self._new_checkpoint(
                completed.id,
                base=completed.base,
                generation=completed.generation,
                kind=completed.kind,
                name=next((one.name for one in self._after.requests if one.checkpoint == completed.id), ""),
                state=CheckpointState.SETTLED if completed.settled else CheckpointState.COMPLETED,
                waited=0,
                detail="its record was damaged, and written again: when it was triggered is not known",
                decided_at=self._at,
                settled_at=self._at if completed.settled else None,
                snapshots=completed.snapshots,
            ),
            **_counts(completed.snapshots.values()),
            "amendment": completed.amendment,
        }

    def _set_aside(self, what: str, number: int) -> None:
        detail = f"the record of {what} {number} is not what was written"
        _log.error("%s", log_fields({"job": self._job, "event": "damaged", "detail": detail}))

    def _write_generation(
        self, generation: int, driver: str, granted_at: int, ended_at: int | None, detail: str
    ) -> None:
        row: dict[str, Any] = {
            "job": self._job,
            "generation": generation,
            "driver": driver,
            "granted_at": granted_at,
            "ended_at": ended_at,
            "detail": detail,
        }
        _write_sealed(self._connection, generations, _WRITE_GENERATION, [row])

    def _end_generation(self, fact: facts.GenerationEnded) -> None:
        key = {"j": self._job, "n": fact.generation}
        found = _SELECT_GENERATION.first(self._connection, key)
        if found is None or unsealed(generations, found):
            self._set_aside("generation", fact.generation)  # the history has how it ended
            return
        self._write_generation(fact.generation, found["driver"], found["granted_at"], self._at, fact.detail)

    def _record_settlements(
        self, checkpoint: CheckpointId, participant: ParticipantName, outcomes: Sequence[Settlement]
    ) -> None:
        rows: list[dict[str, Any]] = [
            {
                "job": self._job,
                "checkpoint": checkpoint,
                "participant": participant,
                "slot": settlement.slot,
                "outcome": settlement.outcome.value,
                "evidence": settlement.evidence,
                "recorded_at": self._at,
            }
            for settlement in outcomes
        ]
        _write_sealed(self._connection, settlements, _WRITE_SETTLEMENT, rows)

    def _record_losses(self, fact: facts.LossSkipped) -> None:
        documents = {committable.slot: committable.document for committable in fact.committables}
        rows: list[dict[str, Any]] = [
            {
                "job": self._job,
                "checkpoint": fact.checkpoint,
                "participant": fact.participant,
                "slot": settlement.slot,
                "document": document_to_text(documents[settlement.slot]),
                "outcome": settlement.outcome.value,
                "evidence": settlement.evidence,
                "reason": fact.reason,
                "recorded_at": self._at,
                "acknowledged_at": None,
                "acknowledgement": None,
            }
            for settlement in fact.settlements
        ]
        _write_sealed(self._connection, losses, _WRITE_LOSS, rows)

    def _acknowledge(self, fact: facts.LossAcknowledged) -> None:
        for slot in sorted(fact.slots):
            key = {"j": self._job, "n": fact.checkpoint, "p": fact.participant, "s": slot}
            found = _SELECT_LOSS.first(self._connection, key)
            if found is None:
                self._set_aside("the loss of slot", slot)
                continue
            row = {**found, "acknowledged_at": self._at, "acknowledgement": fact.reason}
            seal = found["checksum"] if unsealed(losses, found) else checksum(losses, row)  # damage must stay visible
            _WRITE_LOSS.run(self._connection, [{**row, "checksum": seal}])


def write_notes(connection: Connection, job: JobName, at: int, notes: Iterable[tuple[Note, int]]) -> None:
    """Write calls that were not accepted, each with its count, inside the caller's transaction."""
    _write_history(connection, [{"job": job, "at": at, **entry_of_note(note, count)} for note, count in notes])


def _write_history(connection: Connection, rows: Iterable[Row]) -> None:
    _write_sealed(connection, history, _INSERT_HISTORY, rows)


def _write_sealed(connection: Connection, table: Table, statement: Statement, rows: Iterable[Row]) -> None:
    statement.run(connection, [{**row, "checksum": checksum(table, row)} for row in rows])


def _counts(parts: Collection[Snapshot]) -> dict[str, int]:
    read = [part for part in parts if part.positions is not None]
    written = [part for part in parts if part.positions is None]
    return {
        "records_read": sum(part.records for part in read),
        "records_written": sum(part.records for part in written),
        "bytes_read": sum(part.bytes for part in read),
        "bytes_written": sum(part.bytes for part in written),
        "committables": sum(len(part.committables) for part in written),
    }


def _sealed(snapshots: Mapping[ParticipantName, Snapshot]) -> dict[str, str]:
    text = snapshots_to_text(snapshots)
    return {"snapshots": text, "snapshots_checksum": text_checksum(text)}


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)
