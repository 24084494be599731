"""Questions to a cluster, with plain clients: offsets, open transactions, records. Changes nothing.

Shares no code with the sources and the sinks.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType
from kafka import KafkaAdminClient
from kafka.admin import TransactionState
from kafka.errors import KafkaError as ControlError

from onceward.common.backoff import Backoff
from onceward.connections.admin import admin_client, answered_offset
from onceward.connections.cluster import KafkaCluster, Setting
from onceward.operate.verify.history import Lane, PartitionEnd

__all__ = ["ClusterView", "Raw", "Reader", "read_range"]

_T = TypeVar("_T")
_ANSWER_S = 15.0
_LISTED_S = 40.0
"""Longer than kafka-python's own limits, 30 s."""
_PATIENCE_S = 60.0
"""Covers a restart of brokers."""
_SILENCE_S = 5.0
"""After so long without a message a reader asks whether it still knows a broker."""
_AT_REST = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
_NEVER_LOST: Mapping[str, Setting] = {"metadata.recovery.strategy": "rebootstrap"}
"""A client that no longer knows any broker starts again from its bootstrap servers."""
_SETTINGS: Mapping[str, Setting] = {
    **_NEVER_LOST,
    "group.id": "onceward-verify",
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "check.crcs": True,
    "fetch.wait.max.ms": 50,
    "fetch.queue.backoff.ms": 10,
    "log_level": 0,
}
_HOPELESS = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
    }
)


class Raw(NamedTuple):
    """A record, byte for byte."""

    lane: Lane
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    """Only if the reader was made with ``headers=True``; so is ``timestamp``."""
    timestamp: int = 0
    """Milliseconds."""


class ClusterView:
    """Questions to one cluster. Each call raises KafkaException after a minute without an answer."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.cluster = cluster
        self._admin: AdminClient = admin_client(cluster, **_NEVER_LOST)

    def lanes(self, topics: Sequence[str]) -> list[Lane]:
        """Return all partitions. Raises KafkaException when a topic does not exist for a minute."""

        def ask() -> list[Lane]:
            known = self._admin.list_topics(timeout=_ANSWER_S).topics
            absent = [name for name in topics if name not in known or known[name].error is not None]
            if absent:
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, f"no topic {', '.join(absent)}"))
            return [Lane(name, number) for name in topics for number in sorted(known[name].partitions)]

        return _asked_again(ask)

    def absent(self, topics: Sequence[str]) -> list[str]:
        """Return those topics that are not there now, or that this user may not see."""

        def ask() -> list[str]:
            known = self._admin.list_topics(timeout=_ANSWER_S).topics
            return [name for name in topics if name not in known or known[name].error is not None]

        return _asked_again(ask)

    def beginnings(self, topics: Sequence[str]) -> dict[Lane, int]:
        """Return the lowest offset of every partition."""
        return self._offsets(topics, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)

    def ends(self, topics: Sequence[str]) -> list[PartitionEnd]:
        """Return high watermark and last stable offset of every partition; the latter is read first, so never ahead."""
        stable = self._offsets(topics, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
        high = self._offsets(topics, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        return [PartitionEnd(lane, high[lane], stable[lane]) for lane in sorted(stable)]

    def identity(self, topics: Sequence[str]) -> tuple[str, Mapping[str, str]]:
        """Return the ids of the cluster and of the topics: a topic that was deleted and recreated has a new id."""

        def ask() -> tuple[str, Mapping[str, str]]:
            cluster = self._admin.describe_cluster(request_timeout=_ANSWER_S).result(_ANSWER_S)
            found = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=_ANSWER_S)
            ids = {name: _kafka_id(each.result(_ANSWER_S).topic_id) for name, each in found.items()}
            return str(cluster.cluster_id), ids

        return _asked_again(ask)

    def compacted(self, topics: Sequence[str]) -> list[str]:
        """Return the topics from whose middle the brokers may remove records, or whose settings may not be read."""

        def ask() -> list[str]:
            wanted = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
            answers = self._admin.describe_configs(wanted, request_timeout=_ANSWER_S)
            return [
                str(resource.name)
                for resource, answer in answers.items()
                if str(answer.result(_ANSWER_S)["cleanup.policy"].value) != "delete"
            ]

        return _asked_again(ask)

    def open_transactions(self, job: str) -> Mapping[str, str]:
        """Return the transactional ids of ``job`` that are neither committed nor aborted -> state at the broker."""

        def listing() -> Mapping[int, Sequence[Any]]:
            admin = KafkaAdminClient(**self.cluster.control_config())
            try:
                listed: Mapping[int, Sequence[Any]] = admin.list_transactions()
            finally:
                admin.close()
            return listed

        def ask() -> Mapping[str, str]:
            listed = _within(_LISTED_S, listing)
            found = {
                str(one.transactional_id): str(TransactionState(one.state).value)
                for per_broker in listed.values()
                for one in per_broker
            }
            return {
                name: state
                for name, state in sorted(found.items())
                if name.startswith(f"{job}.") and state not in _AT_REST
            }

        return _asked_again(ask)

    def _offsets(self, topics: Sequence[str], spec: OffsetSpec, level: IsolationLevel) -> dict[Lane, int]:
        def ask() -> dict[Lane, int]:
            wanted = {TopicPartition(*lane): spec for lane in self.lanes(topics)}
            answers = self._admin.list_offsets(wanted, isolation_level=level, request_timeout=_ANSWER_S)
            return {
                Lane(partition.topic, partition.partition): answered_offset(answer.result(_ANSWER_S))
                for partition, answer in answers.items()
            }

        return _asked_again(ask)


def _within(limit_s: float, work: Callable[[], _T]) -> _T:
    """Limit a call into a library that waits forever on an unanswered TLS handshake (kafka-python 3.0.12); its thread
    is then left behind. Raises TimeoutError, and the errors of ``work``."""
    done: Future[_T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            done.set_exception(error)

    threading.Thread(target=run, name="onceward-verify", daemon=True).start()
    return done.result(limit_s)


def _asked_again(ask: Callable[[], _T]) -> _T:
    """Call ``ask`` with retries: leaders and coordinators need a moment after a creation, a move or a restart."""
    limit = time.monotonic() + _PATIENCE_S
    backoff = Backoff(first=0.1, longest=1.0)
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() in _HOPELESS or time.monotonic() > limit:
                raise
        except (ControlError, TimeoutError) as error:
            if time.monotonic() > limit:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, str(error))) from error
        time.sleep(backoff.next())


class Reader:
    """A ``read_committed`` reader without a group, so the brokers store nothing about it. A context manager."""

    def __init__(self, cluster: KafkaCluster, *, headers: bool = False) -> None:
        self._cluster = cluster
        self._headers = headers
        self._consumer = self._connected()
        self._heard_at = time.monotonic()
        self._assigned: set[Lane] = set()
        self.reached: dict[Lane, int] = {}
        """Every record below this offset was returned, or never will be."""

    def add(self, starts: Mapping[Lane, int]) -> None:
        """Also read these partitions, from these offsets on."""
        new = {lane: start for lane, start in starts.items() if lane not in self.reached}
        if not new:
            return
        self.reached.update(new)
        self._assign(new)

    def drop(self, lane: Lane) -> None:
        """Stop reading this partition."""
        self._assigned.discard(lane)
        self._consumer.incremental_unassign([TopicPartition(*lane)])

    def read(self, timeout_s: float = 0.1) -> list[Raw]:
        """Return the arrived records; each partition in order. Raises KafkaException for errors that retrying cannot
        cure."""
        records = []
        messages = self._consumer.consume(5_000, timeout_s)
        if messages:
            self._heard_at = time.monotonic()
        elif self._assigned and time.monotonic() - self._heard_at > _SILENCE_S:
            self._reconnect_if_lost()
        for message in messages:
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                if error.fatal() or error.code() in (KafkaError._AUTO_OFFSET_RESET, *_HOPELESS):
                    raise KafkaException(error)
                continue
            lane, offset = Lane(message.topic() or "", _number(message.partition())), _number(message.offset())
            if error is not None:
                self.reached[lane] = max(offset, self.reached[lane])
                continue
            self.reached[lane] = offset + 1
            record = Raw(lane, offset, _bytes(message.key()), _bytes(message.value()))
            records.append(_with_headers(record, message) if self._headers else record)
        return records

    def close(self) -> None:
        self._consumer.close()

    def _connected(self) -> Consumer:
        return Consumer(self._cluster.client_config(**_SETTINGS))

    def _assign(self, lanes: Iterable[Lane]) -> None:
        self._assigned.update(lanes)
        self._consumer.incremental_assign([TopicPartition(*lane, self.reached[lane]) for lane in lanes])

    def _reconnect_if_lost(self) -> None:
        """Replace a consumer that has dropped all its brokers: ``rebootstrap`` does not always bring them back."""
        with suppress(KafkaException):
            if self._consumer.list_topics(next(iter(self._assigned)).topic, timeout=_ANSWER_S).brokers:
                self._heard_at = time.monotonic()
                return
        self._heard_at = time.monotonic()
        self._consumer.close()
        self._consumer = self._connected()
        self._assign(self._assigned)

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _kafka_id(topic_id: object) -> str:
    """Return the id as Kafka's own tools print it: librdkafka writes the same bytes in the other base64 alphabet."""
    return str(topic_id).replace("+", "-").replace("/", "_")


