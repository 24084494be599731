"""Peers of a coordinator with a rights file: real servers with TLS, real certificates and tokens."""

import asyncio
import logging
import os
import pickle
import queue
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # type: ignore[import-untyped]
from sqlalchemy import Engine, event

from onceward.client.access import CoordinatorAccess, with_known_token
from onceward.client.calls import open_channel
from onceward.client.operators import OperatorClient
from onceward.client.session import Session, connect
from onceward.client.tls import CoordinatorTls
from onceward.common.errors import ConfigurationError, OncewardError, RefusedError
from onceward.coordinator.service import budget, doors
from onceward.coordinator.service.needs import NEEDS
from onceward.coordinator.service.operators import _Listings
from onceward.coordinator.service.peers import NOTED_PER_HOUR
from onceward.coordinator.service.rights import digest_of
from onceward.coordinator.service.rights_file import RightsFile
from onceward.coordinator.store.store import Store
from onceward.protocol.answers import Answer, Instruction, Trigger, Verdict
from onceward.protocol.requests import Ruling
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import (
    CheckpointId,
    CheckpointKind,
    Claim,
    Document,
    Generation,
    JobName,
    Outcome,
    ParticipantName,
    Settlement,
    Snapshot,
)
from onceward.wire import limits
from onceward.wire.rows import CoordinatorRole
from onceward.wire.v1 import operators_pb2, participants_pb2
from onceward.wire.v1 import operators_pb2 as operators
from onceward.wire.v1 import participants_pb2 as pb
from tests.support.peers import HOST, PeerFiles, ServedCoordinator
from tests.support.scripted import SINK, SOURCE, ScriptedDriver
from tests.support.stored_jobs import AT, StoredJob
from tests.support.waiting import wait_until

X, Y = JobName("orders-x"), JobName("orders-y")
CANARY = "canary-token-0123456789abcdefghijklmnopqrstuv"
SETTINGS = CheckpointSettings(interval="50ms", lease="30s", stream_grace="10s", orphan_grace="5min")
QUIET = CheckpointSettings(interval="1h", lease="60s", stream_grace="30s", orphan_grace="5min")

RIGHTS = f"""
[peers.x]
certificates = ["spiffe://example.org/x"]
drive = ["orders-x"]

[peers.y]
certificates = ["y.example.org"]
drive = ["orders-y"]

[peers.viewer]
certificates = ["spiffe://example.org/viewer"]
view = ["*"]

[peers.operator]
certificates = ["spiffe://example.org/operator"]
operate = ["orders-*"]

[peers.chief]
certificates = ["spiffe://example.org/chief"]
override = ["orders-*"]

[peers.robot]
tokens = ["sha256:{digest_of(CANARY).hex()}"]
operate = ["*"]

[peers.nothing]
certificates = ["spiffe://example.org/nothing"]
"""

