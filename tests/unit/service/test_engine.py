"""The engine of all jobs, step by step on a store: what it refuses, keeps, schedules and publishes."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import cycle, repeat
from pathlib import Path

import pytest

from onceward.common.errors import StoreError
from onceward.coordinator.service.documents import Checkers
from onceward.coordinator.service.engine import CommitBatch, Engine, UnknownJobError
from onceward.coordinator.store.store import Store
from onceward.protocol.answers import Answer, Trigger, Verdict
from onceward.protocol.events import Acknowledge, Event, OpenJob, Renew, Settle, StreamLost, Watch
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import (
    Author,
    CheckpointId,
    Document,
    Generation,
    JobName,
    Outcome,
    Settlement,
    Snapshot,
)
from onceward.wire.limits import MAX_CHECKPOINT_BYTES
from tests.support.scripted import SINK, SOURCE, positions, slots
from tests.support.stored_jobs import StoredJob, change, ids

A, B = JobName("a"), JobName("b")
FIRST = Generation(1)
AT = datetime(2026, 1, 2, tzinfo=UTC)
SETTINGS = CheckpointSettings(interval="1h", lease="20s", stream_grace="10s", num_retained=2)


def check(document: Document, _base: Document | None, _author: Author) -> None:
    if document.body.get("offset") == 13:
        raise ValueError("13 is no offset")


class Bench:
    """An engine with a clock; its results are stored and published at once."""

    def __init__(self, file: Path, *, now: float = 100.0, wall: datetime = AT) -> None:
        self.now = now
        self.wall = wall
        self.changed: list[JobName] = []
        self.failures = 0
        self.store = Store.open(f"sqlite:///{file}")
        self.engine = Engine(
            self.store,
            clock=lambda: self.now,
            wall=lambda: self.wall,
            checkers=Checkers({"test": check}),
            changed=self.changed.append,
            failed=self._failed,
        )

    def send(self, job: JobName, *events: Event, size: int = 0) -> list[Verdict]:
        """Process the events in one batch and return their verdicts."""
        batch, answers = CommitBatch(), list[Answer]()
        for event in events:
            one = CommitBatch()
            answers.append(self.engine.work_out(one, job, event, size=size))
            batch.add(one)
        self.take(batch)
        return [answer.verdict for answer in answers]

    def take(self, batch: CommitBatch) -> None:
        if batch.steps:
            self.engine.keep(batch)
        self.engine.publish(batch)

    def open(self, job: JobName) -> None:
        assert self.send(job, self.opening()) == [Verdict.ACCEPTED]

    def opening(self) -> OpenJob:
        return OpenJob(
            now=self.now,
            driver="d1",
            participants=(SOURCE, SINK),
            settings=SETTINGS,
            claim=None,
        )

    def watching(self) -> Watch:
        return Watch(now=self.now, generation=FIRST)

    def acknowledging(self, snapshot: Snapshot, *, checkpoint: int = 1) -> Acknowledge:
        return Acknowledge(
            now=self.now,
            generation=FIRST,
            checkpoint=CheckpointId(checkpoint),
            participant=SOURCE.name if snapshot.positions is not None else SINK.name,
            base=CheckpointId(checkpoint - 1),
            snapshot=snapshot,
        )

    def history(self, job: JobName, limit: int = 100) -> list[tuple[str, Verdict | None, int]]:
        """Return event, verdict and count, newest first."""
        if (write := self.engine.take_refused(job)) is not None:
            self.engine.ask(write)
        return [(one.event, one.verdict, one.count) for one in self.engine.ask(lambda store: store.history(job, limit))]

    def _failed(self) -> None:
        self.failures += 1


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "store.db")
    yield bench
    bench.store.close()


def test_documents_that_a_checker_refuses_change_nothing_and_are_in_the_history(bench: Bench) -> None:
    bench.open(A)
    bench.send(A, bench.watching())
    before = bench.engine.state(A)
    answer = bench.engine.work_out(batch := CommitBatch(), A, bench.acknowledging(positions(13)))
    bench.take(batch)
    assert (answer.verdict, "13 is no offset" in answer.detail) == (Verdict.INVALID, True)
    assert bench.engine.state(A) is before
    assert bench.history(A, 1) == [("Acknowledge", Verdict.INVALID, 1)]
    assert bench.send(A, bench.acknowledging(positions(12))) == [Verdict.ACCEPTED]


def test_an_oversized_grant_is_refused(bench: Bench) -> None:
    bench.open(A)
    bench.send(A, bench.watching())
    event = bench.acknowledging(slots(1, 0))
    assert bench.send(A, event, size=MAX_CHECKPOINT_BYTES + 1) == [Verdict.REFUSED]
    assert bench.send(A, event, size=MAX_CHECKPOINT_BYTES) == [Verdict.ACCEPTED]


def test_an_event_without_a_size_takes_no_room(bench: Bench) -> None:
    bench.open(A)
    bench.send(A, bench.watching(), bench.acknowledging(slots(1, 0)))
    assert bench.send(A, bench.acknowledging(positions(1)), size=MAX_CHECKPOINT_BYTES) == [Verdict.ACCEPTED]


def test_the_history_has_the_refused_calls_of_this_moment_and_each_only_once(bench: Bench) -> None:
    """This includes several refused calls in one batch."""
    bench.open(A)
    bench.open(B)
    late = [Renew(now=bench.now, generation=Generation(number)) for number in (7, 8, 7)]
    assert bench.send(A, *late) == [Verdict.FENCED] * 3
    noted = [("Renew", Verdict.FENCED, 1), ("Renew", Verdict.FENCED, 2)]
    for _ in range(2):
        history = bench.history(A)
        assert (sorted(history[:2]), history[-1]) == (noted, ("GenerationGranted", None, 1))
        assert len(history) == len({*bench.history(B)}) + 2
    assert len(bench.history(A, 1)) == 1
    assert {one.at for one in bench.engine.ask(lambda store: store.history(A, 100))} == {AT}
    assert not any(verdict for _, verdict, _ in bench.history(B))


def test_several_jobs_change_in_one_turn(bench: Bench) -> None:
    batch = CommitBatch()
    for job in (A, B):
        one = CommitBatch()
        bench.engine.work_out(one, job, bench.opening())
        batch.add(one)
    bench.take(batch)
    assert [bench.engine.state(job).durable.generation for job in (A, B)] == [FIRST, FIRST]
    assert bench.engine.jobs() == bench.changed == [A, B]


def test_the_next_wakeup_is_the_first_of_all_deadlines_and_chores(bench: Bench) -> None:
    assert bench.engine.next_deadline() is None
    bench.open(A)
    assert bench.engine.next_deadline() == 120.0, "it has no stream"
    bench.now = 104.0
    bench.send(A, Renew(now=bench.now, generation=Generation(7)))
    assert bench.engine.next_deadline() == 105.0, "what was refused goes to the history"
    bench.engine.tidy()
    assert bench.engine.next_deadline() == 120.0
    bench.now = 120.0
    bench.engine.due(batch := CommitBatch(), 1)
    bench.take(batch)
    assert bench.engine.state(A).durable.driver is None


def test_time_acts_on_as_many_jobs_as_fit_into_a_turn_and_on_the_others_later(bench: Bench) -> None:
    for number in range(3):
        bench.open(JobName(f"job-{number}"))
        bench.now += 1.0
    bench.now = 200.0
    for left in (1, 0, 0):
        bench.engine.due(batch := CommitBatch(), 2)
        bench.take(batch)
        driven = [job for job in bench.engine.jobs() if bench.engine.state(job).durable.driver is not None]
        assert driven == ["job-2"][:left]


class Life:
    """The life of one job, each step of it at the next of these times of day."""

    _SETTINGS = CheckpointSettings(
        interval="10s", timeout="8s", lease="20s", stream_grace="5s", tolerable_failed_checkpoints=3
    )

    def __init__(self, file: Path, hours: Iterable[int]) -> None:
        self.seen: list[object] = []
        """What each step decided, and when the next deadline is."""
        self._file = file
        self._hours = iter(hours)
        self._bench = Bench(file)

    def live(self) -> None:
        bench = self._bench
        self._step(replace(bench.opening(), settings=self._SETTINGS))
        self._step(bench.watching())
        self._step(bench.acknowledging(positions(1)), bench.acknowledging(slots(1, 1)))
        self._step(
            Settle(
                now=bench.now,
                generation=FIRST,
                checkpoint=CheckpointId(1),
                participant=SINK.name,
                settlements=(Settlement(slot=0, outcome=Outcome.COMMITTED, evidence=""),),
            )
        )
        self._pass("interval")
        self._step(bench.acknowledging(positions(2), checkpoint=2))
        self._pass("timeout")
        self._step(StreamLost(now=bench.now, generation=FIRST))
        self._pass("stream_grace")
        bench.store.close()
        self._bench = Bench(self._file, now=bench.now, wall=self._time_of_day())
        self._step()
        self._pass("lease")
        self.seen += [one.checkpoint for one in self._bench.store.checkpoints(A, 100)]
        self.seen += self._bench.history(A)
        self._bench.store.close()

    def _pass(self, setting: str) -> None:
        self._bench.now += self._SETTINGS.seconds(setting)
        self._step()

    def _time_of_day(self) -> datetime:
        return AT + timedelta(hours=next(self._hours))

    def _step(self, *events: Event) -> None:
        bench = self._bench
        bench.wall = self._time_of_day()
        verdicts = bench.send(A, *events)
        bench.engine.due(batch := CommitBatch(), 10)
        bench.take(batch)
        bench.engine.tidy()
        durable = replace(bench.engine.state(A).durable, store_id="")
        self.seen += [verdicts, durable, bench.engine.next_deadline()]


def test_a_time_of_day_that_jumps_by_hours_changes_no_decision_deadline_or_order(tmp_path: Path) -> None:
    steady = Life(tmp_path / "steady.db", repeat(0))
    steady.live()
    happened = [one[0] for one in steady.seen if isinstance(one, tuple)]
    assert {"CheckpointCompleted", "CheckpointSettled", "CheckpointAborted", "GenerationEnded"} <= set(happened)
    for hours in ((10, -10), (-300, 7, 0)):
        jumping = Life(tmp_path / f"jumps by {hours}.db", cycle(hours))
        jumping.live()
        assert jumping.seen == steady.seen


def test_only_the_driver_of_the_current_generation_gets_instructions(bench: Bench) -> None:
    assert bench.engine.wanted(A, FIRST, "d1") is None
    bench.open(A)
    bench.send(A, bench.watching())
    (trigger,) = bench.engine.wanted(A, FIRST, "d1") or ()
    assert isinstance(trigger, Trigger)
    assert bench.engine.wanted(A, Generation(2), "d1") is None
    assert bench.engine.wanted(A, FIRST, "another process") is None
    bench.send(A, StreamLost(now=bench.now, generation=FIRST))
    bench.now += SETTINGS.seconds("lease")
    bench.engine.due(batch := CommitBatch(), 1)
    bench.take(batch)
    assert bench.engine.state(A).durable.driver is None
    assert bench.engine.wanted(A, FIRST, "d1") is None
    assert bench.engine.fenced_answer(A, FIRST).may_return
    never = bench.engine.fenced_answer(A, Generation(9))
    assert (never.verdict, never.may_return) == (Verdict.FENCED, False)
    assert "generation 9 was never granted" in never.detail


def test_an_unknown_job_is_named_with_the_store(bench: Bench) -> None:
    for ask in (lambda: bench.engine.state(A), lambda: bench.engine.fenced_answer(A, FIRST)):
        with pytest.raises(UnknownJobError, match=f"{A}.*{bench.engine.store_id}"):
            ask()
    with pytest.raises(UnknownJobError):
        bench.send(A, bench.watching())


def left_by_an_earlier_process(file: Path, checkpoints: int, *jobs: JobName) -> None:
    with closing(Store.open(f"sqlite:///{file}")) as store:
        for name in jobs:
            job = StoredJob(store, name)
            job.open()
            job.checkpoints(checkpoints)
            job.end()


def test_pruning_keeps_retained_checkpoints_and_logs_refusals(tmp_path: Path) -> None:
    left_by_an_earlier_process(tmp_path / "store.db", 12, A, B)
    bench = Bench(tmp_path / "store.db")
    assert bench.send(A, bench.watching()) == [Verdict.FENCED]
    bench.engine.tidy()
    retained = CheckpointSettings().num_retained + 1  # and the first positions
    assert [len(ids(bench.store, job)) for job in (A, B)] == [retained, retained]
    assert bench.store.history(A, 1)[0].verdict is Verdict.FENCED
    assert bench.engine.next_deadline() is None
    bench.store.close()


def test_a_job_with_unreadable_settings_is_not_pruned(tmp_path: Path) -> None:
    """An operator may repair the settings; then as many checkpoints are retained as they say."""
    file = tmp_path / "store.db"
    left_by_an_earlier_process(file, 12, A)
    change(file, "UPDATE jobs SET document = 'damaged'")
    bench = Bench(file)
    assert bench.engine.state(A).durable.record_damaged
    bench.engine.tidy()
    assert len(ids(bench.store, A)) == 12
    bench.store.close()


def test_after_a_store_failure_every_caller_gets_one_error_and_no_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.open(A)
    bench.open(B)
    bench.send(A, Renew(now=bench.now, generation=Generation(7)))
    bench.changed.clear()

    def fail(*_: object, **__: object) -> None:
        raise StoreError("the disk said no")

    monkeypatch.setattr(bench.store, "note", fail)
    calls: list[Callable[[], object]] = [bench.engine.tidy, lambda: bench.send(A, bench.watching()), bench.engine.tidy]
    for call in calls:
        with pytest.raises(StoreError, match="the disk said no"):
            call()
    assert (bench.failures, bench.changed) == (1, [A, B])
