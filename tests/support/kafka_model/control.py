"""The product's control plane on the modelled brokers."""

from collections.abc import Sequence
from typing import Any

from kafka.protocol.admin import ListTransactionsRequest
from kafka.protocol.producer import EndTxnRequest

from onceward import KafkaCluster
from onceward.sinks.kafka.control.control_plane import ControlPlane, Request
from tests.support.kafka_model.cluster import Cluster
from tests.support.kafka_model.transport import Call, Transport

__all__ = ["SimControl"]

_HIGHEST: dict[type, int] = {EndTxnRequest: 5, ListTransactionsRequest: 2}
"""Versions of Kafka 4.3, whatever the cluster's transaction version."""


class SimControl(ControlPlane):
    """The product's own code except for the sockets."""

    def __init__(self, cluster: Cluster, transport: Transport, *, described: KafkaCluster | None = None) -> None:
        """`described`: how the job names the cluster."""
        super().__init__(described or KafkaCluster("simulated:9092"))
        self._brokers = cluster
        self._transport = transport

    def highest_version(self, request: type) -> int:
        return _HIGHEST[request]

    def send_all(self, requests: Sequence[tuple[int | None, Request]]) -> list[Any]:
        brokers = self._brokers
        return self._transport.send([Call(cluster=brokers, node=node, request=request) for node, request in requests])

    def close(self) -> None:
        """Nothing to close: no connection is kept."""
