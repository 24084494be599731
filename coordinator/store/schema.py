"""The tables. Plain types only, so that PostgreSQL can hold the same schema.

Every row carries a checksum over all its other columns. All times are Unix times in milliseconds; all ids fit 53 bits.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Index, MetaData, RowMapping, String, Table, Text

__all__ = ["SCHEMA_VERSION", "checkpoints", "checksum", "jobs", "meta", "metadata", "settlements", "unsealed"]

SCHEMA_VERSION = 1

metadata = MetaData()

meta = Table(
    "onceward_meta",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
    Column("checksum", String(16), nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("job", String(63), primary_key=True),
    Column("status", String(16), nullable=False),
    Column("status_detail", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("driver", String(128)),
    Column("participants", Text, nullable=False),
    Column("settings", Text, nullable=False),
    Column("last_id", BigInteger, nullable=False),
    Column("completed", BigInteger),
    Column("pending", BigInteger),
    Column("pending_base", BigInteger),
    Column("stop_requested", Boolean, nullable=False),
    Column("lost", Boolean, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
    Column("checksum", String(16), nullable=False),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("job", String(63), primary_key=True),
    Column("checkpoint", BigInteger, primary_key=True, autoincrement=False),
    Column("base", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("abort_reason", String(64)),
    Column("detail", Text, nullable=False),
    Column("triggered_at", BigInteger, nullable=False),
    Column("decided_at", BigInteger),
    Column("settled_at", BigInteger),
    Column("records_read", BigInteger, nullable=False),
    Column("records_written", BigInteger, nullable=False),
    Column("committables", BigInteger, nullable=False),
    Column("snapshots", Text),
    Column("checksum", String(16), nullable=False),
    Index("checkpoints_by_state", "job", "state", "checkpoint"),
    sqlite_with_rowid=False,
)

settlements = Table(
    "settlements",
    metadata,
    Column("job", String(63), primary_key=True),
    Column("checkpoint", BigInteger, primary_key=True, autoincrement=False),
    Column("participant", String(63), primary_key=True),
    Column("slot", BigInteger, primary_key=True, autoincrement=False),
    Column("outcome", String(16), nullable=False),
    Column("evidence", Text, nullable=False),
    Column("recorded_at", BigInteger, nullable=False),
    Column("checksum", String(16), nullable=False),
)


def checksum(table: Table, values: Mapping[str, Any] | RowMapping) -> str:
    """Over the table's name and all columns but the checksum itself; finds damage, not malice."""
    columns = [table.name, *(values[column.name] for column in table.columns if column.name != "checksum")]
    return hashlib.blake2b(json.dumps(columns).encode("ascii"), digest_size=8).hexdigest()


def unsealed(table: Table, row: RowMapping) -> bool:
    """True when the row is not what was written."""
    return checksum(table, row) != str(row["checksum"])
