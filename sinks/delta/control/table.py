"""A Delta table, loaded at one version. Everything that is asked of it, and a commit on it, is of that version."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from time import time
from typing import Any, TypeVar

from deltalake import CommitProperties, DeltaTable, QueryBuilder, Schema, Transaction
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    SchemaMismatchError,
    TableNotFoundError,
)
from deltalake.transaction import AddAction

from onceward.connections.storage import Storage, StorageError
from onceward.sinks.delta.documents import DataFile, DeltaCommittable
from onceward.sinks.delta.location import TableLocation
from onceward.sinks.lake.control.tables import CommitRefusedError, NoTableError, PastCommit, UnsupportedTableError

__all__ = ["LoadedTable"]

T = TypeVar("T")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_UNSUPPORTED = "Unsupported table features"
"""In the library's message; the error is of the class that a refusal has, too."""

_LOOKS_BACK = 1_000
"""Versions. What is further back than this is not looked for."""


class LoadedTable:
    """A table at one version."""

    def __init__(self, location: TableLocation) -> None:
        """Load the newest version. Raises NoTableError, UnsupportedTableError, StorageError."""
        self._location = location
        self._table = _asking(location, lambda: DeltaTable(location.uri, storage_options=_options(location)))

    @property
    def id(self) -> str:
        """The id that the table gives itself."""
        return str(self._table.metadata().id)

    @property
    def uri(self) -> str:
        return self._location.uri

    @property
    def storage(self) -> Storage:
        return self._location.storage()

    @property
    def version(self) -> int:
        return self._table.version()

    @property
    def state(self) -> str:
        return f"version {self.version} of {self.uri}"

    @property
    def configuration(self) -> Mapping[str, str]:
        return self._table.metadata().configuration

    @property
    def partition_columns(self) -> tuple[str, ...]:
        return tuple(self._table.metadata().partition_columns)

    @property
    def writer_version(self) -> int:
        return self._table.protocol().min_writer_version

    @property
    def writer_features(self) -> tuple[str, ...]:
        return tuple(self._table.protocol().writer_features or ())

    def fields(self) -> list[Mapping[str, Any]]:
        """The columns as the table's log has them: ``name``, ``type``, ``nullable`` and ``metadata``."""
        found: list[Mapping[str, Any]] = json.loads(self._table.schema().to_json())["fields"]
        return found

    def arrow_schema(self) -> Any:
        """The columns as an Arrow schema of pyarrow."""
        import pyarrow as pa

        return pa.schema(self._table.schema().to_arrow())

    def transaction(self, app: str) -> int | None:
        """The version of an app transaction; None if there is none."""
        return _asking(self._location, lambda: self._table.transaction_version(app))

    def past_commits(self, job: str, sink: str) -> Iterator[PastCommit]:
        """See :meth:`LakeTable.past_commits`. Reads the log itself: the library's history counts from the newest entry,
        which may be later than this version."""
        newest_kept, removed = self.version, set[str]()
        for number in range(self.version, max(-1, self.version - _LOOKS_BACK), -1):
            entry = self.storage.read(f"_delta_log/{number:020}.json")
            if entry is None:  # cleaned up
                return
            actions = [*map(json.loads, entry.splitlines())]
            info: Mapping[str, Any] = next((one["commitInfo"] for one in actions if "commitInfo" in one), {})
            said = info.get("onceward", {})
            if (said.get("job"), said.get("sink")) == (job, sink) and "fence" not in said:
                added = {one["add"]["path"] for one in actions if "add" in one}
                yield PastCommit(int(said["checkpoint"]), number > newest_kept or not removed.isdisjoint(added))
            if info.get("operation") == "RESTORE" and number <= newest_kept:
                target = info.get("operationParameters", {}).get("version")
                if target is None:  # restored by time
                    removed |= {one["remove"]["path"] for one in actions if "remove" in one}
                else:
                    newest_kept = int(target)

    def file_names(self) -> frozenset[str]:
        """The names of all files of this version, without their folders."""
        return frozenset(uri.rpartition("/")[2] for uri in _asking(self._location, self._table.file_uris))

    def unfit(self, wanted: DeltaCommittable) -> Sequence[str]:
        """See :meth:`LakeTable.unfit`."""
        now = {str(one["name"]): one["type"] for one in self.fields()}
        return [
            f"column {name} " + (f"is {now[name]} now and was {kind}" if name in now else "is gone")
            for name, kind in wanted.columns.items()
            if now.get(name) != kind
        ]

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Read the rows of this version as Arrow batches of pyarrow. Raises as the constructor does."""
        import pyarrow as pa

        # It honours deletion vectors, which to_pyarrow_dataset refuses.
        query = QueryBuilder().register("rows", self._table)
        named = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
        reader = _asking(
            self._location, lambda: pa.RecordBatchReader.from_stream(query.execute(f"SELECT {named} FROM rows"))
        )
        while (batch := _asking(self._location, lambda: next(reader, None))) is not None:
            yield batch

    def add_columns(self, fields: Iterable[Mapping[str, Any]]) -> None:
        """Make the next version, with these columns as well. Does not try again. Raises as :meth:`commit` does."""
        schema = Schema.from_json(json.dumps({"type": "struct", "fields": list(fields)}))
        _asking(
            self._location,
            lambda: self._table.alter.add_columns(
                schema.fields, commit_properties=CommitProperties(max_commit_retries=0)
            ),
        )

    def commit(
        self,
        files: Iterable[DataFile],
        *,
        app: str,
        transaction: int,
        said: Mapping[str, str | int],
    ) -> str:
        """See :meth:`LakeTable.commit`."""
        made = self.version + 1
        actions: list[Any] = [
            AddAction(one.path, one.size, one.partition_values, one.modified_ms, True, one.stats) for one in files
        ]
        properties = CommitProperties(
            custom_metadata={"onceward": dict(said)},
            max_commit_retries=0,
            app_transactions=[Transaction(app, transaction, int(time() * 1000))],
        )
        schema = self._table.schema()
        partitions = list(self.partition_columns)
        _asking(
            self._location,
            lambda: self._table.create_write_transaction(
                actions, "append", schema, partitions, commit_properties=properties
            ),
        )
        # The library does not flush its entry: a table on a disk would lose it with the machine.
        self.storage.flush(f"_delta_log/{made:020}.json")
        return f"version {made} of {self.uri}"


def _options(location: TableLocation) -> dict[str, str] | None:
    """What the library needs of an object store. It creates a log entry there only if there is none of its name."""
    if location.options is None:
        return None
    return {**location.options.resolved(), "max_retries": "5", "retry_timeout": "30s"}


def _asking(location: TableLocation, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except TableNotFoundError as error:
        raise NoTableError(f"There is no Delta table at {location.uri} ({_said(location, error)}).") from None
    except (DeltaProtocolError, SchemaMismatchError) as error:
        raise _unsupported(location, error) from None
    except CommitFailedError as error:
        if _UNSUPPORTED in str(error):
            raise _unsupported(location, error) from None
        raise CommitRefusedError(
            f"A commit to the Delta table {location.uri} was refused, as after a commit of another program: "
            f"{_said(location, error)}. The table is looked at again before the next attempt."
        ) from None
    except (DeltaError, OSError, ValueError) as error:
        raise StorageError(
            f"The Delta table {location.uri} could not be read or written: {_said(location, error)}. What is committed "
            "stays; what can be repeated is tried again. Check the storage, its free space and the rights of this user."
        ) from None


def _unsupported(location: TableLocation, error: Exception) -> UnsupportedTableError:
    return UnsupportedTableError(
        f"The Delta table {location.uri} needs what deltalake {version('deltalake')} cannot do: "
        f"{_said(location, error)}. Nothing was written to it. Install a newer deltalake, or undo what changed the "
        "table."
    )


def _said(location: TableLocation, error: Exception) -> str:
    """In one line, without colours and secrets. No cause is kept beside it: its text may have them."""
    return location.without_secrets(" ".join(_COLOUR.sub("", str(error)).split()))
