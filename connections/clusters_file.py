"""Kafka clusters as tables of a systems file (``systems_file.py``)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onceward.common.errors import ConfigurationError
from onceward.connections.cluster import KafkaCluster
from onceward.connections.systems_file import read_systems, unusable

__all__ = ["cluster_of", "load_clusters"]


def load_clusters(path: str | Path) -> Mapping[str, KafkaCluster]:
    """Return the Kafka clusters in a systems file by name. Raises ConfigurationError that lists every problem."""
    file = Path(path)
    tables, found = read_systems(file)
    clusters: dict[str, KafkaCluster] = {}
    problems = list(found)
    for name, table in tables.items():
        if table.kind == "kafka":
            try:
                clusters[name] = cluster_of(name, table.content)
            except ConfigurationError as error:
                problems.append(f"{table.heading} {error}")
    if problems or not clusters:
        raise unusable(file, problems or ["no table is of kind kafka"])
    return clusters


def cluster_of(name: str, table: Mapping[str, Any]) -> KafkaCluster:
    """Return the cluster that a table describes. Raises ConfigurationError."""
    unknown = table.keys() - {"bootstrap_servers", "config"}
    if unknown:
        raise ConfigurationError(f"unknown: {', '.join(sorted(unknown))}; known are bootstrap_servers and config")
    # TOML reads dotted keys without quotes as nested tables, and librdkafka's names are full of dots.
    return KafkaCluster(table.get("bootstrap_servers", ""), name=name, config=_flat(table.get("config", {})))


def _flat(table: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ConfigurationError("config must be a table")
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
