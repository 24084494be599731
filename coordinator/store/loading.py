"""All jobs, for a restart: read with few statements, each in a transaction of its own, and decoded between them.

A database behind a network takes a round trip for each statement, and there may be ten thousand jobs. It ends a
transaction in which its client is silent for long, as a client is that decodes a large row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from sqlalchemy import Connection, and_, bindparam, func, literal_column, select

from onceward.common.printable import log_fields, logger
from onceward.coordinator.store.codec import durable_parts
from onceward.coordinator.store.errors import NoSuchCheckpointError
from onceward.coordinator.store.reading import completed_from
from onceward.coordinator.store.schema import checkpoints, generations, jobs, unsealed
from onceward.coordinator.store.statements import Statement
from onceward.protocol.durable import Durable, RestoreOrder
from onceward.protocol.status import JobStatus
from onceward.protocol.values import CheckpointId, CompletedCheckpoint, Generation, JobName

__all__ = ["Read", "load"]

_log = logger("onceward.store")

Read: TypeAlias = Callable[[Callable[[Connection], list[tuple[Any, ...]]]], list[tuple[Any, ...]]]
"""Runs a query in a transaction of its own. Raises StoreError."""

_PAGE_BYTES = 4 * 1024 * 1024
"""Read by one statement, unless one job has more. It is in memory twice, as rows and decoded."""
_NAMED = 100
"""Checkpoints among which a person is shown the readable ones."""

_Row: TypeAlias = Mapping[str, Any]

_base, _source = checkpoints.alias("base"), checkpoints.alias("source")
_JOINED = jobs.outerjoin(_base, and_(_base.c.job == jobs.c.job, _base.c.checkpoint == jobs.c.completed)).outerjoin(
    _source, and_(_source.c.job == jobs.c.job, _source.c.checkpoint == jobs.c.restore_from)
)


def _sizes(length: Callable[[Any], Any]) -> Statement:
    size = length(jobs.c.document)
    for text in (_base.c.snapshots, _source.c.snapshots):
        size += func.coalesce(length(text), literal_column("0"))
    return Statement(select(jobs.c.job, size).select_from(_JOINED))


# PostgreSQL knows the bytes of a text without reading it. In SQLite a character of what we write is a byte.
_SIZES = {"postgresql": _sizes(func.octet_length), "sqlite": _sizes(func.length)}
_PAGE = Statement(
    select(*jobs.columns, *_base.columns, *_source.columns)
    .select_from(_JOINED)
    .where(jobs.c.job >= bindparam("first"), jobs.c.job <= bindparam("last"))
)
_WITHOUT_RECORD = [
    Statement(select(table.c.job).where(~select(jobs.c.job).where(jobs.c.job == table.c.job).exists()).distinct())
    for table in (checkpoints, generations)
]
_IDS = Statement(
    select(checkpoints.c.checkpoint)
    .where(checkpoints.c.job == bindparam("of"))
    .order_by(checkpoints.c.checkpoint.desc())
)
_ONE = Statement(
    select(checkpoints).where(checkpoints.c.job == bindparam("of"), checkpoints.c.checkpoint == bindparam("n"))
)


def load(read: Read, store_id: str) -> Iterator[Durable]:
    """Yield all jobs. Reads only what they need: rows that serve listings alone are verified when listed.

    Damage affects only its own job. A name found only in other tables is a job whose own record is missing.
    """
    rows = read(lambda connection: _SIZES[connection.dialect.name].tuples(connection, {}))
    sizes = {name: size for text, size in rows if (name := _name(text)) is not None}
    missing = set(sizes)
    for first, last in _pages(sizes):
        page = {"first": first, "last": last}
        rows = read(lambda connection, page=page: _PAGE.tuples(connection, page))  # type: ignore[misc]
        while rows:
            job, base, source = _parts(rows.pop())
            if job["job"] in missing:
                missing.remove(job["job"])
                yield _durable(read, JobName(job["job"]), job, base, source, store_id)
    for statement in _WITHOUT_RECORD:
        rows = read(lambda connection, statement=statement: statement.tuples(connection, {}))  # type: ignore[misc]
        missing |= {name for (text,) in rows if (name := _name(text)) is not None}
    for name in missing:
        yield _damaged_job(read, name, store_id, "is missing")


def _pages(sizes: Mapping[JobName, int]) -> Iterator[tuple[JobName, JobName]]:
    """The first and the last job of each page."""
    names = sorted(sizes)
    begin = total = 0
    for at, name in enumerate(names):
        if total and total + sizes[name] > _PAGE_BYTES:
            yield names[begin], names[at - 1]
            begin, total = at, 0
        total += sizes[name]
    if names:
        yield names[begin], names[-1]


def _parts(row: Sequence[Any]) -> tuple[_Row, _Row | None, _Row | None]:
    """A job's row, and its two checkpoints, if they are there."""
    cut = len(jobs.columns)
    end = cut + len(checkpoints.columns)
    base, source = (dict(zip(_CHECKPOINT, part, strict=True)) for part in (row[cut:end], row[end:]))
    return (
        dict(zip(_JOB, row[:cut], strict=True)),
        base if base["job"] is not None else None,
        source if source["job"] is not None else None,
    )


