"""Commits a checkpoint to a table, and proves what has become of it.

Each attempt looks at one loaded state and commits on exactly that one. If another program has changed the table
meanwhile, the commit is refused, and the next attempt looks again: of two processes that commit the same committable at
the same time, one lands, and the other finds it. The libraries' own retries would commit it twice.

A committable is lost only by a fence: a commit without files, made when its files are gone, on the state that was
looked at. A commit of the files that had looked before is refused by it, and one that looks later finds no files.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from onceward.common.backoff import persist
from onceward.connections.storage import StorageError
from onceward.protocol.values import Outcome, Settlement
from onceward.sinks.lake.control.staged import missing
from onceward.sinks.lake.control.tables import CommitRefusedError, LakeTable, UnsupportedTableError
from onceward.sinks.lake.control.transactions import Place, place_of
from onceward.sinks.lake.documents import LakeCommittable
from onceward.sinks.lake.identifiers import app_id

__all__ = ["commit", "outcome"]

Load: TypeAlias = Callable[[], LakeTable]
Wanted: TypeAlias = LakeCommittable[Any]

_OFTEN = 10
"""Refusals in a row that are more than other programs' commits explain."""


def outcome(load: Load, wanted: Wanted) -> Settlement:
    """What the table proves now. Changes nothing. Raises StorageError and UnsupportedTableError."""
    table = load()
    found = _proved(table, wanted)
    return found or _settled(wanted, Outcome.IN_DOUBT, f"{table.state} has neither its commit nor a later one")


def commit(
    load: Load,
    wanted: Wanted,
    give_up: Callable[[], bool],
    failed: Callable[[StorageError], None],
) -> Settlement | None:
    """Commit until the outcome is proved; None if ``give_up()`` ends it before. ``failed`` hears of each attempt that
    proved nothing."""
    refused = 0

    def not_proved(error: StorageError) -> None:
        """Refused or not answered: the next look shows whether it was made."""
        nonlocal refused
        refused = refused + 1 if isinstance(error, CommitRefusedError) else 0
        if refused not in range(1, _OFTEN):
            failed(error)

    try:
        return persist(lambda: _attempt(load(), wanted), StorageError, not_proved, give_up, first=0.01, longest=2.0)
    except UnsupportedTableError as error:
        return _settled(wanted, Outcome.IN_DOUBT, str(error))


def _attempt(table: LakeTable, wanted: Wanted) -> Settlement:
    found = _proved(table, wanted)
    if found is not None:
        return found
    if changed := table.unfit(wanted):
        return _settled(
            wanted,
            Outcome.IN_DOUBT,
            f"its files do not fit the table any more, so they were not added: {'; '.join(changed)}. They wait "
            "unchanged: undo that and let the job commit, or give the records up",
        )
    gone = missing(table.storage, wanted.files)
    if gone:
        made = _write(table, wanted, fence=True)
        return _settled(
            wanted,
            Outcome.LOST,
            f"{len(gone)} of its {len(wanted.files)} files are gone or not as they were written, the first is {gone[0]}"
            f"; {made} makes a later commit impossible. What removes files that no state of the table has, such as a "
            "VACUUM, deletes files that wait for longer than it retains them",
        )
    return _settled(wanted, Outcome.COMMITTED, _write(table, wanted, fence=False))


def _write(table: LakeTable, wanted: Wanted, *, fence: bool) -> str:
    said: dict[str, str | int] = {
        "job": wanted.job,
        "sink": wanted.sink,
        "generation": wanted.generation,
        "checkpoint": wanted.checkpoint,
    }
    return table.commit(
        () if fence else wanted.files,
        app=app_id(wanted.job, wanted.sink, fence=fence),
        transaction=wanted.transaction,
        said={**said, "fence": "its files are gone"} if fence else said,
    )


def _proved(table: LakeTable, wanted: Wanted) -> Settlement | None:
    """What a loaded state proves; None if ``wanted`` can be committed."""
    if table.id != wanted.table_id:
        return _settled(
            wanted,
            Outcome.IN_DOUBT,
            f"its files are in the table with id {wanted.table_id}, and the table at {wanted.uri} now has id {table.id}"
            "; nothing was asked or written there",
        )
    place = place_of(wanted.transaction, table.transaction(app_id(wanted.job, wanted.sink)))
    if place is Place.COMMITTED:
        table.storage.flush_all()  # the process that committed it may have ended before it did so
        return _settled(wanted, Outcome.COMMITTED, f"{table.state} has its number")
    if table.transaction(app_id(wanted.job, wanted.sink, fence=True)) == wanted.transaction:
        return _settled(
            wanted, Outcome.LOST, f"its files were gone, and {table.state} has the fence against its commit"
        )
    if place is Place.PASSED:
        names = table.file_names()
        if all(name in names for name in wanted.names):
            return _settled(wanted, Outcome.COMMITTED, f"{table.state} has its files")
        return _settled(
            wanted,
            Outcome.IN_DOUBT,
            f"the table has a later commit of {wanted.sink} of job {wanted.job}, and not its files in {table.state}: it"
            " was never committed, or its files were rewritten or removed since. It cannot be committed any more. The "
            f"table's history may show checkpoint {wanted.checkpoint}",
        )
    return None


def _settled(wanted: Wanted, found: Outcome, evidence: str) -> Settlement:
    return Settlement(slot=wanted.slot, outcome=found, evidence=evidence)
