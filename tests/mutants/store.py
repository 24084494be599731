"""Bugs of the store in what it removes and what it forgets."""

from collections.abc import Callable, Sequence

from sqlalchemy import Connection, delete
from sqlalchemy.sql import ColumnElement

from onceward.coordinator.store import retention, writing
from onceward.coordinator.store.schema import checkpoints
from onceward.protocol.values import JobName
from tests.mutants.breaking import always, within, wrapped
from tests.mutants.disk import Disk, Promise
from tests.mutants.mutant import Mutant
from tests.support.oracle import Invariant

__all__ = ["STORE"]

DISK = Disk(most=16, length=150)
_KEPT = retention._newest(retention._COMPLETED, retention._ORDINARY)
"""The oldest checkpoint that retention keeps."""
_OLD = (retention._COMPLETED, checkpoints.c.checkpoint < _KEPT)
_NOT_NEWEST = checkpoints.c.checkpoint != retention._needed("completed")
_NOT_ORDERED = checkpoints.c.checkpoint != retention._needed("restore_from")

_Jobs = Sequence[tuple[JobName, int]]
_Prune = Callable[[Connection, _Jobs], None]


def _also_prunes(
    *conditions: ColumnElement[bool],
) -> Callable[[_Prune, Connection, _Jobs], None]:
    """Prunes, and deletes the checkpoints that meet ``conditions``."""
    also = delete(checkpoints).where(checkpoints.c.job == retention._J, *conditions)

    def prune_more(prune: _Prune, connection: Connection, jobs: _Jobs) -> None:
        prune(connection, jobs)
        for job, keep in jobs:
            connection.execute(also, {"j": job, "newer": keep - 1})

    return prune_more


STORE = (
    Mutant(
        name="retention removes the newest completed checkpoint",
        hurts="the job has no checkpoint to continue from",
        breaks=wrapped(
            retention.prune, _also_prunes(retention._COMPLETED, retention._ORDINARY, checkpoints.c.checkpoint <= _KEPT)
        ),
        hunt=DISK,
        caught_by=(Invariant.RESTORED,),
    ),
    Mutant(
        name="retention removes savepoints",
        hurts="the checkpoint that an operator wanted to keep is gone",
        breaks=wrapped(retention.prune, _also_prunes(*_OLD, _NOT_NEWEST, _NOT_ORDERED)),
        hunt=DISK,
        caught_by=(Promise.SAVEPOINTS,),
    ),
    Mutant(
        name="retention removes the checkpoint that an operator restores",
        hurts="the job can neither restore nor start",
        breaks=wrapped(retention.prune, _also_prunes(*_OLD, retention._ORDINARY, _NOT_NEWEST)),
        hunt=DISK,
        caught_by=(Promise.ORDERED, Invariant.RESTORED),
    ),
    Mutant(
        name="the store forgets the committables of an amendment",
        hurts="a restart commits the lost committables instead of the replayed ones",
        breaks=within(writing.FactWriter._committables_now, writing._sealed, always({})),
        hunt=DISK,
        caught_by=(Invariant.REMEMBERED,),
    ),
)