_JOB, _CHECKPOINT = jobs.columns.keys(), checkpoints.columns.keys()


def _name(text: object) -> JobName | None:
    """The job name, or None if no job can have this name. No call can name such a job."""
    try:
        return JobName(str(text))
    except ValueError:
        _log.error("%s", log_fields({"event": "damaged", "detail": f"a job has the name {text!r}"}))
        return None


def _damaged_job(read: Read, job: JobName, store_id: str, what: str) -> Durable:
    why = (
        f"the store's record of job {job} {what}. Nothing is done for the job, and nothing was guessed. "
        f"{_readable(read, job)}. To write nothing twice, put back a copy of the store that was made after the "
        "job's last checkpoint; or, if its newest completed checkpoint is settled, start a new job at the positions of "
        f"that one (onceward checkpoints {job} --show ID)"
    )
    return Durable(
        job=job,
        store_id=store_id,
        status=JobStatus.HALTED,
        status_detail="its record in the store is damaged",
        unreadable=why,
        record_damaged=True,
    )


def _durable(read: Read, job: JobName, row: _Row, base: _Row | None, source: _Row | None, store_id: str) -> Durable:
    if unsealed(jobs, row):
        return _damaged_job(read, job, store_id, "is not what was written: its checksum differs")
    try:
        parts = durable_parts(row["document"])
    except (KeyError, TypeError, ValueError) as error:
        return _damaged_job(read, job, store_id, f"cannot be read, perhaps by this version only: {error!r}")
    completed: CompletedCheckpoint | None = None
    unreadable = ""
    if row["completed"] is not None:
        try:
            completed = completed_from(job, row["completed"], base)
        except NoSuchCheckpointError as error:
            unreadable = f"{error} {_readable(read, job)}"
    restore = None
    if row["restore_from"] is not None:
        try:
            restore = RestoreOrder(
                source=completed_from(job, row["restore_from"], source), reason=row["restore_reason"]
            )
        except NoSuchCheckpointError as error:
            completed, unreadable = None, f"the job is to be restored, but {error} {_readable(read, job)}"
    return Durable(
        job=job,
        store_id=store_id,
        status=JobStatus(row["status"]),
        status_detail=row["status_detail"],
        generation=Generation(row["generation"]),
        driver=row["driver"],
        last_id=CheckpointId(row["last_id"]),
        completed=completed,
        unreadable=unreadable,
        restore=restore,
        **parts,
    )


def _readable(read: Read, job: JobName) -> str:
    """The readable completed checkpoints, as a sentence: a person can name one of them instead."""
    readable = []
    ids = read(lambda connection: _IDS.tuples(connection, {"of": job}))
    for (number,) in ids[:_NAMED]:
        key = {"of": job, "n": number}
        for row in read(lambda connection, key=key: _ONE.tuples(connection, key)):  # type: ignore[misc]
            try:
                readable.append(str(completed_from(job, number, dict(zip(_CHECKPOINT, row, strict=True))).id))
            except NoSuchCheckpointError:
                continue
    newest = f" among the newest {_NAMED}" if len(ids) > _NAMED else ""
    return f"Completed and readable{newest} are: {', '.join(readable) or 'none'}"
