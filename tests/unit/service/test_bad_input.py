"""Bad input on every method gets a typed refusal, changes no state and leaves the process alive: random bytes, unknown
participants, floods, huge documents, unknown enum values."""

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from onceward.client.calls import open_channel
from onceward.client.operators import OperatorClient
from onceward.client.pieces import in_pieces
from onceward.client.session import CoordinatorClient, Session, connect
from onceward.common.errors import CheckpointFailedError, ExitCode, RefusedError
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.protocol.answers import Complete, Trigger, Verdict
from onceward.protocol.events import CloseReason
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import (
    MAX_ID,
    CheckpointId,
    Document,
    JobName,
    Outcome,
    ParticipantName,
    Settlement,
    Snapshot,
)
from onceward.wire import limits, requests
from onceward.wire.limits import MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES, MAX_STREAMS
from onceward.wire.malformed import MalformedError
from onceward.wire.v1 import operators_pb2, participants_pb2
from onceward.wire.v1 import participants_pb2 as pb
from onceward.wire.v1.participants_pb2_grpc import ParticipantServiceStub
from onceward.wire.values import committables_from_wire
from tests.support.documents import committable
from tests.support.scripted import SINK, SOURCE, positions, slots
from tests.support.waiting import wait_until

JOB = JobName("orders")
ONE_CHECKPOINT = CheckpointSettings(interval="1h")

METHODS = {
    f"/{service.full_name}/{method.name}": method.server_streaming
    for file in (participants_pb2, operators_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


class Running:
    """A job whose first checkpoint is triggered."""

    def __init__(self, client: CoordinatorClient, people: OperatorClient, settings: CheckpointSettings) -> None:
        self.people = people
        self.instructions: list[object] = []
        self.session: Session = client.open_job(JOB, (SOURCE, SINK), settings, None, driver="d1")
        self.session.start_watch(self.instructions.append)
        self.wait_for(Trigger(checkpoint=CheckpointId(1), base=CheckpointId(0)))
        wait_until(lambda: people.job(JOB).machine, "the driver's first report arrives")  # it changes the listing

    def wait_for(self, instruction: object) -> None:
        wait_until(lambda: instruction in self.instructions, f"{instruction} arrives")

    def stored(self) -> Any:
        return self.people.job(JOB), self.people.checkpoints(JOB, 100)


@pytest.fixture
def running(client: CoordinatorClient, people: OperatorClient) -> Running:
    return Running(client, people, ONE_CHECKPOINT)


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[grpc.Channel, Running]]:
    """Many tests share this job. The coordinator refuses each of their requests, so the job does not change."""
    with (
        EmbeddedCoordinator(tmp_path_factory.mktemp("unharmed")) as coordinator,
        connect(coordinator.address) as client,
        OperatorClient(coordinator.address) as people,
        open_channel(coordinator.address) as channel,
    ):
        yield channel, Running(client, people, ONE_CHECKPOINT)


def send(channel: grpc.Channel, method: str, data: bytes) -> None:
    method_: Any = channel.stream_unary(method)  # without serializers: raw bytes
    pieces = [data[at : at + MAX_MESSAGE_BYTES] for at in range(0, len(data), MAX_MESSAGE_BYTES)]
    method_(iter(pieces), timeout=60, wait_for_ready=True)  # connecting may take long on a busy machine


def stream_of(channel: grpc.Channel, method: str, data: bytes, timeout: float) -> Any:
    method_: Any = channel.unary_stream(method)
    return method_(data, timeout=timeout, wait_for_ready=True)


def call(channel: grpc.Channel, method: str, data: bytes) -> grpc.StatusCode:
    """Send raw bytes and return the status."""
    try:
        if METHODS[method]:
            stream = stream_of(channel, method, data, 60)
            next(stream)
            stream.cancel()
        else:
            send(channel, method, data)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def ask(channel: grpc.Channel, method: str, request: Message) -> tuple[grpc.StatusCode, str]:
    (path,) = (path for path in METHODS if path.endswith(f"/{method}"))
    try:
        send(channel, path, request.SerializeToString())
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


HARMLESS = ("ListJobs", "ListLosses", "DescribeCoordinator")
"""These methods need no particular argument."""


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.rpartition("/")[2])
def test_random_bytes_are_refused_and_change_nothing(unharmed: tuple[grpc.Channel, Running], method: str) -> None:
    channel, running = unharmed
    chance = random.Random(method)
    before = running.stored()
    for size in [1, 2, 3, 10, 100, 1000, 100_000] * 5:
        status = call(channel, method, chance.randbytes(size))
        harmless = method.endswith(HARMLESS)  # needs no argument, so unknown fields may be all that it holds
        too_long = METHODS[method] and size > MAX_MESSAGE_BYTES
        expected = grpc.StatusCode.RESOURCE_EXHAUSTED if too_long else grpc.StatusCode.INVALID_ARGUMENT
        assert status is expected or (harmless and status is grpc.StatusCode.OK)
    assert running.stored() == before


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.rpartition("/")[2])
def test_an_empty_request_is_refused_where_it_means_nothing(
    unharmed: tuple[grpc.Channel, Running], method: str
) -> None:
    channel, _ = unharmed
    expected = grpc.StatusCode.OK if method.endswith(HARMLESS) else grpc.StatusCode.INVALID_ARGUMENT
    assert call(channel, method, b"") is expected


