"""The files of compose/ as the container engine would read them: parsed, merged and queried."""

import json
import re
import shlex
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from onceward.protocol.settings import as_duration

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "compose"
FILES = {
    "quickstart": ("quickstart.yaml",),
    "leaders": ("quickstart.yaml", "leaders.yaml"),
    "cluster": ("cluster.yaml",),
    "faults": ("cluster.yaml", "faults.yaml"),
}
"""Topology -> the files for ``docker compose -f``, in this order."""

_NOT_PROPERTIES = {"KAFKA_HEAP_OPTS"}
"""Variables that the image's scripts read and leave out of the broker's file."""
_ADDRESS = re.compile(r"(?<![\w.-])([a-z][a-z0-9-]*(?:\.[a-z0-9-]+)*|\d+\.\d+\.\d+\.\d+):(\d{2,5})(?![\w.])")


class _Loader(yaml.SafeLoader):
    """Refuse duplicate keys, as compose does; YAML lets the last one win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        assert len(set(keys)) == len(keys) or self._merged(node), f"{node.start_mark}: a key is given twice: {keys}"
        return super().construct_mapping(node, deep)

    def _merged(self, node: yaml.MappingNode) -> bool:
        """Whether the constructor has already put an anchor's keys before the node's own."""
        return node in self.__dict__.setdefault("_flat", [])

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        self.__dict__.setdefault("_flat", []).append(node)
        super().flatten_mapping(node)


@dataclass(frozen=True, kw_only=True)
class Service:
    """One service of one topology."""

    topology: str
    name: str
    entry: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.topology}/{self.name}"

    @property
    def image(self) -> str:
        return str(self.entry["image"])

    @property
    def command(self) -> list[str]:
        """The command as the process gets it: compose writes ``$`` as ``$$``."""
        command = self.entry.get("command", [])
        words = shlex.split(command) if isinstance(command, str) else command
        return [word.replace("$$", "$") for word in words]

    @property
    def entrypoint(self) -> list[str]:
        return [word.replace("$$", "$") for word in self.entry.get("entrypoint", [])]

    @property
    def mounts(self) -> dict[str, tuple[str, bool]]:
        """Volume -> (path in the service, whether the service may write there)."""
        found = {}
        for one in self.entry.get("volumes", []):
            volume, target, *mode = one.split(":")
            assert mode in ([], ["ro"])
            found[volume] = (target, not mode)
        return found

    @property
    def environment(self) -> dict[str, str]:
        given = self.entry.get("environment", {})
        assert isinstance(given, dict), f"{self}: write the environment as a mapping, lists cannot be overridden"
        assert all(isinstance(value, str) for value in given.values()), f"{self}: quote what YAML takes for no text"
        return given

    @property
    def networks(self) -> set[str]:
        return set(self.entry.get("networks", ["default"]))

    @property
    def health(self) -> list[str]:
        """The command of the health check, without the word that says how it is run."""
        test = self.entry.get("healthcheck", {}).get("test", [])
        return [word.replace("$$", "$") for word in test[1:]]

    @property
    def stays(self) -> bool:
        """Whether the service runs on, rather than doing one thing and ending."""
        return "restart" in self.entry

    @property
    def is_kafka(self) -> bool:
        return "KAFKA_NODE_ID" in self.environment

    def option(self, name: str) -> list[str]:
        """Return the values of ``--name=VALUE`` or, in Spark's form, ``--name VALUE`` in the command."""
        command = self.command
        split = [after for word, after in pairwise(command) if word == f"--{name}"]
        return split + [word.partition("=")[2] for word in command if word.startswith((f"--{name}=", f"-{name}="))]

    def seconds(self, key: str) -> float:
        """Return a duration of the service or of its health check, in seconds."""
        return as_duration(self.entry.get(key) or self.entry["healthcheck"][key]).total_seconds()

    def listeners(self) -> dict[str, int]:
        """Return a broker's listeners: name -> port."""
        found = re.findall(r"(\w+)://:(\d+)", self.environment["KAFKA_LISTENERS"])
        return {name: int(port) for name, port in found}

    def advertised(self) -> dict[str, tuple[str, int]]:
        """Return a broker's advertised listeners: name -> address for clients."""
        found = re.findall(r"(\w+)://([\w.-]+):(\d+)", self.environment["KAFKA_ADVERTISED_LISTENERS"])
        return {name: (host, int(port)) for name, host, port in found}


