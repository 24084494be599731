"""Bugs of replays: a lost record is written twice, not at all, or too late."""

from onceward.coordinator.pipeline import checkpoint_runner, mailbox, replaying, settler
from onceward.coordinator.protocol import core, settling
from onceward.coordinator.protocol.values import OnLost
from tests.explorer.invariants import Invariant as Small
from tests.explorer.world import Bounds
from tests.mutants.breaking import both, changed
from tests.mutants.hunts import Exploration
from tests.mutants.mutant import Mutant
from tests.mutants.seed_hunts import SeedHunt, clear
from tests.simulation.checker import Invariant

__all__ = ["REPLAYS"]

LOSSES = Exploration(
    name="a small world in which something is lost",
    bounds=Bounds(checkpoints=3, crashes=1, messages=0, store=0, declines=0, timeouts=0, losses=1),
)
ROBBERIES = SeedHunt(
    name="another program aborts what is decided",
    seeds=60,
    faults=clear(robberies=0.4, driver_kills=1, interval=0.0, on_lost=OnLost.REPLAY),
)
_REPLAYER = replaying.Replayer

REPLAYS = (
    Mutant(
        name="a loss is recorded and the checkpoint that runs goes on",
        hurts="its records may be in front of the lost ones",
        breaks=changed(settling._replay, ("if state.durable.pending is not None:", "if False:")),
        hunt=LOSSES,
        caught_by=(Small.IN_ORDER,),
    ),
    Mutant(
        name="what became of the lost transaction is taken for what became of the one that replaced it",
        hurts="records that are there, or are coming, are written once more",
        breaks=changed(
            settling.settle, ("if event.amendment != completed.amendment:", "if event.amendment > completed.amendment:")
        ),
        hunt=LOSSES,
        caught_by=(Small.TILES, Small.NEVER_CHANGES),
    ),
    Mutant(
        name="nobody is told to write lost records again",
        hurts="the job stands still, and every reader misses them",
        breaks=changed(core.wanted, ("if durable.replaying:", "if False:")),
        hunt=LOSSES,
        caught_by=(Small.SETTLED,),
    ),
    Mutant(
        name="lost records are written again before what came after them is aborted",
        hurts="the later checkpoint's records may be in front of them",
        breaks=both(
            changed(
                mailbox.Mailbox.next,
                (
                    "if self._abort is not None and self._abort.checkpoint > self._handled_abort:",
                    "if self._replay is None and self._abort is not None "
                    "and self._abort.checkpoint > self._handled_abort:",
                ),
            ),
            changed(checkpoint_runner.CheckpointRunner.abandon_later, ("if c > checkpoint", "if False")),
            changed(
                _REPLAYER.replay,
                (
                    "self._m.committer.sweep(self._m.job, keep=self._settler.unsettled())\n    kill_point",
                    "kill_point",
                ),
            ),
        ),
        hunt=ROBBERIES,
        caught_by=(Invariant.I4,),
    ),
    Mutant(
        name="a replay writes all slots of its checkpoint",
        hurts="those that were committed come twice",
        breaks=changed(
            _REPLAYER.replay,
            (
                "for committable in work.committables if committable.slot in wanted.slots",
                "for committable in work.committables",
            ),
        ),
        hunt=ROBBERIES,
        caught_by=(Invariant.I1, Invariant.I2, Invariant.I8),
    ),
    Mutant(
        name="an amendment forgets a slot",
        hurts="its records are in a transaction that nobody commits, or commits in time",
        breaks=changed(
            _REPLAYER.replay,
            (
                "self._settler.amend(wanted.checkpoint",
                "written = written[1:]\n    self._settler.amend(wanted.checkpoint",
            ),
        ),
        hunt=ROBBERIES,
        caught_by=(Invariant.I1, Invariant.I4),
    ),
    Mutant(
        name="what is written again is not kept from the sweep before the coordinator has answered",
        hurts="the amendment is durable, and its transactions are aborted like leftovers",
        breaks=changed(
            _REPLAYER.replay,
            ("self._settler.amend(wanted.checkpoint, wanted.slots, written)", "self._m.committer.abort(written)"),
        ),
        hunt=ROBBERIES,
        caught_by=(Invariant.I1, Invariant.I2),
    ),
    Mutant(
        name="outcomes of the lost transactions count for those that replaced them",
        hurts="the checkpoint is settled although nobody has committed what was written again",
        breaks=changed(
            settler.Settler.amend,
            ("if one.outcome is Outcome.COMMITTED", "if one"),
        ),
        hunt=ROBBERIES,
        caught_by=(Invariant.I1, Invariant.I8, Invariant.I13),
    ),
    Mutant(
        name="what is written again is numbered as the tasks of the replay are",
        hurts="it takes the place of slots that are not lost",
        breaks=changed(_REPLAYER._write, ("replace(one, slot=lost[one.slot].slot)", "one")),
        hunt=ROBBERIES,
        caught_by=(Invariant.I8,),  # the coordinator refuses it
    ),
    Mutant(
        name="what is lost counts as settled",
        hurts="its records never become visible, and nobody hears of it",
        breaks=changed(settler.Settler._goes_on, ("if not unproved:", "if True:")),
        hunt=ROBBERIES,
        caught_by=(Invariant.I1, Invariant.I8, Invariant.I4),
    ),
)
