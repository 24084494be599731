"""One job without a driver: wait for the grace time, take it, settle it, and look for latecomers for a while."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from coordinator.errors import ConfigurationError, FencedError, HaltedError, OncewardError, StoreError
from coordinator.killpoints import KillPoint, kill_point
from coordinator.protocol import orphans
from coordinator.protocol.answers import Answer, Verdict
from coordinator.protocol.durable import Durable
from coordinator.protocol.events import Event, Settle, TakeOrphan
from coordinator.protocol.state import JobState
from coordinator.protocol.status import JobStatus
from coordinator.protocol.values import Claim, Committable, JobName, Outcome, ParticipantName, Role, Settlement
from coordinator.service.committers import Committer, Committers
from coordinator.service.errands import Errands

__all__ = ["NO_CLUSTERS", "Orphan", "Surroundings"]

_log = logging.getLogger("onceward.coordinator")

NO_CLUSTERS = (
    "its transactions cannot be ended by this coordinator, which was started without --clusters: what is open holds "
    "readers back until its driver is back, or until the brokers' timeout"
)

_PATIENCE_S = 120.0
"""After so long without an answer for some commits, those that are known are told, and the others are asked again."""
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.5, 60.0
_FIRST_LOOK_S, _LONGEST_LOOK_S = 1.0, 30.0
"""Between two looks for latecomers: most come soon."""
_HOPELESS = (ConfigurationError, FencedError, HaltedError, StoreError)
"""Asking again changes nothing."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What it needs of the coordinator."""

    committers: Committers
    errands: Errands
    clock: Callable[[], float]
    """Monotonic seconds, as the engine's."""
    wall: Callable[[], datetime]
    state: Callable[[JobName], JobState]
    """As it is on disk."""
    handle: Callable[[JobName, Event], Awaitable[Answer]]
    unattended_since: Callable[[JobName], Awaitable[datetime | None]]
    """When the job's last generation ended or, taken by the coordinator, began; None for none."""


