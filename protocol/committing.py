"""A system that sinks write to, such as a Kafka cluster or a database: what every process asks of it.

Implement :class:`System` for others. It is part of the protocol because a driver, a coordinator and a command all open
systems, and none imports another's code.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from onceward.protocol.values import Author, Claim, Committable, JobName, Settlement

__all__ = [
    "Age",
    "FoundHanging",
    "HangingTransaction",
    "OpenTransaction",
    "Part",
    "Place",
    "PreCommitted",
    "System",
    "TransactionHandle",
]


class Place(NamedTuple):
    """The system that a transaction is on, by its committable."""

    id: str
    """What :meth:`System.id` returned to the process that wrote the committable."""
    name: str = ""
    """What that process called it; another may name it otherwise, or use the name for another system."""


class TransactionHandle(NamedTuple):
    """Identifies exactly one transaction."""

    id: str
    instance: str = ""
    """Distinguishes transactions that use the id one after the other."""


@dataclass(frozen=True, kw_only=True)
class OpenTransaction:
    """A transaction of a job that is open in the sink's system, as it reports it now."""

    handle: TransactionHandle
    """The same as that of the committable, if there is one."""
    cluster: str
    """Name of the cluster."""
    participant: str
    """The sink's name."""
    generation: int
    """The generation under which it was begun."""
    state: str
    """The system's name for its state, for example ``Ongoing``."""
    age: timedelta | None
    """Time since it began, on this machine's clock; None if the system does not report it."""
    left: timedelta | None
    """Time until the system aborts it, never below zero; None if it does not, or does not report it."""
    details: Mapping[str, str] = field(default_factory=dict)
    """What else is known, for people: name -> value."""


@dataclass(frozen=True, kw_only=True)
class HangingTransaction:
    """A transaction of any program that is over for its system and still open in a partition: readers of committed
    records stop there until a marker ends it."""

    cluster: str
    """Name of the cluster."""
    topic: str
    partition: int
    offset: int
    """Of its first record there."""
    producer_id: int
    epoch: int
    age: timedelta | None
    """Time since its last record, by the record's own timestamp; None if that has none."""
    id: str
    """Its id; empty if no id is known that has this producer id."""
    job: str | None
    """The job that it belongs to, by the form of its id; None if it is not ours."""
    state: str
    """What its coordinator reports of the id now."""
    certain: bool
    """False if what could not be asked may explain it."""
    doubt: str
    """Why it is not certain."""
    remedy: str
    """What ends it; empty while it is not certain."""
    meaning: str
    """What an abort means for its records."""


@dataclass(frozen=True, kw_only=True)
class FoundHanging:
    """What a look for hanging transactions found."""

    transactions: Sequence[HangingTransaction] = ()
    looked_into: int = 0
    """Partitions that were looked into."""
    unknown: Sequence[str] = ()
    """What was not looked into, and why. If there is any, more may hang than was found."""


@dataclass(frozen=True, kw_only=True)
class Age:
    """How long a pre-committed transaction has been open, and how long it may stay open."""

    transaction: str
    """Its name for display."""
    open_for: timedelta
    timeout: timedelta
    """The system aborts the transaction after this time. More than 0."""

    def __post_init__(self) -> None:
        """Raises ValueError for a transaction that does not time out: it has no age."""
        if self.timeout <= timedelta(0):
            raise ValueError(
                f"timeout: {self.timeout} of {self.transaction} is not above 0; return None instead of an Age"
            )


