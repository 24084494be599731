"""Turns: requests that arrive during a write form the next write, and no answer is sent before it is on disk."""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from onceward.common.errors import StoreError
from onceward.coordinator.service.documents import Checkers
from onceward.coordinator.service.engine import CommitBatch, Engine, UnknownJobError
from onceward.coordinator.service.group_commit import GroupCommit
from onceward.coordinator.service.watchers import Watchers
from onceward.coordinator.store.errors import LeadLostError, ListingFailedError
from onceward.coordinator.store.listing import Listings
from onceward.coordinator.store.opening import open_database
from onceward.coordinator.store.postgres import PAUSE_S
from onceward.coordinator.store.reading import LastCompleted
from onceward.coordinator.store.store import Store
from onceward.coordinator.store.term import begin_term
from onceward.protocol.answers import Answer, Verdict
from onceward.protocol.durable import Durable
from onceward.protocol.events import Event, OpenJob, Renew, StreamLost, Watch
from onceward.protocol.facts import Fact
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import Generation, JobName
from onceward.wire.secret import fingerprint
from onceward.wire.v1 import participants_pb2 as pb
from tests.support.manual_time import ManualTime
from tests.support.places import Place, postgres_place
from tests.support.scripted import SETTINGS, SINK, SOURCE
from tests.support.stored_jobs import StoredJob, ids

if TYPE_CHECKING:
    from onceward.dev.postgres.server import LocalPostgres

A, B, C = JobName("a"), JobName("b"), JobName("c")
FIRST = Generation(1)


class GatedStore(Store):
    """Each write waits until the test releases it, and can be made to fail."""

    writes: list[list[JobName]]
    entered: threading.Semaphore
    gate: threading.Semaphore
    problem: Exception | None = None
    pruned: int = 0

    def prune(self, jobs: Sequence[tuple[JobName, int]]) -> bool:
        self.pruned += len(jobs)
        return super().prune(jobs)

    def apply(self, steps: Sequence[tuple[Durable, Sequence[Fact]]], *, at: datetime) -> None:
        self.writes.append([durable.job for durable, _ in steps])
        self.entered.release()
        assert self.gate.acquire(timeout=30), "the write was not let through"
        if self.problem is not None:
            raise self.problem
        super().apply(steps, at=at)

    async def reached(self) -> None:
        """Wait until a write has begun."""
        assert await asyncio.to_thread(self.entered.acquire, timeout=30), "nothing was written"


def opening(driver: str = "driver", *, instead_of: int = 0, settings: CheckpointSettings = SETTINGS) -> OpenJob:
    return OpenJob(
        now=time.monotonic(),
        driver=driver,
        participants=(SOURCE, SINK),
        settings=settings,
        claim=None,
        instead_of=Generation(instead_of),
    )


Body = Callable[[GatedStore, Engine, GroupCommit], Coroutine[Any, Any, None]]


def play(place: Place, body: Body, *, clock: Callable[[], float] = time.monotonic, drivers: int = 0) -> None:
    """Run ``body`` with a new store whose gate is closed; open it at the end."""

    async def run() -> None:
        store = GatedStore.open(place.url)
        store.writes, store.entered, store.gate = [], threading.Semaphore(0), threading.Semaphore(0)
        engine = Engine(
            store,
            clock=clock,
            wall=lambda: datetime.now(UTC),
            checkers=Checkers({}),
            changed=lambda _job: group_commit.hurry(),
        )
        group_commit = GroupCommit(engine, drivers=lambda: drivers)
        group_commit.start()
        try:
            await body(store, engine, group_commit)
        finally:
            store.gate.release(100)
            await group_commit.stop()
            store.close()

    asyncio.run(run())


def unfinished(*answers: Awaitable[Answer]) -> bool:
    return all(isinstance(answer, asyncio.Future) and not answer.done() for answer in answers)


def test_steps_arriving_during_a_write_share_the_next_one_and_stay_unknown_until_then(place: Place) -> None:
    async def body(store: GatedStore, engine: Engine, group_commit: GroupCommit) -> None:
        first = group_commit.handle(A, opening())
        await store.reached()
        second, third = group_commit.handle(B, opening()), group_commit.handle(C, opening())
        assert unfinished(first, second, third)
        with pytest.raises(UnknownJobError):
            engine.state(A)
        store.gate.release()
        assert (await first).verdict is Verdict.ACCEPTED
        assert engine.state(A).durable.generation == FIRST
        await store.reached()
        assert unfinished(second, third)
        with pytest.raises(UnknownJobError):
            engine.state(B)
        store.gate.release()
        assert [(await answer).verdict for answer in (second, third)] == [Verdict.ACCEPTED] * 2
        assert store.writes == [[A], [B, C]]

    play(place, body)


