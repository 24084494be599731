"""Who may open a job, beyond what the scenarios play."""

import pytest

from onceward.protocol.answers import Verdict
from onceward.protocol.core import step
from onceward.protocol.durable import Durable
from onceward.protocol.events import (
    Acknowledge,
    CancelJob,
    CloseJob,
    CloseReason,
    Event,
    OpenJob,
    Renew,
    Tick,
    Watch,
)
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.state import JobState
from onceward.protocol.values import (
    MAX_ID,
    CheckpointId,
    Generation,
    JobName,
    Participant,
    ParticipantName,
    Role,
    Snapshot,
)


def participant(name: str, role: Role) -> Participant:
    return Participant(name=ParticipantName(name), role=role, kind="kafka")


def opened(*participants: Participant) -> tuple[JobState, JobState, Verdict, str]:
    """Return the state before and after, the verdict and its detail."""
    before = JobState(durable=Durable(job=JobName("orders"), store_id="store-a"))
    event = OpenJob(now=0.0, driver="d1", participants=participants, settings=CheckpointSettings(), claim=None)
    after, ready = step(before, event)
    return before, after, ready.answer.verdict, ready.answer.detail


def test_two_participants_of_one_name_are_refused() -> None:
    before, after, verdict, detail = opened(
        participant("in", Role.SOURCE), participant("out", Role.SINK), participant("out", Role.SINK)
    )
    assert verdict is Verdict.REFUSED
    assert "same name" in detail
    assert after == before


def test_a_job_without_a_source_or_without_a_sink_is_refused() -> None:
    for alone in (participant("in", Role.SOURCE), participant("out", Role.SINK)):
        before, after, verdict, detail = opened(alone)
        assert verdict is Verdict.REFUSED
        assert "at least one source and one sink" in detail
        assert after == before


@pytest.mark.parametrize(
    ("generation", "last_id", "verdict"),
    [
        (MAX_ID - 1, 1, Verdict.ACCEPTED),
        (MAX_ID, 1, Verdict.REFUSED),
        (1, MAX_ID - 2, Verdict.ACCEPTED),
        (1, MAX_ID - 1, Verdict.REFUSED),
    ],
)
def test_a_job_without_a_next_id_is_refused(generation: int, last_id: int, verdict: Verdict) -> None:
    """Two checkpoint ids are needed: one for the next checkpoint and one for a restore."""
    durable = Durable(
        job=JobName("orders"), store_id="a", generation=Generation(generation), last_id=CheckpointId(last_id)
    )
    members = (participant("in", Role.SOURCE), participant("out", Role.SINK))
    opening = OpenJob(now=0.0, driver="d", participants=members, settings=CheckpointSettings(), claim=None)
    assert step(JobState(durable=durable), opening)[1].answer.verdict is verdict


def calls(generation: int) -> list[Event]:
    """Return the calls of a driver that still believes it drives the job."""
    granted = Generation(generation)
    return [
        Watch(now=1.0, generation=granted),
        Renew(now=1.0, generation=granted),
        Acknowledge(
            now=1.0,
            generation=granted,
            checkpoint=CheckpointId(7),
            participant=ParticipantName("in"),
            base=CheckpointId(6),
            snapshot=Snapshot(),
        ),
        CloseJob(now=1.0, generation=granted, reason=CloseReason.STOPPED),
    ]


def test_a_generation_that_was_never_granted_is_not_said_to_be_fenced_by_a_newer_one() -> None:
    _, state, _, _ = opened(participant("in", Role.SOURCE), participant("out", Role.SINK))
    for event in calls(7):
        after, ready = step(state, event)
        assert (ready.answer.verdict, ready.answer.may_return) == (Verdict.FENCED, False)
        assert "generation 7 was never granted by this store, which knows 1 of job orders" in ready.answer.detail
        assert after == state


def test_a_job_with_a_damaged_record_is_left_alone_and_every_caller_gets_the_reason() -> None:
    why = "the store's record of job orders is missing"
    durable = Durable(job=JobName("orders"), store_id="store-a", unreadable=why, record_damaged=True)
    state = JobState(durable=durable)
    members = (participant("in", Role.SOURCE), participant("out", Role.SINK))
    opening = OpenJob(now=1.0, driver="d", participants=members, settings=CheckpointSettings(), claim=None)
    expected = [(event, Verdict.FENCED) for event in calls(3)]
    expected += [(opening, Verdict.HALTED), (CancelJob(now=1.0), Verdict.REFUSED), (Tick(now=1.0), Verdict.REFUSED)]
    for event, verdict in expected:
        after, ready = step(state, event)
        assert (ready.answer.verdict, ready.facts) == (verdict, ())
        assert why in ready.answer.detail
        assert after == state
