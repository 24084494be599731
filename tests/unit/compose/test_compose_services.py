"""The files of compose/ are consistent: images, health, order, stores, limits, reachable ports."""

import re
from pathlib import PurePosixPath

import pytest
import yaml

from onceward.dev.kafka.versions import DEFAULT_VERSION, jars_of
from onceward.protocol.settings import CheckpointSettings
from tests.support.compose import FILES, FOLDER, ROOT, Service, merged, read, services, topology
from tests.unit.compose.dockerfile import IMAGES, stages

EACH = pytest.mark.parametrize("service", services(), ids=str)
ALL = pytest.mark.parametrize("name", FILES)

_KEYS = set(
    "build cap_drop command configs depends_on deploy entrypoint environment healthcheck image init network_mode "
    "networks ports profiles read_only restart security_opt stop_grace_period tmpfs user volumes".split()
)
"""The keys that these tests check; another key needs a test first."""


def test_every_file_of_the_folder_belongs_to_a_topology() -> None:
    used = {FOLDER / file for files in FILES.values() for file in files} | {FOLDER / "Dockerfile"}
    for name in FILES:
        used |= {FOLDER / config["file"] for config in topology(name).model["configs"].values()}
        used |= {FOLDER / config["file"] for file in FILES[name] for config in read(file)["configs"].values()}
    assert {path for path in FOLDER.rglob("*") if path.is_file()} == used


def test_a_key_that_is_given_twice_is_refused(tmp_path: object) -> None:
    from tests.support.compose import _Loader

    for text in ("a: 1\na: 2\n", "x: &x {b: 1}\na: {<<: *x, b: 2, b: 3}\n"):
        with pytest.raises(AssertionError, match="twice"):
            yaml.load(text, Loader=_Loader)
    assert yaml.load("x: &x {b: 1}\na: {<<: *x, b: 2}\n", Loader=_Loader)["a"] == {"b": 2}


def test_an_override_changes_mappings_and_commands_and_no_other_list() -> None:
    assert merged({"s": {"command": ["a"], "e": {"x": "1"}}}, {"s": {"command": ["b"], "e": {"y": "2"}}}) == {
        "s": {"command": ["b"], "e": {"x": "1", "y": "2"}}
    }
    with pytest.raises(AssertionError, match="joins lists"):
        merged({"s": {"ports": ["1"]}}, {"s": {"ports": ["2"]}})


@ALL
def test_topologies_do_not_share_volumes_or_networks_by_having_one_name(name: str) -> None:
    names = [topology(other).model["name"] for other in FILES]
    assert topology(name).model["name"] == f"onceward-{name}"
    assert len(set(names)) == len(names)


@EACH
def test_every_key_of_a_service_is_checked_here(service: Service) -> None:
    assert service.entry.keys() <= _KEYS


@EACH
def test_images_are_pinned_and_ours_are_built_from_a_stage_of_the_dockerfile(service: Service) -> None:
    repository, _, tag = service.image.partition(":")
    assert re.fullmatch(r"\d+\.\d+[\w.-]*", tag)
    assert "." not in repository, "the name of a registry"
    build = service.entry.get("build")
    assert (build is not None) == repository.startswith("onceward/")
    if build is not None:
        assert build == {
            "context": "..",
            "dockerfile": "compose/Dockerfile",
            "target": repository.removeprefix("onceward/"),
        }
        assert build["target"] in IMAGES
        assert build["target"] in stages()


def test_images_have_the_versions_that_the_tests_of_this_repository_use() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    broker = re.search(r":kafka_2\.13:([\d.]+)$", jars_of(DEFAULT_VERSION), flags=re.MULTILINE)
    database = re.search(  # the first is the default
        r"linux-amd64:([\d.]+)\.0$", (ROOT / "dev/postgres/jars.txt").read_text(), flags=re.MULTILINE
    )
    proxy = re.findall(r"toxiproxy/v2/cmd/\w+@v([\d.]+)", (FOLDER / "Dockerfile").read_text())
    assert version is not None
    assert broker is not None
    assert database is not None
    assert len(set(proxy)) == 1
    assert {service.image for service in services()} == {
        f"onceward/coordinator:{version[1]}",
        f"onceward/job:{version[1]}",
        f"onceward/toxiproxy:{proxy[0]}",
        f"apache/kafka:{broker[1]}",
        f"postgres:{database[1]}-bookworm",
    }
    assert f"onceward/coordinator:{version[1]} ." in (FOLDER / "Dockerfile").read_text()


