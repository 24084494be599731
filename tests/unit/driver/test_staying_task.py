"""A staying task in a thread, with a driver that speaks over a real connection."""

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from onceward.connectors.slots import OpenSlot, SlotContext
from onceward.connectors.tasks import Ballot, CheckpointTask, Vote
from onceward.executor.functions import to_one
from onceward.executor.link import Link, Message
from onceward.executor.staying import StayingTask
from onceward.protocol.values import Generation, JobName
from tests.support.waiting import wait_until
from tests.unit.driver.test_staying_link import linked

_QUIET_S = 0.2
"""How long a test watches for what must not happen."""


class Input:
    """A follower: each record is a batch."""

    def __init__(self) -> None:
        self._records: queue.Queue[str | None] = queue.Queue()
        self.yielded = 0
        self.held = 0.0
        self.taken = threading.Semaphore(0)
        """Released for each batch that the task has asked for and got."""

    def add(self, *records: str) -> None:
        for record in records:
            self._records.put(record)

    def batches(self) -> Iterator[str]:
        while (record := self._records.get()) is not None:
            self.taken.release()
            self.yielded += 1
            yield record

    def cut(self, _allowed: Sequence[int] = ()) -> None:
        self._records.put(None)

    def reached(self) -> dict[str, Any]:
        """Like the real one, returns what is new since the last call."""
        grown, self.yielded = self.yielded, 0
        return {"ranges": [grown], "lags": []}

    def held_back(self) -> float:
        held, self.held = self.held, 0.0
        return held

    def close(self) -> None: ...


class Output:
    """A sink's writer."""

    def __init__(self) -> None:
        self.announces = False
        self.written: list[str] = []
        self.wrote = threading.Semaphore(0)

    def mark(self, _task: CheckpointTask, _sink: str) -> str:
        return "worker"

    def open(self, context: SlotContext) -> OpenSlot:
        return AnnouncingOutputSlot(self, context) if self.announces else OutputSlot(self, context)


class OutputSlot:
    def __init__(self, output: Output, context: SlotContext) -> None:
        self._output, self._context, self._records = output, context, 0

    def write(self, batch: Any) -> None:
        self._output.written.append(batch)
        self._output.wrote.release()
        self._records += 1

    def finish(self) -> Vote:
        return Vote(
            slot=self._context.slot,
            attempt=self._context.attempt,
            records=self._records,
            bytes=0,
            body={"checkpoint": self._context.task.checkpoint},
        )

    def abandon(self) -> None: ...


class AnnouncingOutputSlot(OutputSlot):
    def announce(self) -> Vote:
        return self.finish()


def vote_in(message: Message) -> Vote:
    return Ballot.from_json(message["ballot"]).votes["sink"]


def cut(driver: Link, checkpoint: int) -> None:
    """Order the cut and receive the vote."""
    driver.send({"cut": checkpoint, "sinks": {"sink": {}}, "at": 0.0})
    assert driver.receive()["checkpoint"] == checkpoint


TASK = CheckpointTask(
    job=JobName("orders"),
    generation=Generation(1),
    checkpoint=0,
    splits=({"ranges": []},),
    columns=(),
    sinks={"sink": {}},
)


def begun(driver: Link, link: Link, given: Input, output: Output) -> threading.Thread:
    """A task that copies ``given`` to ``output`` and waits for input."""
    stay = StayingTask(link, 0, 0, lambda *_: given, {"sink": output}, to_one("sink"), frozenset())
    running = threading.Thread(target=stay.run)
    running.start()
    assert driver.receive() == {"hello": 0, "attempt": 0}
    driver.send({"task": TASK.to_json(), "pace": {}})
    assert driver.receive() == {"marks": ["worker"]}
    return running


def test_a_task_says_what_it_has_read_and_will_vote_before_the_brokers_have_confirmed_it() -> None:
    given, output = Input(), Output()
    output.announces = True
    with linked() as (driver, link):
        running = begun(driver, link, given, output)
        given.add("a", "b")
        output.wrote.acquire()
        output.wrote.acquire()
        driver.send({"cut": 1, "sinks": {"sink": {}}, "at": 0.0})
        coming, voted = driver.receive(), driver.receive()
        assert coming["sent"]
        assert "sent" not in voted
        assert coming["reached"] == voted["reached"] == {"ranges": [2], "lags": []}
        announced = vote_in(coming)
        assert replace(vote_in(voted), steps={}) == announced
        assert announced.body == {"checkpoint": 1}
        driver.send({"end": True})
        assert driver.receive() == {"ended": True}
        running.join()


def test_a_task_reports_with_each_vote_for_how_long_its_reading_was_held_back() -> None:
    given, output = Input(), Output()
    with linked() as (driver, link):
        running = begun(driver, link, given, output)
        for checkpoint, held in ((1, 7.5), (2, 0.0)):
            given.held = held
            driver.send({"cut": checkpoint, "sinks": {"sink": {}}, "at": 0.0})
            assert vote_in(driver.receive()).held == held
            driver.send({"flushed": checkpoint})
        driver.send({"end": True})
        assert driver.receive() == {"ended": True}
        running.join()


def test_a_task_reports_since_when_its_transaction_is_open() -> None:
    given, output = Input(), Output()
    with linked() as (driver, link):
        running = begun(driver, link, given, output)
        given.add("a")
        output.wrote.acquire()
        wrote = time.perf_counter()
        wait_until(lambda: time.perf_counter() > wrote + _QUIET_S, "the transaction is open for a while")
        driver.send({"cut": 1, "sinks": {"sink": {}}, "at": 0.0})
        assert driver.receive()["open"] >= _QUIET_S
        driver.send({"flushed": 1})
        driver.send({"cut": 2, "sinks": {"sink": {}}, "at": 0.0})
        assert driver.receive()["open"] == 0.0, "nothing was written"
        driver.send({"end": True})
        assert driver.receive() == {"ended": True}
        running.join()


def test_a_task_writes_the_next_checkpoint_when_all_tasks_have_flushed_the_last() -> None:
    given, output = Input(), Output()
    with linked() as (driver, link):
        running = begun(driver, link, given, output)
        given.add("a")
        output.wrote.acquire()
        cut(driver, 1)
        given.add("b", "c")
        given.taken.acquire()  # a
        given.taken.acquire()  # b
        assert not output.wrote.acquire(timeout=_QUIET_S), "another task has not flushed checkpoint 1"
        driver.send({"flushed": 1})
        output.wrote.acquire()
        output.wrote.acquire()
        cut(driver, 2)
        given.add("d")
        given.taken.acquire()  # c
        given.taken.acquire()  # d
        cut(driver, 3)  # ordered when all have voted for checkpoint 2, so before or after that word
        driver.send({"flushed": 2})
        driver.send({"flushed": 3})
        given.add("e")
        output.wrote.acquire()
        output.wrote.acquire()
        driver.send({"end": True})
        assert driver.receive() == {"ended": True}
        running.join()
    assert output.written == ["a", "b", "c", "d", "e"]
