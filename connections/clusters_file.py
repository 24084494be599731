"""The clusters file of ``onceward serve --clusters``: where a coordinator finds the clusters that it settles on.

[clusters.main]
bootstrap_servers = "kafka-1:9092,kafka-2:9092"

[clusters.main.config]
"security.protocol" = "SASL_SSL"
"sasl.mechanisms" = "SCRAM-SHA-512"
"sasl.username" = "onceward"
"sasl.password" = "file:/run/secrets/kafka"
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onceward.common.errors import ConfigurationError
from onceward.connections.cluster import KafkaCluster

__all__ = ["load_clusters"]


def load_clusters(path: str | Path) -> Mapping[str, KafkaCluster]:
    """Return the clusters by name. Raises ConfigurationError that lists every problem in the file."""
    file = Path(path)
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _unusable(file, [error.strerror or "it cannot be read"]) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _unusable(file, [f"it is not TOML: {error}"]) from None
    tables = content.pop("clusters", None)
    problems = [f"{key}: unknown, only tables [clusters.NAME] belong here" for key in content]
    if not isinstance(tables, dict) or not tables:
        raise _unusable(file, [*problems, "there is no table [clusters.NAME]"])
    clusters: dict[str, KafkaCluster] = {}
    for name, table in tables.items():
        try:
            clusters[name] = _cluster(name, table)
        except ConfigurationError as error:
            problems.append(f"[clusters.{name}] {error}")
    if problems:
        raise _unusable(file, problems)
    return clusters


def _cluster(name: str, table: Any) -> KafkaCluster:
    if not isinstance(table, dict):
        raise ConfigurationError("must be a table with bootstrap_servers and config")
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


def _unusable(file: Path, problems: list[str]) -> ConfigurationError:
    return ConfigurationError(
        f"The clusters file {file} cannot be used; nothing was connected. Change these:\n"
        + "\n".join(f"  - {problem}" for problem in problems)
    )