def test_an_event_builds_on_one_that_is_not_on_disk_yet_and_is_answered_after_it(place: Place) -> None:
    async def body(store: GatedStore, engine: Engine, group_commit: GroupCommit) -> None:
        opened = group_commit.handle(A, opening())
        await store.reached()
        renewed = group_commit.handle(A, Renew(now=time.monotonic(), generation=FIRST))
        fenced = group_commit.handle(A, Renew(now=time.monotonic(), generation=Generation(7)))
        assert unfinished(opened, renewed, fenced)
        store.gate.release()
        verdicts = [(await answer).verdict for answer in (opened, renewed, fenced)]
        assert verdicts == [Verdict.ACCEPTED, Verdict.ACCEPTED, Verdict.FENCED]
        assert store.writes == [[A]], "renewing has nothing to store"

    play(place, body)


def test_a_call_that_changes_nothing_durable_does_not_wait_for_the_writes_of_others(place: Place) -> None:
    async def body(store: GatedStore, engine: Engine, group_commit: GroupCommit) -> None:
        store.gate.release()
        await group_commit.handle(A, opening())
        await store.reached()
        other = group_commit.handle(B, opening())
        await store.reached()
        renewed = await group_commit.handle(A, Renew(now=time.monotonic(), generation=FIRST))
        assert renewed.verdict is Verdict.ACCEPTED
        assert unfinished(other)

    play(place, body)


@pytest.mark.parametrize("drivers", [0, 1_000])
def test_the_steps_of_many_drivers_share_writes_and_those_of_a_few_wait_for_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, drivers: int
) -> None:
    apart, took = 0.5, math.inf
    writes: list[list[JobName]] = []

    async def body(store: GatedStore, _engine: Engine, group_commit: GroupCommit) -> None:
        nonlocal took
        store.gate.release(10)
        began = time.monotonic()
        await group_commit.handle(A, opening())
        second = group_commit.handle(B, opening())
        for _ in range(10):  # the loop sees that there is something to write
            await asyncio.sleep(0)
        third = group_commit.handle(C, opening())
        took = time.monotonic() - began
        for answer in (second, third):
            assert (await answer).verdict is Verdict.ACCEPTED
        writes[:] = store.writes

    while took > apart:  # a slow machine gets longer
        apart *= 2
        monkeypatch.setattr("onceward.coordinator.service.group_commit._APART_S", apart)
        monkeypatch.setattr("onceward.coordinator.service.group_commit._APART_OF_DRIVER_S", apart)
        play(place.fresh(), body, drivers=drivers)
    assert writes == ([[A], [B, C]] if drivers else [[A], [B], [C]])


@pytest.mark.parametrize("problem", [StoreError("the disk said no"), ValueError("a bug")])
def test_a_write_that_fails_ends_everything_that_waits_and_publishes_nothing(place: Place, problem: Exception) -> None:
    async def body(store: GatedStore, engine: Engine, group_commit: GroupCommit) -> None:
        first = group_commit.handle(A, opening())
        await store.reached()
        second = group_commit.handle(B, opening())
        store.problem = problem
        store.gate.release()
        for answer in (first, second):
            with pytest.raises(StoreError, match=str(problem)):
                await answer
        assert engine.failure is not None
        with pytest.raises(StoreError):
            group_commit.handle(C, opening())
        with pytest.raises(UnknownJobError):
            engine.state(A)
        assert store.writes == [[A]]

    play(place, body)


def test_stopping_finishes_pending_writes(place: Place) -> None:
    async def body(store: GatedStore, engine: Engine, group_commit: GroupCommit) -> None:
        first = group_commit.handle(A, opening())
        await store.reached()
        second = group_commit.handle(B, opening())
        stopping = asyncio.create_task(group_commit.stop())
        store.gate.release(2)
        await stopping
        assert [(await answer).verdict for answer in (first, second)] == [Verdict.ACCEPTED] * 2

    play(place, body)


def test_old_rows_go_although_a_write_always_waits(place: Place) -> None:
    now = time.monotonic()

    async def body(store: GatedStore, engine: Engine, group_commit: GroupCommit) -> None:
        nonlocal now
        answer = group_commit.handle(A, opening("driver 0"))
        for second in range(1, 60):
            await store.reached()
            following = group_commit.handle(A, opening(f"driver {second}", instead_of=second))
            now += 1.0
            store.gate.release()
            assert (await answer).verdict is Verdict.ACCEPTED
            answer = following
        assert store.pruned >= 4, "once in about 11 s"
        assert len(store.writes) >= 59, "in between the batches went on"

    play(place, body, clock=lambda: now)