def test_requests_with_a_flipped_byte_never_hurt(channel: grpc.Channel, running: Running) -> None:
    chance = random.Random(4)
    good = acknowledge(base=7).SerializeToString()  # refused for its base if it stays readable
    for _ in range(300):
        data = bytearray(good)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        status = call(channel, "/onceward.coordinator.v1.ParticipantService/Acknowledge", bytes(data))
        assert status in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    assert running.stored()[0].last_completed == 0


def acknowledge(**changes: Any) -> pb.AcknowledgeRequest:
    body = changes.pop("body", '{"offset":1}')
    document = pb.Document(kind=changes.pop("kind", "test"), version=changes.pop("version", 1), body=body)
    values: dict[str, Any] = {
        "job": JOB,
        "generation": 1,
        "checkpoint": 1,
        "base": 0,
        "driver": "d1",
    }
    acknowledgement = pb.Acknowledgement(
        participant=changes.pop("participant", "source"),
        snapshot=changes.pop("snapshot", pb.Snapshot(positions=document)),
    )
    return pb.AcknowledgeRequest(acknowledgements=[acknowledgement], **(values | changes))


def shared(body: str) -> pb.AcknowledgeRequest:
    committable = pb.Committable(slot=0, document=pb.Document(kind="test", version=1, body='{"of":1}'))
    return acknowledge(participant="sink", snapshot=pb.Snapshot(committables=[committable], shared_body=body))


def settle(**changes: Any) -> pb.SettleRequest:
    settlement = pb.Settlement(
        slot=changes.pop("slot", 0),
        outcome=changes.pop("outcome", pb.OUTCOME_COMMITTED),
        evidence=changes.pop("evidence", ""),
    )
    values: dict[str, Any] = {"job": JOB, "generation": 1, "checkpoint": 1, "participant": "sink", "driver": "d1"}
    return pb.SettleRequest(**(values | changes), settlements=[settlement])


def amend(**changes: Any) -> pb.AmendRequest:
    values: dict[str, Any] = {
        "job": JOB,
        "generation": 1,
        "checkpoint": 1,
        "participant": "sink",
        "slots": [0],
        "driver": "d1",
    }
    return pb.AmendRequest(**(values | changes))


def trigger(**changes: Any) -> operators_pb2.TriggerCheckpointRequest:
    values: dict[str, Any] = {"job": JOB, "request": "r1", "kind": pb.CHECKPOINT_KIND_SAVEPOINT}
    return operators_pb2.TriggerCheckpointRequest(**(values | changes))


def restore(**changes: Any) -> operators_pb2.RestoreJobRequest:
    values: dict[str, Any] = {"job": JOB, "checkpoint": 1, "reason": "a test"}
    return operators_pb2.RestoreJobRequest(**(values | changes))


