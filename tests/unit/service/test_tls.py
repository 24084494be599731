"""TLS between the coordinator and its clients: real processes, real certificates."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from onceward.client.operators import OperatorClient
from onceward.client.session import connect
from onceward.client.tls import CoordinatorTls
from onceward.common.errors import ConfigurationError, CoordinatorLostError
from onceward.coordinator.service.listen import parse_listen
from onceward.coordinator.service.tls import ServerTls
from onceward.operate.serve import tls_of
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import JobName
from tests.support.scripted import CoordinatorProcess, ScriptedDriver
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

HOST = "127.0.0.1"
REFUSED = (
    "it refuses the client's certificate FILE, which has expired or is signed by an authority that the coordinator's "
    "--client-ca does not contain"
)
EXPIRED_CLIENT = (
    "it refuses the client's certificate FILE, which has expired (valid until UNTIL UTC); renewed files are read "
    "without a restart"
)
EXPIRED = (
    "its certificate is not valid here: certificate has expired (valid until UNTIL UTC); renewed files are read "
    "without a restart"
)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
SHORT_LIVED = """
from onceward.coordinator.service.tls import ServerTls
arguments = ServerTls.arguments
ServerTls.arguments = lambda self: [(option, 200) for option, _ in arguments(self)]
"""
"""The coordinator's own options, with other times."""


