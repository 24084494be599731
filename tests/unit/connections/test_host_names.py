"""Both of our Kafka clients refuse a broker whose certificate names another host, in real handshakes."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from onceward import KafkaCluster
from onceward.connections.admin import admin_client
from onceward.connections.requests import BrokerRequests
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

HOST = "127.0.0.1"


class Impostor:
    """Listens with a certificate for another host, signed by an authority that the client trusts."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(directory / "ca.pem")
        self._ca = directory / "ca.pem"
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("other.example").configure_cert(self._context)
        self._listener = socket.create_server((HOST, 0))
        self.refusals: list[str] = []
        """Why a client ended the handshake."""
        self.received = 0
        """Bytes of Kafka's protocol."""
        threading.Thread(target=self._serve, daemon=True).start()

    def cluster(self, **config: str) -> KafkaCluster:
        security = {"security.protocol": "SSL", "ssl.ca.location": str(self._ca)}
        return KafkaCluster(f"{HOST}:{self._listener.getsockname()[1]}", config={**security, **config})

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                with plain, contextlib.suppress(ConnectionError):
                    try:
                        with self._context.wrap_socket(plain, server_side=True) as connection:
                            self.received += len(connection.recv(1000))
                    except ssl.SSLError as error:
                        self.refusals.append(str(error.reason))


@pytest.fixture
def impostor(tmp_path: Path) -> Iterator[Impostor]:
    made = Impostor(tmp_path)
    yield made
    made.close()


@contextlib.contextmanager
def data_client(cluster: KafkaCluster) -> Iterator[None]:
    admin = admin_client(cluster)  # connects by itself
    yield
    del admin


@contextlib.contextmanager
def control_plane(cluster: KafkaCluster) -> Iterator[None]:
    requests = BrokerRequests(cluster)

    def ask() -> None:
        with contextlib.suppress(Exception):
            requests.cluster_id()

    threading.Thread(target=ask, daemon=True).start()
    yield
    requests.close()


both_clients = pytest.mark.parametrize("client", [data_client, control_plane])
Client = Callable[[KafkaCluster], contextlib.AbstractContextManager[None]]


@both_clients
def test_a_broker_with_a_certificate_for_another_host_is_refused(impostor: Impostor, client: Client) -> None:
    with client(impostor.cluster()):
        wait_until(lambda: impostor.refusals or impostor.received, "the client judges the certificate")
    assert impostor.received == 0
    assert "CERTIFICATE" in impostor.refusals[0]


@both_clients
def test_only_a_setting_lifts_that(impostor: Impostor, client: Client) -> None:
    with client(impostor.cluster(**{"ssl.endpoint.identification.algorithm": "none"})):
        wait_until(lambda: impostor.received, "the client sends its first request")
    assert impostor.refusals == []