def open_job(**changes: Any) -> pb.OpenJobRequest:
    members = [
        pb.Participant(name="source", role=pb.ROLE_SOURCE, kind="test", on_lost=pb.ON_LOST_HALT),
        pb.Participant(
            name="sink",
            role=changes.pop("role", pb.ROLE_SINK),
            kind="test",
            on_lost=changes.pop("on_lost", pb.ON_LOST_HALT),
        ),
    ]
    settings: dict[str, Any] = {
        "interval_us": 1_000_000,
        "timeout_us": 60_000_000,
        "num_retained": 10,
        "lease_us": 10_000_000,
        "stream_grace_us": 2_000_000,
        "orphan_grace_us": 30_000_000,
    }
    settings |= changes.pop("settings", {})
    values: dict[str, Any] = {"job": "other", "driver": "d", "participants": members}
    return pb.OpenJobRequest(**(values | changes), settings=pb.CheckpointSettings(**settings))


def close(**changes: Any) -> pb.CloseJobRequest:
    values: dict[str, Any] = {"job": JOB, "generation": 1, "reason": pb.CLOSE_REASON_RESTARTING, "driver": "d1"}
    return pb.CloseJobRequest(**(values | changes))


DEEP = '{"a":' * 33 + "1" + "}" * 33
VERY_DEEP = "[" * 200_000

