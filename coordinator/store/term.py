"""The term of a coordinator: the time in which it alone writes to a store.

Opening a store begins a term, whose number is one higher than the last one's. Each writing transaction locks the record
of the term until it commits: a coordinator whose term is over cannot write, and a new term cannot begin while an older
one's write is under way.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, LiteralString, Self

from sqlalchemy import Connection, insert, select, update

from onceward.coordinator.store.errors import PUT_BACK, LeadLostError, StoreDamagedError
from onceward.coordinator.store.schema import checksum, meta, unsealed
from onceward.wire.rows import Leader

__all__ = ["LEADER_RECORDS", "TERM_RECORD", "Term", "begin_term", "leader_of", "next_number", "require_term"]

_KEY = "term"
_ABOUT = "leader"
"""What else the holder of the term says of itself, for display. A record of its own: older versions neither read nor
change it, and could not read a term's with more in it."""
TERM_RECORD: LiteralString = f"SELECT value FROM onceward_meta WHERE key = '{_KEY}'"
"""Selects :attr:`Term.record`."""
_TERMS_OF_A_TIMELINE = 1_000_000
LEADER_RECORDS: LiteralString = f"SELECT key, value FROM onceward_meta WHERE key IN ('{_KEY}', '{_ABOUT}')"
"""Selects what :func:`leader_of` takes."""


@dataclass(frozen=True, kw_only=True)
class Term:
    """One coordinator's term."""

    number: int
    address: str
    """Where clients reach the coordinator; empty if none can."""
    holder: str = field(default_factory=lambda: secrets.token_hex(16))
    """Random: a number can come twice, after an old copy of the database was put back that is on no later timeline."""

    @classmethod
    def of(cls, record: str) -> Self:
        return cls(**json.loads(record))

    @cached_property
    def record(self) -> str:
        """As it is stored."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        return f"term {self.number}" + (f" of {self.address}" if self.address else "")


def next_number(last: int, timeline: int) -> int:
    """The number of the term after ``last``. A promoted copy of the database may not know the last terms of the one
    that it replaces. Its timeline is a later one, and so are its terms."""
    return max(last, (timeline - 1) * _TERMS_OF_A_TIMELINE) + 1


def begin_term(
    connection: Connection, address: str, *, web: str = "", at: datetime | None = None, timeline: int = 1
) -> Term:
    """End the store's term and begin the next one, in the caller's transaction. Raises StoreDamagedError.

    :param web: the address of the coordinator's page, for standbys to name; empty for none.
    :param at: now, for people; None if unknown.
    :param timeline: the database's.
    """
    last = _read(connection, write=True)
    term = Term(number=next_number(last.number if last is not None else 0, timeline), address=address)
    _write(connection, _KEY, term.record, known=last is not None)
    about = {"holder": term.holder, "web": web, "since_ms": None if at is None else round(at.timestamp() * 1000)}
    known = connection.execute(select(meta.c.key).where(meta.c.key == _ABOUT)).first() is not None
    _write(connection, _ABOUT, json.dumps(about), known=known)
    return term


def leader_of(records: Mapping[str, str]) -> Leader | None:
    """Return who leads, or led last, from the store's records by key; None if none ever did."""
    if _KEY not in records:
        return None
    term = Term.of(records[_KEY])
    about: dict[str, Any] = json.loads(records.get(_ABOUT, "{}"))
    if about.get("holder") != term.holder:  # an older version leads now
        about = {}
    since = about.get("since_ms")
    return Leader(
        address=term.address,
        term=term.number,
        since=None if since is None else datetime.fromtimestamp(since / 1000, UTC),
        web=about.get("web", ""),
    )


def require_term(connection: Connection, term: Term, *, lock: bool = True) -> None:
    """Raise LeadLostError if another term has begun. With ``lock`` none begins before the caller's transaction ends."""
    lockable = lock and connection.dialect.name != "sqlite"  # one process has the file
    cursor = connection.connection.cursor()  # every write pays for this: not through SQLAlchemy
    cursor.execute(_LOCKED if lockable else TERM_RECORD)
    if cursor.fetchall() != [(term.record,)]:
        raise LeadLostError(
            f"The store is in {_read(connection) or 'no term'}: this coordinator's {term} is over. Nothing of its last "
            "write is in the store."
        )


_SELECTED = select(meta.c.key, meta.c.value, meta.c.checksum).where(meta.c.key == _KEY)
_LOCKED = f"{TERM_RECORD} FOR SHARE"


def _read(connection: Connection, *, write: bool = False) -> Term | None:
    row = connection.execute(_SELECTED.with_for_update() if write else _SELECTED).mappings().one_or_none()
    if row is None:
        return None
    if unsealed(meta, row):
        raise StoreDamagedError(
            f"The store's record of its term is not what was written: its checksum differs. Nothing was changed or "
            f"guessed. {PUT_BACK}"
        )
    return Term.of(row["value"])


def _write(connection: Connection, key: str, value: str, *, known: bool) -> None:
    row = {"key": key, "value": value}
    row["checksum"] = checksum(meta, row)
    connection.execute(update(meta).where(meta.c.key == key) if known else insert(meta), row)
