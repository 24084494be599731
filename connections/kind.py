"""Kafka as a kind of system (entry point ``onceward.systems``)."""

from typing import Final

from onceward.protocol.kinds import Kind

__all__ = ["KAFKA"]

KAFKA: Final = Kind(
    documents={
        "kafka-positions": "onceward.sources.kafka.positions:check_positions",
        "kafka-transaction": "onceward.sinks.kafka.documents:check_committable",
    },
    positions={
        "kafka-positions": "onceward.sources.kafka.positions:skip_to",
        "kafka-letters": "onceward.sources.kafka.letters:skip_to",
    },
    configuration="onceward.connections.clusters_file:cluster_of",
    system="onceward.sinks.kafka.control.system:KafkaSystem.open",
    doctor=("onceward.sinks.kafka.driver.doctor:examine", "onceward.sources.kafka.driver.checks:examine"),
    letters="onceward.sources.kafka.driver.letters:LetterSource",
    sink="onceward.sinks.kafka.driver.sink:KafkaSink",
)
