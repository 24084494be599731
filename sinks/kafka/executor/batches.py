"""The sink's columns in Arrow batches: the same names and types as in a DataFrame (columns.py). Runs on executors.

Imports only the standard library, pyarrow and our pure modules.

An untyped column, which holds only nulls, becomes nulls of the right type: ``pyarrow.array([None])`` produces one for a
batch that happens to have no keys.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from onceward.common.errors import ConfigurationError

__all__ = ["BatchColumns", "JoinedBatches"]


def _is_text(kind: Any) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _is_binary(kind: Any) -> bool:
    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind))


def _is_headers(kind: Any) -> bool:
    if not (kinds.is_list(kind) or kinds.is_large_list(kind)) or not kinds.is_struct(kind.value_type):
        return False
    fields = [kind.value_type.field(i) for i in range(kind.value_type.num_fields)]
    names = [field.name for field in fields]
    return names == ["key", "value"] and _is_text(fields[0].type) and _is_binary(fields[1].type)


_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_RULES: dict[str, tuple[Callable[[Any], bool], str, pa.DataType]] = {
    "key": (lambda kind: _is_text(kind) or _is_binary(kind), "string or binary", pa.binary()),
    "value": (lambda kind: _is_text(kind) or _is_binary(kind), "string or binary", pa.binary()),
    "headers": (_is_headers, "list<struct<key: string, value: binary>>", _HEADERS),
    "topic": (_is_text, "string", pa.string()),
    "partition": (lambda kind: bool(kinds.is_int32(kind)), "int32", pa.int32()),
    "timestamp": (
        lambda kind: bool(kinds.is_timestamp(kind)) and kind.tz is not None,
        "a timestamp with a time zone",
        pa.timestamp("us", tz="UTC"),
    ),
}
"""Per column: a test of its type, the allowed types as text, and the type given to untyped nulls."""


_ENOUGH = 2_000
_ENOUGH_BYTES = 1 << 20
"""A batch with this many records, or this many bytes of memory, is not joined with the next one. Handing a batch to the
client takes about as long as two thousand of its records (0.5 ms, measured), and a filter may leave fifty of ten
thousand."""


class JoinedBatches:
    """Joins small batches with those that follow."""

    def __init__(self, take: Callable[[pa.RecordBatch], object]) -> None:
        """``take``: gets the batches, in order."""
        self._take = take
        self._small: list[pa.RecordBatch] = []
        self._rows = self._size = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Hand over ``batch``, now or with those that follow."""
        if self._small and not batch.schema.equals(self._small[0].schema):
            self.hand_over()
        self._small.append(batch)
        self._rows += batch.num_rows
        self._size += batch.get_total_buffer_size()  # a slice keeps the whole buffer alive
        if self._rows >= _ENOUGH or self._size >= _ENOUGH_BYTES:
            self.hand_over()

    def hand_over(self) -> None:
        """Hand over what waits."""
        if not self._small:
            return
        small, self._small, self._rows, self._size = self._small, [], 0, 0
        self._take(small[0] if len(small) == 1 else pa.concat_batches(small))


class BatchColumns:
    """Selects the sink's columns from batches and ignores the others."""

    def __init__(self, *, routed: bool) -> None:
        """``routed``: route by the ``topic`` column; otherwise the column is ignored."""
        self._routed = routed
        self._schema: pa.Schema | None = None
        self._taken: list[tuple[int, str, pa.DataType | None]] = []
        """For the last schema: index, the sink's column name, type for untyped nulls."""

    def of(self, batch: Any) -> pa.RecordBatch:
        """Return ``batch`` with the sink's columns only. Raises ConfigurationError listing every problem."""
        if not isinstance(batch, pa.RecordBatch):
            raise ConfigurationError(
                f"A transform yielded {type(batch).__name__} instead of pyarrow.RecordBatch. Nothing of this "
                "checkpoint becomes visible; its records stay unread. Correct the transform; a table has to_batches()."
            )
        if self._schema is None or not batch.schema.equals(self._schema):
            self._look_at(batch.schema)
        arrays = [
            batch.column(index) if nulls is None else pa.nulls(batch.num_rows, nulls) for index, _, nulls in self._taken
        ]
        return pa.RecordBatch.from_arrays(arrays, names=[name for _, name, _ in self._taken])

    def _look_at(self, schema: pa.Schema) -> None:
        problems = list(self._problems(schema))
        if problems:
            raise ConfigurationError(
                "A batch of the transform cannot be written to Kafka; nothing of this checkpoint becomes visible and "
                "its records stay unread. Correct these columns:\n"
                + "\n".join(f"  - {problem}" for problem in problems)
            )
        self._taken = [
            (index, field.name.lower(), _RULES[field.name.lower()][2] if kinds.is_null(field.type) else None)
            for index, field in enumerate(schema)
            if field.name.lower() in _RULES and (self._routed or field.name.lower() != "topic")
        ]
        self._schema = schema

    def _problems(self, schema: pa.Schema) -> Iterator[str]:
        for wanted, (allowed, words, _) in _RULES.items():
            found = [field.type for field in schema if field.name.lower() == wanted]
            if len(found) > 1:
                yield f"{wanted}: there are {len(found)} columns of that name; drop or rename all but one"
            elif not found and wanted == "value":
                yield "value: the column is missing"
            elif not found and wanted == "topic" and self._routed:
                yield "topic: the column is missing; add it, or give the sink topic= for all records"
            elif found and wanted == "topic" and not self._routed:
                continue  # topic= overrides the column, whatever its type
            elif found and not (kinds.is_null(found[0]) or allowed(found[0])):
                yield f"{wanted}: is {found[0]}, must be {words}; cast it"
