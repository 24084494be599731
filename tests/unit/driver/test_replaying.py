"""A driver with the real core when a transaction of a completed checkpoint is lost."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

from onceward.common.errors import CoordinatorLostError, HaltedError
from onceward.connectors.interfaces import Origin, Plan, ReplayRefusedError
from onceward.driver.outputs import Votes
from onceward.protocol.answers import Answer
from onceward.protocol.committing import PreCommitted
from onceward.protocol.events import Amend, CloseReason, Event
from onceward.protocol.values import (
    Author,
    CheckpointId,
    Committable,
    Generation,
    OnLost,
    Outcome,
    ParticipantName,
    Settlement,
)
from tests.support.documents import committable
from tests.support.running_job import SINK, Coordinator, Job, nothing

LOST = 3


class LossyJob(Job):
    """The transactions of one checkpoint are lost ``losses`` times."""

    def __init__(self, coordinator: Coordinator, *, until: int, losses: int = 1, **more: Any) -> None:
        super().__init__(coordinator, until=until, **more)
        self.losses = losses
        self.jobs: list[tuple[int, int, int]] = []
        """Checkpoint, start and end of the range of each Spark job."""
        self.writes: Callable[[int], bool] = lambda _: True
        """Whether the replay of a checkpoint has something to write."""

    def run(
        self, *, generation: Generation, checkpoint: CheckpointId, plan: Plan, sinks: Collection[ParticipantName]
    ) -> Votes:
        (split,) = plan.splits
        self.jobs.append((checkpoint, split["start"], split["end"]))
        return super().run(generation=generation, checkpoint=checkpoint, plan=plan, sinks=sinks)

    def pre_commit(self, checkpoint: CheckpointId, *more: Any, leftovers: bool) -> PreCommitted:
        _, (origin,) = more
        again = sum(number == checkpoint for number, _, _ in self.jobs) > 1
        if again and not self.writes(checkpoint):
            return PreCommitted(committables=())
        body = {"checkpoint": checkpoint, "inputs": list(origin.inputs), "again": again}
        return PreCommitted(committables=(committable(0, **body),))

    def origin(self, committable: Committable) -> Origin:
        return Origin(inputs=committable.document.body["inputs"], replayable=True)

    def check_destination(self, lost: Sequence[Committable]) -> None: ...

    def describe(self, committable: Committable) -> str:
        return f"the records of {committable.document.body['inputs']}"

    def commit(self, author: Author, committables: Sequence[Committable], **more: Any) -> Sequence[Settlement]:
        found = list(super().commit(author, committables, **more))
        if self.losses and any(one.document.body["checkpoint"] == LOST for one in committables):
            self.losses -= 1
            return [Settlement(slot=0, outcome=Outcome.LOST, evidence="timed out")]
        return found


def coordinator() -> Coordinator:
    return Coordinator(sink=replace(SINK, on_lost=OnLost.REPLAY))


def test_a_lost_checkpoint_is_written_again_from_its_own_range_before_anything_later() -> None:
    job = LossyJob(coordinator(), until=6)
    assert job.generation.run() is CloseReason.STOPPED
    again = job.jobs.index((LOST, 10, 20), 2) if job.jobs.count((LOST, 10, 20)) == 2 else -1
    assert again > 0, job.jobs
    before = {number for number, _, _ in job.jobs[:again]} - {2, LOST}
    assert all(job.committed.count(number) == 0 for number in before), "what ran beside it must have been aborted"
    completed = [start for number, start, _ in job.jobs if number in job.committed]
    assert sorted(set(completed)) == list(range(0, max(completed) + 1, 10)), "a range is missing"
    assert job.committed.count(LOST) == 2


def test_a_second_loss_is_written_again_too() -> None:
    job = LossyJob(coordinator(), until=6, losses=3)
    assert job.generation.run() is CloseReason.STOPPED
    assert job.jobs.count((LOST, 10, 20)) == 4
    assert job.coordinator.state.durable.completed is not None
    assert job.coordinator.state.durable.settled


def test_an_empty_replay_settles_its_checkpoint_and_the_job_can_end() -> None:
    """Once the coordinator has the amendment, everything is settled, and no instruction follows."""
    job = LossyJob(coordinator(), until=LOST)
    job.writes = lambda _: False
    assert job.generation.run() is CloseReason.STOPPED
    assert job.coordinator.state.durable.settled


def test_a_refused_replay_halts_the_job_and_names_the_records() -> None:
    job = LossyJob(coordinator(), until=9)

    def refuse(*_: Any) -> Any:
        raise ReplayRefusedError("the topic was recreated")

    changed: Any = job
    changed.check_destination = refuse
    with pytest.raises(HaltedError, match=r"the topic was recreated.*the records of \[\{'start': 10, 'end': 20\}\]"):
        job.generation.run()
    assert job.jobs.count((LOST, 10, 20)) == 1


def test_a_driver_without_an_answer_to_its_amendment_leaves_its_writes_to_the_next_generation() -> None:
    here = coordinator()

    def lose(event: Event, _answer: Answer) -> None:
        if isinstance(event, Amend):
            here.hang_up()
            raise CoordinatorLostError("no answer")

    here.answered = lose
    job = LossyJob(here, until=9)
    with pytest.raises(CoordinatorLostError):
        job.generation.run()
    here.answered = nothing
    successor = LossyJob(here, until=8, losses=0)
    assert successor.generation.run() is CloseReason.STOPPED
    assert successor.swept_beside[0] == [LOST], "its recovery aborts what is decided"
    assert successor.committed[0] == LOST
    assert (LOST, 10, 20) not in successor.jobs, "it was written again already"
