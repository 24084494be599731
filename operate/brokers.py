"""Ask systems on behalf of a command, through the installed committers.

A coordinator may have no connection to them, so a command with ``--systems FILE`` connects on its own. A system that
cannot be asked is named; its answer is reported as unknown, never left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from onceward.common.errors import ConfigurationError, OncewardError
from onceward.coordinator.service.committers import installed_committers
from onceward.operate.options import systems_of
from onceward.protocol.committing import Committer, OpenTransaction, TransactionHandle
from onceward.protocol.kinds import NamedSystem
from onceward.protocol.values import Author, Claim, Committable, JobName, Settlement

__all__ = ["Brokers", "MakeCommitter", "Seen", "brokers"]

MakeCommitter: TypeAlias = Callable[[Iterable[Any]], Committer]
"""Configurations of systems of one kind -> committer."""

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
    """All systems of a file, by kind of sink. Without a file, every answer says that."""

    def __init__(self, makers: Mapping[str, MakeCommitter], systems: Mapping[str, NamedSystem]) -> None:
        self._makers = makers
        self._systems = systems
        self._stack = ExitStack()
        self._together: dict[str, Committer] = {}

    @property
    def reached(self) -> bool:
        """False when no systems were named."""
        return bool(self._systems)

    def open_transactions(self, job: JobName, kind: str) -> tuple[list[OpenTransaction], list[str]]:
        """Return the open transactions, and why some brokers could not answer. An unreachable cluster hides no
        other."""
        if not self._systems:
            return [], [f"job {job}: no --systems FILE was given, so no broker was asked what is open"]
        found: list[OpenTransaction] = []
        problems: list[str] = []
        for name, configuration in self._of_kind(kind).items():
            try:
                committer = self._maker(kind)([configuration])
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
        if not self._systems:
            unasked = "no --systems FILE was given"
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
        """Return one committer for all systems of a kind: the committable names its own."""
        if kind not in self._together:
            committer = self._maker(kind)(self._of_kind(kind).values())
            self._stack.callback(committer.close)
            self._together[kind] = committer
        return self._together[kind]

    def _of_kind(self, kind: str) -> Mapping[str, Any]:
        return {name: one.configuration for name, one in self._systems.items() if one.kind == kind}

    def _maker(self, kind: str) -> MakeCommitter:
        maker = self._makers.get(kind)
        if maker is None:
            raise ConfigurationError(
                f"No committer for sinks of kind {kind} is installed, so their transactions cannot be looked at. "
                "Nothing was changed. Install the one of the job's sink."
            )
        return maker


@contextmanager
def brokers(systems: Path | None) -> Iterator[Brokers]:
    """Yield connections to the systems in the file; closes them at the end. Raises ConfigurationError."""
    if systems is None:
        reached = Brokers({}, {})
    else:
        reached = Brokers(installed_committers("changed"), systems_of(systems, "changed"))
    try:
        yield reached
    finally:
        reached.close()
