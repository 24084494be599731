"""The context that a job makes is begun before it is needed, and never left behind."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from onceward.common.errors import ConfigurationError, PreflightError
from onceward.driver.journal import Journal
from onceward.driver.spark import tasks as spark_tasks
from onceward.driver.spark.passes import Pass, Share
from onceward.driver.spark.tasks import SparkTasks
from onceward.protocol.values import JobName


class Context:
    """Stands for a context of Spark that no job may use."""

    stopped = False
    version = "4.1.0"

    def getConf(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return {"spark.speculation": "true"}

    def stop(self) -> None:
        self.stopped = True


def tasks() -> SparkTasks:
    nothing: Any = None
    return SparkTasks(
        job=JobName("orders"),
        source=nothing,
        passes=[Pass([Share(nothing)])],
        transform_batches=None,
        spark=None,
        embedded=True,
        per_checkpoint_operations=False,
        journal=Journal("orders"),
    )


def making(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Context]) -> list[threading.Thread]:
    threads: list[threading.Thread] = []

    def make_context(_job: str, *, scheduling: bool) -> tuple[Context, bool]:
        assert scheduling, "there is no transform"
        threads.append(threading.current_thread())
        return make(), True

    monkeypatch.setattr(spark_tasks, "make_context", make_context)
    return threads


def test_a_context_that_was_begun_and_not_needed_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    context, may_end = Context(), threading.Event()

    def make() -> Context:
        assert may_end.wait(60)
        return context

    threads = making(monkeypatch, make)
    begun = tasks()
    begun.begin()  # does not wait
    may_end.set()
    begun.close()
    assert context.stopped
    assert threading.current_thread() not in threads


def test_a_context_that_cannot_be_made_is_reported_when_it_is_needed_and_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make() -> Context:
        raise ConfigurationError("There is no Java.")

    threads = making(monkeypatch, make)
    begun = tasks()
    begun.begin()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="no Java"):
            begun.start()
    assert len(threads) == 2
    begun.close()


def test_a_context_that_was_not_begun_is_made_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context()
    threads = making(monkeypatch, lambda: context)
    needed = tasks()
    with pytest.raises(PreflightError, match="speculation"):
        needed.start()
    assert threads == [threading.current_thread()]
    needed.close()
    assert context.stopped
