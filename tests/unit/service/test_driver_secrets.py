"""Only the process that opened a generation acts for it. Its number is easy to guess, and listings show it."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from onceward.client.operators import OperatorClient
from onceward.client.session import CoordinatorClient
from onceward.common.errors import RefusedError
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import JobName
from onceward.wire.limits import MAX_LISTED
from onceward.wire.secret import fingerprint
from onceward.wire.v1 import participants_pb2 as pb
from onceward.wire.v1.participants_pb2_grpc import ParticipantServiceStub
from tests.support.scripted import SETTINGS, SINK, SOURCE, ScriptedDriver

SECRET = "1f0c6b1f5a0d4d0b8f3f9f1d6f0a7c55"
SECRETS = {"guessed": "another", "listed": fingerprint(SECRET)}


def everything_about(coordinator: EmbeddedCoordinator, job: str) -> str:
    """Return all that listings show of a job."""
    with OperatorClient(coordinator.address) as people:
        found = (people.jobs(), people.describe(JobName(job)), people.generations(JobName(job)))
        return repr((*found, people.history(JobName(job)), people.checkpoints(JobName(job))))


def test_the_secret_is_in_no_listing_no_file_and_no_repr(
    coordinator: EmbeddedCoordinator, client: CoordinatorClient, tmp_path: Path, job: str
) -> None:
    session = client.open_job(JobName(job), (SOURCE, SINK), SETTINGS, None, driver=SECRET)
    session.renew()
    shown = everything_about(coordinator, job)
    assert fingerprint(SECRET) in shown
    assert SECRET not in shown + repr(session) + repr(session.driver)
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert files
    assert not any(SECRET.encode() in path.read_bytes() for path in files)
    assert session.driver == fingerprint(SECRET)
    session.abandon("the test is over")


@pytest.mark.parametrize("known", SECRETS.values(), ids=SECRETS)
def test_a_repeated_open_with_anything_but_the_secret_gets_no_grant(
    client: CoordinatorClient, job: str, known: str
) -> None:
    slow = CheckpointSettings(interval=None, lease="60s", orphan_grace="5min")
    session = client.open_job(JobName(job), (SOURCE, SINK), slow, None, driver=SECRET)
    with pytest.raises(RefusedError, match="living driver"):
        client.open_job(JobName(job), (SOURCE, SINK), slow, None, driver=known, wait="0s")
    again = client.open_job(JobName(job), (SOURCE, SINK), slow, None, driver=SECRET)
    assert again.generation == session.generation
    again.let_go()
    session.abandon("the test is over")


def calls(job: str, secret: str) -> dict[str, Any]:
    """Every call of a driver, for the first generation, with content that would be accepted or change something."""
    named: dict[str, Any] = {"job": job, "generation": 1, "driver": secret}
    one = {**named, "checkpoint": 1, "participant": "sink"}
    unchanged = pb.Acknowledgement(participant="sink", snapshot=pb.Snapshot(records=7))
    return {
        "Acknowledge": pb.AcknowledgeRequest(**named, checkpoint=1, acknowledgements=[unchanged]),
        "Decline": pb.DeclineRequest(**one, reason="a stranger's"),
        "Settle": pb.SettleRequest(**one, settlements=[pb.Settlement(slot=0, outcome=pb.OUTCOME_LOST)]),
        "Amend": pb.AmendRequest(**one, slots=[0]),
        "Renew": pb.RenewRequest(**named, troubles=[pb.LinkTrouble(link="a stranger's")]),
        "CloseJob": pb.CloseJobRequest(**named, reason=pb.CLOSE_REASON_HALTED, detail="a stranger's"),
    }


def answers(response: Any) -> list[pb.Answer]:
    return list(response.answers) if isinstance(response, pb.AcknowledgeResponse) else [response.answer]


@pytest.mark.parametrize("known", SECRETS.values(), ids=SECRETS)
def test_a_process_without_the_secret_can_do_nothing_to_a_job(
    coordinator: EmbeddedCoordinator, client: CoordinatorClient, job: str, known: str
) -> None:
    driver = ScriptedDriver(client, JobName(job))
    driver.wait_committed(1)
    with grpc.insecure_channel(coordinator.address) as channel:
        stub = ParticipantServiceStub(channel)
        for method, request in calls(job, known).items():
            for answer in answers(getattr(stub, method)(request, timeout=30)):
                assert (answer.verdict, answer.may_return) == (pb.VERDICT_FENCED, False), method
                assert "belongs to another process" in answer.detail
        (end,) = stub.Watch(pb.WatchRequest(job=job, generation=1, driver=known), timeout=30)
        assert end.end.verdict == pb.VERDICT_FENCED
    driver.wait_committed(3)
    with OperatorClient(coordinator.address) as people:
        assert "a stranger's" not in repr(people.jobs())
        refused = {entry.event for entry in people.history(JobName(job), MAX_LISTED) if entry.verdict}
    assert refused >= {"Watch", *calls(job, known)}
    driver.close()
    assert driver.errors.empty(), "it lost its stream, its lease or its generation"
