"""Bugs in requests of operators: savepoints, ends, restores."""

from collections.abc import Callable
from dataclasses import replace

from onceward.protocol import checkpoints, evolve, generations, operator_requests, resolving, settling
from onceward.protocol.answers import Ready, Verdict
from onceward.protocol.durable import Durable, RestoreOrder, UndecidedCheckpoint
from onceward.protocol.events import OpenJob
from onceward.protocol.facts import AbortReason, CheckpointRestored, EndingRequested, Fact
from onceward.protocol.generations import Step
from onceward.protocol.requests import Ending
from onceward.protocol.state import JobState, record
from onceward.protocol.values import CheckpointId, CheckpointKind, Generation, Snapshot
from tests.mutants.breaking import Field, always, within, wrapped
from tests.mutants.core import LIVES
from tests.mutants.hunts import WaysOut
from tests.mutants.mutant import Mutant
from tests.support.life import OperatorInvariant
from tests.support.oracle import Invariant

__all__ = ["OPERATOR_REQUESTS"]


def _reports_completed(decide: Callable[[JobState, float], Step], state: JobState, now: float) -> Step:
    after, facts = decide(state, now)
    pending = state.durable.pending
    if facts or pending is None or not state.all_answered:
        return after, facts
    ended = tuple(checkpoints._request_done(state, pending.id))
    return record(after, ended), ended


def _stops_without_savepoint(
    abort: Callable[[JobState, float, AbortReason, str], Step],
    state: JobState,
    now: float,
    reason: AbortReason,
    detail: str,
) -> Step:
    request = checkpoints._request_of(state)
    after, facts = abort(state, now, reason, detail)
    if request is None or not request.stop or state.durable.ending is not None:
        return after, facts
    ending = EndingRequested(ending=Ending.STOP)
    return record(after, (ending,)), (*facts, ending)


def _restored_to_newest(
    restored: Callable[[Durable, RestoreOrder, CheckpointId, Generation], CheckpointRestored],
    durable: Durable,
    order: RestoreOrder,
    checkpoint: CheckpointId,
    generation: Generation,
) -> CheckpointRestored:
    fact = restored(durable, order, checkpoint, generation)
    newest = durable.completed or order.source
    return replace(fact, snapshots={name: Snapshot(positions=one.positions) for name, one in newest.snapshots.items()})


def _keeps_lost(evolve: Callable[[Durable, Fact], Durable], durable: Durable, fact: Fact) -> Durable:
    after = evolve(durable, fact)
    if not isinstance(fact, CheckpointRestored):
        return after
    return replace(after, replaying=durable.replaying, lost=durable.lost)


def _halted_in_spite_of_restore(
    open_job: Callable[[JobState, OpenJob], tuple[JobState, Ready]], state: JobState, event: OpenJob
) -> tuple[JobState, Ready]:
    _, ready = open_job(replace(state, durable=replace(state.durable, restore=None)), event)
    return (state, ready) if ready.answer.verdict is Verdict.HALTED else open_job(state, event)


def _unless_reported(state: JobState, now: float) -> Step:
    return (state, ()) if state.settled_slots else settling.settled_if_proved(state, now)


OPERATOR_REQUESTS = (
    Mutant(
        name="a savepoint is reported completed before it is",
        hurts="an operator deletes the old cluster, and then the savepoint is aborted",
        breaks=wrapped(checkpoints.decide, _reports_completed),
        hunt=LIVES,
        caught_by=(OperatorInvariant.REQUESTS,),
    ),
    Mutant(
        name="a savepoint without new records is dropped and reported completed",
        hurts="there is no checkpoint to restore",
        breaks=within(
            checkpoints.decide,
            Field(UndecidedCheckpoint, lambda pending: pending.kind),
            always(CheckpointKind.CHECKPOINT),
        ),
        hunt=LIVES,
        caught_by=(OperatorInvariant.REQUESTS,),
    ),
    Mutant(
        name="a stop with savepoint stops the job although the savepoint failed",
        hurts="the job has ended, and there is no savepoint to start from",
        breaks=wrapped(checkpoints.abort, _stops_without_savepoint),
        hunt=LIVES,
        caught_by=(OperatorInvariant.REQUESTS,),
    ),
    Mutant(
        name="a job counts as finished before its last checkpoint is settled",
        hurts="no operator starts it again, and its last records never become visible",
        breaks=within(generations.terminal_transition, Durable.settled, always(True)),
        hunt=LIVES,
        caught_by=(OperatorInvariant.ENDING,),
    ),
    Mutant(
        name="a restore abandons an unsettled checkpoint",
        hurts="its decided transactions stay open forever and block all readers",
        breaks=within(operator_requests.restore, Durable.settled, always(True)),
        hunt=LIVES,
        caught_by=(Invariant.SETTLED,),
    ),
    Mutant(
        name="a restored job begins with the positions of the newest checkpoint",
        hurts="the job does not repeat what the operator asked for",
        breaks=wrapped(generations._restored, _restored_to_newest),
        hunt=LIVES,
        caught_by=(Invariant.RESTORED,),
    ),
    Mutant(
        name="a restore keeps the lost slots of the checkpoint that it abandons",
        hurts="the job waits forever for the replay of slots that no checkpoint has any more",
        breaks=wrapped(evolve.evolve, _keeps_lost),
        hunt=WaysOut(),
        caught_by=(Invariant.SETTLED,),
    ),
    Mutant(
        name="a restore does not open a job whose halt proved a loss",
        hurts="an operator can neither resolve an unreadable checkpoint nor abandon it",
        breaks=wrapped(generations.open_job, _halted_in_spite_of_restore),
        hunt=WaysOut(),
        caught_by=(Invariant.SETTLED,),
    ),
    Mutant(
        name="an operator's ruling settles nothing if the other outcomes were reported before",
        hurts="the coordinator orders nothing more, and the checkpoint is never settled without a driver",
        breaks=within(resolving._afterwards, settling.settled_if_proved, _unless_reported),
        hunt=WaysOut(),
        caught_by=(Invariant.ALONE,),
    ),
)
