"""What the brokers report about themselves: topics, settings, permissions."""

from collections.abc import Collection, Mapping
from enum import IntEnum

from kafka.protocol.admin import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)

from onceward.connections.codes import ErrorCode
from onceward.connections.topics import TopicFacts, cluster_facts, metadata_request
from onceward.sinks.kafka.control.control_plane import ControlPlane, NoAnswer, Operation
from onceward.sinks.kafka.errors import ControlPlaneError
from onceward.sinks.kafka.topic_limits import TopicLimits

__all__ = [
    "BATCH_LIMIT",
    "POLICY",
    "Resource",
    "broker_settings",
    "create_topic",
    "describing_topics",
    "known_brokers",
    "requires_keys",
    "settings",
    "topic_facts",
    "topic_limits",
]


class Resource(IntEnum):
    """The kind of resource whose settings are read."""

    TOPIC = 2
    BROKER = 4


def topic_facts(control: ControlPlane, names: Collection[str] | None) -> dict[str, TopicFacts]:
    """Return existence, size and permissions of topics; None: of all that are not the brokers' own. Creates nothing.
    Raises ControlPlaneError."""
    return control.run(describing_topics(control, names))


def describing_topics(control: ControlPlane, names: Collection[str] | None) -> Operation[dict[str, TopicFacts]]:
    """See :func:`topic_facts`."""
    if names is not None and not names:
        return {}
    found = cluster_facts((yield from control.asking(metadata_request(names)))).topics
    return {name: topic for name, topic in found.items() if names is not None or not topic.internal}


def known_brokers(control: ControlPlane) -> set[int]:
    """Return the ids of the brokers that run, and of those that hold a replica of a topic that may be described,
    running or not. Raises ControlPlaneError."""
    found = cluster_facts(control.ask(metadata_request(None)))
    return set(found.brokers).union(*(topic.holders for topic in found.topics.values()))


def create_topic(control: ControlPlane, name: str, *, replication: int, only_asked: bool = False) -> int:
    """Create a topic with one partition, or ask whether that is possible. Returns the error code, 0 also if it exists.
    Raises ControlPlaneError."""
    creatable = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=1, replication_factor=replication, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[creatable], timeout_ms=10_000, validate_only=only_asked)
    answer: CreateTopicsResponse = control.ask(request)
    code = int(answer.topics[0].error_code)
    return ErrorCode.NONE if code == ErrorCode.TOPIC_ALREADY_EXISTS else code


def settings(control: ControlPlane, kind: Resource, name: str, keys: Collection[str]) -> dict[str, str] | None:
    """Return the effective settings, or None if reading them is not allowed or no broker answers."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    request = DescribeConfigsRequest(
        resources=[resource(resource_type=int(kind), resource_name=name, configuration_keys=sorted(keys))],
        include_synonyms=False,
        include_documentation=False,
    )
    node = int(name) if kind is Resource.BROKER else None
    answer: DescribeConfigsResponse | NoAnswer = control.send_all([(node, request)])[0]
    if isinstance(answer, NoAnswer) or answer.results[0].error_code:
        return None
    return {str(entry.name): str(entry.value) for entry in answer.results[0].configs if entry.value is not None}


def topic_limits(control: ControlPlane, topics: Collection[str]) -> tuple[TopicLimits, ...]:
    """Return what each of ``topics`` takes."""
    found = {topic: settings(control, Resource.TOPIC, topic, [BATCH_LIMIT, POLICY]) or {} for topic in topics}
    return tuple(
        TopicLimits(
            topic=topic,
            batch_bytes=int(each[BATCH_LIMIT]) if BATCH_LIMIT in each else None,
            keyed=requires_keys(each),
        )
        for topic, each in found.items()
    )


def requires_keys(found: Mapping[str, str]) -> bool:
    """Return whether a topic with these settings refuses records without a key."""
    return "compact" in found.get(POLICY, "")


def broker_settings(control: ControlPlane, keys: Collection[str]) -> Mapping[str, str] | None:
    """Return the settings of one broker; a sane cluster has the same on all. None if they cannot be read."""
    try:
        nodes = control.nodes()
    except ControlPlaneError:
        return None
    return next((found for node in nodes if (found := settings(control, Resource.BROKER, str(node), keys))), None)


POLICY = "cleanup.policy"
BATCH_LIMIT = "max.message.bytes"
"""A topic's limit for a whole batch, despite its name."""
