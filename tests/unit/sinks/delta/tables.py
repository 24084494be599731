"""A Delta table in a directory or in an object store, and jobs that write to it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from onceward import DeltaSink
from onceward.sinks.delta.control.system import DeltaSystem
from onceward.sinks.delta.control.table import LoadedTable
from onceward.sinks.delta.location import TableLocation
from tests.unit.sinks.lake.places import LakePlace

if TYPE_CHECKING:
    from tests.support.object_store import ObjectStore

__all__ = ["VALUES", "ObjectTable", "Table"]

VALUES = pa.schema([("value", pa.binary())])


SECRET = "env:ONCEWARD_TEST_SECRET_KEY"


class Table(LakePlace):
    """A table that was created empty."""

    kind = "delta"
    loaded = LoadedTable
    named = "path"

    def __init__(self, path: Path, schema: pa.Schema = VALUES, **options: Any) -> None:
        self._is_at(path)
        DeltaTable.create(path, schema, **options)

    @classmethod
    def at(cls, place: str) -> Self:
        table = cls.__new__(cls)
        table._is_at(Path(json.loads(place)["table"]))
        return table

    def _is_at(self, path: Path) -> None:
        self.path = self.files_in = path
        self.location = TableLocation.of(str(path))

    @property
    def options(self) -> dict[str, str] | None:
        """How a reader reaches the storage that shares no code with the sink."""
        return None

    @property
    def place(self) -> str:
        return json.dumps({"table": self.location.uri})

    def sink(self, name: str = "sink", **arguments: Any) -> DeltaSink:
        return DeltaSink(self.location.uri, name=name, **arguments)

    def system(self) -> DeltaSystem:
        return DeltaSystem.open(self.location)

    def now(self) -> DeltaTable:
        return DeltaTable(self.location.uri, storage_options=self.options)

    def values(self) -> list[bytes]:
        # A thread of to_pyarrow_table can abort a process that ends right after it (docs/facts.md).
        query = QueryBuilder().register("rows", self.now()).execute("SELECT value FROM rows")
        found: list[bytes] = pa.RecordBatchReader.from_stream(query).read_all()["value"].to_pylist()
        return sorted(found)

    def append(self, *values: bytes) -> None:
        data = pa.table({"value": pa.array(values, pa.binary())}, VALUES)
        write_deltalake(self.location.uri, data, mode="append", storage_options=self.options)

    def commits(self) -> int:
        return self.now().version()

    def files_in_it(self) -> set[str]:
        return {uri.rpartition("/")[2] for uri in self.now().file_uris()}

    def remove_unused(self) -> None:
        self.now().vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    def state(self) -> int:
        return self.now().version()

    def restore(self, state: int) -> None:
        self.now().restore(state)

    def saves(self) -> Callable[[], None]:
        log, copy = self.path / "_delta_log", self.path.with_name("log")
        shutil.copytree(log, copy)

        def put_back() -> None:
            shutil.rmtree(log)
            shutil.copytree(copy, log)

        return put_back

    def replace(self) -> None:
        aside = self.path.with_name("aside")
        self.path.rename(aside)
        Table(self.path)
        for file in aside.glob("*.parquet"):
            shutil.copy(file, self.path)


class ObjectTable(Table):
    """A table in an object store, whose secret key each process of the sink finds in its environment."""

    def __init__(self, store: "ObjectStore", name: str, schema: pa.Schema = VALUES) -> None:
        self.store, self.name = store, name
        os.environ[SECRET.removeprefix("env:")] = store.secret_key
        self.given = {**store.options, "aws_secret_access_key": SECRET}
        self.location = TableLocation.of(f"s3://{store.bucket}/{name}", self.given)
        DeltaTable.create(self.location.uri, schema, storage_options=self.options)

    @property
    def options(self) -> dict[str, str]:
        return dict(self.store.options)

    @property
    def place(self) -> str:
        return json.dumps({"table": self.location.uri, "storage": self.given})

    def sink(self, name: str = "sink", **arguments: Any) -> DeltaSink:
        return DeltaSink(self.location.uri, storage=self.given, name=name, **arguments)

    def objects(self) -> set[str]:
        """The names of all objects of the table."""
        return {key.removeprefix(f"{self.name}/") for key in self.store.keys(f"{self.name}/")}

    def files(self) -> set[str]:
        return {key for key in self.objects() if "/" not in key}
