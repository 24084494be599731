"""Why the client or the brokers refuse records, for people: each code with the setting behind it, as it is now."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from onceward.connections.cluster import KafkaCluster
from onceward.connectors.interfaces import Refusal
from onceward.sinks.kafka.control.brokers import BATCH_LIMIT, POLICY, Resource, settings, topic_facts, topic_limits
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.errors import ControlPlaneError
from onceward.sinks.kafka.executor.producers import batch_limits, record_bytes

__all__ = ["CODES", "Output", "explain"]

_CODE = re.compile(r"\bcode=(\w+)")
_BY_CLIENT = "The client refused a record"
"""How the executors' part begins when no broker was asked (records.py)."""
_ENDS = (
    *("OUT_OF_ORDER_SEQUENCE_NUMBER", "INVALID_PRODUCER_EPOCH", "INVALID_TXN_STATE", "INVALID_PRODUCER_ID_MAPPING"),
    *("CONCURRENT_TRANSACTIONS", "TRANSACTION_COORDINATOR_FENCED", "UNKNOWN_PRODUCER_ID", "PRODUCER_FENCED"),
    *("TRANSACTION_ABORTABLE", "_FENCED"),
)
"""Codes of a transaction that takes no more records."""
_BEFORE, _AFTER = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"


@dataclass(frozen=True)
class Output:
    """Where the records go. What cannot be asked is said to be unknown."""

    control: ControlPlane
    cluster: KafkaCluster
    topics: Sequence[str]

    def setting(self, key: str) -> str:
        """Return what each topic says, as text."""
        return ", ".join(f"topic {topic} has {key}={self._settings(topic, key)}" for topic in self.topics)

    def sizes(self) -> str:
        limits = {topic: self._settings(topic, BATCH_LIMIT) for topic in self.topics}
        return ", ".join(f"topic {topic} takes {limit} bytes ({BATCH_LIMIT})" for topic, limit in limits.items())

    def client_size(self) -> int:
        """Return the bytes of the largest record that the client takes, before compression."""
        return record_bytes(self.cluster, batch_limits(topic_limits(self.control, self.topics)))

    def partitions(self) -> str:
        try:
            facts = topic_facts(self.control, self.topics)
        except ControlPlaneError:
            return "an unknown number of partitions"
        return ", ".join(f"topic {topic} has partitions 0 to {facts[topic].partitions - 1}" for topic in self.topics)

    def _settings(self, topic: str, key: str) -> str:
        try:
            found = settings(self.control, Resource.TOPIC, topic, (key,)) or {}
        except ControlPlaneError:
            found = {}
        return found.get(key, "unknown")


def explain(output: Output, cause: str) -> Refusal | None:
    """Explain the refusal that ``cause`` reports; None if it reports none."""
    found = _CODE.search(cause)
    if found is None or found[1] not in CODES:
        return None
    by_record, say = CODES[found[1]]
    if found[1] == "MSG_SIZE_TOO_LARGE" and cause.startswith(_BY_CLIENT):
        say = _too_large_for_the_client
    return Refusal(text=say(output), by_record=by_record)


def _too_large(output: Output) -> str:
    return (
        f"A record is larger than its output topic allows: {output.sizes()}. Raise the limit with kafka-configs, or "
        "make the record smaller in the transform"
    )


def _too_large_for_the_client(output: Output) -> str:
    return (
        f"A record is larger than the client takes, which is {output.client_size()} bytes before compression: "
        f"message.max.bytes of KafkaCluster(config=...), by default the largest {BATCH_LIMIT} of the output topics; "
        f"{output.sizes()}. Raise the one that it exceeds, or make the record smaller in the transform"
    )


def _invalid(output: Output) -> str:
    return (
        f"The brokers find a record invalid. A compacted topic requires keys: {output.setting(POLICY)}. Give every "
        "record a key, or leave out those without one; if all have one, a check of the brokers, such as one against a "
        "schema, rejects it"
    )


def _time(output: Output) -> str:
    return (
        f"A record's timestamp is too far from now: {output.setting(_AFTER)}, {output.setting(_BEFORE)}. Correct it or "
        "leave the column timestamp out in the transform, or raise these limits with kafka-configs"
    )


def _partition(output: Output) -> str:
    return (
        f"The column partition names a partition that is not there: {output.partitions()}. Leave the column out in the "
        "transform, which lets the key decide, or add partitions to the topic"
    )