MALFORMED: list[tuple[str, Message, str]] = [
    ("Acknowledge", acknowledge(generation=-1), "generation: -1"),
    ("Acknowledge", acknowledge(generation=0), "generation: 0"),
    ("Acknowledge", acknowledge(generation=MAX_ID + 1), "generation"),
    ("Acknowledge", acknowledge(checkpoint=-1), "checkpoint: -1"),
    ("Acknowledge", acknowledge(checkpoint=2**63 - 1), "checkpoint"),
    ("Acknowledge", acknowledge(base=-1), "base: -1"),
    ("Acknowledge", acknowledge(phases=pb.Phases(plan_us=-1)), "plan_us: -1"),
    ("Acknowledge", acknowledge(phases=pb.Phases(read_us=1, flush_us=2**63 - 1)), "flush_us: 9223372036854775807"),
    ("Acknowledge", acknowledge(base=MAX_ID + 1), "base"),
    ("Acknowledge", acknowledge(job="Orders.EUR"), "job: "),
    ("Acknowledge", acknowledge(job="o" * 100_000), "job: "),
    ("Acknowledge", acknowledge(participant="../etc"), "participant: "),
    ("Acknowledge", acknowledge(kind=""), "kind: "),
    ("Acknowledge", acknowledge(version=0), "version: 0"),
    ("Acknowledge", acknowledge(version=-3), "version: -3"),
    ("Acknowledge", acknowledge(body=""), "not JSON"),
    ("Acknowledge", acknowledge(body="[1]"), "JSON object"),
    ("Acknowledge", acknowledge(body='{"a":NaN}'), "NaN"),
    ("Acknowledge", acknowledge(body='{"a":-Infinity}'), "Infinity"),
    ("Acknowledge", acknowledge(body='{"a":1e999}'), "1e999"),
    ("Acknowledge", acknowledge(body='{"a":1,"a":2}'), "twice"),
    ("Acknowledge", acknowledge(body='{"a":' + "9" * 5000 + "}"), "not JSON"),
    ("Acknowledge", acknowledge(body=DEEP), "deep"),
    ("Acknowledge", acknowledge(body=VERY_DEEP), "deep"),
    ("Acknowledge", acknowledge(snapshot=pb.Snapshot(records=-1)), "records: -1"),
    ("Acknowledge", acknowledge(snapshot=pb.Snapshot(committables=[pb.Committable(slot=1)])), "no document"),
    ("Acknowledge", shared('{"a":'), "not JSON"),
    ("Acknowledge", shared('{"of":2}'), "shared_body: 'of' is shared and in one"),
    ("Acknowledge", shared(json.dumps({str(n): n for n in range(65)})), "shared_body: 65 members"),
    (
        "Decline",
        pb.DeclineRequest(job=JOB, generation=1, checkpoint=1, participant="sink", reason="x" * 9000),
        "reason",
    ),
    (
        "Decline",
        pb.DeclineRequest(job=JOB, generation=1, checkpoint=1, participant="sink", reason="a\0b"),
        "reason: has a NUL character",
    ),
    ("Settle", settle(evidence="a\0b"), "evidence: has a NUL character"),
    ("Settle", settle(outcome=pb.OUTCOME_UNSPECIFIED), "Outcome: is not specified"),
    ("Settle", settle(outcome=99), "Outcome: has the unknown number 99"),
    ("Settle", settle(slot=-1), "slot: -1"),
    ("Settle", settle(amendment=-1), "amendment: -1"),
    ("Amend", amend(slots=[]), "slots: "),
    ("Amend", amend(slots=[1, 1]), "slots: "),
    ("Amend", amend(slots=[-1]), "slots: -1"),
    ("Amend", amend(amendment=-2), "amendment: -2"),
    ("Amend", amend(committables=[pb.Committable(slot=0)]), "no document"),
    ("Amend", amend(participant="No One"), "participant: "),
    ("TriggerCheckpoint", trigger(request=""), "request: "),
    ("TriggerCheckpoint", trigger(request="r" * 200), "request: "),
    ("TriggerCheckpoint", trigger(kind=0), "CheckpointKind: is not specified"),
    ("TriggerCheckpoint", trigger(kind=9), "CheckpointKind: has the unknown number 9"),
    ("TriggerCheckpoint", trigger(name="n" * 200), "name: "),
    ("TriggerCheckpoint", trigger(name="one\ntwo"), "name: "),
    ("DescribeRequest", operators_pb2.DescribeRequestRequest(job=JOB, request="two words"), "request: "),
    ("RestoreJob", restore(checkpoint=0), "checkpoint: 0"),
    ("RestoreJob", restore(reason="  "), "reason: "),
    ("RestoreJob", restore(reason="x" * 9000), "reason: "),
    ("RestoreJob", restore(reason="a\0b"), "reason: has a NUL character"),
    ("DeleteSavepoint", operators_pb2.DeleteSavepointRequest(job=JOB, checkpoint=-1), "checkpoint: -1"),
    ("ListCheckpoints", operators_pb2.ListCheckpointsRequest(job=JOB, limit=1001), "limit: 1001"),
    ("ListGenerations", operators_pb2.ListGenerationsRequest(job=JOB, limit=-1), "limit: -1"),
    ("ListHistory", operators_pb2.ListHistoryRequest(job=JOB, limit=100_000), "limit: 100000"),
    ("CloseJob", close(reason=0), "CloseReason: is not specified"),
    ("CloseJob", close(reason=77), "unknown number 77"),
    ("Acknowledge", acknowledge(driver=""), "driver"),
    ("Settle", settle(driver="two words"), "driver"),
    ("Amend", amend(driver=""), "driver"),
    ("CloseJob", close(driver=""), "driver"),
    ("Watch", pb.WatchRequest(job=JOB, generation=1), "driver"),
    ("Renew", pb.RenewRequest(job=JOB, generation=1), "driver"),
    ("Decline", pb.DeclineRequest(job=JOB, generation=1, checkpoint=1, participant="sink"), "driver"),
    ("CloseJob", close(back_within_us=-1), "back_within_us: -1"),
    ("CloseJob", close(back_within_us=2 * 86_400_000_000), "back_within_us: "),
    ("OpenJob", open_job(on_lost=0), "OnLost: is not specified"),
    ("OpenJob", open_job(role=0), "Role: is not specified"),
    ("OpenJob", open_job(role=9), "unknown number 9"),
    ("OpenJob", open_job(driver=""), "driver"),
    ("OpenJob", open_job(driver="d" * 200), "driver"),
    ("OpenJob", open_job(participants=[]), "participants: 0"),
    ("OpenJob", open_job(settings={"interval_us": -1}), "settings: "),
    ("OpenJob", open_job(settings={"lease_us": 2**63 - 1}), "settings: "),
    ("OpenJob", open_job(settings={"num_retained": 0}), "num_retained"),
    ("OpenJob", open_job(claim=pb.Claim(store_id="s", generation=-4)), "generation: -4"),
    ("OpenJob", open_job(claim=pb.Claim(store_id="", generation=1)), "store_id"),
]


