"""The demo's Delta table, read and made with ``deltalake`` alone: shares no code with the sink."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from onceward.dev.demo.expected import Record
from onceward.dev.demo.topics import COLUMNS

__all__ = ["create_table", "left_behind", "rows"]

_NUMBERS = ("flight", "delay", "gained")


def create_table(path: Path) -> None:
    kinds = {name: pa.int32() if name in _NUMBERS else pa.string() for name in COLUMNS}
    DeltaTable.create(path, pa.schema(list(kinds.items())))


def rows(path: Path) -> Sequence[Record]:
    """Return each row as a value of the topic of delays: JSON with the same fields in the same order."""
    # A thread of to_pyarrow_table can abort a process that ends right after it (docs/facts.md).
    query = QueryBuilder().register("delays", DeltaTable(path)).execute(f"SELECT {', '.join(COLUMNS)} FROM delays")
    found = pa.RecordBatchReader.from_stream(query).read_all().to_pylist()
    return [Record(None, json.dumps(row, separators=(",", ":")).encode()) for row in found]


def left_behind(path: Path) -> Sequence[str]:
    """Return the data files that no version of the table has."""
    known = {uri.rpartition("/")[2] for uri in DeltaTable(path).file_uris()}
    return sorted({one.name for one in path.glob("*.parquet")} - known)
