"""What the coordinator does for jobs without a driver, with a system that records its calls."""

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from onceward.common.errors import ClaimChangedError, HaltedError, OncewardError
from onceward.coordinator.service.documents import Checkers
from onceward.coordinator.service.engine import Engine
from onceward.coordinator.service.group_commit import GroupCommit
from onceward.coordinator.service.orphan import NO_CLUSTERS, Pace
from onceward.coordinator.service.orphans import Orphans
from onceward.coordinator.service.systems import Systems
from onceward.coordinator.service.thread_lanes import ThreadLanes
from onceward.coordinator.store.store import Store
from onceward.protocol.answers import Verdict
from onceward.protocol.committing import Age, OpenTransaction, Part, Place, PreCommitted, System
from onceward.protocol.durable import Durable
from onceward.protocol.events import (
    Acknowledge,
    Amend,
    CloseJob,
    CloseReason,
    OpenJob,
    Settle,
    StopJob,
    Tick,
    Watch,
)
from onceward.protocol.kinds import NamedSystem
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.status import JobStatus
from onceward.protocol.values import (
    NO_GENERATION,
    Author,
    CheckpointId,
    Claim,
    Committable,
    Generation,
    JobName,
    OnLost,
    Outcome,
    Participant,
    ParticipantName,
    Settlement,
)
from tests.support.scripted import SINK, positions, slots
from tests.support.scripted import SOURCE as LATER_SOURCE
from tests.support.stored_jobs import change

JOB = JobName("orders")
SOURCE = replace(LATER_SOURCE, name=ParticipantName("input"))
"""Sorts before the sink by name, and has nothing to commit."""
ANOTHER = replace(SINK, name=ParticipantName("another"))
SETTINGS = CheckpointSettings(interval="1h", lease="1s", stream_grace=0, orphan_grace="1s")
PACE = Pace(first_retry_s=0.01, longest_retry_s=0.02, first_look_s=0.01, longest_look_s=0.02, patience_s=60.0)


@dataclass
class Brokers:
    """The state that all systems of a test share: their answers, and a record of their calls."""

    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """Outcome by slot; COMMITTED by default."""
    claims: list[Claim] = field(default_factory=list)
    longest_open: float = 60.0
    """Seconds."""
    trouble: dict[str, list[Exception]] = field(default_factory=dict)
    """Errors by method and cluster, raised one after the other."""
    together: str = ""
    """What all that is committed shares."""
    places: tuple[str, str] = ("main", "main")
    """The clusters of the slots."""
    stuck: str = ""
    """A cluster that never answers."""
    slow: set[int] = field(default_factory=set)
    """Slots whose first commit gets no answer."""
    ending: threading.Event = field(default_factory=threading.Event)
    """While set, commits are decided but not visible."""
    silent: threading.Event = field(default_factory=threading.Event)
    """While set, no commit gets an answer."""
    asked: list[tuple[str, str, int | None]] = field(default_factory=list)
    """Method, cluster, generation of each call."""
    kept: list[int] = field(default_factory=list)
    """Slots that the last sweep had to spare."""
    committed: list[list[int]] = field(default_factory=list)
    """Slots of each requested commit."""
    closed: int = 0

    def count(self, method: str) -> int:
        return sum(asked == method for asked, _, _ in self.asked)