@pytest.mark.parametrize(("method", "request_", "named"), MALFORMED, ids=lambda value: str(value)[:30])
def test_a_malformed_request_is_refused_with_the_fault(
    unharmed: tuple[grpc.Channel, Running], method: str, request_: Message, named: str
) -> None:
    channel, running = unharmed
    before = running.stored()
    status, detail = ask(channel, method, request_)
    assert status is grpc.StatusCode.INVALID_ARGUMENT, detail
    assert named in detail
    assert len(detail) < 2000
    assert running.stored() == before
    assert [one.job for one in running.people.jobs()] == [JOB]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.rpartition("/")[2])
def test_an_unknown_job_is_not_found(unharmed: tuple[grpc.Channel, Running], method: str) -> None:
    channel, running = unharmed
    name = method.rpartition("/")[2]
    request: Message
    match name:
        case "Acknowledge":
            request = acknowledge(job="absent")
        case "Decline":
            request = pb.DeclineRequest(job="absent", generation=1, checkpoint=1, participant="sink", driver="d")
        case "Settle":
            request = settle(job="absent")
        case "Amend":
            request = amend(job="absent")
        case "TriggerCheckpoint":
            request = trigger(job="absent")
        case "ResolveSlots":
            request = operators_pb2.ResolveSlotsRequest(
                job="absent",
                checkpoint=1,
                participant="sink",
                slots=[1],
                ruling=operators_pb2.RULING_GIVEN_UP,
                reason="a test",
            )
        case "SkipInput":
            request = operators_pb2.SkipInputRequest(job="absent", topic="orders", offset=5, reason="a test")
        case "AcknowledgeLoss":
            request = operators_pb2.AcknowledgeLossRequest(
                job="absent", checkpoint=1, participant="sink", reason="known"
            )
        case "CloseOutput":
            request = operators_pb2.CloseOutputRequest(job="absent", participant="sink", reason="gone")
        case "ForgetJob":
            request = operators_pb2.ForgetJobRequest(job="absent", reason="gone")
        case "DescribeRequest":
            request = operators_pb2.DescribeRequestRequest(job="absent", request="r1")
        case "RestoreJob":
            request = restore(job="absent")
        case "DeleteSavepoint":
            request = operators_pb2.DeleteSavepointRequest(job="absent", checkpoint=1)
        case "CloseJob":
            request = close(job="absent")
        case "Watch":
            request = pb.WatchRequest(job="absent", generation=1, driver="d")
        case "Renew":
            request = pb.RenewRequest(job="absent", generation=1, driver="d")
        case "DescribeCheckpoint":
            request = operators_pb2.DescribeCheckpointRequest(job="absent", checkpoint=1)
        case "PermitTakeover":
            request = operators_pb2.PermitTakeoverRequest(job="absent", generation=1, reason="a test")
        case "OpenJob" | "PermitAdoption" | "ListJobs" | "DescribeCoordinator":
            return  # the first two may come before a store knows the job, the others name none
        case _:
            request = operators_pb2.StopJobRequest(job="absent")
    assert call(channel, method, request.SerializeToString()) is grpc.StatusCode.NOT_FOUND
    assert [one.job for one in running.people.jobs()] == [JOB]


def test_a_request_of_forty_megabytes_is_refused_by_the_service(channel: grpc.Channel, running: Running) -> None:
    request = acknowledge(participant="sink", snapshot=pb.Snapshot(committables=[big_committable(40_000_000)]))
    before = running.stored()
    assert ask(channel, "Acknowledge", request)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert running.stored() == before


def big_committable(size: int) -> pb.Committable:
    return pb.Committable(slot=0, document=pb.Document(kind="test", version=1, body='{"a":"' + "x" * size + '"}'))


def test_committables_of_forty_megabytes_fail_their_checkpoint_before_they_are_sent(running: Running) -> None:
    snapshot = Snapshot(committables=(committable(0, a="x" * 40_000_000),))
    with pytest.raises(CheckpointFailedError, match="Nothing was sent"):
        running.session.acknowledge(CheckpointId(1), CheckpointId(0), {SINK.name: snapshot})


