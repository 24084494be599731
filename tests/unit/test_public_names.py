"""The names that users import, and the refusal of an unusable description where it is written."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import onceward
from onceward import KafkaSink, KafkaSource, Pipeline, connectors
from onceward.common.errors import ConfigurationError
from onceward.connectors import interfaces, slots
from onceward.protocol import committing

PUBLIC = (
    *(
        "CheckpointSettings",
        "DeltaSink",
        "IcebergSink",
        "System",
        "KafkaCluster",
        "KafkaSink",
        "KafkaSource",
        "MetricsEndpoint",
    ),
    *("Pipeline", "PostgresSink", "Restart", "Sink", "Source", "StreamSink", "StreamingPipeline", "kafka_table"),
    *("load_clusters", "register"),
)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_exist_where_the_pages_say(name: str) -> None:
    assert getattr(onceward, name).__name__ == name
    assert name in onceward.__all__


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'KafkaSource2'"):
        onceward.KafkaSource2  # noqa: B018 - reading it is what is tested


@pytest.mark.parametrize("name", connectors.__all__)
def test_the_seam_has_each_of_its_names(name: str) -> None:
    assert getattr(connectors, name) is not None


def test_the_seam_has_every_name_that_its_methods_use() -> None:
    modules = (interfaces, slots, committing)
    used = {name for module in modules for _, name in imported(Path(str(module.__file__)))}
    defined = {name for module in modules for name in module.__all__}
    assert (used | defined) - {"writer_options"} - {*connectors.__all__} == set()


@pytest.mark.whole_tree
@pytest.mark.parametrize(("example", "other_side"), [("custom_sink", "KafkaSource"), ("custom_source", "KafkaSink")])
def test_a_sink_or_source_of_ones_own_needs_only_the_public_names(example: str, other_side: str) -> None:
    found = imported(Path(__file__).resolve().parents[2] / "examples" / f"{example}.py")
    assert {module for module, _ in found} == {"onceward", "onceward.connectors"}
    assert {name for module, name in found if module == "onceward"} == {other_side, "Pipeline"}


def imported(file: Path) -> set[tuple[str, str]]:
    """The names that a file imports of ours, each with its module."""
    return {
        (node.module or "", alias.name) if isinstance(node, ast.ImportFrom) else (alias.name, "")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).startswith("onceward")
    }


def a_job(coordinator: str) -> Pipeline:
    return Pipeline(
        job="orders-eur",
        source=KafkaSource("localhost:9092", topics=["orders"]),
        sink=KafkaSink("localhost:9092", topic="orders-eur"),
        coordinator=coordinator,
    )


@pytest.mark.parametrize("address", ["", "localhost", ":7878", "localhost:0", "localhost:65536", "http://localhost:1"])
def test_a_coordinator_address_that_cannot_be_one_is_refused_at_once(address: str) -> None:
    with pytest.raises(ConfigurationError, match="is no address"):
        a_job(address)


@pytest.mark.parametrize("address", ["localhost:7878", "10.0.0.1:65535", "[::1]:7878", "unix:/run/onceward.sock"])
def test_addresses_of_coordinators_are_taken_without_connecting(address: str) -> None:
    a_job(address)


def test_a_program_on_a_machine_for_a_coordinator_names_what_to_install() -> None:
    """``pip install onceward`` brings neither Spark nor Kafka's clients."""
    code = """
import sys
sys.modules["confluent_kafka"] = sys.modules["pyspark"] = None
from onceward import Pipeline
for name in ("KafkaSource", "kafka_table"):
    try:
        exec(f"from onceward import {name}")
    except ModuleNotFoundError as error:
        print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [
        f"{what}, which is not installed. Install it with: pip install 'onceward[spark]'"
        for what in ("KafkaSource needs confluent_kafka", "kafka_table needs pyspark")
    ]
