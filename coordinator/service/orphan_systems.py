"""The coordinator's work for a job without a driver: on all systems that it knows, in threads."""

import asyncio
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TypeVar

from onceward.common.errors import ConfigurationError, FencedError, HaltedError, OncewardError, StoreError
from onceward.common.links import Links
from onceward.common.printable import log_fields, logger
from onceward.coordinator.service.systems import Routed, Systems
from onceward.coordinator.service.thread_lanes import ThreadLanes
from onceward.protocol.committing import Part, System
from onceward.protocol.durable import Durable
from onceward.protocol.encoded import decoded_all
from onceward.protocol.values import (
    Author,
    Claim,
    Committable,
    Generation,
    JobName,
    Outcome,
    ParticipantName,
    Role,
    Settlement,
)

__all__ = ["HOPELESS", "OrphanSystems"]

_log = logger("onceward.coordinator")

HOPELESS = (ConfigurationError, FencedError, HaltedError, StoreError)
"""Errors for which a retry will not help."""

_MOMENT_S = 0.5
"""How long to wait for the other clusters once one has answered."""

T = TypeVar("T")


class OrphanSystems:
    """The transactions of one job, on behalf of one generation. Methods raise OncewardError; they are safe to retry."""

    def __init__(self, durable: Durable, systems: Systems, thread_lanes: ThreadLanes, links: Links) -> None:
        self._job: JobName = durable.job
        self._durable = durable
        self._generation: Generation = durable.generation
        self._systems = systems
        self._thread_lanes = thread_lanes
        self._links = links
        self._kinds = {one.name: one.kind for one in durable.participants if one.role is Role.SINK}

    def missing(self, name: ParticipantName | None = None) -> ConfigurationError | None:
        """Why nothing can be ended for sink ``name``, or for some sink; None if its systems can be asked."""
        return self._systems.missing(sorted(set(self._kinds.values())) if name is None else [self._kinds[name]])

    async def check(self) -> None:
        """Check that what is decided names only transactions of this job, before anything is touched for it.

        Raises HaltedError."""

        def check() -> None:
            for name, committables in self._decided():
                if self.missing(name) is not None:
                    continue
                with closing(self._systems.any(self._kinds[name], self._generation)) as system:
                    system.check(self._author(name), decoded_all(committables))

        await self._thread_lanes.run("checks", check)

    async def claims(self, *, hurry: bool) -> dict[str, Claim | None]:
        """The claims on the job, by system; None where there is none. One claim is enough: then ``hurry`` waits only a
        moment for the other systems. That there is none is known only when all systems have answered, and each kind of
        sink can be asked."""
        asked = self._asked(lambda system, _, name: (name, system.read_claim(self._job, certain=True)))
        try:
            claims: dict[str, Claim | None] = {}
            waiting = set(asked)
            while waiting:
                moment = _MOMENT_S if hurry and any(claims.values()) else None
                done, waiting = await asyncio.wait(waiting, timeout=moment, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    return claims
                answers = [task.result() for task in done]
                _raise_first(answer for answer in answers if isinstance(answer, HOPELESS))
                claims |= dict(answer for answer in answers if not isinstance(answer, OncewardError))
            if not any(claims.values()):
                _raise_first((*(task.result() for task in asked), self.missing()))
            return claims
        finally:
            for task in asked:
                task.cancel()

    def silent(self, answered: Collection[str]) -> Sequence[str]:
        """The systems that have not said who owns the job: nothing may be ended there yet."""
        every = {name for kind in self._kinds.values() for name in self._systems.of_kind(kind)}
        return sorted(every.difference(answered))

    async def take_claim(self, seen: Mapping[str, Claim | None]) -> None:
        """Claim the job for this store and its newest completed checkpoint, on each system with a claim in ``seen``,
        in place of that.

        Raises ClaimChangedError where the claim has changed since.
        """
        claim = Claim(
            store_id=self._durable.store_id,
            generation=self._generation,
            completed=self._durable.base,
            # an earlier release granted itself generations without a holder
            holder=self._durable.holders.get(self._generation) or secrets.token_hex(16),
            amendment=self._durable.amendment,
        )

        there = {name: found for name, found in seen.items() if found is not None}

        def take(system: System, _: str, name: str) -> None:
            system.take_claim(self._job, claim, (there[name],))

        _raise_first(await asyncio.gather(*self._asked(take, among=there)))

    async def longest_open(self) -> timedelta:
        """How long a transaction can stay open before its system ends it, over all systems that answer."""
        answers = await asyncio.gather(*self._asked(lambda system, *_: system.longest_open()))
        return max((one for one in answers if not isinstance(one, OncewardError)), default=timedelta(0))

    async def sweep(self, among: Collection[str] | None = None) -> None:
        """Abort everything open except what is decided and not settled, on all systems or those in ``among``. Raises
        FencedError where something newer is open; that is left alone."""
        keep: dict[str, list[Committable]] = {kind: [] for kind in self._kinds.values()}
        for name, committables in self._decided():
            keep[self._kinds[name]] += committables

        def leave_decided(system: System, kind: str, _: str) -> Sequence[str]:
            return system.sweep(self._job, keep=decoded_all(keep[kind]))

        answers = await asyncio.gather(*self._asked(leave_decided, among=among))
        for swept in answers:
            if not isinstance(swept, OncewardError) and swept:
                said = {"job": self._job, "generation": self._generation, "event": "swept"}
                _log.warning("%s", log_fields({**said, "transactions": len(swept), "ids": ",".join(swept)}))
        _raise_first(answers)

    async def commit(
        self,
        name: ParticipantName,
        committables: Sequence[Committable],
        give_up: Callable[[], bool],
        among: Collection[str],
    ) -> tuple[Settlement, ...]:
        """Commit what was decided for sink ``name`` and prove it, on all its systems that are in ``among`` at the same
        time; unanswered commits are left out. The evidence of outcomes other than committed describes their records."""
        author, kind = self._author(name), self._kinds[name]

        def place() -> Routed:
            return self._systems.route(kind, decoded_all(committables))

        def commit(named: str, here: Sequence[Committable]) -> Sequence[Settlement]:
            with closing(self._systems.open(named, self._generation)) as system:
                return _described(system, committables, system.commit(author, here, give_up=give_up))

        routed = await self._thread_lanes.run("places", place)
        lanes = [
            self._thread_lanes.run(f"commits on {named}", partial(commit, named, here))
            for named, here in routed.here.items()
            if named in among
        ]
        settled = [one for each in await asyncio.gather(*lanes) for one in each]
        if routed.elsewhere:
            settled += await self._in_doubt(kind, committables, routed.elsewhere)
        return tuple(sorted(settled, key=lambda one: one.slot))

    def divided(
        self, held: Mapping[ParticipantName, Sequence[Committable]]
    ) -> Sequence[Mapping[ParticipantName, Sequence[Committable]]]:
        """Divide what is to be committed into what one commit makes visible: of one sink, or of several. Asks no
        system."""
        if len(held) < 2:
            return [held] if held else []
        found: dict[tuple[str, str], dict[ParticipantName, Sequence[Committable]]] = {}
        for name, committables in held.items():
            with closing(self._systems.any(self._kinds[name], self._generation)) as system:
                (first,) = decoded_all(committables[:1])
                shared = system.together(first)
            found.setdefault((self._kinds[name], shared) if shared else ("", name), {})[name] = committables
        return list(found.values())

    async def commit_together(
        self,
        held: Mapping[ParticipantName, Sequence[Committable]],
        give_up: Callable[[], bool],
        among: Collection[str],
    ) -> Mapping[ParticipantName, Sequence[Settlement]]:
        """Like :meth:`commit`, for several sinks by one commit. Nothing is committed if what one of them has is
        elsewhere, or on a system that is not in ``among``."""
        placed: list[tuple[ParticipantName, str, Sequence[Committable]]] = []
        for name, committables in held.items():
            kind, decoded = self._kinds[name], decoded_all(committables)
            routed = await self._thread_lanes.run("places", partial(self._systems.route, kind, decoded))
            if routed.elsewhere:
                return {name: await self._in_doubt(kind, committables, routed.elsewhere)}
            if routed.unknown or not routed.here.keys() <= {*among}:
                return {}
            placed += [(name, named, here) for named, here in routed.here.items()]

        def commit() -> Mapping[ParticipantName, Sequence[Settlement]]:
            with ExitStack() as opened:
                parts = [
                    Part(
                        system=opened.enter_context(closing(self._systems.open(named, self._generation))),
                        author=self._author(name),
                        committables=here,
                    )
                    for name, named, here in placed
                ]
                settled: dict[ParticipantName, list[Settlement]] = {name: [] for name in held}
                found = parts[0].system.commit_together(parts, give_up=give_up)
                for (name, _, _), part, each in zip(placed, parts, found, strict=True):
                    settled[name] += _described(part.system, part.committables, each)
                return settled

        return await self._thread_lanes.run(f"commits on {placed[0][1]}", commit)

    async def _in_doubt(
        self, kind: str, committables: Sequence[Committable], elsewhere: Mapping[int, str]
    ) -> Sequence[Settlement]:
        def in_doubt() -> Sequence[Settlement]:
            found = [Settlement(slot=slot, outcome=Outcome.IN_DOUBT, evidence=why) for slot, why in elsewhere.items()]
            with closing(self._systems.any(kind, self._generation)) as system:
                return _described(system, committables, found)

        return await self._thread_lanes.run("places", in_doubt)

    async def ending(self, name: ParticipantName, committables: Sequence[Committable]) -> Sequence[str]:
        """Transactions that are decided but not yet visible to readers, on the systems of ``committables``. Raises
        OncewardError if one of these does not answer."""

        def ending() -> Sequence[str]:
            routed = self._systems.route(self._kinds[name], decoded_all(committables))
            for slot, why in {**routed.elsewhere, **routed.unknown}.items():
                raise OncewardError(f"Whether readers see the commit of slot {slot} of {name} is unknown: {why}")
            found: list[str] = []
            for named, here in routed.here.items():
                with closing(self._systems.open(named, self._generation)) as system:
                    found += system.ending(self._job, beside=here)
            return found

        return await self._thread_lanes.run("ends", ending)

    def _decided(self) -> Iterator[tuple[ParticipantName, Sequence[Committable]]]:
        """What is completed and not settled, by sink."""
        completed = self._durable.completed
        if completed is not None and not completed.settled:
            for name, snapshot in completed.snapshots.items():
                if snapshot.committables:
                    yield name, snapshot.committables

    def _author(self, name: ParticipantName) -> Author:
        """The author of what is decided for sink ``name``."""
        completed = self._durable.completed
        first = completed.generation if completed is not None else self._generation
        return Author(job=self._job, participant=name, generations=range(first, self._generation + 1))

    def _asked(
        self, call: Callable[[System, str, str], T], among: Collection[str] | None = None
    ) -> "list[asyncio.Task[T | OncewardError]]":
        """Run ``call`` with a system, its kind and its name, for all systems or those in ``among``. All calls run at
        the same time: an unreachable system blocks no other."""

        def one(kind: str, name: str) -> T | OncewardError:
            link = f"cluster {name!r}"
            try:
                with closing(self._systems.open(name, self._generation)) as system:
                    answer = call(system, kind, name)
            except OncewardError as error:
                if not isinstance(error, HOPELESS):
                    self._links.failed(link, error, waiting=f"job {self._job}")
                return error
            self._links.worked(link)
            return answer

        async def ask(kind: str, name: str) -> T | OncewardError:
            return await self._thread_lanes.run(f"system {name}", lambda: one(kind, name))

        return [
            asyncio.create_task(ask(kind, name))
            for kind in sorted(set(self._kinds.values()))
            for name in self._systems.of_kind(kind)
            if among is None or name in among
        ]


def _described(
    system: System, committables: Sequence[Committable], settlements: Sequence[Settlement]
) -> Sequence[Settlement]:
    """The evidence of outcomes other than committed with a description of their records."""

    def described(settlement: Settlement) -> Settlement:
        (one,) = decoded_all([one for one in committables if one.slot == settlement.slot])
        return replace(settlement, evidence=f"{system.describe(one)}. {settlement.evidence}")

    return [one if one.outcome is Outcome.COMMITTED else described(one) for one in settlements]


def _raise_first(answers: Iterable[object]) -> None:
    for answer in answers:
        if isinstance(answer, OncewardError):
            raise answer
