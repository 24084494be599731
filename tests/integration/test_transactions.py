"""What the broker answers about other processes' transactions: the facts behind the outcome rules.

Each test runs with the EndTxn version of its cluster: 5 at transaction.version 2, 4 at 1.
"""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException

from onceward.connections.codes import ErrorCode
from onceward.dev.kafka import LocalKafka
from onceward.dev.kafka.versions import highest_transaction_version
from onceward.sinks.kafka.client import GroupOffset
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.receipts import ReceiptState, read_receipts
from onceward.sinks.kafka.control.transactions import State, Transaction, Transactions
from tests.support.brokers import needs_transaction_version
from tests.support.sink_job import SinkJob
from tests.support.topics import Topics
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def older_kafka() -> Iterator[LocalKafka]:
    """A broker at transaction.version 1, or the highest below it."""
    with LocalKafka(
        transaction_version=min(1, highest_transaction_version()), transaction_timeout_scan_ms=200, heap="256m"
    ) as local:
        yield local


@pytest.fixture(params=[5, 4], ids=["v5", "v4"])
def version(request: pytest.FixtureRequest) -> int:
    """The version of EndTxn."""
    if request.param == 5:
        needs_transaction_version(2)
    return int(request.param)


@pytest.fixture
def broker(version: int, request: pytest.FixtureRequest) -> LocalKafka:
    found: LocalKafka = request.getfixturevalue("kafka" if version == 5 else "older_kafka")
    return found


@pytest.fixture
def out(broker: LocalKafka, job: str) -> str:
    return Topics(broker.bootstrap_servers, job).create("out")


@pytest.fixture
def sink(broker: LocalKafka, job: str, out: str) -> Iterator[SinkJob]:
    with SinkJob(broker.bootstrap_servers, job, topic=out) as opened:
        yield opened


def handle(sink: SinkJob, checkpoint: int = 1) -> KafkaCommittable:
    return KafkaCommittable.of(sink.prepared(checkpoint, [b"a"])[0])


def end(sink: SinkJob, transaction: Transaction, *, commit: bool = True) -> object:
    return sink.transactions.end([transaction], commit=commit)[transaction.id]


def await_state(sink: SinkJob, name: str, state: State) -> None:
    wait_until(lambda: sink.transactions.describe([name])[name].state is state, f"{name} is {state}")


def with_version(transaction: Transaction, version: int) -> Transaction:
    return Transaction(id=transaction.id, producer_id=transaction.producer_id, epoch=transaction.epoch, version=version)


def test_the_version_of_end_txn_follows_the_cluster(sink: SinkJob, version: int) -> None:
    assert handle(sink).transaction.version == version


def test_commit_by_another_process_is_answered_none_again_and_again(sink: SinkJob, version: int) -> None:
    transaction = handle(sink).transaction
    assert end(sink, transaction) == ErrorCode.NONE
    await_state(sink, transaction.id, State.COMPLETE_COMMIT)
    assert end(sink, transaction) == ErrorCode.NONE
    view = sink.transactions.describe([transaction.id])[transaction.id]
    assert (view.producer_id, view.epoch) == (transaction.producer_id, transaction.epoch + (version == 5))


def test_abort_after_commit_is_refused_with_48(sink: SinkJob) -> None:
    transaction = handle(sink).transaction
    end(sink, transaction)
    await_state(sink, transaction.id, State.COMPLETE_COMMIT)
    assert end(sink, transaction, commit=False) == ErrorCode.INVALID_TXN_STATE


def test_the_other_version_after_a_commit_is_refused_although_committed(sink: SinkJob, version: int) -> None:
    needs_transaction_version(2)  # else the brokers have version 4 alone
    transaction = handle(sink).transaction
    end(sink, transaction)
    await_state(sink, transaction.id, State.COMPLETE_COMMIT)
    assert end(sink, with_version(transaction, 9 - version)) == (
        ErrorCode.PRODUCER_FENCED if version == 5 else ErrorCode.INVALID_TXN_STATE
    )


def test_commit_after_the_timeout_is_refused_and_the_abort_is_reported(
    broker: LocalKafka, job: str, out: str, version: int
) -> None:
    with SinkJob(broker.bootstrap_servers, job, topic=out, transaction_timeout="1s") as sink:
        transaction = handle(sink).transaction
        await_state(sink, transaction.id, State.COMPLETE_ABORT)
        assert end(sink, transaction) == (ErrorCode.INVALID_TXN_STATE if version == 5 else ErrorCode.PRODUCER_FENCED)
        view = sink.transactions.describe([transaction.id])[transaction.id]
        assert (view.producer_id, view.epoch) == (transaction.producer_id, transaction.epoch + 1)


