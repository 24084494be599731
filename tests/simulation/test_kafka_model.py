"""Behaviour that a real broker shows only briefly, after days, or after 32,766 epochs. The contract test has the
rest."""

import pytest
from kafka.protocol.admin import ListTransactionsRequest

from onceward.sinks.kafka.control.receipts import ReceiptState
from onceward.sinks.kafka.control.transactions import State
from tests.support.kafka_model import LAST_EPOCH, Cluster, Produce, Record, Settings
from tests.support.kafka_model.bench import OUT, Bench, Ids

_DAY = 86_400.0
_SLOW = Settings(
    marker_delay=lambda _id, partition: {"out": 1.0 + partition[1], "__consumer_offsets": 3.0}[partition[0]]
)


def _age(bench: Bench, ids: Ids, epoch: int) -> Ids:
    """Age the producer by many epochs."""
    entry = bench.cluster.entry(ids[0])
    assert entry is not None
    entry.epoch = epoch
    return ids[0], ids[1], epoch


# -- the two phases of an end


@pytest.mark.parametrize("version", [4, 5])
def test_a_commit_is_decided_at_once_and_visible_with_each_partitions_marker(version: int) -> None:
    bench = Bench(_SLOW)
    ids = bench.init()
    bench.enlist(ids, OUT, ("out", 1))
    bench.produce(ids, [b"a"])
    bench.produce(ids, [b"b"], partition=("out", 1))
    bench.receipt(ids)
    assert bench.end(ids, version=version) == 0
    seen = []
    for _ in range(4):
        view = bench.view()
        partitions = sum(len(numbers) for numbers in view.partitions.values())
        receipt = bench.receipt_of().state
        seen.append((view.state, partitions, len(bench.visible()), len(bench.visible(("out", 1))), receipt))
        bench.wait(1.0)
    assert seen == [
        (State.PREPARE_COMMIT, 3, 0, 0, ReceiptState.UNSTABLE),
        (State.PREPARE_COMMIT, 2, 1, 0, ReceiptState.UNSTABLE),
        (State.PREPARE_COMMIT, 1, 1, 1, ReceiptState.UNSTABLE),
        (State.COMPLETE_COMMIT, 0, 1, 1, ReceiptState.PRESENT),
    ]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [4, 5])
def test_while_an_end_runs_its_repetition_is_51_and_its_opposite_48(commit: bool, version: int) -> None:
    bench = Bench(_SLOW)
    ids = bench.open()
    bench.end(ids, commit=commit, version=version)
    assert bench.end(ids, commit=commit, version=version) == 51
    assert bench.end(ids, commit=not commit, version=version) == 48
    assert bench.code_of_init() == 51
    assert bench.enlist(ids, ("out", 1)) == (51 if version == 4 else 90)
    bench.wait(5)
    assert bench.end(ids, commit=commit, version=version) == 0


def test_a_fence_is_answered_51_until_the_abort_is_complete() -> None:
    bench = Bench(_SLOW)
    ids = bench.open()
    assert [bench.code_of_init() for _ in range(3)] == [51, 51, 51]
    assert bench.view().epoch == ids[2] + 1
    bench.wait(5)
    assert bench.code_of_init() == 0
    assert bench.view().epoch == ids[2] + 2


def test_a_zombie_writes_into_its_ended_transaction_until_the_marker_is_there() -> None:
    bench = Bench(_SLOW)
    ids = bench.open()
    bench.end(ids)
    assert bench.produce(ids, [b"late"], sequence=1) == 0
    bench.wait(5)
    assert bench.produce(ids, [b"later"], sequence=2) == 47
    assert bench.visible() == [b"a", b"late"]


def test_an_open_transaction_holds_back_later_commits() -> None:
    bench = Bench()
    older, younger = bench.open("older", values=[b"o"]), bench.open("younger", values=[b"y"])
    bench.end(younger)
    bench.wait(1)
    log = bench.cluster.log(OUT)
    assert (bench.visible(), log.last_stable_offset, log.high_watermark) == ([], 0, 3)
    bench.end(older, commit=False)
    bench.wait(1)
    assert (bench.visible(), log.last_stable_offset, log.high_watermark) == ([b"y"], 4, 4)