class FakeSystem(System):
    """A cluster, which is its name here."""

    def __init__(self, brokers: Brokers, cluster: str, generation: Callable[[], int | None]) -> None:
        self._brokers, self._cluster, self._generation = brokers, cluster, generation

    def id(self) -> str:
        self._asked("id")
        return self._cluster

    def place(self, committable: Committable) -> Place:
        cluster = self._brokers.places[committable.slot]
        return Place(id=cluster, name=cluster)

    def check(self, author: Author, committables: Sequence[Committable]) -> None:
        assert (author.job, author.generations[-1]) == (JOB, self._generation())
        assert author.participant in (SINK.name, ANOTHER.name)
        self._asked("check")

    def commit(
        self,
        author: Author,
        committables: Sequence[Committable],
        *,
        give_up: Callable[[], bool] = lambda: False,
        known: PreCommitted | None = None,
    ) -> Sequence[Settlement]:
        self._asked("commit")
        self._brokers.committed.append([one.slot for one in committables])
        while self._brokers.silent.is_set():
            if give_up():
                return ()
            time.sleep(0.001)
        outcomes, answered = self._brokers.outcomes, [one for one in committables if one.slot not in self._brokers.slow]
        self._brokers.slow -= {one.slot for one in committables}
        return [
            Settlement(slot=one.slot, outcome=outcomes.get(one.slot, Outcome.COMMITTED), evidence="seen")
            for one in answered
        ]

    def together(self, committable: Committable) -> str:
        return self._brokers.together

    def commit_together(
        self, parts: Sequence[Part], *, give_up: Callable[[], bool] = lambda: False
    ) -> Sequence[Sequence[Settlement]]:
        self._asked("commit together")
        assert all(one.author.participant in (SINK.name, ANOTHER.name) for one in parts)
        return [one.system.commit(one.author, one.committables, give_up=give_up) for one in parts]

    def abort(self, author: Author, committables: Sequence[Committable]) -> None:
        self._asked("abort")

    def outcome(self, committable: Committable) -> Settlement:
        return Settlement(slot=committable.slot, outcome=Outcome.IN_DOUBT, evidence="not seen")

    def leftovers(self, job: JobName, *, keep: Collection[Committable] = ()) -> Sequence[str]:
        return ()

    def transactions(self, job: JobName) -> Sequence[OpenTransaction]:
        return ()

    def ending(self, job: JobName, *, beside: Collection[Committable] = ()) -> Sequence[str]:
        self._asked("ending")
        return ["orders.sink.1.a.0"] if self._brokers.ending.is_set() else []

    def describe(self, committable: Committable) -> str:
        return f"records of slot {committable.slot}"

    def age(self, committable: Committable) -> Age:
        minutes = timedelta(minutes=committable.slot + 1)
        return Age(transaction=f"t{committable.slot}", open_for=minutes, timeout=timedelta(minutes=15))

    def sweep(self, job: JobName, *, keep: Collection[Committable] = (), **_: Any) -> Sequence[str]:
        self._asked("sweep")
        self._brokers.kept = [one.slot for one in keep]
        return ["left.open"]

    def read_claim(self, job: JobName, *, certain: bool = False) -> Claim | None:
        assert certain, "it takes a job without a claim for one that was never claimed"
        self._asked("claims")
        return next(iter(self._brokers.claims), None)

    def take_claim(self, job: JobName, claim: Claim, seen: Collection[Claim]) -> None:
        self._asked("take")
        if not set(self._brokers.claims) <= set(seen):
            raise ClaimChangedError("the job was claimed meanwhile")
        self._brokers.claims = [claim]

    def renew_claim(self, *_: Any, **__: Any) -> bool:
        raise NotImplementedError

    def longest_open(self) -> timedelta:
        return timedelta(seconds=self._brokers.longest_open)

    def close(self) -> None:
        self._brokers.closed += 1

    def _asked(self, method: str) -> None:
        self._brokers.asked.append((method, self._cluster, self._generation()))
        while self._cluster == self._brokers.stuck:
            time.sleep(0.001)
        waiting = self._brokers.trouble.get(f"{method} {self._cluster}")
        if waiting:
            raise waiting.pop(0)


class Here:
    """A coordinator with a clock that the test sets."""

    def __init__(self, directory: Path, brokers: Brokers, clusters: Sequence[str]) -> None:
        self.brokers = brokers
        self.sinks: tuple[Participant, ...] = (SINK,)
        self.now = 0.0
        self.later = timedelta()
        """How far the orphans' time of day is ahead."""
        self.store = Store.open(f"sqlite:///{directory}/store.db")
        self.engine = Engine(
            self.store,
            clock=lambda: self.now,
            wall=lambda: datetime.now(UTC),
            checkers=Checkers({}),
            changed=lambda job: self.orphans.changed(job),
        )
        self.group_commit = GroupCommit(self.engine)

        def plugin(cluster: str, *, generation: Callable[[], int | None] = lambda: None) -> System:
            return FakeSystem(brokers, cluster, generation)

        systems = {name: NamedSystem(kind="test", configuration=name) for name in clusters}
        tables = {"tables": NamedSystem(kind="tables", configuration=None)} if clusters else {}
        known = Systems({"test": plugin}, systems | tables)
        self.orphans = Orphans(
            self.engine, self.group_commit, known, wall=lambda: datetime.now(UTC) + self.later, pace=PACE
        )

    @property
    def generation(self) -> int:
        return self.engine.state(JOB).durable.generation

    @property
    def settled(self) -> bool:
        return self.engine.state(JOB).settled

    async def open(self, *, on_lost: OnLost = OnLost.HALT, takeover: bool = False) -> Generation:
        sinks = [replace(sink, on_lost=on_lost) for sink in self.sinks]
        event = OpenJob(
            now=self.engine.clock(),
            driver=f"d{time.monotonic_ns()}",
            participants=(SOURCE, *sinks),
            settings=SETTINGS,
            claim=None,
            instead_of=self.engine.state(JOB).durable.generation if takeover else NO_GENERATION,
        )
        answer = await self.group_commit.handle(JOB, event)
        assert answer.grant is not None, answer
        await self.group_commit.handle(JOB, Watch(now=self.engine.clock(), generation=answer.grant.generation))
        return answer.grant.generation

    async def complete(self, generation: Generation) -> CheckpointId:
        """Complete the pending checkpoint, with two slots to commit unless it is the first one."""
        pending = self.engine.state(JOB).durable.pending
        assert pending is not None
        first = pending.base == 0
        for participant, snapshot in (
            (SOURCE, positions(int(pending.id))),
            *((sink, slots(int(pending.id), 0 if first else 2)) for sink in self.sinks),
        ):
            event = Acknowledge(
                now=self.engine.clock(),
                generation=generation,
                checkpoint=pending.id,
                participant=participant.name,
                base=pending.base,
                snapshot=snapshot,
            )
            assert (await self.group_commit.handle(JOB, event)).verdict is Verdict.ACCEPTED
        return pending.id

    async def orphan(
        self, *, on_lost: OnLost = OnLost.HALT, stop: bool = False, takeover: bool = False
    ) -> CheckpointId:
        """Leave a job with a completed, unsettled checkpoint and no driver; ``stop``: after a request to stop."""
        generation = await self.open(on_lost=on_lost, takeover=takeover)
        await self.complete(generation)
        self.now += 3600  # the interval
        await self.group_commit.handle(JOB, Tick(now=self.engine.clock()))
        checkpoint = await self.complete(generation)
        if stop:
            await self.group_commit.handle(JOB, StopJob(now=self.engine.clock()))
        await self.leave(generation)
        return checkpoint

    def after_the_grace_time(self) -> None:
        """Let the grace time pass and start looking after jobs without a driver."""
        self.now += SETTINGS.seconds("orphan_grace")
        self.orphans.start()

    async def settle(self, generation: Generation, checkpoint: CheckpointId, *settlements: Settlement) -> None:
        event = Settle(
            now=self.engine.clock(),
            generation=generation,
            checkpoint=checkpoint,
            participant=SINK.name,
            settlements=settlements,
        )
        assert (await self.group_commit.handle(JOB, event)).verdict is Verdict.ACCEPTED

    async def leave(self, generation: Generation, reason: CloseReason = CloseReason.FAILED) -> None:
        event = CloseJob(now=self.engine.clock(), generation=generation, reason=reason)
        assert (await self.group_commit.handle(JOB, event)).verdict is Verdict.ACCEPTED


