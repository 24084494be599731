"""Ask the brokers on behalf of a command, through the installed committers.

A coordinator may have no connection to Kafka, so a command with ``--clusters FILE`` connects on its own (entry point
``onceward.committers``). A cluster that cannot be asked is named; its answer is reported as unknown, never left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from onceward.common.errors import ConfigurationError, OncewardError
from onceward.coordinator.service.committers import installed_committers
from onceward.operate.options import clusters_of
from onceward.protocol.committing import Committer, OpenTransaction, TransactionHandle
from onceward.protocol.values import Author, Claim, Committable, JobName, Settlement

__all__ = ["Brokers", "MakeCommitter", "Seen", "brokers"]

MakeCommitter: TypeAlias = Callable[[Iterable[Any]], Committer]
"""Clusters -> committer; the clusters are the content of the clusters file."""

_AT_ONCE = 16
"""Committables looked at concurrently; each look takes seconds."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is known now about one committable of a completed checkpoint."""

    committable: Committable
    holds: str
    """Where its records are, how many, from which input; empty when it could not be read."""
    handle: TransactionHandle | None
    """As in the list of open transactions."""
    settlement: Settlement | None
    """What the brokers and the receipt prove; None when they could not be asked or were not asked."""
    unasked: str
    """Why they were not asked."""


class Brokers:
    """All clusters of a clusters file, for each kind of sink. Without clusters, every answer says that."""

    def __init__(self, makers: Mapping[str, MakeCommitter], clusters: Mapping[str, Any]) -> None:
        self._makers = makers
        self._clusters = clusters
        self._stack = ExitStack()
        self._together: dict[str, Committer] = {}

    @property
    def reached(self) -> bool:
        """False when no clusters were named."""
        return bool(self._clusters)

    def open_transactions(self, job: JobName, kind: str) -> tuple[list[OpenTransaction], list[str]]:
        """Return the open transactions, and why some brokers could not answer. An unreachable cluster hides no
        other."""
        if not self._clusters:
            return [], [f"job {job}: no --clusters FILE was given, so no broker was asked what is open"]
        found: list[OpenTransaction] = []
        problems: list[str] = []
        for name, cluster in self._clusters.items():
            try:
                committer = self._maker(kind)([cluster])
                try:
                    found += committer.transactions(job)
                finally:
                    committer.close()
            except OncewardError as error:
                problems.append(f"job {job}, cluster {name}: {error}")
        return found, problems

    def look(self, kind: str, committables: Sequence[Committable]) -> list[Seen]:
        """Return what can be proved about each now, without changing anything."""
        return self._each(committables, lambda one: self._seen(kind, one, lambda c: c.outcome(one)))

    def commit(
        self, kind: str, author: Author, committables: Sequence[Committable], give_up: Callable[[], bool]
    ) -> list[Seen]:
        """Retry each commit and prove the outcome, until ``give_up()``."""

        def commit(committer: Committer, committable: Committable) -> Settlement | None:
            settlements = committer.commit(author, [committable], give_up=give_up)
            return settlements[0] if settlements else None

        return self._each(committables, lambda one: self._seen(kind, one, lambda c: commit(c, one)))

    def abort(self, kind: str, author: Author, committables: Sequence[Committable]) -> None:
        """Abort those that are still open. Raises OncewardError; the job's next start then aborts them."""
        self._committer(kind).abort(author, committables)

    def forget(self, job: JobName, kind: str, last: Claim) -> None:
        """Remove what the clusters keep of a deleted job. Raises OncewardError."""
        self._committer(kind).forget(job, last)

    def close(self) -> None:
        self._stack.close()

    def _each(self, committables: Sequence[Committable], look: Callable[[Committable], Seen]) -> list[Seen]:
        if not committables:
            return []
        with ThreadPoolExecutor(min(_AT_ONCE, len(committables))) as pool:
            return list(pool.map(look, committables))

    def _seen(self, kind: str, committable: Committable, ask: Callable[[Committer], Settlement | None]) -> Seen:
        holds, handle, settlement, unasked = "", None, None, ""
        if not self._clusters:
            unasked = "no --clusters FILE was given"
        else:
            try:
                committer = self._committer(kind)
                holds, handle = committer.describe(committable), committer.handle(committable)
                settlement = ask(committer)
                unasked = "" if settlement is not None else "the brokers did not answer"
            except OncewardError as error:
                unasked = str(error)
        return Seen(committable=committable, holds=holds, handle=handle, settlement=settlement, unasked=unasked)

    def _committer(self, kind: str) -> Committer:
        """Return one committer for all clusters: the committable names its cluster."""
        if kind not in self._together:
            committer = self._maker(kind)(self._clusters.values())
            self._stack.callback(committer.close)
            self._together[kind] = committer
        return self._together[kind]

    def _maker(self, kind: str) -> MakeCommitter:
        maker = self._makers.get(kind)
        if maker is None:
            raise ConfigurationError(
                f"No committer for sinks of kind {kind} is installed, so their transactions cannot be looked at. "
                "Nothing was changed. Install the one of the job's sink."
            )
        return maker


@contextmanager
def brokers(clusters: Path | None) -> Iterator[Brokers]:
    """Yield connections to the clusters in the file; closes them at the end. Raises ConfigurationError."""
    if clusters is None:
        reached = Brokers({}, {})
    else:
        reached = Brokers(installed_committers("changed"), clusters_of(clusters, "changed"))
    try:
        yield reached
    finally:
        reached.close()
