"""An Iceberg table, loaded at one state. Everything that is asked of it, and a commit on it, is of that state."""

import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, TypeVar

import pyiceberg.exceptions
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    UpdatesAndRequirements,
    UpdateTableMetadata,
)
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, PrimitiveType
from sqlalchemy.exc import SQLAlchemyError

from onceward.connections.storage import Storage, StorageError
from onceward.sinks.iceberg.catalog import CatalogTable
from onceward.sinks.iceberg.documents import IcebergCommittable, IcebergFile
from onceward.sinks.lake.control.tables import CommitRefusedError, NoTableError, UnsupportedTableError
from onceward.sinks.lake.location import TableLocation

__all__ = ["NEWEST_FORMAT", "LoadedTable", "columns_of"]

T = TypeVar("T")

NEWEST_FORMAT = 2
"""The newest format version of tables that the library writes: apache/iceberg-python#1551."""

_PROMOTED = {("int", "long"), ("float", "double")}
_FAILURES: tuple[type[Exception], ...] = (
    *(one for one in vars(pyiceberg.exceptions).values() if isinstance(one, type) and issubclass(one, Exception)),
    SQLAlchemyError,
    OSError,
    ValueError,
)


def columns_of(schema: Schema) -> dict[str, Any]:
    """Return the columns of a schema and all that is nested in them, by their ids: name, type, and whether it may be
    null. Of what is nested, the type is its kind alone."""
    return {
        str(number): {"name": name, "type": _kind(field.field_type), "required": field.required}
        for number, field in index_by_id(schema).items()
        if (name := schema.find_column_name(number)) is not None
    }