async def until(condition: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.002)


Body = Callable[[Here], Coroutine[Any, Any, None]]


def play(directory: Path, body: Body, brokers: Brokers | None = None, clusters: Sequence[str] = ("main",)) -> None:
    async def run() -> None:
        here = Here(directory, brokers or Brokers(), clusters)
        here.group_commit.start()
        try:
            await body(here)
        finally:
            await here.orphans.stop()
            await here.group_commit.stop()
            here.store.close()

    asyncio.run(run())


def test_undecided_checkpoints_are_aborted_and_completed_ones_committed(tmp_path: Path) -> None:
    brokers = Brokers()

    async def body(here: Here) -> None:
        checkpoint = await here.orphan()
        brokers.claims = [Claim(store_id=here.engine.store_id, generation=Generation(1), completed=CheckpointId(1))]
        here.after_the_grace_time()
        await until(lambda: here.settled, "everything is settled")
        assert here.generation == 2
        assert here.engine.state(JOB).durable.status is JobStatus.SUSPENDED
        assert brokers.asked[:3] == [("claims", "main", 1), ("check", "main", 2), ("take", "main", 2)]
        assert sorted(brokers.asked[3:5]) == [("commit", "main", 2), ("sweep", "main", 2)]
        (claim,) = brokers.claims
        assert (claim.store_id, claim.generation, claim.completed) == (here.engine.store_id, 2, checkpoint)
        await until(lambda: brokers.count("sweep") > 2, "it looks for latecomers")
        await here.orphans.stop()
        # one more committer answered how long a transaction lasts
        await until(lambda: brokers.closed == len(brokers.asked) + 1, "all connections are closed")
        assert (brokers.count("claims"), brokers.count("commit")) == (1, 1), "it was done twice"

    play(tmp_path, body, brokers)


def test_what_is_forged_is_left_alone_before_anything_is_claimed_swept_or_committed(tmp_path: Path) -> None:
    brokers = Brokers(trouble={"check main": [HaltedError("it names another's transaction")] * 9})

    async def body(here: Here) -> None:
        await here.orphan()
        brokers.claims = [Claim(store_id=here.engine.store_id, generation=Generation(1), completed=CheckpointId(1))]
        here.after_the_grace_time()
        await until(lambda: "another's transaction" in here.orphans.doing(JOB), "it says why")
        assert [method for method, _, _ in brokers.asked] == ["claims", "check"]
        assert not here.settled

    play(tmp_path, body, brokers)


def test_partly_answered_commits_are_reported_and_the_rest_retried(tmp_path: Path) -> None:
    brokers = Brokers(slow={1})

    async def body(here: Here) -> None:
        await here.orphan()
        here.after_the_grace_time()
        await until(lambda: here.settled, "everything is settled")
        assert brokers.committed == [[0, 1], [1]]

    play(tmp_path, body, brokers)


