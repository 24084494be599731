"""Exactly-once checkpoints for PySpark pipelines.

The names below are the public interface. They are loaded when first used, because executors import this package for
its small pure modules and have neither gRPC nor a store.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceward.client.tls import CoordinatorTls
    from onceward.connections.cluster import KafkaCluster
    from onceward.connections.clusters_file import load_clusters
    from onceward.connectors.interfaces import Sink, Source
    from onceward.driver.letters import DeadLetters
    from onceward.driver.output import Output
    from onceward.driver.pipeline import Pipeline
    from onceward.driver.restarts import NO_RESTART, Restart
    from onceward.driver.spark.functions import parse_json
    from onceward.driver.streaming.pipeline import StreamingPipeline
    from onceward.driver.streaming.sink import StreamSink
    from onceward.executor.aside import stateful
    from onceward.executor.letters import DeadLetter, Retry
    from onceward.executor.per_record import per_record
    from onceward.protocol.committing import System
    from onceward.protocol.settings import CheckpointSettings
    from onceward.sinks.delta.driver.sink import DeltaSink
    from onceward.sinks.iceberg.driver.sink import IcebergSink
    from onceward.sinks.kafka.driver.sink import KafkaSink
    from onceward.sinks.postgres.driver.sink import PostgresSink
    from onceward.sources.kafka.driver.format import register
    from onceward.sources.kafka.driver.source import KafkaSource
    from onceward.sources.kafka.driver.table import kafka_table
    from onceward.watch.metrics.endpoint import MetricsEndpoint

__all__ = [
    "NO_RESTART",
    "CheckpointSettings",
    "CoordinatorTls",
    "DeadLetter",
    "DeadLetters",
    "DeltaSink",
    "IcebergSink",
    "KafkaCluster",
    "KafkaSink",
    "KafkaSource",
    "MetricsEndpoint",
    "Output",
    "Pipeline",
    "PostgresSink",
    "Restart",
    "Retry",
    "Sink",
    "Source",
    "StreamSink",
    "StreamingPipeline",
    "System",
    "kafka_table",
    "load_clusters",
    "parse_json",
    "per_record",
    "register",
    "stateful",
]

_HOMES = {
    "NO_RESTART": "driver.restarts",
    "CheckpointSettings": "protocol.settings",
    "System": "protocol.committing",
    "CoordinatorTls": "client.tls",
    "DeadLetter": "executor.letters",
    "DeadLetters": "driver.letters",
    "DeltaSink": "sinks.delta.driver.sink",
    "IcebergSink": "sinks.iceberg.driver.sink",
    "KafkaCluster": "connections.cluster",
    "KafkaSink": "sinks.kafka.driver.sink",
    "KafkaSource": "sources.kafka.driver.source",
    "MetricsEndpoint": "watch.metrics.endpoint",
    "Output": "driver.output",
    "Pipeline": "driver.pipeline",
    "PostgresSink": "sinks.postgres.driver.sink",
    "Restart": "driver.restarts",
    "Retry": "executor.letters",
    "Sink": "connectors.interfaces",
    "Source": "connectors.interfaces",
    "StreamingPipeline": "driver.streaming.pipeline",
    "StreamSink": "driver.streaming.sink",
    "kafka_table": "sources.kafka.driver.table",
    "load_clusters": "connections.clusters_file",
    "parse_json": "driver.spark.functions",
    "per_record": "executor.per_record",
    "stateful": "executor.aside",
    "register": "sources.kafka.driver.format",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        try:
            return getattr(import_module(f"onceward.{_HOMES[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("onceward"):
                raise
            # A coordinator needs none of it, so `pip install onceward` brings neither Spark nor Kafka's clients
            missing = error.name.partition(".")[0]
            extra = "postgres-sink" if missing == "psycopg" else "spark"
            raise ModuleNotFoundError(
                f"{name} needs {missing}, which is not installed. Install it with: pip install 'onceward[{extra}]'",
                name=error.name,
            ) from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
