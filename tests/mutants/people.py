"""Bugs in requests of people: savepoints, ends, restores."""

from onceward.coordinator.protocol import checkpoints, evolve, generations, operator_requests, resolving
from tests.explorer.invariants import Invariant
from tests.mutants.breaking import changed
from tests.mutants.core import LIVES
from tests.mutants.hunts import WaysOut
from tests.mutants.mutant import Mutant
from tests.mutants.oracle import People

__all__ = ["PEOPLE"]

PEOPLE = (
    Mutant(
        name="a savepoint is told completed before it is",
        hurts="somebody deletes the old cluster, and the savepoint is aborted afterwards",
        breaks=changed(
            checkpoints.decide,
            (
                "if not state.settled:\n        return state, ()",
                "if not state.settled:\n"
                "        facts += _request_done(state, pending.id)\n"
                "        return record(state, facts), tuple(facts)",
            ),
        ),
        hunt=LIVES,
        caught_by=(People.REQUESTS,),
    ),
    Mutant(
        name="a savepoint without anything new is forgotten and told completed",
        hurts="there is nothing to go back to",
        breaks=changed(
            checkpoints.decide, ("if unchanged and pending.kind is CheckpointKind.CHECKPOINT:", "if unchanged:")
        ),
        hunt=LIVES,
        caught_by=(People.REQUESTS,),
    ),
    Mutant(
        name="a stop with savepoint stops the job although the savepoint failed",
        hurts="the job is gone, and there is no savepoint to start from",
        breaks=changed(
            checkpoints.abort,
            (
                "facts.append(RequestEnded(request=ended))",
                "facts.append(RequestEnded(request=ended))\n"
                "        if request.stop and durable.ending is None:\n"
                "            facts.append(EndingRequested(ending=Ending.STOP))",
            ),
        ),
        hunt=LIVES,
        caught_by=(People.REQUESTS,),
    ),
    Mutant(
        name="a job is called finished while its last checkpoint is not settled",
        hurts="nobody starts it again, and its last records never become visible",
        breaks=changed(
            generations.terminal_transition,
            ("or not durable.settled", ""),
        ),
        hunt=LIVES,
        caught_by=(People.ENDING,),
    ),
    Mutant(
        name="a restore leaves an unsettled checkpoint behind",
        hurts="its decided transactions stay open for ever, and hold all readers back",
        breaks=changed(operator_requests.restore, ("if not durable.settled", "if False")),
        hunt=LIVES,
        caught_by=(Invariant.SETTLED,),
    ),
    Mutant(
        name="a restored job begins with the positions of the newest checkpoint",
        hurts="what a person wanted to repeat is not repeated",
        breaks=changed(
            generations._restored, ("in source.snapshots.items()", "in (durable.completed or source).snapshots.items()")
        ),
        hunt=LIVES,
        caught_by=(Invariant.RESTORED,),
    ),
    Mutant(
        name="a restore keeps what was lost of the checkpoint that it leaves behind",
        hurts="the job waits for ever for slots to be written again that belong to nothing any more",
        breaks=changed(evolve.evolve, ("replaying={},\n                lost=False,\n", "")),
        hunt=WaysOut(),
        caught_by=(Invariant.SETTLED,),
    ),
    Mutant(
        name="a restore does not let a driver in where something was proved lost",
        hurts="the checkpoint cannot be read, so nobody can decide about it, and nobody can leave it behind",
        breaks=changed(generations.open_job, ("if durable.lost and durable.restore is None:", "if durable.lost:")),
        hunt=WaysOut(),
        caught_by=(Invariant.SETTLED,),
    ),
    Mutant(
        name="a decision of a person settles nothing when the rest was reported before",
        hurts="the coordinator asks for nothing any more, and the checkpoint is never settled without a driver",
        breaks=changed(
            resolving._afterwards,
            (
                "state, settled = settled_if_proved(state, now)",
                "settled = () if state.settled_slots else settled_if_proved(state, now)[1]\n"
                "    state = record(state, settled)",
            ),
        ),
        hunt=WaysOut(),
        caught_by=(Invariant.ALONE,),
    ),
)
