"""Jobs in a store, written step by step without a core."""

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from onceward.coordinator.store.store import Store
from onceward.protocol import facts
from onceward.protocol.durable import Durable
from onceward.protocol.events import Event, ReleaseSavepoint, RequestRestore
from onceward.protocol.evolve import evolve
from onceward.protocol.phases import Phases
from onceward.protocol.requests import Request
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.state import JobState
from onceward.protocol.status import JobStatus, Transition
from onceward.protocol.values import (
    CheckpointId,
    CheckpointKind,
    CheckpointState,
    Generation,
    JobName,
    ParticipantName,
    RequestId,
    Settlement,
    Snapshot,
)
from tests.support.documents import committable, document
from tests.support.events import SINK, SOURCE
from tests.support.histories import Move, to_event

__all__ = ["AT", "JOB", "MEMORY", "StoredJob", "change", "event_of", "ids", "loaded", "snapshots"]

JOB = JobName("orders")
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""A directory in memory: most tests are not about a power loss and need not wait for the disk."""
AT = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


class StoredJob:
    """One job: its durable state in memory, with every step written to the store."""

    def __init__(self, store: Store, name: JobName = JOB, *, known: Durable | None = None) -> None:
        self._store = store
        self.durable = known or Durable(job=name, store_id=store.store_id)

    def write(self, *recorded: facts.Fact, at: datetime = AT) -> None:
        durable = self.durable
        for fact in recorded:
            durable = evolve(durable, fact)
        self._store.apply([(durable, recorded)], at=at)
        self.durable = durable

    def open(self, driver: str = "d1", *, at: datetime = AT) -> None:
        """Begin the next generation."""
        granted = facts.GenerationGranted(
            generation=Generation(self.durable.generation + 1),
            driver=driver,
            participants=(SOURCE, SINK),
            settings=CheckpointSettings(),
            first_id=self.durable.last_id,
        )
        self.write(
            granted, facts.StatusChanged(transition=Transition.OPENED, status=JobStatus.RUNNING, detail=""), at=at
        )

    def end(self, *, at: datetime = AT) -> None:
        ended = facts.GenerationEnded(generation=self.durable.generation, detail="it left")
        left = facts.StatusChanged(transition=Transition.LEFT, status=JobStatus.SUSPENDED, detail="")
        self.write(ended, left, at=at)

    def trigger(self, *, kind: CheckpointKind = CheckpointKind.CHECKPOINT, name: str = "", waited: float = 0.0) -> None:
        number = CheckpointId(self.durable.last_id + 1)
        request = None
        if name:
            request = RequestId(f"wish-{number}")
            self.write(facts.RequestQueued(request=Request(id=request, kind=kind, name=name)))
        self.write(
            facts.CheckpointTriggered(
                checkpoint=number,
                base=self.durable.base,
                generation=self.durable.generation,
                kind=kind,
                request=request,
                waited_s=waited,
            )
        )

    def complete(
        self,
        *,
        settled: bool = False,
        ran: float = 0.0,
        decided: float = 0.0,
        at: datetime = AT,
        phases: Phases = MappingProxyType({}),
    ) -> None:
        number = self.durable.last_id
        completed = facts.CheckpointCompleted(
            checkpoint=number,
            snapshots=snapshots(number),
            settled=settled,
            ran_s=ran,
            decided_s=decided,
            phases=phases,
        )
        self.write(completed, at=at)

    def settle(self, *, took: float = 0.0, at: datetime = AT) -> None:
        self.write(facts.CheckpointSettled(checkpoint=self.durable.base, took_s=took), at=at)

    def abort(
        self,
        reason: facts.AbortReason,
        detail: str = "",
        *,
        ran: float = 0.0,
        at: datetime = AT,
        phases: Phases = MappingProxyType({}),
    ) -> None:
        aborted = facts.CheckpointAborted(
            checkpoint=self.durable.last_id,
            generation=self.durable.generation,
            reason=reason,
            detail=detail,
            counted=reason.counted,
            ran_s=ran,
            phases=phases,
        )
        self.write(aborted, at=at)

    def checkpoints(self, count: int, *, kind: CheckpointKind = CheckpointKind.CHECKPOINT) -> None:
        """Run ``count`` checkpoints, each completed and settled."""
        for _ in range(count):
            self.trigger(kind=kind)
            self.complete()
            self.settle()

    def lose(self, *lost: Settlement, at: datetime = AT) -> None:
        """Complete the next checkpoint and give up these slots of it."""
        self.trigger()
        self.complete()
        assert self.durable.completed is not None
        committables = self.durable.completed.snapshots[SINK.name].committables
        slots = {one.slot for one in lost}
        skipped = facts.LossSkipped(
            checkpoint=self.durable.base,
            participant=SINK.name,
            settlements=lost,
            committables=tuple(one for one in committables if one.slot in slots),
            reason="on_lost=skip",
        )
        self.write(skipped, at=at)

    def halt(self, *settlements: Settlement) -> None:
        halted = facts.JobHalted(
            checkpoint=self.durable.base, participant=SINK.name, settlements=settlements, reason="it is lost"
        )
        self.write(
            halted, facts.StatusChanged(transition=Transition.HALTED, status=JobStatus.HALTED, detail="it is lost")
        )

    def order_restore(self, source: int, reason: str = "ann: bad input") -> None:
        found = self._store.completed(self.durable.job, CheckpointId(source))
        self.write(facts.RestoreRequested(source=found, reason=reason))

    def restore(self, *, at: datetime = AT) -> None:
        """Begin the next generation with the ordered restore."""
        order = self.durable.restore
        assert order is not None
        self.open(at=at)
        restored = facts.CheckpointRestored(
            checkpoint=CheckpointId(self.durable.last_id + 1),
            source=order.source.id,
            former=self.durable.base,
            generation=self.durable.generation,
            snapshots={name: Snapshot(positions=part.positions) for name, part in order.source.snapshots.items()},
            reason=order.reason,
        )
        self.write(restored, at=at)


def snapshots(checkpoint: int, slots: int = 2) -> dict[ParticipantName, Snapshot]:
    committables = tuple(committable(slot, of=checkpoint) for slot in range(slots))
    return {
        SOURCE.name: Snapshot(positions=document(of=checkpoint), records=10, bytes=100),
        SINK.name: Snapshot(committables=committables, records=9, bytes=90),
    }


def event_of(move: Move, state: JobState, now: float, store: Store) -> Event | None:
    """Return the move as an event for a coordinator with this store; None if it refuses without asking the core."""
    event = to_event(move, state, now)
    job = state.durable.job
    match event:
        case RequestRestore():
            there = ids(store, job, states=(CheckpointState.COMPLETED, CheckpointState.SETTLED))
            older = there[1:] or there  # restoring the newest checkpoint is refused
            if not older:
                return None
            source = store.completed(job, CheckpointId(older[move.choice % len(older)]))
            return RequestRestore(now=now, source=source, reason=event.reason)
        case ReleaseSavepoint():
            stored = store.checkpoint(job, event.checkpoint)
            savepoint = stored is not None and stored.summary.kind is CheckpointKind.SAVEPOINT
            return event if savepoint else None
        case _:
            return event


def ids(store: Store, job: JobName = JOB, *, states: Sequence[CheckpointState] = tuple(CheckpointState)) -> list[int]:
    """Return the ids of the stored checkpoints, newest first."""
    return [one.checkpoint for one in store.checkpoints(job, 10_000) if one.state in states]


def change(file: Path, statement: str) -> None:
    """Change one row of a closed store, like damage or manual editing would."""
    with closing(sqlite3.connect(file)) as raw, raw:
        assert raw.execute(statement).rowcount == 1


def loaded(file: Path) -> list[Durable]:
    with closing(Store.open(f"sqlite:///{file}")) as store:
        return store.load_jobs()