class Party:
    """One side's files: its certificate and key, and the authorities that it trusts."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.certificate, self.key, self.ca = (directory / name for name in ("own.pem", "own.key", "ca.pem"))

    def trust(self, *authorities: trustme.CA) -> None:
        replace(self.ca, b"".join(one.cert_pem.bytes() for one in authorities))

    def own(self, signer: trustme.CA, name: str = HOST, *, until: datetime | None = None) -> None:
        issued = signer.issue_cert(name, not_after=until)
        replace(self.key, issued.private_key_pem.bytes())
        replace(self.certificate, b"".join(pem.bytes() for pem in issued.cert_chain_pems))

    @property
    def tls(self) -> CoordinatorTls:
        own = self.certificate.exists()
        return CoordinatorTls(ca=self.ca, certificate=self.certificate if own else None, key=self.key if own else None)


def replace(file: Path, content: bytes) -> None:
    """As tools that renew certificates do it: whole, under another name first."""
    file.with_suffix(".new").write_bytes(content)
    file.with_suffix(".new").replace(file)


class World:
    """A coordinator, a client, and two authorities; by default both use and trust the first."""

    def __init__(self, directory: Path, cleanup: ExitStack) -> None:
        self.first, self.second = trustme.CA(), trustme.CA()
        self.server, self.client = Party(directory / "server"), Party(directory / "client")
        self._directory, self._cleanup = directory, cleanup
        for party in (self.server, self.client):
            party.trust(self.first)
            party.own(self.first)

    def serve(self, *, tls: bool = True, preamble: str = "") -> str:
        """Start the coordinator; return its address."""
        server = self.server
        given = ["--tls-cert", str(server.certificate), "--tls-key", str(server.key), "--client-ca", str(server.ca)]
        process = CoordinatorProcess(self._directory / "coordinator", preamble=preamble, options=given if tls else [])
        self._cleanup.callback(process.end)
        self.log = process.log
        return process.wait_ready().address


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as cleanup:
        yield World(tmp_path, cleanup)


@pytest.mark.parametrize("preamble", ["", SHORT_LIVED], ids=["one connection", "connections that end all the time"])
def test_a_driver_with_a_certificate_completes_checkpoints(world: World, preamble: str) -> None:
    address = world.serve(preamble=preamble)
    settings = CheckpointSettings(interval="50ms", stream_grace="5s", lease="30s")
    with connect(address, tls=world.client.tls) as client:
        driver = ScriptedDriver(client, JobName("orders"), settings=settings)
        driver.wait_committed(20)
        driver.close()
    with OperatorClient(address, tls=world.client.tls) as people:
        assert people.job(JobName("orders")).generation == 1


def untrusted(world: World) -> None:
    world.client.trust(world.second)


def another_name(world: World) -> None:
    world.server.own(world.first, "other.example")


def expired(world: World) -> None:
    world.server.own(world.first, until=LONG_AGO)


def without_a_certificate(world: World) -> None:
    world.client.certificate.unlink()


def signed_by_another(world: World) -> None:
    world.client.own(world.second)


def expired_client(world: World) -> None:
    world.client.own(world.first, until=LONG_AGO)


def in_full(reason: str, world: World, until: datetime) -> str:
    return reason.replace("FILE", str(world.client.certificate)).replace("UNTIL", f"{until:%Y-%m-%d %H:%M:%S}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (untrusted, "its certificate is not valid here: unable to get local issuer certificate"),
        (
            another_name,
            f"its certificate is not valid here: IP address mismatch, certificate is not valid for '{HOST}'",
        ),
        (expired, EXPIRED),
        (without_a_certificate, "it requires a certificate of the client, and none is given (tls=, ONCEWARD_TLS_CERT)"),
        (signed_by_another, REFUSED),
        (expired_client, EXPIRED_CLIENT),
    ],
)
def test_a_connection_that_fails_because_of_a_certificate_says_why_at_once(
    world: World, change: Callable[[World], None], reason: str
) -> None:
    change(world)
    address = world.serve()
    with (
        OperatorClient(address, patience="8s", tls=world.client.tls) as people,
        pytest.raises(ConfigurationError) as raised,
    ):
        people.jobs()
    reason = in_full(reason, world, LONG_AGO)
    assert (
        str(raised.value)
        == f"The coordinator at {address} cannot be reached for listing jobs: {reason}. Nothing was sent."
    )


either_side = pytest.mark.parametrize(("side", "reason"), [("client", EXPIRED_CLIENT), ("server", EXPIRED)])


def driven(world: World, cleanup: ExitStack, patience: str) -> ScriptedDriver:
    """A driver with checkpoints, at a coordinator whose connections end all the time."""
    client = cleanup.enter_context(connect(world.serve(preamble=SHORT_LIVED), patience=patience, tls=world.client.tls))
    settings = CheckpointSettings(interval="50ms", stream_grace="300s", lease="300s", orphan_grace="300s")
    driver = ScriptedDriver(client, JobName("orders"), settings=settings)
    cleanup.callback(driver.session.let_go)
    driver.wait_committed(3)
    return driver


def expires_soon(world: World, side: str) -> datetime:
    until = (datetime.now(UTC) + timedelta(seconds=3)).replace(microsecond=0)
    getattr(world, side).own(world.first, until=until)
    return until


@either_side
def test_a_certificate_that_expires_is_named_and_the_job_continues_with_a_new_one(
    world: World, side: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as cleanup:
        driver = driven(world, cleanup, "300s")
        until = expires_soon(world, side)
        reason = in_full(reason, world, until)
        wait_until(lambda: reason in caplog.text, "the log says why")
        assert datetime.now(UTC) > until
        assert driver.errors.empty()
        getattr(world, side).own(world.first)
        driver.wait_committed(len(driver.committed) + 10)
        driver.close()
    lines = [record for record in caplog.records if reason in record.getMessage()]
    assert {record.levelname for record in lines} == {"WARNING"}
    assert len(lines) <= 2 + (datetime.now(UTC) - until).total_seconds() / 10, "the log is bounded"


@either_side
def test_the_error_at_the_end_of_the_patience_names_the_certificate_that_expired(
    world: World, side: str, reason: str
) -> None:
    with ExitStack() as cleanup:
        driver = driven(world, cleanup, "10s")
        reason = in_full(reason, world, expires_soon(world, side))
        error = driver.errors.get(timeout=120)
    assert isinstance(error, CoordinatorLostError)
    assert f"10 s: {reason}. " in str(error)
    assert str(error).endswith(
        "A decided checkpoint is committed when the job runs again. Renew or correct what is named, then start the job."
    )


def test_a_coordinator_logs_that_its_certificate_has_expired(world: World) -> None:
    address = world.serve()
    until = expires_soon(world, "server")
    wait_until(lambda: datetime.now(UTC) > until, "it expires")

    def logged() -> bool:
        with OperatorClient(address, tls=world.client.tls) as people, pytest.raises(ConfigurationError):
            people.jobs()
        return f"certificate_expired option=tls-cert file={world.server.certificate}" in world.log.read_text()

    wait_until(logged, "it logs that")
    assert world.log.read_text().count("event=certificate_expired") < 10


def test_a_connection_lives_at_most_an_hour(world: World) -> None:
    server = world.server
    tls = ServerTls(certificate=server.certificate, key=server.key, client_ca=None)
    assert dict(tls.arguments())["grpc.max_connection_age_ms"] == 3_600_000


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address that refuses connections."""
    with socket.socket() as held:
        held.bind((HOST, 0))
        yield f"{HOST}:{held.getsockname()[1]}"


