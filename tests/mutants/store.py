"""Bugs of the store in what it removes and what it forgets."""

from sqlalchemy import delete

from onceward.coordinator.store import retention, writing
from onceward.coordinator.store.schema import checkpoints
from tests.explorer.invariants import Invariant
from tests.mutants.breaking import changed, put
from tests.mutants.disk import Disk, Promise
from tests.mutants.mutant import Mutant

__all__ = ["STORE"]

DISK = Disk(most=16, length=150)
_OLD = (
    checkpoints.c.job == retention._J,
    retention._COMPLETED,
    checkpoints.c.checkpoint < retention._newest(retention._COMPLETED, retention._ORDINARY),
)
_NOT_NEWEST = checkpoints.c.checkpoint != retention._needed("completed")
_NOT_ORDERED = checkpoints.c.checkpoint != retention._needed("restore_from")

STORE = (
    Mutant(
        name="retention removes the newest completed checkpoint",
        hurts="the job has nothing to continue from",
        breaks=put(
            retention,
            "_PRUNE_COMPLETED",
            delete(checkpoints).where(
                checkpoints.c.job == retention._J,
                retention._COMPLETED,
                retention._ORDINARY,
                checkpoints.c.checkpoint <= retention._newest(retention._COMPLETED, retention._ORDINARY),
            ),
        ),
        hunt=DISK,
        caught_by=(Invariant.RESTORED,),
    ),
    Mutant(
        name="retention removes savepoints",
        hurts="what somebody wanted to keep is gone",
        breaks=put(retention, "_PRUNE_COMPLETED", delete(checkpoints).where(*_OLD, _NOT_NEWEST, _NOT_ORDERED)),
        hunt=DISK,
        caught_by=(Promise.SAVEPOINTS,),
    ),
    Mutant(
        name="retention removes the checkpoint that a person goes back to",
        hurts="the job can neither go back nor start",
        breaks=put(retention, "_PRUNE_COMPLETED", delete(checkpoints).where(*_OLD, retention._ORDINARY, _NOT_NEWEST)),
        hunt=DISK,
        caught_by=(Promise.ORDERED, Invariant.RESTORED),
    ),
    Mutant(
        name="the store forgets that lost slots were written again",
        hurts="a restart commits the lost committables in place of the new ones",
        breaks=changed(writing.FactWriter._committables_now, (", **_sealed(completed.snapshots)", "")),
        hunt=DISK,
        caught_by=(Invariant.REMEMBERED,),
    ),
)
