"""deploy/kubernetes is valid, consistent with itself and with the code, and gives its containers nothing to spare."""

import copy
import re
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any

import kubernetes_validate
import pytest
import yaml

from onceward import load_clusters
from onceward.client.calls import addresses_of
from onceward.common.errors import ExitCode
from onceward.connections.secrets import reference_problem
from onceward.coordinator.service.listen import parse_listen
from onceward.coordinator.service.rights import Credentials, Right, parse_rights
from onceward.coordinator.service.rights_file import RightsFile
from onceward.dev.demo.topics import JOB
from onceward.operate import cli, health
from onceward.protocol.settings import CheckpointSettings
from tests.support.commands import parsed
from tests.support.compose import topology
from tests.support.manifests import (
    FOLDER,
    KUSTOMIZATIONS,
    Manifest,
    config_map,
    container,
    expanded,
    find,
    kustomization,
    manifests,
    pod_specs,
)
from tests.unit.metrics.test_deployed import ALERTS

OLDEST = "1.31"
"""The first version in which everything that these files use is on by default."""
OF_THE_OPERATOR = ("ServiceMonitor", "PrometheusRule")
"""Kinds that Kubernetes itself does not know."""
POD = {"POD_NAME": "pod-0", "POD_NAMESPACE": "orders", "STORE": config_map("coordinator")[1]["store"]}

PODS = pytest.mark.parametrize(("name", "pod"), [pytest.param(*found, id=found[0]) for found in pod_specs()])


def coordinator() -> dict[str, Any]:
    found: dict[str, Any] = find("StatefulSet", "coordinator").spec["template"]["spec"]
    return found


def driver() -> dict[str, Any]:
    found: dict[str, Any] = find("Job", "job").spec["template"]["spec"]
    return found


def serve() -> dict[str, Any]:
    """What ``onceward serve`` understands of the coordinator's arguments."""
    command, given = parsed([*container(coordinator())["command"][1:], *expanded(coordinator(), POD)])
    assert command == "serve"
    return given


def variables(pod: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container(pod)["env"] if "value" in one}


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("manifest", [one for one in manifests() if one.kind not in OF_THE_OPERATOR], ids=str)
def test_a_manifest_is_valid_and_has_no_unknown_field(manifest: Manifest, version: str) -> None:
    kubernetes_validate.validate(manifest.content, version, strict=True)


def test_an_unknown_field_and_a_wrong_type_are_noticed() -> None:
    job = copy.deepcopy(find("Job", "job").content)
    job["spec"]["podFailurePolicies"] = job["spec"].pop("podFailurePolicy")
    with pytest.raises(kubernetes_validate.ValidationError, match="podFailurePolicies"):
        kubernetes_validate.validate(job, OLDEST, strict=True)
    job = copy.deepcopy(find("Job", "job").content)
    job["spec"]["backoffLimit"] = "many"
    with pytest.raises(kubernetes_validate.ValidationError, match="many"):
        kubernetes_validate.validate(job, OLDEST, strict=True)


def test_every_file_belongs_to_a_kustomization() -> None:
    used: set[Path] = set()
    for folder in KUSTOMIZATIONS:
        found = kustomization(folder)
        names = [*found["resources"], *(file for one in found.get("configMapGenerator", []) for file in one["files"])]
        used |= {FOLDER / folder / name for name in [*names, "kustomization.yaml"]}
    assert {path for path in FOLDER.rglob("*") if path.is_file()} == used


def test_nothing_names_a_namespace_or_holds_a_secret() -> None:
    for one in manifests():
        assert "namespace" not in one.content.get("metadata", {}), one
        assert one.kind not in ("Secret", "Namespace", "ClusterRole", "ClusterRoleBinding")
    for folder in ("coordinator", "job"):
        assert not any(word in text for word in ("PRIVATE KEY", "sha256:") for text in config_map(folder)[1].values())
    assert "://onceward@" in POD["STORE"], "a password in the URL"


@PODS
def test_a_container_has_nothing_that_it_does_not_need(name: str, pod: dict[str, Any]) -> None:
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True
    assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (10001, 10001, 10001)
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(pod)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC", "initContainers"}
    assert all(volume.keys() & {"configMap", "secret", "emptyDir"} for volume in pod["volumes"])
    # only the driver calls Kubernetes
    assert pod.get("automountServiceAccountToken", True) is (name == JOB)
    if name != "executor":  # Spark sets them
        resources = container(pod)["resources"]
        assert resources["limits"] == {"memory": resources["requests"]["memory"]}


