"""A partition lost its part of a prepared transaction: the brokers still answer a commit with NONE."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from onceward.dev.kafka import LocalKafka
from onceward.protocol.values import Committable, Outcome
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.transactions import State
from tests.integration.test_committer import commit_behind_its_back
from tests.support.sink_job import SinkJob
from tests.support.topics import Topics, abort_with_the_brokers_tool
from tests.support.waiting import wait_until

PARTITIONS, EACH = 3, 10


@pytest.fixture(scope="module")
def older_kafka() -> Iterator[LocalKafka]:
    """A broker that does not raise the epoch when a transaction ends."""
    with LocalKafka(transaction_version=0, heap="256m") as local:
        yield local


@pytest.fixture(params=["kafka", "older_kafka"], ids=["version-2", "version-0"])
def servers(request: pytest.FixtureRequest) -> str:
    local: LocalKafka = request.getfixturevalue(request.param)
    return local.bootstrap_servers


@pytest.fixture
def topics(servers: str, job: str) -> Topics:
    return Topics(servers, job)


@pytest.fixture
def out(topics: Topics) -> str:
    return topics.create("out", PARTITIONS)


@pytest.fixture
def sink(servers: str, job: str, out: str) -> Iterator[SinkJob]:
    with SinkJob(servers, job, topic=out) as opened:
        yield opened


@pytest.fixture
def prepared(sink: SinkJob) -> Committable:
    """One slot with ten records in each of three partitions."""
    values = pa.array([b"%d" % n for n in range(PARTITIONS * EACH)])
    numbers = pa.array([n % PARTITIONS for n in range(PARTITIONS * EACH)], pa.int32())
    vote = sink.write(1, pa.record_batch([values, numbers], ["value", "partition"]))
    (committable,) = sink.pre_commit(1, [vote])
    return committable


def test_a_part_that_a_tool_aborted_is_noticed_and_the_rest_is_not_committed(
    sink: SinkJob, prepared: Committable, topics: Topics, out: str
) -> None:
    abort_with_the_brokers_tool(topics.servers, out, 1)
    assert sink.view(prepared).state is State.ONGOING, "its coordinator does not know"
    (settlement,) = sink.system().commit(sink.author, [prepared])
    assert settlement.outcome is Outcome.LOST
    assert f"{out}-1" in settlement.evidence
    assert topics.values(out) == []
    (again,) = sink.system().commit(sink.author, [prepared])
    assert again.outcome is Outcome.LOST


def test_a_part_that_was_missing_at_the_commit_is_named_with_its_records(
    sink: SinkJob, prepared: Committable, topics: Topics, out: str
) -> None:
    abort_with_the_brokers_tool(topics.servers, out, 1)
    commit_behind_its_back(sink, prepared)
    (settlement,) = sink.system().commit(sink.author, [prepared])
    assert settlement.outcome is Outcome.IN_DOUBT
    assert f"{out}-1" in settlement.evidence
    assert f"{EACH} records" in settlement.evidence
    assert sink.system().outcome(prepared).outcome is Outcome.IN_DOUBT
    assert len(topics.values(out)) == (PARTITIONS - 1) * EACH


def test_a_commit_of_which_no_partition_had_its_part_any_more_is_lost(
    sink: SinkJob, prepared: Committable, topics: Topics, out: str
) -> None:
    for number in range(PARTITIONS):
        abort_with_the_brokers_tool(topics.servers, out, number)
    commit_behind_its_back(sink, prepared)
    (settlement,) = sink.system().commit(sink.author, [prepared])
    assert settlement.outcome is Outcome.LOST
    assert topics.values(out) == []


def test_records_that_a_partition_has_lost_are_noticed_by_their_number(
    sink: SinkJob, prepared: Committable, topics: Topics, out: str
) -> None:
    """As after an unclean election: the part is open, but lacks records."""
    handle = KafkaCommittable.of(prepared)
    body = prepared.document.body
    more = {**body, "topics": {out: {**body["topics"][out], "records": PARTITIONS * EACH + 2}}}
    claimed = Committable(slot=0, document=type(prepared.document)(kind="kafka-transaction", version=1, body=more))
    (settlement,) = sink.system().commit(sink.author, [claimed])
    assert settlement.outcome is Outcome.LOST
    assert f"30 of 32 records of {out}" in settlement.evidence
    assert topics.values(out) == []
    wait_until(
        lambda: (
            sink.transactions.describe([handle.transaction.id])[handle.transaction.id].state is State.COMPLETE_ABORT
        ),
        "the rest is aborted",
    )


def test_a_whole_transaction_that_was_committed_before_is_committed(
    sink: SinkJob, prepared: Committable, topics: Topics, out: str
) -> None:
    commit_behind_its_back(sink, prepared)
    (settlement,) = sink.system().commit(sink.author, [prepared])
    assert settlement.outcome is Outcome.COMMITTED
    assert len(topics.values(out)) == PARTITIONS * EACH
