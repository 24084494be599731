"""Ask systems on behalf of a command.

A coordinator may have no connection to them, so a command with ``--systems FILE`` connects on its own. A system that
cannot be asked is named; its answer is reported as unknown, never left out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from onceward.common.errors import OncewardError
from onceward.coordinator.service.systems import Systems, route
from onceward.operate.options import systems_of
from onceward.protocol.committing import OpenTransaction, System, TransactionHandle
from onceward.protocol.values import (
    NO_GENERATION,
    Author,
    Claim,
    Committable,
    Generation,
    JobName,
    Outcome,
    Settlement,
)

__all__ = ["Brokers", "Seen", "brokers"]

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

    def __init__(self, systems: Systems) -> None:
        self._systems = systems
        self._stack = ExitStack()
        self._open: dict[str, Mapping[str, System]] = {}

    @property
    def reached(self) -> bool:
        """False when no systems were named."""
        return bool(self._systems.names)

    def open_transactions(self, job: JobName, kind: str) -> tuple[list[OpenTransaction], list[str]]:
        """Return the open transactions, and why some systems could not answer. An unreachable one hides no other."""
        if not self.reached:
            return [], [f"job {job}: no --systems FILE was given, so no system was asked what is open"]
        found: list[OpenTransaction] = []
        problems: list[str] = []
        try:
            systems = self._of_kind(kind)
        except OncewardError as error:
            return [], [f"job {job}: {error}"]
        for name, system in systems.items():
            try:
                found += system.transactions(job)
            except OncewardError as error:
                problems.append(f"job {job}, system {name}: {error}")
        return found, problems

    def look(self, kind: str, committables: Sequence[Committable]) -> list[Seen]:
        """Return what can be proved about each now, without changing anything."""
        return self._each(committables, lambda one: self._seen(kind, one, lambda system: system.outcome(one)))

    def commit(
        self, kind: str, author: Author, committables: Sequence[Committable], give_up: Callable[[], bool]
    ) -> list[Seen]:
        """Retry each commit and prove the outcome, until ``give_up()``."""

        def commit(system: System, committable: Committable) -> Settlement | None:
            settlements = system.commit(author, [committable], give_up=give_up)
            return settlements[0] if settlements else None

        return self._each(committables, lambda one: self._seen(kind, one, lambda system: commit(system, one)))

    def abort(self, kind: str, author: Author, committables: Sequence[Committable]) -> None:
        """Abort those that are still open. Raises OncewardError; the job's next start then aborts them."""
        systems = self._of_kind(kind)
        routed = route(systems, committables)
        for name, here in routed.here.items():
            systems[name].abort(author, here)
        if missing := {**routed.elsewhere, **routed.unknown}:
            raise OncewardError(
                f"The transactions of slots {sorted(missing)} could not be aborted: {next(iter(missing.values()))}. "
                "Nothing of them is visible; they end by their timeout. Check the file of --systems."
            )

    def forget(self, job: JobName, kind: str, last: Claim) -> None:
        """Remove what the systems keep of a deleted job. Raises OncewardError."""
        for system in self._of_kind(kind).values():
            system.forget(job, last)

    def release(self, job: JobName, kind: str, present: Claim) -> Iterator[str]:
        """End and remove what ``job`` has left where no output of it is any more: where its claim is of an earlier
        generation than ``present``, which is the claim of its last driver. Yield what was done on each system of
        ``kind``. Raises OncewardError."""
        former = replace(present, generation=Generation(present.generation - 1))
        if missing := self._systems.missing([kind]):
            raise missing
        for name in self._systems.of_kind(kind):
            with closing(self._systems.open(name, former.generation)) as system:
                claim = system.read_claim(job, certain=True)
                if claim is not None and claim.store_id != present.store_id:
                    yield f"{name}: left as it is: store {claim.store_id} has claimed the job"
                elif claim is not None and claim.generation >= present.generation:
                    yield f"{name}: left as it is: the job writes to it"
                else:
                    swept = system.sweep(job)
                    system.forget(job, former)
                    yield f"{name}: ended {len(swept)} open transactions, removed {'the' if claim else 'no'} claim"

    def close(self) -> None:
        self._stack.close()

    def _each(self, committables: Sequence[Committable], look: Callable[[Committable], Seen]) -> list[Seen]:
        if not committables:
            return []
        with ThreadPoolExecutor(min(_AT_ONCE, len(committables))) as pool:
            return list(pool.map(look, committables))

    def _seen(self, kind: str, committable: Committable, ask: Callable[[System], Settlement | None]) -> Seen:
        holds, handle, settlement, unasked = "", None, None, ""
        if not self.reached:
            unasked = "no --systems FILE was given"
        else:
            try:
                systems = self._of_kind(kind)
                reader = next(iter(systems.values()))
                holds, handle = reader.describe(committable), reader.handle(committable)
                settlement, unasked = self._asked(systems, committable, ask)
            except OncewardError as error:
                unasked = str(error)
        return Seen(committable=committable, holds=holds, handle=handle, settlement=settlement, unasked=unasked)

    def _asked(
        self, systems: Mapping[str, System], committable: Committable, ask: Callable[[System], Settlement | None]
    ) -> tuple[Settlement | None, str]:
        """Ask the system of a committable. Return its answer, or why there is none."""
        routed, slot = route(systems, [committable]), committable.slot
        for why in routed.elsewhere.values():
            return Settlement(slot=slot, outcome=Outcome.IN_DOUBT, evidence=why), ""
        for why in routed.unknown.values():
            return None, why
        (name,) = routed.here
        settlement = ask(systems[name])
        return settlement, "" if settlement is not None else "the system did not answer"

    def _of_kind(self, kind: str) -> Mapping[str, System]:
        """Return all systems of a kind, open. Raises ConfigurationError if there is none."""
        if kind not in self._open:
            if missing := self._systems.missing([kind]):
                raise missing
            opened = {name: self._systems.open(name, NO_GENERATION) for name in self._systems.of_kind(kind)}
            for system in opened.values():
                self._stack.callback(system.close)
            self._open[kind] = opened
        return self._open[kind]


@contextmanager
def brokers(systems: Path | None) -> Iterator[Brokers]:
    """Yield connections to the systems in the file; closes them at the end. Raises ConfigurationError."""
    if systems is None:
        reached = Brokers(Systems({}, {}))
    else:
        reached = Brokers(Systems.installed(systems_of(systems, "changed"), "changed"))
    try:
        yield reached
    finally:
        reached.close()
