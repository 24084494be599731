"""The jobs that an address asks for: search, status, order, page. Pure."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from urllib.parse import urlencode

from onceward.protocol.status import JobStatus
from onceward.wire.rows import JobSummary, JobWait

__all__ = ["MAX_ROWS", "InvalidQueryError", "Order", "Overview", "Query", "first_wait", "overview", "parse_query"]

MAX_ROWS = 100
"""In one answer."""
_ROWS = 50
_LONGEST_SEARCH = 100
_LONGEST_NUMBER = 9
_NEVER = datetime.min.replace(tzinfo=UTC)
_URGENT = (
    *(JobStatus.HALTED, JobStatus.RESTARTING, JobStatus.FINISHING, JobStatus.SUSPENDED, JobStatus.RUNNING),
    *(JobStatus.CREATED, JobStatus.FINISHED, JobStatus.CANCELLED, JobStatus.FORGOTTEN),
)


class InvalidQueryError(ValueError):
    """A parameter of the address cannot be used. The message repeats only the names of known ones."""


class Order(StrEnum):
    """What the rows are sorted by; equal ones by name."""

    STATUS = "status"
    """What needs a person first."""
    NAME = "name"
    WAITS = "waits"
    """The longest wait first."""
    GENERATION = "generation"
    """The one with the most starts first."""
    COMPLETED = "completed"
    """The oldest completed checkpoint first; none before all."""
    LAG = "lag"
    """The most first, unknown last."""
    LOSSES = "losses"
    """The most first."""


@dataclass(frozen=True, kw_only=True)
class Query:
    q: str = ""
    """Part of the name."""
    status: JobStatus | None = None
    sort: Order = Order.STATUS
    reverse: bool = False
    page: int = 1
    limit: int = _ROWS

    def address(self, **changes: Any) -> str:
        """The address of the same view with changes; back on the first page unless they name one."""
        wanted, usual = replace(self, **{"page": 1, **changes}), Query()
        names = (one.name for one in fields(Query))
        values = {name: getattr(wanted, name) for name in names if getattr(wanted, name) != getattr(usual, name)}
        return "/?" + urlencode({name: 1 if value is True else value for name, value in values.items()})


@dataclass(frozen=True, kw_only=True)
class Overview:
    query: Query
    rows: Sequence[JobSummary]
    total: int
    """Of all jobs."""
    matching: int
    pages: int
    statuses: Mapping[JobStatus, int]
    """Of all jobs that the search finds, by status."""


def parse_query(given: Sequence[tuple[str, str]]) -> Query:
    """Raises InvalidQueryError for an unknown, repeated or malformed parameter."""
    names = [name for name, _ in given]
    known = [one.name for one in fields(Query)]
    if set(names) - set(known) or len(set(names)) < len(names):
        raise InvalidQueryError(f"Use each of these parameters at most once, and no others: {', '.join(known)}.")
    values = dict(given)
    query = Query(
        q=values.get("q", "").strip(),
        status=_one_of(JobStatus, "status", values.get("status", "")),
        sort=_one_of(Order, "sort", values.get("sort", "")) or Order.STATUS,
        reverse=values.get("reverse", "0") == "1",
        page=_number("page", values.get("page", "1"), 10**_LONGEST_NUMBER),
        limit=_number("limit", values.get("limit", str(_ROWS)), MAX_ROWS),
    )
    if values.get("reverse", "0") not in ("0", "1"):
        raise InvalidQueryError("reverse is 0 or 1.")
    if len(query.q) > _LONGEST_SEARCH:
        raise InvalidQueryError(f"q has at most {_LONGEST_SEARCH} characters.")
    return query


def overview(jobs: Sequence[JobSummary], query: Query, now: datetime) -> Overview:
    """A page after the last one is the last one: jobs go while a person turns pages."""
    found = [job for job in jobs if query.q.lower() in job.job]
    statuses = Counter(job.status for job in found)
    rows = [job for job in found if query.status in (None, job.status)]
    rows.sort(key=lambda job: job.job)
    rows.sort(key=_key(query.sort, now), reverse=query.reverse)
    pages = max(1, -(-len(rows) // query.limit))
    shown = replace(query, page=min(query.page, pages))
    first = (shown.page - 1) * query.limit
    return Overview(
        query=shown,
        rows=rows[first : first + query.limit],
        total=len(jobs),
        matching=len(rows),
        pages=pages,
        statuses={status: statuses[status] for status in _URGENT if statuses[status]},
    )


def first_wait(job: JobSummary) -> JobWait | None:
    """The wait that ends first."""
    return job.waits[0] if job.waits else None


def _key(order: Order, now: datetime) -> Callable[[JobSummary], Any]:
    def since(job: JobSummary) -> datetime:
        wait = first_wait(job)
        return now if wait is None else wait.since or _NEVER

    keys: Mapping[Order, Callable[[JobSummary], Any]] = {
        Order.STATUS: lambda job: (_URGENT.index(job.status), not job.failures),
        Order.NAME: lambda job: job.job,
        Order.WAITS: since,
        Order.GENERATION: lambda job: -job.generation,
        Order.COMPLETED: lambda job: job.last_completed_at or _NEVER,
        Order.LAG: lambda job: 1 if job.progress is None or job.progress.lag is None else -job.progress.lag,
        Order.LOSSES: lambda job: -job.unacknowledged_losses,
    }
    return keys[order]


def _one_of(kind: Any, name: str, value: str) -> Any:
    if not value:
        return None
    try:
        return kind(value)
    except ValueError:
        raise InvalidQueryError(f"{name} is one of: {', '.join(kind)}.") from None


def _number(name: str, value: str, most: int) -> int:
    if value.isascii() and value.isdigit() and len(value) <= _LONGEST_NUMBER and 1 <= int(value) <= most:
        return int(value)
    raise InvalidQueryError(f"{name} is a number from 1 to {most}.")
