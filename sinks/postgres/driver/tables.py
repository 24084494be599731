"""The sink's own tables, and the catalogue's description of the table that it writes to."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, LiteralString

from psycopg.rows import namedtuple_row

from onceward.sinks.postgres.connecting import Session

__all__ = ["Column", "Table", "UniqueIndex", "describe", "is_set_up", "set_up"]

_LOCK = 0x6F6E6373
_OWN: Sequence[LiteralString] = (
    "CREATE SCHEMA IF NOT EXISTS onceward_sink",
    """CREATE TABLE IF NOT EXISTS onceward_sink.claims (
        job text PRIMARY KEY, store text NOT NULL, generation bigint NOT NULL, completed bigint NOT NULL,
        holder text NOT NULL, amendment bigint NOT NULL, system text NOT NULL, timeline bigint NOT NULL,
        at timestamptz NOT NULL DEFAULT now())""",
    """CREATE TABLE IF NOT EXISTS onceward_sink.receipts (
        job text, sink text, store text, checkpoint bigint, token text NOT NULL, records bigint NOT NULL,
        at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (job, sink, store, checkpoint))""",
    """CREATE TABLE IF NOT EXISTS onceward_sink.staged (
        name text PRIMARY KEY, job text NOT NULL, sink text NOT NULL, generation bigint NOT NULL,
        checkpoint bigint NOT NULL, slot bigint NOT NULL, attempt bigint NOT NULL, records bigint NOT NULL,
        at timestamptz NOT NULL DEFAULT now())""",
)
_TABLE: LiteralString = """
    SELECT c.oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind,
        ARRAY(SELECT needed FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS needed
            WHERE NOT has_table_privilege(c.oid, needed)) AS missing_rights, row_security_active(c.oid) AS secured,
        ARRAY(SELECT tgname::text FROM pg_trigger
            WHERE tgrelid = c.oid AND NOT tgisinternal AND tgenabled <> 'D' ORDER BY 1) AS triggers
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_COLUMNS: LiteralString = """
    SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) || coalesce((
            SELECT format(' COLLATE %%I.%%I', n.nspname, l.collname) FROM pg_collation l
            JOIN pg_namespace n ON n.oid = l.collnamespace WHERE l.oid = a.attcollation AND l.oid <> t.typcollation
        ), '') AS type,
        b.typname AS base, b.typcategory::text AS category, e.typname AS element,
        CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END AS modifier,
        a.attnotnull AS required, a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL AS has_default,
        a.attidentity = 'a' OR a.attgenerated <> '' AS computed
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
        LEFT JOIN pg_type e ON e.oid = b.typelem AND b.typcategory = 'A'
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_CONSTRAINTS: LiteralString = """
    SELECT contype::text AS kind, conname AS name, pg_get_constraintdef(oid) AS definition,
        ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = conrelid AND attnum = ANY(conkey)) AS columns
    FROM pg_constraint WHERE conrelid = %s AND contype IN ('c', 'f', 'x') ORDER BY conname
"""
_UNIQUE: LiteralString = """
    SELECT c.relname AS name, ARRAY(SELECT attname::text FROM pg_attribute
        WHERE attrelid = i.indrelid AND attnum = ANY(i.indkey[0:i.indnkeyatts - 1])) AS columns,
        i.indpred IS NULL AND i.indexprs IS NULL AND i.indimmediate AS plain
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid ORDER BY 1
"""


@dataclass(frozen=True, kw_only=True)
class Column:
    name: str
    type: str
    """As PostgreSQL writes it, with its modifiers and its collation."""
    base: str
    """The catalogue's name of the type, without a domain around it, such as ``int4``."""
    category: str
    """The catalogue's category of the type."""
    element: str | None
    """Of an array: the name of its elements' type."""
    modifier: int
    """Such as precision and scale; -1 without."""
    required: bool
    has_default: bool
    computed: bool
    """PostgreSQL makes its values, and takes no others."""

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Precision and scale of a numeric type; None without limits."""
        if self.modifier < 0:
            return None
        scale = (self.modifier - 4) & 0x7FF
        return (self.modifier - 4) >> 16 & 0xFFFF, scale - 0x800 if scale > 0x3FF else scale


@dataclass(frozen=True, kw_only=True)
class UniqueIndex:
    name: str
    columns: tuple[str, ...]
    plain: bool
    """It is on columns alone, holds all rows, and is checked at once."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """The table that a sink writes to."""

    schema: str
    name: str
    kind: str
    """The catalogue's letter: ``r`` for a table, ``p`` for one with partitions."""
    missing_rights: Sequence[str]
    """Of SELECT, INSERT, UPDATE and DELETE."""
    secured: bool
    """Policies for rows apply to this role."""
    triggers: Sequence[str]
    columns: Sequence[Column]
    checks: Sequence[tuple[frozenset[str], str, str]]
    """The columns that each uses, its name and its definition."""
    late: Sequence[str] = field(default_factory=tuple)
    """Foreign keys and exclusion constraints, which only a merge can check."""
    unique: Sequence[UniqueIndex] = field(default_factory=tuple)

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def writable(self) -> Sequence[Column]:
        return [column for column in self.columns if not column.computed]


def is_set_up(session: Session) -> bool:
    """Whether the sink's own tables are there."""
    names = [f"onceward_sink.{name}" for name in ("claims", "receipts", "staged")]
    row = session.execute(
        "SELECT bool_and(to_regclass(name) IS NOT NULL) FROM unnest(%s::text[]) AS name", (names,)
    ).fetchone()
    return row == (True,)


def set_up(session: Session) -> None:
    """Create what is missing of the sink's own tables. Raises psycopg.Error."""
    with session.transaction():
        session.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        for statement in _OWN:
            session.execute(statement)


def describe(session: Session, table: str) -> Table | None:
    """What the catalogue has of ``table``, a name as in SQL; None if it is not there. Raises psycopg.Error, also for a
    name that is none."""
    with session.transaction(), session.cursor(row_factory=namedtuple_row) as cursor:
        found: Any = cursor.execute(_TABLE, (table,)).fetchone()
        if found is None:
            return None
        # so that types and constraints are written with their schemas: another session may have another path
        cursor.execute("SET LOCAL search_path TO pg_catalog")
        columns = [Column(**row._asdict()) for row in cursor.execute(_COLUMNS, (found.oid,)).fetchall()]
        constraints: list[Any] = cursor.execute(_CONSTRAINTS, (found.oid,)).fetchall()
        unique: list[Any] = cursor.execute(_UNIQUE, (found.oid,)).fetchall()
    return Table(
        schema=found.schema,
        name=found.name,
        kind=found.kind,
        missing_rights=found.missing_rights,
        secured=found.secured,
        triggers=found.triggers,
        columns=columns,
        checks=[(frozenset(one.columns), one.name, one.definition) for one in constraints if one.kind == "c"],
        late=[one.name for one in constraints if one.kind != "c"],
        unique=[UniqueIndex(name=one.name, columns=tuple(one.columns), plain=one.plain) for one in unique],
    )
