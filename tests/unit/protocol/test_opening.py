"""Who may open a job, beyond what the scenarios play."""

from coordinator.protocol.answers import Verdict
from coordinator.protocol.core import step
from coordinator.protocol.durable import Durable
from coordinator.protocol.events import OpenJob
from coordinator.protocol.settings import CheckpointSettings
from coordinator.protocol.state import JobState
from coordinator.protocol.values import JobName, Participant, ParticipantName, Role


def participant(name: str, role: Role) -> Participant:
    return Participant(name=ParticipantName(name), role=role, kind="kafka")


def opened(*participants: Participant) -> tuple[JobState, JobState, Verdict, str]:
    """State before and after, and the answer."""
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
