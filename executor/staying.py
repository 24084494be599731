"""The task that stays: reads, transforms and writes one checkpoint after the other, cut where the driver says.

Runs on executors: standard library only. A task has one slot for as long as its group lives. Its main thread moves
records; a second one listens to the driver.
"""

import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from onceward.common.killpoints import KillPoint, kill_point
from onceward.connectors.slots import StayingWriter
from onceward.connectors.tasks import Ballot, CheckpointTask, Postponed
from onceward.executor.aside import SettingAside
from onceward.executor.functions import ENDING, Batches, FusedTask, Router, for_task, unusable
from onceward.executor.letters import Retry
from onceward.executor.link import Link, LinkLostError, Message, TaskCredentials, connect
from onceward.executor.slots import Attempt, TaskSlots
from onceward.executor.timings import Timed

__all__ = ["StayingTask", "staying"]


def staying(
    follow: Any,
    writers: Mapping[str, StayingWriter],
    transform: Router | SettingAside,
    columns: Iterable[str],
    driver: tuple[str, int],
    credentials: TaskCredentials,
) -> FusedTask:
    """Return the task of each slot. It maps slot numbers to nothing: its votes go through its connection.

    ``follow`` is a :data:`SplitFollower`. ``credentials`` travel in the task's closure: a property of the Spark job
    would appear in Spark's listings.
    """
    used = frozenset(columns)

    def onceward_stay(numbers: Iterable[int]) -> Iterator[str]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "runs in a task"
        for slot in list(numbers):  # take all first: Spark reuses a worker process only if its task has drained them
            link = connect(driver, credentials)
            try:
                StayingTask(link, slot, context.taskAttemptId(), follow, writers, transform, used).run()
            finally:
                link.close()
        yield from ()

    return onceward_stay


class _OrderedToEnd(BaseException):
    """The driver ends the group. Not an Exception: a transform that catches those must not swallow it."""


class StayingTask:
    """One staying task."""

    def __init__(
        self,
        link: Link,
        slot: int,
        attempt: int,
        follow: Any,
        writers: Mapping[str, StayingWriter],
        transform: Router | SettingAside,
        columns: frozenset[str],
    ) -> None:
        self._link, self._slot, self._attempt = link, slot, attempt
        self._follow, self._writers, self._transform, self._columns = follow, writers, transform, columns
        self._changed = threading.Condition()
        self._cut: Message | None = None
        self._cut_at = 0.0
        self._voted = self._flushed = 0
        """The last checkpoint that this task has voted for, and that all tasks have."""
        self._over: BaseException | None = None

    def run(self) -> None:
        self._link.send({"hello": self._slot, "attempt": self._attempt})
        begin = self._link.receive()
        task = CheckpointTask.from_json(begin["task"])
        # the driver must know whose transactions belong to a living task before there is one
        self._link.send({"marks": [self._writers[sink].mark(task, sink) for sink in task.sinks]})
        follower = self._follow(task.splits[self._slot], self._columns, begin["pace"], self._news)
        listening = threading.Thread(target=self._listen, args=(follower,), name="onceward-link", daemon=True)
        listening.start()
        try:
            while True:
                task = self._one(task, follower)
        except _OrderedToEnd:
            self._link.send({"ended": True})
        except LinkLostError:
            raise
        except BaseException as error:
            wrong = unusable(error) if isinstance(error, ENDING) else error
            later = {"postponed": Postponed(str(error), error.after).to_json()} if isinstance(error, Retry) else {}
            self._link.send({"failed": "".join(traceback.format_exception(wrong)), **later})
            raise wrong from error
        finally:
            follower.close()

    def _news(self, *, urgent: bool = True) -> None:
        self._link.send({"news" if urgent else "passed": True})

    def _one(self, task: CheckpointTask, follower: Any) -> CheckpointTask:
        """Write one checkpoint and vote; return the task of the next one."""
        slots = TaskSlots(self._writers, Attempt(task=task, slot=self._slot, number=self._attempt))
        route, letters = for_task(self._transform, slots)
        made = Timed(route(self._until_cut(task, follower)))
        reached = cache(follower.reached)  # asked once, when the batches have ended

        def report(ballot: Ballot) -> Message:
            """``open``: seconds by which the transactions are older than the cut, at most."""
            age = 0.0 if made.first is None else max(0.0, self._cut_at - made.first)
            return {"ballot": ballot.to_json(), "checkpoint": task.checkpoint, "reached": reached(), "open": age}

        def sent(ballot: Ballot) -> None:
            """Let the driver prove the transactions while the brokers confirm their records."""
            self._link.send({"sent": True, **report(ballot)})

        ballot = slots.write(made, sent)
        with self._changed:
            cut, self._cut = self._cut, None
        assert cut is not None, "the batches end with a cut"
        voted, ended = time.perf_counter(), made.ended or self._cut_at
        steps = {
            "schedule": cut["heard"] - cut["at"],
            "read": ended - self._cut_at,
            "flush": voted - ended,
        }
        measured = {step: round(max(0.0, seconds), 6) for step, seconds in steps.items()}
        # the next checkpoint begins here, before the driver knows of this vote
        following = replace(task, checkpoint=0, sinks=cut["sinks"])
        self._voted = task.checkpoint
        held: float = getattr(follower, "held_back", float)()
        self._link.send(report(letters(ballot).measured(measured, held)))
        kill_point(KillPoint.TASK_AFTER_VOTE)
        return following

    def _until_cut(self, task: CheckpointTask, follower: Any) -> Batches:
        """Yield batches until the driver cuts; from then on the task knows its checkpoint."""
        for batch in follower.batches():
            self._await_flushed()
            yield batch
        with self._changed:
            self._changed.wait_for(lambda: self._cut is not None or self._over is not None)
            self._raise_end()
            assert self._cut is not None
            task.checkpoint = int(self._cut["cut"])
        kill_point(KillPoint.TASK_AFTER_CUT)

    def _await_flushed(self) -> None:
        """Wait until every task has flushed the last checkpoint: an output partition must not hold records of this one
        before any of that one. The client fetches meanwhile."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._flushed >= self._voted or self._cut is not None or self._over is not None
            )
            self._raise_end()

    def _raise_end(self) -> None:
        if self._over is not None:
            raise self._over

    def _listen(self, follower: Any) -> None:
        """Receive orders until the group ends."""
        over: BaseException = _OrderedToEnd()
        try:
            while "end" not in (message := self._link.receive()):
                if "flushed" in message:
                    with self._changed:
                        self._flushed = int(message["flushed"])
                        self._changed.notify_all()
                    continue
                with self._changed:
                    self._cut = {**message, "heard": time.time()}
                    self._cut_at = time.perf_counter()
                    self._changed.notify_all()
                follower.cut(message.get("allowed", ()))
        except LinkLostError as error:
            over = error
        with self._changed:
            self._over = over
            self._changed.notify_all()
        follower.cut()
