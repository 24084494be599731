"""Votes become committables only when the modelled brokers show exactly the transactions that the votes name."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import pytest
from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.producer import InitProducerIdRequest

from onceward.common.errors import FencedError, HaltedError
from onceward.connections.codes import ErrorCode
from onceward.connections.topics import TopicFacts
from onceward.connectors.tasks import Vote
from onceward.driver.origins import slot_origins
from onceward.protocol.values import CheckpointId, Generation, JobName, JsonObject, ParticipantName
from onceward.sinks.kafka.control.brokers import topic_facts
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.committables import KafkaCommittable, TopicRecords
from onceward.sinks.kafka.control.control_plane import CoordinatorKind
from onceward.sinks.kafka.control.recent import KafkaPreCommitted, KnownPlaces
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.control.transactions import State, Transaction
from onceward.sinks.kafka.driver.precommit import (
    Owner,
    ask_brokers,
    make_committables,
    require_same_topics,
)
from onceward.sinks.kafka.errors import ControlPlaneError, PreCommitError
from tests.support.kafka_model import AddOffsets, AddPartitions, Settings
from tests.support.kafka_model.bench import OUT, Bench, Ids, init_request

OTHER = ("out", 1)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SEVEN = CheckpointId(7)
OUT_ID = str(uuid5(NAMESPACE_OID, "out"))


@pytest.fixture
def bench() -> Bench:
    made = Bench(Settings(brokers=(1, 2, 3)))
    made.wait(5)
    return made


def clock(bench: Bench) -> Clock:
    return Clock(now=lambda: NOW, monotonic=bench.transport.now, wait=bench.wait)


def name(number: int, generation: int = 2) -> str:
    return f"orders.sink.{generation}.0123abcd.{number}"


def owner(topics: Mapping[str, TopicFacts] | None = None) -> Owner:
    return Owner(
        job=JobName("orders"),
        sink=ParticipantName("sink"),
        generation=Generation(2),
        cluster_name="main",
        cluster_id="abc",
        end_txn_version=5,
        topics={"out": TopicFacts(name="out", code=0, id=OUT_ID, partitions=2)} if topics is None else topics,
    )


def vote(slot: int, ids: Ids, **more: Any) -> Vote:
    body = {"id": ids[0], "token": f"token {slot}", "topics": {"out": 1}, "timeout_ms": 60_000, **more}
    return Vote(slot=slot, attempt=0, records=1, bytes=10 + slot, body=body)


def ranges(count: int) -> list[list[JsonObject]]:
    return [[{"partition": number, "start": 0, "end": 9}] for number in range(count)]


def words_for(splits: Sequence[JsonObject]) -> str:
    return f"partitions {[split['partition'] for split in splits]}"


def made(
    bench: Bench,
    votes: Sequence[Vote],
    inputs: Sequence[Sequence[JsonObject]] | None = None,
    whose: Owner | None = None,
) -> tuple[KafkaCommittable, ...]:
    inputs = ranges(1 + max(each.slot for each in votes)) if inputs is None else inputs
    whose = whose or owner()
    first = ask_brokers(bench.control, whose, SEVEN, votes, ["out"], places=KnownPlaces(), now=0.0)
    return make_committables(
        bench.control, whose, SEVEN, votes, slot_origins(inputs, words_for), clock(bench), first=first
    )


def losers(bench: Bench, handles: Sequence[KafkaCommittable] = (), staying: Sequence[str] = ()) -> list[str]:
    """End what a pre-commit of ``handles`` leaves over; return it."""
    first = ask_brokers(bench.control, owner(), SEVEN, [], ["out"], places=KnownPlaces(), now=0.0)
    committer = KafkaSystem(bench.control, clock=clock(bench), generation=lambda: 2, topics=["out"])
    known = KafkaPreCommitted(
        committables=tuple(handle.to_committable() for handle in handles),
        handles=handles,
        control=bench.control,
        asked=0.0,
        located=first.located,
        topics=first.topics,
        listed=first.listed,
    )
    return list(committer.sweep(JobName("orders"), keep=known.committables, staying=staying, known=[known]))


def described(bench: Bench) -> int:
    return sum(isinstance(call.request, DescribeTransactionsRequest) for call in bench.transport.sent)


def unanswered(until: float, bench: Bench) -> Callable[[Any], bool]:
    """Leave DescribeTransactions requests unanswered until this time."""
    return lambda call: isinstance(call.request, DescribeTransactionsRequest) and bench.transport.now() < until


def test_a_vote_may_name_partitions_that_the_brokers_do_not_show_yet(bench: Bench) -> None:
    named = {"topics": {"out": 2}, "partitions": {"out": [1, 0]}}
    (handle,) = made(bench, [vote(0, bench.open(name(0)), **named)])
    assert handle.topics["out"].partitions == (0, 1)


def test_brokers_that_show_another_topic_than_the_vote_are_refused_also_before_all_is_there(bench: Bench) -> None:
    named = {"topics": {"more": 1}, "partitions": {"more": [0]}}
    with pytest.raises(PreCommitError, match=r"wrote to \['out'\] instead of \['more'\]"):
        made(bench, [vote(0, bench.open(name(0)), **named)])


def test_coordinators_that_are_known_are_asked_in_one_wave(bench: Bench) -> None:
    ids, places = bench.open(name(0)), KnownPlaces()
    bench.transport.cost_s = 0.001
    for now, waves in ((0.0, 2), (4.0, 1), (6.0, 2)):
        before = bench.transport.now()
        first = ask_brokers(bench.control, owner(), SEVEN, [vote(0, ids)], ["out"], places=places, now=now)
        assert round((bench.transport.now() - before) / bench.transport.cost_s) == waves
        assert first.views[name(0)].state is State.ONGOING
        assert first.listed is not None
        assert list(map(str, first.listed[0])) == [name(0)]


def test_open_transactions_are_listed_only_on_demand(bench: Bench) -> None:
    ids = bench.open(name(0))
    first = ask_brokers(
        bench.control, owner(), SEVEN, [vote(0, ids)], ["out"], places=KnownPlaces(), now=0.0, listing=False
    )
    assert first.listed is None
    assert first.views[name(0)].state is State.ONGOING
    assert not any(isinstance(call.request, ListTransactionsRequest) for call in bench.transport.sent)


def test_a_coordinator_that_has_moved_since_is_found_again() -> None:
    bench = Bench(Settings(brokers=(1, 2, 3)))
    ids, places = bench.open(name(0)), KnownPlaces()
    asked = partial(ask_brokers, bench.control, owner(), SEVEN, [vote(0, ids)], ["out"], places=places)
    asked(now=0.0)
    node = bench.coordinator(key=name(0))
    bench.cluster.move_coordinator(CoordinatorKind.TRANSACTION, name(0), node % 3 + 1, bench.transport.now())
    first = asked(now=1.0)
    assert first.views[name(0)].code == ErrorCode.NOT_COORDINATOR
    (handle,) = make_committables(
        bench.control, owner(), SEVEN, [vote(0, ids)], slot_origins(ranges(1), words_for), clock(bench), first=first
    )
    assert (handle.transaction.producer_id, handle.transaction.epoch) == ids[1:]
    assert asked(now=2.0).views[name(0)].code == ErrorCode.NONE


def test_each_vote_becomes_the_handle_of_its_own_transaction_and_input(bench: Bench) -> None:
    first = bench.open(name(0))
    bench.wait(2)
    third = bench.open(name(1), timeout_ms=90_000)
    bench.enlist(third, OTHER)
    empty = Vote(slot=1, attempt=0, records=0, bytes=0)
    handles = made(bench, [vote(2, third, timeout_ms=90_000), empty, vote(0, first)])
    expected = KafkaCommittable(
        slot=0,
        checkpoint=7,
        cluster_name="main",
        cluster_id="abc",
        transaction=Transaction(id=name(0), producer_id=first[1], epoch=first[2], version=5),
        token="token 0",
        topics={"out": TopicRecords(records=1, partitions=(0,), id=OUT_ID, count=2)},
        records=1,
        bytes=10,
        inputs=ranges(3)[0],
        pre_committed=NOW,
        timeout=timedelta(minutes=1),
        began=datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC),
        replayable=True,
        input_text="partitions [0]",
    )
    other = replace(
        expected,
        slot=2,
        transaction=Transaction(id=name(1), producer_id=third[1], epoch=third[2], version=5),
        token="token 2",
        topics={"out": TopicRecords(records=1, partitions=(0, 1), id=OUT_ID, count=2)},
        bytes=12,
        inputs=ranges(3)[2],
        input_text="partitions [2]",
        timeout=timedelta(seconds=90),
        began=datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC),
    )
    assert sorted(handles, key=lambda handle: handle.slot) == [expected, other]


def test_only_a_slot_with_its_own_range_is_replayable(bench: Bench) -> None:
    votes = [vote(slot, bench.open(name(slot))) for slot in range(3)]
    shared: JsonObject = {"partition": 0, "start": 0, "end": 9}
    handles = made(bench, votes, [[shared], [shared], ranges(3)[2]])
    assert [handle.replayable for handle in handles] == [False, False, True]


@pytest.mark.parametrize("topics", [{}, {"out": TopicFacts(name="out", code=29, id="x", partitions=9)}])
def test_unknown_facts_of_a_topic_stay_unknown(bench: Bench, topics: dict[str, TopicFacts]) -> None:
    (handle,) = made(bench, [vote(0, bench.open(name(0)))], whose=owner(topics))
    assert handle.topics == {"out": TopicRecords(records=1, partitions=(0,), id="", count=0)}


@pytest.mark.parametrize(("reported", "began"), [(-1, None), (1, datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC))])
def test_an_unknown_start_time_stays_unknown(bench: Bench, reported: int, began: datetime | None) -> None:
    ids, ask = bench.open(name(0)), bench.transport._one

    def one(call: Any) -> Any:
        answer = ask(call)
        if isinstance(call.request, DescribeTransactionsRequest):
            states = [replace(state, transaction_start_time_ms=reported) for state in answer.transaction_states]
            return replace(answer, transaction_states=states)
        return answer

    changed: Any = bench.transport
    changed._one = one
    (handle,) = made(bench, [vote(0, ids)])
    assert handle.began == began


def test_an_empty_checkpoint_has_nothing_to_commit(bench: Bench) -> None:
    assert made(bench, [Vote(slot=0, attempt=0, records=0, bytes=0)]) == ()


def test_two_votes_for_one_transaction_are_refused(bench: Bench) -> None:
    ids = bench.open(name(0))
    with pytest.raises(PreCommitError, match="Two slots of checkpoint 7 voted for the same transaction"):
        made(bench, [vote(0, ids), vote(1, ids)])


@pytest.mark.parametrize(
    "theirs",
    ["payments-service-7", "payments.sink.2.0123abcd.0", "orders.other.2.0123abcd.0", name(0, 1), name(0, 3)],
)
def test_a_vote_for_the_transaction_of_another_is_refused_before_any_request(bench: Bench, theirs: str) -> None:
    votes = [vote(0, bench.open(name(0))), vote(1, bench.open(theirs))]
    bench.transport.sent.clear()
    with pytest.raises(PreCommitError, match=rf"slot 1 .* names transaction '{re.escape(theirs)}'"):
        made(bench, votes)
    assert bench.transport.sent == []


def ended(bench: Bench, ids: Ids) -> Vote:
    assert bench.end(ids, commit=False) == 0
    bench.wait(1)
    return vote(0, ids)


def without_receipt(bench: Bench, _ids: Ids) -> Vote:
    ids = bench.init(name(1))
    bench.enlist(ids, OUT)
    assert bench.produce(ids) == 0
    return vote(0, ids)


def wrote_to_more(bench: Bench, ids: Ids) -> Vote:
    bench.cluster.create_topic("elsewhere")
    bench.enlist(ids, ("elsewhere", 0))
    return vote(0, ids)


@pytest.mark.parametrize(
    ("voted", "why"),
    [
        (ended, "it is CompleteAbort instead of open"),
        (without_receipt, "no receipt .* lost DESCRIBE on topic __consumer_offsets"),
        (wrote_to_more, r"wrote to \['elsewhere', 'out'\] instead of \['out'\]"),
        (lambda _bench, ids: vote(0, ids, topics={"out": 1, "more": 1}), r"wrote to \['out'\] instead of \['more', 'o"),
        (lambda _bench, ids: vote(0, ids, topics={}), r"wrote to \['out'\] instead of \[\]"),
        (lambda _bench, ids: vote(0, ids, timeout_ms=59_999), "has a timeout of 60000 ms"),
        (lambda _bench, ids: vote(0, (name(9), *ids[1:])), "the brokers answer 105 TRANSACTIONAL_ID_NOT_FOUND"),
    ],
    ids=["ended", "no receipt", "more topics", "fewer topics", "no topics", "timeout", "unknown"],
)  # fmt: skip
def test_a_vote_for_another_transaction_is_refused_at_once(
    bench: Bench, voted: Callable[[Bench, Ids], Vote], why: str
) -> None:
    wrong, began = voted(bench, bench.open(name(0))), bench.transport.now()
    with pytest.raises(PreCommitError, match=why):
        made(bench, [wrong])
    assert bench.transport.now() == began, "no patience changes that"
    assert described(bench) == 1


def test_one_wrong_vote_among_right_ones_is_found_though_others_are_not_answered_yet(bench: Bench) -> None:
    right, wrong = bench.open(name(0)), ended(bench, bench.open(name(1)))
    with pytest.raises(PreCommitError, match=f"voted for transaction {name(1)}"):
        made(bench, [vote(0, right), replace(wrong, slot=1)])


def test_late_or_partial_answers_are_completed_by_retries(bench: Bench) -> None:
    names = [name(number) for number in range(12)]
    votes = [vote(slot, bench.open(one)) for slot, one in enumerate(names)]
    assert len({bench.coordinator(key=one) for one in names}) > 1
    deaf = bench.coordinator(key=names[0])
    until, bench.transport.sent[:] = bench.transport.now() + 3, []
    unheard = unanswered(until, bench)
    bench.transport.cut = lambda call: unheard(call) and names[0] in call.request.transactional_ids
    assert [handle.transaction.id for handle in made(bench, votes)] == names
    assert bench.transport.now() >= until
    asked = [
        call.request.transactional_ids for call in bench.transport.sent if hasattr(call.request, "transactional_ids")
    ]
    again = [one for ids in asked[len({bench.coordinator(key=each) for each in names}) :] for one in ids]
    assert {bench.coordinator(key=one) for one in again} == {deaf}, "who has answered is not asked again"


def test_brokers_that_do_not_answer_for_10_s_fail_the_checkpoint_and_are_named(bench: Bench) -> None:
    votes, began = [vote(0, bench.open(name(0)))], bench.transport.now()
    bench.transport.cut = unanswered(began + 1000, bench)
    with pytest.raises(
        PreCommitError, match=rf"did not report within 10 s .*{name(0)}: no answer \(the request was lost"
    ):
        made(bench, votes)
    assert 10 <= bench.transport.now() - began < 12


def test_a_coordinator_that_moves_is_waited_for(bench: Bench) -> None:
    """The coordinator answers with an error code: it neither stays silent nor says what is open."""
    votes = [vote(0, bench.open(name(0)))]
    bench.cluster.fail(bench.coordinator(key=name(0)), bench.transport.now(), election_s=4.0)
    assert len(made(bench, votes)) == 1


def test_an_outdated_coordinator_does_not_pass_off_the_transaction_before_as_the_votes(bench: Bench) -> None:
    """A deposed coordinator answers from its old state for a while. The committable would name a transaction that was
    committed before, and its markers would prove a commit that never happened."""
    before, began = bench.open(name(0)), bench.transport.now()
    former = bench.coordinator(key=name(0))
    new = former % 3 + 1
    bench.cluster.move_coordinator(
        CoordinatorKind.TRANSACTION, name(0), new, began, stale_s=5.0, believers=bench.cluster.settings.brokers
    )
    assert bench.end_at(new, before) == 0
    bench.wait(1)
    ids = opened_at(bench, new)
    assert bench.view_at(former, name(0)).producer_epoch == before[2]
    pairs = {"0123abcd.0": before[1:]}
    votes = [vote(0, ids)]
    first = ask_brokers(bench.control, owner(), SEVEN, votes, ["out"], places=KnownPlaces(), now=0.0)
    (handle,) = make_committables(
        bench.control,
        owner(),
        SEVEN,
        votes,
        slot_origins(ranges(1), words_for),
        clock(bench),
        first=first,
        before=pairs.get,
    )
    assert (handle.transaction.id, handle.transaction.producer_id, handle.transaction.epoch) == ids
    assert bench.transport.now() - began >= 5


def opened_at(bench: Bench, node: int) -> Ids:
    """Open a transaction at this broker, even if another one also calls itself the coordinator."""
    now = bench.transport.now()
    given = bench.cluster.handle(node, init_request(name(0), None, 60_000), now)
    ids = name(0), given.producer_id, given.producer_epoch
    owned = {"transactional_id": ids[0], "producer_id": ids[1], "producer_epoch": ids[2]}
    assert bench.cluster.handle(node, AddPartitions(**owned, partitions=[OUT]), now).error_code == 0
    assert bench.cluster.handle(node, AddOffsets(**owned, group_id=ids[0]), now).error_code == 0
    assert bench.produce(ids) == 0
    return ids


# -- losers


def test_only_transactions_of_losing_attempts_are_aborted(bench: Bench) -> None:
    kept, lost = bench.open(name(0)), bench.open(name(1))
    older, stranger = bench.open(name(0, generation=1)), bench.open("bills.sink.2.0123abcd.0")
    bench.transport.sent.clear()
    handles = made(bench, [vote(0, kept)])
    assert losers(bench, handles) == [older[0], lost[0]]
    listings = sum(isinstance(call.request, ListTransactionsRequest) for call in bench.transport.sent)
    assert listings == 2 * 3, "the sweep uses what the pre-commit has listed"
    bench.wait(1)
    assert {bench.view(ids[0]).state for ids in (kept, stranger)} == {State.ONGOING}
    assert all(bench.view(ids[0]).state is not State.ONGOING for ids in (lost, older))
    assert bench.end(lost) != 0, "its writer, should it wake, is refused"


def test_what_staying_tasks_have_open_is_no_leftover(bench: Bench) -> None:
    theirs, older = bench.open(name(0)), bench.open(name(0, generation=1))
    lost = bench.open("orders.sink.2.4567cdef.0")
    assert losers(bench, staying=["0123abcd"]) == [older[0], lost[0]]
    assert bench.view(theirs[0]).state is State.ONGOING


def test_a_newer_generation_is_left_alone_with_everything(bench: Bench) -> None:
    lost, newer = bench.open(name(0)), bench.open(name(0, generation=3))
    with pytest.raises(FencedError, match=f"transaction {newer[0]} of generation 3 is open"):
        losers(bench)
    assert bench.view(lost[0]).state is bench.view(newer[0]).state is State.ONGOING


def test_a_loser_whose_abort_is_not_confirmed_fails_the_pre_commit(bench: Bench) -> None:
    bench.open(name(0))
    bench.transport.cut = lambda call: isinstance(call.request, InitProducerIdRequest)
    with pytest.raises(ControlPlaneError, match="Could not fence 1 within 30 s"):
        losers(bench)


# -- topics


def test_an_unchanged_or_unknown_topic_id_is_accepted(bench: Bench) -> None:
    require_same_topics("main", topic_facts(bench.control, {"out": OUT_ID}), {"out": OUT_ID})
    require_same_topics("main", topic_facts(bench.control, {"out": ""}), {"out": ""})
    require_same_topics("main", topic_facts(bench.control, {}), {})


def test_a_recreated_topic_halts_and_a_missing_one_fails_the_checkpoint(bench: Bench) -> None:
    with pytest.raises(HaltedError, match=f"its id was the former one's and is {OUT_ID}"):
        require_same_topics(
            "main",
            topic_facts(bench.control, {"onceward": "", "out": "the former one's"}),
            {"onceward": "", "out": "the former one's"},
        )
    bench.cluster.delete_topic("out")
    with pytest.raises(PreCommitError, match="Sink topic out is not on cluster"):
        require_same_topics("main", topic_facts(bench.control, {"out": OUT_ID}), {"out": OUT_ID})