def test_a_reader_resumes_where_it_stopped() -> None:
    bench = Bench()
    first = bench.open("first", values=[b"1", b"2"])
    bench.end(first)
    bench.wait(1)
    log = bench.cluster.log(OUT)
    entries, following = log.read(0)
    assert ([entry.offset for entry in entries], following) == ([0, 1], 3)
    bench.open("second")
    assert log.read(following) == ([], 3)


def test_listeners_get_each_marker_and_each_batch_once() -> None:
    bench = Bench(_SLOW)
    markers: list[tuple[tuple[str, int], bool, float]] = []
    batches: list[int] = []
    bench.cluster.on_marker(lambda _id, partition, _producer, commit, now: markers.append((partition, commit, now)))
    bench.cluster.on_append(lambda _request, offset, _now: batches.append(offset))
    ids = bench.open(values=[b"a", b"b"])
    bench.produce(ids, [b"a", b"b"])
    bench.end(ids)
    bench.wait(10)
    assert batches == [0]
    assert [(partition[0], commit, now) for partition, commit, now in markers] == [
        ("out", True, 1.0),
        ("__consumer_offsets", True, 3.0),
    ]


# -- time-outs


def test_a_transaction_is_aborted_by_the_first_scan_after_its_timeout() -> None:
    bench = Bench(Settings(timeout_scan_s=10))
    bench.wait(3)
    ids = bench.open(timeout_ms=60_000)
    bench.wait(66.9)
    assert bench.view().state is State.ONGOING
    bench.wait(0.2)
    assert bench.view().state is State.COMPLETE_ABORT
    assert bench.view().epoch == ids[2] + 1


def test_the_timeout_counts_from_the_first_partition() -> None:
    bench = Bench(Settings(timeout_scan_s=1))
    ids = bench.init(timeout_ms=10_000)
    bench.wait(100)
    bench.enlist(ids, OUT)
    bench.wait(8)
    bench.enlist(ids, ("out", 1))
    assert bench.view().state is State.ONGOING
    bench.wait(4)
    assert bench.view().state is State.COMPLETE_ABORT


def test_without_a_limit_a_transaction_stays_open() -> None:
    bench = Bench(Settings(max_timeout_ms=2**31 - 1))
    bench.open(timeout_ms=2**31 - 1)
    bench.wait(365 * _DAY)
    assert bench.view().state is State.ONGOING


def test_the_timeout_of_an_ended_transaction_does_not_touch_the_next_one() -> None:
    bench = Bench(Settings(timeout_scan_s=1))
    bench.end(bench.open(timeout_ms=10_000))
    bench.wait(9)
    second = bench.open(timeout_ms=10_000)
    bench.wait(5)
    assert bench.view().state is State.ONGOING
    assert bench.end(second) == 0


# -- exhausted epochs


def test_version_5_gives_another_producer_id_when_the_epochs_run_out() -> None:
    bench = Bench(_SLOW)
    ids = _age(bench, bench.init(), LAST_EPOCH)
    bench.enlist(ids, OUT)
    bench.produce(ids)
    assert bench.end(ids) == 0
    assert (bench.view().producer_id, bench.view().epoch) == (ids[1], LAST_EPOCH + 1)
    bench.wait(5)
    view = bench.view()
    assert (view.state, view.epoch) == (State.COMPLETE_COMMIT, 0)
    assert view.producer_id != ids[1]
    assert bench.end(ids) == 0
    assert bench.end(ids, commit=False) == 48


@pytest.mark.parametrize("transaction_version", [1, 2])
def test_a_fence_at_the_last_epoch_rotates_the_producer_id(transaction_version: int) -> None:
    bench = Bench(Settings(transaction_version=transaction_version))
    ids = _age(bench, bench.init(), LAST_EPOCH)
    bench.enlist(ids, OUT)
    assert bench.code_of_init() == 51
    bench.wait(1)
    assert bench.view().epoch == LAST_EPOCH + 1
    fresh = bench.init()
    assert fresh[1] != ids[1]
    assert fresh[2] == 0
    assert bench.end(ids, version=4) == 49
    assert bench.produce(ids) in (47, 49)