def test_an_amended_slot_is_committed_as_amended(tmp_path: Path) -> None:
    brokers = Brokers()

    async def body(here: Here) -> None:
        generation = await here.open(on_lost=OnLost.REPLAY)
        await here.complete(generation)
        here.now += 3600
        await here.group_commit.handle(JOB, Tick(now=here.now))
        checkpoint = await here.complete(generation)
        lost = Settlement(slot=1, outcome=Outcome.LOST, evidence="seen")
        await here.settle(generation, checkpoint, lost)
        amend = Amend(
            now=here.now,
            generation=generation,
            checkpoint=checkpoint,
            participant=SINK.name,
            amendment=0,
            slots=frozenset({1}),
            committables=slots(9, 2).committables[1:],
        )
        assert (await here.group_commit.handle(JOB, amend)).verdict is Verdict.ACCEPTED
        await here.leave(generation)
        here.after_the_grace_time()
        await until(lambda: here.settled, "everything is settled")
        assert brokers.committed == [[0, 1]]

    play(tmp_path, body, brokers)


@pytest.mark.parametrize(("patience", "said"), [(60.0, "show to readers"), (-1.0, "readers do not see their records")])
def test_a_job_is_ended_only_when_its_commits_show_to_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: float, said: str
) -> None:
    brokers = Brokers()
    brokers.ending.set()

    async def body(here: Here) -> None:
        await here.orphan(stop=True)
        here.after_the_grace_time()
        await until(lambda: brokers.count("ending") > 2, "it looks again")
        await until(lambda: said in here.orphans.doing(JOB), "it says what it waits for")
        assert (here.settled, here.engine.state(JOB).durable.status) == (False, JobStatus.SUSPENDED)
        brokers.ending.clear()
        await until(lambda: here.settled, "everything is settled")
        assert here.engine.state(JOB).durable.status is JobStatus.FINISHED

    monkeypatch.setattr("tests.unit.service.test_orphans.PACE", replace(PACE, patience_s=patience))
    play(tmp_path, body, brokers)


def test_the_first_sweep_leaves_decided_transactions_alone(tmp_path: Path) -> None:
    brokers = Brokers()
    brokers.silent.set()

    async def body(here: Here) -> None:
        await here.orphan()
        here.after_the_grace_time()
        await until(lambda: brokers.count("commit"), "commits are asked for")
        await until(lambda: brokers.kept == [0, 1], "the sweep has begun, in a thread of its own")
        brokers.silent.clear()
        await until(lambda: brokers.count("sweep") > 1, "it looks for latecomers")
        assert brokers.kept == []

    play(tmp_path, body, brokers)


def test_before_the_grace_time_nothing_is_touched(tmp_path: Path) -> None:
    async def body(here: Here) -> None:
        await here.orphan()
        here.orphans.start()
        await until(lambda: "waits for its driver" in here.orphans.doing(JOB), "it waits")
        assert (here.brokers.asked, here.generation) == ([], 1)

    play(tmp_path, body)


def test_a_halted_job_is_not_said_to_wait_for_its_driver(tmp_path: Path) -> None:
    async def body(here: Here) -> None:
        generation = await here.open()
        await here.leave(generation, CloseReason.HALTED)
        here.orphans.start()
        await until(lambda: here.orphans.doing(JOB), "it waits")
        assert here.orphans.doing(JOB).startswith("leaves what is open to its driver until ")

    play(tmp_path, body)


def test_without_clusters_it_reports_that_it_can_end_nothing(tmp_path: Path) -> None:
    async def body(here: Here) -> None:
        await here.orphan()
        here.after_the_grace_time()
        await until(lambda: here.orphans.doing(JOB) == NO_CLUSTERS, "it says so")
        assert (here.brokers.asked, here.generation) == ([], 1)

    play(tmp_path, body, clusters=())


@pytest.mark.parametrize(
    ("outcome", "said"), [(Outcome.COMMITTED, ""), (Outcome.IN_DOUBT, NO_CLUSTERS)], ids=["settled", "halted"]
)
def test_without_clusters_it_reports_orphans_that_an_earlier_coordinator_left_unsettled(
    tmp_path: Path, outcome: Outcome, said: str
) -> None:
    brokers = Brokers(outcomes={1: outcome})

    async def body(here: Here) -> None:
        await here.orphan()
        here.after_the_grace_time()
        await until(lambda: "late tasks" in here.orphans.doing(JOB), "it is done with what it can do")

    async def later(here: Here) -> None:
        here.orphans.start()
        for _ in range(20):
            await asyncio.sleep(0)
        assert here.orphans.doing(JOB) == said
        assert brokers.asked == []

    play(tmp_path, body, brokers)
    brokers.asked.clear()
    play(tmp_path, later, brokers, clusters=())


