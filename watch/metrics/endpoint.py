"""The HTTP endpoint that Prometheus scrapes: GET /metrics, on threads of its own. Only this machine reaches it, unless
clients are authenticated or the user explicitly allows it."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from onceward.common.errors import ConfigurationError
from onceward.coordinator.service.listen import parse_listen

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["Endpoint", "MetricsEndpoint", "as_endpoint", "require_installed"]

_MAX_REQUESTS = 8
"""Open at a time; further connections are closed at once."""
_SILENT_S = 5.0
"""A connection that sends or takes nothing for this long is closed."""
_TEXT = ("Content-Type", "text/plain; charset=utf-8")


@dataclass(frozen=True)
class MetricsEndpoint:
    """Where a driver serves its metrics: ``http://HOST:PORT/metrics``."""

    listen: str
    """``HOST:PORT`` or ``[IPV6]:PORT``; port 0 for any free one."""
    insecure_listen_anywhere: bool = False
    """Allow an address that other machines can reach. Anyone there can read names of jobs and what they do."""

    def __post_init__(self) -> None:
        """Raises ConfigurationError for an address that cannot be used."""
        _place(self.listen, anywhere=self.insecure_listen_anywhere, remedy="MetricsEndpoint(..., True)")


def as_endpoint(metrics: str | MetricsEndpoint | None) -> MetricsEndpoint | None:
    """What an argument ``metrics`` means. Raises ConfigurationError if it cannot be used, or a package is missing."""
    if metrics is None:
        return None
    endpoint = metrics if isinstance(metrics, MetricsEndpoint) else MetricsEndpoint(metrics)
    require_installed()
    return endpoint


def require_installed() -> None:
    """Raise ConfigurationError if a package of ``onceward[metrics]`` is missing."""
    missing = [package for package in ("prometheus_client", "cryptography") if find_spec(package) is None]
    if missing:
        raise ConfigurationError(
            f"Metrics need packages that are not installed ({', '.join(missing)}). Nothing was started. Install them "
            "with: pip install 'onceward[metrics]'"
        )


class Endpoint:
    """Serves a registry from construction to :meth:`close`."""

    def __init__(
        self,
        listen: str,
        registry: "CollectorRegistry",
        *,
        anywhere: bool = False,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """Raises ConfigurationError for an address that cannot be used.

        :param anywhere: clients are authenticated, or the user takes the risk.
        :param tls: makes the context of each connection, so that replaced certificates are used.
        """
        host, port = _place(listen, anywhere=anywhere, remedy="--insecure-listen-anywhere")
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            kind: type[_Server] = type("_Server", (_Server,), {"address_family": family})
            self._server = make_server(host, port, _only_metrics(registry), kind, _Handler)
        except OSError as error:
            raise ConfigurationError(
                f"Cannot serve metrics on {listen}: {error.strerror or error}. Nothing was started. Choose another "
                "address, or stop what uses it."
            ) from None
        self._server.tls = tls
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'http' if tls is None else 'https'}://{shown}:{self._server.server_port}/metrics"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="onceward-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _place(text: str, *, anywhere: bool, remedy: str) -> tuple[str, int]:
    listen = parse_listen(text, anywhere=True)
    if listen.path is not None:
        raise ConfigurationError(
            f"Metrics cannot be served on {text}: Prometheus scrapes HTTP. Nothing was started. Write HOST:PORT."
        )
    if not listen.loopback and not anywhere:
        raise ConfigurationError(
            f"{text} can be reached from other machines, and clients need no certificate: anyone there could read the "
            "names of all jobs and what they do. Nothing was started. Serve metrics on 127.0.0.1, or pass "
            f"{remedy} if only trusted machines reach it; onceward serve also allows it with --tls-cert, --tls-key and "
            "--client-ca."
        )
    return listen.host, listen.port


def _only_metrics(registry: "CollectorRegistry") -> Callable[..., Iterable[bytes]]:
    """The library's application for one path, one method, no parameters and one format, one scrape at a time. What a
    client sends is in no answer. OpenMetrics, the other format, takes twice the time."""
    from prometheus_client import make_wsgi_app

    scrape, one_at_a_time = make_wsgi_app(registry), threading.Lock()

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != "/metrics":
            start_response("404 Not Found", [_TEXT])
            return [b"The metrics are at /metrics.\n"]
        if environ.get("REQUEST_METHOD") != "GET":
            start_response("405 Method Not Allowed", [_TEXT, ("Allow", "GET")])
            return [b"Use GET.\n"]
        with one_at_a_time:
            found: Iterable[bytes] = scrape({**environ, "QUERY_STRING": "", "HTTP_ACCEPT": ""}, start_response)
            return found

    return application


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each request, and at most a few."""

    daemon_threads = True
    block_on_close = False
    tls: Callable[[], ssl.SSLContext] | None = None

    def __init__(self, *given: Any, **named: Any) -> None:
        self._free = threading.BoundedSemaphore(_MAX_REQUESTS)
        super().__init__(*given, **named)

    def server_bind(self) -> None:
        # WSGIServer looks up the host's name here, which may wait for a name server
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "onceward", self.server_address[1]
        self.setup_environ()

    def get_request(self) -> tuple[Any, Any]:
        connection, address = self.socket.accept()
        try:
            connection.settimeout(_SILENT_S)
            if self.tls is not None:  # the handshake waits for the client, so the request's thread does it
                context = self.tls()
                connection = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        except ValueError as error:
            connection.close()
            raise OSError(str(error)) from error
        except Exception:
            connection.close()
            raise
        return connection, address

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that went away, or spoke no TLS."""


class _Handler(WSGIRequestHandler):
    server_version, sys_version = "onceward", ""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log nothing: a client chooses the text."""
