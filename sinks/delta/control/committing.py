"""Commits a checkpoint to a table, and proves what has become of it.

Each attempt looks at one loaded version and commits on exactly that one. If another program made a version meanwhile,
the commit is refused, and the next attempt looks again: of two processes that commit the same committable at the same
time, one lands, and the other finds it. The library's own retries would commit it twice.

A committable is lost only by a fence: a commit without files, made when its files are gone, on the version that was
looked at. A commit of the files that had looked before is refused by it, and one that looks later finds no files.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onceward.common.backoff import Backoff
from onceward.connections.storage import Storage, StorageError
from onceward.protocol.values import Outcome, Settlement
from onceward.sinks.delta.control.table import CommitRefusedError, LoadedTable, UnsupportedTableError
from onceward.sinks.delta.control.transactions import Place, place_of
from onceward.sinks.delta.documents import DeltaCommittable
from onceward.sinks.delta.identifiers import app_id
from onceward.sinks.delta.location import TableLocation

__all__ = ["commit", "outcome"]

_OFTEN = 10
"""Refusals in a row that are more than other programs' commits explain."""


def outcome(location: TableLocation, wanted: DeltaCommittable) -> Settlement:
    """What the table proves now. Changes nothing. Raises StorageError."""
    table = LoadedTable(location)
    found = _proved(table, wanted)
    if found is not None and found.outcome is Outcome.COMMITTED:
        location.storage().flush_all()  # the process that committed it may have ended before it did so
    return found or _settled(
        wanted, Outcome.IN_DOUBT, f"version {table.version} of {wanted.uri} has neither its commit nor a later one"
    )


def commit(
    location: TableLocation,
    wanted: DeltaCommittable,
    give_up: Callable[[], bool],
    failed: Callable[[StorageError], None],
) -> Settlement | None:
    """Commit until the outcome is proved; None if ``give_up()`` ends it before. ``failed`` hears of each attempt that
    proved nothing."""
    storage, backoff, refused = location.storage(), Backoff(first=0.01, longest=2.0), 0
    while True:
        try:
            return _attempt(location, storage, wanted)
        except UnsupportedTableError as error:
            return _settled(wanted, Outcome.IN_DOUBT, str(error))
        except StorageError as error:  # refused or not answered: the next look shows whether it was made
            refused = refused + 1 if isinstance(error, CommitRefusedError) else 0
            if refused not in range(1, _OFTEN):
                failed(error)
        if give_up():
            return None
        time.sleep(backoff.next())


def _attempt(location: TableLocation, storage: Storage, wanted: DeltaCommittable) -> Settlement:
    table = LoadedTable(location)
    found = _proved(table, wanted)
    if found is not None:
        if found.outcome is Outcome.COMMITTED:
            storage.flush_all()  # the process that committed it may have ended before it did so
        return found
    if changed := _changed_columns(table, wanted.columns):
        return _settled(
            wanted,
            Outcome.IN_DOUBT,
            f"its files do not fit the table any more, so they were not added: {'; '.join(changed)}. They wait "
            "unchanged: give the columns back their types and let the job commit, or give the records up",
        )
    gone = [one.path for one in wanted.files if storage.size(one.path) != one.size]
    if gone:
        _write(table, wanted, fence=True)
        _make_durable(storage, table.version + 1)
        return _settled(
            wanted,
            Outcome.LOST,
            f"{len(gone)} of its {len(wanted.files)} files are gone or not as they were written, the first is {gone[0]}"
            f"; version {table.version + 1} of the table makes a later commit impossible. VACUUM deletes files that "
            "wait for longer than its retention",
        )
    _write(table, wanted, fence=False)
    _make_durable(storage, table.version + 1)
    return _settled(wanted, Outcome.COMMITTED, f"version {table.version + 1} of {wanted.uri}")


def _write(table: LoadedTable, wanted: DeltaCommittable, *, fence: bool) -> None:
    said: dict[str, str | int] = {
        "job": wanted.job,
        "sink": wanted.sink,
        "generation": wanted.generation,
        "checkpoint": wanted.checkpoint,
    }
    table.commit(
        () if fence else wanted.files,
        app=app_id(wanted.job, wanted.sink, fence=fence),
        transaction=wanted.transaction,
        said={**said, "fence": "its files are gone"} if fence else said,
    )


def _proved(table: LoadedTable, wanted: DeltaCommittable) -> Settlement | None:
    """What a loaded version proves; None if ``wanted`` can be committed."""
    if table.id != wanted.table_id:
        return _settled(
            wanted,
            Outcome.IN_DOUBT,
            f"its files are in the table with id {wanted.table_id}, and the table at {wanted.uri} now has id {table.id}"
            "; nothing was asked or written there",
        )
    place = place_of(wanted.transaction, table.transaction(app_id(wanted.job, wanted.sink)))
    if place is Place.COMMITTED:
        return _settled(wanted, Outcome.COMMITTED, f"version {table.version} of {wanted.uri} has its app transaction")
    if table.transaction(app_id(wanted.job, wanted.sink, fence=True)) == wanted.transaction:
        return _settled(
            wanted, Outcome.LOST, f"its files were gone, and version {table.version} has the fence against its commit"
        )
    if place is Place.PASSED:
        names = table.file_names()
        if all(one.path in names for one in wanted.files):
            return _settled(wanted, Outcome.COMMITTED, f"version {table.version} of {wanted.uri} has its files")
        return _settled(
            wanted,
            Outcome.IN_DOUBT,
            f"the table has a later commit of {wanted.sink} of job {wanted.job}, and not its files in version "
            f"{table.version}: it was never committed, or its files were rewritten or removed since. It cannot be "
            f"committed any more. The table's history may show checkpoint {wanted.checkpoint}",
        )
    return None


def _changed_columns(table: LoadedTable, columns: Mapping[str, Any]) -> Sequence[str]:
    now = {str(one["name"]): one["type"] for one in table.fields()}
    return [
        f"column {name} " + (f"is {now[name]} now and was {kind}" if name in now else "is gone")
        for name, kind in columns.items()
        if now.get(name) != kind
    ]


def _make_durable(storage: Storage, version: int) -> None:
    """Flush the log's entry: the library does not, and a table on a disk would lose it with the machine."""
    storage.flush(f"_delta_log/{version:020}.json")


def _settled(wanted: DeltaCommittable, found: Outcome, evidence: str) -> Settlement:
    return Settlement(slot=wanted.slot, outcome=found, evidence=evidence)
