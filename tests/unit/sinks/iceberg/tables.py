"""An Iceberg table in a catalogue, and jobs that write to it."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as Loaded

from onceward import IcebergSink
from onceward.sinks.iceberg.catalog import CatalogTable
from onceward.sinks.iceberg.control.system import IcebergSystem
from onceward.sinks.iceberg.control.table import LoadedTable
from tests.unit.sinks.lake.places import LakePlace

if TYPE_CHECKING:
    from tests.support.object_store import ObjectStore

__all__ = ["NAME", "SECRET", "VALUES", "ObjectTable", "Table", "in_store", "sqlite_catalog"]

NAME = "shop.orders"
VALUES = pa.schema([("value", pa.binary())])


def sqlite_catalog(at: Path) -> dict[str, str]:
    """The settings of a catalogue in a file."""
    return {"type": "sql", "uri": f"sqlite:///{at}/catalog.db", "warehouse": f"file://{at}/warehouse"}


SECRET = "env:ONCEWARD_TEST_SECRET_KEY"


def in_store(store: "ObjectStore") -> dict[str, str]:
    """The settings that reach an object store, whose secret key each process finds in its environment."""
    os.environ[SECRET.removeprefix("env:")] = store.secret_key
    return {
        "s3.endpoint": store.url,
        "s3.region": "us-east-1",
        "s3.access-key-id": store.access_key,
        "s3.secret-access-key": SECRET,
    }


class Table(LakePlace):
    """A table that was created empty."""

    kind = "iceberg"
    loaded = LoadedTable
    named = "name"

    def __init__(self, catalog: Mapping[str, str], schema: Any = VALUES, *, name: str = NAME, **options: Any) -> None:
        self._is_in(catalog, name)
        self.catalog.create_namespace_if_not_exists("shop")
        self._is_at(self.catalog.create_table(name, schema, **options))

    @property
    def place(self) -> str:
        return json.dumps({"table": self.name, "catalog": self.settings})

    @classmethod
    def at(cls, place: str) -> Self:
        table, found = cls.__new__(cls), json.loads(place)
        table._is_in(found["catalog"], found["table"])
        table._is_at(table.now())
        return table

    def _is_in(self, catalog: Mapping[str, str], name: str) -> None:
        self.settings = dict(catalog)
        self.name = name
        self.location = CatalogTable.of(name, catalog)

    def _is_at(self, table: Loaded) -> None:
        self.path = Path(table.location().removeprefix("file://"))
        self.files_in = self.path / "data"

    @property
    def catalog(self) -> Catalog:
        return self.location.catalog()

    def sink(self, name: str = "sink", **arguments: Any) -> IcebergSink:
        return IcebergSink(self.name, catalog=self.settings, name=name, **arguments)

    def system(self) -> IcebergSystem:
        return IcebergSystem.open(self.location)

    def now(self) -> Loaded:
        return self.catalog.load_table(self.name)

    def rows(self) -> pa.Table:
        """What a reader finds that shares no code with the sink."""
        return self.now().scan().to_arrow()

    def values(self) -> list[bytes]:
        found: list[bytes] = self.rows()["value"].to_pylist()
        return sorted(found)

    def append(self, *values: bytes) -> None:
        """Write as another program does."""
        self.now().append(pa.table({"value": pa.array(values, pa.binary())}, VALUES))

    def commits(self) -> int:
        return len(self.now().snapshots())

    def files_in_it(self) -> set[str]:
        return {os.path.basename(one.file.file_path) for one in self.now().scan().plan_files()}

    def remove_unused(self) -> None:
        kept = self.files_in_it()
        for file in self.files_in.glob("**/*.parquet"):
            if file.name not in kept:
                file.unlink()

    def state(self) -> int:
        now = self.now().current_snapshot()
        assert now is not None
        return now.snapshot_id

    def restore(self, state: int) -> None:
        self.now().manage_snapshots().set_current_snapshot(state).commit()

    def saves(self) -> Callable[[], None]:
        """The catalogue is in a file."""
        catalogue = Path(self.settings["uri"].removeprefix("sqlite:///"))
        copy = catalogue.with_name("copy")
        shutil.copy(catalogue, copy)

        def put_back() -> None:
            shutil.copy(copy, catalogue)

        return put_back

    def replace(self) -> None:
        self.catalog.drop_table(self.name)
        self.catalog.create_table(self.name, VALUES)


class ObjectTable(Table):
    """A table in an object store."""

    def __init__(self, store: "ObjectStore", catalog: Mapping[str, str], schema: Any = VALUES, **options: Any) -> None:
        self.store = store
        super().__init__({**catalog, **in_store(store)}, schema, **options)
        self.folder = self.now().location().removeprefix(f"s3://{store.bucket}/")

    def objects(self) -> set[str]:
        """The names of all objects of the table."""
        return {key.removeprefix(f"{self.folder}/") for key in self.store.keys(f"{self.folder}/")}

    def files(self) -> set[str]:
        return {key.removeprefix("data/") for key in self.objects() if key.startswith("data/part-onceward")}

    def remove_unused(self) -> None:
        for name in self.files() - self.files_in_it():
            self.store.client.delete_object(Bucket=self.store.bucket, Key=f"{self.folder}/data/{name}")
