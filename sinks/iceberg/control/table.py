"""An Iceberg table, loaded at one state. Everything that is asked of it, and a commit on it, is of that state."""

import json
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import CommitTableRequest, Namespace, Table, TableIdentifier, TableProperties, Transaction
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertTableUUID,
    UpdatesAndRequirements,
    UpdateTableMetadata,
)
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, PrimitiveType

from onceward.connections.storage import Storage, StorageError
from onceward.sinks.iceberg.catalog import CatalogTable
from onceward.sinks.iceberg.control.asking import asking
from onceward.sinks.iceberg.documents import IcebergCommittable, IcebergFile
from onceward.sinks.iceberg.rest import BoundedRestCatalog
from onceward.sinks.lake.control.committing import Change
from onceward.sinks.lake.control.tables import PastCommit, UnsupportedTableError
from onceward.sinks.lake.location import TableLocation

__all__ = ["NEWEST_FORMAT", "LoadedTable", "columns_of"]

NEWEST_FORMAT = 2
"""The newest format version of tables that the library writes: apache/iceberg-python#1551."""

_PROMOTED = {("int", "long"), ("float", "double")}


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
        self._table: Table = asking(location, lambda: location.catalog().load_table(location.name))
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

    def past_commits(self, job: str, sink: str) -> Iterator[PastCommit]:
        """See :meth:`LakeTable.past_commits`. A snapshot that expired is not shown."""
        snapshots = {one.snapshot_id: one for one in self._table.metadata.snapshots}
        kept, at = set[int](), self._table.metadata.current_snapshot_id
        while at is not None and at in snapshots:
            kept.add(at)
            at = snapshots[at].parent_snapshot_id
        # Where snapshots before these have expired, it is not known which of the others were before them.
        since = min((snapshots[one].timestamp_ms for one in kept), default=0) if at is not None else 0
        for one in sorted(snapshots.values(), key=lambda one: one.timestamp_ms, reverse=True):
            said = one.summary.additional_properties if one.summary is not None else {}
            if (said.get("onceward.job"), said.get("onceward.sink")) == (job, sink) and "onceward.fence" not in said:
                undone = one.snapshot_id not in kept and one.timestamp_ms > since
                yield PastCommit(int(said["onceward.checkpoint"]), undone)

    def file_names(self) -> frozenset[str]:
        """See :meth:`LakeTable.file_names`."""
        return frozenset(asking(self._location, lambda: [*self._names()]))

    def unfit(self, wanted: IcebergCommittable) -> Sequence[str]:
        """See :meth:`LakeTable.unfit`. Columns may have been added, renamed, dropped or widened."""
        return [*self._changes(wanted)]

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Read the rows of this state as Arrow batches of pyarrow. Raises as the constructor does."""
        snapshot = self._table.current_snapshot()
        if snapshot is None:
            return
        scan = self._table.scan(selected_fields=tuple(columns), snapshot_id=snapshot.snapshot_id)
        reader = asking(self._location, scan.to_arrow_batch_reader)
        while (batch := asking(self._location, lambda: next(reader, None))) is not None:
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
        self._change(lambda one: self._append(one, files, app, transaction, said))
        self._flush()
        return self.state

    def request(self, changes: Iterable[Change]) -> CommitTableRequest:
        """Return what the catalogue is asked for changes of this table, to be sent beside those of others. Raises as
        :meth:`commit` does."""

        def prepare() -> CommitTableRequest:
            prepared = _Unsent(self._table)
            for one in changes:
                self._append(prepared, one.files, one.app, one.wanted.transaction, one.said)
            return prepared.request()

        return asking(self._location, prepare)

    def send(self, requests: Sequence[CommitTableRequest]) -> None:
        """Ask this table's catalogue, which must be one that can, to change several tables by one commit. Raises as
        :meth:`commit` does."""
        catalogue = self._location.catalog()
        if not isinstance(catalogue, BoundedRestCatalog):
            raise UnsupportedTableError(
                f"The Iceberg table {self.name} is in a catalogue that is reached by {type(catalogue).__name__}, and "
                "is to be committed together with others, which only a REST catalogue can. Nothing was written to it. "
                "Reach it by REST."
            )
        asking(self._location, lambda: catalogue.commit_tables(requests))

    def endpoints(self) -> Collection[str] | None:
        """What the catalogue says that it can, empty if it does not say; None if it is no REST catalogue. Raises as the
        constructor does."""
        catalogue = self._location.catalog()
        if not isinstance(catalogue, BoundedRestCatalog):
            return None
        return asking(self._location, catalogue.endpoints)

    def shown(self, app: str, transaction: int) -> str:
        """Return the present state, for people, once it has a number that was committed. Raises StorageError if it has
        another one, and as the constructor does."""
        now = LoadedTable(self._location)
        if now.transaction(app) != transaction:
            raise StorageError(
                f"The catalogue has answered that {self.name} was changed together with other tables, and {now.state} "
                "does not show it. It is looked at again."
            )
        now.storage.flush_all()
        return now.state

    def _append(
        self,
        one: Transaction,
        files: Iterable[IcebergFile],
        app: str,
        transaction: int,
        said: Mapping[str, str | int],
    ) -> None:
        one.set_properties({app: str(transaction)})
        summary = {f"onceward.{key}": str(value) for key, value in said.items()}
        with one.update_snapshot(snapshot_properties=summary).fast_append() as update:
            for file in files:
                update.append_data_file(self._data_file(file))
        with _Unchanged(one):
            pass

    def _change(self, change: Callable[[Transaction], None]) -> None:
        """Commit a change, on this state alone: the library's retries would add the files to a state that was not
        looked at. They are switched off in this copy of the table, and not for other programs."""
        properties = {**self._table.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
        self._table.metadata = self._table.metadata.model_copy(update={"properties": properties})

        def commit() -> None:
            transaction = self._table.transaction()
            change(transaction)
            transaction.commit_transaction()

        asking(self._location, commit)

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
            manifests = asking(self._location, lambda: snapshot.manifests(self._table.io))
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


class _Unsent(Transaction):
    """Changes that are sent beside those of other tables."""

    def request(self) -> CommitTableRequest:
        *namespace, name = self._table.name()
        return CommitTableRequest(
            identifier=TableIdentifier(namespace=Namespace(namespace), name=name),
            requirements=(*self._requirements, AssertTableUUID(uuid=self.table_metadata.table_uuid)),
            updates=self._updates,
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
