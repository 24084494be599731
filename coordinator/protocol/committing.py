"""What ends transactions of others, and what it can say of them. Implement :class:`Committer` for other systems.

It stands with the protocol because a driver and the coordinator both use one, and neither imports the other's code.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from onceward.coordinator.protocol.values import Claim, Committable, JobName, Settlement

__all__ = ["Age", "Committer", "OpenTransaction"]


@dataclass(frozen=True, kw_only=True)
class OpenTransaction:
    """A transaction of a job that is open at the brokers, as they tell it now."""

    id: str
    """As in the committable, if there is one (transactional id)."""
    cluster: str
    """Name of the cluster."""
    participant: str
    """The sink that its id names."""
    generation: int
    """Of the driver under which it was begun."""
    worker: str
    """Token of the worker process that owns the id."""
    state: str
    """In the words of the broker: ``Ongoing``, or ``PrepareCommit`` and ``PrepareAbort`` while it is being ended."""
    owner: tuple[int, int]
    """(producer id, epoch): with the id exactly this transaction and no other."""
    age: timedelta | None
    """Since its first partition was enlisted, on this machine's clock; None where the brokers do not say."""
    left: timedelta | None
    """Until the brokers abort it by themselves, never below zero; None where they do not say."""
    receipted: bool
    """Its receipt is written, so it may be pre-committed: only a decision tells whether it may be aborted."""
    partitions: tuple[str, ...]
    """What it wrote to, as ``topic-partition``; readers of these wait for it."""


@dataclass(frozen=True, kw_only=True)
class Age:
    """How long a pre-committed transaction has been open, and how long it may be."""

    transaction: str
    """As people know it."""
    open_for: timedelta
    timeout: timedelta
    """After which the brokers abort it."""


class Committer(ABC):
    """Ends transactions of others: in the driver, or in the coordinator for a job whose driver is gone."""

    @abstractmethod
    def commit(
        self, committables: Sequence[Committable], *, give_up: Callable[[], bool] = lambda: False
    ) -> Sequence[Settlement]:
        """Commit each and prove the outcome, asking again for as long as it takes or until ``give_up()``.

        Idempotent. One settlement per committable that is known; none for those still unanswered when it gave up.
        """

    @abstractmethod
    def abort(self, committables: Sequence[Committable]) -> None:
        """Abort transactions of an undecided or aborted checkpoint. Idempotent. Never call it for a completed one."""

    @abstractmethod
    def outcome(self, committable: Committable) -> Settlement:
        """What the broker and the receipt prove now, changing nothing."""

    def describe(self, committable: Committable) -> str:
        """What a committable holds, for people: where, how many records, from which input."""
        return json.dumps(committable.document.body, sort_keys=True)

    def handle(self, committable: Committable) -> tuple[str, tuple[int, int]] | None:
        """The transaction as :class:`OpenTransaction` names it, (id, owner); None where it has no such name."""
        return None

    def age(self, committable: Committable) -> Age | None:
        """Of its transaction, should it still be open; asks nobody. None where transactions do not time out."""
        return None

    @abstractmethod
    def leftovers(self, job: JobName, *, keep: Collection[Committable] = ()) -> Sequence[str]:
        """Transactional ids of ``job`` with an open transaction, without those of ``keep``."""

    @abstractmethod
    def transactions(self, job: JobName) -> Sequence[OpenTransaction]:
        """Everything of ``job`` that is open or being ended at the brokers, by id, changing nothing."""

    def ending(self, job: JobName, *, beside: Collection[Committable] = ()) -> Sequence[str]:
        """Transactions of ``job`` whose end is decided and does not show everywhere yet.

        :param beside: look only where these are.
        """
        return ()

    @abstractmethod
    def sweep(self, job: JobName, *, keep: Collection[Committable] = ()) -> Sequence[str]:
        """Abort (fence) all leftovers and return their ids. Other jobs are never touched."""

    def claims(self, job: JobName) -> Sequence[Claim]:
        """Who owns ``job``, from each cluster that says so. None where sinks of this kind know no claims."""
        return ()

    def take_claim(self, job: JobName, claim: Claim, seen: Collection[Claim]) -> None:  # noqa: B027 - optional
        """Say who owns ``job`` on each cluster where somebody does, atomically: in the place of one of ``seen``.

        Raises ClaimChangedError when there is another claim by now.
        """

    def forget(self, job: JobName, last: Claim) -> None:  # noqa: B027 - optional
        """Remove what is kept of ``job``, of which nothing is open any more; the claim last.

        ``last``: what its last generation would claim; nothing newer, and nothing of another store, is touched.
        Idempotent. Raises OncewardError when something is still there.
        """

    def longest_open(self) -> timedelta:
        """After so long a transaction that nobody ended has been ended by the system itself."""
        return timedelta(minutes=15)

    @abstractmethod
    def close(self) -> None:
        """Release clients."""
