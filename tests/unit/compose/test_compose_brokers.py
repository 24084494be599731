"""The brokers of compose/ match those that the tests run as processes, and every client can reach its brokers."""

import base64
import re
from pathlib import Path

import pytest

from onceward import load_clusters
from onceward.dev.demo.topics import FLIGHTS, OUTPUTS, PARTITIONS
from onceward.dev.kafka.settings import NodePorts, NodeSettings
from tests.support.compose import FILES, Service, Topology, broker_properties, services, topology

ALL = pytest.mark.parametrize("name", FILES)
BROKERS = pytest.mark.parametrize("broker", [one for one in services() if one.is_kafka], ids=str)
CALLERS = pytest.mark.parametrize("service", services(), ids=str)

OF_THE_PLACE = ("advertised.listeners", "controller.quorum.voters", "listeners", "log.dirs")
"""Properties that name locations."""
INSTRUMENTS = {"topics", "feeder", "check"}
"""Services that set up and measure; faults must not reach them."""


def as_processes(broker: Service) -> dict[str, str]:
    """Return the properties of the same broker when the tests run it."""
    count = len(topology(broker.topology).brokers)
    ports = [NodePorts(client=9092, internal=9094, controller=9093)] * count
    settings = NodeSettings(
        node=int(broker.environment["KAFKA_NODE_ID"]),
        ports=ports,
        directory=Path("/nowhere"),
        transaction_timeout_scan_ms=10_000,
        extra={},
    )
    return settings.properties()


@BROKERS
def test_a_broker_has_the_properties_that_the_tests_run_with(broker: Service) -> None:
    found, wanted = broker_properties(broker.environment), as_processes(broker)
    assert found.keys() == wanted.keys()
    settling = ",SETTLING:PLAINTEXT" if broker.topology == "faults" else ""
    wanted["listener.security.protocol.map"] += settling
    assert {key: value for key, value in found.items() if key not in OF_THE_PLACE} == {
        key: value for key, value in wanted.items() if key not in OF_THE_PLACE
    }


@BROKERS
def test_a_broker_listens_at_the_address_that_the_others_use(broker: Service) -> None:
    place = topology(broker.topology)
    found, wanted = broker_properties(broker.environment), as_processes(broker)
    names = re.findall(r"(\w+)://", wanted["listeners"]) + (["SETTLING"] if broker.topology == "faults" else [])
    assert list(broker.listeners()) == names
    assert broker.advertised().keys() == set(names) - {"CONTROLLER"}
    controllers = [
        f"{number}@{one.name}:{one.listeners()['CONTROLLER']}" for number, one in enumerate(place.brokers, start=1)
    ]
    assert found["controller.quorum.voters"].split(",") == controllers
    assert broker.advertised()["INTERNAL"] == (broker.name, broker.listeners()["INTERNAL"])
    assert broker.name in ("kafka", f"kafka-{found['node.id']}")


def test_clusters_are_distinguished_by_their_ids() -> None:
    """A claim is bound to the cluster's id: a job must not take one topology's cluster for another's."""
    ids = {name: {one.environment["CLUSTER_ID"] for one in topology(name).brokers} for name in FILES}
    assert all(len(one) == 1 for one in ids.values())
    assert len(set.union(*ids.values())) == len(FILES)
    for one in set.union(*ids.values()):
        assert base64.urlsafe_b64encode(base64.urlsafe_b64decode(one + "==")).decode().rstrip("=") == one


@ALL
def test_topics_are_the_demos(name: str) -> None:
    (script,) = topology(name).services["topics"].command
    (topics,) = re.findall(r"for topic in (.+); do", script)
    assert topics.split() == [FLIGHTS, *OUTPUTS]
    assert f"--topic $topic --partitions {PARTITIONS}" in script
    assert "--create --if-not-exists" in script


def _problems(place: Topology, service: Service) -> list[str]:
    known = place.services
    problems = []
    for host, port in place.called(service):
        if host not in known:
            problems.append(f"{host}:{port} is nowhere")
        elif not place.together(service, known[host]):
            problems.append(f"{host} is on no network of {service.networks}")
        elif port not in place.listening(known[host]):
            problems.append(f"{host} does not listen on {port}, only on {place.listening(known[host])}")
    return problems


@CALLERS
def test_every_called_service_exists_and_listens(service: Service) -> None:
    assert _problems(topology(service.topology), service) == []


def test_a_wrong_port_a_wrong_name_and_a_missing_network_are_noticed() -> None:
    place = topology("faults")
    job = place.services["job"]

    def calling(address: str) -> list[str]:
        changed = Service(topology="faults", name="job", entry={**job.entry, "command": [f"--brokers={address}"]})
        return _problems(place, changed)

    assert calling("toxiproxy:19092") == []
    assert "does not listen" in calling("toxiproxy:19093")[0]
    assert "nowhere" in calling("kafka-4:9092")[0]
    assert "no network" in calling("kafka-1:9092")[0]


def _bootstrap(place: Topology, service: Service) -> list[list[tuple[str, int]]]:
    """Return the lists of brokers in a service's configuration."""
    lists = [value for option in ("brokers", "servers") for value in service.option(option)]
    lists += re.findall(r"--bootstrap-server (\S+)", " ".join(service.command))
    for target, file in place.config_files(service).items():
        if target in service.option("clusters"):
            lists += [cluster.bootstrap_servers for cluster in load_clusters(file).values()]
    return [
        [(host, int(port)) for host, _, port in (one.partition(":") for one in given.split(","))] for given in lists
    ]


