"""The claim of a job: a row that says which store and generation own it. Each merge locks and compares it."""

from collections.abc import Collection

from onceward.common.errors import ClaimChangedError, FencedError
from onceward.protocol.values import CheckpointId, Claim, Generation, JobName
from onceward.sinks.postgres.connecting import Session
from onceward.sinks.postgres.errors import ContradictionError
from onceward.sinks.postgres.server import Server

__all__ = ["read", "refuse_other_owner", "renew", "take"]

_COLUMNS = "store, generation, completed, holder, amendment"


def read(session: Session, job: str, lock: str = "") -> Claim | None:
    """``lock``: how the row is locked until the transaction ends, such as ``FOR UPDATE``."""
    row = session.execute(f"SELECT {_COLUMNS} FROM onceward_sink.claims WHERE job = %s {lock}", (job,)).fetchone()
    if row is None:
        return None
    store, generation, completed, holder, amendment = row
    return Claim(
        store_id=store,
        generation=Generation(generation),
        completed=CheckpointId(completed),
        holder=holder,
        amendment=amendment,
    )


def take(session: Session, server: Server, job: JobName, claim: Claim, seen: Collection[Claim]) -> None:
    """Write ``claim`` in place of one of ``seen``, or where there is none. Raises ClaimChangedError."""
    with session.transaction():
        inserted = session.execute(
            f"INSERT INTO onceward_sink.claims (job, {_COLUMNS}, system, timeline)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            (job, *_values(claim), server.id, server.timeline),
        )
        if inserted.rowcount == 1:
            return
        found = read(session, job, "FOR UPDATE")
        if found is not None and found not in (claim, *seen):
            raise ClaimChangedError(f"Job {job} was claimed by {found} meanwhile. Nothing was changed.")
        _update(session, server, job, claim)


def renew(session: Session, server: Server, job: JobName, claim: Claim, held: Collection[Claim]) -> None:
    """Write ``claim`` in place of one of ``held``, which this process has written, or may have. Raises FencedError, and
    ContradictionError if the database shows an earlier claim."""
    with session.transaction():
        refuse_other_owner(job, read(session, job, "FOR UPDATE"), (*held, claim))
        _update(session, server, job, claim)


def refuse_other_owner(job: str, found: Claim | None, held: Collection[Claim]) -> None:
    """Raise FencedError, or ContradictionError, unless the claim that is ``found`` is one of ``held``."""
    if found in held:
        return
    ours = next(iter(held))
    # two copies of one store may grant the same generation, each to a driver of its own
    older = found is None or (
        found.store_id == ours.store_id and (found.generation < ours.generation or found.holder == ours.holder)
    )
    if not older:
        raise FencedError(f"Job {job} was claimed by {found}. Nothing further is merged by this process.")
    raise ContradictionError(
        f"The claim of job {job} is {found or 'gone'}, and this process has written a later one: the database is older "
        "than it was. It was restored from a backup, or another server took over that had not received everything. "
        "Nothing was merged. Bring the newest copy back if there is one; else find out which rows of the input the "
        "table lacks, before you start the job again."
    )


def _update(session: Session, server: Server, job: str, claim: Claim) -> None:
    session.execute(
        f"UPDATE onceward_sink.claims SET ({_COLUMNS}, system, timeline, at) = (%s, %s, %s, %s, %s, %s, %s, now())"
        " WHERE job = %s",
        (*_values(claim), server.id, server.timeline, job),
    )


def _values(claim: Claim) -> tuple[str, int, int, str, int]:
    return claim.store_id, claim.generation, claim.completed, claim.holder, claim.amendment
