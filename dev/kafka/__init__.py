"""A real Kafka on this machine, from its published jars: for the demo, the tests and ``onceward dev kafka``."""

from onceward.dev.errors import LocalKafkaError
from onceward.dev.kafka.cluster import LocalKafka
from onceward.dev.kafka.command import run_dev_kafka

__all__ = ["LocalKafka", "LocalKafkaError", "run_dev_kafka"]
