"""One description of a Kafka cluster for both of its clients."""

from connections.cluster import KafkaCluster
from connections.clusters_file import load_clusters

__all__ = ["KafkaCluster", "load_clusters"]
