"""Bugs of the driver in what it commits, aborts, remembers and repeats."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from onceward.coordinator.client.calls import Caller
from onceward.coordinator.client.session import Session
from onceward.coordinator.errors import CoordinatorLostError, StoreError
from onceward.coordinator.pipeline.checkpoint_runner import CheckpointRunner
from onceward.coordinator.pipeline.generation import GenerationRun
from onceward.coordinator.pipeline.recovery import Recovery
from onceward.coordinator.pipeline.settler import Settler
from onceward.coordinator.protocol.committing import Committer
from onceward.coordinator.protocol.values import (
    NO_CHECKPOINT,
    CheckpointId,
    Committable,
    Document,
    Outcome,
    Settlement,
    Snapshot,
)
from onceward.coordinator.service.engine import CommitBatch, Engine
from tests.mutants.breaking import Field, always, both, within, wrapped
from tests.mutants.mutant import Mutant
from tests.mutants.seed_hunts import SeedHunt, clear
from tests.simulation.checker import Invariant
from tests.simulation.network import LinkFaults

__all__ = ["DRIVER"]

ANY = SeedHunt(name="any faults", seeds=60)
KILLS = SeedHunt(name="processes are killed", seeds=30, faults=clear(kill_points=0.02, driver_kills=3))
LATE = SeedHunt(name="calls to the coordinator are late", seeds=20, faults=clear(rpc=LinkFaults(slow=0.5)))
LOSSES = SeedHunt(name="answers get lost", seeds=20, faults=clear(rpc=LinkFaults(loss=0.15)))
ABORTS = SeedHunt(name="checkpoints time out", seeds=20, faults=clear(timeout=0.1))
RESTARTS = SeedHunt(name="coordinators restart", seeds=15, faults=clear(coordinator_kills=10, interval=0.0))
DISK = SeedHunt(name="writes of the store fail", seeds=20, faults=clear(store_failures=0.1))
MARKERS = SeedHunt(name="markers are late", seeds=20, faults=clear(marker_delay=0.5))


def _commits_at_once(
    self: Settler,
    checkpoint: CheckpointId,
    committables: tuple[Committable, ...],
    positions: Document | None,
    *,
    records: int = 0,
    amendment: int = 0,
) -> None:
    self.expect(checkpoint, committables, positions, records=records, amendment=amendment)
    self.complete(checkpoint, amendment)


def _asks_once(self: Caller, *arguments: Any, **named: Any) -> Any:
    return self.call(*arguments, **named, patience=0.0)


def _aborts_unanswered(
    send: Callable[[CheckpointRunner, CheckpointId], None], self: CheckpointRunner, checkpoint: CheckpointId
) -> None:
    try:
        send(self, checkpoint)
    except CoordinatorLostError as error:
        self._abandon(checkpoint, str(error))


def _keeps_positions(
    forget_undone: Callable[[CheckpointRunner, CheckpointId], None], self: CheckpointRunner, base: CheckpointId
) -> None:
    newest = max(self._positions, default=base)
    positions = self._positions.get(newest)
    forget_undone(self, base)
    if positions is not None and base != NO_CHECKPOINT:
        self._positions[base] = positions


def _takes_for_committed(
    self: Committer, committables: Sequence[Committable], *, give_up: Callable[[], bool] = lambda: False
) -> Sequence[Settlement]:
    return [Settlement(slot=one.slot, outcome=Outcome.COMMITTED, evidence="") for one in committables]


def _settled_at_once(
    complete: Callable[[Settler, CheckpointId, int], None], self: Settler, checkpoint: CheckpointId, amendment: int = 0
) -> None:
    work = self.work(checkpoint)
    if work is not None and work.amendment == amendment:
        self.settled = checkpoint
    complete(self, checkpoint, amendment)


def _careless(keep: Callable[[Engine, CommitBatch], None], self: Engine, batch: CommitBatch) -> None:
    with contextlib.suppress(StoreError):
        keep(self, batch)


DRIVER = (
    Mutant(
        name="a job ends as soon as its last commits are confirmed",
        hurts="a reader that starts then misses the last records",
        breaks=within(GenerationRun._await_ends, Committer.ending, always(())),
        hunt=MARKERS,
        caught_by=(Invariant.I13,),
    ),
    Mutant(
        name="the driver commits before anybody has decided",
        hurts="the checkpoint may be aborted, and its records are written once more",
        breaks=within(CheckpointRunner.run, Settler.expect, _commits_at_once),
        hunt=LATE,
        caught_by=(Invariant.I5,),
    ),
    Mutant(
        name="a checkpoint is committed before it is claimed",
        hurts="if the driver dies then, an old copy of the store passes and writes the checkpoint's records again",
        breaks=within(Settler.settle, Settler._renew_claim, always(True)),
        hunt=ANY,
        caught_by=(Invariant.I2,),
    ),
    Mutant(
        name="the driver aborts what it has acknowledged when no answer comes",
        hurts="the acknowledgement has arrived, and the completed checkpoint has no transactions any more",
        breaks=both(
            within(Session.acknowledge, Caller.call, _asks_once), wrapped(CheckpointRunner._send, _aborts_unanswered)
        ),
        hunt=LOSSES,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="acknowledged transactions are swept like leftovers",
        hurts="a decision for them may come at any moment, and finds them aborted",
        breaks=within(CheckpointRunner.run, Settler.expect, always(None)),
        hunt=ANY,
        caught_by=(Invariant.I1, Invariant.I8),
    ),
    Mutant(
        name="a repeated trigger runs the checkpoint twice",
        hurts="the same range is written under two sets of transactions",
        breaks=within(CheckpointRunner.run, Field(CheckpointRunner, lambda run: run._last_run), always(NO_CHECKPOINT)),
        hunt=RESTARTS,
        caught_by=(Invariant.I1, Invariant.I2, Invariant.I5, Invariant.I9),
    ),
    Mutant(
        name="the next checkpoint begins where the aborted one ended",
        hurts="the records of the aborted one are skipped",
        breaks=wrapped(CheckpointRunner._forget_undone, _keeps_positions),
        hunt=ABORTS,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="recovery commits all but one of the completed committables",
        hurts="that one is swept as a leftover, and its records are lost",
        breaks=within(
            Recovery.take_claim,
            Field(Snapshot, lambda snapshot: snapshot.committables),
            lambda snapshot: snapshot.committables[:-1],
        ),
        hunt=KILLS,
        caught_by=(Invariant.I1, Invariant.I8),
    ),
    Mutant(
        name="recovery sweeps before it has looked at what is completed",
        hurts="decided transactions are aborted as leftovers",
        breaks=within(Recovery.end_transactions, Committer.sweep, lambda self, job, *, keep=(): self.sweep(job)),
        hunt=KILLS,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="outcomes are reported before anything is committed",
        hurts="the checkpoint counts as settled, and a crash leaves its transactions to be swept",
        breaks=within(Settler._commit, Committer.commit, _takes_for_committed),
        hunt=ANY,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a checkpoint counts as settled for the driver before the coordinator knows",
        hurts="its transactions are no longer kept from the sweep although they may still be open",
        breaks=wrapped(Settler.complete, _settled_at_once),
        hunt=ANY,
        caught_by=(Invariant.I1, Invariant.I8),
    ),
    Mutant(
        name="a failed write of the store is taken for success",
        hurts="the coordinator tells decisions that no disk knows, and a restart makes other ones",
        breaks=wrapped(Engine.keep, _careless),
        hunt=DISK,
        caught_by=(
            Invariant.I4,
            Invariant.I5,
            Invariant.I8,
            Invariant.I10,
            Invariant.CODE,
        ),  # CODE: facts about what is not stored
    ),
)
