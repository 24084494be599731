"""confluent-kafka's admin client on a :class:`KafkaCluster`, and the first contact with a cluster."""

import logging
import time
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo

from onceward.connections.cluster import KafkaCluster, Setting
from onceward.coordinator.errors import ConfigurationError, PreflightError
from onceward.coordinator.printable import logger

__all__ = ["KAFKA_LOGGER", "admin_client", "cluster_id", "reach", "told_offset"]

KAFKA_LOGGER = logger("onceward.kafka")
"""Where Kafka clients log. A client with a logger delivers its lines in ``poll()``: somebody must call it."""

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 2.0
"""For the client to report its own time-out."""
_SETTINGS: Mapping[str, Setting] = {
    # librdkafka sends requests about topics to the controller that it knows of. When that one dies it asks nobody for
    # another before the next refresh, by default 5 min later, and every request times out meanwhile (seen with 2.16.0).
    "topic.metadata.refresh.interval.ms": 1_000,
    # A connection that is made only when a question needs it is made without a pause while the broker refuses it:
    # 8,000 attempts a second (seen with 2.16.0). With this the client connects to every broker, with its usual pauses.
    "enable.sparse.connections": False,
}
"""Unless the cluster's configuration says otherwise."""


def admin_client(cluster: KafkaCluster, **overrides: Setting) -> AdminClient:
    """A new admin client, logging to ``onceward.kafka``. Call its ``poll(0)`` now and then: log lines wait for it.

    Raises ConfigurationError when librdkafka refuses a setting, or a secret is missing.
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
    """The id that the brokers were formatted with. Raises KafkaException when nobody answers in ``timeout`` seconds."""
    question = admin.describe_cluster(request_timeout=timeout)
    try:
        description = question.result(timeout=timeout + _GRACE_SECONDS)
    except FutureTimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
    return str(description.cluster_id)


def told_offset(answer: ListOffsetsResultInfo) -> int:
    """The offset in an answer to ``list_offsets``. Raises KafkaException for an answer that holds none: the client
    gives one without an error when the connection broke before the brokers' came (2.16.1)."""
    if answer.offset == OFFSET_INVALID:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "the answer holds no offset"))
    return int(answer.offset)


def reach(cluster: KafkaCluster, timeout: float = 10.0) -> str:
    """The cluster's id, or one clear reason why the cluster cannot be used, within about ``timeout`` seconds.

    Raises PreflightError telling apart: nobody listens or the name is unknown, credentials refused, TLS or the
    protocol does not fit. Refused credentials and certificates end it at once, everything else is retried until the
    time is over.
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


class _Lines(logging.Handler):
    """Keeps a client's log to itself, but for one thing that the client tells nowhere else: a broker that accepts the
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
    telling = [error for error in errors if error.code() != KafkaError._ALL_BROKERS_DOWN]
    hopeless = [error for error in telling if error.code() in _HOPELESS]
    chosen = hopeless or telling[-1:]
    error = chosen[0] if chosen else None
    said = _said(error) if error is not None else hang_up or "no broker answered at all"
    where = f"cluster {cluster.name!r} ({cluster.bootstrap_servers})"
    code = error.code() if error is not None else None
    if code in _HOPELESS and code != KafkaError._SSL:
        what = f"{where} refused the credentials"
        fix = "Check sasl.mechanisms, sasl.username and what sasl.password refers to, and the user's rights."
    elif code == KafkaError._SSL or "SSL" in said:
        what = f"TLS with {where} failed"
        fix = "Check security.protocol, ssl.ca.location and the name in the brokers' certificates."
    elif "security.protocol" in said or (hang_up and error is None):
        what = f"{where} hangs up on us, which is what brokers do when the security protocol is another one"
        fix = "Set security.protocol to the listener's: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."
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
