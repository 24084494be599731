"""Writes the archive of the broker's classes: brokers that start from it need half the time."""

from pathlib import Path

from confluent_kafka import Producer

from onceward.common.jvm.archives import archive_written
from onceward.dev.errors import LocalKafkaError
from onceward.dev.kafka.cluster import LocalKafka
from onceward.dev.kafka.jars import broker_jars, class_archive
from onceward.dev.kafka.topics import make_topics

__all__ = ["write_class_archive"]

_TOPIC = "classes"
_LIMIT_S = 60


def write_class_archive() -> Path:
    """Let a broker serve a transaction, and archive the classes that this took; does nothing if the archive exists.

    Raises `LocalKafkaError`.
    """
    archive = class_archive(broker_jars())
    if archive.exists():
        return archive
    try:
        with archive_written(archive) as recorded, LocalKafka(record=recorded) as kafka:
            make_topics(kafka.bootstrap_servers, [_TOPIC], partitions=1, replicas=1)
            configuration = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": _TOPIC, "log_level": 0}
            producer = Producer(configuration)
            producer.init_transactions(_LIMIT_S)
            producer.begin_transaction()
            producer.produce(_TOPIC, b"")
            producer.commit_transaction(_LIMIT_S)
            kafka.shut_down(1)  # the broker writes the archive before it ends
    except OSError as error:
        raise LocalKafkaError(
            f"The archive of the broker's classes could not be written: {error}. Brokers start without it, only slower."
        ) from error
    return archive
