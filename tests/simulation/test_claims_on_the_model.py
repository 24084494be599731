"""The sink's claim on modelled brokers, when requests and answers are lost or late."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from kafka.protocol.producer import EndTxnRequest, TxnOffsetCommitRequest

from onceward.common.errors import ClaimChangedError, FencedError
from onceward.protocol.values import CheckpointId, Claim, Generation
from onceward.sinks.kafka.control.claim_reading import read_claim
from onceward.sinks.kafka.control.claims import ClaimHolder
from onceward.sinks.kafka.control.clock import Clock
from tests.support.kafka_model import LAST_EPOCH, Call, Settings
from tests.support.kafka_model.bench import Bench

START = datetime(2026, 1, 1, tzinfo=UTC)
OURS = Claim(store_id="ours", generation=Generation(1), completed=CheckpointId(1), holder="a")
THEIRS = replace(OURS, store_id="theirs", holder="b")


@pytest.fixture(params=[0, 1, 2], ids=["tv0", "tv1", "tv2"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(Settings(brokers=(1, 2, 3), transaction_version=request.param, timeout_scan_s=1))


def clock(bench: Bench) -> Clock:
    return Clock(
        now=lambda: START + timedelta(seconds=bench.transport.now()), monotonic=bench.transport.now, wait=bench.wait
    )


def holder(bench: Bench) -> ClaimHolder:
    return ClaimHolder(bench.control, "job", clock(bench))


def claim_at(bench: Bench) -> Claim | None:
    bench.wait(0.1)
    return read_claim(bench.control, "job", clock(bench))


def through(completed: int, claim: Claim = OURS) -> Claim:
    return replace(claim, completed=CheckpointId(completed))


def late(bench: Bench) -> bool:
    return bench.transport.now() > 600


def nth(number: int) -> Callable[[Call], bool]:
    """True for the request of this number, counted from 0."""
    left: Iterator[bool] = iter([*[False] * number, True])
    return lambda _call: next(left, False)


@pytest.mark.parametrize("lost", ["cut", "deaf"])
@pytest.mark.parametrize("prepared", [False, True], ids=["at once", "prepared"])
def test_a_claim_is_written_whatever_request_or_answer_is_lost(bench: Bench, lost: str, prepared: bool) -> None:
    for number in range(40):
        ours = holder(bench)
        seen = claim_at(bench)
        bench.transport.sent.clear()
        setattr(bench.transport, lost, nth(number))
        ours.take(OURS, () if seen is None else (seen,))
        for completed in (2, 3):
            if prepared:
                bench.wait(0.1)
                ours.prepare(through(completed))
            assert ours.renew(through(completed))
        ended = number >= len(bench.transport.sent)
        setattr(bench.transport, lost, lambda _call: False)
        assert claim_at(bench) == through(3), number
        if ended:
            return
    raise AssertionError("there are more requests than were lost")


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("left", range(1, 5), ids="{} epochs left".format)
def test_a_claim_survives_the_last_epoch_of_its_producer_whatever_answer_is_lost(version: int, left: int) -> None:
    """Each checkpoint takes one epoch: at one per second, a producer id lasts nine hours. Brokers answer an
    InitProducerId that repeats the step to the last epoch with UNKNOWN_SERVER_ERROR, each time."""
    for number in range(100):
        bench = Bench(
            Settings(brokers=(1, 2, 3), transaction_version=version, last_used_epoch=lambda _id: LAST_EPOCH - left)
        )
        ours = holder(bench)
        bench.transport.deaf = nth(number)
        ours.take(OURS, ())
        for completed in range(2, 7):
            assert ours.renew(through(completed), partial(late, bench)), number
            assert claim_at(bench) == through(completed), number
        if number >= len(bench.transport.sent):
            return
    raise AssertionError("there are more answers than were lost")


def test_a_prepared_claim_counts_for_nothing_and_blocks_no_one(bench: Bench) -> None:
    ours, theirs = holder(bench), holder(bench)
    ours.take(OURS, ())
    bench.wait(0.1)
    ours.prepare(through(2))
    assert claim_at(bench) == OURS
    theirs.take(THEIRS, (OURS,))
    assert claim_at(bench) == THEIRS
    with pytest.raises(FencedError, match="taken over"):
        ours.renew(through(2))
    assert claim_at(bench) == THEIRS


def test_a_claim_that_was_prepared_for_an_aborted_checkpoint_is_never_written(bench: Bench) -> None:
    ours = holder(bench)
    ours.take(OURS, ())
    bench.wait(0.1)
    ours.prepare(through(2))
    ours.prepare(through(3))
    assert ours.renew(through(3))
    assert claim_at(bench) == through(3)


@pytest.mark.parametrize("renewed", [4, 5])
def test_a_claim_that_was_prepared_a_minute_ago_is_written(bench: Bench, renewed: int) -> None:
    """As when a Spark job takes longer than the timeout of the claim's transaction."""
    ours = holder(bench)
    ours.take(OURS, ())
    bench.wait(0.1)
    ours.prepare(through(4))
    bench.wait(60)
    assert ours.renew(through(renewed))
    assert claim_at(bench) == through(renewed)


