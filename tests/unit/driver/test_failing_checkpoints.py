"""A generation with the real core whose checkpoints fail, find nothing to read, or reach the end of the input."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from onceward.common.errors import (
    CheckpointFailedError,
    ConfigurationError,
    CoordinatorLostError,
    HaltedError,
    OncewardError,
    PostponedError,
)
from onceward.connectors.interfaces import Plan, Refusal
from onceward.driver.mailbox import GenerationFailedError
from onceward.driver.runtime import Threads
from onceward.protocol.answers import Abort, Answer, Decision, Instruction, Trigger, Verdict
from onceward.protocol.events import Acknowledge, CancelJob, CloseReason, Decline, Event, Settle, StopJob
from onceward.protocol.facts import AbortReason
from onceward.protocol.state import JobState
from onceward.protocol.values import (
    CheckpointId,
    Document,
    JobName,
    JsonObject,
    ParticipantName,
)
from tests.support.documents import document
from tests.support.running_job import SETTINGS, SINK, Coordinator, Job
from tests.support.waiting import wait_until
from tests.unit.driver.test_causes import IN_A_UDF


class Failing(Job):
    """A job whose Spark job fails when a test says so."""

    def __init__(self, coordinator: Coordinator, *, until: int, **more: Any) -> None:
        super().__init__(coordinator, until=until, **more)
        self.plans: list[Plan] = []
        """The plan of each Spark job."""
        self.silenced: list[int] = []
        """The number of Spark jobs before and after their failures were not logged."""
        self.ran_into: list[bool] = []
        """Whether each plan failed, as reported to the source."""
        self.source.observe_run = lambda plan, seconds, *, failed=False, held=0.0: self.ran_into.append(failed)

    def run(self, *, plan: Plan, **more: Any) -> Any:
        self.plans.append(plan)
        return super().run(plan=plan, **more)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        self.silenced.append(len(self.plans))
        yield
        self.silenced.append(len(self.plans))

    def explain(self, cause: str) -> Refusal | None:
        return Refusal(text="a record is too large", by_record=True) if "MSG_SIZE_TOO_LARGE" in cause else None

    def hides_until_decided(self) -> bool:
        return True


class Reasons(Coordinator):
    """Keep the reasons for declined checkpoints."""

    def decline(self, checkpoint: CheckpointId, participant: ParticipantName, reason: str, **more: Any) -> Answer:
        self.reasons.append(reason)
        return super().decline(checkpoint, participant, reason, **more)

    @property
    def reasons(self) -> list[str]:
        found: list[str] = self.__dict__.setdefault("_reasons", [])
        return found


def once(checkpoint: int, error: Exception) -> Any:
    """Fail the Spark job of one checkpoint."""

    def running(number: int) -> None:
        if number == checkpoint:
            raise error

    return running


def test_a_source_that_learns_of_its_input_ends_the_wait_for_it() -> None:
    job = Failing(Reasons(), until=2)
    job.source.idle_poll_s = 1000
    came, planned = threading.Event(), job.source.plan

    def comes() -> None:
        came.set()
        job.source.wake()

    def plan(base: Document) -> Plan:
        if not came.is_set():
            threading.Thread(target=comes).start()
            return Plan(splits=(), positions=base, records=0, lag=0, finished=False)
        return planned(base)  # type: ignore[no-any-return]

    job.source.plan, job.source.has_news = plan, came.is_set
    assert job.generation.run() is CloseReason.STOPPED
    assert job.read == {2: (0, 10)}


def test_a_checkpoint_that_fails_is_declined_swept_and_read_again() -> None:
    coordinator = Reasons()
    job = Failing(coordinator, until=5, running=once(3, RuntimeError("ExecutorLostFailure (executor 1 exited)")))
    assert job.generation.run() is CloseReason.STOPPED
    assert coordinator.reasons == ["ExecutorLostFailure (executor 1 exited)"]
    assert job.read == {2: (0, 10), 3: (10, 20), 4: (10, 20), 5: (20, 30)}
    assert job.committed == [2, 4, 5]
    assert job.ran_into == [False, True, False, False]
    assert len(job.swept_beside) > 1, "what its tasks had begun is still open"
    assert (job.generation.settled_records, job.generation.failed_records) == (30, 10)


def test_what_is_postponed_is_not_read_before_its_time() -> None:
    coordinator = Reasons()
    times: list[float] = []

    def running(number: int) -> None:
        times.append(time.monotonic())
        if len(times) == 2:
            raise PostponedError("called again in 0.3 s: away", after=0.3)
        if len(times) == 4:
            job.generation.stop()

    job = Failing(coordinator, until=1_000_000, running=running)
    assert job.generation.run() is CloseReason.STOPPED
    assert coordinator.reasons == ["called again in 0.3 s: away"]
    assert times[2] - times[1] >= 0.3
    ranges = list(job.read.values())
    assert ranges[:4] == [(0, 10), (10, 20), (10, 20), (20, 30)], "nothing is skipped"


class Phased(Reasons):
    """Keep the phases of each answer of the driver."""

    def handle(self, event: Event) -> Answer:
        if isinstance(event, Acknowledge | Decline):
            self.phases[event.checkpoint] = {phase.value: took.total_seconds() for phase, took in event.phases.items()}
        return super().handle(event)

    @property
    def phases(self) -> dict[int, dict[str, float]]:
        found: dict[int, dict[str, float]] = self.__dict__.setdefault("_phases", {})
        return found


class Ticking(Threads):
    """A clock that advances only during work."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_a_driver_reports_the_phases_of_a_checkpoint_and_those_until_a_failure() -> None:
    clock, coordinator = Ticking(), Phased()

    def running(number: int) -> None:
        clock.now += 4.0
        if number == 3:
            raise RuntimeError("ExecutorLostFailure (executor 1 exited)")

    job = Failing(coordinator, until=4, running=running, runtime=clock)
    planned, voted, proved = job.source.plan, job.generation._m.tasks.run, job.pre_commit

    def plan(base: Document) -> Plan:
        clock.now += 0.25
        return planned(base)  # type: ignore[no-any-return]

    def run(**given: Any) -> Any:
        steps = {"schedule": 1.0, "read": 0.5, "transform": 0.25, "produce": 1.0, "flush": 0.75}
        return {name: [replace(vote, steps=steps) for vote in votes] for name, votes in voted(**given).items()}

    def pre_commit(*given: Any, **more: Any) -> Any:
        clock.now += 0.125
        return proved(*given, **more)

    job.source.plan = plan
    same: Any = job
    same.run, same.pre_commit = run, pre_commit
    assert job.generation.run() is CloseReason.STOPPED
    whole = {
        "plan": 0.25, "schedule": 1.0, "queue": 0.0, "read": 0.5, "transform": 0.25, "produce": 1.0, "flush": 0.75,
        "vote": 0.5, "prove": 0.125,
    }  # fmt: skip
    assert coordinator.phases == {1: {}, 2: whole, 3: {"plan": 0.25}, 4: whole}


