"""A Delta table as a system: in the driver, in a command, or in the coordinator for a job without a driver.

It keeps no state between calls but its hold on a claim, and its id.
"""

import time
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Self

from onceward.common.backoff import Backoff
from onceward.common.errors import HaltedError
from onceward.common.links import Links
from onceward.connections.claim_files import ClaimFiles
from onceward.connections.storage import StorageError
from onceward.protocol.committing import OpenTransaction, Place, PreCommitted, System
from onceward.protocol.values import Author, Claim, Committable, JobName, Outcome, Settlement
from onceward.sinks.delta.control import committing
from onceward.sinks.delta.control.staged import delete_files, notes, remove_notes
from onceward.sinks.delta.control.table import LoadedTable, UnsupportedTableError
from onceward.sinks.delta.documents import DeltaCommittable
from onceward.sinks.delta.identifiers import CLAIMS
from onceward.sinks.delta.location import TableLocation

__all__ = ["DeltaSystem"]


class DeltaSystem(System):
    """One table. Thread-safe, but for a claim, which one thread takes and renews.

    All methods that ask the table or its directory raise StorageError if they get no answer.
    """

    def __init__(
        self,
        location: TableLocation,
        *,
        generation: Callable[[], int | None] = lambda: None,
        links: Links | None = None,
    ) -> None:
        """``generation`` returns the generation granted to this process, once granted; nothing newer is deleted."""
        self._location = location
        self._storage = location.storage()
        self._generation = generation
        self._links = links or Links()
        self._claims = ClaimFiles(self._storage, CLAIMS)
        self._id = ""

    @classmethod
    def open(cls, location: TableLocation, *, generation: Callable[[], int | None] = lambda: None) -> Self:
        """Return a system that reads the table when it is needed."""
        return cls(location, generation=generation)

    def id(self) -> str:
        """See :meth:`System.id`."""
        if not self._id:
            self._id = LoadedTable(self._location).id
        return self._id

    def place(self, committable: Committable) -> Place:
        """See :meth:`System.place`. Raises HaltedError for an unreadable document."""
        parsed = DeltaCommittable.of(committable)
        return Place(id=parsed.table_id, name=parsed.uri)

    def check(self, author: Author, committables: Sequence[Committable]) -> None:
        """See :meth:`System.check`. Also raises HaltedError for an unreadable document."""
        for committable in committables:
            DeltaCommittable.own(committable, author)

    def commit(
        self,
        author: Author,
        committables: Sequence[Committable],
        *,
        give_up: Callable[[], bool] = lambda: False,
        known: PreCommitted | None = None,
    ) -> Sequence[Settlement]:
        """See :meth:`System.commit`. Raises HaltedError before anything is read if a document is unreadable or not the
        author's."""
        wanted = [DeltaCommittable.own(committable, author) for committable in committables]
        settled = (self._commit(one, give_up) for one in wanted)
        return [one for one in settled if one is not None]

    def _commit(self, wanted: DeltaCommittable, give_up: Callable[[], bool]) -> Settlement | None:
        settlement = committing.commit(self._location, wanted, give_up, self._failed)
        if settlement is None:
            return None
        if settlement.outcome is Outcome.COMMITTED and not self._retry(
            lambda: remove_notes(self._storage, wanted.job, [one.path for one in wanted.files]), give_up
        ):
            return None
        return settlement

    def abort(self, author: Author, committables: Sequence[Committable]) -> None:
        """See :meth:`System.abort`. Raises HaltedError as :meth:`commit` does, and if one turns out committed."""
        for wanted in [DeltaCommittable.own(committable, author) for committable in committables]:
            found = committing.outcome(self._location, wanted)
            if found.outcome is Outcome.COMMITTED:
                raise HaltedError(
                    f"Checkpoint {wanted.checkpoint} of job {wanted.job} was aborted, and its files are in the table "
                    f"({found.evidence}). Nothing was deleted. Find out which process has committed it, and which "
                    "store is right."
                )
            if wanted.table_id == LoadedTable(self._location).id:
                paths = [one.path for one in wanted.files]
                delete_files(self._storage, wanted.job, paths, self._file_names)

    def outcome(self, committable: Committable) -> Settlement:
        """See :meth:`System.outcome`."""
        wanted = DeltaCommittable.of(committable)
        try:
            return committing.outcome(self._location, wanted)
        except (StorageError, UnsupportedTableError) as error:
            return Settlement(slot=wanted.slot, outcome=Outcome.IN_DOUBT, evidence=str(error))

    def describe(self, committable: Committable) -> str:
        """See :meth:`System.describe`."""
        parsed = DeltaCommittable.of(committable)
        return (
            f"checkpoint {parsed.checkpoint} of table {parsed.uri}: {parsed.records} records in {len(parsed.files)} "
            f"files from {parsed.input_text}"
        )

    def leftovers(self, job: JobName, *, keep: Collection[Committable] = ()) -> Sequence[str]:
        """See :meth:`System.leftovers`: names of files that no settled checkpoint has."""
        kept = {one.path for committable in keep for one in DeltaCommittable.of(committable).files}
        newest = self._generation()
        return [
            str(name)
            for name in notes(self._storage, job)
            if str(name) not in kept and (newest is None or name.generation <= newest)
        ]

    def transactions(self, job: JobName) -> Sequence[OpenTransaction]:
        """See :meth:`System.transactions`: none, because readers wait for nothing here."""
        return ()

    def sweep(
        self,
        job: JobName,
        *,
        keep: Collection[Committable] = (),
        staying: Collection[str] = (),
        known: Sequence[PreCommitted] = (),
    ) -> Sequence[str]:
        """See :meth:`System.sweep`. Deletes nothing that the table has, and nothing of a newer generation."""
        swept = self.leftovers(job, keep=keep)
        delete_files(self._storage, job, swept, self._file_names)
        return swept

    def read_claim(self, job: JobName, *, certain: bool = False) -> Claim | None:
        """See :meth:`System.read_claim`. Raises HaltedError if it is unreadable."""
        LoadedTable(self._location)  # raises where there is no table, as on a disk that is not mounted
        return self._claims.read(job)

    def take_claim(self, job: JobName, claim: Claim, seen: Collection[Claim]) -> None:
        """See :meth:`System.take_claim`. Also raises HaltedError for an unreadable claim."""
        self._claims.take(job, claim, seen)

    def renew_claim(
        self, claim: Claim, *, give_up: Callable[[], bool] = lambda: False, known: PreCommitted | None = None
    ) -> bool:
        """See :meth:`System.renew_claim`. Also raises HaltedError for an unreadable claim."""
        return self._retry(lambda: self._claims.renew(claim), give_up)

    def forget(self, job: JobName, last: Claim) -> None:
        """See :meth:`System.forget`. A file without a claim stays, see ``claim_files.py``."""
        found = [str(name) for name in notes(self._storage, job) if name.generation <= last.generation]
        delete_files(self._storage, job, found, self._file_names)
        self._claims.forget(job, last)

    def longest_open(self) -> timedelta:
        """See :meth:`System.longest_open`: nothing here is open for a reader."""
        return timedelta(0)

    def close(self) -> None:
        """Nothing is open between calls."""

    def _retry(self, call: Callable[[], None], give_up: Callable[[], bool]) -> bool:
        backoff = Backoff(first=0.05, longest=2.0)
        while True:
            try:
                call()
            except StorageError as error:
                self._failed(error)
            else:
                self._links.worked(self._link)
                return True
            if give_up():
                return False
            time.sleep(backoff.next())

    def _file_names(self) -> Collection[str]:
        return LoadedTable(self._location).file_names()

    @property
    def _link(self) -> str:
        return f"Delta table {self._location.uri}"

    def _failed(self, error: StorageError) -> None:
        self._links.failed(self._link, error, waiting="what is completed waits for its commit")
