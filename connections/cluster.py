"""One description of a Kafka cluster for both Kafka clients.

Runs on executors too: standard library only. The clients themselves are created elsewhere.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from onceward.common.errors import ConfigurationError
from onceward.connections.limits import CLIENT_LIMITS
from onceward.connections.redaction import redact_control_plane_logs
from onceward.connections.secrets import is_reference, reference_problem, resolve
from onceward.connections.translate import PASSWORD_KEYS, REFERENCE_KEYS, control_settings, setting_problem
from onceward.protocol.values import Name

__all__ = ["KAFKA_TOPIC", "ClusterName", "KafkaCluster", "Setting"]

Setting: TypeAlias = str | int | float | bool

KAFKA_TOPIC: Final = "Kafka topic"
"""The kind of a topic as a resource of a job."""

_HOST = r"(?:\[[0-9A-Fa-f:.]+(?:%[0-9A-Za-z_.-]+)?\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
_SERVER = re.compile(rf"{_HOST}:([0-9]{{1,5}})")


class ClusterName(Name):
    """The name of a cluster in documents, next to its id."""

    __slots__ = ()


@dataclass(frozen=True, eq=True)
class KafkaCluster:
    """A cluster, described once and shared by source, sink and ``onceward serve --systems``.

    It is sent to executors unchanged: secrets stay references and are resolved where a client is created.
    """

    bootstrap_servers: str
    """``host:port``, several separated by commas."""
    _: KW_ONLY
    name: str = "main"
    """Documents store the name and the cluster's id, so that a coordinator finds the cluster in its clusters file."""
    config: Mapping[str, Setting] = field(default_factory=dict)
    """librdkafka keys. Passwords are ``env:NAME`` or ``file:/absolute/path``; user names and PEM paths may be.

    Values are kept as text. Keys that the control plane cannot follow are rejected, all in one error.
    """

    def __post_init__(self) -> None:
        """Raises ConfigurationError that lists every problem."""
        problems = list(_server_problems(self.bootstrap_servers))
        try:
            ClusterName(self.name)
        except (TypeError, ValueError) as error:
            problems.append(f"name: {error}")
        problems.extend(_setting_problems(self.config))
        if problems:
            raise ConfigurationError(
                "This Kafka cluster cannot be used; nothing was connected. Change these:\n"
                + "\n".join(f"  - {problem}" for problem in problems)
            )
        servers = ",".join(part.strip() for part in self.bootstrap_servers.split(","))
        object.__setattr__(self, "bootstrap_servers", servers)
        object.__setattr__(
            self, "config", MappingProxyType({key: _text(self.config[key]) for key in sorted(self.config)})
        )

    @classmethod
    def of(cls, cluster: "str | KafkaCluster") -> "KafkaCluster":
        """Return a cluster for bootstrap servers given as text; return a cluster unchanged."""
        if isinstance(cluster, KafkaCluster):
            return cluster
        return cls(cluster)

    def client_config(self, **overrides: Setting) -> dict[str, Any]:
        """Return a new librdkafka configuration with secrets resolved now and Onceward's time limits. The user's
        settings override the limits, ``overrides`` override everything, for example ``client_config(**{"group.id":
        "g"})``.

        Raises ConfigurationError when a secret is missing here.
        """
        return {**CLIENT_LIMITS, "bootstrap.servers": self.bootstrap_servers, **self._resolved(), **overrides}

    def control_config(self) -> dict[str, Any]:
        """Return kafka-python's keyword arguments with secrets resolved now; keeps its log free of them.

        Raises ConfigurationError when a secret or a file is missing here.
        """
        redact_control_plane_logs()
        return control_settings(self.bootstrap_servers, self._resolved())

    def weaknesses(self) -> Iterator[tuple[str, str]]:
        """Yield what this configuration leaves open to a peer on the network, each with its remedy."""
        chosen = {key: str(value).upper() for key, value in self.config.items()}
        if chosen.get("ssl.endpoint.identification.algorithm") == "NONE":
            yield (
                "the brokers' host names are not checked: a peer with any certificate of that authority passes for one",
                "remove ssl.endpoint.identification.algorithm from config",
            )
        if chosen.get("security.protocol") == "SASL_PLAINTEXT" and "PLAIN" in (
            chosen.get("sasl.mechanisms"),
            chosen.get("sasl.mechanism"),
        ):
            yield (
                "the password crosses the network in plain text: security.protocol is SASL_PLAINTEXT with PLAIN",
                "use security.protocol SASL_SSL",
            )

    def _resolved(self) -> dict[str, str]:
        return {
            key: resolve(text, key=key) if key in REFERENCE_KEYS and is_reference(text) else text
            for key, text in ((key, str(value)) for key, value in self.config.items())
        }

    def __hash__(self) -> int:
        return hash((self.bootstrap_servers, self.name, tuple(self.config.items())))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.bootstrap_servers, self.name, dict(self.config))

    def __repr__(self) -> str:
        return f"KafkaCluster({self.bootstrap_servers!r}, name={self.name!r}, config={dict(self.config)!r})"


