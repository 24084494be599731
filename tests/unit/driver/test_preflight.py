"""The preflight reports all errors in one message and refuses the job."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from onceward import KafkaSink, KafkaSource, Pipeline, StreamingPipeline, StreamSink
from onceward.common.errors import ConfigurationError, OncewardError, PreflightError
from onceward.connectors.interfaces import Finding, Resource, Risk, Severity
from onceward.driver import pipeline
from onceward.driver.preflight import accepted_risks, examine, require_safe

WARNING, ERROR = Severity.WARNING, Severity.ERROR


def finding(severity: Severity, subject: str) -> Finding:
    return Finding(severity=severity, subject=subject, message="is 1 instead of 2", fix="set 2")


class Side:
    """A source or a sink with the findings that a test sets."""

    def __init__(
        self,
        *findings: Finding,
        resources: Sequence[Resource] = (),
        error: Exception | None = None,
        name: str = "sink",
    ) -> None:
        self.participant = SimpleNamespace(name=name)
        self._findings, self._resources, self._error = findings, resources, error

    def preflight(self) -> Sequence[Finding]:
        if self._error is not None:
            raise self._error
        return self._findings

    def reads(self, resource: Resource) -> bool:
        return resource in self._resources

    def writes(self) -> Sequence[Resource]:
        return self._resources


def found(source: Any, sink: Any) -> list[Finding]:
    return examine(source, [sink])


def test_all_errors_are_reported_together_and_warnings_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    findings = [finding(ERROR, "topic a"), finding(WARNING, "topic b"), finding(ERROR, "topic c")]
    with caplog.at_level(logging.WARNING), pytest.raises(PreflightError) as refused:
        require_safe("orders", findings)
    assert str(refused.value) == (
        "Job orders was not started, no data was touched:\n"
        "  topic a: is 1 instead of 2 — fix: set 2\n"
        "  topic c: is 1 instead of 2 — fix: set 2"
    )
    assert caplog.messages == ["Job orders starts, with warnings:\n      topic b: is 1 instead of 2 — fix: set 2"]


def test_warnings_are_one_block_that_a_restart_in_the_same_process_does_not_repeat(
    caplog: pytest.LogCaptureFixture,
) -> None:
    findings = [replace(finding(WARNING, name), risk=Risk.REPLICATION) for name in ("topic b", "topic c")]
    for _ in range(2):
        require_safe("restarting", findings)
    require_safe("restarting", [*findings, finding(WARNING, "new")])
    require_safe("another", findings)
    first, second, other = caplog.messages
    assert first == (
        "Job restarting starts, with warnings:\n"
        "      topic b: is 1 instead of 2 — fix: set 2\n"
        "      topic c: is 1 instead of 2 — fix: set 2\n"
        "      To accept what concerns replication: accept_risks=['replication']"
    )
    assert second == "Job restarting starts, with warnings:\n      new: is 1 instead of 2 — fix: set 2"
    assert other == first.replace("restarting", "another")


def test_an_accepted_risk_is_one_line_and_hides_no_other_warning(caplog: pytest.LogCaptureFixture) -> None:
    risky = [replace(finding(WARNING, name), risk=Risk.REPLICATION) for name in ("topic b", "topic c")]
    require_safe("accepting", [*risky, finding(WARNING, "other")], accepted_risks(["replication"]))
    assert caplog.messages == [
        "Job accepting starts, with warnings:\n      other: is 1 instead of 2 — fix: set 2",
        "Job accepting: the risk replication is accepted",
    ]


@pytest.mark.parametrize("given", [["replication", "fire"], "replication", True, [["replication"]]])
@pytest.mark.parametrize("job", [Pipeline, StreamSink, StreamingPipeline])
def test_an_unknown_risk_is_refused(job: Any, given: Any) -> None:
    source, sink = KafkaSource("localhost:9092", topics=["in"]), KafkaSink("localhost:9092", topic="out")
    arguments: dict[Any, Any] = {
        Pipeline: {"source": source},
        StreamSink: {"spark": None},
        StreamingPipeline: {"query": print, "checkpoint_location": "here"},
    }
    with pytest.raises(ConfigurationError, match=r"accept_risks: .* The known ones are: replication\."):
        job(job="orders", sink=sink, accept_risks=given, **arguments[job])


def test_warnings_alone_keep_no_job_from_starting() -> None:
    require_safe("orders", [])
    require_safe("orders", [finding(WARNING, "topic b")])


def topics(*names: str) -> list[Resource]:
    return [Resource(kind="Kafka topic", cluster="c1", name=name) for name in names]


def test_dead_letters_are_refused_in_a_topic_of_an_output() -> None:
    dead = Side(resources=topics("dead", "out"), name="dead-letters")
    (mixed,) = examine(cast("Any", Side()), [cast("Any", Side(resources=topics("out"))), cast("Any", dead)])
    assert (mixed.severity, mixed.subject) == (ERROR, "Kafka topic out")
    both = [cast("Any", Side(resources=topics("out"), name=name)) for name in ("a", "b")]
    assert examine(cast("Any", Side()), both) == [], "two outputs may share a topic"


def test_a_job_that_would_feed_itself_is_refused_for_each_such_topic() -> None:
    first, second = finding(WARNING, "input"), finding(WARNING, "output")
    reading, writing = Side(first, resources=topics("a", "b", "c")), Side(second, resources=topics("b", "c", "d"))
    assert found(reading, Side(second, resources=topics("d"))) == [first, second]
    *others, b, c = found(reading, writing)
    assert others == [first, second]
    assert (b.severity, b.subject, c.subject) == (ERROR, "Kafka topic b", "Kafka topic c")
    assert "on cluster c1 it would be input and output" in b.message


def test_a_job_with_an_unsafe_side_is_refused_for_that_alone() -> None:
    wrong = finding(ERROR, "output")
    assert found(Side(resources=topics("a")), Side(wrong, resources=topics("a"))) == [wrong]


@pytest.mark.parametrize("source_fails", [True, False])
def test_a_cluster_that_gives_no_answer_is_not_taken_for_a_safe_one(source_fails: bool) -> None:
    failing = Side(error=OncewardError("no broker answers"))
    sides = (failing, Side()) if source_fails else (Side(), failing)
    with pytest.raises(PreflightError, match="The preflight could not be finished: no broker answers"):
        found(*sides)


def test_a_typed_error_keeps_its_type() -> None:
    with pytest.raises(ConfigurationError, match="no such option"):
        found(Side(error=ConfigurationError("no such option")), Side())


@pytest.mark.parametrize("transform", [None, lambda df: df])
def test_sparks_jvm_is_launched_beside_the_checks(monkeypatch: pytest.MonkeyPatch, transform: Any) -> None:
    launched = threading.Event()
    options: list[bool] = []

    def launch(*, scheduling: bool) -> None:
        options.append(scheduling)
        launched.set()

    source, sink = KafkaSource("localhost:9", topics=["in"]), KafkaSink("localhost:9", topic="out")
    monkeypatch.setattr(pipeline, "launch", launch)
    session: Any = SimpleNamespace(
        preflight=lambda: [finding(ERROR, "JVM launched" if launched.wait(60) else "no JVM")], close=lambda: None
    )
    monkeypatch.setattr(sink, "connect", lambda _: session)
    monkeypatch.setattr(source, "preflight", list)
    monkeypatch.setattr(source, "open", lambda _: None)
    with pytest.raises(PreflightError, match="JVM launched"):
        Pipeline(job="orders", source=source, sink=sink, transform=transform).run()
    assert options == [transform is None]
