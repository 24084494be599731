"""Topics of a local Kafka, for users without Kafka's own tools. Needs confluent-kafka."""

import time
from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from onceward.dev.errors import LocalKafkaError

__all__ = ["BROKERS_DEFAULT", "make_topics"]

BROKERS_DEFAULT = -1
"""As number of replicas: what the brokers' settings say."""

_LIMIT_S = 30.0
_PAUSE_S = 0.05


def make_topics(servers: str, names: Sequence[str], *, partitions: int, replicas: int) -> None:
    """Create the missing topics, and wait until they are usable. Raises `LocalKafkaError`."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    limit = time.monotonic() + _LIMIT_S
    try:
        wanted = [NewTopic(name, partitions, replicas) for name in dict.fromkeys(names)]
        for name, made in admin.create_topics(wanted, operation_timeout=_LIMIT_S, request_timeout=_LIMIT_S).items():
            try:
                made.result(_LIMIT_S + 1)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise LocalKafkaError(f"Topic {name} was not made: {error.args[0].str()}") from error
        while not admin.list_topics(timeout=_LIMIT_S).topics.keys() >= set(names):
            if time.monotonic() > limit:
                raise LocalKafkaError(
                    f"The broker does not know its new topics after {_LIMIT_S:.0f} s. Start it again."
                )
            time.sleep(_PAUSE_S)
    except (KafkaException, TimeoutError) as error:
        raise LocalKafkaError(f"The topics were not made, because the broker does not answer: {error}") from error