def test_a_checkpoint_reports_how_long_its_trigger_waited_for_the_end_of_an_aborted_one() -> None:
    clock, coordinator = Ticking(), Phased()
    job = Failing(coordinator, until=4, running=once(3, RuntimeError("ExecutorLostFailure")), runtime=clock)
    committer: Any = job
    swept = committer.sweep

    def sweep(*given: Any, **more: Any) -> Any:
        clock.now += 1.5
        return swept(*given, **more)

    committer.sweep = sweep
    assert job.generation.run() is CloseReason.STOPPED
    waited = {checkpoint: phases.get("cleanup") for checkpoint, phases in coordinator.phases.items()}
    assert waited == {1: None, 2: None, 3: None, 4: 3.0}, "once after the decline, once for the abort that follows"


def test_a_wait_for_new_input_is_no_planning() -> None:
    clock, coordinator = Ticking(), Phased()
    job = Failing(coordinator, until=2, runtime=clock)
    job.source.idle_poll_s = 1000
    planned, nothing = job.source.plan, iter([True, False])

    def plan(base: Document) -> Plan:
        clock.now += 0.25
        if next(nothing, False):
            return Plan(splits=(), positions=base, records=0, lag=0, finished=False)
        return planned(base)  # type: ignore[no-any-return]

    def comes() -> bool:
        clock.now += 0.5
        return True

    job.source.plan, job.source.has_news = plan, comes
    assert job.generation.run() is CloseReason.STOPPED
    assert {name: coordinator.phases[2][name] for name in ("idle", "plan")} == {"idle": 0.5, "plan": 0.25}