def test_a_claim_that_is_renewed_as_it_is_is_written_although_its_producer_was_refused(bench: Bench) -> None:
    """An idle job renews its claim so that it does not expire: finding it is not enough."""
    ours = holder(bench)
    ours.take(OURS, ())
    bench.wait(0.1)
    assert holder(bench)._fence() == 0
    ends: list[Call] = []

    def cut(call: Call) -> bool:
        ends.extend([call] if isinstance(call.request, EndTxnRequest) else [])
        return False

    bench.transport.cut = cut
    assert ours.renew(OURS)
    assert len(ends) == 1
    assert claim_at(bench) == OURS


@pytest.mark.parametrize("late", [EndTxnRequest, TxnOffsetCommitRequest])
def test_a_request_that_arrives_late_writes_no_claim_before_its_time(bench: Bench, late: type) -> None:
    """Otherwise the late request commits the claim prepared for a checkpoint that is then aborted, and the job's own
    store is refused."""
    ours = holder(bench)
    ours.take(OURS, ())
    delayed: list[Call] = []

    def cut(call: Call) -> bool:
        if not delayed and isinstance(call.request, late):
            delayed.append(call)
            return True
        return False

    bench.transport.cut = cut
    assert ours.renew(through(2))
    bench.wait(0.1)
    ours.prepare(through(3))
    answer: Any = delayed[0].apply(bench.transport.now(), 1)
    assert answer is not None
    assert claim_at(bench) == through(2)
    assert ours.renew(through(4))
    assert claim_at(bench) == through(4)


def test_a_claim_that_changed_since_it_was_compared_is_not_taken(bench: Bench) -> None:
    ours, theirs = holder(bench), holder(bench)
    theirs.take(THEIRS, ())
    with pytest.raises(ClaimChangedError, match="claimed by store theirs"):
        ours.take(OURS, ())
    assert theirs.renew(through(2, THEIRS)), "the rightful holder was disturbed"
    assert claim_at(bench) == through(2, THEIRS)


def test_an_expired_claim_is_written_again(bench: Bench) -> None:
    ours = holder(bench)
    ours.take(OURS, ())
    bench.wait(10 * 24 * 3600)
    assert claim_at(bench) is None
    assert ours.renew(through(2))
    assert claim_at(bench) == through(2)


def test_nothing_is_written_for_a_driver_that_leaves_while_the_brokers_do_not_answer(bench: Bench) -> None:
    ours = holder(bench)
    ours.take(OURS, ())
    bench.transport.cut = lambda _call: True
    looks = iter([False] * 5)
    assert not ours.renew(through(2), lambda: next(looks, True))
    bench.transport.cut = lambda _call: False
    assert claim_at(bench) == OURS


def test_a_request_that_arrives_twice_puts_no_older_claim_in_the_place_of_a_newer_one(bench: Bench) -> None:
    ours = holder(bench)
    ours.take(OURS, ())
    bench.transport.sent.clear()
    assert ours.renew(through(2))
    again = [call for call in bench.transport.sent if isinstance(call.request, TxnOffsetCommitRequest)]
    bench.wait(0.1)
    ours.prepare(through(3))
    for call in again:
        call.apply(bench.transport.now(), 1)
    assert ours.renew(through(3))
    assert claim_at(bench) == through(3)