def test_the_first_write_removes_leftovers_of_an_earlier_process(place: Place) -> None:
    store = place.open()
    left = [StoredJob(store, JobName(f"left-{number}")) for number in range(3)]
    for job in left:
        job.open()
        job.checkpoints(20)
        job.end()
    store.close()

    async def body(store: GatedStore, _engine: Engine, group_commit: GroupCommit) -> None:
        answer = group_commit.handle(A, opening("driver 0"))
        for number in range(1, 4):
            await store.reached()
            following = group_commit.handle(A, opening(f"driver {number}", instead_of=number))
            store.gate.release()
            await answer
            answer = following
        assert store.pruned == len(left), "the next write always waited, and it was not killed for a moment only"
        assert [len(ids(store, job.durable.job)) for job in left] == [SETTINGS.num_retained + 1] * len(left), (
            "with the first one"
        )

    play(place, body)


def test_a_listing_waits_for_the_write_and_shows_the_published_state(place: Place) -> None:
    async def body(store: GatedStore, engine: Engine, group_commit: GroupCommit) -> None:
        group_commit.handle(A, opening())
        await store.reached()
        listing = asyncio.create_task(
            group_commit.read(
                Store.last_completed_by_job, lambda records: (engine.state(A).durable.generation, records)
            )
        )
        await asyncio.sleep(0)
        assert not listing.done()
        store.gate.release()
        generation, records = await listing
        assert (generation, list(records)) == (FIRST, [A])

    play(place, body)


def test_what_is_to_be_written_goes_before_all_that_waits_to_read(place: Place) -> None:
    """A peer may have hundreds of calls that list, and a decision would wait for each of them."""

    async def body(store: GatedStore, _engine: Engine, group_commit: GroupCommit) -> None:
        store.gate.release(100)
        await group_commit.handle(A, opening())
        asked, answered, order = threading.Event(), threading.Event(), list[str]()

        def slow(_: Store) -> None:
            asked.set()
            assert answered.wait(30)

        def noting(number: int) -> Callable[[Store], None]:
            return lambda _: order.append(f"read {number}")

        first = asyncio.create_task(group_commit.read(slow, lambda _: None))
        assert await asyncio.to_thread(asked.wait, 30)
        reads = [asyncio.create_task(group_commit.read(noting(number), lambda _: None)) for number in range(5)]
        await asyncio.sleep(0)
        written = group_commit.handle(B, opening())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        answered.set()
        await written
        order.append("written")
        await asyncio.gather(first, *reads)
        assert order.index("written") <= 1, order

    play(place, body)


def test_a_listing_waits_for_no_write_where_it_has_a_connection_of_its_own(postgres: "LocalPostgres") -> None:
    place = postgres_place(postgres)

    async def body(store: GatedStore, engine: Engine, group_commit: GroupCommit) -> None:
        store.gate.release()
        await group_commit.handle(A, opening())
        await store.reached()
        written = group_commit.handle(B, opening())
        await store.reached()

        def session(listings: Listings) -> int:
            with listings._reading("asking") as connection:
                return int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())

        found = await group_commit.read_beside(lambda listings: listings.last_completed_by_job())
        assert list(found) == [A], "what is not committed is not listed"
        assert unfinished(written)
        with place.raw() as raw:
            raw.exec_driver_sql(f"SELECT pg_terminate_backend({await group_commit.read_beside(session)})")
        with pytest.raises(ListingFailedError):
            await group_commit.read_beside(lambda listings: listings.last_completed_by_job())
        assert list(await group_commit.read_beside(lambda listings: listings.last_completed_by_job())) == [A]
        assert engine.failure is None, "it costs a listing, and not the lead"
        store.gate.release()
        assert (await written).verdict is Verdict.ACCEPTED

    play(place, body)


def test_a_slow_listing_blocks_no_call(place: Place) -> None:
    async def body(store: GatedStore, _engine: Engine, group_commit: GroupCommit) -> None:
        store.gate.release()
        await group_commit.handle(A, opening())
        asked, answered = threading.Event(), threading.Event()

        def slow(store: Store) -> bool:
            asked.set()
            return answered.wait(30) and store.last_completed(A) == LastCompleted()

        listing = asyncio.create_task(group_commit.read(slow, lambda found: found))
        assert await asyncio.to_thread(asked.wait, 30)
        assert (await group_commit.handle(A, Renew(now=time.monotonic(), generation=FIRST))).verdict is Verdict.ACCEPTED
        answered.set()
        assert await listing

    play(place, body)


