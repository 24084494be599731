"""How spans are exported: as the variables OTEL_* say, and never in the way of a checkpoint."""

import logging
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from onceward.common.errors import ConfigurationError, ExitCode
from onceward.driver.tracing import DriverTraces
from onceward.protocol.events import CloseReason
from onceward.protocol.values import CheckpointId, JobName
from onceward.watch.traces import spans as module
from onceward.watch.traces.ids import ids_of
from onceward.watch.traces.names import SpanName, identity
from onceward.watch.traces.spans import Spans
from tests.support.collector import Collector
from tests.support.commands import onceward_process
from tests.support.running_job import JOB, Coordinator, Job
from tests.support.scripted import free_port
from tests.support.waiting import wait_until

HERE = identity("orders", 1, 1)


def traced(count: int) -> list[str]:
    """Record the roots of some checkpoints; return their traces."""
    made = [ids_of("store-a", JobName("orders"), CheckpointId(number)) for number in range(1, count + 1)]
    with closing(Spans("onceward-test")) as spans:
        for ids in made:
            spans.root(ids, 1.0, 2.0, HERE)
            spans.child(ids, SpanName.PLAN, 1.0, 1.5, HERE)
    return [f"{ids.trace:032x}" for ids in made]


def test_the_standard_variables_name_the_service_and_send_headers(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "payments")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret")
    (trace,) = traced(1)
    assert {span.service for span in collector.trace(trace).spans} == {"payments"}
    assert collector.metadata["api-key"] == "secret"
    assert "secret" not in repr(collector.trace(trace).spans)


def test_a_ratio_takes_or_leaves_whole_traces_alike_in_every_process(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    made = traced(100)
    first = {trace: collector.trace(trace).names for trace in made}
    assert traced(100) == made
    for trace, names in first.items():
        assert names in ([], ["checkpoint", "plan"])
        assert collector.trace(trace).names == sorted(names * 2)
    assert 0 < sum(map(bool, first.values())) < 100


@pytest.mark.parametrize("variable", ["OTEL_SDK_DISABLED=true", "OTEL_TRACES_EXPORTER=none"])
def test_the_standard_switches_switch_off(collector: Collector, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(*variable.split("=", 1))
    traced(3)
    assert not collector.asked.is_set()


@pytest.mark.parametrize(
    ("variable", "named"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "opentelemetry-exporter-otlp-proto-http"),
        ("OTEL_TRACES_EXPORTER=carrier-pigeon", "carrier-pigeon"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT=soon", "soon"),
    ],
)
def test_variables_that_cannot_be_used_are_named(monkeypatch: pytest.MonkeyPatch, variable: str, named: str) -> None:
    monkeypatch.setenv(*variable.split("=", 1))
    with pytest.raises(ConfigurationError, match=named) as found:
        Spans("onceward-test")
    assert "Nothing was started" in str(found.value)


def test_a_collector_that_never_answers_delays_neither_checkpoints_nor_the_end(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CLOSE_S", 0.2)
    answers = threading.Event()

    def hang() -> None:
        answers.wait(150)

    collector.answers = hang
    try:
        with closing(Spans("onceward-driver")) as spans:
            job = Job(Coordinator(), until=200, traces=DriverTraces(spans, JOB))
            assert job.generation.run() is CloseReason.STOPPED
            assert len(job.committed) == 199
            wait_until(collector.asked.is_set, "the collector is asked")
        assert not answers.is_set()  # the end did not wait for it
        assert collector.all().spans == []
    finally:
        answers.set()


def test_the_end_does_not_wait_for_an_exporter_that_hangs(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CLOSE_S", 0.1)
    spans, hung = Spans("onceward-test"), threading.Event()
    monkeypatch.setattr(spans._provider, "shutdown", hung.wait)
    spans.close()
    assert not hung.is_set()
    hung.set()


def test_an_exporter_that_refuses_fails_no_checkpoint_and_drops_what_is_too_much(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_CLOSE_S", 0.2)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "16")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
    with caplog.at_level(logging.WARNING), closing(Spans("onceward-driver")) as spans:
        job = Job(Coordinator(), until=50, traces=DriverTraces(spans, JOB))
        assert job.generation.run() is CloseReason.STOPPED
        assert len(job.committed) == 49
    assert "Queue full, dropping Span." in caplog.text


@pytest.mark.slow
def test_nothing_of_opentelemetry_is_imported_without_traces() -> None:
    code = (
        "import sys\n"
        "from onceward import KafkaSink, KafkaSource, Pipeline\n"
        "import onceward.operate.serve, onceward.driver.streaming.sink\n"
        "Pipeline(job='orders', source=KafkaSource('x:1', topics=['in']), sink=KafkaSink('x:1', topic='out'))\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert shown.stdout.strip() == "[]"


def test_without_the_package_a_pipeline_with_traces_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from onceward import KafkaSink, KafkaSource, Pipeline
    from onceward.watch.traces import installed

    monkeypatch.setattr(installed, "find_spec", lambda _name: None)
    source, sink = KafkaSource("x:1", topics=["in"]), KafkaSink("x:1", topic="out")
    Pipeline(job="orders", source=source, sink=sink)
    with pytest.raises(ConfigurationError, match=r"pip install 'onceward\[otel\]'"):
        Pipeline(job="orders", source=source, sink=sink, traces=True)


@pytest.mark.slow
def test_a_coordinator_refuses_variables_that_cannot_be_used_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "carrier-pigeon")
    store = f"sqlite:///{tmp_path / 'store.db'}"
    result = onceward_process("serve", "--listen", "127.0.0.1:0", "--store", store, "--traces")
    assert result.returncode == ExitCode.USAGE
    assert "carrier-pigeon" in result.stderr
    assert not (tmp_path / "store.db").exists()
