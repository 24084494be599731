"""A checkpoint waits for its base to be settled for longer than its transactions may stay open."""

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from onceward import CheckpointSettings, KafkaSource
from onceward.driver.journal import EVENTS_VARIABLE
from onceward.protocol.committing import PreCommitted, TransactionHandle
from onceward.protocol.values import Author, Committable, JobName, Settlement
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.driver import preflight
from onceward.sinks.kafka.driver.session import KafkaSinkSession
from tests.support.sessions import SessionSink
from tests.support.sparkless import SparklessPipeline
from tests.support.topics import Topics, assert_exactly_once, fill
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)


class LateSystem(KafkaSystem):
    """Commits at once, but returns from the second commit only when the next checkpoint's transactions have ended."""

    job: JobName
    commits = 0

    def commit(
        self,
        author: Author,
        committables: Sequence[Committable],
        *,
        give_up: Callable[[], bool] = lambda: False,
        known: PreCommitted | None = None,
    ) -> Sequence[Settlement]:
        settlements = super().commit(author, committables, give_up=give_up, known=known)
        LateSystem.commits += 1
        if LateSystem.commits == 2:
            waiting: set[TransactionHandle] = set()

            def open_now() -> set[TransactionHandle]:
                return {one.handle for one in self.transactions(self.job) if one.details["receipt"] == "written"}

            def begun() -> bool:
                waiting.update(open_now())
                return bool(waiting)

            wait_until(begun, "the next checkpoint has transactions")
            wait_until(lambda: waiting.isdisjoint(open_now()), "they are over")
        return settlements


class LateSink(SessionSink):
    """Commits with a :class:`LateSystem`."""

    class session(KafkaSinkSession):  # noqa: N801
        def system(self) -> KafkaSystem:
            system = LateSystem(self._control, generation=lambda: self._generation)
            system.job = self._context.job
            return system


def test_a_checkpoint_that_waited_too_long_for_its_base_is_read_again_and_not_lost(
    topics: Topics, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, sink, reported = topics.create("in", 3), topics.create("out", 3), tmp_path / "events"
    fill(topics, source, 100)
    monkeypatch.setenv(EVENTS_VARIABLE, str(reported))
    monkeypatch.setattr(preflight, "RESTART_ALLOWANCE", timedelta(days=-1))
    monkeypatch.setattr(LateSystem, "commits", 0)
    SparklessPipeline(
        job=job,
        source=KafkaSource(
            topics.servers,
            topics=[source],
            start="earliest",
            end="latest",
            max_offsets_per_checkpoint=90,
            adaptive=False,
        ),
        sink=LateSink(topics.servers, topic=sink, transaction_timeout="15s"),
        settings=CheckpointSettings(interval="100ms"),
        state_dir=tmp_path / "state",
    ).run()
    events = [json.loads(line) for line in reported.read_text().splitlines()]
    assert LateSystem.commits >= 3
    assert not [event for event in events if event["event"] in ("lost", "replayed")]
    assert any("time out" in event["reason"] for event in events if event["event"] == "aborted")
    assert_exactly_once(topics, source, sink)