def test_a_leader_whose_machine_was_suspended_answers_nothing_before_it_has_asked_the_database(
    postgres: "LocalPostgres",
) -> None:
    """The engine's clock stood still meanwhile, so no timeout of a job has passed. Another coordinator leads."""
    place, awake, with_suspension = postgres_place(postgres), ManualTime(), ManualTime()

    async def body(store: Store, group_commit: GroupCommit) -> None:
        await group_commit.confirm()
        with place.raw() as raw:
            begin_term(raw, "b:2")
        await group_commit.confirm()  # it cannot know, and no other one could lead yet
        with_suspension.now += PAUSE_S
        with pytest.raises(LeadLostError):
            await group_commit.confirm()

    async def run() -> None:
        database = open_database(place.url)
        database.pause_s = PAUSE_S  # the server does not end the session: this machine may be slow
        store = Store(database, clock=with_suspension.monotonic)
        engine = Engine(store, clock=awake.monotonic, wall=lambda: datetime.now(UTC), checkers=Checkers({}))
        group_commit = GroupCommit(engine)
        try:
            await body(store, group_commit)
        finally:
            await group_commit.stop()
            store.close()

    asyncio.run(run())


async def given_up(engine: Engine) -> None:
    async with asyncio.timeout(60):
        while engine.state(A).durable.driver is not None:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
def test_timeouts_act_on_a_job_without_any_call(place: Place, stream: bool) -> None:
    """This also holds when the coordinator would sleep for longer and the event that wakes it has nothing to store."""
    settings = CheckpointSettings(interval="1h", lease="1s", stream_grace="1s")

    async def body(store: GatedStore, engine: Engine, group_commit: GroupCommit) -> None:
        store.gate.release(100)
        await group_commit.handle(A, opening(settings=settings))
        if stream:
            await group_commit.handle(A, Watch(now=time.monotonic(), generation=FIRST))
            await asyncio.sleep(0)
            await group_commit.handle(A, StreamLost(now=time.monotonic(), generation=FIRST))
        await given_up(engine)

    play(place, body)


def test_several_steps_are_on_disk_together_or_not_at_all(place: Place) -> None:
    store = place.open()
    batch = CommitBatch()
    engine = Engine(store, clock=time.monotonic, wall=lambda: datetime.now(UTC), checkers=Checkers({}))
    for job in (A, B):
        engine.work_out(batch, job, opening())
    (last, facts) = batch.steps[1]
    batch.steps[1] = (last, [*facts, object()])  # type: ignore[list-item]
    with pytest.raises(AssertionError):
        engine.keep(batch)
    store.close()
    store = place.open()
    assert store.load_jobs() == []
    store.close()


class _Context:
    """A stream without a reader."""

    async def send_initial_metadata(self, _metadata: object) -> None:
        pass

    async def write(self, _response: bytes) -> None:
        pass

    async def abort(self, _code: object, _detail: str) -> None:
        raise asyncio.CancelledError


def test_a_stream_that_breaks_while_its_successor_arrives_is_not_reported_as_lost(place: Place) -> None:
    async def body(store: GatedStore, engine: Engine, group_commit: GroupCommit) -> None:
        store.gate.release(100)
        await group_commit.handle(A, opening(fingerprint("secret")))
        seen: list[type[Event]] = []
        arrival: list[asyncio.Future[Answer]] = []

        def handle(job: JobName, event: Event, size: int = 0) -> Awaitable[Answer]:
            """Delay the arrival of the second stream, as a slow disk would."""
            seen.append(type(event))
            answer = group_commit.handle(job, event, size)
            if seen.count(Watch) < 2:
                return answer
            arrival.append(asyncio.get_running_loop().create_future())
            return arrival[-1]

        watchers, request = Watchers(), pb.WatchRequest(job=A, generation=FIRST, driver="secret")
        older = asyncio.create_task(watchers.watch(engine, handle, request, _Context()))  # type: ignore[arg-type]
        while not watchers.connected(A):
            await asyncio.sleep(0)
        newer = asyncio.create_task(watchers.watch(engine, handle, request, _Context()))  # type: ignore[arg-type]
        while not arrival:
            await asyncio.sleep(0)
        older.cancel()
        await asyncio.gather(older, return_exceptions=True)
        assert seen == [Watch, Watch]
        newer.cancel()
        await asyncio.gather(newer, return_exceptions=True)
        assert seen == [Watch, Watch, StreamLost], "it had counted, though it was never shown anything"

    play(place, body)
