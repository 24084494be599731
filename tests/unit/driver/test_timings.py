"""A task's time is measured without looking at a record, and its parts add up to the checkpoint's duration."""

import json
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from onceward.connectors.tasks import CheckpointTask, Vote
from onceward.executor import timings
from onceward.executor.timings import Stopwatch, Timed, held_share, of_checkpoint


class Clock:
    """A clock that advances only during work, and counts its readings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.looks = 100.0, 0
        here = SimpleNamespace(perf_counter=self._look, time=lambda: 1_000_000.0 + self.now)
        monkeypatch.setattr(timings, "time", here)

    def _look(self) -> float:
        self.looks += 1
        return self.now

    def works(self, seconds: float, batches: int) -> Iterator[int]:
        """Yield numbers, each after ``seconds``."""
        for number in range(batches):
            self.now += seconds
            yield number


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_slots_time_is_split_by_who_held_the_batches(clock: Clock) -> None:
    submitted = 1_000_000.0 + clock.now
    clock.now += 2.0
    watch = Stopwatch()
    read = Timed(clock.works(0.1, 5))

    def transform() -> Iterator[int]:
        for number in read:
            clock.now += 0.02
            yield number

    written = Timed(transform())
    for _ in written:
        clock.now += 0.3
    clock.now += 0.7
    assert watch.steps(submitted, written, read) == pytest.approx(
        {"schedule": 2.0, "read": 0.5, "transform": 0.1, "produce": 1.5, "flush": 0.7}
    )
    assert watch.steps(submitted, written, None) == pytest.approx(
        {"schedule": 2.0, "read+transform": 0.6, "produce": 1.5, "flush": 0.7}
    )


def test_clocks_are_read_a_few_times_per_batch_of_any_size(clock: Clock) -> None:
    batches = [range(10_000) for _ in range(10)]
    read = Timed(batches)
    assert [len(batch) for batch in Timed(batch for batch in read)] == [10_000] * 10
    assert clock.looks <= 6 * (len(batches) + 1)


def test_no_step_is_negative_where_clocks_differ_and_functions_read_ahead(clock: Clock) -> None:
    watch = Stopwatch()
    read = Timed(clock.works(0.5, 2))
    list(read)
    written = Timed(iter([1]))
    assert next(written) == 1
    found = watch.steps(1_000_000.0 + clock.now + 60, written, read)
    assert found == {"schedule": 0.0, "read": 1.0, "transform": 0.0, "produce": 1.0, "flush": 0.0}


def test_an_error_of_the_batches_passes_through_and_its_time_counts(clock: Clock) -> None:
    def failing() -> Iterator[int]:
        yield 1
        clock.now += 3.0
        raise ValueError("unreadable")

    read = Timed(failing())
    assert next(read) == 1
    with pytest.raises(ValueError, match="unreadable"):
        next(read)
    assert (read.seconds, read.ended) == (3.0, None)


def test_a_checkpoint_reports_the_slot_that_voted_last_and_its_steps_add_up() -> None:
    first = {"schedule": 0.2, "read": 0.1, "transform": 0.0, "produce": 0.3, "flush": 0.1}
    last = {"schedule": 0.7, "read": 0.2, "transform": 0.1, "produce": 0.3, "flush": 0.2}
    reported = of_checkpoint([first, {}, last], 1.6)
    assert list(reported) == ["schedule", "queue", "read", "transform", "produce", "flush", "vote"]
    assert reported == pytest.approx(
        {"schedule": 0.2, "queue": 0.5, "read": 0.2, "transform": 0.1, "produce": 0.3, "flush": 0.2, "vote": 0.1}
    )
    assert sum(reported.values()) == pytest.approx(1.6)
    assert of_checkpoint([{}, {}], 1.6) == {}


def test_steps_add_up_to_no_more_than_the_checkpoint_where_an_executors_clock_is_ahead() -> None:
    ahead = {"schedule": 60.0, "read": 0.5, "transform": 0.0, "produce": 0.5, "flush": 0.25}
    reported = of_checkpoint([{**ahead, "schedule": 0.25, "flush": 0.0}, ahead], 2.0)
    assert sum(reported.values()) == pytest.approx(2.0)
    assert (reported["schedule"], reported["queue"], reported["flush"]) == (0.25, 0.5, 0.25)
    assert of_checkpoint([ahead], 1.0)["schedule"] == 0.0


def test_a_vote_and_a_task_carry_times_through_spark_and_do_without() -> None:
    vote = Vote(slot=0, attempt=1, records=2, bytes=3, steps={"read": 0.5})
    assert Vote.from_json(vote.to_json()) == vote
    bare = json.loads(Vote(slot=0, attempt=1, records=2, bytes=3).to_json())
    del bare["steps"]
    assert Vote.from_json(json.dumps(bare)).steps == {}
    task = CheckpointTask(
        job="j", generation=1, checkpoint=2, splits=(), columns=(), sinks={"s": {}}, submitted=time.time()
    )
    assert CheckpointTask.from_json(task.to_json()).submitted == task.submitted


@pytest.mark.parametrize(
    ("slots", "share"),
    [
        ([], 0.0),
        ([(5.0, {})], 0.0),
        ([(0.0, {"schedule": 9.0, "read": 2.0, "produce": 2.0})], 0.0),
        ([(3.0, {"schedule": 9.0, "read": 4.0}), (1.0, {"schedule": 13.0, "read": 4.0})], 0.5),
        ([(99.0, {"read": 4.0})], 1.0),
    ],
)
def test_the_share_of_time_that_is_held_back_does_not_depend_on_how_many_tasks_run_at_once(
    slots: list[tuple[float, dict[str, float]]], share: float
) -> None:
    assert held_share(slots) == share
