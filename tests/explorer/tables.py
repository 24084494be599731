"""The table of a small world: one visible state, on which a commit takes effect or not.

What a process decides when it looks at a state is the product's own code, of a table of a lake
(``sinks/lake/control/committing.py``). From the look on, its commit is under way: it arrives at any time, also when its
process has given up or is gone. Each commit of anyone changes the state, and refuses all commits that have looked
before. So those that are under way have looked at the present state.

A table of a database has transactions instead. What is compared there is compared when the commit arrives: the claim,
the receipt, and what is staged. A commit that another one changes nothing for stays under way.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from onceward.protocol.values import Outcome
from onceward.sinks.lake.control import committing
from onceward.sinks.lake.control.tables import PastCommit
from onceward.sinks.lake.identifiers import app_id
from tests.explorer.world import SINKS, Driver, Flight, Kafka, Transaction
from tests.support.table_documents import TableFile, TableFiles

__all__ = ["arrived", "found", "is_committing", "is_owner", "is_same", "refused", "under_way"]

_ID = _URI = "table"
_JOB = "orders"


def found(driver: Driver, kafka: Kafka, wanted: Transaction) -> Outcome | Flight:
    """What a look at the table proves, or the commit or the fence that follows it."""
    made = _merged(kafka, wanted) if driver.database else _attempt(kafka, wanted)
    return made if isinstance(made, Outcome) else Flight(wanted, made, driver.generation, driver.token)


def _merged(kafka: Kafka, wanted: Transaction) -> Outcome | bool:
    """What a database proves, or that there is something to commit."""
    if kafka.committed >> wanted.bit & 1:
        return Outcome.COMMITTED
    return False if _staged(kafka, wanted) else Outcome.LOST


def is_owner(kafka: Kafka, generation: int, token: int) -> bool:
    """Compare the claim, as a database does when a commit arrives."""
    return kafka.claim[:2] == (generation, token)


def is_committing(kafka: Kafka, one: Transaction) -> bool:
    """True while a commit of its files is under way, of any process."""
    return any(is_same(flight.transaction, one) and not flight.fence for flight in kafka.table.flights)


def under_way(kafka: Kafka, driver: Driver) -> bool:
    """True while a driver's commit may still take effect."""
    mine = (driver.generation, driver.token)
    return any((one.generation, one.token) == mine and _may_arrive(kafka, one) for one in kafka.table.flights)


def _may_arrive(kafka: Kafka, flight: Flight) -> bool:
    """False for files that were deleted since its process looked: if it arrived then, it would make the table
    unreadable, whatever we do."""
    return flight.fence or _there(kafka, flight.transaction)


def arrived(kafka: Kafka, *, database: bool) -> Iterable[tuple[Flight, Kafka]]:
    """Each commit that may take effect now, and what follows."""
    for flight in kafka.table.flights:
        one = flight.transaction
        if not _may_arrive(kafka, flight):
            continue
        left = tuple(each for each in kafka.table.flights if each.transaction != one) if database else ()
        if flight.fence:
            yield flight, kafka._replace(table=kafka.table._replace(fence=_number(one), flights=left))
        else:
            after = kafka.without(tuple(each for each in kafka.open if is_same(each, one)))
            table = kafka.table._replace(receipt=_number(one), flights=left)
            yield flight, after._replace(committed=kafka.committed | 1 << one.bit, table=table)


def refused(kafka: Kafka) -> Kafka:
    """Without the commits that a database refuses as soon as they arrive."""
    flights = tuple(
        one
        for one in kafka.table.flights
        if is_owner(kafka, one.generation, one.token) and _staged(kafka, one.transaction)
    )
    return kafka if flights == kafka.table.flights else kafka._replace(table=kafka.table._replace(flights=flights))


def _number(one: Transaction) -> int:
    """As ``next_number`` makes it: a sequence, and what distinguishes committables of the same sequence. Here the
    sequence is the checkpoint's id, because no job begins again."""
    return one.checkpoint << 20 | one.generation << 12 | one.amendment << 8 | one.token


def is_same(one: Transaction, other: Transaction) -> bool:
    """``first`` is not known to who commits it."""
    return one._replace(first=0) == other._replace(first=0)


def _staged(kafka: Kafka, wanted: Transaction) -> bool:
    return any(is_same(one, wanted) for one in kafka.open)


def _there(kafka: Kafka, wanted: Transaction) -> bool:
    """Whether its files exist."""
    return _staged(kafka, wanted) or bool(kafka.committed >> wanted.bit & 1)


# -- a table of a lake, as the product sees it


class _Sent(BaseException):
    """The commit is under way. The product does not catch this."""

    def __init__(self, *, fence: bool) -> None:
        self.fence = fence


class _LookedAt:
    """One state of the table; its own storage, too."""

    id, uri, state = _ID, _URI, "the table"

    def __init__(self, kafka: Kafka, wanted: Transaction) -> None:
        self._kafka, self._wanted = kafka, wanted

    @property
    def storage(self) -> Any:
        return self

    def size(self, _path: str) -> int | None:
        return 1 if _there(self._kafka, self._wanted) else None

    def flush_all(self) -> None:
        pass

    def transaction(self, app: str) -> int | None:
        table, sink = self._kafka.table, SINKS[self._wanted.sink]
        return {app_id(_JOB, sink): table.receipt, app_id(_JOB, sink, fence=True): table.fence}[app] or None

    def past_commits(self, _job: str, _sink: str) -> Iterator[PastCommit]:
        return iter(())

    def file_names(self) -> Collection[str]:
        return [_name(self._wanted)] if self._kafka.committed >> self._wanted.bit & 1 else []

    def unfit(self, _wanted: Any) -> Sequence[str]:
        return ()

    def commit(self, files: Iterable[Any], *, app: str, transaction: int, said: Mapping[str, str | int]) -> str:
        raise _Sent(fence=not tuple(files))


def _attempt(kafka: Kafka, wanted: Transaction) -> Outcome | bool:
    """What the product proves, or whether it sends a fence."""
    part: committing.Part = (lambda: _LookedAt(kafka, wanted), _committable(wanted))
    try:
        (found,) = committing.commit([part], lambda: True, lambda _error: None)
    except _Sent as sent:
        return sent.fence
    return found.outcome


def _name(one: Transaction) -> str:
    return f"{_number(one)}.parquet"


def _committable(one: Transaction) -> TableFiles:
    return TableFiles(
        slot=0,
        table_id=_ID,
        uri=_URI,
        job=_JOB,
        sink=SINKS[one.sink],
        generation=one.generation,
        checkpoint=one.checkpoint,
        transaction=_number(one),
        columns={},
        files=(TableFile(name=_name(one), path=_name(one), size=1, records=1),),
        bytes=1,
        inputs=(),
        input_text="",
    )
