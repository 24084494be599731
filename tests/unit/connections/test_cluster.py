"""A cluster is one value for both clients, and refuses settings that only one of them would understand."""

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import KafkaCluster
from onceward.common.errors import ConfigurationError
from onceward.connections.limits import CLIENT_LIMITS

SASL = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanisms": "SCRAM-SHA-512",
    "sasl.username": "alice",
    "sasl.password": "env:ONCEWARD_TEST_PASSWORD",
}


@pytest.mark.parametrize(
    "servers", ["a:1", "a.example:9092,b.example:9092", " a:1 , b:2 ", "[::1]:9092", "10.0.0.1:65535"]
)
def test_host_and_port_are_accepted(servers: str) -> None:
    assert KafkaCluster(servers).bootstrap_servers == ",".join(part.strip() for part in servers.split(","))


@pytest.mark.parametrize(
    "servers",
    [
        "",
        " ",
        "a",
        "a:",
        ":9092",
        "a:0",
        "a:65536",
        "a:1,",
        "a:1,,b:2",
        "a b:1",
        "SSL://a:1",
        "a:1;b:2",
        "a:-1",
        None,
        7,
    ],
)
def test_anything_else_is_refused_before_a_client_sees_it(servers: Any) -> None:
    with pytest.raises(ConfigurationError, match="bootstrap servers"):
        KafkaCluster(servers)


@given(st.text())
def test_no_text_makes_the_constructor_fail_otherwise(servers: str) -> None:
    try:
        KafkaCluster(servers)
    except ConfigurationError:
        return
    assert ":" in servers


def test_a_cluster_stays_as_it_is() -> None:
    cluster = KafkaCluster.of(KafkaCluster("a:1", name="eu"))
    assert cluster.name == "eu"
    assert KafkaCluster.of("a:1") == KafkaCluster("a:1")
    with pytest.raises(AttributeError):
        cluster.name = "us"  # type: ignore[misc]
    with pytest.raises(TypeError):
        cluster.config["linger.ms"] = "1"  # type: ignore[index]


def test_equal_clusters_are_one_key_and_survive_the_way_to_an_executor() -> None:
    one = KafkaCluster("a:1", config={"linger.ms": 5, "socket.keepalive.enable": True})
    two = pickle.loads(pickle.dumps(KafkaCluster("a:1", config={"socket.keepalive.enable": "true", "linger.ms": "5"})))
    assert one == two
    assert hash(one) == hash(two)
    assert len({one, two, KafkaCluster("a:2")}) == 2


def test_every_key_that_cannot_be_carried_over_is_named_at_once_with_a_way_out() -> None:
    refused: dict[str, Any] = {
        "ssl.ca.pem": "-----BEGIN",
        "ssl.key.pem": "-----BEGIN",
        "ssl.keystore.location": "/k.p12",
        "ssl.cipher.suites": "X",
        "sasl.oauthbearer.config": "x",
        "sasl.kerberos.keytab": "/x",
        "oauth_cb": lambda _: None,
        "error_cb": print,
        "enable.ssl.certificate.verification": False,
        "ssl.ca.location": "probe",
        "security.protocol": "TLS",
        "plugin.library.paths": "x",
        "bootstrap.servers": "b:1",
        "https.ca.location": "x",
    }
    with pytest.raises(ConfigurationError) as caught:
        KafkaCluster("a:1", config=refused)
    message = str(caught.value)
    assert [key for key in refused if key not in message] == []
    assert "ssl.ca.location" in message
    assert "BEGIN" not in message


@pytest.mark.parametrize("mechanism", ["GSSAPI", "OAUTHBEARER", "AWS_MSK_IAM", ""])
def test_mechanisms_of_only_one_client_are_refused(mechanism: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sasl\.mechanisms"):
        KafkaCluster("a:1", config={**SASL, "sasl.mechanisms": mechanism})


@pytest.mark.parametrize("missing", ["sasl.mechanisms", "sasl.username", "sasl.password"])
def test_half_of_a_login_is_refused(missing: str) -> None:
    with pytest.raises(ConfigurationError, match=missing):
        KafkaCluster("a:1", config={key: value for key, value in SASL.items() if key != missing})


def test_a_login_without_a_protocol_that_uses_it_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"security\.protocol"):
        KafkaCluster("a:1", config={key: value for key, value in SASL.items() if key != "security.protocol"})


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT", None])
@pytest.mark.parametrize("key", ["ssl.ca.location", "ssl.endpoint.identification.algorithm"])
def test_ssl_settings_without_ssl_are_refused_because_everything_would_be_sent_in_plain_text(
    protocol: str | None, key: str
) -> None:
    config = SASL if protocol == "SASL_PLAINTEXT" else {}
    given = {**config, key: "https", **({"security.protocol": protocol} if protocol else {})}
    with pytest.raises(ConfigurationError, match=r"ignores the ssl\.\* settings and sends everything in plain text"):
        KafkaCluster("a:1", config=given)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"ssl.endpoint.identification.algorithm": "https"}, []),
        ({"ssl.endpoint.identification.algorithm": "none"}, ["host names are not checked"]),
        ({"security.protocol": "sasl_plaintext", "sasl.mechanisms": "plain"}, ["password crosses the network"]),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "SCRAM-SHA-512"}, []),
        ({"sasl.mechanisms": "PLAIN"}, []),
    ],
    ids=str,
)
def test_what_a_peer_on_the_network_could_use_is_named_with_its_remedy(
    changes: dict[str, str], found: list[str]
) -> None:
    weaknesses = list(KafkaCluster("a:1", config={**SASL, **changes}).weaknesses())
    assert len(weaknesses) == len(found)
    assert all(said in message for said, (message, _) in zip(found, weaknesses, strict=True))


