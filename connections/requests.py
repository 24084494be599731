"""Raw requests to named brokers of one cluster, many at once, for operations that no client's own interface offers.

This is the only module that uses ``kafka.net``, kafka-python's young network layer; a contract test pins every call
used here. All other modules use requests and answers of ``kafka.protocol``.

Each :class:`BrokerRequests` has one thread that runs the sockets. Any thread may call its methods.
"""

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from kafka.errors import (
    AuthorizationError,
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationFailedError,
    UnknownBrokerIdError,
    UnsupportedVersionError,
)
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.api_message import ApiMessage

from onceward.common.links import Links
from onceward.connections.cluster import KafkaCluster
from onceward.connections.codes import ErrorCode
from onceward.connections.errors import ControlPlaneClosedError, ControlPlaneError
from onceward.connections.topics import cluster_facts, metadata_request

__all__ = [
    "IN_FLIGHT",
    "REQUEST_TIMEOUT_MS",
    "BrokerRequests",
    "NoAnswer",
    "Request",
    "or_no_answer",
]

REQUEST_TIMEOUT_MS = 8_000
"""Limit for one request, and for making a connection. A request that takes longer closes its connection; its outcome is
then unknown, never assumed."""

_GUARD_MS = 2 * REQUEST_TIMEOUT_MS
"""Limit for waits that the library itself does not limit: a TLS handshake that is never answered, and the requests
behind it (kafka-python 3.0.12)."""

IN_FLIGHT = 64
"""Concurrent requests per connection. The library rejects more, so `send_all` sends waves of this size."""

SILENT_WAVES = 20
"""Start over from the bootstrap servers after this many silent waves in a row: all known brokers may be gone."""

_T = TypeVar("_T")


def _closed_is_no_error(record: logging.LogRecord) -> bool:
    """Log at debug that a broker has closed a connection, as brokers do with idle ones (connections.max.idle.ms). The
    library logs each as three errors; `Links` reports the requests that get no answer."""
    if "socket disconnected" in record.getMessage():
        record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
    return True


for _name in ("kafka.net.connection", "kafka.net.transport"):
    logging.getLogger(_name).addFilter(_closed_is_no_error)

Request: TypeAlias = ApiMessage
"""A request of ``kafka.protocol``. The library pairs it with its answer, and its stubs do not: a caller declares the
type of the answer that it receives."""


@dataclass(frozen=True, kw_only=True)
class NoAnswer:
    """Disconnected, timed out, or not reachable: whether the request was carried out is unknown."""

    why: str
    code: int | None = None
    """Set when the request was not sent, so it was not carried out: the cause as an error code of the protocol."""
    begin_anew: bool = False
    """True when the library would remember the cause forever: refused credentials, an unknown broker, an ended loop."""