@EACH
def test_long_running_services_restart_and_have_health_checks(service: Service) -> None:
    """A driver has no check: `onceward jobs` shows its state. After a stop it exits with 0 and is not restarted."""
    if service.name == "job":
        assert service.entry["restart"] == "on-failure"
        return
    assert service.entry.get("restart") in (None, "unless-stopped")
    assert service.stays == bool(service.health)
    if service.stays:
        assert service.seconds("timeout") < service.seconds("interval")
        assert service.seconds("start_interval") < service.seconds("interval") < service.seconds("start_period") * 2
        assert service.entry["healthcheck"]["retries"] == 3
        assert service.entry["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")


@EACH
def test_services_wait_for_existing_and_reachable_conditions(service: Service) -> None:
    known = topology(service.topology).services
    for name, wanted in service.entry.get("depends_on", {}).items():
        assert wanted.keys() == {"condition"}
        assert name in known
        if wanted["condition"] == "service_healthy":
            assert known[name].health
        else:
            assert wanted["condition"] == "service_completed_successfully"
            assert not known[name].stays
        assert "profiles" not in known[name].entry


@ALL
def test_services_do_not_wait_for_each_other_in_a_circle(name: str) -> None:
    known = topology(name).services
    begun: set[str] = set()
    while begun != known.keys():
        ready = {one for one in known if known[one].entry.get("depends_on", {}).keys() <= begun}
        assert ready > begun
        begun = ready


@ALL
def test_the_job_starts_when_everything_that_it_needs_is_there(name: str) -> None:
    known = topology(name).services

    def before(service: str) -> set[str]:
        direct = set(known[service].entry.get("depends_on", {}))
        return direct.union(*(before(other) for other in direct))

    assert before("job") == known.keys() - {"job", "feeder", "check"}


@ALL
def test_a_store_has_its_own_volume_in_one_service(name: str) -> None:
    place = topology(name)
    declared = place.model["volumes"]
    assert all(options is None for options in declared.values()), "a driver may put the store on a network filesystem"
    mounts = [
        (volume, target, service.name)
        for service in place.services.values()
        for volume, (target, _) in service.mounts.items()
    ]
    assert {volume for volume, _, _ in mounts} == set(declared)
    mounts = [mount for mount in mounts if not mount[0].endswith(("-secret", "-secrets"))]
    homes = {volume: (target, owner) for volume, target, owner in mounts}
    assert len(homes) == len(mounts)
    (store,) = place.services["coordinator"].option("store")
    target, owner = homes.pop("coordinator")
    assert owner == "coordinator"
    if name == "leaders":
        target, owner = homes.pop("postgres")
        assert (target, owner) == ("/var/lib/postgresql/data", "postgres")
        assert store.startswith("postgresql://onceward@postgres:5432/")
    else:
        assert PurePosixPath(store.removeprefix("sqlite:///")).is_relative_to(target)
    assert {target for target, _ in homes.values()} == {"/var/lib/kafka/data"}
    for broker in place.brokers:
        assert homes[broker.name] == (broker.environment["KAFKA_LOG_DIRS"], broker.name)