@pytest.mark.parametrize(("clusters", "reported"), [(("main",), "t1"), ((), None)])
def test_an_orphans_oldest_open_decided_transaction_is_reported(
    tmp_path: Path, clusters: Sequence[str], reported: str | None
) -> None:
    async def body(here: Here) -> None:
        def oldest(durable: Durable) -> Age | None:
            here.orphans.look(durable)
            return here.orphans.oldest(durable)

        await here.leave(await here.open())
        assert oldest(here.engine.state(JOB).durable) is None, "nothing is decided"
        await here.orphan(takeover=True)
        unsettled = here.engine.state(JOB).durable
        found = oldest(unsettled)
        assert (found.transaction if found is not None else None) == reported
        another = replace(unsettled.completed, amendment=1)  # type: ignore[type-var]
        assert here.orphans.oldest(replace(unsettled, completed=another)) is None, "nothing is known of another one"
        if clusters:
            here.after_the_grace_time()
            await until(lambda: here.settled, "everything is settled")
        assert oldest(replace(unsettled, completed=None)) is None
        settled = replace(here.engine.state(JOB).durable.completed, settled=True)  # type: ignore[type-var]
        assert oldest(replace(unsettled, completed=settled)) is None

    play(tmp_path, body, clusters=clusters)


def test_silent_brokers_are_retried_and_the_listing_shows_it(tmp_path: Path) -> None:
    brokers = Brokers(trouble={"sweep main": [OncewardError("no broker answers")] * 3})
    said: set[str] = set()

    async def body(here: Here) -> None:
        await here.orphan()
        here.after_the_grace_time()

        def settled() -> bool:
            said.add(here.orphans.doing(JOB))
            return here.settled and brokers.count("sweep") > 3

        await until(settled, "everything is settled")
        assert any("no broker answers" in text for text in said), said
        assert {method for method, _, _ in brokers.asked[2:4]} == {"sweep", "commit"}, "commits waited for the sweep"
        assert brokers.count("commit") == 1, "commits were repeated"

    play(tmp_path, body, brokers)


def test_a_failing_plug_in_is_retried(tmp_path: Path) -> None:
    brokers = Brokers(trouble={"commit main": [RuntimeError("a bug")]})

    async def body(here: Here) -> None:
        await here.orphan()
        here.after_the_grace_time()
        await until(lambda: here.settled, "everything is settled")
        assert brokers.count("commit") == 2

    play(tmp_path, body, brokers)


def test_a_cluster_that_does_not_answer_holds_up_no_other(tmp_path: Path) -> None:
    brokers = Brokers(stuck="b", places=("a", "a"))

    async def body(here: Here) -> None:
        brokers.claims = [Claim(store_id=here.engine.store_id, generation=Generation(1), completed=CheckpointId(1))]
        await here.orphan()
        here.after_the_grace_time()
        await until(lambda: here.settled, "what is on the other cluster is settled")
        await until(lambda: ("sweep", "a", 2) in brokers.asked, "the other cluster is swept")
        assert ("commit", "a", 2) in brokers.asked
        assert ("take", "b", 2) not in brokers.asked, "it waited for a cluster of which nothing is known"
        brokers.stuck = ""
        await until(lambda: ("sweep", "b", 2) in brokers.asked, "it is done everywhere")

    play(tmp_path, body, brokers, clusters=("a", "b"))


def test_nothing_is_ended_on_a_cluster_before_it_is_claimed_there(tmp_path: Path) -> None:
    brokers = Brokers(trouble={"claims b": [OncewardError("no broker answers")]}, places=("a", "b"))

    async def body(here: Here) -> None:
        brokers.claims = [Claim(store_id=here.engine.store_id, generation=Generation(1), completed=CheckpointId(1))]
        await here.orphan()
        here.after_the_grace_time()
        await until(lambda: here.settled, "everything is settled")
        assert brokers.committed[0] == [0], "the other cluster waits for none"
        ending = ("take", "sweep", "commit")
        assert next(method for method, cluster, _ in brokers.asked if cluster == "b" and method in ending) == "take"

    play(tmp_path, body, brokers, clusters=("a", "b"))


def test_each_commit_is_sent_to_its_own_cluster(tmp_path: Path) -> None:
    brokers = Brokers(trouble={"id b": [OncewardError("no broker answers")]}, places=("b", "a"))

    async def body(here: Here) -> None:
        await here.orphan()
        here.after_the_grace_time()
        await until(lambda: here.settled, "everything is settled")
        commits = [
            (asked[1], slots)
            for asked, slots in zip(
                (asked for asked in brokers.asked if asked[0] == "commit"), brokers.committed, strict=True
            )
        ]
        assert commits == [("a", [1]), ("b", [0])], "the cluster that did not answer at first is asked later"

    play(tmp_path, body, brokers, clusters=("a", "b"))


