"""Secrets stay references until a client needs them, and are never shown."""

import io
import logging
import pickle
import traceback
from pathlib import Path

import pytest
from kafka.protocol.sasl import SaslAuthenticateRequest

from onceward import KafkaCluster
from onceward.common.errors import ConfigurationError
from onceward.connections.admin import admin_client
from onceward.connections.redaction import redact_control_plane_logs
from onceward.connections.secrets import Secret

CANARY = "c4n4ry-0f-the-mine"


def cluster(password: str, **more: str) -> KafkaCluster:
    return KafkaCluster(
        "127.0.0.1:1",
        config={
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": password,
            **more,
        },
    )


@pytest.mark.parametrize("key", ["sasl.password", "ssl.key.password"])
def test_a_password_in_plain_text_is_refused_without_repeating_it(key: str) -> None:
    with pytest.raises(ConfigurationError, match="env:NAME or file:") as caught:
        cluster("env:X", **{"security.protocol": "SASL_SSL", key: CANARY})
    assert CANARY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("reference", ["env:", "env:a b", "env:1A", "file:", "file:relative/path"])
def test_a_malformed_reference_is_refused_at_construction(reference: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sasl\.password"):
        cluster(reference)


def test_a_reference_where_none_is_understood_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="references are understood only for"):
        KafkaCluster("a:1", config={"client.id": "env:HOSTNAME"})


def test_a_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCEWARD_TEST_MISSING", raising=False)
    with pytest.raises(ConfigurationError, match=r"sasl\.password refers to .*ONCEWARD_TEST_MISSING"):
        cluster("env:ONCEWARD_TEST_MISSING").client_config()


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"])
def test_an_unusable_file_is_named_without_its_content(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        cluster(f"file:{file}").control_config()
    assert str(file) in str(caught.value)


def test_the_largest_secret_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"x" * 65_536)
    assert cluster(f"file:{file}").client_config()["sasl.password"] == "x" * 65_536


@pytest.mark.parametrize("content", [b"x" * 65_537, b"x" * 65_536 + "ü".encode()])
def test_a_secret_that_is_too_large_is_refused_and_never_cut(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "password"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match="larger than 65536 bytes"):
        cluster(f"file:{file}").client_config()


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_one_line_break_at_the_end_of_a_file_is_not_part_of_the_secret(tmp_path: Path, ending: str) -> None:
    file = tmp_path / "password"
    file.write_bytes((f"{CANARY} {ending}").encode())
    assert cluster(f"file:{file}").client_config()["sasl.password"] == f"{CANARY} "


def test_a_secret_is_read_at_each_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEWARD_TEST_PASSWORD", "old")
    value = cluster("env:ONCEWARD_TEST_PASSWORD")
    assert value.client_config()["sasl.password"] == "old"
    monkeypatch.setenv("ONCEWARD_TEST_PASSWORD", "new")
    assert value.client_config()["sasl.password"] == "new"


def test_no_printed_or_pickled_form_contains_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEWARD_TEST_PASSWORD", CANARY)
    value = cluster("env:ONCEWARD_TEST_PASSWORD")
    shown = [repr(value), str(value), repr(value.client_config()), repr(value.control_config())]
    assert [text for text in shown if CANARY in text] == []
    assert CANARY.encode() not in pickle.dumps(value)
    for resolved in (value.client_config(), value.control_config()):
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(resolved)


def test_librdkafka_uses_the_secret_and_keeps_it_out_of_its_debug_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ONCEWARD_TEST_PASSWORD", CANARY)
    caplog.set_level(logging.DEBUG)
    admin = admin_client(cluster("env:ONCEWARD_TEST_PASSWORD", debug="conf,security"))
    admin.poll(0.2)
    assert "sasl.password" in caplog.text
    assert CANARY not in caplog.text


def test_kafka_python_s_debug_log_has_no_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    from kafka.protocol.parser import KafkaProtocol

    stream = io.StringIO()
    root = logging.getLogger("kafka")
    handler = logging.StreamHandler(stream)
    monkeypatch.setattr(root, "handlers", [handler])
    monkeypatch.setattr(root, "level", logging.DEBUG)
    logging.getLogger("kafka.protocol.parser")._cache.clear()  # type: ignore[attr-defined]
    redact_control_plane_logs()

    parser = KafkaProtocol(client_id="test")
    request = SaslAuthenticateRequest(auth_bytes=f"\0alice\0{CANARY}".encode(), version=2)
    parser.send_request(request)
    sent = parser.send_bytes()
    logging.getLogger("kafka.net.connection").debug("%s Request %d: %s", "conn", 1, request)

    assert CANARY.encode() in sent
    assert CANARY not in stream.getvalue()


def test_a_secret_is_still_text_to_a_client() -> None:
    assert "\0".join(["a", Secret(CANARY)]).encode() == f"a\0{CANARY}".encode()
    assert f"{Secret(CANARY)!r}" == "'***'"
