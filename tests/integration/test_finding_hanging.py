"""Operators find transactions of any program that hang, and see that a mend has ended them, on three real brokers."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from onceward import KafkaCluster
from onceward.dev.kafka import LocalKafka
from onceward.operate.cli import app
from onceward.protocol.values import Outcome
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.finding import find_hanging
from onceward.sinks.kafka.control.transactions import State
from tests.integration.test_hanging import (  # noqa: F401 - fixtures
    DECIDED,
    bring_it_back,
    brokers,
    lose_the_leader,
    out,
    prepared,
    sink,
    topics,
)
from tests.support.guarded import Right, guarded_kafka
from tests.support.sink_job import QUICK, SinkJob
from tests.support.topics import Topics
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kill, pytest.mark.timeout(600)]


def doctor(servers: str, topic: str, directory: Path) -> list[dict[str, str]]:
    words = ("doctor", "--json", "--cluster", servers, "--topic", topic, "--state-dir", str(directory / "state"))
    said = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
    return [line for line in said if line["subject"] == "hanging transactions of cluster main"]


def listed(servers: str, directory: Path, *options: str) -> list[dict[str, object]]:
    file = directory / "clusters.toml"
    file.write_text(f'[clusters.here]\nbootstrap_servers = "{servers}"\n')
    words = ("transactions", "--hanging", "--json", "--clusters", str(file), *options)
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def of(found: Sequence[dict[str, object]], topic: str) -> list[dict[str, object]]:
    return [one for one in found if one["topic"] == topic]


def test_a_commit_that_hangs_is_found_with_the_job_that_ends_it_and_is_gone_after_the_mend(
    brokers: LocalKafka,  # noqa: F811
    sink: SinkJob,  # noqa: F811
    topics: Topics,  # noqa: F811
    out: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    servers = brokers.bootstrap_servers
    committable = prepared(sink)
    (none,) = doctor(servers, out, tmp_path)
    assert (none["level"], none["found"]) == ("ok", "none in 2 partitions"), "it is open, and expected to be"
    lose_the_leader(brokers, topics, out)
    transaction = KafkaCommittable.of(committable).transaction
    wait_until(
        lambda: sink.transactions.end([transaction], commit=True)[transaction.id] == 0, "its coordinator confirms it"
    )
    wait_until(lambda: sink.view(committable).state in DECIDED, "it is decided")
    away = doctor(servers, out, tmp_path)
    assert {line["level"] for line in away} == {"unknown"}, "no leader answers"
    skipped = sink.view(committable).state is State.COMPLETE_COMMIT
    bring_it_back(brokers, topics, out)
    if skipped:  # brokers before 4.3 wait for the leader, and write the marker
        found = doctor(servers, out, tmp_path)
        assert [line["level"] for line in found] == ["warning", "warning"]
        assert f"{out}-0 offset 0" in found[0]["found"]
        assert f"{transaction.id}, of job {sink.job}" in found[0]["found"]
        assert found[0]["remedy"].startswith(f"start job {sink.job}")
        rows = of(listed(servers, tmp_path), out)
        assert [(row["partition"], row["offset"], row["producer_id"], row["job"], row["state"]) for row in rows] == [
            (number, 0, transaction.producer_id, sink.job, "CompleteCommit") for number in (0, 1)
        ]
        receipts = of(listed(servers, tmp_path, "--topic", "here:__consumer_offsets"), "__consumer_offsets")
        assert all("receipt" in str(row["remedy"]) for row in receipts if row["id"] == transaction.id)
    (settlement,) = sink.system().commit(sink.author, [committable])
    assert settlement.outcome is Outcome.COMMITTED
    (none,) = doctor(servers, out, tmp_path)
    assert (none["level"], none["found"]) == ("ok", "none in 2 partitions")
    assert of(listed(servers, tmp_path), out) == []


def test_the_hanging_transaction_of_another_program_is_found_with_the_command_that_ends_it(
    brokers: LocalKafka,  # noqa: F811
    sink: SinkJob,  # noqa: F811
    topics: Topics,  # noqa: F811
    out: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    servers = brokers.bootstrap_servers
    other = Producer({"bootstrap.servers": servers, "transactional.id": f"{sink.job}-another", "linger.ms": 0})
    other.init_transactions(60)
    other.begin_transaction()
    other.produce(out, b"confirmed", partition=0)
    assert other.flush(60) == 0
    lose_the_leader(brokers, topics, out)
    wait_until(lambda: commits(other), "its coordinator confirms it")
    name = f"{sink.job}-another"
    skipped = sink.transactions.describe([name])[name].state is State.COMPLETE_COMMIT
    bring_it_back(brokers, topics, out)
    if not skipped:
        pytest.skip("these brokers wait for the leader, and write the marker")
    (found,) = doctor(servers, out, tmp_path)
    assert found["level"] == "error"
    assert f"{sink.job}-another, of another program" in found["found"]
    assert "its coordinator reports a commit" in found["found"]
    (row,) = of(listed(servers, tmp_path), out)
    assert (row["partition"], row["offset"], row["job"], row["certain"]) == (0, 0, None, True)
    abort = f"abort --topic {out} --partition 0 --start-offset 0"
    assert found["remedy"] == row["remedy"] == f"kafka-transactions.sh --bootstrap-server {servers} {abort}"


def test_an_open_transaction_that_a_user_may_not_describe_is_unknown_and_not_hanging(job: str, tmp_path: Path) -> None:
    """Brokers list no id that the user may not describe, without an error."""
    looker = "coordinator"
    with guarded_kafka(tmp_path, "SASL_SSL", (looker,), "a-password-of-a-test") as guarded:
        topic = Topics(guarded.servers, job).create("out")
        other = Producer({"bootstrap.servers": guarded.servers, "transactional.id": job})
        other.init_transactions(60)
        other.begin_transaction()
        other.produce(topic, b"ordinary")
        assert other.flush(60) == 0
        control = ControlPlane(KafkaCluster(guarded.kafka.bootstrap_servers, config=guarded.config(looker)))
        try:
            guarded.allow(looker, [Right(operation="Describe", resource="Topic", name=topic)])
            refused = find_hanging(control, [topic], QUICK)
            assert (refused.transactions, refused.looked_into) == ((), 0)
            assert "grant READ on the topic" in refused.unknown[0]
            read = Right(operation="Read", resource="Topic", name=topic)
            guarded.allow(looker, [read])
            hidden = find_hanging(control, [topic], QUICK)
            (one,) = hidden.transactions
            assert (one.certain, one.remedy, hidden.unknown) == (False, "", ())
            assert "grant DESCRIBE on TransactionalId '*'" in one.doubt
            assert "grant DESCRIBE on Topic '*'" in find_hanging(control, None, QUICK).unknown[0]
            guarded.allow(looker, [read, Right(operation="Describe", resource="TransactionalId", name="*")])
            whole = find_hanging(control, [topic], QUICK)
            assert (whole.transactions, whole.looked_into, whole.unknown) == ((), 1, ())
        finally:
            control.close()
            other.abort_transaction(60)


def commits(producer: Producer) -> bool:
    producer.commit_transaction(30)
    return True
