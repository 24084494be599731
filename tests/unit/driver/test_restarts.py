import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from onceward import KafkaSink, KafkaSource
from onceward.common.errors import ConfigurationError, JobBusyError, RefusedError
from onceward.driver import generations
from onceward.driver.pipeline import Pipeline
from onceward.driver.progress import Progress
from onceward.driver.restarts import NO_RESTART, NextStart, Restart, Restarts
from onceward.protocol.events import CloseReason


def test_delays_grow_by_half_as_in_flink() -> None:
    steady = Restart(jitter=0.0)
    assert [steady.delay(failures, random.Random(1)) for failures in (1, 2, 3)] == [1, 1.5, 2.25]


def test_delays_grow_from_one_second_to_one_minute() -> None:
    steady = Restart(jitter=0.0, multiplier=2.0)
    delays = [steady.delay(failures, random.Random(1)) for failures in range(1, 10)]
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_delays_vary_by_the_jitter_and_never_overflow() -> None:
    delays = [Restart().delay(failures, random.Random(failures)) or 0.0 for failures in (1, 100, 10**9)]
    assert 0.9 <= delays[0] <= 1.1
    assert all(54 <= delay <= 66 for delay in delays[1:])


def test_a_job_fails_after_its_attempts() -> None:
    assert Restart(attempts=2).delay(2, random.Random(1)) is not None
    assert Restart(attempts=2).delay(3, random.Random(1)) is None
    assert NO_RESTART.delay(1, random.Random(1)) is None


def outcomes(*generations: tuple[int | None, int], attempts: int = 3) -> list[bool]:
    """Return whether the job restarts after each of the generations, given as (settled, failed) records."""
    restarts = Restarts(Restart(attempts=attempts), random.Random(1))
    return [
        restarts.after(RuntimeError(), settled=settled, failed=failed, lasted=0.0).delay is not None
        for settled, failed in generations
    ]


def test_checkpoints_that_shrink_around_a_record_are_attempts_at_the_same_input() -> None:
    assert outcomes((None, 1000), (500, 500), (250, 250), (125, 125)) == [True, True, True, False]


def test_a_job_that_has_got_past_its_input_begins_a_new_row_of_attempts() -> None:
    assert outcomes((None, 1000), (None, 500), (1000, 300), (None, 300), (None, 300), (None, 300)) == [
        *[True] * 5,
        False,
    ]


def test_failures_without_a_checkpoint_begin_a_new_row_when_something_was_settled() -> None:
    assert outcomes((None, 0), (10, 0), (10, 0), (10, 0), (10, 0)) == [True] * 5
    assert outcomes((None, 0), (None, 0), (None, 0), (None, 0)) == [True, True, True, False]


def test_an_error_is_counted_once() -> None:
    restarts, error = Restarts(Restart(attempts=1), random.Random(1)), RuntimeError()
    asked = {restarts.after(error, settled=None, failed=1, lasted=0.0) for _ in range(3)}
    assert [back.failures for back in asked] == [1]


def test_a_generation_that_lived_long_enough_resets_the_count() -> None:
    restarts = Restarts(Restart(attempts=1, reset_after="1h"), random.Random(1))
    lives = [restarts.after(RuntimeError(), settled=None, failed=1, lasted=lived) for lived in (1.0, 3600.0, 3599.0)]
    assert [back.failures for back in lives] == [1, 1, 2]


def test_all_problems_of_a_strategy_are_reported_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Restart(initial="soon", maximum="-1s", multiplier=0.5)
    assert all(word in str(caught.value) for word in ("initial", "maximum", "multiplier"))


def test_strategies_at_their_limits() -> None:
    steady = Restart(multiplier=1, jitter=0, attempts=0)
    assert (steady.multiplier, steady.jitter, steady.attempts) == (1, 0, 0)


@pytest.mark.parametrize("wrong", [{"multiplier": 0.99}, {"jitter": 1}, {"jitter": -0.1}, {"attempts": -1}])
def test_each_number_that_makes_no_strategy_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="multiplier must be at least 1"):
        Restart(**wrong)


def test_the_jitter_goes_to_both_sides() -> None:
    class Chance(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return self.side(a, b)

        side: Callable[[float, float], float]

    chance = Chance()
    chance.side = max
    assert Restart(jitter=0.1).delay(1, chance) == 1.1
    chance.side = min
    assert Restart(jitter=0.1).delay(1, chance) == 0.9


def test_checkpoints_settled_before_the_failing_record_count_as_progress() -> None:
    """1,000 records were to be read, and 600 and 300 of them are settled: with 100 more the job is past them."""
    assert outcomes((None, 1000), (600, 100), (300, 50), (100, 10), (None, 10), (None, 10)) == [*[True] * 5, True]
    assert outcomes((None, 1000), (600, 100), (300, 50), (99, 10)) == [True, True, True, False]


def pipeline_of_runs(monkeypatch: pytest.MonkeyPatch, run: type, coordinator: str | None = "localhost:1") -> Pipeline:
    """Return a pipeline whose generations are instances of ``run``."""
    monkeypatch.setattr(generations, "GenerationRun", run)
    return Pipeline(
        job="orders",
        source=KafkaSource("localhost:1", topics=["in"]),
        sink=KafkaSink("localhost:1", topic="out"),
        coordinator=coordinator,
    )


def members() -> Any:
    return SimpleNamespace(progress=Progress("orders"))


def test_a_stop_just_before_a_generation_begins_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Run:
        stopped = False

        def __init__(self, *_: Any, last: bool, **__: Any) -> None:
            assert not last, "not stopped yet"
            job.stop()

        def stop(self) -> None:
            self.stopped = True

        def run(self) -> CloseReason:
            return CloseReason.STOPPED if self.stopped else CloseReason.FINISHED

    job = pipeline_of_runs(monkeypatch, Run)
    assert job._generations(members(), cast(Any, None)) is CloseReason.STOPPED


def test_a_stop_ends_the_wait_for_another_driver_but_hides_no_other_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals: list[RefusedError] = [JobBusyError("another driver has the job"), RefusedError("an old copy")]

    class Run:
        def __init__(self, *_: Any, **__: Any) -> None:
            job.stop()

        def stop(self) -> None:
            pass

        def run(self) -> CloseReason:
            raise refusals.pop(0)

    job = pipeline_of_runs(monkeypatch, Run)
    assert job._generations(members(), cast(Any, None)) is CloseReason.STOPPED
    with pytest.raises(RefusedError, match="an old copy"):
        job._generations(members(), cast(Any, None))


@pytest.mark.parametrize(("coordinator", "takes_over"), [("localhost:1", False), (None, True)])
def test_only_the_lock_of_an_embedded_coordinator_replaces_the_lease(
    coordinator: str | None, takes_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    class Run:
        """Fail once, then finish."""

        def __init__(self, *_: Any, takeover: bool, **__: Any) -> None:
            asked.append(takeover)

        def run(self) -> CloseReason:
            if len(asked) < 2:
                raise RuntimeError("a test wants it")
            return CloseReason.FINISHED

        def next_start(self, _error: BaseException) -> NextStart:
            return NextStart(delay=0.0)

        def describe_end(self, error: BaseException, _following: NextStart) -> str:
            return str(error)

    job = pipeline_of_runs(monkeypatch, Run, coordinator)
    assert job._generations(members(), cast(Any, None)) is CloseReason.FINISHED
    assert asked == [takes_over, takes_over]
