"""Kafka clusters as tables of a systems file (``systems_file.py``)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onceward.common.errors import ConfigurationError
from onceward.connections.cluster import KafkaCluster
from onceward.connections.systems_file import read_systems

__all__ = ["cluster_of", "load_clusters"]


def load_clusters(path: str | Path) -> Mapping[str, KafkaCluster]:
    """Return the Kafka clusters in a systems file by name. Raises ConfigurationError that lists every problem."""
    return read_systems(Path(path), lambda table: cluster_of(table.name, table.content), only="kafka")


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
