"""The driver's side of staying tasks: which group runs, what ends it, and how old its transactions are."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from onceward.common.errors import ConfigurationError
from onceward.connectors.interfaces import Assignment, FollowedSource, Plan, SinkSession
from onceward.connectors.tasks import Ballot, Vote
from onceward.driver.mailbox import Mailbox
from onceward.driver.runtime import Threads
from onceward.driver.staying.group import TaskFailedError
from onceward.driver.staying.tasks import StayingTasks, require_short_interval
from onceward.executor.link import Link, LinkLostError, TaskCredentials, connect
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import CheckpointId, Document, Generation, JobName
from tests.support.documents import document
from tests.support.waiting import wait_until

BASE = document()


class Input:
    """A source of one slot."""

    grown = False

    def assign(self, base: Document, _most: int) -> Assignment:
        return Assignment(splits=({"ranges": []},), positions=base, finished=False)

    def outgrown(self, _assigned: Document) -> bool:
        return self.grown

    def reached(self, assigned: Document, _reports: Sequence[Any]) -> Plan:
        return Plan(splits=(), positions=assigned, records=1, lag=0, finished=False)

    def follow(self) -> None: ...

    def allowances(self) -> Sequence[Sequence[int]]:
        return ()


class Output:
    """A sink."""

    participant = SimpleNamespace(name="sink")

    def stay(self) -> None: ...


class Cluster:
    """Runs the one task of each group in the thread that starts it."""

    columns = ("value",)

    def __init__(self, happened: list[str]) -> None:
        self._happened = happened
        self._over = threading.Event()
        self.link: Link | None = None
        self.open = 0.0

    def room(self) -> int:
        return 1

    def reach(self) -> tuple[tuple[str, int], str]:
        return ("127.0.0.1", 0), "127.0.0.1"

    def stay(self, _slots: int, _follow: Any, _write: Any, driver: tuple[str, int], given: TaskCredentials) -> None:
        self._over.clear()
        self.link = link = connect(driver, given)
        link.send({"hello": 0, "attempt": 0})
        assert "task" in link.receive()
        self._happened.append("began")
        link.send({"marks": ["worker"]})
        with contextlib.suppress(LinkLostError):
            while "end" not in (order := link.receive()):
                if "cut" in order:
                    ballot = Ballot({"sink": Vote(slot=0, attempt=0, records=1, bytes=1)}).to_json()
                    link.send({"ballot": ballot, "checkpoint": order["cut"], "reached": {}, "open": self.open})
            self._happened.append("ended")
            link.send({"ended": True})
        link.close()

    def cancel_staying(self) -> None: ...


class Clock(Threads):
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Bench:
    def __init__(self) -> None:
        self.happened: list[str] = []
        self.source, self.cluster, self.clock = Input(), Cluster(self.happened), Clock()
        self.mailbox = Mailbox(on_complete=lambda *_: None, on_interrupt=lambda: None)
        self.tasks = StayingTasks(
            job=JobName("orders"),
            source=cast(FollowedSource, self.source),
            sinks=[cast(SinkSession, Output())],
            settings=CheckpointSettings(),
            staying_job=lambda: self.cluster,
            runtime=self.clock,
        )

    def go_on(self) -> Document:
        return self.tasks.go_on(Generation(1), BASE, self.mailbox, lambda: self.happened.append("swept"))


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.tasks.leave()


@pytest.mark.parametrize("name", ["interval", "min_pause"])
def test_no_setting_lets_more_than_a_minute_pass_between_two_cuts(name: str) -> None:
    """Readers wait for what staying tasks have open."""
    require_short_interval(CheckpointSettings(**{name: "60s"}))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=f"{name} must be at most 60 s"):
        require_short_interval(CheckpointSettings(**{name: "61s"}))  # type: ignore[arg-type]


def test_what_old_tasks_left_is_swept_before_new_ones_begin(bench: Bench) -> None:
    bench.go_on()
    bench.go_on()
    bench.source.grown = True
    bench.go_on()
    assert bench.happened == ["swept", "began", "ended", "swept", "began"]


def test_a_failure_between_two_checkpoints_fails_the_next_one(bench: Bench) -> None:
    bench.go_on()
    assert bench.cluster.link is not None
    bench.cluster.link.send({"failed": "ValueError: poison"})
    wait_until(lambda: not bench.tasks.running, "the failure is known")
    with pytest.raises(TaskFailedError, match="poison"):
        bench.go_on()
    bench.go_on()
    assert bench.tasks.running, "new tasks have begun"


def test_a_transaction_is_as_old_as_its_first_rows(bench: Bench) -> None:
    """However long the tasks were idle."""
    bench.go_on()
    bench.clock.now += 3600
    bench.cluster.open = 0.25
    bench.tasks.cut(CheckpointId(7))
    bench.clock.now += 5
    wait_until(lambda: bench.tasks.sent(CheckpointId(7)), "the task has voted")
    _, _, since = bench.tasks.coming(CheckpointId(7))
    assert since == 4600 - 0.25