def test_the_source_may_replace_an_error_with_its_own() -> None:
    coordinator = Reasons()
    job = Failing(coordinator, until=4, running=once(3, RuntimeError("wrapped")))
    job.source.diagnose = lambda _error: CheckpointFailedError("a broker was away")
    assert job.generation.run() is CloseReason.STOPPED
    assert coordinator.reasons == ["a broker was away"]


def test_an_error_that_no_other_checkpoint_helps_against_declines_and_ends_the_generation() -> None:
    coordinator = Reasons()
    job = Failing(coordinator, until=9, running=once(3, ConfigurationError("the transform returned nothing")))
    with pytest.raises(ConfigurationError):
        job.generation.run()
    assert coordinator.reasons == ["the transform returned nothing"]


def test_a_checkpoint_that_was_aborted_meanwhile_is_not_declined() -> None:
    coordinator = Reasons()

    def interrupted(checkpoint: int) -> None:
        if checkpoint == 3:
            coordinator.pass_time(11)
            coordinator.send()
            raise RuntimeError("the job was cancelled")

    job = Failing(coordinator, until=5, running=interrupted)
    assert job.generation.run() is CloseReason.STOPPED
    assert coordinator.reasons == []
    assert job.read[4] == (10, 20)


def halved(splits: Sequence[JsonObject]) -> Any:
    (split,) = splits
    middle = (split["start"] + split["end"]) // 2
    if middle == split["start"]:
        return None
    return [{**split, "end": middle}], [{**split, "start": middle}]


@pytest.mark.parametrize("bad", [12, 17])
def test_a_record_that_cannot_be_written_is_named_by_the_smallest_range_that_fails_alone(bad: int) -> None:
    coordinator = Reasons()
    job = Failing(coordinator, until=5)
    seen = 0

    def running(checkpoint: int) -> None:
        nonlocal seen
        reads = range(*next((s["start"], s["end"]) for s in job.plans[-1].splits))
        if checkpoint == 3 and bad in reads:
            seen += 1
            raise RuntimeError(IN_A_UDF)

    job.running = running
    job.source.halves = halved
    job.source.describe = lambda splits: str([(s["start"], s["end"]) for s in splits])
    assert job.generation.run() is CloseReason.STOPPED
    (reason,) = coordinator.reasons
    assert "ValueError: could not convert string to float: 'x'" in reason
    assert f"Input: [({bad}, {bad + 1})]. Nothing of the checkpoint becomes visible" in reason
    assert not any(plan.can_coalesce for plan in job.plans)
    assert seen > 2
    begin, end = job.silenced
    assert (begin, end) == (2, len(job.plans) - 2), "only the search logs no failures"
    assert job.committed == [2, 4, 5]


def test_the_error_that_is_named_is_that_of_the_input_that_is_named() -> None:
    """Tasks run side by side, so Spark reports any of several failures first."""
    coordinator = Reasons()
    job = Failing(coordinator, until=4)
    raised = {12: IN_A_UDF.replace("'x'", "'first'"), 17: IN_A_UDF.replace("'x'", "'second'")}

    def running(checkpoint: int) -> None:
        reads = range(*next((s["start"], s["end"]) for s in job.plans[-1].splits))
        found = [offset for offset in raised if offset in reads]
        if checkpoint == 3 and found:
            raise RuntimeError(raised[found[-1]])

    job.running = running
    job.source.halves = halved
    job.source.describe = lambda splits: str([(s["start"], s["end"]) for s in splits])
    assert job.generation.run() is CloseReason.STOPPED
    (reason,) = coordinator.reasons
    assert "'first'" in reason
    assert "'second'" not in reason
    assert "Input: [(12, 13)]." in reason


def test_a_job_aborted_while_it_narrows_down_the_record_names_the_known_range() -> None:
    coordinator = Reasons()
    job = Failing(coordinator, until=5)

    def running(checkpoint: int) -> None:
        if checkpoint == 3:
            if job.ran.count(3) == 2:
                coordinator.pass_time(11)
                coordinator.send()
            raise RuntimeError(IN_A_UDF)

    job.running = running
    job.source.halves = lambda splits: (splits, splits)
    job.source.describe = lambda splits: str([(s["start"], s["end"]) for s in splits])
    assert job.generation.run() is CloseReason.STOPPED
    assert job.ran.count(3) == 2, "it went on"
    assert job.committed == [2, 4, 5]


