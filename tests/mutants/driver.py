"""Bugs of the driver in what it commits, aborts, remembers and repeats."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from onceward.client.calls import Caller
from onceward.client.session import Session
from onceward.common.errors import CoordinatorLostError, StoreError
from onceward.coordinator.service.engine import CommitBatch, Engine
from onceward.driver.checkpoint_runner import CheckpointRunner
from onceward.driver.outputs import Held, Made, OpenOutput, Outputs
from onceward.driver.recovery import Recovery
from onceward.driver.settler import Settler
from onceward.protocol.committing import PreCommitted, System
from onceward.protocol.values import (
    NO_CHECKPOINT,
    Author,
    CheckpointId,
    Committable,
    Document,
    Outcome,
    Settlement,
    Snapshot,
)
from tests.mutants.breaking import Field, always, both, within, wrapped
from tests.mutants.mutant import Mutant
from tests.mutants.seed_hunts import SeedHunt, clear
from tests.simulation.checker import Invariant
from tests.simulation.network import LinkFaults

__all__ = ["DRIVER"]

ANY = SeedHunt(name="any faults", seeds=60)
KILLS = SeedHunt(name="processes are killed", seeds=30, faults=clear(kill_points=0.02, driver_kills=3))
LATE = SeedHunt(name="calls to the coordinator are late", seeds=20, faults=clear(rpc=LinkFaults(slow=0.5)))
LOSSES = SeedHunt(name="answers get lost", seeds=60, faults=clear(rpc=LinkFaults(loss=0.15)))
ABORTS = SeedHunt(name="checkpoints time out", seeds=20, faults=clear(timeout=0.1))
RESTARTS = SeedHunt(name="coordinators restart", seeds=15, faults=clear(coordinator_kills=10, interval=0.0))
DISK = SeedHunt(name="writes of the store fail", seeds=20, faults=clear(store_failures=0.1))
BESIDE = SeedHunt(name="two sinks on one system", seeds=30, faults=clear(second_sink="beside", kill_points=0.02))
APART = SeedHunt(name="two sinks on two systems", seeds=10, faults=clear(second_sink="apart"))
MARKERS = SeedHunt(name="markers are late", seeds=20, faults=clear(marker_delay=0.5))


def _commits_at_once(
    self: Settler,
    checkpoint: CheckpointId,
    committables: Held,
    positions: Document | None,
    *,
    records: int = 0,
    amendment: int = 0,
    made: Made | None = None,
) -> None:
    self.expect(checkpoint, committables, positions, records=records, amendment=amendment, made=made)
    self.complete(checkpoint, amendment)


def _asks_once(self: Caller, *arguments: Any, **named: Any) -> Any:
    return self.call(*arguments, **named, patience_s=0.0)


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
    self: System,
    author: Author,
    committables: Sequence[Committable],
    *,
    give_up: Callable[[], bool] = lambda: False,
    known: PreCommitted | None = None,
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


def _keeps_first(self: Outputs, group: Sequence[OpenOutput], held: Held) -> tuple[Committable, ...]:
    return tuple(held.get(group[0].name, ()))


def _one_by_one(self: Outputs) -> Sequence[Sequence[OpenOutput]]:
    return [[output] for group in self._systems() for output in group]


def _first_alone(self: Outputs, ask: Callable[[Sequence[OpenOutput]], Any]) -> Sequence[Any]:
    return [ask(self._systems()[0])]


DRIVER = (
    Mutant(
        name="a sweep spares what one sink of a system has decided, and no other's",
        hurts="the completed checkpoint has lost the transactions of the other sinks",
        breaks=within(Outputs.end_leftovers, Outputs._on, _keeps_first),
        hunt=BESIDE,
        caught_by=(Invariant.I1, Invariant.I8),
    ),
    Mutant(
        name="the pre-commit of one sink ends what the next one on its system has written",
        hurts="the other sink's transactions are gone when its turn comes, and no checkpoint completes",
        breaks=within(Outputs.pre_commit, Outputs._systems, _one_by_one),
        hunt=BESIDE,
        caught_by=(Invariant.I1, Invariant.I8, Invariant.I9),
    ),
    Mutant(
        name="the claim is renewed on the first system only",
        hurts="a store that lacks the checkpoint may write its records to the other systems again",
        breaks=within(Outputs.renew_claim, Outputs._on_all, _first_alone),
        hunt=APART,
        caught_by=(Invariant.I2,),
    ),
    Mutant(
        name="a job ends before readers see its last commits",
        hurts="a reader that starts at once misses the last records",
        breaks=within(Outputs.ending, System.ending, always(())),
        hunt=MARKERS,
        caught_by=(Invariant.I13,),
    ),
    Mutant(
        name="the driver commits before the coordinator has decided",
        hurts="the coordinator may abort the checkpoint, and the job writes its records twice",
        breaks=within(CheckpointRunner.run, Settler.expect, _commits_at_once),
        hunt=LATE,
        caught_by=(Invariant.I5,),
    ),
    Mutant(
        name="the driver commits a checkpoint before it has renewed the claim",
        hurts="if the driver dies then, a job with an old copy of the store writes the checkpoint's records again",
        breaks=within(Settler.settle, Settler._renew_claim, always(True)),
        hunt=ANY,
        caught_by=(Invariant.I2,),
    ),
    Mutant(
        name="the driver aborts a checkpoint whose acknowledgement gets no answer",
        hurts="the acknowledgement may have arrived, and the completed checkpoint has lost its transactions",
        breaks=both(
            within(Session.acknowledge, Caller.call, _asks_once), wrapped(CheckpointRunner._send, _aborts_unanswered)
        ),
        hunt=LOSSES,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="the driver sweeps acknowledged transactions",
        hurts="the coordinator may complete the checkpoint, and finds them aborted",
        breaks=within(CheckpointRunner.run, Settler.expect, always(None)),
        hunt=ANY,
        caught_by=(Invariant.I1, Invariant.I8),
    ),
    Mutant(
        name="the driver runs a checkpoint again when its trigger is repeated",
        hurts="two sets of transactions hold the same range",
        breaks=within(CheckpointRunner.run, Field(CheckpointRunner, lambda run: run._last_run), always(NO_CHECKPOINT)),
        hunt=RESTARTS,
        caught_by=(Invariant.I1, Invariant.I2, Invariant.I5, Invariant.I9),
    ),
    Mutant(
        name="the next checkpoint begins where an aborted one ended",
        hurts="the records of the aborted one are lost",
        breaks=wrapped(CheckpointRunner._forget_undone, _keeps_positions),
        hunt=ABORTS,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="recovery leaves out one of the completed committables",
        hurts="recovery sweeps that one, and its records are lost",
        breaks=within(
            Recovery._held,
            Field(Snapshot, lambda snapshot: snapshot.committables),
            lambda snapshot: snapshot.committables[:-1],
        ),
        hunt=KILLS,
        caught_by=(Invariant.I1, Invariant.I8),
    ),
    Mutant(
        name="recovery sweeps the completed committables",
        hurts="decided transactions are aborted",
        breaks=within(
            Recovery.end_transactions,
            Outputs.end_leftovers,
            lambda self, *, keep, staying=(): self.end_leftovers(keep={}),
        ),
        hunt=KILLS,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="the driver reports outcomes and commits nothing",
        hurts="the checkpoint counts as settled, and the next sweep aborts its transactions",
        breaks=within(Outputs.commit, System.commit, _takes_for_committed),
        hunt=ANY,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="the driver treats a checkpoint as settled before it has committed it",
        hurts="the next sweep aborts its transactions, which may still be open",
        breaks=wrapped(Settler.complete, _settled_at_once),
        hunt=ANY,
        caught_by=(Invariant.I1, Invariant.I8, Invariant.I13),
    ),
    Mutant(
        name="the coordinator treats a failed write of the store as a success",
        hurts="it sends decisions that are on no disk, and decides differently after a restart",
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