BESIDE = [
    (untrusted, "its certificate is not valid here: unable to get local issuer certificate"),
    (another_name, f"its certificate is not valid here: IP address mismatch, certificate is not valid for '{HOST}'"),
    (expired, EXPIRED),
    (signed_by_another, REFUSED),
]


@pytest.mark.parametrize(("change", "reason"), BESIDE)
def test_beside_an_address_that_is_down_the_reason_is_logged_and_the_call_waits_for_correct_files(
    world: World, change: Callable[[World], None], reason: str, nowhere: str, caplog: pytest.LogCaptureFixture
) -> None:
    change(world)
    address = world.serve()
    with (
        OperatorClient(f"{nowhere},{address}", patience="300s", tls=world.client.tls) as people,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(people.jobs)
        reason = f"{address}: {in_full(reason, world, LONG_AGO)}"
        wait_until(lambda: reason in caplog.text, "the log says why")
        assert not waiting.done()
        for party in (world.server, world.client):
            party.trust(world.first)
            party.own(world.first)
        assert waiting.result(120) == []


@pytest.mark.parametrize(("change", "reason"), BESIDE)
def test_beside_an_address_that_is_down_the_error_at_the_end_of_the_patience_has_the_reason(
    world: World, change: Callable[[World], None], reason: str, nowhere: str
) -> None:
    change(world)
    address = world.serve()
    with (
        OperatorClient(f"{nowhere},{address}", patience="5s", tls=world.client.tls) as people,
        pytest.raises(CoordinatorLostError) as raised,
    ):
        people.jobs()
    assert f"it did not answer for 5 s: {address}: {in_full(reason, world, LONG_AGO)}. " in str(raised.value)


def test_an_expired_certificate_of_the_client_fails_at_once_although_an_address_is_down(
    world: World, nowhere: str
) -> None:
    expired_client(world)
    with (
        OperatorClient(f"{nowhere},{world.serve()}", patience="300s", tls=world.client.tls) as people,
        pytest.raises(ConfigurationError, match="which has expired"),
    ):
        people.jobs()


def test_a_client_without_tls_learns_that_the_coordinator_needs_it(world: World) -> None:
    address = world.serve()
    with (
        OperatorClient(address, patience="8s") as people,
        pytest.raises(ConfigurationError, match="accepts only TLS"),
    ):
        people.jobs()


def test_a_client_with_tls_learns_that_the_coordinator_has_none(world: World) -> None:
    address = world.serve(tls=False)
    with (
        OperatorClient(address, patience="8s", tls=world.client.tls) as people,
        pytest.raises(ConfigurationError, match="it does not use TLS, and this side requires it"),
    ):
        people.jobs()


def test_certificates_are_replaced_while_both_sides_run(world: World) -> None:
    address = world.serve()
    with OperatorClient(address, tls=world.client.tls) as people:
        people.jobs()
        for party in (world.server, world.client):
            party.trust(world.first, world.second)
        people.jobs()
        for party in (world.client, world.server):
            party.own(world.second)
            people.jobs()
        for party in (world.server, world.client):
            party.trust(world.second)
        people.jobs()
    stranger = Party(world.client.ca.parent.parent / "stranger")
    stranger.trust(world.second)
    stranger.own(world.first)
    with (
        OperatorClient(address, tls=stranger.tls) as people,
        pytest.raises(ConfigurationError, match="refuses the client"),
    ):
        people.jobs()


def test_a_certificate_whose_key_has_not_arrived_yet_is_not_used(world: World) -> None:
    address = world.serve()
    replace(world.server.certificate, world.second.issue_cert(HOST).cert_chain_pems[0].bytes())
    replace(world.client.key, b"not a key")
    with OperatorClient(address, tls=CoordinatorTls(ca=world.client.ca)) as people, pytest.raises(ConfigurationError):
        people.jobs()  # it has no certificate; the handshake shows that the coordinator's is still the old one
    assert "certificates_not_read" in world.log.read_text()


def test_a_client_keeps_its_certificate_while_the_new_one_is_incomplete(world: World) -> None:
    address = world.serve()
    with OperatorClient(address, tls=world.client.tls) as people:
        people.jobs()
        replace(world.client.key, b"not a key")
        people.jobs()
        world.client.key.unlink()
        people.jobs()


@pytest.mark.parametrize("missing", ["certificate", "key", "ca"])
def test_files_that_cannot_be_used_are_named_before_anything_is_sent(world: World, missing: str) -> None:
    getattr(world.client, missing).write_bytes(b"nonsense")
    with pytest.raises(ConfigurationError, match=r"cannot be used: .*Nothing was sent") as raised:
        OperatorClient(f"{HOST}:1", tls=world.client.tls)
    assert str(getattr(world.client, missing)) in str(raised.value)


def test_a_coordinator_refuses_files_that_do_not_fit(world: World) -> None:
    server = world.server
    with pytest.raises(ConfigurationError, match="needs both --tls-cert and --tls-key"):
        tls_of(server.certificate, None, None)
    with pytest.raises(ConfigurationError, match="needs both"):
        tls_of(None, None, server.ca)
    replace(server.key, world.client.key.read_bytes())
    with pytest.raises(ConfigurationError, match=r"cannot be used: .*Nothing was started"):
        tls_of(server.certificate, server.key, server.ca)


def test_a_key_with_a_password_is_refused_and_no_prompt_appears(world: World) -> None:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    key = load_pem_private_key(world.server.key.read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    replace(world.server.key, locked)
    with pytest.raises(ConfigurationError, match="the key has a password"):
        tls_of(world.server.certificate, world.server.key, None)


def test_other_machines_are_allowed_if_clients_are_authenticated(world: World) -> None:
    server = world.server
    for client_ca, refused in ((None, True), (server.ca, False)):
        tls = tls_of(server.certificate, server.key, client_ca)
        assert tls is not None
        with pytest.raises(ConfigurationError, match="--client-ca") if refused else nullcontext():
            parse_listen("0.0.0.0:1", anywhere=tls.authenticates)


def test_the_environment_names_the_files(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CoordinatorTls.from_environment() is None
    monkeypatch.setenv("ONCEWARD_TLS_CERT", str(world.client.certificate))
    with pytest.raises(ConfigurationError, match="ONCEWARD_TLS_CA is not"):
        CoordinatorTls.from_environment()
    monkeypatch.setenv("ONCEWARD_TLS_KEY", str(world.client.key))
    monkeypatch.setenv("ONCEWARD_TLS_CA", str(world.client.ca))
    with OperatorClient(world.serve()) as people:
        people.jobs()
    monkeypatch.delenv("ONCEWARD_TLS_CERT")
    with pytest.raises(ConfigurationError, match="go together"):
        OperatorClient(f"{HOST}:1")
