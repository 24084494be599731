"""What a staying task may take of its partitions: no more than its share of a checkpoint, no faster than its rate."""

from hypothesis import given
from hypothesis import strategies as st

from onceward.sources.kafka.executor.allowances import DRY_S, Allowances
from onceward.sources.kafka.executor.limited import queue_settings
from onceward.sources.kafka.positions import Partition
from onceward.sources.kafka.rates import RateLimit

P = [Partition("t", n) for n in range(3)]


def test_without_a_limit_of_one_kind_only_the_other_counts() -> None:
    shared = Allowances({P[0]: 5}, None)
    assert shared.of(P[0], 0.0) == 5
    assert shared.wait(0.0) == float("inf")
    rated = Allowances(None, RateLimit(10.0))
    assert rated.of(P[0], 0.0) == 10
    assert not rated.shared_out(P[0])


def test_a_share_lasts_until_the_next_cut_and_what_is_left_of_it_is_gone_then() -> None:
    allowances = Allowances({P[0]: 5, P[1]: 0}, None)
    allowances.took(P[0], 3)
    assert [allowances.of(each, 0.0) for each in P] == [2, 0, 0]
    assert [allowances.shared_out(each) for each in P] == [False, True, True]
    allowances.begin({P[0]: 4, P[1]: 1})
    assert [allowances.of(each, 0.0) for each in P] == [4, 1, 0]


def test_the_lower_of_both_limits_counts() -> None:
    allowances = Allowances({P[0]: 5, P[1]: 50}, RateLimit(10.0))
    assert [allowances.of(each, 0.0) for each in P[:2]] == [5, 10]


def test_a_partition_that_has_used_up_its_rate_waits_for_a_whole_record_and_for_more_than_one_if_it_is_fast() -> None:
    slow = Allowances(None, RateLimit(0.5, begin=1.0))
    assert slow.of(P[0], 100.0) == 1
    slow.took(P[0], 1)
    assert slow.of(P[0], 100.0) == 0
    assert slow.wait(100.5) == 1.5
    assert slow.of(P[0], 101.9) == 0
    assert slow.of(P[0], 102.0) == 1
    fast = Allowances(None, RateLimit(1_000.0, begin=1.0))
    fast.took(P[0], fast.of(P[0], 0.0))
    assert fast.of(P[0], 0.0) == 0
    assert fast.wait(0.0) == DRY_S
    assert fast.of(P[0], DRY_S / 2) == 0
    assert fast.of(P[0], 2 * DRY_S) == 40


@given(
    rate=st.floats(0.1, 10_000),
    steps=st.lists(st.tuples(st.floats(0, 2), st.booleans(), st.integers(1, 500)), max_size=60),
    share=st.integers(0, 1_000),
)
def test_no_sequence_of_reads_and_cuts_exceeds_a_limit(
    rate: float, steps: list[tuple[float, bool, int]], share: int
) -> None:
    now, taken, since_cut = 0.0, 0, 0
    allowances = Allowances({P[0]: share}, RateLimit(rate, begin=1.0))
    for passed, cut, wanted in steps:
        now += passed
        if cut:
            allowances.begin({P[0]: share})
            since_cut = 0
        count = min(wanted, allowances.of(P[0], now))
        assert count >= 0
        if count:
            allowances.took(P[0], count)
            taken, since_cut = taken + count, since_cut + count
        assert since_cut <= share
        assert taken <= 1 + rate * now + 1e-6


def test_the_queues_of_many_partitions_hold_no_more_than_one_of_all() -> None:
    assert queue_settings(1) == {
        "fetch.message.max.bytes": str(2 * 1024 * 1024),
        "queued.max.messages.kbytes": str(32 * 1024),
        "queued.min.messages": "10000",
    }
    for partitions in (2, 7, 30):
        given_ = {key: int(value) for key, value in queue_settings(partitions).items()}
        assert partitions * given_["fetch.message.max.bytes"] <= 2 * 1024 * 1024
        assert partitions * given_["queued.max.messages.kbytes"] <= 32 * 1024
    assert int(queue_settings(10_000)["queued.min.messages"]) == 100
