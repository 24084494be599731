"""One description of a Kafka cluster for both of its clients."""

from connections.cluster import KafkaCluster

__all__ = ["KafkaCluster"]
