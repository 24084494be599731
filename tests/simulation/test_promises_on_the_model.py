"""The Kafka sink keeps what every sink promises on modelled brokers, too.

The promises of a source are not checked here: the model has no consumer, and the simulation's source has no reader,
because its tasks read by themselves.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onceward import KafkaSink
from onceward.connections.per_process import PerProcess
from onceward.connectors.interfaces import Finding, JobContext
from onceward.protocol.values import Claim, JobName
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.driver.session import KafkaSinkSession
from onceward.sinks.kafka.executor import producers
from onceward.testing import SINK_PROMISES, Promise, SinkCase
from tests.support.kafka_model import Settings, SimProducer
from tests.support.kafka_model.bench import Bench

TIMEOUT = timedelta(minutes=15)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class ModelledSink(KafkaSink):
    """The real sink on modelled brokers."""

    def __init__(self, bench: Bench, clock: Clock, name: str) -> None:
        super().__init__("simulated:9092", topic="out", transaction_timeout=TIMEOUT, name=name)
        self._bench, self._clock = bench, clock

    def connect(self, context: JobContext) -> KafkaSinkSession:
        control = self._bench.control
        return ModelledSession(self, context, control, control.cluster_id(), clock=self._clock)


class ModelledSession(KafkaSinkSession):
    def preflight(self) -> list[Finding]:
        return []


@pytest.mark.parametrize("version", [1, 2], ids=["tv1", "tv2"])
@pytest.mark.parametrize("promise", SINK_PROMISES)
def test_the_kafka_sink_keeps(promise: Promise[SinkCase], version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Settings(brokers=(1, 2, 3), transaction_version=version))
    bench.wait(5)
    clock = Clock(
        now=lambda: NOW + timedelta(seconds=bench.transport.now()), monotonic=bench.transport.now, wait=bench.wait
    )

    def producer(config: dict[str, Any], **more: Any) -> SimProducer:
        return SimProducer(config, cluster=bench.cluster, transport=bench.transport, **more)

    read_claim = KafkaSystem.read_claim

    def read_claim_later(system: KafkaSystem, job: JobName, **given: Any) -> Claim | None:
        bench.wait(0.1)  # only then is the marker of its transaction written
        return read_claim(system, job, **given)

    monkeypatch.setattr(KafkaSystem, "read_claim", read_claim_later)
    monkeypatch.setattr(producers, "new_producer", producer)
    monkeypatch.setattr(producers, "_pools", PerProcess())

    def visible() -> list[bytes]:
        bench.wait(1)
        found = [value for partition in range(2) for value in bench.visible(("out", partition))]
        return [value for value in found if value is not None]

    promise(
        SinkCase(
            sink=lambda name: ModelledSink(bench, clock, name),
            system=lambda: KafkaSystem(bench.control, clock=clock),
            visible=visible,
        )
    )