@dataclass(frozen=True, kw_only=True)
class Topology:
    name: str
    model: Mapping[str, Any]

    @property
    def services(self) -> dict[str, Service]:
        entries: Mapping[str, Any] = self.model["services"]
        return {name: Service(topology=self.name, name=name, entry=entry) for name, entry in entries.items()}

    @property
    def brokers(self) -> list[Service]:
        return [service for service in self.services.values() if service.is_kafka]

    def config_files(self, service: Service) -> dict[str, Path]:
        """Return the service's config files: path in the service -> file."""
        used = service.entry.get("configs", [])
        return {one["target"]: FOLDER / self.model["configs"][one["source"]]["file"] for one in used}

    def listening(self, service: Service) -> set[int]:
        """Return the ports that other services can reach."""
        ports = {int(place.rpartition(":")[2]) for place in service.option("listen")}
        ports |= {int(port) for option in ("port", "webui-port") for port in service.option(option)}
        if service.is_kafka:
            ports |= set(service.listeners().values())
        if service.image.startswith("postgres:"):
            ports.add(5432)
        if service.image.startswith("onceward/toxiproxy:"):
            ports |= {8474, *(listen for _, listen, _, _ in self.proxies())}
        conf = self.spark(service)
        return ports | {
            int(conf[key]) for key in ("spark.driver.port", "spark.driver.blockManager.port") if key in conf
        }

    def spark(self, service: Service) -> dict[str, str]:
        """Return the driver's spark-defaults.conf; empty for a service without one."""
        for target, file in self.config_files(service).items():
            if target == f"{service.environment.get('SPARK_CONF_DIR')}/spark-defaults.conf":
                lines = [line for line in file.read_text().splitlines() if line.strip() and not line.startswith("#")]
                return dict(line.split() for line in lines)
        return {}

    def proxies(self) -> list[tuple[str, int, str, int]]:
        """Return (name, listening port, service behind it, its port); none without toxiproxy."""
        if "proxies" not in self.model.get("configs", {}):
            return []
        found = []
        for one in json.loads((FOLDER / self.model["configs"]["proxies"]["file"]).read_text()):
            assert one.keys() == {"name", "listen", "upstream", "enabled"}
            assert one["enabled"] is True
            place, _, port = one["listen"].partition(":")
            assert place == "0.0.0.0"
            host, _, behind = one["upstream"].partition(":")
            found.append((one["name"], int(port), host, int(behind)))
        return found

    def called(self, service: Service) -> set[tuple[str, int]]:
        """Return every host and port in the service's command, checks and files."""
        texts = [*service.command, *service.health]
        texts += [
            service.environment.get(name, "") for name in ("ONCEWARD_COORDINATOR", "KAFKA_CONTROLLER_QUORUM_VOTERS")
        ]
        texts += [
            without_comments(file.read_text()) for file in self.config_files(service).values() if file.suffix != ".json"
        ]
        found = {(host, int(port)) for text in texts for host, port in _ADDRESS.findall(text)}
        return {(host, port) for host, port in found if host not in ("127.0.0.1", "0.0.0.0")}

    def together(self, one: Service, other: Service) -> bool:
        return one.name == other.name or bool(one.networks & other.networks)


def without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def read(name: str) -> dict[str, Any]:
    """Return one file with its anchors resolved and no other change."""
    found = yaml.load((FOLDER / name).read_text(encoding="utf-8"), Loader=_Loader)
    assert isinstance(found, dict)
    return found


def merged(below: Any, above: Any, path: str = "") -> Any:
    """Merge a file on top of another as compose does: mappings are merged, a command is replaced, and mounts are
    added."""
    if isinstance(below, dict) and isinstance(above, dict):
        both = {key: merged(below[key], above[key], f"{path}.{key}") for key in below.keys() & above.keys()}
        return {**below, **above, **both}
    if isinstance(below, list) or isinstance(above, list):
        if path.endswith((".configs", ".volumes")):
            return [*below, *above]
        replaced = path.endswith((".command", ".healthcheck.test"))
        assert replaced, f"{path}: compose joins lists; overriding this one does something else"
    return above


@cache
def topology(name: str) -> Topology:
    model: dict[str, Any] = {}
    for file in FILES[name]:
        model = merged(model, read(file))
    return Topology(name=name, model=model)


def services() -> list[Service]:
    return [service for name in FILES for service in topology(name).services.values()]


def broker_properties(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the broker's properties as the image derives them from the variables."""
    return {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in environment.items()
        if name.startswith("KAFKA_") and name not in _NOT_PROPERTIES
    }
