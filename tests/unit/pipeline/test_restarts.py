import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.errors import ConfigurationError
from coordinator.pipeline import pipeline
from coordinator.pipeline.pipeline import Pipeline
from coordinator.pipeline.restarts import NO_RESTART, Restart
from coordinator.protocol.events import CloseReason
from sinks import KafkaSink
from sources import KafkaSource


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


def test_a_job_gives_up_after_its_attempts() -> None:
    assert Restart(attempts=2).delay(2, random.Random(1)) is not None
    assert Restart(attempts=2).delay(3, random.Random(1)) is None
    assert NO_RESTART.delay(1, random.Random(1)) is None


def test_all_problems_of_a_strategy_are_reported_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Restart(initial="soon", maximum="-1s", multiplier=0.5)
    assert all(word in str(caught.value) for word in ("initial", "maximum", "multiplier"))


def test_a_driver_takes_over_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    class Run:
        """Fails before it is granted, then after, then comes to its end."""

        settled_any = False

        def __init__(self, *_: Any, takeover: bool, **__: Any) -> None:
            asked.append(takeover)
            self.opened = len(asked) > 1

        def run(self) -> CloseReason:
            if len(asked) < 4:
                raise RuntimeError("a test wants it")
            return CloseReason.FINISHED

    monkeypatch.setattr(pipeline, "GenerationRun", Run)
    job = Pipeline(
        job="orders",
        source=KafkaSource("localhost:1", topics=["in"]),
        sink=KafkaSink("localhost:1", topic="out"),
        coordinator="localhost:1",
        takeover=True,
        restart=Restart(initial=0),
    )
    members: Any = SimpleNamespace(tasks=SimpleNamespace(alive=lambda: True))
    assert job._generations(members, cast(Any, None)) is CloseReason.FINISHED
    assert asked == [True, True, False, False]
