"""TLS between the coordinator and its clients: real processes, real certificates."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from onceward.coordinator.client.operators import OperatorClient
from onceward.coordinator.client.session import connect
from onceward.coordinator.client.tls import CoordinatorTls
from onceward.coordinator.errors import ConfigurationError
from onceward.coordinator.ops.serve import tls_of
from onceward.coordinator.protocol.settings import CheckpointSettings
from onceward.coordinator.protocol.values import JobName
from onceward.coordinator.service.listen import parse_listen
from tests.support.scripted import CoordinatorProcess, ScriptedDriver

pytestmark = pytest.mark.slow

HOST = "127.0.0.1"
REFUSED = (
    "it refuses the client's certificate FILE, which has expired or is signed by an authority that the coordinator's "
    "--client-ca does not contain"
)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
SHORT_LIVED = """
from onceward.coordinator.service.tls import ServerTls
ServerTls.arguments = lambda self: [("grpc.max_connection_age_ms", 200), ("grpc.max_connection_age_grace_ms", 200)]
"""


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


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (untrusted, "its certificate is not valid here: unable to get local issuer certificate"),
        (
            another_name,
            f"its certificate is not valid here: IP address mismatch, certificate is not valid for '{HOST}'",
        ),
        (expired, "its certificate is not valid here: certificate has expired"),
        (without_a_certificate, "it requires a certificate of the client, and none is given (tls=, ONCEWARD_TLS_CERT)"),
        (signed_by_another, REFUSED),
        (expired_client, REFUSED),
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
    reason = reason.replace("FILE", str(world.client.certificate))
    assert (
        str(raised.value)
        == f"The coordinator at {address} cannot be reached for listing jobs: {reason}. Nothing was sent."
    )


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
