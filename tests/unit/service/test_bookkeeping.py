"""Deadlines, collected chores and the budget of one grant: bounded, and correct at their edges."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.coordinator.service.budget import Budget
from onceward.coordinator.service.deadlines import Deadlines
from onceward.coordinator.service.housekeeping import MAX_DISTINCT, Housekeeping
from onceward.protocol.answers import Note, Verdict
from onceward.protocol.durable import Durable, UndecidedCheckpoint
from onceward.protocol.events import Acknowledge, Amend, Renew
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.state import JobState, PendingCheckpoint
from onceward.protocol.values import (
    CheckpointId,
    CompletedCheckpoint,
    Generation,
    JobName,
    Participant,
    ParticipantName,
    Snapshot,
)
from onceward.wire.limits import (
    MAX_CHECKPOINT_BYTES,
    MAX_KEPT_BYTES,
    MAX_PARTICIPANTS,
    MAX_REQUEST_BYTES,
    MAX_RESPONSE_BYTES,
)
from tests.support.documents import committable
from tests.support.scripted import SINK, SOURCE

JOB, OTHER = JobName("orders"), JobName("flights")
JOBS = [JobName(f"job-{number}") for number in range(5)]


@given(
    st.lists(
        st.tuples(st.sampled_from(JOBS), st.none() | st.integers(0, 50).map(float)) | st.integers(0, 50).map(float),
        max_size=300,
    )
)
def test_deadlines_are_those_of_a_dictionary(steps: list[tuple[JobName, float | None] | float]) -> None:
    deadlines, model = Deadlines(), dict[JobName, float]()
    for step in steps:
        if isinstance(step, tuple):
            job, deadline = step
            deadlines.note(job, deadline)
            model.pop(job, None)
            if deadline is not None:
                model[job] = deadline
        else:
            popped = deadlines.pop(step)
            if popped is None:
                assert all(deadline > step for deadline in model.values())
            else:
                assert model[popped] == min(model.values()) <= step
                del model[popped]
        assert deadlines.first() == min(model.values(), default=None)


def test_deadlines_that_change_all_the_time_cost_no_memory() -> None:
    deadlines = Deadlines()
    for step in range(100_000):
        deadlines.note(JOB, float(1_000_000 - step))
        deadlines.note(OTHER, float(2_000_000 + step))
    assert len(deadlines._heap) < 200
    assert deadlines.first() == 900_001.0


def note(checkpoint: int = 1, detail: str = "") -> Note:
    return Note(
        what="Acknowledge",
        verdict=Verdict.FENCED,
        generation=Generation(1),
        checkpoint=CheckpointId(checkpoint),
        participant="sink",
        detail=detail,
    )


def test_equal_refused_calls_are_one_entry_with_a_count() -> None:
    chores = Housekeeping()
    for number in range(1000):
        chores.refused(JOB, note(detail=f"call {number}"), now=5.0)
    taken = chores.take(math.inf)
    assert taken is not None
    assert list(taken.refused) == [(note(detail="call 0"), 1000)]
    assert chores.take(math.inf) is None


def test_a_flood_of_different_refused_calls_is_bounded_and_counted() -> None:
    chores = Housekeeping()
    for number in range(MAX_DISTINCT + 500):
        chores.refused(JOB, note(checkpoint=number), now=5.0)
    taken = chores.take(math.inf)
    assert taken is not None
    assert len(taken.refused) == MAX_DISTINCT + 1
    rest, count = taken.refused[-1]
    assert (rest.what, count) == ("Others", 500)


def test_chores_wait_for_more_of_their_kind_and_come_when_they_are_due() -> None:
    chores = Housekeeping()
    assert chores.take(math.inf) is None
    chores.grown(OTHER, now=5.0)
    chores.refused(JOB, note(), now=5.5)
    chores.grown(OTHER, now=5.9)  # does not postpone it
    assert chores.due == 6.5
    assert chores.take(6.49) is None
    first = chores.take(6.5)
    assert first is not None
    assert first.job == JOB
    assert chores.due == 15.0
    second = chores.take(15.0)
    assert second is not None
    assert second.job == OTHER


def test_a_job_with_something_more_urgent_does_all_its_chores_then() -> None:
    chores = Housekeeping()
    chores.grown(JOB, now=5.0)
    chores.refused(JOB, note(), now=6.0)
    assert chores.due == 7.0
    taken = chores.take(7.0)
    assert taken is not None
    assert len(taken.refused) == 1
    assert chores.due is None


def state(*participants: Participant) -> JobState:
    durable = Durable(
        job=JOB,
        store_id="s",
        generation=Generation(1),
        driver="d",
        participants=participants,
        pending=UndecidedCheckpoint(id=CheckpointId(7), base=CheckpointId(0)),
    )
    return JobState(durable=durable, pending=PendingCheckpoint(started=0.0))


def acknowledged(name: str, checkpoint: int = 7) -> Acknowledge:
    return Acknowledge(
        now=0.0,
        generation=Generation(1),
        checkpoint=CheckpointId(checkpoint),
        participant=ParticipantName(name),
        base=CheckpointId(0),
        snapshot=Snapshot(),
    )


def test_a_repeated_acknowledgement_takes_no_extra_room() -> None:
    budget, members = Budget(), state(SOURCE, SINK)
    for _ in range(3):
        assert budget.problem(members, acknowledged("sink"), MAX_CHECKPOINT_BYTES) is None


def test_a_strangers_request_takes_no_room() -> None:
    budget, members = Budget(), state(SOURCE, SINK)
    assert budget.problem(members, acknowledged("absent"), MAX_CHECKPOINT_BYTES) is None, "the protocol refuses it"
    assert budget.problem(members, acknowledged("sink"), MAX_CHECKPOINT_BYTES) is None


def test_contributions_to_one_checkpoint_are_refused_when_no_grant_could_carry_them_all() -> None:
    budget, members = Budget(), state(SOURCE, SINK)
    assert budget.problem(members, acknowledged("sink"), MAX_REQUEST_BYTES) is None
    assert budget.problem(members, acknowledged("source"), MAX_CHECKPOINT_BYTES - MAX_REQUEST_BYTES) is None
    problem = budget.problem(members, acknowledged("source"), MAX_CHECKPOINT_BYTES - MAX_REQUEST_BYTES + 1)
    assert problem is not None
    assert "at most" in problem
    assert budget.problem(members, acknowledged("absent"), 1) is not None, "there is no room left"
    assert budget.problem(members, acknowledged("sink", checkpoint=6), MAX_CHECKPOINT_BYTES + 1) is None, "not pending"
    assert budget.problem(members, Renew(now=0.0, generation=Generation(1)), MAX_CHECKPOINT_BYTES + 1) is None


def test_a_checkpoint_is_refused_when_the_store_would_keep_too_many_of_its_size() -> None:
    members = state(SOURCE, SINK)
    many = replace(members, durable=replace(members.durable, settings=CheckpointSettings(num_retained=10_000)))
    most = MAX_KEPT_BYTES // 10_000
    assert Budget().problem(members, acknowledged("sink"), MAX_CHECKPOINT_BYTES) is None, "ten of the largest"
    budget = Budget()
    assert budget.problem(many, acknowledged("sink"), most - 1000) is None
    problem = budget.problem(many, acknowledged("source"), 1001)
    assert problem is not None
    assert "Lower num_retained" in problem
    assert budget.problem(many, acknowledged("source"), 1000) is None


def test_an_amendment_is_refused_when_no_grant_could_carry_the_checkpoint_any_more() -> None:
    long = committable(0, a="x" * 1000)
    completed = CompletedCheckpoint(
        id=CheckpointId(7),
        base=CheckpointId(0),
        generation=Generation(1),
        snapshots={SINK.name: Snapshot(committables=(long,))},
    )
    amended = JobState(durable=Durable(job=JOB, store_id="s", generation=Generation(1), completed=completed))
    event = Amend(
        now=0.0,
        generation=Generation(1),
        checkpoint=CheckpointId(7),
        participant=SINK.name,
        amendment=0,
        slots=frozenset({0}),
        committables=(long,),
    )
    assert Budget().problem(amended, event, MAX_REQUEST_BYTES) is None
    assert Budget().problem(amended, event, MAX_RESPONSE_BYTES - 1000) is not None


@pytest.mark.parametrize("limit", [MAX_REQUEST_BYTES, MAX_CHECKPOINT_BYTES])
def test_the_limits_fit_into_each_other(limit: int) -> None:
    assert limit < MAX_RESPONSE_BYTES
    assert MAX_RESPONSE_BYTES < MAX_PARTICIPANTS * MAX_REQUEST_BYTES, "bounded by the checkpoint, not by its members"