def test_records_above_a_limit_are_explained_by_the_sink() -> None:
    coordinator = Reasons()
    job = Failing(coordinator, until=4, running=once(3, RuntimeError("[E] MSG_SIZE_TOO_LARGE, OutOfMemory")))
    job.source.halves = lambda _splits: None
    job.source.describe = lambda _splits: "orders-0"
    assert job.generation.run() is CloseReason.STOPPED
    assert coordinator.reasons[0].startswith("a record is too large. Input: orders-0. ")


def test_a_reason_as_long_as_a_log_is_cut() -> None:
    coordinator = Reasons()
    job = Failing(coordinator, until=4, running=once(3, CheckpointFailedError("x" * 10_000)))
    job.generation.run()
    assert len(coordinator.reasons[0]) <= 6_000
    assert coordinator.reasons[0].endswith(" … (shortened)")


def test_a_driver_without_spark_settles_completed_checkpoints_and_leaves() -> None:
    coordinator = Reasons()
    job = Failing(coordinator, until=9)
    changed: Any = job

    def running(checkpoint: int) -> None:
        if checkpoint == 3:
            changed.alive = lambda: False
            raise RuntimeError("TaskKilled (the JVM is gone)")

    job.running = running
    with pytest.raises(OncewardError, match="Spark's JVM is gone"):
        job.generation.run()
    assert job.committed == [2]


# -- the end of the input, and no input


def at(offset: int) -> Document:
    return document(next=offset)


def bounded(end: int) -> Any:
    def plan(base: Document) -> Plan:
        start = base.body["next"]
        stop = min(start + 10, end)
        splits = ({"start": start, "end": stop},)
        return Plan(splits=splits, positions=at(stop), records=stop - start, lag=end - stop, finished=stop == end)

    return plan


def test_a_bounded_job_ends_when_everything_up_to_its_end_is_settled() -> None:
    job = Failing(Coordinator(), until=99)
    job.source.plan = bounded(25)
    assert job.generation.run() is CloseReason.FINISHED
    assert job.read == {2: (0, 10), 3: (10, 20), 4: (20, 25)}
    assert job.committed == [2, 3, 4]
    assert job.coordinator.state.durable.settled


