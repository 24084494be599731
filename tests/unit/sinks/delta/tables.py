"""A Delta table in a directory, and jobs that write to it."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from onceward import DeltaSink
from onceward.dev.promises.sink_case import Jobs
from onceward.sinks.delta.control.system import DeltaSystem
from onceward.sinks.delta.location import TableLocation
from onceward.testing import SinkCase

__all__ = ["VALUES", "Table", "run_python"]

VALUES = pa.schema([("value", pa.binary())])


class Table:
    """A table that was created empty."""

    def __init__(self, path: Path, schema: pa.Schema = VALUES, **options: Any) -> None:
        self.path = path
        self.location = TableLocation.of(str(path))
        DeltaTable.create(path, schema, **options)

    def jobs(self) -> Jobs:
        """Drivers that write one column of bytes."""
        return Jobs(
            SinkCase(
                sink=lambda name: DeltaSink(self.path, name=name),
                system=self.system,
                visible=self.values,
                together=True,
            )
        )

    def system(self) -> DeltaSystem:
        return DeltaSystem.open(self.location)

    def now(self) -> DeltaTable:
        return DeltaTable(self.path)

    def values(self) -> list[bytes]:
        """What a reader finds that shares no code with the sink."""
        found: list[bytes] = self.now().to_pyarrow_table()["value"].to_pylist()
        return sorted(found)

    def append(self, *values: bytes) -> None:
        """Write as another program does."""
        write_deltalake(self.path, pa.table({"value": pa.array(values, pa.binary())}, VALUES), mode="append")

    def files(self) -> set[str]:
        """The names of the data files in the directory."""
        return {one.name for one in self.path.glob("*.parquet")}


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
