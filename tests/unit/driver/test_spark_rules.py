"""Which sessions and submissions are refused, by their configuration alone."""

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from unittest.mock import Mock

import pytest
from pyspark import SparkConf, SparkContext

from onceward.connectors.interfaces import Severity
from onceward.connectors.slots import Library
from onceward.driver.spark.session import (
    _CHECKSUMS,
    _check_configuration,
    _check_sockets,
    _problems,
    check_closures,
    check_retries,
    check_session,
    check_submission,
    launch,
)


def configuration(**settings: str) -> SparkConf:
    conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        conf.set("spark." + key.replace("_", "."), value)
    return conf


@pytest.mark.parametrize(
    ("settings", "embedded", "refused"),
    [
        ({}, True, False),
        ({"speculation": "true"}, False, True),
        ({"submit_deployMode": "cluster"}, True, True),
        ({"submit_deployMode": "cluster"}, False, False),
        ({"python_worker_reuse": "false"}, True, False),
    ],
)
def test_sessions_that_break_the_promise_are_refused(settings: dict[str, str], embedded: bool, refused: bool) -> None:
    findings = _check_configuration(configuration(**settings), embedded=embedded)
    assert any(finding.severity is Severity.ERROR for finding in findings) is refused


@pytest.mark.parametrize(
    ("settings", "version", "environment", "warned"),
    [
        ({}, "4.3.0", "", True),
        ({"python_unix_domain_socket_enabled": "false"}, "4.10.1-SNAPSHOT", "true", True),
        ({"python_unix_domain_socket_enabled": "true"}, "4.3.0", "", False),
        ({}, "4.1.0", "true", False),
        ({}, "4.0.2", "", False),
    ],
)
def test_a_session_whose_python_tasks_wait_for_tcp_gets_a_warning(
    settings: dict[str, str], version: str, environment: str, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_UDS_MODE", environment)
    findings = _check_sockets(configuration(**settings), version)
    assert [finding.severity for finding in findings] == [Severity.WARNING] * warned


STRICT = {"stage_maxConsecutiveAttempts": "1", "stage_ignoreDecommissionFetchFailure": "false"}


@pytest.mark.parametrize(
    ("version", "checksums", "settings", "refused"),
    [
        ("4.0.1", None, {}, True),
        ("4.0.1", ("true", "true"), {}, True),  # this version has no such setting
        ("4.0.1", None, STRICT, False),
        ("4.0.1", None, {"stage_maxConsecutiveAttempts": "1"}, True),
        ("4.1.4", ("false", "false"), {}, True),
        ("4.1.4", ("true", "false"), {}, True),
        ("4.1.4", ("true", "true"), {}, False),
        ("4.3.0", ("true", "true"), {"shuffle_push_enabled": "true"}, True),
        ("4.3.0", ("false", "false"), STRICT, False),
    ],
)
def test_a_job_that_moves_rows_is_refused_where_spark_may_mix_two_runs_of_a_stage(
    version: str, checksums: tuple[str, str] | None, settings: dict[str, str], refused: bool
) -> None:
    spark = Mock(version=version)
    spark.sparkContext.getConf.return_value = configuration(**settings)
    spark.conf.get.side_effect = dict(zip(_CHECKSUMS, checksums or (), strict=False)).__getitem__
    assert [finding.severity for finding in check_retries(spark)] == [Severity.ERROR] * refused


def test_a_spark_connect_session_is_refused() -> None:
    class ConnectSession:
        """A session without a JVM."""

    (finding,) = check_session(ConnectSession(), embedded=False)
    assert finding.severity is Severity.ERROR
    assert "Connect" in finding.message


@pytest.mark.parametrize("variable", ["SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"])
def test_variables_that_ask_for_spark_connect_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    assert check_submission(embedded=False) == []
    monkeypatch.setenv(variable, "sc://localhost")
    (finding,) = check_submission(embedded=False)
    assert finding.severity is Severity.ERROR
    assert "Connect" in finding.message


def test_several_threads_launch_one_jvm_and_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[str] = []

    def ensure() -> None:
        launched.append(os.environ["SPARK_SUBMIT_OPTS"])
        SparkContext._gateway = object()

    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmine=1")
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", ensure)
    together = Barrier(4)

    def at_once(_: int) -> None:
        together.wait()
        launch(scheduling=True)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(at_once, range(4)))
    (options,) = launched
    assert "-XX:TieredStopAtLevel=1 -Dmine=1" in options
    assert os.environ["SPARK_SUBMIT_OPTS"].startswith("-Dmine=1")


def test_executors_without_a_library_or_with_other_code_are_refused_by_name() -> None:
    libraries = [Library(name, least, "onceward") for name, least in (("psycopg", "3.2"), ("pyarrow", "18"))]
    expected = {"onceward.executor.functions": "a", "onceward.sinks.kafka.executor.writer": "b"}
    right = {"psycopg": "3.10.1", "pyarrow": "26.0.1", **expected}
    assert list(_problems(right, libraries, expected)) == []
    assert list(_problems({**right, "psycopg": "3.1.20"}, libraries, expected)) == [
        "psycopg is 3.1.20, at least 3.2 is needed"
    ]
    absent = "missing: ModuleNotFoundError(\"No module named 'psycopg'\")"
    importing = {**right, "psycopg": absent, "onceward.sinks.kafka.executor.writer": absent}
    assert list(_problems(importing, libraries, expected)) == [f"psycopg is {absent}"], "one line says it"
    wrong = {
        **right,
        "pyarrow": "missing: no module",
        "onceward.executor.functions": "missing: another one",
        "onceward.sinks.kafka.executor.writer": "c",
        "file of onceward.sinks.kafka.executor.writer": "/opt/old/writer.py",
    }
    said = list(_problems(wrong, libraries, expected))
    assert [problem.split(" ")[0] for problem in said] == ["pyarrow", *expected]
    assert "/opt/old/writer.py" in said[-1]


@pytest.mark.parametrize(
    ("settings", "open_to_readers"),
    [
        ({"master": "local[2]"}, False),
        ({"master": "spark://one:7077"}, True),
        ({"master": "k8s://one", "network_crypto_enabled": "true"}, True),
        ({"master": "yarn", "authenticate": "true"}, True),
        ({"master": "yarn", "authenticate": "true", "network_crypto_enabled": "true"}, False),
        ({"master": "yarn", "authenticate": "true", "authenticate_enableSaslEncryption": "true"}, False),
        ({"master": "spark://one:7077", "ssl_rpc_enabled": "true"}, False),
    ],
)
def test_a_secret_of_staying_tasks_that_others_could_read_is_a_finding(
    settings: dict[str, str], open_to_readers: bool
) -> None:
    found = check_closures(configuration(**settings))
    assert [one.subject for one in found] == ["spark.network.crypto.enabled"] * open_to_readers
