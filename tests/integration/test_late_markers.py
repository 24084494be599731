"""A broker is stopped between the confirmation of a job's last commit and its marker: the job must not end yet."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from onceward import KafkaCluster
from onceward.common.killpoints import KillPoint
from onceward.dev.jars import fetch_progress
from onceward.dev.kafka import LocalKafka
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.transactions import State, Transactions
from tests.integration.test_zombies import asleep
from tests.support.processes import JobProcesses, bounded, halt
from tests.support.topics import Topics, assert_exactly_once
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT_S = 300.0
"""Each request that our own look sends to the stopped broker waits for its 8 s."""
STANDS_STILL_S = 10.0
"""How long the broker is stopped. Without the wait for markers the job would end in a second or two."""
ONE_OF_EACH = {
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    # a partition whose broker is considered dead has no leader, and then its marker is dropped
    "broker.session.timeout.ms": "600000",
}
"""At least one of three brokers has neither transactions nor receipts, and can be stopped while the others decide."""


@pytest.fixture(scope="module")
def brokers() -> Iterator[LocalKafka]:
    # at version 2 each wave of EndTxn first asks any broker for its version, perhaps the stopped one
    with LocalKafka(3, 0, properties=ONE_OF_EACH, heap="256m", progress=fetch_progress("the broker's")) as kafka:
        yield kafka


def keep_offsets(servers: str, group: str) -> bool:
    """Whether the brokers answer for committed offsets. The first request makes them create their offsets topic, and
    they may refuse it meanwhile."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    try:
        consumer.committed([TopicPartition("any", 0)], timeout=60)
    except KafkaException:
        return False
    finally:
        consumer.close()
    return True


def decided(control: ControlPlane, job: str) -> bool:
    """Whether a transaction of the job is committed, and lacks a marker."""
    found, _ = Transactions(control).open_ids(job, states=(State.PREPARE_COMMIT,))  # one broker does not answer
    return bool(found)


def test_a_job_ends_only_when_a_broker_that_stood_still_has_written_its_last_marker(
    brokers: LocalKafka, job: str, tmp_path: Path
) -> None:
    topics = Topics(brokers.bootstrap_servers, job)
    wait_until(lambda: keep_offsets(topics.servers, job), "the brokers keep offsets")
    internal = topics.admin.list_topics(timeout=30).topics
    busy = {internal[name].partitions[0].leader for name in ("__transaction_state", "__consumer_offsets")}
    quiet = min({1, 2, 3} - busy)
    source = topics.create("in", 2, led_by=[min(busy)])
    sink = topics.create("out", 2, led_by=[quiet])
    for partition in range(2):
        topics.fill(source, [b"%d" % n for n in range(20)], partition=partition, key=b"key-%d" % partition)
    with (
        closing(ControlPlane(KafkaCluster(topics.servers))) as control,
        JobProcesses(tmp_path, job, topics.servers, source, sink, source_options=bounded(20)) as here,
    ):
        driver = here.driver(kill_at=[f"{KillPoint.DRIVER_BETWEEN_END_TXN}:2:stop"])
        asleep(driver)
        wait_until(lambda: not decided(control, job), "the markers of earlier commits are written")
        halt(brokers.pids[quiet])
        try:
            driver.send(signal.SIGCONT)
            wait_until(lambda: decided(control, job), "the last commit is decided", LIMIT_S)
            time.sleep(STANDS_STILL_S)  # the duration of the fault, not a wait
            running, settled = driver.running, len(here.events("settled"))
        finally:
            os.kill(brokers.pids[quiet], signal.SIGCONT)
        assert running, f"the job ended before its last records show:\n{driver.tail()}"
        assert settled == 1, "a checkpoint is settled before readers see it"
        assert driver.wait() == 0, driver.tail()
        wait_until(lambda: here.events("closed"), "its end is logged")
        assert_exactly_once(topics, source, sink)