@pytest.mark.slow
def test_committables_just_below_the_limit_are_kept_and_given_back(running: Running, client: CoordinatorClient) -> None:
    snapshot = Snapshot(committables=(committable(0, a="x" * (MAX_REQUEST_BYTES - 10_000)),))
    session = running.session
    session.acknowledge(CheckpointId(1), CheckpointId(0), {SOURCE.name: positions(1)})
    answer = session.acknowledge(CheckpointId(1), CheckpointId(0), {SINK.name: snapshot})[0]
    # if the first answer takes seconds on a slow machine, the client asks again
    assert answer.verdict in (Verdict.ACCEPTED, Verdict.DUPLICATE)
    again = client.open_job(JOB, (SOURCE, SINK), ONE_CHECKPOINT, None, driver="d2", takeover=True)
    assert again.grant.completed is not None
    assert again.grant.completed.snapshots[SINK.name] == snapshot


def test_the_protocols_refusals_come_back_as_verdicts_and_change_nothing(running: Running) -> None:
    session, zero, one, two = running.session, CheckpointId(0), CheckpointId(1), CheckpointId(2)
    before = running.stored()
    absent = ParticipantName("absent")
    proved = [Settlement(slot=0, outcome=Outcome.COMMITTED, evidence="")]
    assert session.acknowledge(one, two, {SOURCE.name: positions(1)})[0].verdict is Verdict.WRONG_BASE
    assert session.acknowledge(two, zero, {SOURCE.name: positions(1)})[0].verdict is Verdict.UNKNOWN_CHECKPOINT
    assert session.acknowledge(one, zero, {absent: positions(1)})[0].verdict is Verdict.UNKNOWN_PARTICIPANT
    assert session.acknowledge(one, zero, {SINK.name: positions(1)})[0].verdict is Verdict.INVALID
    assert session.settle(one, SINK.name, proved).verdict is Verdict.TOO_LATE
    assert session.decline(two, SINK.name, "no").verdict is Verdict.UNKNOWN_CHECKPOINT
    assert running.stored() == before
    assert session.acknowledge(one, zero, {SOURCE.name: positions(1)})[0].verdict is Verdict.ACCEPTED
    assert session.acknowledge(one, zero, {SOURCE.name: positions(1)})[0].verdict is Verdict.DUPLICATE
    assert session.acknowledge(one, zero, {SOURCE.name: positions(2)})[0].verdict is Verdict.CONFLICT
    assert session.acknowledge(one, zero, {SOURCE.name: positions(1)})[0].verdict is Verdict.TOO_LATE


def checked(offset: int, version: int = 1) -> Snapshot:
    return Snapshot(positions=Document(kind="checked", version=version, body={"offset": offset}))


def test_positions_that_go_backwards_and_unknown_versions_of_a_known_kind_are_refused(
    client: CoordinatorClient, people: OperatorClient
) -> None:
    running = Running(client, people, CheckpointSettings(interval=0))
    session, zero, one, two = running.session, CheckpointId(0), CheckpointId(1), CheckpointId(2)
    newer = session.acknowledge(one, zero, {SOURCE.name: checked(10, version=2)})[0]
    assert (newer.verdict, "version 2 is not known" in newer.detail) == (Verdict.INVALID, True)
    session.acknowledge(one, zero, {SOURCE.name: checked(10)})
    session.acknowledge(one, zero, {SINK.name: slots(1)})
    running.wait_for(Complete(checkpoint=one))
    running.wait_for(Trigger(checkpoint=two, base=one))
    backwards = session.acknowledge(two, one, {SOURCE.name: checked(9)})[0]
    assert (backwards.verdict, "offset 9 is behind 10" in backwards.detail) == (Verdict.INVALID, True)
    broken = Snapshot(positions=Document(kind="checked", version=1, body={}))
    assert session.acknowledge(two, one, {SOURCE.name: broken})[0].verdict is Verdict.INVALID, "fails closed"
    assert session.acknowledge(two, one, {SOURCE.name: checked(10)})[0].verdict is Verdict.ACCEPTED