@ALL
def test_one_service_makes_a_secret_and_the_others_only_read_it(name: str) -> None:
    known = topology(name).services
    readers: dict[str, set[str]] = {}
    for volume in topology(name).model["volumes"]:
        if not volume.endswith(("-secret", "-secrets")):
            continue
        users = {service: known[service].mounts[volume] for service in known if volume in known[service].mounts}
        (maker,) = [service for service, (_, writes) in users.items() if writes]
        assert not known[maker].stays
        assert known[maker].entry["network_mode"] == "none", "it needs none"
        assert users.keys() & {"kafka", "topics", "feeder"} == set()
        readers[volume] = users.keys() - {maker}
    expected = {
        "leaders": {
            "coordinator-secrets": {"coordinator", "coordinator-2"},
            "job-secrets": {"job", "doctor", "check"},
            "store-secrets": {"coordinator", "coordinator-2", "postgres"},
        }
    }
    sparks = {"spark-secret": {"job", "spark-master", "spark-worker-1", "spark-worker-2"}}
    assert readers == expected.get(name, sparks if "spark-master" in known else {})


@ALL
def test_one_process_decides_or_the_database_says_which(name: str) -> None:
    servers = [service for service in topology(name).services.values() if "serve" in service.command]
    several = ["coordinator", "coordinator-2"]
    assert [service.name for service in servers] == (several if name == "leaders" else several[:1])
    for server in servers:
        assert "replicas" not in server.entry["deploy"]


@EACH
def test_a_service_may_not_take_the_whole_machine(service: Service) -> None:
    limits = service.entry["deploy"]["resources"]["limits"]
    if "serve" in service.command:  # a leader that is held up would lose the lead
        assert limits.keys() == {"memory", "pids"}
    else:
        assert limits.keys() == {"cpus", "memory", "pids"}
        assert float(limits["cpus"]) > 0
    assert re.fullmatch(r"\d+[gm]", limits["memory"])
    assert 0 < limits["pids"] <= 4_000  # a kernel has 32,768


@EACH
def test_a_service_runs_with_nothing_that_it_does_not_need(service: Service) -> None:
    assert service.entry["cap_drop"] == ["ALL"]
    assert service.entry["security_opt"] == ["no-new-privileges:true"]
    ours = service.image.startswith("onceward/")
    # a first process that forwards signals and reaps the processes that Python and Java leave behind
    assert service.entry.get("init", False) == (ours and not service.image.startswith("onceward/toxiproxy"))
    # ours and the brokers' images name a user; PostgreSQL's begins as root to change owners
    assert service.entry.get("user") == ("999:999" if service.image.startswith("postgres:") else None)
    # Spark and the brokers write next to their programs
    if not service.image.startswith(("onceward/job:", "apache/kafka:")):
        assert service.entry["read_only"] is True
        if not service.image.startswith("onceward/toxiproxy"):
            assert "/tmp" in service.entry["tmpfs"]


@EACH
def test_ports_are_open_to_this_machine_only(service: Service) -> None:
    for port in service.entry.get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port)
        assert int(port.rpartition(":")[2]) in topology(service.topology).listening(service)
    assert "ports" not in service.entry or service.name == "spark-master", "a page of Spark only"


@EACH
def test_there_is_time_to_leave_with_everything_settled(service: Service) -> None:
    if service.name == "job":
        assert service.seconds("stop_grace_period") > CheckpointSettings().seconds("timeout")
    if service.name == "coordinator" or service.is_kafka:
        assert service.seconds("stop_grace_period") >= 10


@EACH
def test_nothing_looks_like_a_secret(service: Service) -> None:
    for name, value in service.environment.items():
        if re.search(r"PASSWORD|SECRET|TOKEN|CREDENTIAL|_KEY|JAAS", name):
            assert name in ("ONCEWARD_TLS_KEY", "POSTGRES_PASSWORD_FILE")
            assert value.startswith("/"), "a file, which the service reads"
        assert not re.search(r"\w+://[^/\s]*:[^/\s]*@", value)
    texts = [FOLDER / file for file in FILES[service.topology]]
    texts += topology(service.topology).config_files(service).values()
    for file in texts:
        for found in re.findall(
            r"(?im)^\s*\"?[\w.-]*(?:password|secret|jaas)[\w.-]*\"?\s*[:=][^\S\n]*([^\s{$].*)$", file.read_text()
        ):
            # a reference, a path, or the name of one of the files
            assert re.match(r"\"(?:env|file):|/|file:", found), f"{file.name}: {found}"
