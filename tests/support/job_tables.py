"""Tables that the jobs of a harness write to besides topics, and what each must have at the end."""

import json
import sqlite3
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, LiteralString, TypeAlias

from onceward.protocol.values import JsonObject
from tests.support.avro import read_avro

__all__ = ["DeltaTables", "IcebergTables", "JobTables", "LakeTables", "PostgresTables"]

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


class LakeTables(JobTables):
    """A table whose rows are in files."""

    folder = "."
    """Of the data files, in the table's directory."""

    @abstractmethod
    def directory(self) -> Path:
        """The directory of the table."""

    @abstractmethod
    def files(self) -> Sequence[Path]:
        """The files of the table's newest state. One that is there twice is twice among them."""

    def sink(self, job: str) -> JsonObject:
        return self.system()

    def rows(self, job: str) -> Rows:
        import pyarrow.parquet as pq

        tables = [pq.read_table(file) for file in self.files()]
        return Counter((row["key"], row["value"]) for table in tables for row in table.to_pylist())

    def left(self, job: str) -> Sequence[str]:
        notes = self.directory().glob(f"_onceward/staged/{job}/*")
        return sorted([*(one.name for one in self._staged(job)), *(f"the note of {one.name}" for one in notes)])

    def lose(self, job: str) -> None:
        """Delete the files that wait for their commit."""
        for one in self._staged(job):
            one.unlink()

    def _staged(self, job: str) -> Sequence[Path]:
        there = {one.name for one in self.files()}
        written = (self.directory() / self.folder).glob(f"part-onceward-{job}.*.parquet")
        return [one for one in written if one.name not in there]


class DeltaTables(LakeTables):
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

    def directory(self) -> Path:
        return self._path

    def files(self) -> Sequence[Path]:
        """By its log alone: it is short, and has no checkpoint of its own."""
        found: list[str] = []
        for entry in sorted(self._path.glob("_delta_log/*.json")):
            for action in map(json.loads, entry.read_text().splitlines()):
                if "add" in action:
                    found.append(action["add"]["path"])
                elif "remove" in action:
                    found.remove(action["remove"]["path"])
        return [self._path / name for name in found]


class IcebergTables(LakeTables):
    """A table by one name, which is dropped and created for each job. Its catalogue is a file of SQLite."""

    TABLE = "jobs.records"
    folder = "data"

    def __init__(self, directory: Path, reached: Mapping[str, str] | None = None) -> None:
        """``directory``: of the catalogue and of the table. ``reached``: the settings by which jobs reach the
        catalogue; None: as a file."""
        directory.mkdir(parents=True, exist_ok=True)
        self._file = directory / "catalogue.db"
        self.settings = {
            "name": "tests",
            "type": "sql",
            "uri": f"sqlite:///{self._file}",
            "warehouse": f"file://{directory}",
        }
        """Of the catalogue, as a file."""
        self._reached = dict(reached or self.settings)

    def system(self) -> JsonObject:
        return {"kind": "iceberg", "table": self.TABLE, "catalog": self._reached}

    def create(self, job: str) -> None:
        import pyarrow as pa
        from pyiceberg.catalog.sql import SqlCatalog

        catalogue = SqlCatalog(**self.settings)
        catalogue.create_namespace_if_not_exists("jobs")
        if catalogue.table_exists(self.TABLE):
            catalogue.drop_table(self.TABLE)
        catalogue.create_table(self.TABLE, pa.schema([("key", pa.binary()), ("value", pa.binary())]))

    def directory(self) -> Path:
        return _path(self._metadata()["location"])

    def files(self) -> Sequence[Path]:
        """By the manifests of the newest snapshot alone."""
        metadata = self._metadata()
        newest = metadata.get("current-snapshot-id")
        lists = [one["manifest-list"] for one in metadata["snapshots"] if one["snapshot-id"] == newest]
        manifests = [manifest for each in lists for manifest in read_avro(_path(each))]
        entries = [entry for each in manifests for entry in read_avro(_path(each["manifest_path"]))]
        assert all(entry["data_file"]["content"] == 0 for entry in entries), "the sink deletes no rows"
        return [_path(entry["data_file"]["file_path"]) for entry in entries if entry["status"] != _DELETED]

    def _metadata(self) -> Mapping[str, Any]:
        with closing(sqlite3.connect(f"file:{self._file}?mode=ro", uri=True, timeout=60)) as catalogue:
            ((file,),) = catalogue.execute("SELECT metadata_location FROM iceberg_tables")
        found: Mapping[str, Any] = json.loads(_path(file).read_text())
        return found


_DELETED = 2
"""The status of an entry in a manifest: https://iceberg.apache.org/spec/#manifests"""


def _path(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))