class Clock(Threads):
    """Time passes only during a sleep or a wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Idle(Failing):
    """Nothing to read for ``plans`` plans; each takes `costs` seconds."""

    def __init__(self, coordinator: Coordinator, clock: Clock, *, plans: int, costs: float, until: int = 99) -> None:
        super().__init__(coordinator, until=until, runtime=clock)
        self.clock, self.left, self.costs = clock, plans, costs
        self.planned = 0
        self.source.plan = self._plan

    def _plan(self, base: Document) -> Plan:
        self.planned += 1
        self.clock.now += self.costs
        self.left -= 1
        if self.left == 0:
            self.generation.stop()
        return Plan(splits=(), positions=base, records=0, lag=0, finished=False)


def test_an_idle_job_commits_nothing_and_sweeps_now_and_then() -> None:
    clock = Clock()
    job = Idle(Coordinator(), clock, plans=100, costs=1.0)
    assert job.generation.run() is CloseReason.STOPPED
    assert (job.ran, job.committed, job.aborted) == ([], [], [])
    assert len(job.swept_beside) == 1 + 3 + 1, "at the start, after each 30 s, and at the end"
    assert job.coordinator.state.durable.completed is not None
    assert job.coordinator.state.durable.completed.id == 1, "an unchanged checkpoint leaves nothing"


def test_a_plan_without_data_is_repeated_for_a_second_and_then_acknowledged() -> None:
    answers: list[float] = []
    clock = Clock()
    coordinator = Coordinator()
    job = Idle(coordinator, clock, plans=12, costs=0.3)

    def note(event: Event, _answer: Answer) -> None:
        if isinstance(event, Acknowledge) and event.participant == SINK.name and event.checkpoint > 1:
            answers.append(round(clock.now, 3))

    coordinator.answered = note
    job.generation.run()
    assert answers[:2] == [1.2, 2.4], "four looks for each"


def test_data_that_comes_while_a_plan_waits_is_read_at_once() -> None:
    clock = Clock()
    job = Idle(Coordinator(), clock, plans=99, costs=0.1, until=2)

    def plan(base: Document) -> Plan:
        if job.planned == 3:
            found: Plan = bounded(100)(base)
            return found
        return job._plan(base)

    job.source.plan = plan
    assert job.generation.run() is CloseReason.STOPPED
    assert job.read == {2: (0, 10)}


# -- what the coordinator answers


def test_an_acknowledgement_that_is_too_large_to_be_sent_declines_and_aborts() -> None:
    coordinator = Reasons()
    job = Failing(coordinator, until=5)
    acknowledge: Any = coordinator.acknowledge

    def too_large(checkpoint: CheckpointId, *rest: Any, **more: Any) -> Any:
        if checkpoint == 3:
            raise CheckpointFailedError("70 MiB, and the limit is 32 MiB")
        return acknowledge(checkpoint, *rest, **more)

    changed: Any = coordinator
    changed.acknowledge = too_large
    assert job.generation.run() is CloseReason.STOPPED
    assert coordinator.reasons == ["70 MiB, and the limit is 32 MiB"]
    assert (job.aborted, job.committed) == ([3], [2, 4, 5])


def test_an_acknowledgement_for_which_the_coordinator_has_no_room_declines_and_aborts() -> None:
    coordinator = Reasons()
    job = Failing(coordinator, until=5)
    acknowledge: Any = coordinator.acknowledge

    def no_room(checkpoint: CheckpointId, base: CheckpointId, snapshots: Any, **more: Any) -> Any:
        if checkpoint != 3:
            return acknowledge(checkpoint, base, snapshots, **more)
        source = {name: one for name, one in snapshots.items() if one.positions is not None}
        refused = Answer(verdict=Verdict.REFUSED, detail="the peer holds 300 of 400 bytes")
        return (*acknowledge(checkpoint, base, source, **more), refused)

    changed: Any = coordinator
    changed.acknowledge = no_room
    assert job.generation.run() is CloseReason.STOPPED
    assert coordinator.reasons == ["the peer holds 300 of 400 bytes"]
    assert (job.aborted, job.committed) == ([3], [2, 4, 5])


@pytest.mark.parametrize("verdict", [Verdict.WRONG_BASE, Verdict.UNKNOWN_CHECKPOINT, Verdict.INVALID, Verdict.TOO_LATE])
def test_an_acknowledgement_that_is_refused_ends_the_generation_and_aborts_nothing(verdict: Verdict) -> None:
    """The checkpoint may be decided: only the next generation knows."""
    coordinator = Coordinator()
    job = Failing(coordinator, until=9)
    acknowledge: Any = coordinator.acknowledge

    def refuse(checkpoint: CheckpointId, *rest: Any, **more: Any) -> Any:
        answers = acknowledge(checkpoint, *rest, **more)
        return (answers[0], Answer(verdict=verdict, detail="so it is")) if checkpoint == 3 else answers

    changed: Any = coordinator
    changed.acknowledge = refuse
    with pytest.raises(GenerationFailedError, match=f"acknowledgement of checkpoint 3: {verdict.value}: so it is"):
        job.generation.run()
    assert job.aborted == []
    assert 3 in job.swept_beside[-1] or 3 in job.committed, "kept, or settled before the sweep"


def test_an_acknowledgement_that_comes_after_the_checkpoint_was_completed_changes_nothing() -> None:
    """The acknowledgement was sent twice, and the first one had arrived."""
    coordinator = Coordinator()
    acknowledge: Any = coordinator.acknowledge

    def late(*arguments: Any, **more: Any) -> Any:
        acknowledge(*arguments, **more)
        return (Answer(verdict=Verdict.TOO_LATE, decision=Decision.COMPLETED),) * 2

    changed: Any = coordinator
    changed.acknowledge = late
    job = Failing(coordinator, until=4)
    assert job.generation.run() is CloseReason.STOPPED
    assert (job.committed, job.aborted) == ([2, 3, 4], [])


def test_a_copy_of_the_store_that_has_aborted_a_completed_checkpoint_is_not_followed() -> None:
    """The acknowledgement was sent twice: the first one completed the checkpoint, the second one reached the copy."""
    coordinator = Coordinator()
    acknowledge: Any = coordinator.acknowledge

    def late(checkpoint: CheckpointId, *rest: Any, **more: Any) -> Any:
        answers = acknowledge(checkpoint, *rest, **more)
        if checkpoint != 3:
            return answers
        wait_until(lambda: job.generation._mailbox.completed == 3, "the driver knows that it is completed")
        return (Answer(verdict=Verdict.TOO_LATE, decision=Decision.ABORTED),) * 2

    changed: Any = coordinator
    changed.acknowledge = late
    job = Failing(coordinator, until=4)
    with pytest.raises(HaltedError, match=r"aborted checkpoint 3, .* older copy"):
        job.generation.run()
    assert job.aborted == []


@pytest.mark.parametrize(
    "said",
    [
        Abort(checkpoint=CheckpointId(3), base=CheckpointId(2), reason=AbortReason.CANCELLED, detail=""),
        Trigger(checkpoint=CheckpointId(4), base=CheckpointId(2)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_a_former_leader_said_yields_to_the_one_that_takes_the_acknowledgement(said: Instruction) -> None:
    """The former leader aborts 3. An older copy of its store, which lacks that, takes the acknowledgement."""
    coordinator, heard = Coordinator(), threading.Event()
    acknowledge: Any = coordinator.acknowledge

    def late(checkpoint: CheckpointId, *rest: Any, **more: Any) -> Any:
        if checkpoint == 3 and not heard.is_set():
            heard.set()
            assert coordinator._deliver is not None
            coordinator._deliver(said)
            coordinator.hears = lambda instruction: not isinstance(instruction, Trigger)
        taken = acknowledge(checkpoint, *rest, **more)
        coordinator.hears = lambda _: True
        return taken

    changed: Any = coordinator
    changed.acknowledge = late
    job = Failing(coordinator, until=5)
    assert job.generation.run() is CloseReason.STOPPED
    assert (job.committed, job.aborted) == ([2, 3, 4, 5], [])


def test_an_abort_that_overtakes_the_answer_to_the_acknowledgement_is_carried_out() -> None:
    """The leader takes the acknowledgement of 3, whose base is not settled, and aborts it."""
    coordinator, aborted = Coordinator(), threading.Event()
    acknowledge: Any = coordinator.acknowledge

    def late(checkpoint: CheckpointId, *rest: Any, **more: Any) -> Any:
        answers = acknowledge(checkpoint, *rest, **more)
        if checkpoint == 3 and not aborted.is_set():
            coordinator.cancel()
            coordinator.send()
            aborted.set()
        return answers

    def settles_late(checkpoint: int) -> None:
        if checkpoint == 2:
            assert aborted.wait(30)

    changed: Any = coordinator
    changed.acknowledge = late
    job = Failing(coordinator, until=5)
    job.committing = settles_late
    assert job.generation.run() is CloseReason.CANCELLED
    assert (job.committed, job.aborted) == ([2], [3])


@pytest.mark.parametrize("ends", [StopJob, CancelJob])
def test_a_driver_does_not_wait_for_a_decision_of_an_older_copy_that_lacks_the_checkpoint_and_ends_the_job(
    ends: type[StopJob | CancelJob],
) -> None:
    """The copy was made before checkpoint 3 was triggered, which the driver has acknowledged. It triggers nothing."""
    coordinator, replaced, triggered = Coordinator(), threading.Event(), set[CheckpointId]()
    acknowledge: Any = coordinator.acknowledge

    def to_the_newest(checkpoint: CheckpointId, *rest: Any, **more: Any) -> Any:
        answers = acknowledge(checkpoint, *rest, **more)
        if checkpoint == 3 and not replaced.is_set():
            durable = coordinator.state.durable
            coordinator.state = replace(
                coordinator.state, durable=replace(durable, pending=None, last_id=CheckpointId(2)), pending=None
            )
            coordinator.handle(ends(now=coordinator.now))
            replaced.set()
        return answers

    def once(instruction: Instruction) -> bool:
        """A repeated trigger makes the driver acknowledge again."""
        if not isinstance(instruction, Trigger):
            return True
        first = instruction.checkpoint not in triggered
        triggered.add(instruction.checkpoint)
        return first

    def settles_late(checkpoint: int) -> None:
        if checkpoint == 2:
            assert replaced.wait(30)

    changed: Any = coordinator
    changed.acknowledge = to_the_newest
    coordinator.hears = once
    job = Failing(coordinator, until=99)
    job.committing = settles_late
    with pytest.raises(GenerationFailedError, match="refused the acknowledgement of checkpoint 3: unknown_checkpoint"):
        job.generation.run()
    assert 3 not in (*job.committed, *job.aborted), "the next generation aborts what the store does not know"


@pytest.mark.parametrize("copied_at", [2, 5])
def test_an_id_that_an_older_copy_of_the_store_issues_again_ends_the_generation_at_once(copied_at: int) -> None:
    """The copy lacks no completed checkpoint, but ids that came to nothing: those that the driver has run, or only the
    next one, which is aborted before it is run."""
    coordinator, copies = Reasons(), list[JobState]()

    def note(event: Event, _answer: Answer) -> None:
        if not isinstance(event, Acknowledge) or event.participant != SINK.name:
            return
        if event.checkpoint == copied_at:
            copies.append(coordinator.state)
        if event.checkpoint == 5 and copies:
            coordinator.pass_time(SETTINGS.seconds("timeout") + 1)
            coordinator.send()
            coordinator.state = copies.pop()
            coordinator.restart()

    coordinator.answered = note
    job = Idle(coordinator, Clock(), plans=99, costs=1.0)
    looks: list[bool] = []

    def alive() -> bool:
        """Asked before each checkpoint, and whenever the driver has nothing to do."""
        looks.append(True)
        if len(looks) == 20:
            job.generation.stop()
        return True

    tasks: Any = job
    tasks.alive = alive
    with pytest.raises(GenerationFailedError, match=r"Checkpoint \d is triggered, .* replaced by an older copy"):
        job.generation.run()
    assert len(coordinator.reasons) == 1
    assert Idle(coordinator, Clock(), plans=3, costs=1.0).generation.run() is CloseReason.STOPPED


def test_a_base_that_the_driver_never_heard_of_ends_the_generation() -> None:
    coordinator = Coordinator()

    def skips(instruction: Instruction) -> bool:
        if isinstance(instruction, Trigger) and instruction.checkpoint == 3:
            stranger = Trigger(checkpoint=CheckpointId(9), base=CheckpointId(8))
            assert coordinator._deliver is not None
            coordinator._deliver(stranger)
            return False
        return True

    coordinator.hears = skips
    with pytest.raises(GenerationFailedError, match="names checkpoint 8 as base, whose positions"):
        Failing(coordinator, until=9).generation.run()


def test_a_source_under_another_name_does_not_start_over() -> None:
    coordinator = Coordinator()
    Failing(coordinator, until=3).generation.run()
    job = Failing(coordinator, until=5)
    coordinator.state = renamed(coordinator)
    with pytest.raises(ConfigurationError, match="has positions of former, none of in"):
        job.generation.run()
    assert job.ran == []


def renamed(coordinator: Coordinator) -> Any:
    """Return the state of a job whose source had another name, admitted nevertheless."""
    completed = coordinator.state.durable.completed
    assert completed is not None
    snapshots = {ParticipantName("former" if name == "in" else name): one for name, one in completed.snapshots.items()}
    durable = replace(coordinator.state.durable, completed=replace(completed, snapshots=snapshots))
    return replace(coordinator.state, durable=durable)


def test_the_next_generation_repeats_unreported_commits() -> None:
    coordinator = Coordinator()

    def lose(event: Event, _answer: Answer) -> None:
        if isinstance(event, Settle):
            coordinator.hang_up()
            raise CoordinatorLostError("no answer")

    coordinator.answered = lose
    with pytest.raises(CoordinatorLostError):
        Failing(coordinator, until=9).generation.run()
    coordinator.answered = lambda *_: None
    successor = Failing(coordinator, until=4)
    assert successor.generation.run() is CloseReason.STOPPED
    assert successor.aborted == []


class Reluctant(Failing):
    """A job that is stopped while it recovers."""

    def __init__(self, coordinator: Coordinator) -> None:
        super().__init__(coordinator, until=9)
        self.started = 0

    def sweep(self, _job: JobName, **more: Any) -> Sequence[str]:
        self.generation.stop()
        return super().sweep(_job, **more)

    def start(self) -> None:
        self.started += 1


def test_a_driver_that_is_stopped_while_it_recovers_starts_no_spark() -> None:
    job = Reluctant(Coordinator())
    assert job.generation.run() is CloseReason.STOPPED
    assert (job.started, job.ran) == (0, [])
