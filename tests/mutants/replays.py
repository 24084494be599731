"""Bugs of replays: a lost record is written twice, not at all, or too late."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from onceward.driver.checkpoint_runner import CheckpointRunner
from onceward.driver.replaying import Replayer
from onceward.driver.settler import Settler, Work
from onceward.protocol import checkpoints, core, settling
from onceward.protocol.answers import Ready, Replay
from onceward.protocol.committing import PreCommitted
from onceward.protocol.events import Settle
from onceward.protocol.facts import LossRecorded
from onceward.protocol.generations import Step
from onceward.protocol.state import JobState, record
from onceward.protocol.values import CheckpointId, Committable, OnLost, Outcome, ParticipantName, Settlement
from tests.explorer.world import Bounds
from tests.mutants.breaking import always, within, wrapped
from tests.mutants.hunts import Exploration
from tests.mutants.mutant import Mutant
from tests.mutants.seed_hunts import SeedHunt, clear
from tests.simulation.checker import Invariant
from tests.support.oracle import Invariant as Small

__all__ = ["REPLAYS"]

LOSSES = Exploration(
    name="a small world with losses",
    bounds=Bounds(checkpoints=3, crashes=1, messages=0, store=0, declines=0, timeouts=0, losses=1),
)
ROBBERIES = SeedHunt(
    name="another program aborts decided transactions",
    seeds=60,
    faults=clear(robberies=0.4, driver_kills=1, interval=0.0, on_lost=OnLost.REPLAY),
)


TWO_SINKS = Exploration(
    name="a small world with two sinks",
    bounds=Bounds(checkpoints=3, crashes=0, messages=0, store=0, declines=0, timeouts=0, losses=1, sinks=2),
)


def _settled_by_one(settled: Callable[[JobState, float], Step], state: JobState, now: float) -> Step:
    completed, known = state.durable.completed, max(state.settled_slots.values(), key=len, default=frozenset[int]())
    assert completed is not None, "it is what is settled"
    return settled(replace(state, settled_slots=dict.fromkeys(completed.snapshots, known)), now)


def _replays_all(
    lost: Callable[[JobState, Settle, tuple[Settlement, ...], str], tuple[JobState, Ready]],
    state: JobState,
    event: Settle,
    bad: tuple[Settlement, ...],
    reason: str,
) -> tuple[JobState, Ready]:
    state, ready = lost(state, event, bad, reason)
    completed = state.durable.completed
    assert completed is not None, "it is what is lost"
    sinks = [name for name, one in completed.snapshots.items() if one.committables and name != event.participant]
    more = tuple(LossRecorded(checkpoint=event.checkpoint, participant=name, settlements=bad) for name in sinks)
    return record(state, more), replace(ready, facts=(*ready.facts, *more))


def _of_older_amendment(
    settle: Callable[[JobState, Settle], tuple[JobState, Ready]], state: JobState, event: Settle
) -> tuple[JobState, Ready]:
    completed = state.durable.completed
    newest = completed.amendment if completed is not None else 0
    return settle(state, replace(event, amendment=max(event.amendment, newest)))


def _abandons_after_replay(
    abandon: Callable[[CheckpointRunner, CheckpointId, str], None],
    self: CheckpointRunner,
    checkpoint: CheckpointId,
    reason: str,
) -> None:
    if self._settler.lost <= self._settler.settled:
        abandon(self, checkpoint, reason)


def _keeps_former_outcomes(
    amend: Callable[..., None],
    settler: Settler,
    checkpoint: CheckpointId,
    participant: ParticipantName,
    slots: frozenset[int],
    written: Sequence[Committable],
    made: PreCommitted,
) -> None:
    former = settler._settlements.get((checkpoint, settler._work[checkpoint].amendment), {}).get(participant, ())
    amend(settler, checkpoint, participant, slots, written, made)
    work = settler._work[checkpoint]
    counted = {one.slot: replace(one, outcome=Outcome.COMMITTED) for one in former}
    settler._work[checkpoint] = replace(work, proved={**work.proved, participant: counted})


def _aborts_what_replaces(
    amend: Callable[..., None],
    settler: Settler,
    checkpoint: CheckpointId,
    participant: ParticipantName,
    slots: frozenset[int],
    written: Sequence[Committable],
    made: PreCommitted,
) -> None:
    amend(settler, checkpoint, participant, slots, written, made)
    settler._outputs.abort(settler.author, {participant: written})


def _forgets_a_slot(
    write: Callable[[Replayer, Replay, Sequence[Committable], Work], tuple[tuple[Committable, ...], PreCommitted]],
    self: Replayer,
    wanted: Replay,
    lost: Sequence[Committable],
    work: Work,
) -> tuple[tuple[Committable, ...], PreCommitted]:
    written, made = write(self, wanted, lost, work)
    return written[1:], made


REPLAYS = (
    Mutant(
        name="one sink settles a checkpoint for all of them",
        hurts="the next generation aborts what the others have not committed yet",
        breaks=wrapped(settling.settled_if_proved, _settled_by_one),
        hunt=TWO_SINKS,
        caught_by=(Small.SETTLED,),
    ),
    Mutant(
        name="a loss of one sink is taken for a loss of all of them",
        hurts="what the others have committed is written a second time",
        breaks=wrapped(settling._replay, _replays_all),
        hunt=TWO_SINKS,
        caught_by=(Small.TILES,),
    ),
    Mutant(
        name="the coordinator records a loss and keeps the pending checkpoint",
        hurts="its records may become visible before the lost ones",
        breaks=within(settling._replay, checkpoints.abort, lambda state, now, reason, detail: (state, ())),
        hunt=LOSSES,
        caught_by=(Small.IN_ORDER,),
    ),
    Mutant(
        name="the outcome of a lost transaction counts for the one that replaced it",
        hurts="records that are committed, or will be, are written twice",
        breaks=wrapped(settling.settle, _of_older_amendment),
        hunt=LOSSES,
        caught_by=(Small.TILES, Small.NEVER_CHANGES),
    ),
    Mutant(
        name="the coordinator never orders a replay",
        hurts="the job makes no progress, and every reader misses the lost records",
        breaks=wrapped(
            core.wanted, lambda wanted, state: wanted(replace(state, durable=replace(state.durable, replaying={})))
        ),
        hunt=LOSSES,
        caught_by=(Small.SETTLED,),
    ),
    Mutant(
        name="the driver replays lost slots before it has aborted the later checkpoint",
        hurts="the later checkpoint's records may precede the lost ones",
        breaks=wrapped(CheckpointRunner._abandon, _abandons_after_replay),
        hunt=ROBBERIES,
        caught_by=(Invariant.I4,),
    ),
    Mutant(
        name="a replay writes all slots of its checkpoint",
        hurts="the committed ones appear twice",
        breaks=wrapped(
            Replayer._write,
            lambda write, self, wanted, lost, work: write(self, wanted, work.committables[wanted.participant], work),
        ),
        hunt=ROBBERIES,
        caught_by=(Invariant.I1, Invariant.I2, Invariant.I8),
    ),
    Mutant(
        name="an amendment forgets a slot",
        hurts="no driver commits the transaction that holds its records",
        breaks=wrapped(Replayer._write, _forgets_a_slot),
        hunt=ROBBERIES,
        caught_by=(Invariant.I1, Invariant.I4),
    ),
    Mutant(
        name="the driver aborts replayed transactions before the coordinator has answered the amendment",
        hurts="the amendment is durable, and its transactions are aborted",
        breaks=wrapped(Settler.amend, _aborts_what_replaces),
        hunt=ROBBERIES,
        caught_by=(Invariant.I1, Invariant.I2),
    ),
    Mutant(
        name="the driver counts outcomes of lost transactions for those that replaced them",
        hurts="the checkpoint is settled, and no driver has committed the replayed transactions",
        breaks=wrapped(Settler.amend, _keeps_former_outcomes),
        hunt=ROBBERIES,
        caught_by=(Invariant.I1, Invariant.I8, Invariant.I13),
    ),
    Mutant(
        name="a replay numbers its slots by its tasks",
        hurts="the replayed slots replace slots that are not lost",
        breaks=within(Replayer._write, replace, lambda obj, **_: obj),
        hunt=ROBBERIES,
        caught_by=(Invariant.I8,),  # the coordinator refuses it
    ),
    Mutant(
        name="the driver treats lost slots as settled",
        hurts="their records never become visible, and nothing reports it",
        breaks=wrapped(Settler._goes_on, always(True)),
        hunt=ROBBERIES,
        caught_by=(Invariant.I1, Invariant.I8, Invariant.I4),
    ),
)
