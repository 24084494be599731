"""Retention: which rows are deleted, and which never are. Separate from the decision: a failed prune loses nothing."""

from collections.abc import Sequence

from sqlalchemy import Connection, Delete, bindparam, delete, func, or_, select
from sqlalchemy.sql import ColumnElement

from onceward.coordinator.store.schema import checkpoints, generations, history, jobs, losses, settlements
from onceward.coordinator.store.statements import Statement
from onceward.protocol.facts import CheckpointCompleted, CheckpointSettled
from onceward.protocol.values import NO_CHECKPOINT, CheckpointKind, CheckpointState, JobName

__all__ = ["KEPT_ABORTED", "KEPT_GENERATIONS", "KEPT_HISTORY", "KEPT_LOSSES", "PRUNED_AT_ONCE", "prune"]

KEPT_ABORTED = 100
PRUNED_AT_ONCE = 500
"""Completed checkpoints of a job that one call deletes: a transaction of a leader must be short. A job that completes
20 a second has 200 more at the next call."""
KEPT_GENERATIONS = 100
KEPT_LOSSES = 1_000
"""Acknowledged loss reports to keep. Reports acknowledged at the same time as the oldest of them stay too."""
KEPT_HISTORY = 1_000
"""Entries about decisions and settlements, and the same number about everything else."""

_J: ColumnElement[str] = bindparam("j")


def _one_of(column: ColumnElement[str], *values: str) -> ColumnElement[bool]:
    return or_(*(column == value for value in values))


_COMPLETED = _one_of(checkpoints.c.state, CheckpointState.COMPLETED.value, CheckpointState.SETTLED.value)
_ABORTED = checkpoints.c.state == CheckpointState.ABORTED.value
_ORDINARY = checkpoints.c.kind != CheckpointKind.SAVEPOINT.value


def _newest(*conditions: ColumnElement[bool]) -> ColumnElement[int]:
    """The id of the checkpoint that has exactly ``newer`` newer ones; NULL, which no id is below, if there are
    fewer."""
    return (
        select(checkpoints.c.checkpoint)
        .where(checkpoints.c.job == _J, *conditions)
        .order_by(checkpoints.c.checkpoint.desc())
        .limit(1)
        .offset(bindparam("newer"))
        .scalar_subquery()
    )


def _needed(column: str) -> ColumnElement[int]:
    return func.coalesce(select(jobs.c[column]).where(jobs.c.job == _J).scalar_subquery(), 0)


_LAST_MOVE = (
    select(func.max(checkpoints.c.checkpoint))
    .where(
        checkpoints.c.job == _J,
        _COMPLETED,
        _one_of(checkpoints.c.kind, CheckpointKind.RESTORE.value, CheckpointKind.SKIP.value),
    )
    .scalar_subquery()
)
_BEFORE_LAST_MOVE = (
    select(func.max(checkpoints.c.checkpoint))
    .where(checkpoints.c.job == _J, _COMPLETED, checkpoints.c.checkpoint < _LAST_MOVE)
    .scalar_subquery()
)

# Never deleted: the newest completed checkpoint, from which the job continues, and the source of an ordered restore.
# Kept for `onceward verify`: the job's first positions, and where the newest restore or skip led from and to.
# The oldest go first, and some only: they may be thousands of large rows once a job keeps fewer than it did.
_COMPLETED_BEYOND = Statement(
    delete(checkpoints).where(
        checkpoints.c.job == _J,
        checkpoints.c.checkpoint.in_(
            select(checkpoints.c.checkpoint)
            .where(
                checkpoints.c.job == _J,
                _COMPLETED,
                _ORDINARY,
                checkpoints.c.checkpoint < _newest(_COMPLETED, _ORDINARY),
                checkpoints.c.checkpoint != _needed("completed"),
                checkpoints.c.checkpoint != _needed("restore_from"),
                checkpoints.c.base != NO_CHECKPOINT,
                checkpoints.c.checkpoint != func.coalesce(_LAST_MOVE, 0),
                checkpoints.c.checkpoint != func.coalesce(_BEFORE_LAST_MOVE, 0),
            )
            .order_by(checkpoints.c.checkpoint)
            .limit(bindparam("most"))
        ),
    )
)
_ABORTED_BEYOND = Statement(
    delete(checkpoints).where(checkpoints.c.job == _J, _ABORTED, checkpoints.c.checkpoint < _newest(_ABORTED))
)
_PRUNE_SETTLEMENTS = delete(settlements).where(
    settlements.c.job == _J,
    settlements.c.checkpoint.not_in(select(checkpoints.c.checkpoint).where(checkpoints.c.job == _J)),
)
# Unacknowledged losses are kept. Of the others, as many are kept as one listing can show.
_ACKNOWLEDGED = losses.c.acknowledged_at.is_not(None)
_PRUNE_LOSSES = delete(losses).where(
    losses.c.job == _J,
    _ACKNOWLEDGED,
    losses.c.acknowledged_at
    < select(losses.c.acknowledged_at)
    .where(losses.c.job == _J, _ACKNOWLEDGED)
    .order_by(losses.c.acknowledged_at.desc())
    .limit(1)
    .offset(KEPT_LOSSES - 1)
    .scalar_subquery(),
)
_PRUNE_GENERATIONS = delete(generations).where(
    generations.c.job == _J,
    generations.c.generation
    < select(generations.c.generation)
    .where(generations.c.job == _J)
    .order_by(generations.c.generation.desc())
    .limit(1)
    .offset(KEPT_GENERATIONS - 1)
    .scalar_subquery(),
)
_ROUTINE = _one_of(history.c.event, CheckpointCompleted.__name__, CheckpointSettled.__name__)


def _history_beyond(those: ColumnElement[bool]) -> Delete:
    newest = select(history.c.seq).where(history.c.job == _J, those).order_by(history.c.seq.desc())
    oldest_kept = newest.limit(1).offset(KEPT_HISTORY - 1).scalar_subquery()
    return delete(history).where(history.c.job == _J, those, history.c.seq < oldest_kept)


# Counted separately because a healthy job adds two rows per interval: they must not displace last week's failure.
_PRUNE_HISTORY = (_history_beyond(_ROUTINE), _history_beyond(~_ROUTINE))


_BY_JOB = [Statement(each) for each in (_PRUNE_SETTLEMENTS, _PRUNE_LOSSES, _PRUNE_GENERATIONS, *_PRUNE_HISTORY)]


def prune(connection: Connection, jobs: Sequence[tuple[JobName, int]]) -> None:
    """Delete what retention does not keep of some jobs, inside the caller's transaction. Of many checkpoints only the
    oldest are deleted; the next call deletes more.

    :param jobs: each with the completed checkpoints to keep besides savepoints.
    """
    _COMPLETED_BEYOND.run(connection, [{"j": job, "newer": keep - 1, "most": PRUNED_AT_ONCE} for job, keep in jobs])
    _ABORTED_BEYOND.run(connection, [{"j": job, "newer": KEPT_ABORTED - 1} for job, _ in jobs])
    for statement in _BY_JOB:
        statement.run(connection, [{"j": job} for job, _ in jobs])
