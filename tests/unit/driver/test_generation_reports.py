"""What a generation reports about its checkpoints to the journal, the coordinator and the source; and why it leaves."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from onceward.common.errors import CheckpointFailedError, FencedError, HaltedError, OncewardError
from onceward.connectors.interfaces import Plan
from onceward.driver.mailbox import GenerationFailedError
from onceward.driver.restarts import NO_RESTART, NextStart, Restart
from onceward.protocol.answers import Answer, Verdict
from onceward.protocol.committing import Age
from onceward.protocol.events import Acknowledge, CloseReason, Event
from onceward.protocol.values import CheckpointId, Committable, Document, JobName
from tests.support.running_job import SINK, SOURCE, Coordinator
from tests.unit.driver.test_causes import IN_A_UDF
from tests.unit.driver.test_failing_checkpoints import Clock, Failing, at, bounded, once

PLAN, RUN, PROVE = 0.1234567, 2.1234567, 0.5554321
"""Seconds."""


class Reported(Coordinator):
    """Keep the last acknowledgement of each checkpoint and participant."""

    def __init__(self) -> None:
        super().__init__()
        self.acknowledged: dict[tuple[int, str], Acknowledge] = {}
        self.answered = self._note

    def _note(self, event: Event, _answer: Answer) -> None:
        if isinstance(event, Acknowledge):
            self.acknowledged[event.checkpoint, event.participant] = event


class Timed(Failing):
    """Every action takes time; of ten records that it reads, it writes nine."""

    def __init__(self, coordinator: Coordinator, **more: Any) -> None:
        self.clock = Clock()
        super().__init__(coordinator, runtime=self.clock, **more)
        self.changes: dict[str, Any] = {"sizing": {"limit": "time"}}
        """Changes to every plan."""
        self.planned = 0
        self.heard: list[tuple[bool, float]] = []
        self.source.observe_run = lambda plan, seconds, *, failed=False, held=0.0: self.heard.append(
            (failed, round(seconds, 6))
        )
        self._plan: Callable[[Document], Plan] = self.source.plan
        self.source.plan = self.plan

    def plan(self, base: Document) -> Plan:
        self.planned += 1
        self.clock.now += PLAN
        return replace(self._plan(base), **self.changes)

    def run(self, **more: Any) -> Any:
        self.clock.now += RUN
        ((name, (vote,)),) = super().run(**more).items()
        return {name: [replace(vote, records=9, bytes=90, steps={"schedule": 0.5, "write": 1.0})]}

    def pre_commit(self, *arguments: Any, **more: Any) -> Any:
        self.clock.now += PROVE
        return super().pre_commit(*arguments, **more)

    def age(self, committable: Committable) -> Age:
        number = committable.document.body["checkpoint"]
        return Age(transaction=f"t{number}", open_for=timedelta(hours=9), timeout=timedelta(minutes=10))


def test_a_checkpoint_is_logged_with_what_it_read_and_wrote_and_where_its_time_went() -> None:
    job = Timed(coordinator := Reported(), until=2)
    assert job.generation.run() is CloseReason.STOPPED
    assert job.told_of("pre-committed") == [
        {
            "checkpoint": 2,
            "base": 1,
            "transactions": 1,
            "read": 10,
            "written": 9,
            "bytes": 90,
            "outputs": {SINK.name: {"written": 9, "bytes": 90}},
            "lag": 0,
            "seconds": 2.679,
            "steps": {
                "plan": 0.123457,
                "schedule": 0.5,
                "queue": 0.0,
                "write": 1.0,
                "vote": 0.623457,
                "prove": 0.555432,
            },
            "limit": "time",
        }
    ]
    assert job.told_of("recovered") == [{"checkpoint": 0, "resumed": 0, "aborted": 0}]
    assert job.told_of("closed") == [{"reason": "stopped"}]
    assert (job.planned, job.heard) == (1, [(False, round(RUN + PROVE, 6))]), "what there is is read at once"
    source, sink = (coordinator.acknowledged[2, one.name].snapshot for one in (SOURCE, SINK))
    assert (source.records, sink.records, sink.bytes) == (10, 9, 90)


def test_a_checkpoint_is_good_for_less_than_its_transactions_last_by_our_clock() -> None:
    """A clock on another machine measured their age."""
    Timed(coordinator := Reported(), until=3).generation.run()
    assert coordinator.acknowledged[1, SINK.name].good_for_s is None
    for checkpoint in (2, 3):
        assert coordinator.acknowledged[checkpoint, SINK.name].good_for_s == pytest.approx(9 * 60 - RUN - PROVE)


@pytest.mark.parametrize(
    ("changes", "at_once"), [({}, False), ({"cut_for_time": True}, True), ({"finished": True}, True)]
)
def test_the_next_checkpoint_waits_for_no_interval_while_there_is_a_backlog(
    changes: dict[str, Any], at_once: bool
) -> None:
    job = Timed(coordinator := Reported(), until=2)
    job.changes = changes
    job.generation.run()
    assert coordinator.acknowledged[1, SOURCE.name].snapshot.next_at_once, "the first one has read nothing yet"
    assert coordinator.acknowledged[2, SOURCE.name].snapshot.next_at_once is at_once


def test_a_failed_run_reports_its_duration_to_the_source() -> None:
    job = Timed(Reported(), until=4, running=once(3, CheckpointFailedError("executor lost")))
    job.generation.run()
    assert job.heard[1] == (True, round(RUN, 6))


class Slow(Failing):
    """Commit checkpoint 2 only after a sweep found something; each sweep but the first finds two transactions."""

    def __init__(self, coordinator: Coordinator, **more: Any) -> None:
        super().__init__(coordinator, **more)
        self._swept = threading.Event()
        self.committing = self._wait

    def _wait(self, checkpoint: int) -> None:
        assert checkpoint > 2 or self._swept.wait(30)

    def sweep(self, _job: JobName, **more: Any) -> Sequence[str]:
        super().sweep(_job, **more)
        if len(self.swept_beside) == 1:
            return []
        self._swept.set()
        return ["one", "another"]


def test_aborted_transactions_are_reported_and_decided_ones_left_alone() -> None:
    job = Slow(Reported(), until=4, running=once(3, CheckpointFailedError("executor lost")))
    job.generation.run()
    assert job.told_of("aborted")[0] == {"checkpoint": 3, "transactions": 2, "reason": "executor lost"}
    assert job.swept_beside[1] == [2], "its transaction is decided, and not committed yet"
    assert job.committed == [2, 4]


def test_an_aborted_checkpoint_that_was_acknowledged_reports_its_own_transactions_too() -> None:
    coordinator = Reported()

    def takes_too_long(checkpoint: int) -> None:
        if checkpoint == 3:
            coordinator.pass_time(11)

    job = Slow(coordinator, until=4, running=takes_too_long)
    job.generation.run()
    first = job.told_of("aborted")[0]
    assert (first["checkpoint"], first["transactions"]) == (3, 3)


def test_an_idle_job_leaves_decided_transactions_alone_and_reports_what_it_swept() -> None:
    clock = Clock()
    job = Slow(Reported(), until=99, runtime=clock)
    some: Any = bounded(10)

    def plan(base: Document) -> Plan:
        clock.now += 31.0
        found: Plan = some(base)
        if base.body["next"] == 10 and len(job.swept_beside) > 1:
            job.generation.stop()
        return replace(found, finished=False)

    job.source.plan = plan
    assert job.generation.run() is CloseReason.STOPPED
    assert job.swept_beside[1] == [2]
    assert job.told_of("swept")[0] == {"transactions": 2}
    assert job.committed == [2]


# -- waiting for data, on a clock that stands still


@pytest.mark.parametrize("ends", ["stop", "abort"])
def test_a_stop_and_an_abort_end_the_wait_for_data(ends: str) -> None:
    coordinator, planned = Reported(), list[int]()
    job = Failing(coordinator, until=99, runtime=Clock())

    def plan(base: Document) -> Plan:
        planned.append(base.body["next"])
        if len(planned) == 3 and ends == "abort":
            coordinator.pass_time(11)
            coordinator.send()
        elif len(planned) >= 3:
            job.generation.stop()
        return Plan(splits=(), positions=base, records=0, lag=0, finished=False)

    job.source.plan = plan
    assert job.generation.run() is CloseReason.STOPPED
    assert len(planned) == (3 if ends == "stop" else 4)
    assert ((3, SOURCE.name) in coordinator.acknowledged) is (ends == "abort"), "the next checkpoint follows"


def test_positions_that_advance_without_a_record_are_acknowledged_at_once() -> None:
    """Markers of other transactions are offsets, too."""
    coordinator = Reported()
    job = Failing(coordinator, until=99, runtime=Clock())

    def plan(base: Document) -> Plan:
        if base.body["next"] == 20:
            job.generation.stop()
        return Plan(splits=(), positions=at(base.body["next"] + 10), records=0, lag=0, finished=False)

    job.source.plan = plan
    assert job.generation.run() is CloseReason.STOPPED
    snapshot = coordinator.acknowledged[3, SOURCE.name].snapshot
    assert (snapshot.positions, snapshot.unchanged, job.ran) == (at(20), False, [])


# -- lost messages


def test_a_trigger_that_comes_again_after_the_answers_were_forgotten_is_answered_again() -> None:
    coordinator = Reported()
    forgotten = False

    def forget(event: Event, _answer: Answer) -> None:
        nonlocal forgotten
        mine = isinstance(event, Acknowledge) and (event.checkpoint, event.participant) == (3, SOURCE.name)
        if mine and not forgotten:
            forgotten = True
            coordinator.restart()

    coordinator.answered = forget
    job = Failing(coordinator, until=4)
    assert job.generation.run() is CloseReason.STOPPED
    assert job.ran == job.committed == [2, 3, 4]


def test_completed_checkpoints_are_committed_before_spark_starts_and_the_source_is_notified() -> None:
    coordinator = Coordinator()

    def dies(event: Event, _answer: Answer) -> None:
        if isinstance(event, Acknowledge) and (event.checkpoint, event.participant) == (2, SINK.name):
            coordinator.hang_up()
            raise OncewardError("no answer")

    coordinator.answered = dies
    with pytest.raises(OncewardError):
        Failing(coordinator, until=9).generation.run()
    coordinator.answered = lambda *_: None
    successor, mirrored, at_start = Failing(coordinator, until=4), list[Document](), list[int]()
    successor.source.mirror = mirrored.append
    changed: Any = successor
    changed.start = lambda: at_start.extend(successor.committed)
    successor.generation.run()
    assert at_start == [2]
    assert mirrored[0] == at(10)
    assert successor.generation.settled_records == 10 * len(successor.ran), "what it has not read counts for nothing"


# -- leaving


def refused(coordinator: Coordinator, checkpoint: int) -> None:
    """Have the acknowledgement of ``checkpoint`` refused."""
    acknowledge: Any = coordinator.acknowledge

    def refuse(number: CheckpointId, *rest: Any, **more: Any) -> Any:
        answers = acknowledge(number, *rest, **more)
        return (Answer(verdict=Verdict.WRONG_BASE, detail="so it is"),) if number == checkpoint else answers

    changed: Any = coordinator
    changed.acknowledge = refuse


def test_a_job_with_too_many_failures_leaves_with_the_cause_of_the_last_one() -> None:
    coordinator = Reported()

    def running(checkpoint: int) -> None:
        raise CheckpointFailedError(f"disk full {checkpoint}")

    job = Failing(coordinator, until=99, running=running)
    with pytest.raises(GenerationFailedError):
        job.generation.run()
    assert coordinator.left_because == "disk full 5 (checkpoint 5)"
    assert job.told_of("failed") == [{"reason": coordinator.left_because}]


def test_a_failure_that_was_overcome_is_not_the_cause_of_a_later_one() -> None:
    coordinator = Reported()
    job = Failing(coordinator, until=99, running=once(3, CheckpointFailedError("executor lost")))
    refused(coordinator, 5)
    with pytest.raises(GenerationFailedError):
        job.generation.run()
    assert "refused the acknowledgement of checkpoint 5" in coordinator.left_because


@pytest.mark.parametrize("delay", [None, 3.0])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_failed_driver_announces_its_return_unless_another_has_the_job(delay: float | None, replaced: bool) -> None:
    coordinator = Reported()
    coordinator.word = FencedError("another driver has the job") if replaced else None
    restart = NO_RESTART if delay is None else Restart(initial=f"{delay}s", jitter=0)
    job = Failing(coordinator, until=99, running=once(3, OncewardError("broken")), restart=restart)
    with pytest.raises(OncewardError) as left:
        job.generation.run()
    assert coordinator.back_within_s == delay
    assert isinstance(left.value, FencedError) is (replaced and delay is not None)


@pytest.mark.parametrize("why_not", ["final", "interrupted", "stopped", "without Spark", ""])
def test_a_generation_is_followed_by_another_unless_that_could_not_help(why_not: str) -> None:
    job = Failing(Coordinator(), until=2, restart=Restart(), last=why_not == "stopped")
    changed: Any = job
    changed.alive = lambda: why_not != "without Spark"
    errors: dict[str, BaseException] = {"final": HaltedError("look"), "interrupted": KeyboardInterrupt()}
    following = job.generation.next_start(errors.get(why_not, OncewardError("broken")))
    assert (following.delay is None) is bool(why_not)


@pytest.mark.parametrize(
    ("error", "following", "begins", "has", "has_not"),
    [
        (OncewardError("broken"), NextStart(delay=1.0), "broken", "", "in a row"),
        (OncewardError("broken"), NextStart(delay=1.0, failures=2), "broken. Failure 2 in a row", "by itself", "start"),
        (
            OncewardError("broken"),
            NextStart(delay=None, failures=3),
            "broken. Failure 3",
            "start the program",
            "itself",
        ),
        (ValueError(), NextStart(delay=None), "ValueError()", "", "in a row"),
    ],
)
def test_the_end_of_a_generation_is_reported_with_its_cause_and_a_remedy(
    error: Exception, following: NextStart, begins: str, has: str, has_not: str
) -> None:
    text = Failing(Coordinator(), until=2).generation.describe_end(error, following)
    assert text.startswith(begins)
    assert has in text
    assert has_not not in text


# -- the input at fault


def test_a_sink_whose_records_show_at_once_is_given_no_record_again_to_find_the_one_at_fault() -> None:
    job = Failing(Reported(), until=4, running=once(3, RuntimeError(IN_A_UDF)))
    changed: Any = job
    changed.hides_until_decided = lambda: False
    job.source.describe = lambda splits: str([(s["start"], s["end"]) for s in splits])
    job.generation.run()
    assert job.ran == [2, 3, 4]
    assert "Input: [(10, 20)]" in job.told_of("aborted")[0]["reason"]


def test_a_range_that_fails_by_accident_is_not_the_input_at_fault() -> None:
    job = Failing(Reported(), until=4)
    plan: Any = job.source.plan
    job.source.plan = lambda base: replace(plan(base), can_coalesce=True)
    job.source.describe = lambda splits: str([(s["start"], s["end"]) for s in splits])
    job.source.halves = lambda splits: (
        ([{**splits[0], "end": 15}], [{**splits[0], "start": 15}]) if splits[0]["end"] > 15 else None
    )

    def running(checkpoint: int) -> None:
        if checkpoint == 3:
            raise RuntimeError(IN_A_UDF if job.ran.count(3) == 1 else "ExecutorLostFailure (executor 1 exited)")

    job.running = running
    job.generation.run()
    assert job.ran.count(3) > 1
    assert "Input: [(10, 20)]" in job.told_of("aborted")[0]["reason"]
    coalesced = [plan.can_coalesce for plan in job.plans]
    assert coalesced == [True, True, *([False] * (len(coalesced) - 3)), True], "parts are read as they are"


def test_a_running_job_is_interrupted_when_its_checkpoint_is_aborted() -> None:
    coordinator, cancelled = Reported(), list[int]()

    def running(checkpoint: int) -> None:
        if checkpoint == 3:
            coordinator.pass_time(11)
            coordinator.send()
            assert cancelled, "it would run to its end for nothing"
            raise RuntimeError("the job was cancelled")

    job = Failing(coordinator, until=4, running=running)
    changed: Any = job
    changed.cancel = lambda: cancelled.append(1)
    assert job.generation.run() is CloseReason.STOPPED
