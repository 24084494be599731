"""A Delta table in a directory or in an object store, and jobs that write to it."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from onceward import DeltaSink
from onceward.dev.promises.sink_case import Jobs
from onceward.sinks.delta.control.system import DeltaSystem
from onceward.sinks.delta.location import TableLocation
from onceward.testing import SinkCase

if TYPE_CHECKING:
    from tests.support.object_store import ObjectStore

__all__ = ["VALUES", "ObjectTable", "Table", "in_processes", "run_python"]

VALUES = pa.schema([("value", pa.binary())])


SECRET = "env:ONCEWARD_TEST_SECRET_KEY"


class Table:
    """A table that was created empty."""

    def __init__(self, path: Path, schema: pa.Schema = VALUES, **options: Any) -> None:
        self.path = path
        self.location = TableLocation.of(str(path))
        DeltaTable.create(path, schema, **options)

    @property
    def options(self) -> dict[str, str] | None:
        """How a reader reaches the storage that shares no code with the sink."""
        return None

    @property
    def place(self) -> str:
        """Where it is, as text for another process: what a file of systems has, as JSON."""
        return json.dumps({"table": self.location.uri})

    def sink(self, name: str = "sink", **arguments: Any) -> DeltaSink:
        return DeltaSink(self.location.uri, name=name, **arguments)

    def case(self) -> SinkCase:
        """Jobs that write one column of bytes."""
        return SinkCase(sink=self.sink, system=self.system, visible=self.values, together=True)

    def jobs(self) -> Jobs:
        """Drivers of such jobs."""
        return Jobs(self.case())

    def system(self) -> DeltaSystem:
        return DeltaSystem.open(self.location)

    def now(self) -> DeltaTable:
        return DeltaTable(self.location.uri, storage_options=self.options)

    def values(self) -> list[bytes]:
        """What a reader finds that shares no code with the sink."""
        found: list[bytes] = self.now().to_pyarrow_table()["value"].to_pylist()
        return sorted(found)

    def append(self, *values: bytes) -> None:
        """Write as another program does."""
        data = pa.table({"value": pa.array(values, pa.binary())}, VALUES)
        write_deltalake(self.location.uri, data, mode="append", storage_options=self.options)

    def files(self) -> set[str]:
        """The names of the data files in the directory."""
        return {one.name for one in self.path.glob("*.parquet")}


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


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in another process."""
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)


def in_processes(code: str, arguments: Sequence[Sequence[str]]) -> list[str]:
    """Run code in several processes at the same time; return what each printed."""
    running = [
        subprocess.Popen([sys.executable, "-c", code, *each], stdout=subprocess.PIPE, text=True) for each in arguments
    ]
    outputs = [each.communicate(timeout=120)[0].strip() for each in running]
    assert [each.returncode for each in running] == [0] * len(running)
    return outputs
