"""The claim at modelled brokers that refuse, contradict themselves or do not answer.

tests/simulation/test_claims_on_the_model.py covers lost and late requests.
"""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin import DeleteGroupsRequest, DescribeTransactionsRequest
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from onceward.common.errors import ClaimChangedError, FencedError, HaltedError
from onceward.connections.codes import ErrorCode
from onceward.protocol.values import CheckpointId, Claim, Generation
from onceward.sinks.kafka.control.claim_reading import read_claim, read_written_claim
from onceward.sinks.kafka.control.claims import ClaimHolder
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.control_plane import CoordinatorKind, together
from onceward.sinks.kafka.control.hidden_claims import HiddenClaim
from onceward.sinks.kafka.errors import ControlPlaneError
from tests.support.kafka_model import LAST_EPOCH, Call, Settings, State
from tests.support.kafka_model.bench import Bench, Ids

OURS = Claim(store_id="ours", generation=Generation(1), completed=CheckpointId(1), holder="a")
THEIRS = replace(OURS, store_id="theirs", generation=Generation(2), holder="b")
WRITES = (InitProducerIdRequest, AddOffsetsToTxnRequest, TxnOffsetCommitRequest, EndTxnRequest)
RAISING = 2
"""The transaction.version at which the commit of a claim begins the next epoch: a write then needs two requests."""
STEPS = {1: WRITES, RAISING: WRITES[2:]}
"""The requests of a renewal by transaction.version."""
EACH_STEP = pytest.mark.parametrize(
    ("bench", "request_type"),
    [(version, request_type) for version, steps in STEPS.items() for request_type in steps],
    indirect=["bench"],
)