@PODS
def test_every_mount_has_its_volume_and_every_file_its_mount(name: str, pod: dict[str, Any]) -> None:
    mounts = {one["mountPath"]: one for one in container(pod)["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert sorted(one["name"] for one in mounts.values()) == sorted(volumes)
    for mount in mounts.values():
        assert mount.get("readOnly", False) is ("emptyDir" not in volumes[mount["name"]])
    texts = [*expanded(pod, POD), *variables(pod).values(), POD["STORE"]] if name != "executor" else []
    for text in texts:
        for word in text.replace("=", " ").replace("file:", " ").split():
            if word.startswith("/etc/"):
                assert any(PurePosixPath(word).is_relative_to(path) for path in mounts) or name == JOB, word
    for volume in volumes.values():
        if "secret" in volume:
            assert volume["secret"]["defaultMode"] == 0o440, "the group fsGroup reads it, and no other user"


def test_the_images_are_those_of_this_version() -> None:
    known = {service.image for service in topology("cluster").services.values()}
    job = container(driver())["image"]
    assert {container(coordinator())["image"], job} < known
    assert spark()["spark.kubernetes.container.image"] == job, "driver and executors need the same Python"


def test_the_coordinator_serves_with_tls_rights_and_a_store_that_both_can_reach() -> None:
    given = serve()
    assert given["advertise"] == "pod-0.onceward-coordinator.orders.svc:7878"
    assert given["store"].startswith("postgresql://")
    assert "sslmode=verify-full" in given["store"]
    assert reference_problem(given["store_password"]) is None
    assert {given[name].name for name in ("tls_cert", "tls_key", "client_ca")} == {"tls.crt", "tls.key", "ca.crt"}
    assert not given["insecure_listen_anywhere"]
    assert given["log_format"] == "json"
    name, keys = config_map("coordinator")
    assert {given["rights"].name, given["systems"].name} < keys.keys()
    volumes = {one["name"]: one for one in coordinator()["volumes"]}
    assert volumes["config"]["configMap"]["name"] == name


def test_the_rights_let_the_job_drive_and_people_in_the_pod_operate() -> None:
    rights = parse_rights(config_map("coordinator")[1]["rights.toml"])
    drives = rights.peer(Credentials(names=frozenset({"flights.drivers.onceward"})))
    assert drives is not None
    assert drives.may(Right.DRIVE, JOB)
    assert not drives.may(Right.DRIVE, "another")
    assert rights.peer(Credentials(names=frozenset({"localhost"}))) is None, "other certificates may have that name"
    uri = re.search(
        r"URI `(urn:[\w:]+)`", (FOLDER.parents[1] / "docs/how-to/kubernetes.md").read_text(encoding="utf-8")
    )
    assert uri is not None
    people = rights.peer(Credentials(uris=frozenset({uri[1]})))
    assert people is not None
    assert people.may(Right.OPERATE, JOB)
    assert not people.may(Right.OVERRIDE, JOB)


def test_rights_in_a_config_map_are_read_again_when_kubernetes_replaces_it(tmp_path: Path) -> None:
    """The kubelet makes a new directory, and moves one link to it."""
    now = 0.0

    def publish(number: int, text: str) -> None:
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "rights.toml").write_text(text)
        (tmp_path / "..data_tmp").symlink_to(f"..{number}")
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")

    text = config_map("coordinator")[1]["rights.toml"]
    publish(1, text)
    (tmp_path / "rights.toml").symlink_to("..data/rights.toml")
    tmp_path.chmod(0o1777)  # as the volume of a ConfigMap is
    file = RightsFile(tmp_path / "rights.toml", certificates=True, clock=lambda: now)
    credentials = Credentials(names=frozenset({"flights.drivers.onceward"}))
    assert file.rights().peer(credentials) is not None
    publish(2, text.replace("flights.drivers", "others"))
    now += 10
    assert file.rights().peer(credentials) is None


def test_the_coordinators_have_the_names_that_clients_use() -> None:
    stateful = find("StatefulSet", "coordinator")
    service = find("Service", "coordinator")
    assert stateful.spec["serviceName"] == service.name
    assert service.spec["clusterIP"] == "None"
    assert service.spec["publishNotReadyAddresses"] is True, "a client must find out that a coordinator is not ready"
    expected = [
        f"{stateful.name}-{number}.{service.name}.orders.svc:7878" for number in range(stateful.spec["replicas"])
    ]
    for arguments in (
        expanded({"containers": [{**container(coordinator()), "args": ["$(ONCEWARD_COORDINATOR)"]}]}, POD),
        [word.removeprefix("--coordinator=") for word in expanded(driver(), POD) if word.startswith("--coordinator=")],
    ):
        assert addresses_of(*arguments) == expected
    assert addresses_of(serve()["advertise"]) == ["pod-0.onceward-coordinator.orders.svc:7878"]


def test_ports_are_the_same_everywhere() -> None:
    given = serve()
    listen, metrics = (parse_listen(given[name], anywhere=True).port for name in ("listen", "metrics"))
    assert listen == parse_listen(cli._DEFAULT_LISTEN, anywhere=False).port
    named = {one["name"]: one["containerPort"] for one in container(coordinator())["ports"]}
    assert named == {"grpc": listen, "metrics": metrics}
    service = find("Service", "coordinator").spec["ports"]
    assert {one["name"]: one["port"] for one in service} == named
    assert all(one["targetPort"] == one["name"] for one in service)
    (kafka,) = [
        int(one.rpartition(":")[2])
        for cluster in tomllib.loads(config_map("coordinator")[1]["clusters.toml"])["clusters"].values()
        for one in cluster["bootstrap_servers"].split(",")
    ]
    policy = find("NetworkPolicy", "coordinator").spec
    allowed = [[port["port"] for port in rule["ports"]] for rule in policy["ingress"]]
    assert allowed == [[listen], [metrics]]
    reached = [[port["port"] for port in rule["ports"]] for rule in policy["egress"]]
    assert reached == [[53, 53], [listen], [5432, kafka]]
    monitor = find("ServiceMonitor", "prometheus-operator").spec
    assert [one["port"] for one in monitor["endpoints"]] == ["metrics"]


def test_the_clusters_file_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "clusters.toml").write_text(config_map("coordinator")[1]["clusters.toml"])
    assert load_clusters(tmp_path / "clusters.toml")["main"].bootstrap_servers in " ".join(expanded(driver(), POD))


