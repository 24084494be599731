"""Bugs of the driver in what it commits, aborts, remembers and repeats."""

import contextlib

from onceward.coordinator.client import calls
from onceward.coordinator.errors import StoreError
from onceward.coordinator.pipeline import checkpoint_runner, generation, recovery, settler
from onceward.coordinator.service import engine
from tests.mutants.breaking import both, changed, put
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
_RUN = generation.GenerationRun
_RUNNER = checkpoint_runner.CheckpointRunner

_keep = engine.Engine.keep


def _careless(self: engine.Engine, batch: engine.CommitBatch) -> None:
    with contextlib.suppress(StoreError):
        _keep(self, batch)


DRIVER = (
    Mutant(
        name="a job ends as soon as its last commits are confirmed",
        hurts="a reader that starts then misses the last records",
        breaks=changed(_RUN._await_ends, ("while left := m.committer.ending(m.job):", "while left := ():")),
        hunt=MARKERS,
        caught_by=(Invariant.I13,),
    ),
    Mutant(
        name="the driver commits before anybody has decided",
        hurts="the checkpoint may be aborted, and its records are written once more",
        breaks=changed(
            _RUNNER.run,
            (
                "self._settler.expect(checkpoint, sink.committables, source.positions, records=source.records)",
                "self._settler.expect(checkpoint, sink.committables, source.positions, records=source.records)\n"
                "    self._settler.complete(checkpoint)",
            ),
        ),
        hunt=LATE,
        caught_by=(Invariant.I5,),
    ),
    Mutant(
        name="a checkpoint is committed before it is claimed",
        hurts="if the driver dies then, an old copy of the store passes and writes the checkpoint's records again",
        breaks=changed(settler.Settler.settle, ("if not self._renew_claim(checkpoint):", "if False:")),
        hunt=ANY,
        caught_by=(Invariant.I2,),
    ),
    Mutant(
        name="the driver aborts what it has acknowledged when no answer comes",
        hurts="the acknowledgement has arrived, and the completed checkpoint has no transactions any more",
        breaks=both(
            changed(calls.Caller.call, ("if time.monotonic() - begun >= limit:", "if 'acknowl' in doing:")),
            changed(
                _RUNNER._send,
                ("m, answers =", "from onceward.coordinator.errors import CoordinatorLostError\n    m, answers ="),
                (
                    "except CheckpointFailedError as error:",
                    "except CoordinatorLostError as error:\n"
                    "        self._abandon(checkpoint, shorten(str(error)))\n"
                    "        return\n"
                    "    except CheckpointFailedError as error:",
                ),
            ),
        ),
        hunt=LOSSES,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="acknowledged transactions are swept like leftovers",
        hurts="a decision for them may come at any moment, and finds them aborted",
        breaks=changed(
            _RUNNER.run,
            ("self._settler.expect(checkpoint, sink.committables, source.positions, records=source.records)", "pass"),
        ),
        hunt=ANY,
        caught_by=(Invariant.I1, Invariant.I8),
    ),
    Mutant(
        name="a repeated trigger runs the checkpoint twice",
        hurts="the same range is written under two sets of transactions",
        breaks=changed(_RUNNER.run, ("if checkpoint <= self._last_run:", "if False:")),
        hunt=RESTARTS,
        caught_by=(Invariant.I1, Invariant.I2, Invariant.I5, Invariant.I9),
    ),
    Mutant(
        name="the next checkpoint begins where the aborted one ended",
        hurts="the records of the aborted one are skipped",
        breaks=both(
            changed(
                _RUNNER.run,
                ("self._positions.get(base)", "self._positions.get(max(self._positions, default=base))"),
            ),
            changed(
                _RUNNER._forget_undone,
                (
                    "for c, positions in self._positions.items() if c == base}",
                    "for c, positions in self._positions.items()}",
                ),
            ),
        ),
        hunt=ABORTS,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="recovery commits all but one of the completed committables",
        hurts="that one is swept as a leftover, and its records are lost",
        breaks=changed(
            recovery.Recovery.take_claim,
            (
                "completed.snapshots[m.sink.participant.name].committables",
                "completed.snapshots[m.sink.participant.name].committables[:-1]",
            ),
        ),
        hunt=KILLS,
        caught_by=(Invariant.I1, Invariant.I8),
    ),
    Mutant(
        name="recovery sweeps before it has looked at what is completed",
        hurts="decided transactions are aborted as leftovers",
        breaks=changed(
            recovery.Recovery.end_transactions,
            ("m.committer.sweep(m.job, keep=self._to_commit)", "m.committer.sweep(m.job, keep=())"),
        ),
        hunt=KILLS,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="outcomes are reported before anything is committed",
        hurts="the checkpoint counts as settled, and a crash leaves its transactions to be swept",
        breaks=changed(
            settler.Settler._commit,
            (
                "tuple(self._committer.commit(open_, give_up=self._leaving))",
                "tuple(Settlement(slot=c.slot, outcome=Outcome.COMMITTED, evidence='') for c in open_)",
            ),
        ),
        hunt=ANY,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a checkpoint counts as settled for the driver before the coordinator knows",
        hurts="its transactions are no longer kept from the sweep although they may still be open",
        breaks=changed(
            settler.Settler.complete,
            (
                "self._submitted.setdefault(turn,",
                "self.settled = checkpoint\n        self._submitted.setdefault(turn,",
            ),
        ),
        hunt=ANY,
        caught_by=(Invariant.I1, Invariant.I8),
    ),
    Mutant(
        name="a failed write of the store is taken for success",
        hurts="the coordinator tells decisions that no disk knows, and a restart makes other ones",
        breaks=put(engine.Engine, "keep", _careless),
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