@ALL
def test_clients_get_broker_addresses_that_they_can_reach(name: str) -> None:
    place = topology(name)
    counted = 0
    for service in place.services.values():
        for given in _bootstrap(place, service):
            counted += 1
            (listener,) = {
                listener
                for broker in place.brokers
                for listener, address in broker.advertised().items()
                if address in given
            }
            assert given == [broker.advertised()[listener] for broker in place.brokers], service
            assert all(place.together(service, place.services[host]) for host, _ in given), service
    coordinators = sum("serve" in service.command for service in place.services.values())
    assert counted == coordinators + 4  # topics, job, feeder, check


def test_faults_has_the_services_of_cluster_and_the_network() -> None:
    cluster, faults = topology("cluster"), topology("faults")
    assert faults.services.keys() == cluster.services.keys() | {"toxiproxy"}
    for name, service in cluster.services.items():
        changed = {
            key for key in faults.services[name].entry if faults.services[name].entry[key] != service.entry.get(key)
        }
        assert changed <= {"networks", "environment", "command", "depends_on"}, name


def test_no_client_can_go_around_its_proxy() -> None:
    """No network joins two services of the system on different sides: only the proxies are on both sides."""
    place = topology("faults")
    known = place.services
    sparks = {"spark-master", "spark-worker-1", "spark-worker-2", "job", "doctor"}
    brokers = {broker.name for broker in place.brokers}
    assert known.keys() == sparks | brokers | INSTRUMENTS | {"coordinator", "toxiproxy", "spark-secret"}
    assert known["spark-secret"].entry["network_mode"] == "none"
    sides = [sparks, brokers, {"coordinator"}]
    for side in sides:
        for other in sides:
            together = {(one, two) for one in side for two in other if place.together(known[one], known[two])}
            assert bool(together) == (side is other)
    assert known["toxiproxy"].networks == set(place.model["networks"])
    assert all(options is None for options in place.model["networks"].values())


def test_every_link_of_a_client_has_a_proxy_of_its_own() -> None:
    place = topology("faults")
    proxies = {(host, port): (name, listen) for name, listen, host, port in place.proxies()}
    links: dict[tuple[str, int], str] = {("coordinator", 7878): "coordinator"}
    for broker in place.brokers:
        links[broker.name, broker.listeners()["CLIENT"]] = broker.name
        links[broker.name, broker.listeners()["SETTLING"]] = f"coordinator-{broker.name}"
        for listener in ("CLIENT", "SETTLING"):
            _, listen = proxies[broker.name, broker.listeners()[listener]]
            assert broker.advertised()[listener] == ("toxiproxy", listen)
    conf = place.spark(place.services["job"])
    links["job", int(conf["spark.driver.port"])] = "driver"
    links["job", int(conf["spark.driver.blockManager.port"])] = "driver-blocks"
    assert {behind: name for behind, (name, _) in proxies.items()} == links
    assert len({listen for _, listen in proxies.values()}) == len(proxies)
    # Spark gives executors its own port, so the proxy must listen on the same one.
    assert all(listen == port for (host, port), (_, listen) in proxies.items() if host in ("job", "coordinator"))
    for host, port in links:
        assert place.together(place.services["toxiproxy"], place.services[host])
        assert port in place.listening(place.services[host])


@pytest.mark.parametrize("name", ["cluster", "faults"])
def test_sparks_settings_fit_the_services(name: str) -> None:
    place = topology(name)
    master, job = place.services["spark-master"], place.services["job"]
    conf = place.spark(job)
    assert conf["spark.master"] == f"spark://{master.name}:{master.option('port')[0]}"
    assert conf["spark.submit.deployMode"] == "client"
    assert conf["spark.driver.host"] == ("toxiproxy" if name == "faults" else "job")
    assert conf["spark.driver.bindAddress"] == "0.0.0.0"
    assert conf["spark.speculation"] == "false"
    for service in (job, master):
        settings = place.spark(service)
        assert settings["spark.authenticate"] == settings["spark.network.crypto.enabled"] == "true"
    # the secret itself is in no setting
    assert conf["spark.authenticate.secret"] == "env:_SPARK_AUTH_SECRET"
    workers = [service for service in place.services.values() if service.name.startswith("spark-worker-")]
    assert int(conf["spark.cores.max"]) == sum(int(worker.option("cores")[0]) for worker in workers)
    for worker in workers:
        assert worker.option("host") == [worker.name]
        assert worker.option("cores") == [conf["spark.executor.cores"]]
        assert worker.option("memory") == [conf["spark.executor.memory"]]
        assert worker.image == job.image, "driver and executors need the same Python and the same packages"
        assert worker.command[-1] == conf["spark.master"]
        assert place.spark(worker) == place.spark(master)
        assert worker.entrypoint == master.entrypoint == job.entrypoint
    read = re.findall(r"_SPARK_AUTH_SECRET=\$\(cat (\S+)/secret\)", job.entrypoint[2])
    assert read == [job.mounts["spark-secret"][0]]
    assert master.option("host") == [master.name]