def test_sinks_that_belong_together_are_committed_by_one_call_on_all_their_systems_or_on_none(tmp_path: Path) -> None:
    brokers = Brokers(trouble={"claims b": [OncewardError("no answer")] * 2}, places=("a", "b"), together="catalogue")

    async def body(here: Here) -> None:
        here.sinks = (SINK, ANOTHER)
        brokers.claims = [Claim(store_id=here.engine.store_id, generation=Generation(1), completed=CheckpointId(1))]
        await here.orphan()
        here.after_the_grace_time()
        await until(lambda: here.settled, "everything is settled")
        asked = [(method, cluster) for method, cluster, _ in brokers.asked]
        assert asked.count(("commit together", "a")) == 1
        assert brokers.committed == [[0], [1]] * 2
        assert asked.index(("take", "b")) < asked.index(("commit together", "a")), "it waits until it is sure of both"

    play(tmp_path, body, brokers, clusters=("a", "b"))


def test_nothing_is_committed_together_where_one_is_on_no_known_cluster(tmp_path: Path) -> None:
    brokers = Brokers(places=("a", "elsewhere"), together="catalogue")

    async def body(here: Here) -> None:
        here.sinks = (SINK, ANOTHER)
        await here.orphan()
        here.after_the_grace_time()
        await until(lambda: "elsewhere" in here.orphans.doing(JOB), "it says which cluster is missing")
        assert brokers.committed == []
        assert not here.settled

    play(tmp_path, body, brokers, clusters=("a", "b"))


def test_what_is_on_no_known_cluster_is_committed_nowhere(tmp_path: Path) -> None:
    brokers = Brokers(places=("a", "elsewhere"))

    async def body(here: Here) -> None:
        await here.orphan()
        here.after_the_grace_time()
        await until(lambda: "elsewhere" in here.orphans.doing(JOB), "it says which cluster is missing")
        assert {tuple(slots) for slots in brokers.committed} == {(0,)}
        assert not here.settled

    play(tmp_path, body, brokers, clusters=("a", "b"))


def test_a_job_counts_as_unclaimed_only_after_every_cluster_answered(tmp_path: Path) -> None:
    brokers = Brokers(trouble={"claims b": [OncewardError("no broker answers")] * 3}, places=("a", "b"))

    async def body(here: Here) -> None:
        await here.orphan()
        here.after_the_grace_time()
        await until(lambda: here.settled, "everything is settled")
        asked = [asked for asked in brokers.asked if asked[0] in ("claims", "sweep")]
        assert [method for method, _, _ in asked[:8]] == ["claims"] * 8

    play(tmp_path, body, brokers, clusters=("a", "b"))


@pytest.mark.parametrize(
    "claim",
    [
        Claim(store_id="another", generation=Generation(1), completed=CheckpointId(1)),
        Claim(store_id="ours", generation=Generation(5), completed=CheckpointId(1)),
        Claim(store_id="ours", generation=Generation(1), completed=CheckpointId(9)),
    ],
    ids=["another store", "a newer generation", "a later checkpoint"],
)
def test_a_job_that_is_run_from_elsewhere_is_not_touched(tmp_path: Path, claim: Claim) -> None:
    brokers = Brokers()

    async def body(here: Here) -> None:
        brokers.claims = [replace(claim, store_id=here.engine.store_id) if claim.store_id == "ours" else claim]
        await here.orphan()
        here.after_the_grace_time()
        await until(lambda: "leaves it as it is" in here.orphans.doing(JOB), "it says why")
        assert {method for method, _, _ in brokers.asked} == {"claims"}
        assert here.generation == 1

    play(tmp_path, body, brokers)


def test_an_unreadable_job_is_left_to_a_release_that_can_read_it(tmp_path: Path) -> None:
    brokers = Brokers(trouble={"commit main": [HaltedError("a document of version 9")] * 9})
    brokers.trouble["sweep main"] = [OncewardError("no broker answers")] * 9

    async def body(here: Here) -> None:
        await here.orphan()
        here.after_the_grace_time()
        await until(lambda: "version 9" in here.orphans.doing(JOB), "it says why")
        assert (brokers.count("commit"), here.settled) == (1, False)

    play(tmp_path, body, brokers)


@pytest.mark.parametrize("on_lost", [OnLost.HALT, OnLost.REPLAY])
def test_a_proved_loss_is_kept_for_the_next_driver_or_operator(tmp_path: Path, on_lost: OnLost) -> None:
    brokers = Brokers(outcomes={1: Outcome.LOST})

    async def body(here: Here) -> None:
        await here.orphan(on_lost=on_lost)
        here.after_the_grace_time()
        await until(lambda: "late tasks" in here.orphans.doing(JOB), "it is done with what it can do")
        durable = here.engine.state(JOB).durable
        assert not durable.settled
        if on_lost is OnLost.HALT:
            assert (durable.status, durable.lost) == (JobStatus.HALTED, True)
            assert "records of slot 1" in durable.status_detail
        else:
            assert (durable.status, durable.replaying) == (JobStatus.SUSPENDED, {SINK.name: frozenset({1})})
        await until(lambda: brokers.count("sweep") > 1, "it looks for latecomers")
        assert brokers.kept == [0, 1], "what a person may have to decide about was aborted"
        assert brokers.count("commit") == 1

    play(tmp_path, body, brokers)


