"""Create confluent-kafka's admin client for a :class:`KafkaCluster`, and make first contact with a cluster."""

import logging
import re
import time
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo

from onceward.common.errors import ConfigurationError, PreflightError
from onceward.common.printable import logger
from onceward.connections.cluster import KafkaCluster, Setting

__all__ = ["KAFKA_LOGGER", "admin_client", "answered_offset", "cluster_id", "reach"]

KAFKA_LOGGER = logger("onceward.kafka")
"""The logger of Kafka clients. A client with a logger delivers its lines in ``poll()``, so something must call that."""

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 2.0
"""Extra time for the client to report its own time-out."""
_SETTINGS: Mapping[str, Setting] = {
    # librdkafka sends requests about topics to the controller that it knows. When that controller dies, it looks for
    # another only at the next refresh, by default after 5 min; until then every request times out (seen with 2.16.0).
    "topic.metadata.refresh.interval.ms": 1_000,
    # A sparse client connects only when a request needs it, and reconnects without a pause while the broker refuses:
    # 8,000 attempts a second (seen with 2.16.0). With this setting it connects to every broker, with its usual pauses.
    "enable.sparse.connections": False,
}
"""Defaults; the cluster's configuration overrides them."""


def admin_client(cluster: KafkaCluster, **overrides: Setting) -> AdminClient:
    """Return a new admin client that logs to ``onceward.kafka``. Call its ``poll(0)`` regularly: log lines wait for it.

    Raises ConfigurationError when librdkafka rejects a setting, or a secret is missing.
    """
    return _make(cluster, overrides, KAFKA_LOGGER)


def _make(cluster: KafkaCluster, overrides: dict[str, Any], logger: logging.Logger) -> AdminClient:
    config = {**_SETTINGS, **cluster.client_config(**overrides)}
    try:
        return AdminClient(config, logger=logger)
    except KafkaException as error:
        raise ConfigurationError(
            f"The Kafka client refuses the configuration of cluster {cluster.name!r}: {_said(error.args[0])}. "
            "Nothing was connected. Correct the setting in KafkaCluster(config=...)."
        ) from None


def cluster_id(admin: AdminClient, timeout: float = 10.0) -> str:
    """Return the id that the brokers were formatted with. Raises KafkaException after ``timeout`` seconds."""
    question = admin.describe_cluster(request_timeout=timeout)
    try:
        description = question.result(timeout=timeout + _GRACE_SECONDS)
    except FutureTimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
    return str(description.cluster_id)


def answered_offset(answer: ListOffsetsResultInfo) -> int:
    """Return the offset in an answer to ``list_offsets``. Raises KafkaException when the answer holds none: the client
    returns such an answer, without an error, when the connection breaks before the brokers' answer arrives (2.16.1)."""
    if answer.offset == OFFSET_INVALID:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "the answer holds no offset"))
    return int(answer.offset)


def reach(cluster: KafkaCluster, timeout: float = 10.0) -> str:
    """Return the cluster's id, or raise the one reason why the cluster cannot be used, in about ``timeout`` seconds.

    Raises PreflightError that distinguishes these causes: nothing listens or the name is unknown; the credentials are
    refused; TLS or the protocol does not match. Refused credentials and certificates fail at once; everything else is
    retried until the time is over.
    """
    errors: list[KafkaError] = []
    lines = _Lines()
    admin = _make(cluster, {"error_cb": errors.append}, lines.logger)
    deadline = time.monotonic() + timeout
    answer = admin.describe_cluster(request_timeout=timeout)
    while not answer.done() and time.monotonic() < deadline + 1:
        admin.poll(_POLL_SECONDS)
        if any(error.code() in _HOPELESS for error in errors):
            raise _refusal(cluster, errors, lines.hang_up)
    try:
        return str(answer.result(timeout=0).cluster_id)
    except (KafkaException, TimeoutError) as error:
        cause = error.args[0] if error.args and isinstance(error.args[0], KafkaError) else None
        if cause is not None and cause.code() not in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
            errors.append(cause)
        raise _refusal(cluster, errors, lines.hang_up, timeout) from None


_HOPELESS = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    }
)


_ADVERTISED = re.compile(r"(?:\w+://)?(?P<address>\S+:\d+)/(?P<id>\d+): ")
"""How the client names a broker that other brokers have named. One that it was given has no number."""


class _Lines(logging.Handler):
    """Captures a client's log. Keeps only one fact that the client reports nowhere else: a broker accepts the
    connection and then hangs up."""

    def __init__(self) -> None:
        super().__init__()
        self.hang_up = ""
        self.logger = logging.Logger("onceward.kafka.reach")
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "Disconnected" in text and "in state UP" in text:
            self.hang_up = text.rpartition("]: ")[2]


def _refusal(
    cluster: KafkaCluster, errors: list[KafkaError], hang_up: str, timeout: float | None = None
) -> PreflightError:
    specific = [error for error in errors if error.code() != KafkaError._ALL_BROKERS_DOWN]
    hopeless = [error for error in specific if error.code() in _HOPELESS]
    chosen = hopeless or specific[-1:]
    error = chosen[0] if chosen else None
    said = _said(error) if error is not None else hang_up or "no broker answered at all"
    where = f"cluster {cluster.name!r} ({cluster.bootstrap_servers})"
    code = error.code() if error is not None else None
    advertised = _ADVERTISED.match(said.partition(", ")[2])
    if code in _HOPELESS and code != KafkaError._SSL:
        what = f"{where} refused the credentials"
        fix = "Check sasl.mechanisms, sasl.username and what sasl.password refers to, and the user's rights."
    elif code == KafkaError._SSL or "SSL" in said:
        what = f"TLS with {where} failed"
        fix = "Check security.protocol, ssl.ca.location and the name in the brokers' certificates."
    elif "security.protocol" in said or (hang_up and error is None):
        what = f"{where} closes the connection, as brokers do when the client uses another security protocol"
        fix = "Set security.protocol to the listener's: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."
    elif advertised is not None and code in (KafkaError._RESOLVE, KafkaError._TRANSPORT):
        what = (
            f"{where} answers, and names broker {advertised['id']} as {advertised['address']}, an address that this "
            "machine cannot use"
        )
        fix = (
            "It comes from advertised.listeners of that broker, for the listener of the bootstrap servers. Set there "
            "what clients can reach, or name the bootstrap servers of another listener."
        )
    elif code == KafkaError._RESOLVE:
        what = f"{where} cannot be found"
        fix = "Check the host names, and that this machine's name service knows them."
    else:
        after = "" if timeout is None else f" within {timeout:g} s"
        what = f"{where} cannot be reached{after}"
        fix = "Check the bootstrap servers, and that the brokers run and can be reached from this machine."
    return PreflightError(f"{what[0].upper()}{what[1:]}: {said}. Nothing was started and no data was touched. {fix}")


def _said(error: KafkaError) -> str:
    text = error.str().strip().rstrip(".")
    return f"{error.name()}, {text}" if text else error.name()