def _number(value: int | None) -> int:
    assert value is not None
    return value


def _with_headers(record: Raw, message: Message) -> Raw:
    pairs: Any = message.headers() or ()  # pairs, or a mapping by the stubs
    return record._replace(headers=[(name, _bytes(value)) for name, value in pairs], timestamp=message.timestamp()[1])


def _bytes(part: bytes | str | None) -> bytes | None:
    return part.encode() if isinstance(part, str) else part


def read_range(
    cluster: KafkaCluster,
    starts: Mapping[Lane, int],
    ends: Mapping[Lane, int],
    *,
    stuck_s: float = _PATIENCE_S,
    headers: bool = False,
) -> Iterator[Raw]:
    """Yield all records of ``[starts, ends)``, each partition in order.

    Raises KafkaException when records are deleted meanwhile, and when nothing arrives for ``stuck_s``.
    """
    waiting = {lane for lane, end in ends.items() if starts.get(lane, 0) < end}
    with Reader(cluster, headers=headers) as reader:
        reader.add({lane: starts.get(lane, 0) for lane in waiting})
        moved = time.monotonic()
        while waiting:
            before = dict(reader.reached)
            for one in reader.read():
                if one.offset < ends[one.lane]:
                    yield one
            for lane in [lane for lane in waiting if reader.reached[lane] >= ends[lane]]:
                waiting.discard(lane)
                reader.drop(lane)
            if reader.reached != before:
                moved = time.monotonic()
            elif time.monotonic() - moved > stuck_s:
                where = ", ".join(f"{lane} at {reader.reached[lane]} of {ends[lane]}" for lane in sorted(waiting))
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no record arrives: {where}"))
