"""The tables, the same in SQLite and in PostgreSQL.

PostgreSQL enforces the lengths of text and the sizes of numbers, SQLite neither: what does not fit must be refused
before it gets here.

Every row carries a checksum over all its other columns. A checkpoint's snapshots can be large and have their own
checksum, so that its other columns can be read and changed without them. All times are Unix times in milliseconds, all
durations microseconds. All ids fit in 53 bits.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, Column, Identity, Index, Integer, MetaData, RowMapping, String, Table, Text
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.dialects.postgresql import insert as upsert  # SQLite understands what it makes
from sqlalchemy.types import TypeEngine

__all__ = [
    "SCHEMA_VERSION",
    "checkpoints",
    "checksum",
    "generations",
    "history",
    "jobs",
    "losses",
    "meta",
    "metadata",
    "replacing",
    "settlements",
    "text_checksum",
    "unsealed",
]

SCHEMA_VERSION = 8

metadata = MetaData()


def _key_text(length: int) -> TypeEngine[str]:
    """Text that is compared and sorted: byte by byte, whatever the database's language."""
    return String(length).with_variant(String(length, collation="C"), "postgresql")


_NAME = _key_text(63)
_SEQUENCE = BigInteger().with_variant(Integer, "sqlite")  # only an INTEGER key is SQLite's row number


meta = Table(
    "onceward_meta",
    metadata,
    Column("key", _key_text(64), primary_key=True),
    Column("value", Text, nullable=False),
    Column("checksum", String(16), nullable=False),
)

# Values that tools may query have a column; the rest of a job's durable state is one document.
jobs = Table(
    "jobs",
    metadata,
    Column("job", _NAME, primary_key=True),
    Column("status", String(16), nullable=False),
    Column("status_detail", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("driver", String(128)),
    Column("last_id", BigInteger, nullable=False),
    Column("completed", BigInteger),
    Column("restore_from", BigInteger),
    Column("restore_reason", Text),
    Column("document", Text, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
    Column("checksum", String(16), nullable=False),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("job", _NAME, primary_key=True),
    Column("checkpoint", BigInteger, primary_key=True, autoincrement=False),
    Column("base", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("name", String(128), nullable=False),
    Column("state", String(16), nullable=False),
    Column("abort_reason", String(64)),
    Column("detail", Text, nullable=False),
    Column("triggered_at", BigInteger, nullable=False),
    Column("decided_at", BigInteger),
    Column("settled_at", BigInteger),
    Column("waited", BigInteger, nullable=False),
    Column("ran", BigInteger),
    Column("decided", BigInteger),
    Column("settled", BigInteger),
    Column("records_read", BigInteger, nullable=False),
    Column("records_written", BigInteger, nullable=False),
    Column("bytes_read", BigInteger, nullable=False),
    Column("bytes_written", BigInteger, nullable=False),
    Column("committables", BigInteger, nullable=False),
    Column("amendment", BigInteger, nullable=False),
    Column("snapshots", Text),
    Column("snapshots_checksum", String(16)),
    Column("phases", Text),
    Column("checksum", String(16), nullable=False),
    Index("checkpoints_by_state", "job", "state", "checkpoint"),
    sqlite_with_rowid=False,
)

settlements = Table(
    "settlements",
    metadata,
    Column("job", _NAME, primary_key=True),
    Column("checkpoint", BigInteger, primary_key=True, autoincrement=False),
    Column("participant", _NAME, primary_key=True),
    Column("slot", BigInteger, primary_key=True, autoincrement=False),
    Column("outcome", String(16), nullable=False),
    Column("evidence", Text, nullable=False),
    Column("recorded_at", BigInteger, nullable=False),
    Column("checksum", String(16), nullable=False),
)

# Separate from the settlements: losses outlive their checkpoint, until long after a person acknowledges them.
losses = Table(
    "losses",
    metadata,
    Column("job", _NAME, primary_key=True),
    Column("checkpoint", BigInteger, primary_key=True, autoincrement=False),
    Column("participant", _NAME, primary_key=True),
    Column("slot", BigInteger, primary_key=True, autoincrement=False),
    Column("document", Text, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("evidence", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("recorded_at", BigInteger, nullable=False),
    Column("acknowledged_at", BigInteger),
    Column("acknowledgement", Text),
    Column("checksum", String(16), nullable=False),
)

generations = Table(
    "generations",
    metadata,
    Column("job", _NAME, primary_key=True),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("driver", String(128), nullable=False),
    Column("granted_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("detail", Text, nullable=False),
    Column("checksum", String(16), nullable=False),
    sqlite_with_rowid=False,
)

history = Table(
    "history",
    metadata,
    Column("seq", _SEQUENCE, Identity(), primary_key=True),
    Column("job", _NAME, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("event", String(64), nullable=False),
    Column("verdict", String(32)),
    Column("generation", BigInteger, nullable=False),
    Column("checkpoint", BigInteger, nullable=False),
    Column("participant", _NAME, nullable=False),
    Column("detail", Text, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("checksum", String(16), nullable=False),
    Index("history_by_job", "job", "seq", "event"),
)

_UNSEALED_COLUMNS = {"checksum", "snapshots", "seq"}  # the database assigns the sequence
_ADDED_COLUMNS = {"phases"}
"""Sealed only where they have a value: an older program has sealed the rows without."""


def _sealed_columns(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns if column.name not in _UNSEALED_COLUMNS | _ADDED_COLUMNS)


_COLUMNS = {table.name: _sealed_columns(table) for table in metadata.sorted_tables}
_ADDED = {table.name: tuple(_ADDED_COLUMNS & set(table.columns.keys())) for table in metadata.sorted_tables}


def replacing(table: Table) -> Insert:
    """An upsert: insert a row, or replace the row with the same key."""
    inserted = upsert(table)
    keys = [column.name for column in table.primary_key.columns]
    changed = {column.name: inserted.excluded[column.name] for column in table.columns if column.name not in keys}
    return inserted.on_conflict_do_update(index_elements=keys, set_=changed)


def checksum(table: Table, values: Mapping[str, Any] | RowMapping) -> str:
    """Checksum over the table's name and all its sealed columns. Detects damage, not tampering."""
    columns = [table.name, *(values[name] for name in _COLUMNS[table.name])]
    columns += [[name, values[name]] for name in _ADDED[table.name] if values[name] is not None]
    return text_checksum(json.dumps(columns))


def text_checksum(text: str) -> str:
    """Checksum of ASCII text."""
    return hashlib.blake2b(text.encode("ascii"), digest_size=8).hexdigest()


def unsealed(table: Table, row: Mapping[str, Any] | RowMapping) -> bool:
    """True when the row differs from what was written. Does not check a checkpoint's snapshots."""
    try:
        return checksum(table, row) != str(row["checksum"])
    except TypeError:  # a type that is never written
        return True
