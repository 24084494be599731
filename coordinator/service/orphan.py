"""One job without a driver: wait for the grace time, take the job, settle it, and look for latecomers for a while."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from onceward.common.backoff import Backoff
from onceward.common.errors import FencedError, HaltedError, OncewardError
from onceward.common.killpoints import KillPoint, kill_point
from onceward.common.links import Links
from onceward.common.printable import log_fields, logger
from onceward.coordinator.service.orphan_systems import HOPELESS, OrphanSystems
from onceward.coordinator.service.systems import Systems
from onceward.coordinator.service.thread_lanes import ThreadLanes
from onceward.protocol import orphans
from onceward.protocol.answers import Answer, Verdict
from onceward.protocol.durable import Durable
from onceward.protocol.events import Event, Settle, TakeOrphan
from onceward.protocol.state import JobState
from onceward.protocol.status import JobStatus
from onceward.protocol.values import (
    CheckpointId,
    Committable,
    CompletedCheckpoint,
    JobName,
    Outcome,
    ParticipantName,
    Settlement,
)

__all__ = ["NO_CLUSTERS", "Orphan", "Pace", "Surroundings"]

_log = logger("onceward.coordinator")

NO_CLUSTERS = (
    "its transactions cannot be ended by this coordinator, which was started without --systems: what is open holds "
    "readers back until its driver is back, or until the brokers' timeout"
)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Pauses double each time, and each is shortened at random by up to half, so that jobs that
    failed together do not retry together."""

    first_retry_s: float = 0.5
    longest_retry_s: float = 60.0
    first_look_s: float = 1.0
    """For latecomers, most of which appear soon."""
    longest_look_s: float = 30.0
    patience_s: float = 120.0
    """After this long without answers for some commits, the known outcomes are reported and the others are retried."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What an orphan needs from the coordinator."""

    systems: Systems
    thread_lanes: ThreadLanes
    links: Links
    """Records which clusters do not answer."""
    pace: Pace
    clock: Callable[[], float]
    """Monotonic seconds; the engine's clock."""
    wall: Callable[[], datetime]
    state: Callable[[JobName], JobState]
    """The job's state on disk."""
    handle: Callable[[JobName, Event], Awaitable[Answer]]
    longest_open: Callable[[OrphanSystems], Awaitable[timedelta]]
    """How long a transaction can stay open before the brokers end it."""
    unattended_since: Callable[[JobName], Awaitable[datetime]]
    """When the job's last generation ended or, if the coordinator took it, began."""


