"""librdkafka's settings: which of them are followed, and what they mean."""

import pytest

from onceward import KafkaCluster
from onceward.connections.sockets.metadata import Address
from onceward.connections.sockets.settings import ConnectionSettings, unfollowed
from onceward.connections.translate import REFERENCE_KEYS
from onceward.sources.kafka.client.native.settings import FOLLOWED, FetchSettings
from onceward.sources.kafka.executor.reader import KafkaSplitReader


def config(**more: str) -> dict[str, object]:
    cluster = KafkaCluster("a:1,[::1]:2", config={key.replace("_", "."): value for key, value in more.items()})
    return KafkaSplitReader(cluster=cluster, group_id="g").settings()


def test_all_that_a_reader_sets_by_itself_is_followed() -> None:
    assert unfollowed(config(), FOLLOWED) == []


def test_settings_of_security_are_followed() -> None:
    assert unfollowed(dict.fromkeys([*REFERENCE_KEYS, "security.protocol", "sasl.mechanisms"], "x"), FOLLOWED) == []


@pytest.mark.parametrize(
    "key", ["client.rack", "debug", "broker.address.family", "statistics.interval.ms", "sasl.kerberos.keytab"]
)
def test_a_setting_that_only_librdkafka_knows_is_named(key: str) -> None:
    assert unfollowed({**config(), key: "x"}, FOLLOWED) == [key]


def test_a_value_that_only_librdkafka_knows_is_named() -> None:
    known, unknown = "use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"
    assert unfollowed(config(client_dns_lookup=known), FOLLOWED) == []
    assert unfollowed(config(client_dns_lookup=unknown), FOLLOWED) == ["client.dns.lookup"]
    assert unfollowed({**config(), "isolation.level": "read_uncommitted"}, FOLLOWED) == ["isolation.level"]


def test_the_limits_and_servers_of_a_cluster_are_understood() -> None:
    made = ConnectionSettings.of(config(client_id="c", reconnect_backoff_ms="70"))
    assert made.bootstrap == [Address("a", 1), Address("::1", 2)]
    assert (made.setup_s, made.answer_s, made.pause_s, made.longest_pause_s) == (10.0, 12.0, 0.07, 2.0)
    assert (made.client_id, made.keep_alive, made.idle_s, made.tls, made.mechanism) == ("c", True, None, False, None)


def test_no_secret_is_shown() -> None:
    made = ConnectionSettings.of({"bootstrap.servers": "a:1", "sasl.password": "s3cret", "ssl.key.password": "s3cret"})
    assert "s3cret" not in repr(made)


def test_two_answers_fit_into_what_may_wait() -> None:
    made = FetchSettings.of(config())
    assert 2 * made.answer_bytes == 32 * 1024 * 1024
    assert (made.partition_bytes, made.ahead, made.check) == (2 * 1024 * 1024, True, True)
    assert FetchSettings.of({**config(), "queued.min.messages": "1"}).ahead is False
    assert FetchSettings.of(config(check_crcs="false")).check is False