def test_probes_ask_the_process_and_not_the_database() -> None:
    probes = {name: container(coordinator())[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    asked = {}
    for name, probe in probes.items():
        command, given = parsed(probe["exec"]["command"][1:])
        assert command == "health"
        assert given["coordinator"] == "localhost:7878"
        asked[name] = (given["live"], given["ready"])
        # it must say why before it is killed
        assert probe["timeoutSeconds"] > health._TIMEOUT_S * 2
    assert asked == {"startup": (True, False), "liveness": (True, False), "readiness": (False, True)}


def test_selectors_select_the_pods_that_they_mean() -> None:
    pods = {
        "coordinator": find("StatefulSet", "coordinator").spec["template"]["metadata"]["labels"],
        "driver": find("Job", "job").spec["template"]["metadata"]["labels"],
        "executor": find("Pod", "job").content["metadata"]["labels"],
    }

    def selected(labels: dict[str, str]) -> set[str]:
        return {name for name, own in pods.items() if labels.items() <= own.items()}

    assert selected(find("StatefulSet", "coordinator").spec["selector"]["matchLabels"]) == {"coordinator"}
    assert selected(find("Service", "coordinator").spec["selector"]) == {"coordinator"}
    assert selected(find("PodDisruptionBudget", "coordinator").spec["selector"]["matchLabels"]) == {"coordinator"}
    assert selected(find("Service", "job").spec["selector"]) == {"driver"}
    (spread,) = coordinator()["topologySpreadConstraints"]
    assert selected(spread["labelSelector"]["matchLabels"]) == {"coordinator"}
    policy = find("NetworkPolicy", "coordinator").spec
    assert selected(policy["podSelector"]["matchLabels"]) == {"coordinator"}
    (wanted,) = policy["ingress"][0]["from"][0]["podSelector"]["matchExpressions"]
    assert {name for name, own in pods.items() if own[wanted["key"]] in wanted["values"]} == {"coordinator", "driver"}
    policy = find("NetworkPolicy", "job").spec
    assert selected(policy["podSelector"]["matchLabels"]) == {"driver", "executor"}
    assert selected(policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"]) == {"driver", "executor"}
    monitor = find("ServiceMonitor", "prometheus-operator").spec
    assert (
        monitor["selector"]["matchLabels"].items()
        <= find("Service", "coordinator").content["metadata"]["labels"].items()
    )


def test_there_is_time_to_leave_with_everything_settled() -> None:
    assert driver()["terminationGracePeriodSeconds"] > CheckpointSettings().seconds("timeout")
    assert coordinator()["terminationGracePeriodSeconds"] >= 10


def test_one_coordinator_may_be_missing_and_one_that_could_not_lead_protects_nothing() -> None:
    budget = find("PodDisruptionBudget", "coordinator").spec
    assert budget["maxUnavailable"] == find("StatefulSet", "coordinator").spec["replicas"] - 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert find("StatefulSet", "coordinator").spec["podManagementPolicy"] == "Parallel"


FINAL = {ExitCode.USAGE, ExitCode.HALTED, ExitCode.FENCED}
AGAIN = {ExitCode.BUG, ExitCode.PREFLIGHT, ExitCode.COORDINATOR_LOST}


def test_exit_codes_that_need_a_person_fail_the_job_and_others_start_it_again() -> None:
    assert FINAL | AGAIN | {ExitCode.FINISHED, ExitCode.LOSSES} == set(ExitCode)
    spec = find("Job", "job").spec
    fails, disrupted = spec["podFailurePolicy"]["rules"]
    assert fails["action"] == "FailJob"
    assert fails["onExitCodes"] == {
        "containerName": container(driver())["name"],
        "operator": "In",
        "values": sorted(map(int, FINAL)),
    }
    assert disrupted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert spec["backoffLimit"] == 2**31 - 1
    # the policy needs these
    assert driver()["restartPolicy"] == "Never"
    assert spec["podReplacementPolicy"] == "Failed"


def spark() -> dict[str, str]:
    lines = config_map("job")[1]["spark-defaults.conf"].splitlines()
    return dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))


def test_sparks_settings_fit_the_manifests() -> None:
    conf, service = spark(), find("Service", "job")
    assert conf["spark.submit.deployMode"] == "client"
    assert conf["spark.driver.host"] == service.name
    ports = {"driver": conf["spark.driver.port"], "blocks": conf["spark.driver.blockManager.port"]}
    assert {one["name"]: str(one["port"]) for one in service.spec["ports"]} == ports
    assert {one["name"]: str(one["containerPort"]) for one in container(driver())["ports"]} == ports
    mounts = {one["name"]: one["mountPath"] for one in container(driver())["volumeMounts"]}
    assert variables(driver())["SPARK_CONF_DIR"] == mounts["spark"]
    assert conf["spark.kubernetes.executor.podTemplateFile"] == f"{mounts['spark']}/executor.yaml"
    assert conf["spark.kubernetes.executor.podTemplateContainerName"] == container(find("Pod", "job").spec)["name"]
    assert conf["spark.authenticate"] == conf["spark.network.crypto.enabled"] == "true"
    named = {one["name"] for one in container(driver())["env"]}
    assert {"POD_NAME", "POD_NAMESPACE"} <= named


def test_accounts_are_bound_to_what_uses_them() -> None:
    accounts = {one.name for one in manifests() if one.kind == "ServiceAccount"}
    used = {pod["serviceAccountName"] for _, pod in pod_specs() if "serviceAccountName" in pod}
    assert accounts == used == {"flights-driver", "flights-executor"}
    binding, role = find("RoleBinding", "job"), find("Role", "job")
    assert binding.content["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role.name}
    assert binding.content["subjects"] == [{"kind": "ServiceAccount", "name": driver()["serviceAccountName"]}]
    (rule,) = role.content["rules"]
    assert (rule["apiGroups"], rule["resources"]) == ([""], ["pods"])
    assert "*" not in rule["verbs"]


def test_the_rules_are_the_alerts() -> None:
    rule = find("PrometheusRule", "prometheus-operator").content
    assert rule["apiVersion"] == "monitoring.coreos.com/v1"
    assert rule["spec"] == yaml.safe_load(ALERTS.read_text())


def test_prometheus_scrapes_with_a_certificate() -> None:
    monitor = find("ServiceMonitor", "prometheus-operator").content
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["path"]) == ("https", "/metrics")
    tls = endpoint["tlsConfig"]
    files = {"ca": tls["ca"]["secret"], "cert": tls["cert"]["secret"], "keySecret": tls["keySecret"]}
    assert {name: one["key"] for name, one in files.items()} == {
        "ca": "ca.crt",
        "cert": "tls.crt",
        "keySecret": "tls.key",
    }
    assert len({one["name"] for one in files.values()}) == 1
    # it scrapes addresses, and this name is in each certificate: the probes need it
    assert tls["serverName"] == "localhost"
