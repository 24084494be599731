"""First contact with a cluster: it gives the cluster's id, or within 15 s one clear reason for the failure."""

import logging
import socket
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from onceward import KafkaCluster, KafkaSource
from onceward.common.errors import CheckpointFailedError, ConfigurationError, PreflightError
from onceward.connections.admin import admin_client, reach
from onceward.connectors.interfaces import JobContext
from onceward.dev.kafka import LocalKafka
from onceward.protocol.values import JobName
from onceward.sources.kafka.control.metadata import BrokerView
from onceward.sources.kafka.executor.reader import KafkaSplitReader
from onceward.sources.kafka.positions import Partition
from tests.support.shared_kafka import SharedKafka
from tests.support.topics import Topics, wait_for

PASSWORD = "c4n4ry-0f-the-mine"
SASL = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanisms": "PLAIN",
    "sasl.username": "alice",
    "sasl.password": "env:ONCEWARD_TEST_PASSWORD",
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[LocalKafka]:
    """A broker that admits only alice, and lets her do only what she was granted."""
    properties = {
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listener.name.client.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="{PASSWORD}";'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # Users of the plain listeners: brokers, and the test itself.
        "super.users": "User:ANONYMOUS",
    }
    with LocalKafka(properties=properties, heap="256m") as local:
        yield local