@pytest.fixture(params=STEPS, ids=["tv1", "tv2"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(Settings(brokers=(1, 2, 3), transaction_version=request.param))


def steps(bench: Bench) -> list[type]:
    return list(STEPS[bench.cluster.settings.transaction_version])


def clock(bench: Bench) -> Clock:
    return Clock(now=lambda: datetime(2026, 1, 1, tzinfo=UTC), monotonic=bench.transport.now, wait=bench.wait)


def holder(bench: Bench) -> ClaimHolder:
    return ClaimHolder(bench.control, "job", clock(bench))


def held(bench: Bench) -> ClaimHolder:
    ours = holder(bench)
    ours.take(OURS, ())
    bench.wait(0.1)
    bench.transport.sent.clear()
    return ours


def claim_at(bench: Bench) -> Claim | None:
    bench.wait(0.1)
    return read_claim(bench.control, "job", clock(bench))


def through(completed: int, claim: Claim = OURS) -> Claim:
    return replace(claim, completed=CheckpointId(completed))


def refuse(bench: Bench, request: type, code: int, *, times: int = 1) -> list[Call]:
    """Answer the next requests of a kind with an error and do nothing. Returns them as they arrive."""
    refused: list[Call] = []
    ask = bench.transport._one

    def one(call: Call) -> Any:
        if isinstance(call.request, request) and len(refused) < times:
            refused.append(call)
            return SimpleNamespace(error_code=code, groups=[SimpleNamespace(error_code=code, topics=[])])
        return ask(call)

    changed: Any = bench.transport
    changed._one = one
    return refused


def kinds(bench: Bench) -> list[type]:
    return [type(call.request) for call in bench.transport.sent if isinstance(call.request, WRITES)]


# -- reading


def test_a_job_that_was_never_claimed_has_no_owner(bench: Bench) -> None:
    assert claim_at(bench) is None


@pytest.mark.parametrize("completed", [0, 1, 2**40])
def test_a_claim_is_read_as_it_was_written(bench: Bench, completed: int) -> None:
    """This includes the claim of a job that has completed no checkpoint yet."""
    holder(bench).take(through(completed), ())
    assert claim_at(bench) == through(completed)


@pytest.mark.parametrize(("code", "patient"), [(14, True), (16, True), (30, False), (29, False), (99, False)])
def test_reading_waits_for_brokers_and_not_for_rights(bench: Bench, code: int, patient: bool) -> None:
    held(bench)
    refused = refuse(bench, OffsetFetchRequest, code, times=3)
    if patient:
        assert claim_at(bench) == OURS
        assert len(refused) == 3
        return
    with pytest.raises(ControlPlaneError, match=r"Could not read the claim of job job: .*No data was changed"):
        claim_at(bench)
    assert len(refused) == 1


def test_a_claim_without_answer_for_30_s_is_an_error_and_not_a_free_job(bench: Bench) -> None:
    bench.transport.cut = lambda _call: True
    with pytest.raises(ControlPlaneError, match="Could not read the claim"):
        claim_at(bench)
    assert 30 <= bench.transport.now() < 32


@pytest.mark.parametrize(
    "text",
    [
        "",
        "token",
        "[]",
        '{"version":1,"store":"ours","generation":1,"completed":1,"holder":"a"}',
        '{"version":2,"store":"ours","generation":"one","completed":1,"holder":"a"}',
        '{"version":2,"store":"ours","completed":1,"holder":"a"}',
    ],
)
def test_an_unreadable_claim_counts_as_foreign_and_stays(bench: Bench, text: str) -> None:
    ids = bench.init("job.claim")
    assert bench.receipt(ids, text) == 0
    assert bench.end(ids) == 0
    bench.wait(1)
    bench.transport.sent.clear()
    with pytest.raises(HaltedError, match=r"The claim of job job in consumer group job\.claim cannot be read"):
        claim_at(bench)
    with pytest.raises(HaltedError, match="cannot be read"):
        holder(bench).take(OURS, ())
    assert kinds(bench) == []


def test_a_claim_of_an_earlier_release_has_no_amendment(bench: Bench) -> None:
    ids = bench.init("job.claim")
    assert bench.receipt(ids, '{"version":2,"store":"ours","generation":1,"completed":1,"holder":"a"}') == 0
    assert bench.end(ids) == 0
    bench.wait(1)
    assert claim_at(bench) == Claim(
        store_id="ours", generation=Generation(1), completed=CheckpointId(1), holder="a", amendment=0
    )


def test_a_claim_names_the_amendment(bench: Bench) -> None:
    ours = held(bench)
    assert ours.renew(replace(through(2), amendment=1))
    assert claim_at(bench) == replace(through(2), amendment=1)


# -- taking


def test_taking_looks_before_and_after_it_keeps_others_out(bench: Bench) -> None:
    holder(bench).take(OURS, ())
    seen = [type(call.request) for call in bench.transport.sent]
    looked_and_wrote = [one for one in seen if one in (*WRITES, OffsetFetchRequest)]
    *staged, committed = [one for one in steps(bench) if one is not InitProducerIdRequest]
    look = OffsetFetchRequest
    assert looked_and_wrote == [look, InitProducerIdRequest, look, *staged, look, committed]


def test_a_claim_that_changes_between_the_two_looks_is_not_overwritten(bench: Bench) -> None:
    ours, theirs = holder(bench), holder(bench)
    ask, looks = bench.transport._one, 0

    def one(call: Call) -> Any:
        nonlocal looks
        answer = ask(call)
        looks += isinstance(call.request, OffsetFetchRequest)
        if looks == 1:
            looks += 1
            theirs.take(THEIRS, ())
            bench.wait(0.1)
        return answer

    changed: Any = bench.transport
    changed._one = one
    with pytest.raises(ClaimChangedError, match="claimed by store theirs for generation 2"):
        ours.take(OURS, ())
    assert claim_at(bench) == THEIRS
    assert theirs.renew(through(2, THEIRS)), "its holder continues, though it was refused once"


def test_a_claim_equal_to_the_compared_one_is_taken(bench: Bench) -> None:
    held(bench)
    with pytest.raises(ClaimChangedError):
        holder(bench).take(THEIRS, [through(5)])
    holder(bench).take(THEIRS, [through(5), OURS])
    assert claim_at(bench) == THEIRS


@EACH_STEP
def test_brokers_that_confirm_nothing_for_30_s_are_an_error(bench: Bench, request_type: type) -> None:
    bench.transport.cut = lambda call: isinstance(call.request, request_type)
    with pytest.raises(ControlPlaneError, match="Could not write the claim"):
        holder(bench).take(OURS, ())
    assert 30 <= bench.transport.now() < 32
    bench.transport.cut = lambda _call: False
    assert claim_at(bench) is None


@EACH_STEP
def test_rights_that_are_missing_are_named_at_once_and_not_waited_for(bench: Bench, request_type: type) -> None:
    refuse(bench, request_type, 53)
    with pytest.raises(
        ControlPlaneError, match=r"Could not write .* 53 .*Grant WRITE on TransactionalId prefix 'job.'"
    ):
        holder(bench).take(OURS, ())
    assert bench.transport.now() < 1


# -- renewing


def test_the_request_that_commits_a_prepared_claim_goes_out_with_those_of_others(bench: Bench) -> None:
    ours, waves = held(bench), []
    ours.prepare(through(2))
    sent_by = bench.control.send_all

    def count(requests: Any) -> Any:
        waves.append(len(requests))
        return sent_by(requests)

    bench.control.send_all = count  # type: ignore[method-assign]
    assert ours.renew(
        through(2),
        run=lambda commit: bench.control.run(together(commit, bench.control.reading_transaction_version()))[0],
    )
    assert waves == [2]
    assert claim_at(bench) == through(2)


def test_a_renewal_that_was_prepared_needs_one_request(bench: Bench) -> None:
    ours = held(bench)
    ours.prepare(through(2))
    assert kinds(bench) == steps(bench)[:-1]
    bench.transport.sent.clear()
    assert ours.renew(through(2))
    assert [type(call.request) for call in bench.transport.sent] == [EndTxnRequest]
    assert claim_at(bench) == through(2)


@EACH_STEP
def test_a_claim_that_could_not_be_prepared_is_written_at_renewal(bench: Bench, request_type: type) -> None:
    ours = held(bench)
    refuse(bench, request_type, 53)
    ours.prepare(through(2))
    bench.wait(0.1)
    assert claim_at(bench) == OURS
    if request_type is EndTxnRequest:
        return  # preparing does not send this request
    assert ours.renew(through(2))
    assert claim_at(bench) == through(2)


@EACH_STEP
@pytest.mark.parametrize("code", [14, 15, 16, 51])
def test_a_moved_or_busy_transaction_coordinator_is_retried_and_fences_no_one_unseen(
    bench: Bench, request_type: type, code: int
) -> None:
    ours = held(bench)
    refused = refuse(bench, request_type, code, times=3)
    assert ours.renew(through(2))
    assert len(refused) == 3
    assert claim_at(bench) == through(2)
    sent = [call.request for call in bench.transport.sent if isinstance(call.request, (*WRITES, OffsetFetchRequest))]
    fences = [n for n, one in enumerate(sent) if isinstance(one, InitProducerIdRequest) and one.producer_id < 0]
    looked = any(isinstance(one, OffsetFetchRequest) for one in sent[: fences[0]]) if fences else True
    assert looked, "it would end what a rightful holder has under way"


def test_a_coordinator_that_moved_is_located_again(bench: Bench) -> None:
    ours = held(bench)
    ours.prepare(through(2))
    bench.cluster.fail(bench.coordinator(key="job.claim"), bench.transport.now(), election_s=3.0)
    assert ours.renew(through(2))
    assert claim_at(bench) == through(2)


@pytest.mark.parametrize("code", [47, 48, 49, 90, 120])
def test_a_refused_holder_whose_claim_is_unchanged_takes_it_again(bench: Bench, code: int) -> None:
    """The broker forgot the id, or another client fenced it and left."""
    ours = held(bench)
    refuse(bench, EndTxnRequest, code)
    assert ours.renew(through(2))
    assert claim_at(bench) == through(2)
    assert ours.renew(through(3))
    assert claim_at(bench) == through(3)


def test_a_refused_holder_that_meets_another_claim_fences_no_one(bench: Bench) -> None:
    newer = replace(OURS, generation=Generation(2), holder="b")
    ours, theirs = held(bench), holder(bench)
    theirs.take(newer, [OURS])
    bench.wait(0.1)
    theirs.prepare(through(2, newer))
    bench.transport.sent.clear()
    with pytest.raises(FencedError, match="it was taken over"):
        ours.renew(through(2))
    again = [call for call in bench.transport.sent if isinstance(call.request, InitProducerIdRequest)]
    assert all(call.request.producer_id >= 0 for call in again), "it fenced the rightful holder"
    assert claim_at(bench) == newer
    assert theirs.renew(through(2, newer))
    assert claim_at(bench) == through(2, newer)


def test_a_holder_that_another_store_has_replaced_is_fenced_and_that_store_renews_its_claim(bench: Bench) -> None:
    ours, theirs = held(bench), holder(bench)
    theirs.take(THEIRS, [OURS])
    bench.wait(0.1)
    theirs.prepare(through(2, THEIRS))
    with pytest.raises(FencedError, match="it was taken over"):
        ours.renew(through(2))
    assert claim_at(bench) == THEIRS
    assert theirs.renew(through(2, THEIRS))
    assert claim_at(bench) == through(2, THEIRS)


def test_an_older_claim_whose_successor_is_not_visible_yet_is_not_anothers(bench: Bench) -> None:
    """A read that does not wait for markers returns it."""
    ours, ask, older = held(bench), bench.transport._one, list[Any]()

    def one(call: Call) -> Any:
        unstable = isinstance(call.request, OffsetFetchRequest) and not call.request.require_stable
        if unstable and not older:
            older.append(ask(call))
        return older[0] if unstable else ask(call)

    changed: Any = bench.transport
    changed._one = one
    assert read_claim(bench.control, "job", clock(bench)) == OURS
    assert ours.renew(through(2))
    ours.prepare(through(3))
    refuse(bench, EndTxnRequest, 90)
    assert ours.renew(through(3)), "it is fenced by what it wrote itself"
    changed._one = ask
    assert claim_at(bench) == through(3)


@pytest.mark.parametrize("code", [-1, 7])
def test_an_empty_answer_does_not_count_as_a_refusal(bench: Bench, code: int) -> None:
    """The broker may still carry out the request. Only a new epoch keeps it out of the next write."""
    ours = held(bench)
    refused = refuse(bench, EndTxnRequest, code)
    assert ours.renew(through(2))
    former = refused[0].request
    (last,) = [call.request for call in bench.transport.sent if isinstance(call.request, EndTxnRequest)]
    assert (last.producer_id, last.producer_epoch) > (former.producer_id, former.producer_epoch)
    assert claim_at(bench) == through(2)


def test_a_commit_that_was_carried_out_without_an_answer_is_recognised(bench: Bench) -> None:
    ours = held(bench)
    deaf = iter([True])
    bench.transport.deaf = lambda call: isinstance(call.request, EndTxnRequest) and next(deaf, False)
    assert ours.renew(through(2))
    assert kinds(bench).count(EndTxnRequest) == 1, "it was written again"
    assert claim_at(bench) == through(2)
    assert ours.renew(through(3))


@EACH_STEP
def test_rights_that_were_taken_away_end_the_renewal(bench: Bench, request_type: type) -> None:
    ours = held(bench)
    refuse(bench, request_type, 53, times=5)
    with pytest.raises(ControlPlaneError, match="Could not write the claim of job job: 53"):
        ours.renew(through(2))
    assert claim_at(bench) == OURS


def open_by_somebody(bench: Bench) -> Ids:
    """A claim that is being written by a client that never finishes."""
    ids = bench.init("job.claim")
    assert bench.receipt(ids, "later") == 0
    return ids


def test_a_claim_in_writing_gets_a_moment_before_its_writer_is_fenced(bench: Bench) -> None:
    ids = open_by_somebody(bench)
    holder(bench).take(OURS, ())
    assert 0.5 <= bench.transport.now() < 0.7, "a start after a kill waits for it"
    assert claim_at(bench) == OURS
    assert bench.end(ids) != 0, "it would be written after ours"


def test_a_claim_that_completes_meanwhile_counts(bench: Bench) -> None:
    theirs = holder(bench)
    theirs.take(THEIRS, ())
    bench.wait(0.1)
    theirs.prepare(through(2, THEIRS))
    wait, finished = bench.wait, list[bool]()

    def finish(seconds: float) -> None:
        wait(seconds)
        if not finished and bench.transport.now() > 0.3:
            finished.append(theirs.renew(through(2, THEIRS)))

    ours = ClaimHolder(bench.control, "job", replace(clock(bench), wait=finish))
    with pytest.raises(ClaimChangedError):
        ours.take(OURS, [THEIRS])
    assert finished == [True]
    assert claim_at(bench) == through(2, THEIRS)


@EACH_STEP
def test_a_driver_that_leaves_while_its_renewal_is_unanswered_has_claimed_nothing(
    bench: Bench, request_type: type
) -> None:
    ours = held(bench)
    bench.transport.cut = lambda call: isinstance(call.request, request_type)
    looks = iter([False] * 3)
    assert not ours.renew(through(2), lambda: next(looks, True))
    bench.transport.cut = lambda _call: False
    assert claim_at(bench) == OURS


# -- claims that the brokers end without a marker


def skipping(bench: Bench) -> set[str]:
    """Skip the markers of these transactional ids from now on."""
    names: set[str] = set()
    settings = replace(bench.cluster.settings, skips_marker=lambda name, _place: name in names)
    bench.cluster._state.settings = settings
    return names


def hidden(bench: Bench) -> ClaimHolder:
    """The holder of a claim of checkpoint 2 that was committed without its marker."""
    ours, skipped = held(bench), skipping(bench)
    skipped.add("job.claim")
    assert ours.renew(through(2))
    bench.wait(1)
    skipped.clear()
    return ours


SUCCESSOR = replace(OURS, generation=Generation(2), completed=CheckpointId(2), holder="b")


@pytest.mark.parametrize("decided", ["committed", "aborted", "timed out"])
def test_a_claim_that_ended_without_its_marker_is_ended_as_decided_and_taken_over(bench: Bench, decided: str) -> None:
    ours, skipped = held(bench), skipping(bench)
    skipped.add("job.claim")
    if decided == "committed":
        assert ours.renew(through(2))
    else:
        ours.prepare(through(2))
        if decided == "timed out":
            bench.wait(30)
        else:
            bench.code_of_init("job.claim")
    bench.wait(1)
    skipped.clear()
    last = through(2) if decided == "committed" else OURS
    successor = replace(OURS, generation=Generation(2), completed=last.completed, holder="b")
    if decided == "committed":
        with pytest.raises(ClaimChangedError):
            holder(bench).take(successor, (OURS,))
    holder(bench).take(successor, (last,))
    assert claim_at(bench) == successor


def test_a_claim_that_is_hidden_and_whose_outcome_is_forgotten_is_left_to_a_person(bench: Bench) -> None:
    hidden(bench)
    bench.init("job.claim")
    with pytest.raises(HaltedError, match=r"without a marker.*kafka-transactions\.sh find-hanging"):
        holder(bench).take(replace(OURS, generation=Generation(2)), (OURS,))


def test_a_claim_that_another_process_is_writing_is_not_taken_for_a_hidden_one(bench: Bench) -> None:
    """A driver starts while the coordinator, which looks after the job, takes its claim."""
    held(bench)
    coordinators = bench.init("job.claim")
    writes = iter([True])
    ask = bench.transport._one

    def one(call: Call) -> Any:
        if isinstance(call.request, OffsetFetchRequest) and next(writes, False):
            assert bench.receipt(coordinators, "theirs") == 0
        return ask(call)

    changed: Any = bench.transport
    changed._one = one
    hidden = HiddenClaim(bench.control, "job", clock(bench))
    assert hidden.end() != 0, "it is being written"
    assert bench.end(coordinators) == 0
    bench.wait(1)
    assert hidden.end() == 0


def test_a_live_holder_ends_its_hidden_claim_by_the_next_one(bench: Bench) -> None:
    ours = hidden(bench)
    assert ours.renew(through(3))
    assert claim_at(bench) == through(3)


def test_no_claim_is_written_behind_a_hidden_one(bench: Bench) -> None:
    """If it were, and its writer died, its abort would take back a claim under which records are committed."""
    ours = hidden(bench)
    ours.prepare(through(3))
    holder(bench).take(SUCCESSOR, (through(2),))
    assert claim_at(bench) == SUCCESSOR


@pytest.mark.parametrize("request_type", [InitProducerIdRequest, AddOffsetsToTxnRequest, EndTxnRequest])
@pytest.mark.parametrize("arrives", [True, False], ids=["carried out", "lost"])
@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_a_process_that_dies_while_it_ends_a_hidden_claim_leaves_the_decision_to_the_next_one(
    bench: Bench, request_type: type, arrives: bool, commit: bool
) -> None:
    ours, skipped = held(bench), skipping(bench)
    skipped.add("job.claim")
    if commit:
        assert ours.renew(through(2))
    else:
        ours.prepare(through(2))
        bench.code_of_init("job.claim")
    bench.wait(1)
    skipped.clear()
    last = through(2) if commit else OURS
    dead: list[Call] = []
    bench.transport.sent.clear()

    class DeadError(Exception):
        pass

    def dies(call: Call) -> bool:
        if dead:
            raise DeadError
        if isinstance(call.request, request_type):
            dead.append(call)
        return bool(dead) and not arrives

    bench.transport.cut = dies
    with pytest.raises(DeadError):
        holder(bench).take(replace(last, generation=Generation(2), holder="b"), (last,))
    bench.transport.cut = lambda _call: False
    successor = replace(last, generation=Generation(3), holder="c")
    holder(bench).take(successor, (last,))
    assert claim_at(bench) == successor


def test_a_hidden_claim_is_not_forgotten_while_its_marker_is_skipped_again(bench: Bench) -> None:
    ours, skipped = held(bench), skipping(bench)
    skipped.add("job.claim")
    assert ours.renew(through(2))
    ends: list[Call] = []

    def until_the_second_time(call: Call) -> bool:
        ends.extend([call] * isinstance(call.request, EndTxnRequest))
        if len(ends) == 2:
            skipped.clear()
        return False

    bench.transport.cut = until_the_second_time
    holder(bench).take(SUCCESSOR, (through(2),))
    assert claim_at(bench) == SUCCESSOR


def test_a_hidden_claim_is_not_fenced_while_its_coordinator_does_not_say_what_it_decided(bench: Bench) -> None:
    """The fence would make the brokers forget it."""
    hidden(bench)
    unanswered: list[Call] = []

    def once(call: Call) -> bool:
        unanswered.extend([call] * isinstance(call.request, DescribeTransactionsRequest))
        return isinstance(call.request, DescribeTransactionsRequest) and len(unanswered) == 1

    bench.transport.cut = once
    holder(bench).take(SUCCESSOR, (through(2),))
    assert claim_at(bench) == SUCCESSOR


@pytest.mark.parametrize("lost", range(4))
@pytest.mark.parametrize("unanswered", [True, False], ids=["silent", "moved"])
def test_a_hidden_claim_is_not_fenced_while_it_is_unknown_whether_it_is_shown(
    bench: Bench, lost: int, unanswered: bool
) -> None:
    """Whichever look after the coordinator has said what it decided: a claim that is not shown may be hidden."""
    hidden(bench)
    seen: list[type] = []
    ask = bench.transport._one

    def nth(call: Call) -> bool:
        if isinstance(call.request, DescribeTransactionsRequest) or seen:
            seen.append(type(call.request))
        return isinstance(call.request, OffsetFetchRequest) and seen.count(OffsetFetchRequest) == lost + 1

    def moved(call: Call) -> Any:
        if not nth(call):
            return ask(call)
        return SimpleNamespace(groups=[SimpleNamespace(error_code=ErrorCode.NOT_COORDINATOR, topics=[])])

    changed: Any = bench.transport
    if unanswered:
        changed.cut = nth
    else:
        changed._one = moved
    holder(bench).take(SUCCESSOR, (through(2),))
    assert claim_at(bench) == SUCCESSOR


@pytest.mark.parametrize("left", range(5))
def test_a_claim_that_is_hidden_near_the_last_epoch_is_ended_and_taken_over(bench: Bench, left: int) -> None:
    """The commit at the last epoch would take the producer id from the claim's id, and with it every way to end it."""
    settings = replace(bench.cluster.settings, last_used_epoch=lambda _id: LAST_EPOCH - 1 - left)
    bench.cluster._state.settings = settings
    hidden(bench)
    holder(bench).take(SUCCESSOR, (through(2),))
    assert claim_at(bench) == SUCCESSOR


def test_a_hidden_claim_of_an_earlier_producer_id_is_left_to_a_person(bench: Bench) -> None:
    hidden(bench)
    entry = bench.cluster.entry("job.claim")
    assert entry is not None
    entry.producer_id += 1000
    with pytest.raises(HaltedError, match=r"earlier producer id.*kafka-transactions\.sh find-hanging"):
        holder(bench).take(SUCCESSOR, (through(2),))


def test_a_first_claim_without_its_marker_is_not_taken_for_none(bench: Bench) -> None:
    """A coordinator that settles a job without a driver takes its claim only where there is one."""
    skipped = skipping(bench)
    skipped.add("job.claim")
    holder(bench).take(OURS, ())
    bench.wait(1)
    skipped.clear()
    assert read_claim(bench.control, "job", clock(bench)) is None
    assert read_written_claim(bench.control, "job", clock(bench)) == OURS


def test_a_fence_waits_for_what_it_aborts_without_a_marker(bench: Bench) -> None:
    """Its process dies once the abort is decided; the brokers must not have forgotten it."""
    ours, skipped = held(bench), skipping(bench)
    ours.prepare(through(2))
    skipped.add("job.claim")
    bench.transport.cut = lambda call: isinstance(call.request, AddOffsetsToTxnRequest | TxnOffsetCommitRequest)
    with pytest.raises(ControlPlaneError):
        holder(bench).take(replace(OURS, generation=Generation(2), holder="b"), (OURS,))
    bench.transport.cut = lambda _call: False
    skipped.clear()
    successor = replace(OURS, generation=Generation(3), holder="c")
    holder(bench).take(successor, (OURS,))
    assert claim_at(bench) == successor


def put_back(bench: Bench, former: Claim) -> None:
    """As when a tool deletes the claim's group, and a driver that was paused since then writes its claim."""
    group = DeleteGroupsRequest(groups_names=["job.claim"])
    for node in sorted(bench.cluster.alive):
        bench.cluster.handle(node, group, bench.transport.now())
    holder(bench).take(former, ())
    bench.wait(1)


NEWER = replace(OURS, generation=Generation(2), completed=CheckpointId(2), holder="b")


def held_by_a_newer_generation(bench: Bench) -> ClaimHolder:
    ours, newer = held(bench), holder(bench)
    newer.take(NEWER, (OURS,))
    bench.wait(0.1)
    with pytest.raises(FencedError):
        ours.renew(through(2))
    return newer


@pytest.mark.parametrize("former", [OURS, through(1, NEWER), through(2)], ids=["driver", "claim", "same checkpoint"])
def test_a_holder_is_not_fenced_by_an_older_claim_that_came_back(bench: Bench, former: Claim) -> None:
    newer = held_by_a_newer_generation(bench)
    put_back(bench, former)
    assert newer.renew(through(3, NEWER))
    assert claim_at(bench) == through(3, NEWER)


@pytest.mark.parametrize(
    "other",
    [through(3), replace(through(2), amendment=1), replace(NEWER, holder="c"), replace(OURS, store_id="theirs")],
    ids=["later checkpoint", "later amendment", "copy of the store", "other store"],
)
def test_a_claim_of_a_copy_that_has_gone_further_or_of_another_store_still_fences(bench: Bench, other: Claim) -> None:
    newer = held_by_a_newer_generation(bench)
    put_back(bench, other)
    with pytest.raises(FencedError, match="it was taken over"):
        newer.renew(through(3, NEWER))
    assert claim_at(bench) == other


def depose(bench: Bench, seed: int) -> None:
    """For 1.5 s the claim's former group coordinator answers from what it knows now, and the broker that is asked for
    the coordinator may name it."""
    former = bench.coordinator(CoordinatorKind.GROUP, "job.claim")
    leader = former % 3 + 1
    bench.cluster.move_coordinator(
        CoordinatorKind.GROUP, "job.claim", leader, bench.transport.now(), stale_s=1.5, believers=[former]
    )
    ask, random = bench.transport._one, Random(seed)

    def one(call: Call) -> Any:
        bench.transport.clock += 0.01
        return ask(replace(call, node=random.choice((former, leader))) if call.node is None else call)

    changed: Any = bench.transport
    changed._one = one


@pytest.mark.parametrize("former", ["the one held", "an older one"])
@pytest.mark.parametrize(
    "other", [THEIRS, replace(NEWER, generation=Generation(3), holder="c")], ids=["store", "driver"]
)
def test_no_claim_is_written_over_one_that_a_deposed_group_coordinator_does_not_show(
    bench: Bench, former: str, other: Claim
) -> None:
    for seed in range(50):
        one = Bench(bench.cluster.settings)
        held(one)
        newer, theirs = holder(one), holder(one)
        if former == "an older one":
            depose(one, seed)
        newer.take(NEWER, (OURS,))
        one.wait(0.1)
        if former == "the one held":
            depose(one, seed)
        while True:
            try:
                theirs.take(other, (NEWER,))
                break
            except ClaimChangedError:
                one.wait(0.01)
        with pytest.raises(FencedError, match="it was taken over"):
            newer.renew(through(3, NEWER))
        one.wait(2)
        assert claim_at(one) == other, seed


def test_an_older_claim_that_a_deposed_group_coordinator_shows_fences_no_one(bench: Bench) -> None:
    for seed in range(50):
        one = Bench(bench.cluster.settings)
        held(one)
        newer = holder(one)
        depose(one, seed)
        while newer._held is None:
            with suppress(ClaimChangedError):
                newer.take(NEWER, (OURS,))
        one.init("job.claim")
        assert newer.renew(through(3, NEWER))
        one.wait(2)
        assert claim_at(one) == through(3, NEWER)


@pytest.mark.parametrize("bench", [1], indirect=True)
def test_a_hidden_claim_that_a_late_request_reopens_is_committed_by_its_writer(bench: Bench) -> None:
    """The fence would abort it, and the claim before it would count, although records were committed under this one."""
    ours = hidden(bench)
    late = [call for call in bench.transport.sent if isinstance(call.request, AddOffsetsToTxnRequest)][-1]
    late.apply(bench.transport.now(), 1)
    entry = bench.cluster.entry("job.claim")
    assert entry is not None
    assert entry.state is State.ONGOING
    bench.transport.cut = lambda call: isinstance(call.request, TxnOffsetCommitRequest)
    looks = iter([False] * 20)
    assert not ours.renew(through(3), lambda: next(looks, True))
    assert claim_at(bench) == through(2)
    bench.transport.cut = lambda _call: False
    assert ours.renew(through(3))
    assert claim_at(bench) == through(3)