def _rebuild(bootstrap_servers: str, name: str, config: dict[str, Setting]) -> KafkaCluster:
    return KafkaCluster(bootstrap_servers, name=name, config=config)


def _text(value: Setting) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _server_problems(servers: object) -> Iterator[str]:
    if not isinstance(servers, str) or not servers.strip():
        yield "bootstrap servers: give host:port as text, several separated by commas"
        return
    for server in (part.strip() for part in servers.split(",")):
        match = _SERVER.fullmatch(server)
        if match is None or not 0 < int(match[1]) < 65536:
            yield f"bootstrap servers: {server!r} is not host:port; the security protocol belongs into config"


def _setting_problems(config: object) -> Iterator[str]:
    if not isinstance(config, Mapping):
        yield "config: give a mapping of librdkafka's keys"
        return
    for key in sorted(config, key=str):
        value = config[key]
        if not isinstance(key, str):
            yield f"config: the key {key!r} is not text"
        elif (problem := setting_problem(key, value)) is not None:
            yield f"{key}: {problem}"
        elif not isinstance(value, str | int | float | bool):
            yield f"{key}: the value must be text, a number or a truth value, not {type(value).__name__}"
        elif (problem := _reference_problem(key, _text(value))) is not None:
            yield f"{key}: {problem}"
    if "sasl.mechanism" in config and "sasl.mechanisms" in config:
        yield "sasl.mechanism, sasl.mechanisms: these are the same setting, give one"
    protocol = str(config.get("security.protocol", "PLAINTEXT")).upper()
    if protocol.startswith("SASL_"):
        if not config.keys() & {"sasl.mechanism", "sasl.mechanisms"}:
            # The default mechanisms of the two clients differ (GSSAPI and none).
            yield f"sasl.mechanisms: is required with security.protocol={protocol}"
        yield from (f"{key}: is missing" for key in ("sasl.username", "sasl.password") if key not in config)
    elif any(key.startswith("sasl.") for key in config if isinstance(key, str)):
        yield f"security.protocol: is {protocol}, which ignores the sasl.* settings; use SASL_SSL or SASL_PLAINTEXT"
    if not protocol.endswith("SSL") and any(key.startswith("ssl.") for key in config if isinstance(key, str)):
        yield (
            f"security.protocol: is {protocol}, which ignores the ssl.* settings and sends everything in plain text; "
            "use SSL or SASL_SSL, or remove them"
        )
    if ("ssl.certificate.location" in config) != ("ssl.key.location" in config):
        yield "ssl.certificate.location, ssl.key.location: set both or neither"


def _reference_problem(key: str, text: str) -> str | None:
    if key in PASSWORD_KEYS and not is_reference(text):
        return "a password is never written here: use env:NAME or file:/absolute/path"
    if not is_reference(text):
        return None
    if key not in REFERENCE_KEYS:
        return f"references are understood only for {', '.join(sorted(REFERENCE_KEYS))}"
    return reference_problem(text)
