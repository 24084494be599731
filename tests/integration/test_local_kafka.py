"""The local Kafka is a real one and leaves nothing behind."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from kafka import KafkaAdminClient

from onceward.dev.errors import LocalServerError
from onceward.dev.kafka import LocalKafka, LocalKafkaError
from onceward.dev.kafka.places import free_ports
from onceward.dev.kafka.settings import NodePorts
from onceward.dev.kafka.topics import make_topics
from tests.support.brokers import needs_transaction_version
from tests.support.shared_kafka import shared_kafka
from tests.support.topics import Topics
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long


def transaction(servers: str, transactional_id: str) -> Producer:
    """A producer in an open transaction."""
    producer = Producer({"bootstrap.servers": servers, "log_level": 0, "transactional.id": transactional_id})
    producer.list_topics(timeout=30)
    producer.init_transactions(30)
    producer.begin_transaction()
    return producer


def finalized_transaction_version(servers: str) -> int:
    admin = KafkaAdminClient(bootstrap_servers=servers.split(","))
    try:
        finalized = admin.describe_features().get("transaction.version", {}).get("finalized")
        return int(finalized[1]) if finalized else 0
    finally:
        admin.close()


def alive(pid: int) -> bool:
    """Whether a process runs; a process that has ended and waits to be reaped does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    try:
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_read_committed_reader_sees_a_committed_transaction_and_no_aborted_one(topics: Topics, job: str) -> None:
    topic = topics.create(partitions=2)
    producer = transaction(topics.servers, job)
    producer.produce(topic, b"committed", partition=0)
    producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"aborted", partition=1)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    assert topics.values(topic) == [b"committed"]
    assert topics.values(topic, committed=False) == [b"committed", b"aborted"]


def test_topics_are_not_made_by_using_them(topics: Topics) -> None:
    topics.admin.list_topics("onceward-no-such-topic", timeout=30)
    assert "onceward-no-such-topic" not in topics.admin.list_topics(timeout=30).topics


@pytest.mark.parametrize("version", [0, 1, 2])
def test_transaction_version_is_the_requested_one(version: int) -> None:
    with LocalKafka(transaction_version=needs_transaction_version(version)) as local:
        assert finalized_transaction_version(local.bootstrap_servers) == version
        topics = Topics(local.bootstrap_servers, "version")
        topic = topics.create()
        producer = transaction(local.bootstrap_servers, "version")
        producer.produce(topic, b"one")
        producer.commit_transaction(30)
        assert topics.values(topic) == [b"one"]


def test_data_and_open_transactions_survive_a_kill_of_the_broker() -> None:
    with LocalKafka() as local:
        topics = Topics(local.bootstrap_servers, "kill")
        topic = topics.create()
        topics.fill(topic, [b"1", b"2"])
        producer = transaction(local.bootstrap_servers, "kill")
        producer.produce(topic, b"3")
        assert producer.flush(30) == 0
        broker, servers = local.pids[1], local.bootstrap_servers
        local.kill()
        assert local.pids == {}
        assert not alive(broker)
        local.restart()
        assert local.bootstrap_servers == servers
        assert topics.values(topic) == [b"1", b"2"]
        producer.commit_transaction(30)
        assert topics.values(topic) == [b"1", b"2", b"3"]


def test_a_named_directory_keeps_its_data_from_run_to_run_and_has_one_user_at_a_time(tmp_path: Path) -> None:
    with LocalKafka(directory=tmp_path) as first:
        topics = Topics(first.bootstrap_servers, "kept")
        topic = topics.create()
        topics.fill(topic, [b"kept"])
        cluster = first.cluster_id
        with pytest.raises(LocalServerError, match="in use by another"):
            LocalKafka(directory=tmp_path).start()
    with LocalKafka(directory=tmp_path) as second:
        assert second.cluster_id == cluster
        assert Topics(second.bootstrap_servers, "kept").values(topic) == [b"kept"]
    with pytest.raises(LocalKafkaError, match="transaction_version"):
        LocalKafka(directory=tmp_path, transaction_version=needs_transaction_version(1)).start()


def test_three_brokers_replicate_everything_three_times_and_work_on_when_one_is_killed() -> None:
    with LocalKafka(brokers=3) as local:
        topics = Topics(local.bootstrap_servers, "three")
        topic = topics.create(partitions=3)
        producer = transaction(local.bootstrap_servers, "three")
        producer.produce(topic, b"before", partition=0)
        producer.commit_transaction(30)
        metadata = topics.admin.list_topics(timeout=30)
        assert len(metadata.brokers) == 3
        for name in (topic, "__transaction_state"):
            assert {len(partition.replicas) for partition in metadata.topics[name].partitions.values()} == {3}
        resource = ConfigResource(ResourceType.TOPIC, topic)
        described = topics.admin.describe_configs([resource])[resource].result(30)
        assert described["min.insync.replicas"].value == "2"
        local.kill(1)
        producer.begin_transaction()
        producer.produce(topic, b"while one is down", partition=0)
        producer.commit_transaction(60)
        local.restart(1)
        assert sorted(local.pids) == [1, 2, 3]
        assert topics.values(topic) == [b"before", b"while one is down"]


