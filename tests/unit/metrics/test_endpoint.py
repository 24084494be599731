"""The endpoint of metrics: who reaches it, and what it answers."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from importlib import util
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme
from prometheus_client import Gauge

from onceward import KafkaSink, KafkaSource, MetricsEndpoint, Pipeline
from onceward.common.errors import ConfigurationError
from onceward.coordinator.service.tls import ServerTls
from onceward.watch.metrics.endpoint import Endpoint, as_endpoint
from onceward.watch.metrics.registry import Registry
from tests.support.scraped import scrape
from tests.support.waiting import wait_until


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def endpoint(cleanup: ExitStack) -> Endpoint:
    return serve(cleanup)


def serve(cleanup: ExitStack, listen: str = "127.0.0.1:0", tls: ServerTls | None = None) -> Endpoint:
    registry = Registry()
    Gauge("onceward_answer", "A number.", ["job_name"], registry=registry).labels('a\n"b\\').set(42)
    made = Endpoint(listen, registry, tls=None if tls is None else tls.context)
    cleanup.callback(made.close)
    return made


def ask(endpoint: Endpoint, method: str, path: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", urlsplit(endpoint.url).port or 0, timeout=30)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_it_shows_the_registry_and_the_process_and_escapes_labels(endpoint: Endpoint) -> None:
    found = scrape(endpoint.url)
    assert found.value("onceward_answer", job_name='a\n"b\\') == 42
    assert found.value("process_resident_memory_bytes") > 0
    assert '{job_name="a\\n\\"b\\\\"} 42.0' in ask(endpoint, "GET", "/metrics")[1]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/metrics/<script>", 404),
        ("GET", "/favicon.ico", 404),
        ("POST", "/metrics", 405),
        ("HEAD", "/metrics", 405),
        ("OPTIONS", "/metrics", 405),
        ("FETCH", "/metrics", 405),
    ],
)
def test_it_answers_only_get_metrics_and_repeats_nothing_of_a_request(
    endpoint: Endpoint, method: str, path: str, status: int
) -> None:
    found, said = ask(endpoint, method, path)
    assert found == status
    assert "script" not in said
    assert "FETCH" not in said


def test_parameters_choose_nothing(endpoint: Endpoint) -> None:
    assert "process_cpu_seconds_total" in ask(endpoint, "GET", "/metrics?name[]=onceward_answer")[1]


def test_silent_connections_do_not_keep_others_out_for_ever(endpoint: Endpoint, cleanup: ExitStack) -> None:
    """Each takes a place until it has been silent for a while; one too many is closed at once."""
    place = ("127.0.0.1", urlsplit(endpoint.url).port or 0)
    for _ in range(20):
        cleanup.callback(socket.create_connection(place).close)

    def answered() -> bool:
        try:
            return scrape(endpoint.url).value("onceward_answer") == 42
        except OSError:
            return False

    wait_until(answered, "the endpoint answers again")


def test_it_closes(endpoint: Endpoint) -> None:
    endpoint.close()
    with pytest.raises(OSError, match="refused"):
        scrape(endpoint.url)


def test_an_address_that_is_taken_is_named(endpoint: Endpoint, cleanup: ExitStack) -> None:
    taken = urlsplit(endpoint.url).netloc
    with pytest.raises(ConfigurationError, match=f"Cannot serve metrics on {taken}: .*Nothing was started"):
        serve(cleanup, taken)


@pytest.mark.parametrize(
    ("listen", "why"),
    [
        ("0.0.0.0:9464", "can be reached from other machines"),
        ("[::]:9464", "can be reached from other machines"),
        ("unix:/run/metrics.sock", "Prometheus scrapes HTTP"),
        ("9464", "no address to listen on"),
    ],
)
def test_addresses_that_others_reach_or_that_are_none_are_refused(listen: str, why: str, cleanup: ExitStack) -> None:
    with pytest.raises(ConfigurationError, match=why):
        as_endpoint(listen)
    with pytest.raises(ConfigurationError, match=why):
        serve(cleanup, listen)


def test_an_address_that_others_reach_needs_the_users_word() -> None:
    assert as_endpoint(MetricsEndpoint("0.0.0.0:9464", insecure_listen_anywhere=True)) is not None
    assert as_endpoint(None) is None


@pytest.mark.parametrize("missing", ["prometheus_client", "cryptography"])
def test_a_missing_package_is_named_before_anything_starts(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = util.find_spec
    monkeypatch.setattr(
        "onceward.watch.metrics.endpoint.find_spec", lambda name: None if name == missing else found(name)
    )
    with pytest.raises(ConfigurationError, match=rf"\({missing}\).*pip install 'onceward\[metrics\]'"):
        Pipeline(
            job="orders",
            source=KafkaSource("localhost:9092", topics=["orders"]),
            sink=KafkaSink("localhost:9092", topic="copies"),
            metrics="127.0.0.1:0",
        )


class Certificates:
    """A server's files, and the context of a client."""

    def __init__(self, directory: Path) -> None:
        self.ca = trustme.CA()
        self.tls = ServerTls(
            certificate=directory / "own.pem", key=directory / "own.key", client_ca=directory / "ca.pem"
        )
        self.ca.cert_pem.write_to_path(directory / "ca.pem")
        self.renew()

    def renew(self) -> None:
        issued = self.ca.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(str(self.tls.key))
        issued.cert_chain_pems[0].write_to_path(str(self.tls.certificate))

    def client(self, *, own: bool = True) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        if own:
            self.ca.issue_cert("prometheus.example").configure_cert(context)
        return context


def test_with_tls_only_clients_with_a_certificate_are_answered(tmp_path: Path, cleanup: ExitStack) -> None:
    files = Certificates(tmp_path)
    endpoint = serve(cleanup, tls=files.tls)
    assert endpoint.url.startswith("https://")
    assert scrape(endpoint.url, files.client()).value("onceward_answer") == 42
    with pytest.raises(OSError):  # noqa: PT011 - it differs between versions of TLS
        scrape(endpoint.url, files.client(own=False))
    with pytest.raises(OSError):  # noqa: PT011
        scrape(endpoint.url.replace("https", "http"))
    files.ca = trustme.CA()
    files.renew()
    files.ca.cert_pem.write_to_path(str(files.tls.client_ca))
    assert scrape(endpoint.url, files.client()).value("onceward_answer") == 42
