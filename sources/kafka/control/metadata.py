"""The driver's requests to the brokers: topics, their ids and partitions, ends of logs, a group's offsets.

Every call has a deadline. Temporary failures (an election, an unavailable broker) raise CheckpointFailedError: nothing
was read, and the next checkpoint retries. Permanent ones are distinguished from these.
"""

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from onceward.common.backoff import Backoff
from onceward.common.errors import CheckpointFailedError
from onceward.common.links import Links
from onceward.connections.admin import KAFKA_LOGGER, admin_client, answered_offset, cluster_id
from onceward.connections.cluster import KafkaCluster, Setting
from onceward.sources.kafka.positions import Partition

__all__ = ["BrokerView", "LogEnd", "TopicState", "insist"]

_T = TypeVar("_T")

_LATEST: OffsetSpec = OffsetSpec.latest()
_EARLIEST: OffsetSpec = OffsetSpec.earliest()
_UNKNOWN_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
_REFUSED_TOPIC = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED})
_SILENT = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE})
_REQUEST_SECONDS = 10.0
_ASK_AGAIN_SECONDS = 0.1
_ASK_AGAIN_AT_MOST_SECONDS = 1.0
_GRACE_SECONDS = 2.0
"""Extra time for the client to report its own timeout."""


@dataclass(frozen=True, kw_only=True)
class TopicState:
    id: str
    partitions: tuple[int, ...]
    operations: frozenset[str]
    """Operations that this user may perform on the topic: names of Kafka's ACL operations."""
    replication: int
    """The smallest number of replicas of any partition."""


class LogEnd(NamedTuple):
    offset: int
    leader: int | None
    """Epoch of the leader that reported it; None from brokers too old to report it."""


def insist(
    ask: Callable[[Collection[Partition]], dict[Partition, _T]],
    partitions: Collection[Partition],
    *,
    patience: float = 8.0,
) -> dict[Partition, _T]:
    """Return answers for all of ``partitions``; retries those left out, for ``patience`` seconds.

    Right after a topic is created or a broker restarted, some leaders are unknown for a moment. Raises
    CheckpointFailedError naming the partitions that stayed without an answer.
    """
    found: dict[Partition, _T] = {}
    missing = sorted(set(partitions))
    deadline = time.monotonic() + patience
    backoff = Backoff(first=_ASK_AGAIN_SECONDS, longest=_ASK_AGAIN_AT_MOST_SECONDS)
    while missing:
        try:
            found |= ask(missing)
        except CheckpointFailedError:
            if time.monotonic() >= deadline:
                raise
        missing = [partition for partition in missing if partition not in found]
        if missing and time.monotonic() >= deadline:
            raise CheckpointFailedError(
                f"Kafka did not report the offsets of {', '.join(map(str, missing[:10]))} ({len(missing)} partitions) "
                f"for {patience:g} s: their leaders are unavailable. Nothing was read; start the job again to retry."
            )
        if missing:
            time.sleep(backoff.next())
    return found