class BrokerRequests:
    """Sends requests to the brokers of one cluster. Connects on first use, and again after every failure."""

    def __init__(self, cluster: KafkaCluster, *, links: Links | None = None) -> None:
        """``links`` records which broker does not answer, and when it answers again."""
        self.cluster = cluster
        self.links = links or Links()
        self._lock = threading.Lock()
        self._net: Any = None
        self._manager: Any = None
        self._closed = False
        self._silent_waves = 0

    def cluster_id(self) -> str:
        """Return the id of the cluster that answers now. Raises ControlPlaneError without an answer."""
        return cluster_facts(self.ask(metadata_request(()))).id

    def ask(self, request: Request, *, node: int | None = None) -> Any:
        """Send one request to ``node``, or to any broker. Raises ControlPlaneError without an answer."""
        return self.answered(request, self.send_all([(node, request)])[0])

    def answered(self, request: Request, answer: Any) -> Any:
        """Return ``answer``. Raises ControlPlaneError if it is :class:`NoAnswer`."""
        if isinstance(answer, NoAnswer):
            raise self.unanswered(type(request).__name__.removesuffix("Request"), answer.why)
        return answer

    def unanswered(self, request: str, why: str) -> ControlPlaneError:
        """Return the error for an unanswered request."""
        return ControlPlaneError(
            f"Cluster {self.cluster.name!r} ({self.cluster.bootstrap_servers}) did not answer {request}: {why}. "
            "Nothing is known about what was asked and no data was changed on a guess. Check that the brokers can be "
            "reached; a retry is safe."
        )

    def send_all(self, requests: Sequence[tuple[int | None, Request]]) -> list[Any]:
        """Send all at once, each to its broker; return one answer or :class:`NoAnswer` per request, in order."""
        answers: list[Any] = []
        for start in range(0, len(requests), IN_FLIGHT):
            answers += self._wave(requests[start : start + IN_FLIGHT])
        return answers

    def close(self) -> None:
        """Stop the thread and close all connections. Ends no transaction."""
        with self._lock:
            self._closed = True
            self._drop()

    def _wave(self, requests: Sequence[tuple[int | None, Request]]) -> list[Any]:
        try:
            manager = self._connected()
        except KafkaError as error:
            unsent: list[Any] = [NoAnswer(why=f"cannot connect: {error}")] * len(requests)
            self._tell([(None, request) for _, request in requests], unsent)
            return unsent

        async def one(node: int | None, request: Request) -> Any:
            answer = manager.send(request, node_id=node, request_timeout_ms=REQUEST_TIMEOUT_MS)
            try:
                return await manager.wait_for(answer, _GUARD_MS)
            except KafkaTimeoutError as error:
                if answer.is_done:
                    raise
                raise _HeldUpError(f"held up for {_GUARD_MS / 1000:g} s by a connection that is not made") from error

        async def all_of_them() -> list[Any]:
            # The library has no gather: started tasks run concurrently, in whatever order they are awaited.
            started = [manager.call_soon(one, node, request) for node, request in requests]
            return [await or_no_answer(task) for task in started]

        try:
            answers: list[Any] = manager.run(all_of_them)
        except (KafkaError, RuntimeError) as error:
            # The loop itself ended, for example because another thread met refused credentials.
            answers = [NoAnswer(why=repr(error), begin_anew=True)] * len(requests)
        self._tell(requests, answers)
        silent = all(isinstance(answer, NoAnswer) for answer in answers)
        with self._lock:
            self._silent_waves = self._silent_waves + 1 if silent else 0
            stuck = self._silent_waves >= SILENT_WAVES
            if stuck or any(isinstance(answer, NoAnswer) and answer.begin_anew for answer in answers):
                self._silent_waves = 0
                if self._manager is manager:
                    self._drop()
        return answers

    def _tell(self, requests: Sequence[tuple[int | None, Request]], answers: Sequence[Any]) -> None:
        """Report the results broker by broker: a single answer proves that a link works."""
        name = f"cluster {self.cluster.name!r}"
        by_node: dict[int | None, list[tuple[Request, Any]]] = {}
        for (node, request), answer in zip(requests, answers, strict=True):
            by_node.setdefault(node, []).append((request, answer))
        for node, sent in by_node.items():
            link = name if node is None else f"broker {node} of {name}"
            unanswered = [(request, answer) for request, answer in sent if isinstance(answer, NoAnswer)]
            if len(unanswered) < len(sent):
                self.links.worked(link)
                self.links.worked(name)
            else:
                kinds = Counter(type(request).__name__.removesuffix("Request") for request, _ in unanswered)
                waiting = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
                self.links.failed(link, unanswered[0][1].why, waiting=waiting)

    def _connected(self) -> Any:
        with self._lock:
            if self._closed:
                raise ControlPlaneClosedError(
                    f"The control plane of cluster {self.cluster.name!r} was closed. Nothing was asked and no data was "
                    "changed. Use it before its owner is closed."
                )
            if self._manager is None:
                net = NetworkSelector()
                net.start()
                manager = KafkaConnectionManager(
                    net,
                    **{
                        **self.cluster.control_config(),
                        "max_in_flight_requests_per_connection": IN_FLIGHT + 1,
                        "request_timeout_ms": REQUEST_TIMEOUT_MS,
                        "socket_connection_setup_timeout_ms": REQUEST_TIMEOUT_MS,
                        "socket_connection_setup_timeout_max_ms": REQUEST_TIMEOUT_MS,
                        "reconnect_backoff_ms": 20,
                        "reconnect_backoff_max_ms": 1_000,
                        "receive_message_max_bytes": 100_000_000,
                    },
                )

                async def bootstrap() -> None:
                    await manager.wait_for(manager.bootstrap_async(REQUEST_TIMEOUT_MS), _GUARD_MS)

                try:
                    manager.run(bootstrap)
                except BaseException:
                    manager.close()
                    net.close()
                    raise
                self._net, self._manager = net, manager
            return self._manager

    def _drop(self) -> None:
        manager, net = self._manager, self._net
        self._manager = self._net = None
        if manager is None:
            return

        async def close_all() -> None:
            manager.close()

        # Sockets belong to the loop's thread; if the thread is gone, so are they.
        with contextlib.suppress(KafkaError, RuntimeError):
            manager.run(close_all)
        net.close()


class _HeldUpError(KafkaTimeoutError):  # type: ignore[misc]
    """The library waits without a limit: only a new connection manager helps."""


async def or_no_answer(task: Awaitable[_T]) -> _T | NoAnswer:
    """Return the task's result, or the reason why there is none."""
    try:
        return await task
    except KafkaError as error:
        return NoAnswer(
            why=f"{type(error).__name__}: {error}",
            code=ErrorCode.UNSUPPORTED_VERSION if isinstance(error, UnsupportedVersionError) else None,
            begin_anew=isinstance(error, _REMEMBERED),
        )


_REMEMBERED = (AuthorizationError, _HeldUpError, SaslAuthenticationFailedError, UnknownBrokerIdError)