def test_documents_of_an_unknown_kind_are_kept_as_they_are(running: Running, client: CoordinatorClient) -> None:
    body = {"ä": ["\ud800", 2**53, -0.5, None, True, {"deep": []}]}
    snapshot = Snapshot(positions=Document(kind="never-heard-of", version=99, body=body))
    session = running.session
    session.acknowledge(CheckpointId(1), CheckpointId(0), {SOURCE.name: snapshot})
    session.acknowledge(CheckpointId(1), CheckpointId(0), {SINK.name: Snapshot()})
    session.close(CloseReason.STOPPED)
    grant = client.open_job(JOB, (SOURCE, SINK), ONE_CHECKPOINT, None, driver="d2").grant
    assert grant.completed is not None
    assert grant.completed.snapshots[SOURCE.name] == snapshot


def test_a_document_that_is_no_json_is_refused_before_it_is_sent(running: Running) -> None:
    for body in ({"a": float("nan")}, {"a": b"bytes"}):
        snapshot = Snapshot(positions=Document(kind="test", version=1, body=body))
        with pytest.raises(RefusedError, match="not JSON"):
            running.session.acknowledge(CheckpointId(1), CheckpointId(0), {SOURCE.name: snapshot})


LIST_JOBS = "/onceward.coordinator.v1.OperatorService/ListJobs"


def held_calls(channel: grpc.Channel, count: int, method: str = LIST_JOBS) -> list[Any]:
    """Open calls whose request never comes."""
    never = threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait(60)
        yield b""

    method_: Any = channel.stream_unary(method)
    return [method_.future(nothing(), timeout=60) for _ in range(count)]


def test_too_many_calls_at_once_are_refused_with_resource_exhausted(
    tmp_path: Any, on: Callable[..., EmbeddedCoordinator]
) -> None:
    from onceward.coordinator.service.server import ServerOptions

    coordinator = on(tmp_path / "small", options=ServerOptions(max_concurrent_rpcs=20))
    with open_channel(coordinator.address) as channel:
        held = held_calls(channel, 20)

        def refused() -> bool:
            code = call(channel, LIST_JOBS, b"")
            held.extend(held_calls(channel, 1))  # it may have had the place of one that came late and was refused
            return code is grpc.StatusCode.RESOURCE_EXHAUSTED

        wait_until(refused, "no more calls are taken")
        for one in held:
            one.cancel()
        wait_until(lambda: call(channel, LIST_JOBS, b"") is grpc.StatusCode.OK, "calls are taken again")


def test_one_connection_cannot_take_all_calls(tmp_path: Any, on: Callable[..., EmbeddedCoordinator]) -> None:
    from onceward.coordinator.service.server import ServerOptions

    coordinator = on(tmp_path / "small", options=ServerOptions(max_concurrent_rpcs=MAX_STREAMS + 1))
    with open_channel(coordinator.address) as greedy, open_channel(coordinator.address) as other:
        assert call(greedy, LIST_JOBS, b"") is grpc.StatusCode.OK, "it is connected"
        held = held_calls(greedy, MAX_STREAMS)
        waiting: Any = greedy.unary_unary(LIST_JOBS)
        late = waiting.future(b"", timeout=60)
        assert call(other, LIST_JOBS, b"") is grpc.StatusCode.OK
        assert not late.done()
        held[0].cancel()
        assert late.code() is grpc.StatusCode.OK, "it has waited for a place"
        for one in held:
            one.cancel()


LONG = '{"a":"' + "x" * MAX_MESSAGE_BYTES + '"}'