class Orphan:
    """For one time that the job is without a driver. Everything is idempotent: after a crash it is done again."""

    def __init__(self, job: JobName, around: Surroundings) -> None:
        self.job = job
        self.doing = ""
        """What it does or waits for, in words for people; empty for nothing."""
        self.superseded = False
        """A driver has opened the job, or the coordinator stops: end nothing more."""
        self._around = around

    async def run(self) -> None:
        """Returns when nothing is left to do until a driver has come and gone."""
        try:
            due = orphans.due(self._state)
            if due is not None:
                await self._wait_for_a_driver(due)
            if due is not None or self._durable.orphaned:
                if not self._around.committers.clusters:
                    self.doing = "" if self._durable.orphaned and self._durable.settled else NO_CLUSTERS
                    return
                await self._with_patience(self._settle)
            if self._is_for_good:
                await self._look_for_latecomers()
        except _HOPELESS as error:
            self.doing = f"the coordinator leaves it as it is: {error}"
            _log.error("job=%s event=orphan_left detail=%r", self.job, str(error))

    @property
    def _state(self) -> JobState:
        return self._around.state(self.job)

    @property
    def _durable(self) -> Durable:
        return self._state.durable

    async def _wait_for_a_driver(self, due: float) -> None:
        seconds = max(0.0, due - self._around.clock())
        until = self._around.wall() + timedelta(seconds=seconds)
        self.doing = f"waits for its driver until {until.astimezone():%H:%M:%S}"
        await asyncio.sleep(seconds)

    # -- settling

    async def _settle(self) -> None:
        """Everything from the start: what was done before is found done."""
        self.doing = "asks the clusters who owns the job"
        event = TakeOrphan(now=self._around.clock(), claims=await self._claims())
        answer = await self._around.handle(self.job, event)
        match answer.verdict:
            case Verdict.ACCEPTED | Verdict.DUPLICATE:
                pass
            case Verdict.TOO_LATE:
                return  # a driver was quicker
            case Verdict.BUSY:
                raise OncewardError(answer.detail)
            case _:
                raise HaltedError(answer.detail)
        trouble: OncewardError | None = None
        try:
            self.doing = "aborts what nobody has decided for"
            await self._sweep()
        except _HOPELESS:
            raise
        except OncewardError as error:
            trouble = error  # commits need not wait for that
        kill_point(KillPoint.ORPHAN_AFTER_ABORT)
        await self._commit_decided()
        if trouble is not None:
            raise trouble
        await self._renew_claim()
        self.doing = ""

    async def _claims(self) -> tuple[Claim, ...]:
        """Of all clusters that answer. One claim is enough to know; none is one only where everybody was asked."""
        answers = await self._everywhere(lambda committer, _: committer.claims(self.job))
        _raise_first(answer for answer in answers if isinstance(answer, _HOPELESS))
        claims = tuple(claim for found in answers if not isinstance(found, OncewardError) for claim in found)
        if not claims:
            _raise_first(answers)
        return claims

    async def _commit_decided(self) -> None:
        durable, completed = self._durable, self._durable.completed
        if completed is None or completed.settled or durable.status is JobStatus.HALTED:
            return
        for name, snapshot in sorted(completed.snapshots.items()):
            out = durable.replaying.get(name, frozenset()) | self._state.settled_slots.get(name, frozenset())
            left = [committable for committable in snapshot.committables if committable.slot not in out]
            if not left:
                continue
            self.doing = f"commits {len(left)} transactions of checkpoint {completed.id}"
            settlements = await self._around.errands.run(lambda name=name, left=left: self._commit(name, left))  # type: ignore[misc]
            kill_point(KillPoint.ORPHAN_AFTER_COMMIT)
            if settlements:
                event = Settle(
                    now=self._around.clock(),
                    generation=durable.generation,
                    checkpoint=completed.id,
                    participant=name,
                    settlements=settlements,
                    amendment=completed.amendment,
                )
                self._require_taken(await self._around.handle(self.job, event))
            if len(settlements) < len(left):
                raise OncewardError(
                    f"{len(left) - len(settlements)} commits of checkpoint {completed.id} are not answered; they are "
                    "asked again until they are. Check the brokers"
                )

    def _commit(self, name: ParticipantName, left: Sequence[Committable]) -> tuple[Settlement, ...]:
        """In a thread. What is not proved committed names its records, for whoever reads it."""
        give_up_at = self._around.clock() + _PATIENCE_S
        with closing(self._around.committers.make(self._kind(name), self._durable.generation)) as committer:
            settlements = committer.commit(left, give_up=lambda: self.superseded or self._around.clock() > give_up_at)
            by_slot = {committable.slot: committable for committable in left}
            return tuple(
                one
                if one.outcome is Outcome.COMMITTED
                else replace(one, evidence=f"{committer.describe(by_slot[one.slot])}. {one.evidence}")
                for one in settlements
            )

    def _require_taken(self, answer: Answer) -> None:
        if answer.verdict is Verdict.FENCED:
            raise FencedError("A driver has opened the job meanwhile, and settles it.")
        if answer.verdict not in (Verdict.ACCEPTED, Verdict.DUPLICATE):
            raise OncewardError(f"the outcomes were not taken: {answer.verdict.value}: {answer.detail}")

    async def _renew_claim(self) -> None:
        durable = self._durable
        if durable.completed is None:
            return
        settled = durable.completed.id if durable.completed.settled else durable.completed.base
        claim = Claim(store_id=durable.store_id, generation=durable.generation, settled=settled)
        _raise_first(await self._everywhere(lambda committer, _: committer.renew_claim(self.job, claim)))

    # -- latecomers

    @property
    def _is_for_good(self) -> bool:
        """Its last driver does not come back, and it is known which transactions are decided."""
        durable = self._durable
        ended = durable.driver is None and durable.status in (JobStatus.FINISHED, JobStatus.CANCELLED)
        return (ended or durable.orphaned) and not durable.unreadable and bool(self._around.committers.clusters)

    async def _look_for_latecomers(self) -> None:
        """A task that slept through the end of its job may open a transaction yet: looked for as long as one lasts."""
        since = await self._around.unattended_since(self.job)
        if since is None:
            return
        answers = await self._everywhere(lambda committer, _: committer.longest_open())
        until = since + max((one for one in answers if not isinstance(one, OncewardError)), default=timedelta(0))
        for pause in _growing(_FIRST_LOOK_S, _LONGEST_LOOK_S):
            left = (until - self._around.wall()).total_seconds()
            if left <= 0:
                break
            self.doing = f"looks for transactions of late tasks until {until.astimezone():%H:%M:%S}"
            await asyncio.sleep(min(pause, left))
            await self._with_patience(self._sweep, until)
        self.doing = ""

    async def _sweep(self) -> None:
        """Abort all that is open but what is decided and not settled. Raises FencedError where something newer is."""
        durable, completed = self._durable, self._durable.completed
        decided = completed.snapshots.items() if completed is not None and not completed.settled else ()
        keep = {
            kind: [one for name, found in decided if self._kind(name) == kind for one in found.committables]
            for kind in self._kinds
        }
        answers = await self._everywhere(lambda committer, kind: committer.sweep(self.job, keep=keep[kind]))
        for swept in answers:
            if not isinstance(swept, OncewardError) and swept:
                said = (self.job, durable.generation, len(swept), ",".join(swept))
                _log.warning("job=%s generation=%s event=swept transactions=%d ids=%s", *said)
        _raise_first(answers)

    # -- everywhere

    @property
    def _kinds(self) -> list[str]:
        return sorted({one.kind for one in self._durable.participants if one.role is Role.SINK})

    def _kind(self, name: ParticipantName) -> str:
        kinds = {one.name: one.kind for one in self._durable.participants}
        return kinds.get(name, "")

    async def _everywhere(self, call: Callable[[Committer, str], T]) -> "list[T | OncewardError]":
        """Ask for each kind of sink on each cluster, in threads: an unreachable one holds up no other."""
        committers, generation = self._around.committers, self._durable.generation

        def one(kind: str, cluster: str) -> T | OncewardError:
            try:
                with closing(committers.make(kind, generation, cluster)) as committer:
                    return call(committer, kind)
            except OncewardError as error:
                return error

        return await asyncio.gather(
            *(
                self._around.errands.run(lambda kind=kind, cluster=cluster: one(kind, cluster))  # type: ignore[misc]
                for kind in self._kinds
                for cluster in committers.clusters
            )
        )

    async def _with_patience(self, work: Callable[[], Awaitable[None]], until: datetime | None = None) -> None:
        """Again and again, until it is done or ``until`` has passed."""
        for pause in _growing(_FIRST_RETRY_S, _LONGEST_RETRY_S):
            try:
                return await work()
            except _HOPELESS:
                raise
            except OncewardError as error:
                why = str(error)
            except Exception as error:  # noqa: BLE001 - a plug-in may raise anything, and readers wait
                _log.exception("job=%s event=orphan_failed", self.job)
                why = repr(error)
            if until is not None and self._around.wall() >= until:
                return None
            self.doing = f"waits, and tries again every {pause:.0f} s: {why}"
            _log.warning("job=%s event=orphan_waits seconds=%.1f detail=%r", self.job, pause, why)
            await asyncio.sleep(pause)
        return None


def _growing(first: float, longest: float) -> Iterator[float]:
    """Seconds, doubled each time, each between half and all of it: what failed together does not come back together."""
    while True:
        yield random.uniform(first / 2, first)
        first = min(longest, first * 2)


def _raise_first(answers: Iterable[object]) -> None:
    for answer in answers:
        if isinstance(answer, OncewardError):
            raise answer