def test_init_at_the_last_epoch_rotates_also_with_a_given_producer_id() -> None:
    bench = Bench()
    ids = _age(bench, bench.init(), LAST_EPOCH)
    fresh = bench.init(ids=ids)
    assert (fresh[1] != ids[1], fresh[2]) == (True, 0)
    assert bench.init(ids=ids) == fresh  # repeated: the producer never received the new id


# -- forgotten ids, producers and offsets


def test_an_unused_id_is_forgotten_by_the_scan_after_its_expiry() -> None:
    bench = Bench(Settings(id_expiration_s=7 * _DAY, id_expiration_scan_s=3_600))
    bench.wait(1_800)
    ids = bench.open()
    bench.end(ids)
    bench.wait(7 * _DAY + 1_700)
    assert bench.view().state is State.COMPLETE_COMMIT
    bench.wait(200)
    assert bench.view().code == 105
    assert bench.end(ids) == 49
    assert [view.transactional_id for view in bench.ask(_list_all(), key="t").transaction_states] == []
    assert bench.init()[1] != ids[1]


def test_an_open_transaction_keeps_its_id() -> None:
    bench = Bench(Settings(max_timeout_ms=2**31 - 1))
    bench.open(timeout_ms=2**31 - 1)
    bench.wait(30 * _DAY)
    assert bench.view().state is State.ONGOING


def test_a_receipt_is_gone_after_its_retention() -> None:
    bench = Bench(Settings(offsets_retention_minutes=60, offsets_scan_s=600))
    ids = bench.open()
    bench.end(ids)
    bench.wait(3_599)
    assert bench.receipt_of().state is ReceiptState.PRESENT
    bench.wait(2)
    assert bench.receipt_of().state is ReceiptState.ABSENT
    assert bench.view().state is State.COMPLETE_COMMIT


def test_a_deleted_topic_loses_its_receipts_and_ends_without_markers() -> None:
    bench = Bench()
    ids = bench.open()
    bench.cluster.delete_topic("out")
    bench.end(ids)
    bench.wait(1)
    assert bench.view().state is State.COMPLETE_COMMIT
    assert bench.receipt_of().state is ReceiptState.PRESENT
    bench.cluster.delete_topic("onceward")
    assert bench.receipt_of().state is ReceiptState.ABSENT


# -- idempotence


def test_a_batch_that_arrives_again_is_answered_as_the_first_time() -> None:
    bench = Bench()
    ids = bench.open(values=[b"a", b"b"])
    for number in range(5):
        assert bench.produce(ids, [b"%d" % number], sequence=2 + number) == 0
    log = bench.cluster.log(OUT)
    request = Produce(
        partition=OUT,
        records=(Record(value=b"0"),),
        transactional_id=ids[0],
        producer_id=ids[1],
        producer_epoch=ids[2],
        sequence=2,
    )
    assert bench.cluster.handle(1, request, 0.0).base_offset == 2
    assert log.high_watermark == 7
    assert bench.produce(ids, [b"a", b"b"]) == 45  # older than the newest five: not recognised, so out of order


def test_sequences_and_epochs_count_without_a_transaction_too() -> None:
    bench = Bench()

    def produce(epoch: int, sequence: int) -> int:
        records = (Record(value=b"a"),)
        request = Produce(partition=OUT, records=records, producer_id=5, producer_epoch=epoch, sequence=sequence)
        return int(bench.cluster.handle(1, request, 0.0).error_code)

    assert [produce(1, 0), produce(1, 1), produce(0, 2), produce(1, 3), produce(2, 2), produce(2, 0)] == [
        0,
        0,
        47,
        45,
        45,
        0,
    ]
    assert bench.visible() == [b"a"] * 3


def test_time_does_not_go_back() -> None:
    cluster = Cluster()
    cluster.advance(10)
    with pytest.raises(ValueError, match="go back"):
        cluster.advance(9)


def test_an_unmodelled_request_is_refused_loudly() -> None:
    with pytest.raises(KeyError):
        Cluster().handle(1, object(), 0.0)


def _list_all() -> object:
    return ListTransactionsRequest(state_filters=[], producer_id_filters=[])