def _too_few_replicas(output: Output) -> str:
    return (
        f"Too few replicas of an output topic are in sync: {output.setting('min.insync.replicas')}. Restore the "
        "brokers that have its replicas"
    )


def _said(text: str) -> Callable[[Output], str]:
    return lambda output: text.format(topics=", ".join(f"topic {name}" for name in output.topics))


_ended = _said(
    "The brokers take no more records of this transaction for {topics}: it has timed out, a newer generation has ended "
    "it, or a broker has lost its state. The job writes the records again, in another one. If that repeats, "
    "look for a second program with this job's name, and at the brokers' logs"
)
_not_understood = _said(
    "The brokers do not understand the request that writes to {topics}. Run them at a version that Onceward supports, "
    "and remove what stands between them and the executors"
)

CODES: Final[Mapping[str, tuple[bool, Callable[[Output], str]]]] = {
    "MSG_SIZE_TOO_LARGE": (True, _too_large),
    "RECORD_LIST_TOO_LARGE": (
        True,
        lambda output: (
            f"A batch is larger than a segment of its output topic: {output.setting('segment.bytes')}. Raise it with "
            "kafka-configs, or lower batch.size in KafkaCluster(config=...)"
        ),
    ),
    "INVALID_RECORD": (True, _invalid),
    "INVALID_TIMESTAMP": (True, _time),
    "_UNKNOWN_PARTITION": (True, _partition),
    "POLICY_VIOLATION": (
        True,
        _said(
            "A policy of the brokers rejects a record for {topics}. Ask the operators of the brokers what it demands"
        ),
    ),
    "UNSUPPORTED_FOR_MESSAGE_FORMAT": (
        True,
        lambda output: (
            f"An output topic keeps an old format of records: {output.setting('message.format.version')}. Raise it, or "
            "leave the column headers out in the transform"
        ),
    ),
    "INVALID_MSG": (
        True,
        _said("The brokers find a batch for {topics} damaged. Look at the network between executors and brokers"),
    ),
    "UNSUPPORTED_COMPRESSION_TYPE": (
        False,
        _said("The brokers do not support the compression. Set compression.type in KafkaCluster(config=...)"),
    ),
    "TOPIC_AUTHORIZATION_FAILED": (
        False,
        _said("The executors' user may not write to an output topic. Grant WRITE on {topics}"),
    ),
    "CLUSTER_AUTHORIZATION_FAILED": (
        False,
        _said("The executors' user may not write with idempotence. Grant WRITE on {topics}, or IDEMPOTENT_WRITE"),
    ),
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": (
        False,
        _said(
            "The executors' user may not use the job's transactional ids. Grant WRITE on the prefix of the job's name"
        ),
    ),
    "UNKNOWN_TOPIC_OR_PART": (
        False,
        _said("An output topic or one of its partitions is gone: {topics}. Create it again"),
    ),
    "_UNKNOWN_TOPIC": (False, _said("An output topic is gone: {topics}. Create it again")),
    "TOPIC_EXCEPTION": (
        False,
        _said("The brokers do not let clients write to an output topic: {topics}. Choose another"),
    ),
    "NOT_ENOUGH_REPLICAS": (
        False,
        _too_few_replicas,
    ),
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": (
        False,
        _too_few_replicas,
    ),
    "KAFKA_STORAGE_ERROR": (
        False,
        _said("A disk of the brokers that lead {topics} fails. Look at their logs"),
    ),
    "UNKNOWN": (False, _said("A broker that leads {topics} fails with an error of its own. Look at its log")),
    "UNKNOWN_TOPIC_ID": (
        False,
        _said("An output topic was deleted and created again: {topics}. Start the job again, which compares both"),
    ),
    **dict.fromkeys(("INVALID_REQUIRED_ACKS", "INVALID_REQUEST", "UNSUPPORTED_VERSION"), (False, _not_understood)),
    **dict.fromkeys(_ENDS, (False, _ended)),
    "_MSG_TIMED_OUT": (
        False,
        lambda output: (
            "The brokers did not confirm records in time. Look for partitions without a leader, or with fewer replicas "
            f"in sync than they must have: {output.setting('min.insync.replicas')}"
        ),
    ),
}
"""Code -> whether one record may be the cause, and what to say."""
