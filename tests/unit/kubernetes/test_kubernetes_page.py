"""docs/how-to/kubernetes.md names what the manifests name, and its commands exist."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.commands import parsed
from tests.support.manifests import FOLDER, container, expanded, find, manifests, pod_specs
from tests.unit.kubernetes.test_manifests import AGAIN, FINAL, coordinator
from tests.unit.test_docs import ROOT, read

PAGE = ROOT / "docs" / "how-to" / "kubernetes.md"
NAMESPACE = "orders"


def block(kind: str) -> str:
    return "".join(re.findall(rf"^```{kind}\n(.*?)^```$", read(PAGE), flags=re.MULTILINE | re.DOTALL))


def table(*heads: str) -> list[list[str]]:
    """The rows of the table with these heads."""
    (found,) = re.findall(rf"^\| {re.escape(' | '.join(heads))} \|\n\|[-|]+\|\n((?:\|.*\n)+)", read(PAGE), re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()]


def test_the_page_names_every_secret_with_the_keys_that_are_used() -> None:
    listed = {cells[0].strip("`"): set(re.findall(r"`([\w.]+)`", cells[1])) for cells in table("Secret", "keys", "for")}
    mounted = {
        volume["secret"]["secretName"] for _, pod in pod_specs() for volume in pod["volumes"] if "secret" in volume
    }
    tls = find("ServiceMonitor", "prometheus-operator").spec["endpoints"][0]["tlsConfig"]
    assert listed.keys() == mounted | {tls["keySecret"]["name"]}
    words = " ".join(expanded(coordinator(), {"POD_NAME": "a", "POD_NAMESPACE": "b", "STORE": store()}))
    for folder, name in (("tls", "onceward-coordinator-tls"), ("store", "onceward-store")):
        assert set(re.findall(rf"/etc/onceward/{folder}/([\w.]+)", words)) == listed[name]
    assert listed["flights-tls"] == listed["onceward-prometheus-tls"] == {"tls.crt", "tls.key", "ca.crt"}


def store() -> str:
    text = (FOLDER / "coordinator" / "kustomization.yaml").read_text(encoding="utf-8")
    return str(yaml.safe_load(text)["configMapGenerator"][0]["literals"][0])


def test_the_certificate_has_the_names_that_clients_and_probes_use() -> None:
    names = block("text").split()
    stateful = find("StatefulSet", "coordinator")
    assert names == [
        "localhost",
        *(
            f"{stateful.name}-{n}.{stateful.spec['serviceName']}.{NAMESPACE}.svc"
            for n in range(stateful.spec["replicas"])
        ),
    ]


def test_the_page_says_what_each_exit_code_does() -> None:
    rows = {cells[0]: cells[1] for cells in table("exit code of the driver", "the Job")}
    codes = {name: {int(code) for code in re.findall(r"\d+", name)} for name in rows}
    assert [codes[name] for name, effect in rows.items() if effect.startswith("fails")] == [set(map(int, FINAL))]
    assert [codes[name] for name, effect in rows.items() if "however often" in effect] == [set(map(int, AGAIN))]


def test_the_page_names_the_commands_of_the_probes() -> None:
    rows = {cells[0]: cells[1].strip("`") for cells in table("probe", "command", "fails when")}
    for names, command in rows.items():
        for name in names.split(", "):
            words = container(coordinator())[f"{name}Probe"]["exec"]["command"]
            assert [word for word in words if not word.startswith("--coordinator")] == command.split()


@pytest.mark.parametrize("line", block("sh").splitlines())
def test_the_commands_of_the_page_name_what_exists(line: str) -> None:
    program, *words = shlex.split(line)
    assert program == "kubectl"
    if words[:1] == ["-n"]:
        assert words[1] == NAMESPACE
        words = words[2:]
    known = {f"{one.kind.lower()}/{one.name}" for one in manifests() if one.kind != "Pod"}
    match words:
        case ["kustomize", "."] | ["apply", "-k", "."]:
            pass
        case ["rollout", "status" | "restart", name] | ["delete", name]:
            assert name in known
        case ["exec", "onceward-coordinator-0", "--", "onceward", *arguments]:
            parsed(arguments)
        case _:
            pytest.fail(f"not known here: {line}")


def test_kubectl_renders_the_kustomization_of_the_page(tmp_path: Path) -> None:
    """Where kubectl is not installed, the other tests must suffice."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    shutil.copytree(FOLDER, tmp_path / "own")
    (tmp_path / "own" / "kustomization.yaml").write_text(block("yaml"))
    for name in ("rights.toml", "clusters.toml"):
        (tmp_path / "own" / name).write_text(f"# of {name}\n")
    done = subprocess.run(["kubectl", "kustomize", tmp_path / "own"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rendered: list[dict[str, Any]] = list(yaml.safe_load_all(done.stdout))
    assert {one["metadata"]["namespace"] for one in rendered} == {NAMESPACE}
    made = {one["metadata"]["name"] for one in rendered if one["kind"] == "ConfigMap"}
    used = {volume["configMap"]["name"] for _, pod in pod_specs() for volume in pod["volumes"] if "configMap" in volume}
    assert made == used
    (own,) = [
        one for one in rendered if one["metadata"]["name"] == "onceward-coordinator" and one["kind"] == "ConfigMap"
    ]
    assert own["data"]["rights.toml"] == "# of rights.toml\n"
    assert "db.example.org" in own["data"]["store"]
    images = {
        one["spec"]["template"]["spec"]["containers"][0]["image"]
        for one in rendered
        if one["kind"] in ("Job", "StatefulSet")
    }
    assert all(image.startswith("registry.example/onceward/") for image in images)