def test_every_client_has_our_time_limits_unless_the_user_sets_others() -> None:
    assert CLIENT_LIMITS.items() <= KafkaCluster("a:1").client_config().items()
    mine = KafkaCluster("a:1", config={"socket.timeout.ms": 60_000})
    assert mine.client_config()["socket.timeout.ms"] == "60000"
    assert mine.client_config(**{"reconnect.backoff.ms": 7})["reconnect.backoff.ms"] == 7


def test_data_path_settings_reach_only_the_data_path() -> None:
    cluster = KafkaCluster("a:1,b:2", config={"linger.ms": 7, "compression.type": "lz4", "socket.nagle.disable": True})
    assert cluster.client_config() == {
        **CLIENT_LIMITS,
        "bootstrap.servers": "a:1,b:2",
        "linger.ms": "7",
        "compression.type": "lz4",
        "socket.nagle.disable": "true",
    }
    assert cluster.control_config() == {"bootstrap_servers": ["a:1", "b:2"]}


def test_overrides_win_and_leave_the_cluster_alone() -> None:
    cluster = KafkaCluster("a:1", config={"linger.ms": 7})
    overrides: dict[str, Any] = {"linger.ms": 1, "group.id": "g"}
    assert cluster.client_config(**overrides)["linger.ms"] == 1
    assert cluster.client_config()["linger.ms"] == "7"


def test_security_is_the_same_for_both_clients(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("ONCEWARD_TEST_PASSWORD", "hunter2")
    monkeypatch.setenv("ONCEWARD_TEST_KEY_PASSWORD", "k3y")
    files = {name: tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem", "crl.pem")}
    for file in files.values():
        file.write_text("x")
    config: dict[str, Any] = {
        **SASL,
        "client.id": "me",
        "ssl.ca.location": str(files["ca.pem"]),
        "ssl.certificate.location": str(files["cert.pem"]),
        "ssl.key.location": str(files["key.pem"]),
        "ssl.crl.location": str(files["crl.pem"]),
        "ssl.key.password": "env:ONCEWARD_TEST_KEY_PASSWORD",
        "ssl.endpoint.identification.algorithm": "none",
        "reconnect.backoff.max.ms": 900,
    }
    cluster = KafkaCluster("a:1", config=config)
    assert cluster.control_config() == {
        "bootstrap_servers": ["a:1"],
        "client_id": "me",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "hunter2",
        "ssl_cafile": str(files["ca.pem"]),
        "ssl_certfile": str(files["cert.pem"]),
        "ssl_keyfile": str(files["key.pem"]),
        "ssl_crlfile": str(files["crl.pem"]),
        "ssl_password": "k3y",
        "ssl_check_hostname": False,
        "reconnect_backoff_max_ms": 900,
    }
    assert cluster.client_config()["sasl.password"] == "hunter2"
    assert cluster.client_config()["ssl.key.password"] == "k3y"


def test_kafka_python_accepts_every_translated_name() -> None:
    from kafka.admin.client import KafkaAdminClient
    from kafka.net.manager import KafkaConnectionManager

    from onceward.connections import translate

    ours = {*translate._SAME_TEXT.values(), *translate._SAME_NUMBER.values()}
    ours |= {"bootstrap_servers", "security_protocol", "sasl_mechanism", "ssl_check_hostname"}
    assert ours <= set(KafkaAdminClient.DEFAULT_CONFIG)
    assert ours <= set(KafkaConnectionManager.DEFAULT_CONFIG)


def test_a_directory_of_authorities_is_refused_where_it_is_used(tmp_path: Any) -> None:
    cluster = KafkaCluster("a:1", config={"security.protocol": "SSL", "ssl.ca.location": str(tmp_path)})
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location"):
        cluster.control_config()