def test_the_client_listener_can_require_credentials_while_the_internal_one_stays_open() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_reader="right" user_writer="right";'
    properties = {
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listener.name.client.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": jaas,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:writer",
    }

    def topics_of(user: str, password: str) -> list[str]:
        client = AdminClient(
            {
                "bootstrap.servers": local.bootstrap_servers,
                "log_level": 0,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": user,
                "sasl.password": password,
            }
        )
        return [name for name in client.list_topics(timeout=5).topics if not name.startswith("__")]

    with LocalKafka(properties=properties) as local:
        topic = Topics(local.internal_servers, "secured").create()
        assert topics_of("writer", "right") == [topic]
        assert topics_of("reader", "right") == []
        with pytest.raises(KafkaException):
            topics_of("writer", "wrong")


OWNER = """
import signal, sys, tempfile
from onceward.dev.kafka import LocalKafka
kafka = LocalKafka(brokers=int(sys.argv[1]))
kafka.start()
print(*kafka.pids.values(), kafka.directory, flush=True)
signal.pause()
"""


def owner(brokers: int, temporary: Path) -> tuple["subprocess.Popen[str]", list[int], Path]:
    """(a process that owns a local Kafka, its brokers' process ids, its directory)."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(brokers)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert process.stdout is not None
    *pids, directory = process.stdout.readline().split()
    process.stdout.close()
    assert directory.startswith(str(temporary))
    return process, [int(pid) for pid in pids], Path(directory)


@pytest.mark.parametrize("brokers", [1, 3])
def test_no_broker_and_no_file_outlives_an_owner_that_is_killed(brokers: int, tmp_path: Path) -> None:
    process, pids, directory = owner(brokers, tmp_path)
    assert len(pids) == brokers
    assert all(map(alive, pids))
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(alive, pids)), "the brokers end with their owner", 10)
    wait_until(lambda: not directory.exists(), "the temporary directory is removed", 10)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's part; needs Linux")
def test_a_broker_ends_with_its_supervisor_and_the_next_start_removes_their_leftovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, (broker,), directory = owner(1, tmp_path)
    supervisor = int(Path(f"/proc/{broker}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: not alive(broker), "the broker ends with its supervisor", 10)
    process.kill()
    process.wait()
    assert directory.exists()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with LocalKafka() as local:
        assert not directory.exists()
        AdminClient({"bootstrap.servers": local.bootstrap_servers}).list_topics(timeout=30)


def test_a_broker_that_cannot_start_is_reported_with_its_own_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(LocalKafkaError, match=r"num\.io\.threads"):
        LocalKafka(properties={"num.io.threads": "many"}).start()
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_another_process_takes_at_the_last_moment_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as rival:
        taken = rival.getsockname()[1]
        tries: list[int] = []

        def unlucky_first(nodes: int, first: int | None, extra: int) -> Sequence[NodePorts]:
            ports = free_ports(nodes, first, extra)
            tries.append(nodes)
            return [replace(ports[0], client=taken)] if len(tries) == 1 else ports

        monkeypatch.setattr("onceward.dev.kafka.cluster.free_ports", unlucky_first)
        with LocalKafka() as local:
            assert len(tries) == 2
            assert str(taken) not in local.bootstrap_servers
            assert AdminClient({"bootstrap.servers": local.bootstrap_servers}).list_topics(timeout=30).brokers
        with pytest.raises(LocalServerError, match=f"Port {taken} .* is in use"):
            LocalKafka(port=taken).start()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_makes_topics_prints_bootstrap_servers_and_stops_cleanly_on_a_signal(
    number: signal.Signals,
) -> None:
    command = [sys.executable, "-m", "onceward.operate", "dev", "kafka", "--partitions", "2"]
    command += ["--topic", "orders", "--topic", "orders-eur", "--topic", "orders"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            servers = process.stdout.readline().strip()
            found = AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=30).topics
            made = {name: len(topic.partitions) for name, topic in found.items() if not name.startswith("__")}
            assert made == {"orders": 2, "orders-eur": 2}
            make_topics(servers, ["orders"], partitions=2, replicas=1)  # exists already, as in a kept directory
            with pytest.raises(LocalKafkaError, match="Topic no/name was not made"):
                make_topics(servers, ["no/name"], partitions=2, replicas=1)
            process.send_signal(number)
            _, said = process.communicate(timeout=30)
            assert process.returncode == 0
            assert "Traceback" not in said
        finally:
            process.kill()


def test_a_shared_broker_runs_until_its_last_user_has_ended(tmp_path: Path) -> None:
    first = ExitStack()
    with ThreadPoolExecutor(1) as pool:
        shared = first.enter_context(shared_kafka(tmp_path))
        with shared_kafka(tmp_path) as same:
            assert same == shared
            ending = pool.submit(first.close)
            admin = AdminClient({"bootstrap.servers": shared.bootstrap_servers, "log_level": 0})
            assert admin.list_topics(timeout=30).brokers
            assert not ending.done()
        ending.result(60)
    with shared_kafka(tmp_path) as next_one:
        assert next_one.cluster_id != shared.cluster_id