@pytest.fixture
def password(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("ONCEWARD_TEST_PASSWORD", PASSWORD)
    return monkeypatch


def test_a_reachable_cluster_returns_its_id(kafka: SharedKafka) -> None:
    began = time.monotonic()
    assert reach(KafkaCluster(kafka.bootstrap_servers)) == kafka.cluster_id
    assert time.monotonic() - began < 2


def test_one_living_server_of_several_is_enough(kafka: SharedKafka) -> None:
    assert reach(KafkaCluster(f"127.0.0.1:{_closed_port()},{kafka.bootstrap_servers}")) == kafka.cluster_id


@pytest.mark.parametrize("servers", ["closed port", "no-such-host.invalid:9092", "silent"])
def test_an_unreachable_cluster_is_reported_in_time(servers: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = {
            "closed port": f"127.0.0.1:{_closed_port()}",
            # Accepts connections and never answers.
            "silent": f"127.0.0.1:{silent.getsockname()[1]}",
        }.get(servers, servers)
        began = time.monotonic()
        with pytest.raises(PreflightError, match=r"cannot be (reached|found)") as caught:
            reach(KafkaCluster(address), timeout=3)
        assert time.monotonic() - began < 5
    assert address in str(caught.value)


def test_the_default_patience_is_below_15_s() -> None:
    began = time.monotonic()
    with pytest.raises(PreflightError, match="cannot be reached"):
        reach(KafkaCluster(f"127.0.0.1:{_closed_port()}"))
    assert time.monotonic() - began < 15


def test_a_secret_by_reference_opens_both_clients(guarded: LocalKafka, password: pytest.MonkeyPatch) -> None:
    from kafka.admin import KafkaAdminClient

    cluster = KafkaCluster(guarded.bootstrap_servers, config=SASL)
    assert reach(cluster) == guarded.cluster_id
    control = KafkaAdminClient(**cluster.control_config())
    try:
        assert control.describe_cluster()["cluster_id"] == guarded.cluster_id
    finally:
        control.close()


def test_an_executor_reads_with_the_secret_resolved_there(
    guarded: LocalKafka, password: pytest.MonkeyPatch, each_reader: str
) -> None:
    topics = Topics(guarded.internal_servers, f"guarded-{each_reader}")
    topic = topics.create("in")
    topics.fill(topic, [b"a", b"b"])
    # On the topic only: the client names a group to the broker but never uses it.
    grant(topics, topic, AclOperation.READ)
    reader = KafkaSplitReader(cluster=KafkaCluster(guarded.bootstrap_servers, config=SASL), group_id="g")
    split = {"topic": topic, "partition": 0, "start": 0, "end": 2}
    assert [v for batch in reader(split, frozenset({"value"})) for v in batch["value"].to_pylist()] == [b"a", b"b"]


def test_the_preflight_names_topics_that_may_not_be_read(guarded: LocalKafka, password: pytest.MonkeyPatch) -> None:
    topics = Topics(guarded.internal_servers, "rights")
    shown, hidden, open_ = topics.create("shown"), topics.create("hidden"), topics.create("open")
    grant(topics, shown, AclOperation.DESCRIBE)
    grant(topics, open_, AclOperation.READ)
    source = KafkaSource(KafkaCluster(guarded.bootstrap_servers, config=SASL), [shown, hidden, open_])
    source.open(JobContext(job=JobName("j"), checkpoint_timeout=timedelta(minutes=1)))
    try:
        said = {finding.subject: finding.message for finding in source.preflight()}
    finally:
        source.close()
    assert "not read" in said.pop(f"source topics {shown}")
    assert "do not exist" in said.pop(f"source topics {hidden}")
    assert "in plain text" in said.pop("cluster main")
    assert said.keys() == {f"source topic {shown}", f"source topic {open_}"}
    assert set(said.values()) == {"its settings may not be read"}


@pytest.mark.parametrize("wrong", ["password", "user", "mechanism"])
def test_wrong_credentials_are_reported_at_once_and_never_shown(
    guarded: LocalKafka, password: pytest.MonkeyPatch, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    config = dict(SASL)
    if wrong == "password":
        password.setenv("ONCEWARD_TEST_PASSWORD", f"{PASSWORD}-wrong")
    elif wrong == "user":
        config["sasl.username"] = "mallory"
    else:
        config["sasl.mechanisms"] = "SCRAM-SHA-256"
    began = time.monotonic()
    with pytest.raises(PreflightError, match="refused the credentials") as caught:
        reach(KafkaCluster(guarded.bootstrap_servers, config=config))
    assert time.monotonic() - began < 5
    assert PASSWORD not in str(caught.value) + caplog.text


def test_a_wrong_security_protocol_is_reported_as_such(guarded: LocalKafka, kafka: SharedKafka) -> None:
    with pytest.raises(PreflightError, match=r"security\.protocol"):
        reach(KafkaCluster(guarded.bootstrap_servers), timeout=3)
    with pytest.raises(PreflightError, match="TLS"):
        reach(KafkaCluster(kafka.bootstrap_servers, config={"security.protocol": "SSL"}), timeout=3)


def test_settings_that_the_client_does_not_know_are_refused_before_anything_is_connected() -> None:
    with pytest.raises(ConfigurationError, match=r"nonsense\.key"):
        admin_client(KafkaCluster("127.0.0.1:1", config={"nonsense.key": 1}))


def test_a_topic_that_may_not_be_described_is_not_taken_for_a_deleted_one(
    guarded: LocalKafka, password: pytest.MonkeyPatch
) -> None:
    """A job that loses the right would else halt, as if its input were gone."""
    topics = Topics(guarded.internal_servers, "unseen")
    hidden, shown = topics.create("hidden"), topics.create("shown")
    grant(topics, shown, AclOperation.READ)
    view = BrokerView(KafkaCluster(guarded.bootstrap_servers, config=SASL))
    with pytest.raises(CheckpointFailedError, match=rf"did not report topic {hidden}: TOPIC_AUTHORIZATION_FAILED"):
        view.topics([shown, hidden])
    assert view.visible_topics([shown, hidden]).keys() == {shown}


def test_a_group_that_may_not_be_read_is_named(guarded: LocalKafka, password: pytest.MonkeyPatch) -> None:
    topics = Topics(guarded.internal_servers, "ungrouped")
    shown = topics.create("shown")
    grant(topics, shown, AclOperation.READ)
    view = BrokerView(KafkaCluster(guarded.bootstrap_servers, config=SASL), request_timeout=2)
    with pytest.raises(CheckpointFailedError, match="Grant READ on Group 'nobodys'"):
        view.committed("nobodys", [Partition(shown, 0)])


def grant(topics: Topics, topic: str, operation: AclOperation) -> None:
    acl = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )
    wait_for(topics.admin.create_acls([acl])[acl])


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port
