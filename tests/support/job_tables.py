"""Tables that the jobs of a harness write to besides topics, and what each must have at the end."""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, LiteralString, TypeAlias

from onceward.protocol.values import JsonObject

__all__ = ["DeltaTables", "JobTables", "PostgresTables"]

Rows: TypeAlias = "Counter[tuple[bytes | None, bytes | None]]"


class JobTables(ABC):
    """One system. Each job has an empty table of the columns ``key`` and ``value``, both bytes."""

    @abstractmethod
    def system(self) -> JsonObject:
        """The system as a file of systems has it: the coordinator settles there for dead drivers."""

    @abstractmethod
    def create(self, job: str) -> None: ...

    @abstractmethod
    def sink(self, job: str) -> JsonObject:
        """What the driver's program makes a sink of: its ``kind``, and the arguments."""

    @abstractmethod
    def rows(self, job: str) -> Rows:
        """Keys and values that a reader finds who shares no code with the sink."""

    @abstractmethod
    def left(self, job: str) -> Sequence[str]:
        """What is there of the job that no reader sees."""


class PostgresTables(JobTables):
    """``url``: of the database."""

    def __init__(self, url: str) -> None:
        self._url = url

    def system(self) -> JsonObject:
        return {"kind": "postgres", "dsn": self._url}

    def create(self, job: str) -> None:
        self._ask("CREATE TABLE {} (key bytea, value bytea)", job)

    def sink(self, job: str) -> JsonObject:
        return {"kind": "postgres", "dsn": self._url, "table": f'"{job}"'}

    def rows(self, job: str) -> Rows:
        return Counter(self._ask("SELECT key, value FROM {}", job))

    def left(self, job: str) -> Sequence[str]:
        staged = self._ask("SELECT name, job FROM onceward_sink.staged", job)
        return [f"staging table {name}" for name, of in staged if of == job]

    def _ask(self, statement: LiteralString, job: str) -> list[tuple[Any, ...]]:
        import psycopg
        from psycopg import sql

        with psycopg.connect(self._url, autocommit=True) as session:
            found = session.execute(sql.SQL(statement).format(sql.Identifier(job)))
            return found.fetchall() if found.description else []


class DeltaTables(JobTables):
    """``path``: of the one table of a harness, which is emptied for each job."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def system(self) -> JsonObject:
        return {"kind": "delta", "table": str(self._path)}

    def create(self, job: str) -> None:
        import pyarrow as pa
        from deltalake import DeltaTable

        schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
        DeltaTable.create(self._path, schema, mode="ignore")
        DeltaTable(self._path).delete()

    def sink(self, job: str) -> JsonObject:
        return self.system()

    def rows(self, job: str) -> Rows:
        import pyarrow.parquet as pq

        tables = [pq.read_table(self._path / name) for name in self._files()]
        return Counter((row["key"], row["value"]) for table in tables for row in table.to_pylist())

    def left(self, job: str) -> Sequence[str]:
        files = {one.name for one in self._path.glob(f"part-onceward-{job}.*.parquet")}
        notes = [f"the note of {one.name}" for one in self._path.glob(f"_onceward/staged/{job}/*")]
        return sorted([*files - self._files(), *notes])

    def _files(self) -> set[str]:
        """The files of the table's newest version, by its log alone: it is short, and has no checkpoint of its own."""
        found: set[str] = set()
        for entry in sorted(self._path.glob("_delta_log/*.json")):
            for action in map(json.loads, entry.read_text().splitlines()):
                if "add" in action:
                    found.add(action["add"]["path"])
                elif "remove" in action:
                    found.discard(action["remove"]["path"])
        return found
