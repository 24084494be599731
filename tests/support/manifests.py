"""The manifests of deploy/kubernetes: parsed, with the files that kustomize puts into ConfigMaps."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

__all__ = [
    "FOLDER",
    "KUSTOMIZATIONS",
    "Manifest",
    "config_map",
    "container",
    "expanded",
    "find",
    "kustomization",
    "manifests",
    "pod_specs",
]

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
KUSTOMIZATIONS = ("coordinator", "job", "prometheus-operator")
TEMPLATE = FOLDER / "job" / "executor.yaml"
"""A pod that Spark completes."""


@dataclass(frozen=True)
class Manifest:
    """One document of a file."""

    file: Path
    content: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.file.parent.name}/{self.kind}"

    @property
    def kind(self) -> str:
        return str(self.content["kind"])

    @property
    def name(self) -> str:
        return str(self.content["metadata"]["name"])

    @property
    def spec(self) -> dict[str, Any]:
        found: dict[str, Any] = self.content["spec"]
        return found


def kustomization(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / folder / "kustomization.yaml").read_text(encoding="utf-8"))
    return found


@cache
def manifests() -> tuple[Manifest, ...]:
    """Every document that a kustomization names, and the template of executors."""
    files = [FOLDER / folder / name for folder in KUSTOMIZATIONS for name in kustomization(folder)["resources"]]
    return tuple(
        Manifest(file, document)
        for file in [*files, TEMPLATE]
        for document in yaml.safe_load_all(file.read_text(encoding="utf-8"))
    )


def find(kind: str, folder: str) -> Manifest:
    (found,) = [one for one in manifests() if one.kind == kind and one.file.parent.name == folder]
    return found


def config_map(folder: str) -> tuple[str, dict[str, str]]:
    """(name of the ConfigMap that the kustomization makes, its keys with their contents)."""
    (generator,) = kustomization(folder)["configMapGenerator"]
    literals = dict(one.split("=", 1) for one in generator.get("literals", []))
    files = {name: (FOLDER / folder / name).read_text(encoding="utf-8") for name in generator["files"]}
    return generator["name"], literals | files


def pod_specs() -> Iterator[tuple[str, dict[str, Any]]]:
    """(what it is, the pod's specification) of the coordinator, the driver and its executors."""
    for one in manifests():
        if one.kind == "Pod":
            yield "executor", one.spec
        elif "template" in one.content.get("spec", {}):
            yield one.name, one.spec["template"]["spec"]


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    found: dict[str, Any] = only
    return found


def expanded(pod: dict[str, Any], values: dict[str, str]) -> list[str]:
    """The container's arguments with its variables in place of ``$(NAME)``, as Kubernetes expands them. ``values``:
    those that Kubernetes finds elsewhere."""
    known = dict(values)
    for variable in container(pod).get("env", []):
        if "value" in variable:
            known[variable["name"]] = _with(variable["value"], known)
    return [_with(word, known) for word in container(pod)["args"]]


def _with(text: str, known: dict[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], text)