class LoadedTable:
    """A table at one state."""

    def __init__(self, location: CatalogTable) -> None:
        """Load the present state. Raises NoTableError, UnsupportedTableError, StorageError."""
        self._location = location
        self._table: Table = _asking(location, lambda: location.catalog().load_table(location.name))
        newest = self._table.metadata.format_version
        if newest > NEWEST_FORMAT:
            raise UnsupportedTableError(
                f"The Iceberg table {location.name} has format version {newest}, and pyiceberg {version('pyiceberg')} "
                f"writes versions up to {NEWEST_FORMAT} (apache/iceberg-python#1551). Nothing was written to it. Write "
                "to a table of version 2."
            )

    @property
    def id(self) -> str:
        """The id that the table gives itself."""
        return str(self._table.metadata.table_uuid)

    @property
    def uri(self) -> str:
        return self._table.location()

    @property
    def state(self) -> str:
        snapshot = self._table.current_snapshot()
        return f"{'the empty table' if snapshot is None else f'snapshot {snapshot.snapshot_id} of'} {self.name}"

    @property
    def is_empty(self) -> bool:
        """Whether it never had a snapshot."""
        return self._table.current_snapshot() is None

    @property
    def name(self) -> str:
        return self._location.name

    @property
    def storage(self) -> Storage:
        """The table's directory. Raises ConfigurationError if it cannot be reached."""
        return self.place.storage()

    @property
    def place(self) -> TableLocation:
        """Where the directory is. Raises ConfigurationError if it cannot be reached."""
        return self._location.place(self.uri)

    @property
    def schema(self) -> Schema:
        return self._table.schema()

    @property
    def spec(self) -> PartitionSpec:
        return self._table.spec()

    @property
    def properties(self) -> Mapping[str, str]:
        return self._table.properties

    def transaction(self, app: str) -> int | None:
        """See :meth:`LakeTable.transaction`."""
        found = self._table.properties.get(app)
        try:
            return None if found is None else int(found)
        except ValueError:
            raise UnsupportedTableError(
                f"The property {app} of the Iceberg table {self.name} is {found!r}, and no number: what was committed "
                "last is unknown. Nothing was written to it. Put back the number that it had; older metadata files of "
                "the table have it."
            ) from None

    def file_names(self) -> frozenset[str]:
        """See :meth:`LakeTable.file_names`."""
        return frozenset(_asking(self._location, lambda: [*self._names()]))

    def unfit(self, wanted: IcebergCommittable) -> Sequence[str]:
        """See :meth:`LakeTable.unfit`. Columns may have been added, renamed, dropped or widened."""
        return [*self._changes(wanted)]

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Read the rows of this state as Arrow batches of pyarrow. Raises as the constructor does."""
        snapshot = self._table.current_snapshot()
        if snapshot is None:
            return
        scan = self._table.scan(selected_fields=tuple(columns), snapshot_id=snapshot.snapshot_id)
        reader = _asking(self._location, scan.to_arrow_batch_reader)
        while (batch := _asking(self._location, lambda: next(reader, None))) is not None:
            yield batch.select(list(columns))

    def add_columns(self, columns: Mapping[str, IcebergType]) -> None:
        """Add columns that may be null. Raises as :meth:`commit` does."""

        def add(transaction: Transaction) -> None:
            with transaction.update_schema() as update:
                for name, kind in columns.items():
                    update.add_column((name,), kind)

        self._change(add)

    def commit(self, files: Iterable[IcebergFile], *, app: str, transaction: int, said: Mapping[str, str | int]) -> str:
        """See :meth:`LakeTable.commit`. A commit without files makes a snapshot, too: catalogues compare no others."""
        summary = {f"onceward.{key}": str(value) for key, value in said.items()}

        def append(one: Transaction) -> None:
            one.set_properties({app: str(transaction)})
            with one.update_snapshot(snapshot_properties=summary).fast_append() as update:
                for file in files:
                    update.append_data_file(self._data_file(file))
            with _Unchanged(one):
                pass

        self._change(append)
        self._flush()
        return self.state

    def _change(self, change: Callable[[Transaction], None]) -> None:
        """Commit a change, on this state alone: the library's retries would add the files to a state that was not
        looked at. They are switched off in this copy of the table, and not for other programs."""
        properties = {**self._table.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
        self._table.metadata = self._table.metadata.model_copy(update={"properties": properties})

        def commit() -> None:
            transaction = self._table.transaction()
            change(transaction)
            transaction.commit_transaction()

        _asking(self._location, commit)

    def _data_file(self, file: IcebergFile) -> DataFile:
        fields = self.spec.partition_type(self.schema).fields
        partition = [
            None if value is None else from_bytes(field.field_type, b64decode(value))
            for field, value in zip(fields, file.partition, strict=True)
            if isinstance(field.field_type, PrimitiveType)
        ]
        metrics = json.loads(file.metrics)
        found: dict[str, Any] = {
            **{name: _by_id(metrics[name], int) for name in _COUNTS},
            **{name: _by_id(metrics[name], b64decode) for name in _BOUNDS},
        }
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self.uri.rstrip('/')}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(*partition),
            record_count=file.records,
            file_size_in_bytes=file.size,
            sort_order_id=None,
            spec_id=file.spec,
            equality_ids=None,
            key_metadata=None,
            split_offsets=list(metrics["split_offsets"]),
            **found,
        )

    def _changes(self, wanted: IcebergCommittable) -> Iterator[str]:
        if wanted.uri != self.uri:
            yield f"they are in {wanted.uri}, and the table is in {self.uri} now"
        specs = sorted({file.spec for file in wanted.files} - {self.spec.spec_id})
        if specs:
            yield f"the table is divided by partition spec {self.spec.spec_id} now, and they by {specs[0]}"
        now = columns_of(self.schema)
        for number, column in now.items():
            before = wanted.columns.get(number)
            nullable = "." not in column["name"] if before is None else not before["required"]
            if nullable and column["required"]:
                yield f"column {column['name']} may not be null now"
            if before is not None and not _fits(before["type"], column["type"]):
                yield f"column {column['name']} is {column['type']} now and was {before['type']}"

    def _names(self) -> Iterator[str]:
        snapshot = self._table.current_snapshot()
        for manifest in snapshot.manifests(self._table.io) if snapshot else ():
            for entry in manifest.fetch_manifest_entry(self._table.io):
                yield entry.data_file.file_path.rpartition("/")[2]

    def _flush(self) -> None:
        """Make the commit durable: the library does not, and a table on a disk would lose it with the machine."""
        snapshot = self._table.current_snapshot()
        made = [self._table.metadata_location]
        if snapshot is not None:
            manifests = _asking(self._location, lambda: snapshot.manifests(self._table.io))
            made.append(snapshot.manifest_list)
            made += [one.manifest_path for one in manifests if one.added_snapshot_id == snapshot.snapshot_id]
        inside = self.uri.rstrip("/") + "/"
        for path in made:
            if path.startswith(inside):
                self.storage.flush(path.removeprefix(inside))
            else:  # the table has a folder for them elsewhere
                self.storage.flush_all()


class _Unchanged(UpdateTableMetadata["_Unchanged"]):
    """Requires that the columns and the partitions are still those that were looked at."""

    def _commit(self) -> UpdatesAndRequirements:
        metadata = self._transaction.table_metadata
        return (), (
            AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
            AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
        )


_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS = ("lower_bounds", "upper_bounds")


def _by_id(found: Mapping[str, Any], read: Callable[[Any], Any]) -> dict[int, Any]:
    return {int(number): read(value) for number, value in found.items()}


def _kind(kind: IcebergType) -> str:
    return str(kind) if isinstance(kind, PrimitiveType) else type(kind).__name__.removesuffix("Type").lower()


def _fits(before: str, now: str) -> bool:
    """Whether values of a type are read as another one."""
    if before == now or (before, now) in _PROMOTED:
        return True
    old, new = (kind.removeprefix("decimal(").removesuffix(")").split(", ") for kind in (before, now))
    both = before.startswith("decimal(") and now.startswith("decimal(")
    return both and old[1] == new[1] and int(old[0]) <= int(new[0])


def _asking(location: CatalogTable, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise NoTableError(
            f"There is no Iceberg table {location.name} in its catalogue ({_said(location, error)})."
        ) from None
    except CommitFailedException as error:
        raise CommitRefusedError(
            f"A commit to the Iceberg table {location.name} was refused, as after a commit of another program: "
            f"{_said(location, error)}. The table is looked at again before the next attempt."
        ) from None
    except NotImplementedError as error:
        raise UnsupportedTableError(
            f"The Iceberg table {location.name} needs what pyiceberg {version('pyiceberg')} cannot do: "
            f"{_said(location, error)}. Nothing was written to it. Install a newer pyiceberg, or undo what changed the "
            "table."
        ) from None
    except _FAILURES as error:
        location.forget()
        raise StorageError(
            f"The Iceberg table {location.name} could not be read or written: {_said(location, error)}. What is "
            "committed stays; what can be repeated is tried again. Check the catalogue, the storage, and the rights of "
            "this user."
        ) from None


def _said(location: CatalogTable, error: Exception) -> str:
    """In one line, without secrets and statements of SQL. No cause is kept beside it: its text may have them."""
    cause = getattr(error, "orig", None) or error
    return location.without_secrets(" ".join(f"{type(cause).__name__}: {cause}".split()))