METHODS = {
    method.name: f"/{service.full_name}/{method.name}"
    for file in (participants_pb2, operators_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
OF_NO_JOB = ["ListJobs", "DescribeCoordinator"]
"""In the order of `requests_to`."""
READING = {method for method, needs in NEEDS.items() if needs.rights == NEEDS["DescribeJob"].rights}


class World:
    """A coordinator that only accepts clients of its authority, with the rights above."""

    def __init__(self, directory: Path, cleanup: ExitStack) -> None:
        self.files = PeerFiles(directory)
        self._cleanup = cleanup
        self.store = directory / "store.db"
        self._made: dict[str, CoordinatorTls] = {}

    def serve(self, *, client_ca: bool = True, rights: str = RIGHTS, **options: Any) -> None:
        self.files.grant(rights)
        held = RightsFile(self.files.rights, certificates=client_ca)
        tls = self.files.server_tls(client_ca=client_ca)
        served = ServedCoordinator(self.store, tls=tls, rights=held, **options)
        self.server = self._cleanup.enter_context(served)
        self.address = self.server.address

    def tls(self, name: str) -> CoordinatorTls:
        if name not in self._made:
            uris, dns = ([], ["y.example.org"]) if name == "y" else ([f"spiffe://example.org/{name}"], [])
            self._made[name] = self.files.issued_to(name, uris=uris, dns=dns)
        return self._made[name]

    def channel(self, name: str) -> grpc.Channel:
        return self._cleanup.enter_context(open_channel(self.address, tls=self.tls(name)))

    def raw(self, name: str) -> grpc.Channel:
        """Without what the project's clients add."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        return self._cleanup.enter_context(grpc.secure_channel(self.address, self.tls(name).credentials(), options))

    def people(self, name: str) -> OperatorClient:
        return self._cleanup.enter_context(OperatorClient(self.address, tls=self.tls(name)))

    def driver(self, name: str, job: JobName, settings: CheckpointSettings = SETTINGS) -> ScriptedDriver:
        client = self._cleanup.enter_context(connect(self.address, tls=self.tls(name)))
        driver = ScriptedDriver(client, job, settings=settings)
        self._cleanup.callback(driver.session.let_go)
        return driver

    def session(self, name: str, job: JobName) -> Session:
        client = self._cleanup.enter_context(connect(self.address, tls=self.tls(name)))
        session = client.open_job(job, (SOURCE, SINK), QUIET, None, driver=name)
        self._cleanup.callback(session.let_go)
        return session


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as cleanup:
        yield World(tmp_path, cleanup)


def ask(channel: grpc.Channel, method: str, request: Message) -> tuple[grpc.StatusCode, str]:
    """Call once; return the status and its message."""
    data = request.SerializeToString()
    if method == "Watch":
        stream: Any = channel.unary_stream(METHODS[method])
        call = stream(data, timeout=60)
        try:
            next(call)
            call.cancel()
        except grpc.RpcError:
            return call.code(), call.details()
        return grpc.StatusCode.OK, ""
    unary: Any = channel.unary_unary(METHODS[method])
    try:
        unary(data, timeout=60)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def requests_to(job: str) -> dict[str, Message]:
    """A request of every method, whose content would be accepted or change something."""
    one: dict[str, Any] = {"job": job, "generation": 1, "driver": "d"}
    at: dict[str, Any] = {**one, "checkpoint": 1, "participant": "sink"}
    unchanged = pb.Acknowledgement(participant="sink", snapshot=pb.Snapshot(records=7))
    members = [
        pb.Participant(name="source", role=pb.ROLE_SOURCE, kind="test", on_lost=pb.ON_LOST_HALT),
        pb.Participant(name="sink", role=pb.ROLE_SINK, kind="test", on_lost=pb.ON_LOST_HALT),
    ]
    settings = pb.CheckpointSettings(
        timeout_us=10**8, num_retained=1, lease_us=10**7, stream_grace_us=10**6, orphan_grace_us=10**8
    )
    slots: dict[str, Any] = {"job": job, "checkpoint": 1, "participant": "sink", "slots": [0], "reason": "a test"}
    claim = pb.Claim(store_id="s", generation=1, completed=0, holder="h")
    return {
        "OpenJob": pb.OpenJobRequest(job=job, driver="another", participants=members, settings=settings, instead_of=1),
        "Watch": pb.WatchRequest(**one),
        "Acknowledge": pb.AcknowledgeRequest(**one, checkpoint=1, acknowledgements=[unchanged]),
        "Decline": pb.DeclineRequest(**at, reason="a test"),
        "Settle": pb.SettleRequest(**at, settlements=[pb.Settlement(slot=0, outcome=pb.OUTCOME_LOST)]),
        "Amend": pb.AmendRequest(**at, slots=[0]),
        "Renew": pb.RenewRequest(**one),
        "CloseJob": pb.CloseJobRequest(**one, reason=pb.CLOSE_REASON_HALTED),
        "ListJobs": operators.ListJobsRequest(),
        "DescribeCoordinator": operators.DescribeCoordinatorRequest(),
        "ListLosses": operators.ListLossesRequest(job=job),
        "DescribeJob": operators.DescribeJobRequest(job=job),
        "ListCheckpoints": operators.ListCheckpointsRequest(job=job),
        "DescribeCheckpoint": operators.DescribeCheckpointRequest(job=job, checkpoint=1),
        "ListGenerations": operators.ListGenerationsRequest(job=job),
        "ListHistory": operators.ListHistoryRequest(job=job),
        "DescribeRequest": operators.DescribeRequestRequest(job=job, request="r"),
        "TriggerCheckpoint": operators.TriggerCheckpointRequest(
            job=job, request="r", kind=pb.CHECKPOINT_KIND_SAVEPOINT
        ),
        "StopJob": operators.StopJobRequest(job=job),
        "CancelJob": operators.CancelJobRequest(job=job),
        "RestoreJob": operators.RestoreJobRequest(job=job, checkpoint=1, reason="a test"),
        "DeleteSavepoint": operators.DeleteSavepointRequest(job=job, checkpoint=1),
        "CloseOutput": operators.CloseOutputRequest(job=job, participant="sink", reason="a test"),
        "ForgetJob": operators.ForgetJobRequest(job=job, reason="a test"),
        "ResolveSlots": operators.ResolveSlotsRequest(**slots, ruling=operators.RULING_REPLAY),
        "PermitTakeover": operators.PermitTakeoverRequest(job=job, generation=1, reason="a test"),
        "PermitAdoption": operators.PermitAdoptionRequest(job=job, claim=claim, reason="a test"),
        "AcknowledgeLoss": operators.AcknowledgeLossRequest(job=job, checkpoint=1, participant="sink", reason="a test"),
        "SkipInput": operators.SkipInputRequest(job=job, topic="t", partition=0, offset=1, reason="a test"),
    }


def test_there_is_a_request_for_every_method() -> None:
    assert requests_to(Y).keys() == METHODS.keys()


def test_a_driver_of_one_job_can_do_nothing_to_another(world: World) -> None:
    """Not even with the secret of its generation."""
    world.serve()
    client = connect(world.address, tls=world.tls("y"))
    session = client.open_job(Y, (SOURCE, SINK), QUIET, None, driver="d")
    viewer, attacker = world.people("viewer"), world.channel("x")
    before = viewer.describe(Y), viewer.checkpoints(Y), viewer.generations(Y)
    for method, request in requests_to(Y).items():
        if method in OF_NO_JOB:
            continue
        code, said = ask(attacker, method, request)
        assert code is grpc.StatusCode.PERMISSION_DENIED, (method, said)
        assert re.fullmatch(rf"x lacks the right [a-z ]+ for job {Y}. Nothing was done", said), said
    assert (viewer.describe(Y), viewer.checkpoints(Y), viewer.generations(Y)) == before
    session.renew()
    assert [one.job for one in world.people("x").jobs()] == []
    session.let_go()
    client.close()


def test_a_driver_with_its_right_completes_checkpoints_and_lists_its_job_alone(world: World) -> None:
    world.serve()
    drivers = [world.driver("x", X), world.driver("y", Y)]
    for driver in drivers:
        driver.wait_committed(3)
    assert [one.job for one in world.people("x").jobs()] == [X]
    assert [one.job for one in world.people("viewer").jobs()] == [X, Y]
    assert world.people("x").losses() == []
    for driver in drivers:
        driver.close()
        assert driver.errors.empty()


def test_a_coordinator_describes_itself_to_peers_that_may_view_something_and_counts_only_their_jobs(
    world: World,
) -> None:
    world.serve()
    drivers = [world.driver("x", X), world.driver("y", Y)]
    for driver in drivers:
        driver.wait_committed(1)
    found = {name: world.people(name).coordinator() for name in ("viewer", "x", "operator")}
    assert {name: one.jobs for name, one in found.items()} == {"viewer": 2, "x": 1, "operator": 2}
    expires = {one.option: one.expires_at for one in found["viewer"].certificates}
    assert expires.keys() == {"tls-cert", "client-ca"}
    assert all(at is not None and at > datetime.now(UTC) for at in expires.values())
    assert (found["viewer"].drivers, found["viewer"].role) == (2, CoordinatorRole.LEADS)
    assert (found["viewer"].connections or 0) >= 3, "two drivers and who asks"
    with pytest.raises(RefusedError, match="PERMISSION_DENIED: nothing lacks the right view for any job"):
        world.people("nothing").coordinator()
    world.files.server_tls().certificate.write_text("half a file")
    broken = world.people("viewer").coordinator()
    assert {one.option: one.expires_at for one in broken.certificates}["tls-cert"] is None, "unknown"
    for driver in drivers:
        driver.close()


@contextmanager
def queries(what: str) -> Iterator[list[str]]:
    """The statements of all stores that begin with ``what``."""
    asked: list[str] = []

    def executing(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith(what):
            asked.append(statement)

    event.listen(Engine, "before_cursor_execute", executing)
    try:
        yield asked
    finally:
        event.remove(Engine, "before_cursor_execute", executing)


def test_losses_are_listed_of_the_jobs_that_a_peer_may_view(world: World) -> None:
    lost = Settlement(slot=1, outcome=Outcome.LOST, evidence="a test")
    store = Store.open(f"sqlite:///{world.store}")
    for number, name in enumerate(("orders-y", "orders-x", "payments")):
        stored = StoredJob(store, JobName(name))
        stored.open()
        for more in range(3):
            stored.lose(lost, at=AT + timedelta(seconds=10 * more + number))
    store.close()
    world.serve()
    with queries("SELECT losses.job") as asked:
        listed = {
            name: [(one.job, one.checkpoint) for one in world.people(name).losses(limit=4)]
            for name in ("viewer", "operator")
        }
    assert len(asked) == 2, "one query each: while a query runs, nothing is decided"
    assert listed["viewer"] == [("payments", 3), (X, 3), (Y, 3), ("payments", 2)]
    assert listed["operator"] == [(X, 3), (Y, 3), (X, 2), (Y, 2)]
    assert [one.job for one in world.people("x").losses()] == [X] * 3
    with pytest.raises(RefusedError, match="x lacks the right view for job orders-y"):
        world.people("x").losses(Y)


def test_a_peer_that_may_only_view_can_change_nothing(world: World) -> None:
    world.serve()
    world.driver("x", X, QUIET)
    viewer, channel = world.people("viewer"), world.channel("viewer")
    wait_until(lambda: viewer.jobs() and viewer.job(X).settled and viewer.job(X).last_completed, "nothing changes now")
    before = viewer.describe(X), viewer.checkpoints(X)
    for method, request in requests_to(X).items():
        code, said = ask(channel, method, request)
        assert (code is not grpc.StatusCode.PERMISSION_DENIED) == (method in READING), (method, said)
    assert (viewer.describe(X), viewer.checkpoints(X)) == before
    code, said = ask(channel, "SkipInput", operators.SkipInputRequest(job=X, topic="t", reason="r", only_look=True))
    assert code is grpc.StatusCode.OK, said


OVERRIDES: dict[str, Message] = {
    "PermitTakeover": requests_to(X)["PermitTakeover"],
    "PermitAdoption": requests_to(X)["PermitAdoption"],
    "AcknowledgeLoss": requests_to(X)["AcknowledgeLoss"],
    "SkipInput": requests_to(X)["SkipInput"],
}


def test_only_a_peer_with_the_right_puts_its_word_in_the_place_of_a_guard(world: World) -> None:
    world.serve()
    world.driver("x", X, QUIET)
    operator, chief = world.channel("operator"), world.channel("chief")
    slots: dict[str, Any] = {"job": X, "checkpoint": 1, "participant": "sink", "slots": [0], "reason": "a test"}
    replay, gone = operators.RULING_REPLAY, operators.RULING_GIVEN_UP
    beyond: list[tuple[str, Message]] = [
        *OVERRIDES.items(),
        ("ResolveSlots", operators.ResolveSlotsRequest(**slots, ruling=replay, forced=True)),
        ("ResolveSlots", operators.ResolveSlotsRequest(**slots, ruling=gone)),
    ]
    for method, request in beyond:
        code, said = ask(operator, method, request)
        assert code is grpc.StatusCode.PERMISSION_DENIED, (method, said)
        assert said == "operator lacks the right override for job orders-x. Nothing was done"
        assert ask(chief, method, request)[0] is grpc.StatusCode.OK, method
    ordinary = operators.ResolveSlotsRequest(**slots, ruling=replay)
    assert ask(operator, "ResolveSlots", ordinary)[0] is grpc.StatusCode.OK
    assert ask(chief, "ResolveSlots", ordinary)[0] is grpc.StatusCode.PERMISSION_DENIED
    assert ask(chief, "StopJob", operators.StopJobRequest(job=X))[0] is grpc.StatusCode.PERMISSION_DENIED
    assert ask(operator, "StopJob", operators.StopJobRequest(job=X))[0] is grpc.StatusCode.OK


def test_a_certificate_whose_names_are_not_in_the_file_proves_nothing(world: World) -> None:
    world.serve()
    strangers = {
        "in its CN only": world.files.issued_to("cn", common_name="y.example.org"),
        "a URI among DNS names": world.files.issued_to("odd", dns=["spiffe.example.org"], common_name="x"),
        "another URI": world.files.issued_to("other", uris=["spiffe://example.org/x/"]),
    }
    for what, tls in strangers.items():
        with OperatorClient(world.address, tls=tls) as people, pytest.raises(RefusedError) as raised:
            people.jobs()
        assert "UNAUTHENTICATED: the peer is unknown" in str(raised.value), what
    assert "spiffe://example.org/x/" in str(raised.value)


def test_a_peer_without_any_right_is_refused_before_its_request_is_read(world: World) -> None:
    world.serve()

    def endless() -> Iterator[bytes]:
        yield b"\x0a\x08orders-x"
        time.sleep(30)  # the test ends before
        yield b""

    for method in METHODS.keys() - {"Watch"}:
        call: Any = world.raw("nothing").stream_unary(METHODS[method])
        future = call.future(endless(), timeout=25)
        assert future.code() is grpc.StatusCode.PERMISSION_DENIED, method
        assert "nothing lacks the right" in future.details()


def test_the_job_is_checked_before_the_rest_of_a_request_is_parsed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onceward.coordinator.service import methods

    world.serve()
    parsed: list[str] = []
    parse = methods.parse

    def noting(method: Any, data: bytes) -> Message:
        parsed.append(method.name)
        return parse(method, data)

    monkeypatch.setattr(methods, "parse", noting)
    for method, request in requests_to(Y).items():
        assert ask(world.channel("x"), method, request)[0] is (
            grpc.StatusCode.OK if method in OF_NO_JOB else grpc.StatusCode.PERMISSION_DENIED
        )
    assert parsed == OF_NO_JOB


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MY_TOKEN", CANARY)
    return "env:MY_TOKEN"


def test_a_token_gives_its_rights_over_tls(world: World, token: str, tmp_path: Path) -> None:
    rights = "".join(part for part in RIGHTS.split("\n\n") if "robot" in part)
    world.serve(client_ca=False, rights=rights)
    with OperatorClient(world.address, tls=world.files.client_tls(), token=token) as people:
        assert people.jobs() == []
    file = tmp_path / "token"
    for given, reason in (
        (None, "neither a certificate with a URI or DNS name nor a token"),
        ("another-token-0123456789abcdefghijk", "its token is not in the rights file"),
    ):
        if given is not None:
            file.write_text(given)
        reference = None if given is None else f"file:{file}"
        with (
            OperatorClient(world.address, tls=world.files.client_tls(), token=reference) as people,
            pytest.raises(RefusedError, match="UNAUTHENTICATED") as raised,
        ):
            people.jobs()
        assert reason in str(raised.value)
        assert given is None or given not in str(raised.value)


def test_a_token_is_replaced_while_a_client_runs(world: World, tmp_path: Path) -> None:
    world.serve(client_ca=False, rights="".join(part for part in RIGHTS.split("\n\n") if "robot" in part))
    file = tmp_path / "token"
    file.write_text(CANARY + "\n")
    with OperatorClient(world.address, tls=world.files.client_tls(), token=f"file:{file}") as people:
        assert people.jobs() == []
        file.unlink()
        assert people.jobs() == [], "the last one is used while there is none"
        file.write_text("another-token-0123456789abcdefghijk")
        with pytest.raises(RefusedError, match="its token is not in the rights file"):
            people.jobs()


def test_a_token_is_never_sent_in_plain_text(tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    monkeypatch.setattr(grpc, "insecure_channel", lambda *_: sent.append(1))
    monkeypatch.setenv("ONCEWARD_TOKEN", token)
    for client in (lambda: connect(f"{HOST}:1", token=token), lambda: OperatorClient(f"{HOST}:1")):
        with pytest.raises(ConfigurationError, match=r"would be sent in plain text.*Nothing was sent") as raised:
            client()
        assert CANARY not in str(raised.value)
    assert sent == []


def test_a_token_that_came_in_plain_text_is_refused_and_taken_on_a_socket(tmp_path: Path, token: str) -> None:
    files = PeerFiles(tmp_path)
    files.grant("".join(part for part in RIGHTS.split("\n\n") if "robot" in part))
    for target in (f"{HOST}:0", f"unix:{tmp_path}/s.sock"):
        held = RightsFile(files.rights, certificates=False)
        with (
            ServedCoordinator(tmp_path / "store.db", rights=held, target=target) as served,
            grpc.insecure_channel(served.address) as channel,
        ):
            call: Any = channel.unary_unary(METHODS["ListJobs"])
            proof = (("authorization", f"Bearer {CANARY}"),)
            if target.startswith("unix:"):
                call(b"", timeout=30, metadata=proof)
                with OperatorClient(served.address, token=token) as people:
                    assert people.jobs() == []
                continue
            with pytest.raises(grpc.RpcError) as raised:
                call(b"", timeout=30, metadata=proof)
            error: Any = raised.value
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "in plain text, so others may know it now: replace it" in error.details()


@pytest.mark.parametrize("given", [CANARY, "env:", "file:relative", 7, f"env:{CANARY}!"])
def test_a_token_that_is_no_reference_is_refused_and_not_repeated(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="Use env:NAME or file:PATH") as raised:
        CoordinatorAccess(address="a:1", token=given)
    assert CANARY not in str(raised.value)


def test_a_token_that_no_header_holds_is_refused_and_not_shown(tmp_path: Path) -> None:
    for value in (f"{CANARY} with spaces", f"{CANARY}\nX: y", "short", CANARY + "ä"):
        (tmp_path / "token").write_text(value)
        with pytest.raises(ConfigurationError, match="does not hold a token") as raised:
            OperatorClient("unix:/nowhere", token=f"file:{tmp_path}/token")
        assert value not in str(raised.value)


def test_the_token_is_in_no_log_message_history_file_repr_or_pickle(
    world: World, token: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    world.serve(client_ca=False, rights="".join(part for part in RIGHTS.split("\n\n") if "robot" in part))
    access = CoordinatorAccess(address=world.address, tls=world.files.client_tls(), token=token)
    said: list[str] = [repr(access), str(access), repr(pickle.dumps(access))]
    with connect(world.address, tls=access.tls, token=token) as driver, pytest.raises(RefusedError) as raised:
        driver.open_job(X, (SOURCE, SINK), SETTINGS, None, driver="d")
    said.append(str(raised.value))
    channel = open_channel(world.address, tls=access.tls, token=token)
    said += [repr(channel), repr(vars(channel))]
    with OperatorClient(world.address, tls=access.tls, token=token) as people:
        people.jobs()
        with pytest.raises(OncewardError) as unknown:
            people.stop(X)
        said += [str(unknown.value), repr(people), repr(vars(people))]
    channel.close()
    assert "robot lacks the right drive" in said[3]
    assert CANARY not in "".join(said) + caplog.text
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(CANARY.encode() in path.read_bytes() for path in files)


def test_refusals_are_in_the_history_and_the_log_within_bounds(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.serve()
    world.driver("x", X, QUIET)
    channel = world.channel("y")
    for _ in range(200):
        assert ask(channel, "StopJob", operators.StopJobRequest(job=X))[0] is grpc.StatusCode.PERMISSION_DENIED
        ask(channel, "StopJob", operators.StopJobRequest(job="absent"))
    entries = [one for one in world.people("viewer").history(X, 1000) if one.event == "StopJob"]
    assert sum(one.count for one in entries) == NOTED_PER_HOUR, "more would push out of it what others have done"
    assert {one.verdict for one in entries} == {Verdict.REFUSED}
    assert "y lacks the right operate" in entries[0].detail
    lines = [record for record in caplog.records if "event=refused method=StopJob" in record.getMessage()]
    assert 0 < len(lines) < 400, "some, not one for each"
    assert [one.job for one in world.people("viewer").jobs()] == [X], "no job was made"


def test_a_right_that_is_taken_away_ends_what_it_allowed(world: World) -> None:
    world.serve()
    driver = world.driver("x", X)
    driver.wait_committed(1)
    world.files.grant(RIGHTS.replace('drive = ["orders-x"]', "drive = []"))
    viewer = world.people("viewer")
    wait_until(lambda: viewer.jobs() and not viewer.describe(X).connected, "the stream is ended")
    wait_until(lambda: not driver.errors.empty(), "the driver ends")
    # from its stream, or from a call that it made before that ended
    error = driver.errors.get()
    assert isinstance(error, RefusedError)
    assert re.search(r"PERMISSION_DENIED: x (has lost|lacks) the right drive", str(error))
    world.files.grant(RIGHTS)
    client = connect(world.address, tls=world.tls("x"))

    def opened() -> bool:
        try:
            client.open_job(X, (SOURCE, SINK), SETTINGS, None, driver="d", takeover=True).let_go()
        except RefusedError:
            return False
        return True

    wait_until(opened, "the right is back")
    client.close()


def test_a_file_that_cannot_be_read_keeps_the_rights(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.serve()
    people = world.people("viewer")
    assert people.jobs() == []
    world.files.grant("[peers.viewer")
    wait_until(lambda: people.jobs() == [] and "rights_not_read" in caplog.text, "the broken file is noticed")
    assert people.jobs() == []


def test_a_client_without_rights_is_not_made_to_wait_or_retry(world: World) -> None:
    world.serve()
    begun = time.monotonic()
    with (
        connect(world.address, tls=world.tls("x"), patience="60s") as client,
        pytest.raises(RefusedError, match="PERMISSION_DENIED: x lacks the right drive for job orders-y"),
    ):
        client.open_job(Y, (SOURCE, SINK), SETTINGS, None, driver="d")
    assert time.monotonic() - begun < 30


def test_health_needs_no_right_and_reflection_needs_a_view(world: World) -> None:
    world.serve(reflection=True)
    for name in ("nothing", "viewer"):
        health = health_pb2_grpc.HealthStub(world.raw(name))
        assert (
            health.Check(health_pb2.HealthCheckRequest(), timeout=30).status == health_pb2.HealthCheckResponse.SERVING
        )
        stub = reflection_pb2_grpc.ServerReflectionStub(world.raw(name))
        answers = stub.ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=30
        )
        if name == "viewer":
            (answer,) = answers
            assert len(answer.list_services_response.service) == 5
        else:
            with pytest.raises(grpc.RpcError, match="nothing lacks the right view for any job"):
                next(answers)


def test_one_peer_cannot_take_all_calls(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from onceward.coordinator.service import server

    monkeypatch.setattr(server, "MAX_CALLS_OF_PEER", 5)
    world.serve()
    held = [call for _ in range(3) for call in held_calls(world.raw("x"), 2)]
    wait_until(lambda: sum(one.done() for one in held) == 1, "the peer has all of its calls open")
    late: Any = world.raw("x").unary_unary(METHODS["ListJobs"])
    assert _code(late) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert world.people("viewer").jobs() == []
    for one in held:
        one.cancel()
    wait_until(lambda: _code(late) is grpc.StatusCode.OK, "its calls are taken again")


def test_one_peer_cannot_take_all_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "usable_memory", lambda: 400_000)
    world.serve(rights=RIGHTS.replace('"orders-x"', '"x-*"'))

    def acknowledge(peer: str, job: str, size: int) -> Answer:
        instructions: queue.Queue[Instruction] = queue.Queue()
        session = world.session(peer, JobName(job))
        session.start_watch(instructions.put)
        trigger = instructions.get(timeout=60)
        assert isinstance(trigger, Trigger)
        said = Snapshot(positions=Document(kind="test", version=1, body={"text": "x" * size}))
        (answer,) = session.acknowledge(trigger.checkpoint, trigger.base, {SOURCE.name: said})
        return answer

    assert [acknowledge("x", f"x-{number}", 50_000).verdict for number in range(3)] == [Verdict.ACCEPTED] * 3
    refused = acknowledge("x", "x-3", 50_000)
    assert (refused.verdict, "peer x would then hold" in refused.detail) == (Verdict.REFUSED, True)
    assert acknowledge("y", Y, 30_000).verdict is Verdict.ACCEPTED


def test_few_listings_of_a_peer_are_read_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds that are opened at the same moment kept the loop from decisions for a second."""
    go_on, running = threading.Event(), list[str]()
    listed = _Listings.list_jobs

    async def listing(self: _Listings, request: operators.ListJobsRequest) -> operators.ListJobsResponse:
        if request.after:
            running.append(request.after)
            while not go_on.is_set():
                await asyncio.sleep(0.01)
        return await listed(self, request)

    monkeypatch.setattr(_Listings, "list_jobs", listing)
    monkeypatch.setattr(doors, "_TURN_S", 600.0)
    world.serve()
    request = operators.ListJobsRequest(after="a").SerializeToString()
    method: Any = world.raw("viewer").unary_unary(METHODS["ListJobs"])
    held = [method.future(request, timeout=60) for _ in range(40)]
    assert world.server.server is not None
    calls = world.server.server._calls
    wait_until(lambda: (calls.count, len(running)) == (40, doors.LISTINGS_AT_ONCE), "all are open, and few are read")
    assert world.people("operator").jobs() == [], "another peer has its own"
    assert len(running) == doors.LISTINGS_AT_ONCE
    go_on.set()
    assert [one.code() for one in held] == [grpc.StatusCode.OK] * 40
    assert len(running) == 40


def test_calls_that_send_nothing_keep_no_listing_waiting(world: World) -> None:
    world.serve()
    silent = held_calls(world.raw("viewer"), 4 * doors.LISTINGS_AT_ONCE)
    assert world.server.server is not None
    calls = world.server.server._calls
    wait_until(lambda: calls.count == len(silent), "all are open")
    assert world.people("viewer").jobs() == []
    for one in silent:
        one.cancel()


def test_a_peer_with_two_proofs_has_no_calls_beside_those_of_each(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onceward.coordinator.service import server

    monkeypatch.setattr(server, "MAX_CALLS_OF_PEER", 2)
    world.serve()
    held = held_calls(world.raw("viewer"), 2)
    both = with_known_token(world.raw("viewer"), CANARY)
    call: Any = both.unary_unary(METHODS["ListJobs"], None, None)

    def code() -> grpc.StatusCode:
        try:
            call(b"", timeout=60)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    def taken() -> bool:
        held.extend(held_calls(world.raw("viewer"), 2 - sum(not one.done() for one in held)))  # each ends after 5 s
        return code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    wait_until(taken, "the calls of the certificate's peer are taken")
    for one in held:
        one.cancel()
    wait_until(lambda: code() is grpc.StatusCode.OK, "its calls are taken again")


def _code(call: Any) -> grpc.StatusCode:
    code: grpc.StatusCode = call.future(b"", timeout=60, wait_for_ready=True).code()
    return code


def held_calls(channel: grpc.Channel, count: int, path: str = METHODS["ListJobs"]) -> list[Any]:
    """Open calls whose request never comes."""

    def nothing() -> Iterator[bytes]:
        time.sleep(600)
        yield b""

    method: Any = channel.stream_unary(path)
    return [method.future(nothing(), timeout=600, wait_for_ready=True) for _ in range(count)]


@pytest.mark.parametrize("kind", ["streams", "checks without a request"])
def test_health_checks_cannot_lock_out_the_other_calls(
    tmp_path: Path, kind: Literal["streams", "checks without a request"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors.HealthDoor, "most", 100)
    with ExitStack() as cleanup:
        served = cleanup.enter_context(ServedCoordinator(tmp_path / "store.db", most=20))
        held: list[Any] = []
        for _ in range(3):
            channel = cleanup.enter_context(open_channel(served.address))
            if kind == "streams":
                watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
                held += [watch(b"", timeout=60, wait_for_ready=True) for _ in range(limits.MAX_STREAMS)]
            else:
                held += held_calls(channel, limits.MAX_STREAMS, "/grpc.health.v1.Health/Check")
        cleanup.callback(lambda: [one.cancel() for one in held])
        wait_until(lambda: any(one.done() for one in held if hasattr(one, "done")), "some are refused")
        refused = next(one for one in held if one.done())
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with OperatorClient(served.address) as people:
            assert people.jobs() == []
        if kind == "streams":
            channel = cleanup.enter_context(open_channel(served.address))
            health = health_pb2_grpc.HealthStub(channel)
            assert health.Check(health_pb2.HealthCheckRequest(), timeout=30).status


def watching(channel: grpc.Channel, count: int) -> list[Any]:
    """Streams of health checks, each with its first answer or refusal: the status, or the code."""
    watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch", None, health_pb2.HealthCheckResponse.FromString)
    streams = (watch(b"", timeout=60, wait_for_ready=True) for _ in range(count))
    return [(stream, _first(stream)) for stream in streams]


def _first(stream: Any) -> Any:
    try:
        return next(stream).status
    except grpc.RpcError as error:
        return error.code()


SERVING, FULL = health_pb2.HealthCheckResponse.SERVING, grpc.StatusCode.RESOURCE_EXHAUSTED


def test_health_streams_of_unknown_peers_leave_places_for_known_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors.HealthDoor, "most", 12)
    world.serve()
    streams = watching(world.raw("stranger"), 7)
    assert [first for _, first in streams] == [SERVING] * 6 + [FULL]
    known = watching(world.raw("nothing"), 5)
    assert [first for _, first in known] == [SERVING] * 5, "peers of the file may take the other half"
    assert [first for _, first in watching(world.raw("stranger"), 1)] == [FULL]
    assert [first for _, first in watching(world.raw("viewer"), 2)] == [SERVING, FULL]


def test_one_connection_has_few_health_streams(tmp_path: Path) -> None:
    most = limits.MAX_HEALTH_CALLS_OF_CONNECTION
    options = [("grpc.use_local_subchannel_pool", 1)]
    with (
        ServedCoordinator(tmp_path / "store.db") as served,
        grpc.insecure_channel(served.address, options) as one,
        grpc.insecure_channel(served.address, options) as other,
    ):
        streams = watching(one, most + 1)
        assert [first for _, first in streams] == [SERVING] * most + [FULL]
        assert [first for _, first in watching(other, 1)] == [SERVING]


def test_a_health_check_without_a_request_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors.HealthDoor, "limit_s", 0.1)
    with ServedCoordinator(tmp_path / "store.db") as served, open_channel(served.address) as channel:
        (held,) = held_calls(channel, 1, "/grpc.health.v1.Health/Check")
        assert held.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert held.details() == "no request came within 0.1 s"
        empty: Any = channel.stream_unary("/grpc.health.v1.Health/Check")
        assert empty.future(iter(()), timeout=30).code() is grpc.StatusCode.INVALID_ARGUMENT


def test_jobs_are_listed_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ServedCoordinator(tmp_path / "store.db") as served, OperatorClient(served.address) as people:
        names = [f"job-{number:02}" for number in range(7)]
        claim = Claim(store_id="s", generation=Generation(1), completed=0, holder="h")  # type: ignore[arg-type]
        for name in names:
            people.permit_adoption(JobName(name), claim, "a test")
        with open_channel(served.address) as channel:
            page: Any = channel.unary_unary(METHODS["ListJobs"])
            first = operators.ListJobsResponse.FromString(
                page(operators.ListJobsRequest(limit=3).SerializeToString(), timeout=30)
            )
        assert ([one.job for one in first.jobs], first.more) == (names[:3], True)
        monkeypatch.setattr("onceward.coordinator.service.operators.MAX_LISTED", 3)
        assert [one.job for one in people.jobs()] == names


def test_savepoints_of_a_job_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceward.coordinator.service.operators.MAX_SAVEPOINTS", 2)
    with (
        ServedCoordinator(tmp_path / "store.db") as served,
        OperatorClient(served.address) as people,
        connect(served.address) as client,
    ):
        driver = ScriptedDriver(client, X, settings=SETTINGS)
        asked = [people.request_checkpoint(X, CheckpointKind.SAVEPOINT) for _ in range(2)]
        requests = [one.request.id for one in asked if one.request is not None]
        wait_until(lambda: all(people.request(X, one).checkpoint for one in requests), "both are taken")
        wait_until(lambda: people.job(X).open_requests == (), "both are completed")
        third = people.request_checkpoint(X, CheckpointKind.SAVEPOINT)
        assert third.verdict is Verdict.REFUSED
        assert "at most 2 are kept: delete one first (onceward savepoint orders-x --delete ID)" in third.detail
        repeated = people.request_checkpoint(X, CheckpointKind.SAVEPOINT, request=requests[0])
        assert repeated.verdict is Verdict.DUPLICATE, "a call whose answer was lost is answered as before"
        assert people.request_checkpoint(X, CheckpointKind.CHECKPOINT).verdict is Verdict.ACCEPTED
        assert people.delete_savepoint(X, people.request(X, requests[0]).checkpoint).verdict is Verdict.ACCEPTED
        assert people.request_checkpoint(X, CheckpointKind.SAVEPOINT).verdict is Verdict.ACCEPTED
        driver.close()


def test_a_job_may_have_a_limited_number_of_checkpoints_kept(tmp_path: Path) -> None:
    with ServedCoordinator(tmp_path / "store.db") as served, connect(served.address) as client:
        settings = CheckpointSettings(num_retained=limits.MAX_RETAINED + 1)
        with pytest.raises(
            RefusedError,
            match=f"um_retained: {limits.MAX_RETAINED + 1} checkpoints, and .* at most {limits.MAX_RETAINED}",
        ):
            client.open_job(X, (SOURCE, SINK), settings, None, driver="d")
        settings = CheckpointSettings(num_retained=limits.MAX_RETAINED)
        client.open_job(X, (SOURCE, SINK), settings, None, driver="d").let_go()


def test_a_store_has_a_limited_number_of_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceward.coordinator.service.quotas.MAX_JOBS", 2)
    claim, z = Claim(store_id="s", generation=Generation(1), completed=0, holder="h"), JobName("orders-z")  # type: ignore[arg-type]
    full = "holds 2 jobs, and a coordinator keeps at most 2.* Nothing was changed.* onceward forget JOB"
    with ServedCoordinator(tmp_path / "store.db") as served, OperatorClient(served.address) as people:
        with connect(served.address) as client:
            client.open_job(X, (SOURCE, SINK), SETTINGS, None, driver="d").let_go()
            assert people.permit_adoption(Y, claim, "a test").verdict is Verdict.ACCEPTED
            with pytest.raises(RefusedError, match=full):
                client.open_job(z, (SOURCE, SINK), SETTINGS, None, driver="d")
        answer = people.permit_adoption(z, claim, "a test")
        assert (answer.verdict, bool(re.search(full, answer.detail))) == (Verdict.REFUSED, True)
        assert [one.job for one in people.jobs()] == [X, Y]
    with (
        ServedCoordinator(tmp_path / "store.db") as served,
        OperatorClient(served.address) as people,
        connect(served.address) as client,
    ):
        with pytest.raises(RefusedError, match=full):
            client.open_job(z, (SOURCE, SINK), SETTINGS, None, driver="d")
        monkeypatch.setattr("onceward.coordinator.service.quotas.MAX_JOBS", 1)
        client.open_job(X, (SOURCE, SINK), SETTINGS, None, driver="d").let_go()
        again = people.permit_adoption(Y, replace(claim, completed=CheckpointId(1)), "a test")
        assert again.verdict is Verdict.ACCEPTED, "known jobs always work"
        assert people.forget(Y, "a test").verdict is Verdict.ACCEPTED
        monkeypatch.setattr("onceward.coordinator.service.quotas.MAX_JOBS", 2)
        client.open_job(z, (SOURCE, SINK), SETTINGS, None, driver="d").let_go()
        with pytest.raises(RefusedError, match=full):  # a forgotten job is a new one
            client.open_job(Y, (SOURCE, SINK), SETTINGS, None, driver="d")


def test_a_coordinator_without_a_rights_file_permits_everything(tmp_path: Path, token: str) -> None:
    files = PeerFiles(tmp_path)
    with ServedCoordinator(tmp_path / "store.db", tls=files.server_tls(client_ca=False)) as served:
        for given in (None, token):
            with OperatorClient(served.address, tls=files.client_tls(), token=given) as people:
                assert people.jobs() == []


def test_resolving_by_force_is_refused_for_what_it_is(world: World) -> None:
    world.serve()
    world.driver("x", X, QUIET)
    with pytest.raises(RefusedError, match="operator lacks the right override for job orders-x"):
        world.people("operator").resolve(X, 1, ParticipantName("sink"), [0], Ruling.REPLAY, "me", forced=True)


def test_the_mode_of_a_file_that_others_may_write_is_noticed_later_too(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.serve()
    people = world.people("viewer")
    stolen = world.files.rights.with_suffix(".stolen")
    stolen.write_text(RIGHTS.replace('view = ["*"]', 'drive = ["*"]'))
    os.chmod(stolen, 0o666)
    stolen.replace(world.files.rights)
    wait_until(lambda: people.jobs() == [] and "other users may write it" in caplog.text, "it is noticed")
    with pytest.raises(RefusedError, match="viewer lacks the right operate"):
        people.stop(X)