class BrokerView:
    """One cluster from the driver's view."""

    def __init__(
        self, cluster: KafkaCluster, *, request_timeout: float = _REQUEST_SECONDS, links: Links | None = None
    ) -> None:
        """``links`` records when the cluster stops answering, and when it answers again."""
        self._cluster = cluster
        self._links = links or Links()
        self._link = f"cluster {cluster.name!r} (metadata)"
        self._timeout = request_timeout
        self._admin: AdminClient = admin_client(cluster)
        self._groups: dict[str, Consumer] = {}

    def cluster_id(self) -> str:
        try:
            return cluster_id(self._admin, self._timeout)
        except KafkaException as error:
            raise self._unanswered("the cluster id", error.args[0]) from None

    def names(self, pattern: re.Pattern[str]) -> frozenset[str]:
        """Return the topics whose whole name matches, without Kafka's internal ones."""
        self._admin.poll(0)
        try:
            listed = self._admin.list_topics(timeout=self._timeout)
        except KafkaException as error:
            raise self._unanswered("the list of topics", error.args[0]) from None
        return frozenset(name for name in listed.topics if pattern.fullmatch(name) and not name.startswith("__"))

    def topics(self, names: Collection[str]) -> dict[str, TopicState]:
        """Return the topics that exist. Raises CheckpointFailedError for one that this user may not describe: only who
        may describe it knows whether it exists."""
        return self._answered_topics(self._ask_topics(names), refused=frozenset())

    def visible_topics(self, names: Collection[str]) -> dict[str, TopicState]:
        """Return the topics that exist for this user. One that the user may not describe counts as missing."""
        return self._answered_topics(self._ask_topics(names), refused=_REFUSED_TOPIC)

    def _ask_topics(self, names: Collection[str]) -> dict[str, "Future[Any]"]:
        self._admin.poll(0)  # delivers log lines, which would otherwise accumulate
        if not names:
            return {}
        collection = TopicCollection(sorted(names))
        return self._admin.describe_topics(
            collection, include_authorized_operations=True, request_timeout=self._timeout
        )

    def _answered_topics(
        self, questions: Mapping[str, "Future[Any]"], *, refused: frozenset[int]
    ) -> dict[str, TopicState]:
        found: dict[str, TopicState] = {}
        for name, question in questions.items():
            try:
                answer = self._wait(question, f"topic {name}")
            except KafkaException as error:
                if error.args[0].code() in _UNKNOWN_TOPIC | refused:
                    continue
                raise self._unanswered(f"topic {name}", error.args[0]) from None
            found[name] = TopicState(
                id=_kafka_id(answer.topic_id),
                partitions=tuple(sorted(partition.id for partition in answer.partitions)),
                operations=frozenset(operation.name for operation in answer.authorized_operations or ()),
                replication=min((len(partition.replicas) for partition in answer.partitions), default=0),
            )
        return found

    def topic_settings(self, names: Collection[str], keys: Collection[str]) -> dict[str, dict[str, str] | None]:
        """Return the settings of each topic; None if this user may not read them."""
        self._admin.poll(0)
        if not names:
            return {}
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in sorted(names)]
        found: dict[str, dict[str, str] | None] = {}
        for resource, question in self._admin.describe_configs(resources, request_timeout=self._timeout).items():
            try:
                entries = self._wait(question, f"the settings of topic {resource.name}")
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise self._unanswered(f"the settings of topic {resource.name}", error.args[0]) from None
                found[str(resource.name)] = None
                continue
            found[str(resource.name)] = {key: str(entries[key].value) for key in keys if key in entries}
        return found

    def led_ends(self, partitions: Iterable[Partition]) -> dict[Partition, LogEnd]:
        """Return the end of what a ``read_committed`` reader may see (last stable offset), with the leader's epoch.
        Omits partitions whose leader did not answer."""
        return self._reported(partitions, _LATEST, IsolationLevel.READ_COMMITTED)

    def committed_ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the same ends without the leader's epoch."""
        return self._offsets(partitions, _LATEST, IsolationLevel.READ_COMMITTED)

    def high_watermarks(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the end of the log, including open transactions."""
        return self._offsets(partitions, _LATEST, IsolationLevel.READ_UNCOMMITTED)

    def log_starts(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return self._offsets(partitions, _EARLIEST, IsolationLevel.READ_UNCOMMITTED)

    def first_at(self, partitions: Iterable[Partition], milliseconds: int) -> dict[Partition, int | None]:
        """Return the first offset with this timestamp (ms since 1970) or a later one; None if there is none yet."""
        spec = OffsetSpec.for_timestamp(milliseconds)
        found = self._offsets(partitions, spec, IsolationLevel.READ_COMMITTED)
        return {partition: None if offset < 0 else offset for partition, offset in found.items()}

    def _offsets(
        self, partitions: Iterable[Partition], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[Partition, int]:
        return {partition: end.offset for partition, end in self._reported(partitions, spec, isolation).items()}

    def _reported(
        self, partitions: Iterable[Partition], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[Partition, LogEnd]:
        self._admin.poll(0)
        wanted = {ClientPartition(p.topic, p.number): spec for p in partitions}
        if not wanted:
            return {}
        questions = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=self._timeout)
        found: dict[Partition, LogEnd] = {}
        last_error: KafkaError | None = None
        for partition, question in questions.items():
            try:
                answer = self._wait(question, f"the offsets of {partition.topic}-{partition.partition}")
                end = LogEnd(answered_offset(answer), answer.leader_epoch)
            except KafkaException as error:
                last_error = error.args[0]
                continue
            found[Partition(partition.topic, partition.partition)] = end
        if not found and last_error is not None:
            raise self._unanswered(f"offsets of {len(wanted)} partitions", last_error)
        return found

    def committed(self, group: str, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Return the offsets that the consumer group committed; omits partitions without one.

        Waits for open transactions of other programs that commit offsets of the group, because their result is unknown.
        Uses a consumer: the admin client of librdkafka 2.16.0 crashes the process if the group's coordinator is briefly
        unavailable.
        """
        owned: dict[str, Setting] = {
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
        consumer = Consumer(self._cluster.client_config(**owned), logger=KAFKA_LOGGER)
        wanted = [ClientPartition(p.topic, p.number) for p in partitions]
        try:
            answer = consumer.committed(wanted, timeout=self._timeout)
        except KafkaException as error:
            if _lacks_group(consumer):
                raise CheckpointFailedError(
                    f"This user may not read the offsets of consumer group {group!r}: GROUP_AUTHORIZATION_FAILED. "
                    f'Nothing was read. Grant READ on Group {group!r}, or give another start than "group".'
                ) from None
            raise self._unanswered(f"offsets of group {group}", error.args[0]) from None
        finally:
            consumer.close()
        found: dict[Partition, int] = {}
        for partition in answer:
            if partition.error is not None:
                raise self._unanswered(f"offsets of group {group}", partition.error)
            if partition.offset >= 0:
                found[Partition(partition.topic, partition.partition)] = partition.offset
        return found

    def commit(self, group: str, offsets: Mapping[Partition, int]) -> list[ClientPartition]:
        """Set a group's offsets. The broker refuses while the group has members. Raises KafkaException.

        Uses a consumer that never joins: requests of librdkafka's admin client to a group's coordinator end the process
        (an assertion) if the connection breaks, up to 2.16.0 at least (confluentinc/librdkafka#4605).
        """
        if group not in self._groups:
            owned: dict[str, Setting] = {"group.id": group, "enable.auto.commit": False, "log_level": 0}
            self._groups[group] = Consumer(self._cluster.client_config(**owned))
        consumer = self._groups[group]
        targets = [ClientPartition(p.topic, p.number, offset) for p, offset in offsets.items()]
        try:
            return consumer.commit(offsets=targets, asynchronous=False) or []
        except KafkaException as error:
            if error.args[0].code() < 0:  # the client's own, not a broker's
                self._groups.pop(group, None)  # replaced, like the admin client in `_unanswered`
            raise

    def _wait(self, question: "Future[_T]", what: str) -> _T:
        try:
            answer = question.result(timeout=self._timeout + _GRACE_SECONDS)
            self._links.worked(self._link)
            return answer
        except FutureTimeoutError:
            raise self._unanswered(what, None) from None

    def _unanswered(self, what: str, error: KafkaError | None) -> CheckpointFailedError:
        said = "no answer" if error is None else f"{error.name()}, {error.str()}"
        if error is None or error.code() in _SILENT:
            self._links.failed(self._link, said, waiting=what)
            # The client forgets all brokers if the remaining ones list none (see `Rebootstrap`).
            self._admin = admin_client(self._cluster)
        return CheckpointFailedError(
            f"Kafka cluster {self._cluster.name!r} ({self._cluster.bootstrap_servers}) did not report {what}: {said}. "
            "Nothing was read; jobs and streaming queries try again. If this persists, check that the brokers run and "
            "that the user may describe the topics."
        )


def _lacks_group(consumer: Consumer) -> bool:
    """Return whether the brokers refused the group: the client reports that as an event, and its request times out."""
    while (event := consumer.poll(0)) is not None:
        error = event.error()
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return True
    return False


def _kafka_id(topic_id: object) -> str:
    """Convert an id to the form that Kafka's tools print: librdkafka uses the other base64 alphabet."""
    return str(topic_id).replace("+", "-").replace("/", "_")
