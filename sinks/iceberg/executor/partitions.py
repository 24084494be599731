"""The partition of each record, by the transforms of a table's partition spec.

The transforms are the library's own: a bucket of ours that differed from it would hide records from readers.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import to_bytes
from pyiceberg.partitioning import PartitionField, PartitionSpec, partition_record_value
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import PrimitiveType

from onceward.sinks.lake.executor.partitions import grouped

__all__ = ["PartitionValues", "Partitions"]

PartitionValues: TypeAlias = tuple[str | None, ...]
"""A value for each field of the spec: base64 of the bytes by which Iceberg writes it."""


class Partitions:
    """Divides batches of a table's columns."""

    def __init__(self, schema: Schema, spec: PartitionSpec) -> None:
        self._schema = schema
        self._fields = [(field, _transform(field, schema)) for field in spec.fields]
        self._types = [one.field_type for one in spec.partition_type(schema).fields]

    def divided(self, batch: pa.RecordBatch) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
        """Yield the records of each partition in their order."""
        if not self._fields:
            yield (), batch
            return
        for values, part in grouped(batch, [transform(batch) for _, transform in self._fields]):
            yield tuple(self._written(values)), part

    def _written(self, values: Sequence[Any]) -> Iterator[str | None]:
        for (field, _), kind, value in zip(self._fields, self._types, values, strict=True):
            inside = partition_record_value(field, value, self._schema)
            if inside is None or not isinstance(kind, PrimitiveType):
                yield None
            else:
                yield b64encode(to_bytes(kind, inside)).decode()


def _transform(field: PartitionField, schema: Schema) -> Callable[[pa.RecordBatch], pa.Array]:
    if isinstance(field.transform, VoidTransform):
        return lambda batch: pa.nulls(batch.num_rows)
    name = schema.find_column_name(field.source_id) or ""
    transform = field.transform.pyarrow_transform(schema.find_type(field.source_id))
    return lambda batch: transform(_column(batch, name))


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """``name``: of a column, or of a member of a struct, such as ``customer.country``."""
    if name in batch.schema.names:
        return batch[name]
    top, _, inside = name.partition(".")
    return pc.struct_field(batch[top], inside.split("."))