@pytest.mark.parametrize("job", [JOB, "absent"])
@pytest.mark.parametrize("method", ["Acknowledge", "Settle", "Amend"])
def test_a_long_request_is_decoded_only_for_the_driver_of_its_job(
    unharmed: tuple[grpc.Channel, Running], monkeypatch: pytest.MonkeyPatch, method: str, job: str
) -> None:
    """Decoding takes time from the calls of all jobs: 1.4 s for 8 MiB."""
    channel, _ = unharmed
    committable = pb.Committable(slot=0, document=pb.Document(kind="test", version=1, body=LONG))
    settlements = [pb.Settlement(slot=n, outcome=pb.OUTCOME_COMMITTED, evidence="x" * 8000) for n in range(9)]
    stranger: dict[str, Any] = {"job": job, "driver": "a stranger's"}
    request = {
        "Acknowledge": acknowledge(**stranger, body=LONG),
        "Settle": pb.SettleRequest(**stranger, generation=1, checkpoint=1, participant="sink", settlements=settlements),
        "Amend": amend(**stranger, committables=[committable]),
    }[method]
    decoded: list[object] = []
    monkeypatch.setattr(requests, method.lower(), lambda request, now: decoded.append(request))
    with suppress(grpc.RpcError):
        response = getattr(ParticipantServiceStub(in_pieces(channel)), method)(request, timeout=30)
        answered = list(response.answers) if method == "Acknowledge" else [response.answer]
        assert [answer.verdict for answer in answered] == [pb.VERDICT_FENCED]
    assert decoded == []


DENSE = {"lists": "[]," * limits.MAX_CONTAINERS, "numbers": "1," * limits.MAX_VALUES}


@pytest.mark.parametrize("place", ["lists", "numbers", "many bodies", "shared"])
@pytest.mark.parametrize("method", ["Acknowledge", "Amend"])
def test_documents_of_very_many_values_are_refused_before_they_are_decoded(
    unharmed: tuple[grpc.Channel, Running], monkeypatch: pytest.MonkeyPatch, method: str, place: str
) -> None:
    """Empty lists take three bytes on the wire, a hundred in memory, and time of all jobs."""
    channel, running = unharmed
    bodies = ['{"a":[' + DENSE[place] + "0]}"] if place in DENSE else ['{"a":[' + "[]," * 40_000 + "[]]}"] * 50
    committables = [
        pb.Committable(slot=slot, document=pb.Document(kind="test", version=1, body=body))
        for slot, body in enumerate(bodies)
    ]
    decoded: list[object] = []
    monkeypatch.setattr("onceward.wire.documents._DECODER", decoded)
    named: dict[str, Any] = {"job": JOB, "generation": 1, "checkpoint": 1, "driver": "d1"}
    if method == "Amend":
        request: Any = pb.AmendRequest(**named, participant="sink", slots=[0], committables=committables)
    else:
        snapshot = pb.Snapshot(committables=committables)
        if place == "shared":
            snapshot = pb.Snapshot(shared_body=bodies[0], committables=committables[1:])
        one = pb.Acknowledgement(participant="sink", snapshot=snapshot)
        request = pb.AcknowledgeRequest(**named, acknowledgements=[one])
    code, said = ask(channel, method, request)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert f"at most {limits.MAX_VALUES} with {limits.MAX_CONTAINERS} are taken" in said
    assert running.session.generation == 1


def test_a_request_names_a_bounded_number_of_slots(unharmed: tuple[grpc.Channel, Running]) -> None:
    many = range(limits.MAX_SLOTS + 1)
    request = operators_pb2.ResolveSlotsRequest(
        job=JOB, checkpoint=1, participant="sink", slots=many, ruling=operators_pb2.RULING_REPLAY, reason="a test"
    )
    code, said = ask(unharmed[0], "ResolveSlots", request)
    assert (code, said) == (grpc.StatusCode.INVALID_ARGUMENT, "slots: 200001, must be at most 200000")


def test_an_acknowledgement_has_a_bounded_number_of_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is met before any document is looked at: each slot takes memory beside its text."""
    at = "onceward.wire.values._committable_from_wire"
    decoded: list[object] = []
    monkeypatch.setattr(at, lambda message, *_: decoded.append(message))
    few = [participants_pb2.Committable()] * limits.MAX_SLOTS
    assert len(committables_from_wire(few, "")) == len(decoded) == 200_000
    with pytest.raises(MalformedError, match="committables: 200001, must be at most 200000"):
        committables_from_wire([*few, participants_pb2.Committable()], "")
    assert len(decoded) == 200_000


def test_refusals_of_the_client_carry_the_exit_code_of_a_usage_error(people: OperatorClient) -> None:
    with pytest.raises(RefusedError, match="job absent is unknown") as refused:
        people.job(JobName("absent"))
    assert refused.value.exit_code is ExitCode.USAGE