class Orphan:
    """Handles one period in which the job has no driver. Every step is idempotent and is repeated after a crash."""

    def __init__(self, job: JobName, around: Surroundings) -> None:
        self.job = job
        self.doing = ""
        """What it does or waits for, for display; empty if nothing."""
        self._left = ""
        """Why this coordinator cannot end everything; empty if it can."""
        self._silent: Sequence[str] = ()
        """The systems that had not said who owns the job when the others were settled."""
        self.superseded = False
        """True when a driver has opened the job or the coordinator stops: end nothing more."""
        self._around = around

    async def run(self) -> None:
        """Return when nothing remains to be done until a driver has come and gone."""
        try:
            due = orphans.due(self._state)
            if due is not None:
                await self._wait_for_a_driver(due)
            if due is not None or self._durable.orphaned:
                if not self._around.systems.names:
                    self.doing = "" if self._durable.orphaned and self._durable.settled else NO_CLUSTERS
                    return
                await self._with_patience(self._settle)
            if self._is_left_for_good:
                await self._look_for_latecomers()
        except HOPELESS as error:
            self._leave(f"the coordinator leaves it as it is: {error}", error)

    @property
    def _state(self) -> JobState:
        return self._around.state(self.job)

    @property
    def _durable(self) -> Durable:
        return self._state.durable

    @property
    def _halted(self) -> bool:
        return self._durable.status is JobStatus.HALTED

    @property
    def _clusters(self) -> OrphanSystems:
        return OrphanSystems(self._durable, self._around.systems, self._around.thread_lanes, self._around.links)

    async def _wait_for_a_driver(self, due: float) -> None:
        seconds = max(0.0, due - self._around.clock())
        until = self._around.wall() + timedelta(seconds=seconds)
        # A halted job waits for a person; only what is open at the brokers waits for a driver.
        what = "leaves what is open to its driver" if self._halted else "waits for its driver"
        self.doing = f"{what} until {until.astimezone():%H:%M:%S}"
        await asyncio.sleep(seconds)

    async def _settle(self) -> None:
        """Do all steps from the start; steps that were done before find nothing to do."""
        self.doing = "asks the clusters who owns the job"
        claims = await self._clusters.claims(hurry=not self._silent)
        found = tuple(filter(None, claims.values()))
        event = TakeOrphan(now=self._around.clock(), holder=secrets.token_hex(16), claims=found)
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
        await self._clusters.check()
        self.doing = "claims it on its cluster"
        await self._clusters.take_claim(claims)
        self.doing = "aborts undecided transactions"
        # These are different transactions, perhaps on different clusters: neither needs to wait for the other.
        troubles = await asyncio.gather(
            self._abort_undecided(claims), self._commit_decided(claims), return_exceptions=True
        )
        self._silent = self._clusters.silent(claims)
        _raise_worst(trouble for trouble in troubles if trouble is not None)
        if self._silent:
            raise OncewardError(
                f"{', '.join(self._silent)} has not said who owns the job: nothing of it is ended there before. Check "
                "the brokers"
            )
        self._leave_what_is_missing()

    def _leave_what_is_missing(self) -> None:
        """Report what this coordinator cannot end for want of a system or its kind. All else is settled."""
        missing = self._clusters.missing()
        if missing is None:
            self.doing = ""
        else:
            self._left = f"the coordinator leaves what it cannot reach: {missing}"
            self._leave(self._left, missing)

    def _leave(self, doing: str, why: Exception) -> None:
        self.doing = doing
        _log.error("%s", log_fields({"job": self.job, "event": "orphan_left", "detail": why}))

    async def _abort_undecided(self, among: Collection[str]) -> None:
        await self._clusters.sweep(among)
        kill_point(KillPoint.ORPHAN_AFTER_ABORT)

    async def _commit_decided(self, among: Collection[str]) -> None:
        """Commit what is decided, except what is known to be lost, on the systems ``among``. Do nothing while a person
        has to decide. No sink waits for another, but what may halt the job is reported last: only a person continues it
        then."""
        durable, completed = self._durable, self._durable.completed
        if completed is None or completed.settled or self._halted:
            return
        left = {
            name: [
                committable
                for committable in snapshot.committables
                if committable.slot not in durable.replaying.get(name, frozenset())
                and committable.slot not in self._state.settled_slots.get(name, frozenset())
            ]
            for name, snapshot in sorted(completed.snapshots.items())
        }
        give_up_at = self._around.clock() + self._around.pace.patience_s
        here = {name: held for name, held in left.items() if held and self._clusters.missing(name) is None}
        works = [
            asyncio.create_task(self._commit(completed.id, held, among, give_up_at))
            for held in self._clusters.divided(here)
        ]
        unproved: list[tuple[ParticipantName, Sequence[Settlement]]] = []
        troubles: list[BaseException] = []
        try:
            for work in asyncio.as_completed(works):
                try:
                    settled = await work
                except OncewardError as error:
                    troubles.append(error)
                    continue
                for name, settlements in settled.items():
                    if all(one.outcome is Outcome.COMMITTED for one in settlements):
                        await self._report(durable, completed, name, settlements)
                    else:
                        unproved.append((name, settlements))
                    if len(settlements) < len(left[name]):
                        troubles.append(
                            OncewardError(
                                f"{len(left[name]) - len(settlements)} commits of checkpoint {completed.id} are "
                                "unanswered and are retried until answered. Check the brokers"
                            )
                        )
        finally:
            for one in works:
                one.cancel()
        for name, settlements in unproved:
            await self._report(durable, completed, name, settlements)
        _raise_worst(troubles)

    async def _commit(
        self,
        checkpoint: CheckpointId,
        held: Mapping[ParticipantName, Sequence[Committable]],
        among: Collection[str],
        give_up_at: float,
    ) -> Mapping[ParticipantName, Sequence[Settlement]]:
        """Commit what one sink has, or several that are committed together, wait until readers see it, and return the
        outcomes that are known."""
        self.doing = f"commits {sum(map(len, held.values()))} transactions of checkpoint {checkpoint}"

        def give_up() -> bool:
            return self.superseded or self._around.clock() > give_up_at

        if len(held) > 1:
            found = await self._clusters.commit_together(held, give_up, among)
        else:
            found = {name: await self._clusters.commit(name, each, give_up, among) for name, each in held.items()}
        kill_point(KillPoint.ORPHAN_AFTER_COMMIT)
        for name, settlements in found.items():
            if known := {one.slot for one in settlements}:
                await self._await_ends(name, [one for one in held[name] if one.slot in known], give_up_at)
        return {name: found.get(name, ()) for name in held}

    async def _report(
        self,
        durable: Durable,
        completed: CompletedCheckpoint,
        name: ParticipantName,
        settlements: Sequence[Settlement],
    ) -> None:
        if settlements:
            event = Settle(
                now=self._around.clock(),
                generation=durable.generation,
                checkpoint=completed.id,
                participant=name,
                settlements=tuple(settlements),
                amendment=completed.amendment,
            )
            self._require_taken(await self._around.handle(self.job, event))

    async def _await_ends(self, name: ParticipantName, committed: Sequence[Committable], give_up_at: float) -> None:
        """Wait until readers see the commits. Settling may end the job, and then readers must see everything. The
        brokers confirm a commit when it is decided; readers see it a moment later."""
        looks = Backoff(first=0.01, longest=1.0)
        while left := await self._clusters.ending(name, committed):
            self.doing = f"waits until {len(left)} decided transactions show to readers"
            if self._around.clock() > give_up_at:
                raise OncewardError(
                    f"{len(left)} transactions are decided, and their ends are not written to all their partitions "
                    f"yet, the first is {left[0]}: readers do not see their records. Nothing is lost, the brokers go "
                    "on writing them. Look for output partitions without a leader"
                )
            await asyncio.sleep(looks.next())

    def _require_taken(self, answer: Answer) -> None:
        if answer.verdict is Verdict.FENCED:
            raise FencedError("a driver has opened the job meanwhile, and settles it")
        if answer.verdict not in (Verdict.ACCEPTED, Verdict.DUPLICATE):
            raise OncewardError(f"the outcomes were not taken: {answer.verdict.value}: {answer.detail}")

    @property
    def _is_left_for_good(self) -> bool:
        """True when the last driver does not return, and it is known which transactions are decided."""
        durable = self._durable
        ended = durable.driver is None and durable.status in (JobStatus.FINISHED, JobStatus.CANCELLED)
        return (ended or durable.orphaned) and not durable.unreadable and bool(self._around.systems.names)

    async def _look_for_latecomers(self) -> None:
        """Sweep for as long as a transaction can last: a task that slept through the end of its job may still open
        one."""
        pace, around, since = self._around.pace, self._around, await self._around.unattended_since(self.job)
        # The time of day says only how long ago that was, which no other clock knows after a restart. It may jump.
        now, begun = around.wall(), around.clock()
        ago = max(timedelta(), now - since)
        longest = await around.longest_open(self._clusters)
        end, shown = begun + (longest - ago).total_seconds(), now + longest - ago
        looks = Backoff(first=pace.first_look_s, longest=pace.longest_look_s)
        while (left := end - around.clock()) > 0:
            self.doing = f"looks for transactions of late tasks until {shown.astimezone():%H:%M:%S}"
            await asyncio.sleep(min(looks.next(), left))
            await self._fails(self._clusters.sweep)  # on failure, the next sweep follows soon
        self.doing = self._left

    async def _with_patience(self, work: Callable[[], Awaitable[None]]) -> None:
        """Retry ``work`` with growing pauses until it succeeds."""
        backoff = Backoff(first=self._around.pace.first_retry_s, longest=self._around.pace.longest_retry_s)
        while True:
            why = await self._fails(work)
            if why is None:
                return
            pause = backoff.next()
            self.doing = f"waits {pause:.1f} s and tries again: {why}"
            await asyncio.sleep(pause)

    async def _fails(self, work: Callable[[], Awaitable[None]]) -> str | None:
        """Do ``work``. Return why it cannot be done now, None when it is done. Raises errors that a retry will not
        help."""
        try:
            await work()
        except HOPELESS:
            raise
        except OncewardError as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 - a plug-in may raise anything, and readers wait
            why = repr(error)
        else:
            return None
        _log.warning("%s", log_fields({"job": self.job, "event": "orphan_waits", "detail": why}))
        return why


def _raise_worst(troubles: Iterable[BaseException]) -> None:
    """Raise one of ``troubles``, if there are any: first what a retry will not help."""
    for trouble in sorted(troubles, key=lambda one: not isinstance(one, HOPELESS)):
        raise trouble
