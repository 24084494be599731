"""Checks whether the local Kafka is usable: not only that a port is open, but that the cluster is operational."""

import socket
from collections.abc import Collection, Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka.errors import KafkaError, TransactionalIdNotFoundError

from onceward.dev.kafka.settings import NodePorts

__all__ = ["missing"]

# One id for each of the four partitions of the transaction log (Java's String.hashCode modulo 4).
_IDS_OF_EVERY_PARTITION = ("a", "b", "c", "d")
_TIMEOUT_S = 5


def missing(ports: Sequence[NodePorts], nodes: Collection[int], cluster_id: str) -> str | None:
    """Return what the running nodes still lack, or None if the cluster is usable.

    They must listen, know each other and belong to this cluster, have a leader for every partition (if all nodes run),
    and have loaded every partition of the transaction log.
    """
    for node in nodes:
        for port in (ports[node - 1].internal, ports[node - 1].client):
            if not _listens(port):
                return f"broker {node} does not listen on port {port} yet"
    servers = ",".join(f"127.0.0.1:{ports[node - 1].internal}" for node in nodes)
    try:
        return _missing_metadata(servers, nodes, cluster_id, all_run=len(nodes) == len(ports)) or _missing_log(servers)
    except (KafkaException, KafkaError) as error:
        return f"it does not answer properly yet: {error}"


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _missing_metadata(servers: str, nodes: Collection[int], cluster_id: str, *, all_run: bool) -> str | None:
    # A new client each time: its first answer comes from the named nodes, not from what it learned earlier.
    client = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    metadata = client.list_topics(timeout=_TIMEOUT_S)
    if str(metadata.cluster_id) != cluster_id:
        return f"another cluster ({metadata.cluster_id}) answers on its ports"
    if unregistered := sorted(set(nodes) - set(metadata.brokers)):
        return f"brokers {unregistered} are not registered yet"
    headless = [
        f"{topic.topic}[{partition.id}]"
        for topic in metadata.topics.values()
        for partition in topic.partitions.values()
        if partition.leader < 0
    ]
    return f"{', '.join(headless)} have no leader yet" if all_run and headless else None


def _missing_log(servers: str) -> str | None:
    """Return what the transaction log lacks, or None. The request creates the log and leaves nothing else behind."""
    client = KafkaAdminClient(
        bootstrap_servers=servers.split(","),
        bootstrap_timeout_ms=_TIMEOUT_S * 1000,
        request_timeout_ms=_TIMEOUT_S * 1000,
    )
    try:
        for transactional_id in _IDS_OF_EVERY_PARTITION:
            try:
                client.describe_transactions([transactional_id])
            except TransactionalIdNotFoundError:
                continue
            except KafkaError as error:
                return f"its transaction log is not ready yet: {error}"
    finally:
        client.close()
    return None
