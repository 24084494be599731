"""Writes data files of an Iceberg table. The library is imported in the process that writes, and not before."""

import json
from base64 import b64encode
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from onceward.connections.storage import Storage
from onceward.connectors.slots import Library
from onceward.sinks.iceberg.documents import IcebergFile
from onceward.sinks.iceberg.identifiers import FOLDER
from onceward.sinks.lake.executor.writer import LakeSlotWriter
from onceward.sinks.lake.location import TableLocation

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema

    from onceward.sinks.iceberg.executor.partitions import Partitions

__all__ = ["IcebergSlotWriter", "arrow_schema", "libraries_at"]

_PACKAGE = "onceward[iceberg]"
_PARQUET = {
    "compression-level": ("compression_level", None),
    "page-size-bytes": ("data_page_size", 2**20),
    "dict-size-bytes": ("dictionary_pagesize_limit", 2 * 2**20),
    "page-row-limit": ("write_batch_size", 20_000),
}
"""Properties ``write.parquet.*`` with pyarrow's names for them, and the defaults that Iceberg gives them."""


def libraries_at(place: TableLocation) -> Sequence[Library]:
    """Return what executors need to write there."""
    in_store = (Library("obstore", "0.12.1", _PACKAGE),) if place.options is not None else ()
    return (Library("pyiceberg", "0.12", _PACKAGE), *in_store)


@dataclass(frozen=True, kw_only=True)
class IcebergSlotWriter(LakeSlotWriter):
    """See :class:`LakeSlotWriter`. The key of a partition is its values (``partitions.py``)."""

    folder = FOLDER

    group_bytes: int = 64 * 2**20
    """Each row group has its own dictionaries: a slot of 1 million rows took 1.4 times the CPU time of the library with
    groups of 32 MiB, and takes 1.2 times of it with these; other sizes take less."""

    place: TableLocation
    schema_json: str
    """The table's columns, as its metadata has them."""
    spec_json: str
    """How it is divided, likewise."""
    properties: Mapping[str, str]
    """Those of the table that say how files are written."""

    @property
    def libraries(self) -> Sequence[Library]:
        """See :class:`NeedsLibraries`."""
        return libraries_at(self.place)

    @cached_property
    def table_schema(self) -> "Schema":
        from pyiceberg.schema import Schema

        return Schema.model_validate_json(self.schema_json)

    @cached_property
    def spec(self) -> "PartitionSpec":
        from pyiceberg.partitioning import PartitionSpec

        return PartitionSpec.model_validate_json(self.spec_json)

    @cached_property
    def partitions(self) -> "Partitions":
        from onceward.sinks.iceberg.executor.partitions import Partitions

        return Partitions(self.table_schema, self.spec)

    @cached_property
    def schema(self) -> pa.Schema:
        """See :meth:`LakeSlotWriter.schema`."""
        return arrow_schema(self.table_schema)

    @cached_property
    def file_schema(self) -> pa.Schema:
        """The columns under the names that they have in files: those of columns with other letters differ."""
        from pyiceberg.schema import sanitize_column_names

        return arrow_schema(sanitize_column_names(self.table_schema))

    def storage(self) -> Storage:
        """See :meth:`LakeSlotWriter.storage`."""
        return self.place.storage()

    def divided(self, batch: pa.RecordBatch) -> Iterator[tuple[Hashable, pa.RecordBatch]]:
        """See :meth:`LakeSlotWriter.divided`."""
        for values, part in self.partitions.divided(batch):
            yield values, pa.RecordBatch.from_arrays(part.columns, schema=self.file_schema)

    def parquet(self, file: Any, footer: list[pq.FileMetaData]) -> pq.ParquetWriter:
        """See :meth:`LakeSlotWriter.parquet`."""
        codec = self.properties.get("write.parquet.compression-codec", "zstd").lower()
        options = {
            ours: default if (said := self.properties.get(f"write.parquet.{name}")) is None else int(said)
            for name, (ours, default) in _PARQUET.items()
        }
        return pq.ParquetWriter(
            file,
            self.file_schema,
            metadata_collector=footer,
            store_schema=False,
            store_decimal_as_integer=True,
            compression="none" if codec == "uncompressed" else codec,
            **options,
        )

    def written(self, name: str, size: int, footer: pq.FileMetaData, partition: Any, with_nan: Set[str]) -> IcebergFile:
        """See :meth:`LakeSlotWriter.written`."""
        from pyiceberg.io.pyarrow import (
            compute_statistics_plan,
            data_file_statistics_from_parquet_metadata,
            parquet_path_to_id_mapping,
        )
        from pyiceberg.schema import sanitize_column_names

        schema = sanitize_column_names(self.table_schema)
        found = data_file_statistics_from_parquet_metadata(
            footer, compute_statistics_plan(schema, dict(self.properties)), parquet_path_to_id_mapping(schema)
        ).to_serialized_dict()
        return IcebergFile(
            name=name,
            size=size,
            records=found.pop("record_count"),
            spec=self.spec.spec_id,
            partition=partition,
            metrics=json.dumps(found, default=_base64, separators=(",", ":")),
        )


def arrow_schema(schema: "Schema") -> pa.Schema:
    """Return the columns as Arrow has them, with their ids. Text is ``string``, as in the records of Spark."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return pa.schema([_small_field(field) for field in schema_to_pyarrow(schema)])


def _base64(bound: bytes) -> str:
    return b64encode(bound).decode()


def _small_field(field: pa.Field) -> pa.Field:
    return field.with_type(_small(field.type))


def _small(kind: pa.DataType) -> pa.DataType:
    """Types with offsets of 32 bits for the library's, of 64."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind):
        return pa.list_(_small_field(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_small_field(kind.field(place)) for place in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_small_field(kind.key_field), _small_field(kind.item_field))
    return kind