@dataclass(kw_only=True, eq=False)
class PreCommitted:
    """What a sink has pre-committed for a checkpoint. A sink's own kind may hold besides what its system has answered:
    the driver hands it to what it asks of the same system next, which saves requests."""

    committables: tuple[Committable, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """What one sink has in a commit of several."""

    system: "System"
    author: Author
    committables: Sequence[Committable]


class System(ABC):
    """One system, on behalf of one job: ends transactions that this or another process began, and holds the job's
    claim. Opened by the driver, by the coordinator for a job without a driver, and by commands.

    A committable comes from the store, and from a driver before: it may be wrong or forged. The process that ends its
    transaction may have more rights than the one that wrote it. So end nothing that is not its author's own.
    """

    @abstractmethod
    def id(self) -> str:
        """Return the id that the system gives itself: addresses and names of one system differ between processes.
        Sinks on systems of the same id share one claim for their job."""

    @abstractmethod
    def place(self, committable: Committable) -> Place:
        """Return where its transaction is, by its document alone: it is ended nowhere else."""

    def check(self, author: Author, committables: Sequence[Committable]) -> None:  # noqa: B027 - optional
        """Check, without asking anyone, that each committable names something of ``author``. Raises HaltedError."""

    @abstractmethod
    def commit(
        self,
        author: Author,
        committables: Sequence[Committable],
        *,
        give_up: Callable[[], bool] = lambda: False,
        known: PreCommitted | None = None,
    ) -> Sequence[Settlement]:
        """Commit each committable and prove its outcome; retry until proved or until ``give_up()``. ``known``: what
        this process has pre-committed them with.

        Idempotent. Returns one settlement per committable with a known outcome, and none for those still unanswered at
        ``give_up()``. One that is on another system is in doubt. Does nothing if :meth:`check` fails.
        """

    def together(self, committable: Committable) -> str:
        """By its document alone, with what else of its checkpoint it becomes visible: one call of
        :meth:`commit_together` gets all sinks of a kind whose committables have the same text here. Empty: alone. All
        that a sink has in a checkpoint has the same text."""
        return ""

    def commit_together(
        self, parts: Sequence[Part], *, give_up: Callable[[], bool] = lambda: False
    ) -> Sequence[Sequence[Settlement]]:
        """Commit for several sinks by one commit, of which readers see all or nothing, and prove each. Returns the
        settlements of each part, otherwise as :meth:`commit` does. The system of the first part is this one."""
        raise NotImplementedError(f"{type(self).__name__} commits nothing together")

    @abstractmethod
    def abort(self, author: Author, committables: Sequence[Committable]) -> None:
        """Abort transactions of an undecided or aborted checkpoint. Idempotent. Never call this for a completed
        checkpoint. Does nothing if :meth:`check` fails."""

    @abstractmethod
    def outcome(self, committable: Committable) -> Settlement:
        """What the system proves now. Changes nothing."""

    def confirm(self, committables: Sequence[Committable]) -> None:  # noqa: B027 - optional
        """Check, before a job continues, that the system still has ``committables``, all of which were proved committed
        and settled. Changes nothing.

        Raises HaltedError if it has gone back: to a backup, or to a copy that had not received everything.
        """

    def describe(self, committable: Committable) -> str:
        """Describe a committable for display: where, how many records, from which input."""
        return json.dumps(committable.document.body, sort_keys=True)

    def handle(self, committable: Committable) -> TransactionHandle | None:
        """The handle under which :meth:`transactions` lists its transaction; None if it lists none."""
        return None

    def age(self, committable: Committable) -> Age | None:
        """The age of its transaction, assuming it is still open; asks no one. None if transactions do not time out."""
        return None

    @abstractmethod
    def leftovers(self, job: JobName, *, keep: Collection[Committable] = ()) -> Sequence[str]:
        """Ids of the open transactions of ``job``, except those of ``keep``."""

    @abstractmethod
    def transactions(self, job: JobName) -> Sequence[OpenTransaction]:
        """All transactions of ``job`` that are open or being ended, by id. Changes nothing."""

    def hanging(self, topics: Collection[str] | None = None) -> FoundHanging:
        """Look for transactions of any program that hang in ``topics``, by default in all. Changes nothing."""
        return FoundHanging()

    def jobs(self) -> Sequence[JobName]:
        """All jobs that keep a claim or leftovers here, by name; none if the system does not list them. Changes
        nothing."""
        return ()

    def ending(self, job: JobName, *, beside: Collection[Committable] = ()) -> Sequence[str]:
        """Transactions of ``job`` whose end is decided but not yet visible everywhere.

        :param beside: look only where these are.
        """
        return ()

    @abstractmethod
    def sweep(
        self,
        job: JobName,
        *,
        keep: Collection[Committable] = (),
        staying: Collection[str] = (),
        known: Sequence[PreCommitted] = (),
    ) -> Sequence[str]:
        """Abort (fence) all leftovers and return their ids. Never touches other jobs.

        ``staying``: marks of tasks (:meth:`StayingWriter.mark`) that write the next checkpoint already; what they have
        open is kept, too. ``known``: what all sinks of the job on this system have just pre-committed.
        """

    @abstractmethod
    def read_claim(self, job: JobName, *, certain: bool = False) -> Claim | None:
        """Return the owner of ``job`` according to the system; None if it was never claimed.

        ``certain``: None is proved: a claim that is being written is waited for.
        """

    @abstractmethod
    def take_claim(self, job: JobName, claim: Claim, seen: Collection[Claim]) -> None:
        """Claim ``job`` atomically: write ``claim`` in place of one of ``seen``, or where there is none.

        Raises ClaimChangedError when another claim is found instead.
        """

    def prepare_claim(self, claim: Claim) -> None:  # noqa: B027 - optional
        """Prepare to renew ``claim``, if its checkpoint is completed: do what need not wait for the decision.

        Called by the thread that calls :meth:`renew_claim`. Must not publish anything yet, and must not fail.
        """

    @abstractmethod
    def renew_claim(
        self, claim: Claim, *, give_up: Callable[[], bool] = lambda: False, known: PreCommitted | None = None
    ) -> bool:
        """Record atomically that ``claim.completed`` is completed, in place of the claim that this object wrote last.
        ``known``: what is committed next; what that must know may be asked here.

        Called before the first commit of a checkpoint. Retries without a limit; returns False when ``give_up`` ends it.
        Raises FencedError when another claim is found: then nothing may be committed.
        """

    def forget(self, job: JobName, last: Claim) -> None:  # noqa: B027 - optional
        """Remove everything kept for ``job``, which has no open transactions any more; the claim last.

        ``last``: the claim that its last generation would make. Nothing newer, and nothing of another store, is
        touched. Idempotent. Raises OncewardError when something remains.
        """

    def longest_open(self) -> timedelta:
        """Time after which the system itself has ended every open transaction."""
        return timedelta(minutes=15)

    @abstractmethod
    def close(self) -> None:
        """Release clients."""
