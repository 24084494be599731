"""A table as a system: in the driver, in a command, or in the coordinator for a job without a driver.

It keeps no state between calls but its hold on a claim, its id, and what it has proved last.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import Any, ClassVar

from onceward.common.backoff import persist
from onceward.common.errors import HaltedError
from onceward.common.links import Links
from onceward.connections.claim_files import ClaimFiles
from onceward.connections.storage import Storage, StorageError
from onceward.protocol.committing import OpenTransaction, Place, PreCommitted, System
from onceward.protocol.values import Author, Claim, Committable, JobName, Outcome, Settlement
from onceward.sinks.lake.control import committing
from onceward.sinks.lake.control.going_back import lacks
from onceward.sinks.lake.control.staged import delete_files, notes, remove_notes
from onceward.sinks.lake.control.tables import LakeTable, UnsupportedTableError
from onceward.sinks.lake.documents import Before, LakeCommittable
from onceward.sinks.lake.identifiers import CLAIMS

__all__ = ["LakeSystem"]


class LakeSystem(System):
    """One table. Thread-safe, but for a claim, which one thread takes and renews.

    All methods that ask the table or its directory raise StorageError if they get no answer.
    """

    committable: ClassVar[type[LakeCommittable[Any]]]
    folder: ClassVar[str]
    """Of the table's data files, relative to the table; empty for none."""

    def __init__(
        self, name: str, *, generation: Callable[[], int | None] = lambda: None, links: Links | None = None
    ) -> None:
        """``name``: what people call the table, such as ``Delta table /data/orders``. ``generation`` returns the
        generation granted to this process, once granted; nothing newer is deleted."""
        self._name = name
        self._generation = generation
        self._links = links or Links()
        self._id = ""
        self._last: dict[tuple[str, str], Before] = {}
        """By job and sink: the newest commit that this object has proved."""

    @abstractmethod
    def load(self) -> LakeTable:
        """Load the table's present state. Raises NoTableError, UnsupportedTableError, StorageError."""

    @abstractmethod
    def open_storage(self) -> Storage:
        """Return the table's directory. Raises StorageError if it must be asked for and is not answered."""

    @cached_property
    def _storage(self) -> Storage:
        return self.open_storage()

    @cached_property
    def _claims(self) -> ClaimFiles:
        return ClaimFiles(self._storage, CLAIMS)

    def id(self) -> str:
        """See :meth:`System.id`."""
        if not self._id:
            self._id = self.load().id
        return self._id

    def place(self, committable: Committable) -> Place:
        """See :meth:`System.place`. Raises HaltedError for an unreadable document."""
        parsed = self.committable.of(committable)
        return Place(id=parsed.table_id, name=parsed.uri)

    def check(self, author: Author, committables: Sequence[Committable]) -> None:
        """See :meth:`System.check`. Also raises HaltedError for an unreadable document."""
        for committable in committables:
            self.committable.own(committable, author)

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
        settled = []
        for one in [self.to_commit(committable, author) for committable in committables]:
            found = committing.commit([(self.load, one)], give_up, self._failed)
            settled += [each for each in found if self.has_ended(one, each, give_up)]
        return settled

    def to_commit(self, committable: Committable, author: Author) -> LakeCommittable[Any]:
        """Return what it says; it comes after what this object has proved last. Raises HaltedError."""
        wanted = self.committable.own(committable, author)
        known = [one for one in (wanted.after, self.last_commit(wanted.job, wanted.sink)) if one is not None]
        return replace(wanted, after=max(known, key=lambda one: one.transaction, default=None))

    def has_ended(self, wanted: LakeCommittable[Any], found: Settlement, give_up: Callable[[], bool]) -> bool:
        """Remove what is kept for a committable until it is committed; return False if ``give_up`` ends that."""
        if found.outcome is not Outcome.COMMITTED:
            return True
        self._last[wanted.job, wanted.sink] = wanted.before
        return self._retry(lambda: remove_notes(self._storage, wanted.job, wanted.names), give_up)

    def last_commit(self, job: str, sink: str) -> Before | None:
        """The newest commit that this object has proved."""
        return self._last.get((job, sink))

    def confirm(self, committables: Sequence[Committable]) -> None:
        """See :meth:`System.confirm`. Also raises StorageError and UnsupportedTableError."""
        # a sink of another kind, or to another table, may have had this name
        for last in [self.committable.of(one) for one in committables if one.document.kind == self.committable.KIND]:
            table = self.load()
            if table.uri != last.uri:
                continue
            if table.id != last.table_id:
                raise HaltedError(
                    f"Checkpoint {last.checkpoint} of job {last.job} was committed to the table {last.uri} with id "
                    f"{last.table_id}, and the table there now has id {table.id}: it was dropped and created again. "
                    "Nothing was written to it. Put the former table back and start the job. Or give the sink another "
                    "name, to write only what is new to this one. Or write again what came after a checkpoint, into all"
                    f" outputs of the job: onceward restore {last.job} --from CHECKPOINT --reason 'NAME: REASON'."
                )
            if gone := lacks(table, last.job, last.sink, last.before):
                raise HaltedError(gone)
            self._last[last.job, last.sink] = last.before

    def abort(self, author: Author, committables: Sequence[Committable]) -> None:
        """See :meth:`System.abort`. Raises HaltedError as :meth:`commit` does, and if one turns out committed."""
        for wanted in [self.committable.own(committable, author) for committable in committables]:
            found = committing.outcome(self.load, wanted)
            if found.outcome is Outcome.COMMITTED:
                raise HaltedError(
                    f"Checkpoint {wanted.checkpoint} of job {wanted.job} was aborted, and its files are in the table "
                    f"({found.evidence}). Nothing was deleted. Find out which process has committed it, and which "
                    "store is right."
                )
            if wanted.table_id == self.load().id:
                self._delete(wanted.job, wanted.names)

    def outcome(self, committable: Committable) -> Settlement:
        """See :meth:`System.outcome`."""
        wanted = self.committable.of(committable)
        try:
            return committing.outcome(self.load, wanted)
        except (StorageError, UnsupportedTableError) as error:
            return Settlement(slot=wanted.slot, outcome=Outcome.IN_DOUBT, evidence=str(error))

    def describe(self, committable: Committable) -> str:
        """See :meth:`System.describe`."""
        parsed = self.committable.of(committable)
        return (
            f"checkpoint {parsed.checkpoint} of table {parsed.uri}: {parsed.records} records in {len(parsed.files)} "
            f"files from {parsed.input_text}"
        )

    def leftovers(self, job: JobName, *, keep: Collection[Committable] = ()) -> Sequence[str]:
        """See :meth:`System.leftovers`: names of files that no settled checkpoint has."""
        kept = {name for committable in keep for name in self.committable.of(committable).names}
        newest = self._generation()
        return [
            str(name)
            for name in notes(self._storage, job)
            if str(name) not in kept and (newest is None or name.generation <= newest)
        ]

    def transactions(self, job: JobName) -> Sequence[OpenTransaction]:
        """See :meth:`System.transactions`: none, because readers wait for nothing here."""
        return ()

    def jobs(self) -> Sequence[JobName]:
        """See :meth:`System.jobs`."""
        return self._claims.jobs()

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
        self._delete(job, swept)
        return swept

    def read_claim(self, job: JobName, *, certain: bool = False) -> Claim | None:
        """See :meth:`System.read_claim`. Raises HaltedError if it is unreadable."""
        self.load()  # raises where there is no table, as on a disk that is not mounted
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
        self._delete(job, found)
        self._claims.forget(job, last)

    def longest_open(self) -> timedelta:
        """See :meth:`System.longest_open`: nothing here is open for a reader."""
        return timedelta(0)

    def close(self) -> None:
        """Nothing is open between calls."""

    def _retry(self, call: Callable[[], None], give_up: Callable[[], bool]) -> bool:
        def attempt() -> bool:
            call()
            self._links.worked(self._name)
            return True

        return persist(attempt, StorageError, self._failed, give_up, longest=2.0) or False

    def _delete(self, job: str, names: Collection[str]) -> None:
        delete_files(self._storage, self.folder, job, names, lambda: self.load().file_names())

    def _failed(self, error: StorageError) -> None:
        self._links.failed(self._name, error, waiting="what is completed waits for its commit")
