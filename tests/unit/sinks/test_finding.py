"""Hanging transactions of any program, found on modelled brokers."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from kafka.protocol.admin import DescribeProducersRequest, ListTransactionsRequest
from kafka.protocol.producer import AddPartitionsToTxnRequest

from onceward.protocol.committing import FoundHanging
from onceward.protocol.values import Outcome
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.finding import find_hanging
from onceward.sinks.kafka.errors import ControlPlaneError
from onceward.sinks.kafka.identifiers import job_of
from tests.support.kafka_model.bench import OUT, Ids
from tests.support.kafka_model.transport import Call
from tests.unit.sinks.test_hanging import NAME, OTHER, Brokers


@pytest.fixture(params=[0, 2], ids="transaction.version {}".format)
def brokers(request: pytest.FixtureRequest) -> Brokers:
    return Brokers(request.param)


def found(brokers: Brokers, *topics: str, meanwhile: Callable[[], object] = lambda: None) -> FoundHanging:
    """``meanwhile``: what happens between the two looks."""

    def wait(seconds: float) -> None:
        meanwhile()
        brokers.wait(seconds)

    clock = Clock(now=lambda: datetime(2026, 1, 1, tzinfo=UTC), monotonic=brokers.transport.now, wait=wait)
    return find_hanging(brokers.control, topics or None, clock)


def opened(brokers: Brokers, name: str) -> Ids:
    ids = brokers.init(name)
    brokers.enlist(ids, OUT, OTHER)
    assert brokers.produce(ids, (b"a",)) == brokers.produce(ids, (b"c",), partition=OTHER) == 0
    return ids


def test_only_what_no_coordinator_will_end_is_found_at_two_looks(brokers: Brokers) -> None:
    opened(brokers, "open")
    assert found(brokers).transactions == ()
    ids = opened(brokers, "another")
    brokers.end_without(ids, OTHER, receipt=False)
    asked = brokers.transport.now()
    (one,) = found(brokers).transactions
    assert brokers.transport.now() - asked >= 2
    assert (one.topic, one.partition, one.producer_id, one.id, one.job) == ("out", 1, ids[1], "another", None)
    assert one.certain
    assert one.remedy.endswith(f"abort --topic out --partition 1 --start-offset {one.offset}")
    assert "an abort loses them" in one.meaning


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "about to be ended"])
def test_what_is_ended_between_the_two_looks_does_not_hang(brokers: Brokers, ended: bool) -> None:
    """By a tool, or by its own program, which has begun to write the marker."""
    ids = opened(brokers, "another")
    brokers.end_without(ids, OTHER, receipt=False)
    suspected: list[bool] = []

    def meanwhile() -> None:
        suspected.append(True)
        if ended:
            brokers.cluster.log(OTHER).mark(ids[1], ids[2] + 1, commit=False, now=brokers.transport.now())
        else:
            assert brokers.enlist(brokers.init("another"), OTHER) == 0

    assert found(brokers, meanwhile=meanwhile).transactions == ()
    assert suspected == [True]


def test_what_is_ours_is_ended_by_its_job(brokers: Brokers) -> None:
    ids = brokers.written()
    brokers.end_without(ids, OUT, OTHER, commit=False)
    ours = [one for one in found(brokers, "out").transactions if one.topic == "out"]
    assert [one.partition for one in ours] == [0, 1]
    assert all(one.job == "orders" and one.remedy.startswith("start job orders: ") for one in ours)
    assert all("an abort loses nothing" in one.meaning for one in ours)
    assert brokers.swept() == [NAME]
    assert found(brokers).transactions == ()


@pytest.mark.parametrize("request_type", [DescribeProducersRequest, ListTransactionsRequest])
def test_what_is_not_answered_is_unknown(brokers: Brokers, request_type: type) -> None:
    brokers.end_without(opened(brokers, "another"), OTHER, receipt=False)
    whole = found(brokers, "out")
    assert (whole.looked_into, whole.unknown) == (2, ())
    brokers.transport.cut = lambda call: isinstance(call.request, request_type)
    partly = found(brokers, "out")
    assert partly.unknown or [one.certain for one in partly.transactions] == [False]
    assert all(one.doubt and not one.remedy for one in partly.transactions if not one.certain)


def test_a_topic_that_is_not_there_is_unknown(brokers: Brokers) -> None:
    assert found(brokers, "nothing").unknown


def test_a_sweep_that_cannot_finish_shows_what_hangs_until_it_is_over(brokers: Brokers) -> None:
    ids = brokers.written()
    brokers.end_without(ids, OUT, OTHER, commit=False)

    def refuses(call: Call) -> bool:
        return isinstance(call.request, AddPartitionsToTxnRequest)

    links = brokers.control.links
    brokers.transport.cut = refuses
    with pytest.raises(ControlPlaneError, match="no marker can be written"):
        brokers.swept()
    assert list(links.hanging) == [NAME]
    (trouble,) = [one for one in links.troubles() if one.held]
    assert NAME in trouble.link
    assert "out-0 offset 0, out-1 offset 0" in trouble.waiting
    brokers.transport.cut = lambda _: False
    assert brokers.swept() == [NAME]
    assert list(links.hanging) == []
    assert links.finished == 1


def test_a_commit_that_cannot_be_finished_is_shown_until_it_is(brokers: Brokers) -> None:
    ids = brokers.written()
    brokers.end_without(ids, OUT, OTHER)
    links, seen = brokers.control.links, 0

    def refuses_once(call: Call) -> bool:
        nonlocal seen
        if isinstance(call.request, AddPartitionsToTxnRequest):
            seen += 1
            if seen == 2:
                assert list(links.hanging) == [NAME]
            return seen == 1
        return False

    brokers.transport.cut = refuses_once
    assert brokers.committed(ids).outcome is Outcome.COMMITTED
    assert seen >= 2
    assert list(links.hanging) == []
    assert links.finished == 1


def test_a_commit_that_can_never_be_finished_stays_shown(brokers: Brokers) -> None:
    ids = brokers.written()
    brokers.end_without(ids, OTHER, receipt=False)
    brokers.cluster._state.transaction_shard(NAME).table.clear()  # as after transactional.id.expiration.ms
    brokers.init(NAME)
    assert brokers.committed(ids).outcome is Outcome.IN_DOUBT
    assert list(brokers.control.links.hanging) == [NAME]


def test_what_another_process_has_ended_is_not_shown_any_more(brokers: Brokers) -> None:
    brokers.written()
    brokers.control.links.hangs(NAME, "readers", "refused")
    brokers.swept()
    assert brokers.control.links.hanging == ()


def test_ids_of_jobs_are_known_by_their_form() -> None:
    assert job_of(NAME) == "orders"
    assert job_of("orders.claim") == "orders"
    for other in ("orders", "orders-7", "orders.claim.x", "a.b.c.d.e", ""):
        assert job_of(other) is None