def test_a_driver_that_opens_the_job_stops_the_coordinators_work(tmp_path: Path) -> None:
    brokers = Brokers()
    brokers.silent.set()

    async def body(here: Here) -> None:
        checkpoint = await here.orphan()
        here.after_the_grace_time()
        await until(lambda: brokers.count("commit"), "commits are asked for")
        assert "commits 2 transactions" in here.orphans.doing(JOB)
        assert await here.open() == 3
        assert here.orphans.doing(JOB) == ""
        settlement = Settlement(slot=0, outcome=Outcome.LOST, evidence="reported too late")
        late = Settle(
            now=here.engine.clock(),
            generation=Generation(2),
            checkpoint=checkpoint,
            participant=SINK.name,
            settlements=(settlement,),
        )
        assert (await here.group_commit.handle(JOB, late)).verdict is Verdict.FENCED
        asked = len(brokers.asked)
        await until(lambda: brokers.closed == asked, "its threads have given up")
        assert len(brokers.asked) == asked, "it went on"
        assert here.engine.state(JOB).durable.status is JobStatus.RUNNING

    play(tmp_path, body, brokers)


def test_a_restarted_coordinator_continues_at_once_under_its_claim(tmp_path: Path) -> None:
    brokers, taken = Brokers(), list[Claim]()
    brokers.silent.set()

    async def first(here: Here) -> None:
        await here.orphan()
        brokers.claims = [Claim(store_id=here.engine.store_id, generation=Generation(1), completed=CheckpointId(1))]
        here.after_the_grace_time()
        await until(lambda: brokers.count("commit"), "commits are asked for")
        taken.extend(brokers.claims)
        assert [one.holder for one in taken] == [here.engine.state(JOB).durable.holders[Generation(2)]]

    async def second(here: Here) -> None:
        brokers.silent.clear()
        here.orphans.start()
        await until(lambda: here.settled, "everything is settled")
        assert here.generation == 2
        assert brokers.claims == taken
        assert brokers.count("take") == 2

    play(tmp_path, first, brokers)
    play(tmp_path, second, brokers)


def test_after_a_job_ended_late_tasks_are_swept_for_one_transaction_timeout(tmp_path: Path) -> None:
    brokers = Brokers(longest_open=3600.0)

    async def body(here: Here) -> None:
        here.orphans.start()
        generation = await here.open()
        await here.complete(generation)
        await here.leave(generation, CloseReason.FINISHED)
        await until(lambda: brokers.count("sweep") > 2, "it looks again and again")
        assert "late tasks" in here.orphans.doing(JOB)
        here.now += 3600
        await until(lambda: here.orphans.doing(JOB) == "", "it stops looking")
        assert brokers.asked[-1] == ("sweep", "main", 1), "an ended job was taken"

    async def later(here: Here) -> None:
        here.later = timedelta(seconds=3600)
        here.orphans.start()
        await asyncio.sleep(0)
        assert await here.open() == 2
        assert brokers.asked == []

    play(tmp_path, body, brokers)
    brokers.asked.clear()
    play(tmp_path, later, brokers)


@pytest.mark.parametrize("hours", [10, -10])
def test_a_time_of_day_that_jumps_neither_ends_nor_extends_the_search_for_late_tasks(
    tmp_path: Path, hours: int
) -> None:
    brokers = Brokers()

    async def body(here: Here) -> None:
        here.orphans.start()
        generation = await here.open()
        await here.complete(generation)
        await here.leave(generation, CloseReason.FINISHED)
        await until(lambda: brokers.count("sweep") > 0, "it looks")
        here.later = timedelta(hours=hours)
        looks = brokers.count("sweep")
        await until(lambda: brokers.count("sweep") > looks + 2, "it looks again and again")
        here.now += brokers.longest_open
        await until(lambda: here.orphans.doing(JOB) == "", "it stops looking")

    play(tmp_path, body, brokers)


def test_a_coordinator_whose_time_of_day_is_behind_its_predecessors_looks_no_longer_for_late_tasks(
    tmp_path: Path,
) -> None:
    brokers = Brokers()

    async def body(here: Here) -> None:
        generation = await here.open()
        await here.complete(generation)
        await here.leave(generation, CloseReason.FINISHED)

    async def later(here: Here) -> None:
        here.later = timedelta(hours=-10)
        here.orphans.start()
        await until(lambda: brokers.count("sweep") > 1, "it looks for them")
        here.now += brokers.longest_open
        await until(lambda: here.orphans.doing(JOB) == "", "it stops looking")

    play(tmp_path, body, brokers)
    play(tmp_path, later, brokers)