def test_a_fence_aborts_and_keeps_refusing_the_old_epoch(sink: SinkJob) -> None:
    committable = handle(sink)
    transaction = committable.transaction
    answers: list[object] = []

    def fenced() -> bool:
        answers.append(sink.transactions.fence([transaction.id])[transaction.id])
        return answers[-1] == ErrorCode.NONE

    wait_until(fenced, "the fence is confirmed")
    assert set(answers) <= {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE}
    assert end(sink, transaction) == ErrorCode.PRODUCER_FENCED
    assert end(sink, transaction, commit=False) == ErrorCode.PRODUCER_FENCED
    view = sink.transactions.describe([transaction.id])[transaction.id]
    assert view.state is State.EMPTY
    receipts = read_receipts(sink.control, {transaction.id: committable.token})
    assert receipts[transaction.id].state is ReceiptState.ABSENT


def test_the_receipt_is_unstable_before_present_after_commit_and_absent_after_abort(sink: SinkJob) -> None:
    first, second = (KafkaCommittable.of(each) for each in sink.prepared(1, [b"a"], [b"b"]))
    tokens = {each.transaction.id: each.token for each in (first, second)}

    def states() -> list[ReceiptState]:
        read = read_receipts(sink.control, tokens)
        return [read[each.transaction.id].state for each in (first, second)]

    assert states() == [ReceiptState.UNSTABLE, ReceiptState.UNSTABLE]
    end(sink, first.transaction)
    end(sink, second.transaction, commit=False)
    wait_until(lambda: ReceiptState.UNSTABLE not in states(), "both are ended")
    assert states() == [ReceiptState.PRESENT, ReceiptState.ABSENT]


def test_another_transactions_token_is_not_ours(sink: SinkJob) -> None:
    committable = handle(sink)
    end(sink, committable.transaction)
    name = committable.transaction.id
    wait_until(
        lambda: read_receipts(sink.control, {name: committable.token})[name].state is ReceiptState.PRESENT, "committed"
    )
    assert read_receipts(sink.control, {name: "f" * 16})[name].state is ReceiptState.ABSENT


def test_an_unknown_id_is_not_found_and_leaves_nothing_behind(sink: SinkJob) -> None:
    nothing = Transaction(id=f"{sink.job}.sink.0.{'0' * 12}.0", producer_id=0, epoch=0, version=4)
    assert end(sink, nothing, commit=False) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert sink.transactions.describe([nothing.id])[nothing.id].code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_dropping_the_producer_leaves_the_transaction_open(sink: SinkJob) -> None:
    """The writer drops its reference after the vote. If a client release aborted then, every slot would be lost."""
    transaction = handle(sink).transaction
    assert sink.transactions.describe([transaction.id])[transaction.id].state is State.ONGOING
    assert end(sink, transaction) == ErrorCode.NONE


@pytest.mark.parametrize("version", [5], indirect=True)
def test_a_zombie_that_continues_an_ended_transaction_is_refused(sink: SinkJob, out: str, version: int) -> None:
    """Version 4 does not raise the epoch, which is why an id begins only one transaction per producer."""
    name, zombie = sink.open_transaction(out)
    view = sink.transactions.describe([name])[name]
    transaction = Transaction(id=name, producer_id=view.producer_id, epoch=view.epoch, version=version)
    assert end(sink, transaction) == ErrorCode.NONE
    # Only once the markers are written: until then the partition still accepts records of the old epoch, and the
    # commit includes them. The product never produces after its vote.
    await_state(sink, name, State.COMPLETE_COMMIT)
    zombie.produce(out, pa.record_batch({"value": [b"from the grave"]}), lambda: zombie.poll(1))
    for _ in range(2):  # and every time
        with pytest.raises(KafkaException):
            zombie.flush(10)
    with pytest.raises(KafkaException):
        zombie.send_offset(GroupOffset(name, "onceward", 0, 2, ""), 10).result()
    topics = Topics(sink.servers, sink.job)
    assert topics.values(out) == [b"left open"]


@pytest.mark.parametrize("by_pattern", [True, False], ids=["pattern", "older-broker"])
def test_open_transactions_are_listed_exactly_for_their_job(
    broker: LocalKafka, out: str, job: str, by_pattern: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_pattern:  # brokers before 4.1 list everything
        monkeypatch.setattr(Transactions, "_lists_by_pattern", lambda _: False)
    jobs = [SinkJob(broker.bootstrap_servers, name, topic=out) for name in (job, f"{job}-b", f"{job}b")]
    kept = [each.open_transaction(out) for each in jobs]
    for each, (name, _) in zip(jobs, kept, strict=True):
        found, failed = each.transactions.open_ids(each.job)
        assert [str(identifier) for identifier in found] == [name]
        assert failed == []
        each.close()
