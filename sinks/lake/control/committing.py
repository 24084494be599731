"""Commits a checkpoint to a table, or to several by one commit, and proves what has become of it.

Each attempt looks at one loaded state and commits on exactly that one. If another program has changed the table
meanwhile, the commit is refused, and the next attempt looks again: of two processes that commit the same committable at
the same time, one lands, and the other finds it. The libraries' own retries would commit it twice.

A committable is lost only by a fence: a commit without files, made when its files are gone, on the state that was
looked at. A commit of the files that had looked before is refused by it, and one that looks later finds no files.

Tables that are committed together wait for one another: while one of them is in doubt, the others get nothing. One that
is lost gets its fence by the same commit as the others their files, and its records come later.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from onceward.common.backoff import persist
from onceward.common.killpoints import KillPoint, kill_point
from onceward.connections.storage import StorageError
from onceward.protocol.values import Outcome, Settlement
from onceward.sinks.lake.control.going_back import lacks
from onceward.sinks.lake.control.staged import missing
from onceward.sinks.lake.control.tables import CommitRefusedError, LakeTable, UnsupportedTableError
from onceward.sinks.lake.control.transactions import Place, place_of
from onceward.sinks.lake.documents import LakeCommittable
from onceward.sinks.lake.identifiers import app_id

__all__ = ["Change", "Part", "commit", "outcome"]

Load: TypeAlias = Callable[[], LakeTable]
Wanted: TypeAlias = LakeCommittable[Any]
Part: TypeAlias = tuple[Load, Wanted]

_OFTEN = 10
"""Refusals in a row that are more than other programs' commits explain."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a commit adds to the state of a table that was looked at: the files of a committable, or a fence."""

    table: Any
    """A :class:`LakeTable`, of the sink's own class."""
    wanted: Wanted
    gone: Sequence[str]
    """The files that are gone. If there are any, a fence is added."""

    @property
    def files(self) -> Sequence[Any]:
        return () if self.gone else self.wanted.files

    @property
    def app(self) -> str:
        return app_id(self.wanted.job, self.wanted.sink, fence=bool(self.gone))

    @property
    def said(self) -> Mapping[str, str | int]:
        """What the table's history shows of it."""
        wanted = self.wanted
        said: dict[str, str | int] = {
            "job": wanted.job,
            "sink": wanted.sink,
            "generation": wanted.generation,
            "checkpoint": wanted.checkpoint,
        }
        return {**said, "fence": "its files are gone"} if self.gone else said

    def settled(self, made: str) -> Settlement:
        """What it proves once it is ``made``."""
        if not self.gone:
            return _settled(self.wanted, Outcome.COMMITTED, made)
        return _settled(
            self.wanted,
            Outcome.LOST,
            f"{len(self.gone)} of its {len(self.wanted.files)} files are gone or not as they were written, the first is"
            f" {self.gone[0]}; {made} makes a later commit impossible. What removes files that no state of the table "
            "has, such as a VACUUM, deletes files that wait for longer than it retains them",
        )


def outcome(load: Load, wanted: Wanted) -> Settlement:
    """What the table proves now. Changes nothing. Raises StorageError and UnsupportedTableError."""
    table = load()
    found = _proved(table, wanted)
    return found or _settled(wanted, Outcome.IN_DOUBT, f"{table.state} has neither its commit nor a later one")


def commit(
    parts: Sequence[Part],
    give_up: Callable[[], bool],
    failed: Callable[[StorageError], None],
    write: Callable[[Sequence[Change]], Sequence[str]] | None = None,
) -> Sequence[Settlement]:
    """Commit until the outcome of each part is proved; empty if ``give_up()`` ends it before.

    :param failed: hears of each attempt that proved nothing.
    :param write: makes all changes by one commit, and returns what was made, for people; for more than one part.
    """
    refused = 0

    def not_proved(error: StorageError) -> None:
        """Refused or not answered: the next look shows whether it was made."""
        nonlocal refused
        refused = refused + 1 if isinstance(error, CommitRefusedError) else 0
        if refused not in range(1, _OFTEN):
            failed(error)

    def attempt() -> Sequence[Settlement]:
        return _attempt(parts, write or (lambda changes: [*map(_write, changes)]))

    try:
        return persist(attempt, StorageError, not_proved, give_up, first=0.01, longest=2.0) or ()
    except UnsupportedTableError as error:
        return [_settled(wanted, Outcome.IN_DOUBT, str(error)) for _, wanted in parts]


def _attempt(parts: Sequence[Part], write: Callable[[Sequence[Change]], Sequence[str]]) -> Sequence[Settlement]:
    looked = [_look(load, wanted) for load, wanted in parts]
    changes = [one for one in looked if isinstance(one, Change)]
    doubts = [one for one in looked if isinstance(one, Settlement) and one.outcome is Outcome.IN_DOUBT]
    if doubts:
        waits = f"it waits for a table that it is committed together with: {doubts[0].evidence}"
        return [_settled(one.wanted, Outcome.IN_DOUBT, waits) if isinstance(one, Change) else one for one in looked]
    made = iter(_made(changes, write) if changes else ())
    return [one.settled(next(made)) if isinstance(one, Change) else one for one in looked]


def _made(changes: Sequence[Change], write: Callable[[Sequence[Change]], Sequence[str]]) -> Sequence[str]:
    kill_point(KillPoint.TABLE_BEFORE_COMMIT)
    made = write(changes)
    kill_point(KillPoint.TABLE_AFTER_COMMIT)
    return made


def _look(load: Load, wanted: Wanted) -> Settlement | Change:
    """What is proved of a committable, or else what is to be committed."""
    try:
        table = load()
        found = _proved(table, wanted)
    except UnsupportedTableError as error:
        return _settled(wanted, Outcome.IN_DOUBT, str(error))
    if found is not None:
        return found
    if changed := table.unfit(wanted):
        return _settled(
            wanted,
            Outcome.IN_DOUBT,
            f"its files do not fit the table any more, so they were not added: {'; '.join(changed)}. They wait "
            "unchanged: undo that and let the job commit, or give the records up",
        )
    return Change(table=table, wanted=wanted, gone=missing(table.storage, wanted.files))


def _write(change: Change) -> str:
    table: LakeTable = change.table
    return table.commit(change.files, app=change.app, transaction=change.wanted.transaction, said=change.said)


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
    if wanted.after is not None and (gone := lacks(table, wanted.job, wanted.sink, wanted.after)):
        return _settled(
            wanted,
            Outcome.IN_DOUBT,
            f"{gone} Before one of these two, give up what checkpoint {wanted.checkpoint} has staged: onceward resolve "
            f"{wanted.job} --sink {wanted.sink} --give-up all --reason 'NAME: REASON'",
        )
    return None


def _settled(wanted: Wanted, found: Outcome, evidence: str) -> Settlement:
    return Settlement(slot=wanted.slot, outcome=found, evidence=evidence)