def test_late_tasks_are_swept_where_the_jobs_end_cannot_be_read(tmp_path: Path) -> None:
    brokers = Brokers(longest_open=3600.0)

    async def body(here: Here) -> None:
        generation = await here.open()
        await here.complete(generation)
        await here.leave(generation, CloseReason.FINISHED)

    async def later(here: Here) -> None:
        here.orphans.start()
        await until(lambda: brokers.count("sweep") > 1, "it looks for them")
        assert "late tasks" in here.orphans.doing(JOB)

    play(tmp_path, body, brokers)
    brokers.asked.clear()
    change(tmp_path / "store.db", "UPDATE generations SET ended_at = 0")
    play(tmp_path, later, brokers)


def test_a_halted_job_is_swept_and_nothing_committed_before_a_ruling(tmp_path: Path) -> None:
    brokers = Brokers(outcomes={1: Outcome.IN_DOUBT})

    async def body(here: Here) -> None:
        await here.orphan()
        here.after_the_grace_time()
        await until(lambda: here.engine.state(JOB).durable.status is JobStatus.HALTED, "the job is halted")

    async def later(here: Here) -> None:
        here.orphans.start()
        await until(lambda: "late tasks" in here.orphans.doing(JOB), "it is done with what it can do")
        assert (brokers.count("sweep"), brokers.count("commit"), brokers.kept) == (1, 0, [0, 1])

    play(tmp_path, body, brokers)
    brokers.asked.clear()
    play(tmp_path, later, brokers)


@pytest.mark.parametrize("status", [JobStatus.SUSPENDED, JobStatus.FINISHED])
def test_an_unreadable_job_is_left_alone(tmp_path: Path, status: JobStatus) -> None:
    """The decided transactions are unknown, so none is aborted."""

    async def body(here: Here) -> None:
        await here.orphan()
        durable = here.engine.state(JOB).durable
        here.engine._states[JOB] = replace(
            here.engine.state(JOB), durable=replace(durable, status=status, completed=None, unreadable="damaged")
        )
        here.after_the_grace_time()
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert here.brokers.asked == []

    play(tmp_path, body)


def test_a_new_job_that_is_refused_is_no_orphan(tmp_path: Path) -> None:
    async def body(here: Here) -> None:
        here.orphans.start()
        here.orphans.changed(JobName("refused"))
        assert here.orphans.doing(JobName("refused")) == ""

    play(tmp_path, body)


def test_a_lane_that_is_stuck_holds_up_no_other() -> None:
    async def run() -> None:
        thread_lanes, stuck = ThreadLanes(1), threading.Event()
        first, second = (asyncio.create_task(thread_lanes.run("a", stuck.wait)) for _ in range(2))
        assert await thread_lanes.run("b", lambda: 7) == 7
        first.cancel()  # its thread still runs
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert sum(thread.name == "onceward-lane" for thread in threading.enumerate()) == 1
        stuck.set()
        assert await second

    asyncio.run(run())


@pytest.mark.parametrize(
    ("kind", "why"), [("tables", "No system of kind tables is installed"), ("files", "knows no system of kind files")]
)
def test_a_kind_that_is_not_installed_leaves_only_what_needs_it_unsettled(tmp_path: Path, kind: str, why: str) -> None:
    brokers = Brokers(longest_open=0.0)

    async def body(here: Here) -> None:
        here.sinks = (SINK, replace(SINK, name=ParticipantName("another"), kind=kind))
        await here.orphan()
        brokers.claims = [Claim(store_id=here.engine.store_id, generation=Generation(1), completed=CheckpointId(1))]
        here.after_the_grace_time()
        await until(lambda: why in here.orphans.doing(JOB), "the coordinator reports what it leaves")
        state = here.engine.state(JOB)
        assert set(state.settled_slots) == {SINK.name}
        assert not state.settled
        assert {method for method, _, _ in brokers.asked} >= {"claims", "check", "take", "commit", "sweep"}

    play(tmp_path, body, brokers)


def test_a_job_that_may_be_claimed_where_it_cannot_be_asked_is_not_taken(tmp_path: Path) -> None:
    """No claim was found: another store may hold the job on the system that cannot be asked."""
    brokers = Brokers()

    async def body(here: Here) -> None:
        here.sinks = (SINK, replace(SINK, name=ParticipantName("another"), kind="tables"))
        await here.orphan()
        here.after_the_grace_time()
        await until(lambda: "No system of kind tables is installed" in here.orphans.doing(JOB), "it says why")
        assert [method for method, _, _ in brokers.asked] == ["claims"]
        assert here.generation == 1

    play(tmp_path, body, brokers)
