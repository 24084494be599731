"""Transactions that brokers never abort (KIP-939): the job loses none, and ends those that it leaves open."""

from collections.abc import Iterable, Iterator

import pytest

from onceward.connectors.interfaces import Finding, Severity
from onceward.dev.kafka import LocalKafka
from onceward.dev.kafka.versions import broker_version
from onceward.protocol.values import Outcome
from onceward.sinks.kafka.client.choice import WRITER_VARIABLE
from onceward.sinks.kafka.control.transactions import State
from onceward.sinks.kafka.errors import DeliveryError
from onceward.sinks.kafka.timeouts import NEVER_MS
from tests.support.shared_kafka import SharedKafka
from tests.support.sink_job import SinkJob, batch
from tests.support.topics import Topics
from tests.support.waiting import wait_until

pytest.importorskip("onceward_native")
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(broker_version() < "4.1", reason="brokers before 4.1 abort every transaction in the end"),
]


@pytest.fixture(scope="module")
def patient() -> Iterator[LocalKafka]:
    """Its transactions may be prepared for ever. Others are aborted after a second."""
    properties = {"transaction.two.phase.commit.enable": "true", "unstable.api.versions.enable": "true"}
    with LocalKafka(properties=properties, transaction_timeout_scan_ms=200, heap="256m") as local:
        yield local


@pytest.fixture
def topics(patient: LocalKafka, job: str) -> Topics:
    return Topics(patient.bootstrap_servers, job)


@pytest.fixture
def out(topics: Topics) -> str:
    return topics.create("out")


@pytest.fixture
def sink(patient: LocalKafka, job: str, out: str) -> Iterator[SinkJob]:
    with SinkJob(patient.bootstrap_servers, job, topic=out, transaction_timeout="never") as opened:
        yield opened


def errors(findings: Iterable[Finding]) -> list[str]:
    return [finding.message for finding in findings if finding.severity is Severity.ERROR]


def test_a_prepared_transaction_outlives_the_time_after_which_others_are_lost(
    sink: SinkJob, patient: LocalKafka, topics: Topics, out: str
) -> None:
    assert errors(sink.findings) == []
    (prepared,) = sink.prepared(1, [b"never expires"])
    with SinkJob(patient.bootstrap_servers, f"{sink.job}-2", topic=out, transaction_timeout="1s") as other:
        (expiring,) = other.prepared(1, [b"expires"])
        wait_until(lambda: other.view(expiring).state is State.COMPLETE_ABORT, "the other transaction has timed out")
        assert sink.view(prepared).state is State.ONGOING
        assert sink.view(prepared).timeout_ms == NEVER_MS
        outcomes = [
            each.system().commit(each.author, [one])[0].outcome for each, one in ((sink, prepared), (other, expiring))
        ]
    assert outcomes == [Outcome.COMMITTED, Outcome.LOST]
    assert topics.values(out) == [b"never expires"]


def test_what_an_attempt_leaves_open_is_aborted_by_the_sweep(sink: SinkJob, topics: Topics, out: str) -> None:
    """Nothing else would end it, and readers would wait for ever."""
    sink.write(1, batch(b"left open"))
    (left,) = sink.system().leftovers(sink.job)
    assert [one.left for one in sink.system().transactions(sink.job)] == [None], "no time until a timeout"
    (kept,) = sink.prepared(2, [b"kept"])
    sink.system().commit(sink.author, [kept])
    assert sink.transactions.describe([left])[left].state is State.EMPTY
    assert topics.values(out) == [b"kept"]


def test_brokers_that_do_not_allow_it_are_reported_before_anything_is_written(kafka: SharedKafka, job: str) -> None:
    topics = Topics(kafka.bootstrap_servers, job)
    with SinkJob(kafka.bootstrap_servers, job, topic=topics.create("out"), transaction_timeout="never") as sink:
        found = errors(sink.findings)
        assert any("transaction.two.phase.commit.enable=false" in message for message in found)
        assert any("InitProducerId 6" in message for message in found)
        with pytest.raises(DeliveryError, match="does not take transactions that never expire"):
            sink.write(1, batch(b"a"))
        assert sink.system().leftovers(sink.job) == []


def test_librdkafka_does_not_write_what_it_cannot_keep_from_expiring(
    sink: SinkJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WRITER_VARIABLE, "librdkafka")
    with pytest.raises(DeliveryError, match="cannot be written here"):
        sink.write(1, batch(b"a"))
