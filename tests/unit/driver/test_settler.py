from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from onceward.common.errors import HaltedError, OncewardError
from onceward.driver.journal import Journal
from onceward.driver.outputs import OpenOutput, Outputs
from onceward.driver.runtime import THREADS, Runtime
from onceward.driver.settler import Settler
from onceward.protocol.answers import Verdict
from onceward.protocol.values import (
    CheckpointId,
    Claim,
    Generation,
    JobName,
    OnLost,
    Outcome,
    Settlement,
)
from tests.support.documents import committable, document
from tests.support.running_job import SINK
from tests.unit.driver.settling import Driver, Queue, held, slots

HELD = (committable(0),)
COMMITTED, LOST, IN_DOUBT = Outcome.COMMITTED, Outcome.LOST, Outcome.IN_DOUBT
FIVE, SIX = CheckpointId(5), CheckpointId(6)
CLAIM = Claim(store_id="store", generation=Generation(1), completed=FIVE, holder="driver")


_SINK: Any = SimpleNamespace(participant=SINK)


def settler(runtime: Runtime = THREADS, *, session: Any = None, committer: Any = None) -> Settler:
    """A settler that commits nothing: the tests use only its memory."""
    nothing: Any = None
    return Settler(
        session=session,
        source=nothing,
        outputs=Outputs(JobName("orders"), [OpenOutput(sink=_SINK, system=committer)]),
        journal=Journal("orders"),
        on_settled=lambda *_: None,
        on_lost=lambda: None,
        on_error=raise_,
        runtime=runtime,
    )


def raise_(error: OncewardError) -> None:
    raise error


def test_an_unsettled_checkpoint_is_kept_however_many_unchanged_ones_follow() -> None:
    """Otherwise the idle job's sweep would abort its decided transactions as leftovers."""
    kept = settler()
    kept.expect(CheckpointId(5), {SINK.name: HELD}, None)
    for unchanged in range(6, 500):
        kept.expect(CheckpointId(unchanged), {}, None)
    assert kept.unsettled() == {SINK.name: HELD}


def test_an_aborted_transaction_is_no_longer_kept_from_the_sweep() -> None:
    kept = settler()
    kept.expect(CheckpointId(5), {SINK.name: HELD}, None)
    kept.forget(CheckpointId(5))
    assert kept.unsettled() == {}


def test_a_checkpoint_that_was_aborted_and_is_completed_after_all_halts_the_driver() -> None:
    """A copy of the store that lacks the abort was promoted, and an acknowledgement under way has reached it."""
    queue = Queue()
    kept = settler(queue)
    kept.expect(CheckpointId(5), {SINK.name: HELD}, None)
    kept.forget(CheckpointId(5))
    kept.complete(CheckpointId(5))
    (call,) = queue.calls
    with pytest.raises(HaltedError, match="checkpoint 5, which was aborted: its store was replaced by an older copy"):
        call()


def test_a_repeated_instruction_that_waited_until_its_checkpoint_was_settled_and_followed_changes_nothing() -> None:
    kept = settler()
    kept.expect(CheckpointId(5), {SINK.name: HELD}, None)
    kept.settled = CheckpointId(5)
    kept.expect(CheckpointId(6), {SINK.name: HELD}, None)
    kept.settle(CheckpointId(5), 0)
    assert kept.settled == 5
    assert kept.unsettled() == {SINK.name: HELD}


def test_a_repeated_instruction_that_waited_while_lost_slots_were_written_again_commits_nothing_of_them() -> None:
    """Only the instruction for the amendment may commit them. If the amendment is lost, they are replayed again."""
    queue = Queue()
    kept = settler(queue)
    kept.expect(CheckpointId(5), {SINK.name: HELD}, None)
    kept.complete(CheckpointId(5))
    lost = Settlement(slot=0, outcome=Outcome.LOST, evidence="timed out")
    kept._settlements[CheckpointId(5), 0] = {SINK.name: (lost,)}
    queue.calls.clear()  # the call was made: the loss was reported
    kept.complete(CheckpointId(5))
    (told_again,) = queue.calls
    written = (replace(HELD[0], document=document(again=True)),)
    kept.amend(CheckpointId(5), SINK.name, frozenset({0}), written)
    told_again()  # with a committer or a session it would commit and report
    assert kept.unsettled() == {SINK.name: written}


def test_the_outcome_of_the_last_settled_checkpoint_is_reported_again_while_the_next_one_is_written() -> None:
    """An older copy of the store was promoted that lacks only the outcome: it would complete nothing more."""
    driver = Driver()
    driver.proofs = {0: COMMITTED}
    driver.settler.expect(FIVE, held(0), None)
    driver.complete(FIVE)
    driver.settler.expect(SIX, held(0), None)
    driver.complete(FIVE)
    assert driver.reported == [{0: COMMITTED}] * 2
    assert (driver.asked, driver.said) == ([[0]], ["settled 5"]), "nothing is done twice"
    assert driver.settler.unsettled() == held(0)


def test_an_idle_job_writes_its_claim_again_before_it_expires() -> None:
    driver = Driver()
    driver.settler.keep_claim()
    driver.queue.work()
    assert driver.claimed == [], "there is none yet"
    driver.settler.take_claim([None])
    for _ in range(48):
        driver.queue.now += 1800
        driver.settler.keep_claim()
        driver.queue.work()
    assert [claim.completed for claim in driver.claimed] == [0] * 24
    driver.proofs = {0: COMMITTED}
    driver.settler.expect(FIVE, held(0), None)
    driver.complete(FIVE)
    driver.settler.keep_claim()
    assert driver.queue.calls == [], "a checkpoint has just written it"
    driver.queue.now += 3600
    driver.settler.keep_claim()
    driver.queue.work()
    assert [claim.completed for claim in driver.claimed[24:]] == [5, 5]


class Unclaimed:
    """A committer and a session that do not write the claim before the driver leaves."""

    grant = SimpleNamespace(store_id="store")
    generation, driver = 1, "driver"
    participant = SINK

    def renew_claim(self, claim: Claim, *, give_up: Callable[[], bool], **_: Any) -> bool:
        return False


def test_a_driver_that_leaves_before_its_claim_is_written_commits_nothing() -> None:
    leaving = settler(session=Unclaimed(), committer=Unclaimed())
    leaving.expect(CheckpointId(5), {SINK.name: HELD}, None)
    leaving.settle(CheckpointId(5), 0)  # a commit would be an AttributeError
    assert leaving.unsettled() == {SINK.name: HELD}


@pytest.mark.parametrize("policy", OnLost)
def test_a_slot_in_doubt_halts_the_job_whatever_becomes_of_lost_ones(policy: OnLost) -> None:
    """The slot could be visible: a replay would duplicate it, giving it up would lose it."""
    driver = Driver(policy)
    driver.settler.expect(FIVE, held(0, 1, 2), None)
    driver.proofs = {0: COMMITTED, 1: LOST, 2: IN_DOUBT}
    driver.complete(FIVE)
    (failure,) = driver.failures
    assert isinstance(failure, HaltedError)
    assert "2 of its 3 transactions" in str(failure)
    assert str(failure).endswith("\n  lost: the records of slot 1. seen\n  in_doubt: the records of slot 2. seen")
    assert driver.reported == [{0: COMMITTED, 1: LOST, 2: IN_DOUBT}], "the coordinator halts the job for it"
    assert (driver.said, driver.shown, driver.settler.settled, driver.settler.lost) == ([], [], 0, 0)


def test_a_loss_halts_a_job_whose_sink_has_policy_halt() -> None:
    driver = Driver(OnLost.HALT)
    driver.settler.expect(FIVE, held(0), None)
    driver.proofs = {0: LOST}
    driver.complete(FIVE)
    assert isinstance(driver.failures[0], HaltedError)
    assert driver.said == []


@pytest.mark.parametrize("proofs", [{}, {1: COMMITTED}, {0: COMMITTED, 1: LOST}], ids=["none", "one", "two"])
def test_a_driver_that_leaves_between_two_commits_reports_nothing_and_settles_nothing(
    proofs: dict[int, Outcome],
) -> None:
    """The coordinator would refuse a partial report, and the sweep would abort a checkpoint that passes for settled."""
    driver = Driver()
    driver.settler.expect(FIVE, held(0, 1, 2), None)
    driver.proofs = proofs
    driver.complete(FIVE)
    assert (driver.reported, driver.said, driver.shown, driver.failures) == ([], [], [], [])
    assert driver.claimed == [CLAIM], "what is committed of it is claimed before"
    assert driver.settler.unsettled() == held(0, 1, 2)


def test_a_proved_outcome_is_neither_asked_again_nor_omitted() -> None:
    driver = Driver()
    driver.settler.expect(FIVE, held(0, 1, 2), None)
    driver.proofs = {0: COMMITTED, 1: LOST, 2: LOST}
    driver.complete(FIVE)
    driver.settler.amend(FIVE, SINK.name, frozenset({1, 2}), slots(1, 2, again=True))
    driver.proofs = {1: LOST, 2: COMMITTED}
    driver.complete(FIVE, 1)
    driver.settler.amend(FIVE, SINK.name, frozenset({1}), slots(1, again=True))
    assert driver.settler.unsettled() == {SINK.name: (*slots(0), *slots(1, 2, again=True))}
    driver.proofs = {1: COMMITTED}
    driver.complete(FIVE, 2)
    assert driver.asked == [[0, 1, 2], [1, 2], [1]]
    assert driver.reported[1:] == [{0: COMMITTED, 1: LOST, 2: COMMITTED}, {0: COMMITTED, 1: COMMITTED, 2: COMMITTED}]
    assert driver.shown == [(FIVE, [0, 1, 2])]
    assert driver.said == ["lost", "lost", "settled 5"]
    assert driver.claimed == [replace(CLAIM, amendment=amendment) for amendment in (0, 1, 2)]


def test_lost_slots_with_an_empty_replay_need_no_further_commit() -> None:
    driver = Driver()
    driver.settler.expect(FIVE, held(0, 1), None)
    driver.proofs = {0: COMMITTED, 1: LOST}
    driver.complete(FIVE)
    driver.settler.amend(FIVE, SINK.name, frozenset({1}), ())
    driver.complete(FIVE, 1)
    assert driver.asked == [[0, 1]]
    assert driver.reported[-1] == {0: COMMITTED}
    assert driver.settler.settled == FIVE


def test_a_skipped_loss_settles_the_rest_and_names_the_records() -> None:
    """Lost slots' ids are not offered to writers again; only the ids of slots proved committed are."""
    driver = Driver(OnLost.SKIP)
    driver.settler.expect(FIVE, held(0, 1), None)
    driver.proofs = {0: LOST, 1: COMMITTED}
    driver.complete(FIVE)
    assert driver.shown == [(FIVE, [1])]
    assert driver.evidence == ["the records of slot 0. seen", "seen"]
    assert driver.said == ["settled 5"]
    assert driver.settler.unsettled() == {}


def test_a_repeated_instruction_reports_the_outcome_again_but_neither_commits_nor_logs_again() -> None:
    driver = Driver()
    positions = document(next=10)
    driver.settler.expect(FIVE, held(0), positions)
    driver.proofs = {0: COMMITTED}
    driver.complete(FIVE)
    for verdict in (Verdict.DUPLICATE, Verdict.TOO_LATE):
        driver.verdict = verdict
        driver.complete(FIVE)
    assert driver.asked == [[0]]
    assert len(driver.reported) == 3
    assert (driver.claimed, driver.said) == ([CLAIM], ["settled 5"])
    assert (driver.shown, driver.mirrored) == ([(FIVE, [0])], [positions])


def test_listeners_get_the_durations_of_decision_and_commits() -> None:
    driver = Driver()
    driver.queue.now = 8.0
    driver.settler.expect(FIVE, held(0, 1), None)
    driver.queue.now += 0.1234567
    driver.settler.complete(FIVE)
    driver.queue.now += 2.7654321
    driver.proofs = {0: COMMITTED, 1: COMMITTED}
    driver.queue.work()
    steps = {"decide": 0.123457, "settle": 2.765432}
    assert driver.events == [("settled", {"checkpoint": FIVE, "transactions": 2, "steps": steps})]


@pytest.mark.parametrize(("policy", "settled"), [(OnLost.REPLAY, []), (OnLost.SKIP, ["settled"])])
def test_listeners_get_an_event_for_a_loss(
    policy: OnLost, settled: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(policy)
    driver.settler.expect(FIVE, held(0, 1), None)
    driver.proofs = {0: LOST, 1: LOST}
    driver.complete(FIVE)
    (what, facts), *others = driver.events
    assert (what, facts) == ("lost", {"checkpoint": FIVE, "transactions": 2, "policy": policy.value})
    assert [event for event, _ in others] == settled
    assert "the records of slot 0. seen; the records of slot 1. seen" in caplog.text


def test_a_checkpoint_with_nothing_to_commit_is_settled_once_and_claimed_afterwards() -> None:
    driver = Driver()
    driver.settler.expect(FIVE, {}, None)
    for _ in range(3):
        driver.settler.passed(FIVE)
    driver.queue.work()
    driver.settler.passed(FIVE)
    driver.queue.work()
    assert (driver.said, driver.claimed, driver.shown) == (["settled 5"], [CLAIM], [(FIVE, [])])
    assert len(driver.events) == 1


def test_a_checkpoint_that_has_something_to_commit_waits_for_its_instruction() -> None:
    driver = Driver()
    driver.settler.expect(FIVE, held(0), None)
    driver.settler.passed(FIVE)
    driver.settler.passed(SIX)
    assert driver.queue.calls == []


def test_an_instruction_that_is_repeated_before_it_is_carried_out_is_carried_out_once() -> None:
    driver = Driver()
    driver.settler.expect(FIVE, held(0), None)
    driver.settler.complete(FIVE)
    driver.settler.expect(SIX, held(0), None)
    driver.settler.complete(FIVE)
    assert len(driver.queue.calls) == 1


def test_a_late_word_about_the_base_does_not_open_its_successor_again() -> None:
    driver = Driver()
    driver.proofs = {0: COMMITTED}
    driver.settler.expect(FIVE, held(0), None)
    driver.settler.expect(SIX, held(0), None)
    for checkpoint in (FIVE, SIX, FIVE):
        driver.complete(checkpoint)
    assert driver.settler.settled == SIX
    assert driver.settler.unsettled() == {}
    assert driver.said == ["settled 5", "settled 6"]


def test_outcomes_that_the_coordinator_refuses_end_the_generation_and_settle_nothing() -> None:
    driver = Driver()
    driver.settler.expect(FIVE, held(0), None)
    driver.proofs = {0: COMMITTED}
    driver.verdict = Verdict.CONFLICT
    driver.complete(FIVE)
    (failure,) = driver.failures
    assert "refused the outcomes of checkpoint 5: conflict: so it is" in str(failure)
    assert (driver.said, driver.settler.unsettled()) == ([], held(0))


def test_an_unforeseen_error_ends_the_generation_instead_of_the_thread() -> None:
    driver = Driver()
    driver.settler.expect(FIVE, held(0), None)
    broken: Any = {0: "no outcome"}
    driver.proofs = broken
    driver.complete(FIVE)
    (failure,) = driver.failures
    assert "Settling checkpoint 5 failed" in str(failure)
    assert driver.settler.settled == 0


def test_unchanged_checkpoints_are_not_remembered() -> None:
    driver = Driver()
    for number in range(5, 10):
        driver.settler.expect(CheckpointId(number), {}, None)
    assert [number for number in range(5, 10) if driver.settler.work(CheckpointId(number))] == [9]


def test_a_driver_that_has_closed_begins_nothing() -> None:
    driver = Driver()
    driver.settler.expect(FIVE, held(0), None)
    driver.settler.expect(SIX, {}, None)
    driver.settler.close(wait=False)
    driver.settler.prepare(FIVE)
    driver.settler.complete(FIVE)
    driver.settler.passed(SIX)
    assert driver.queue.calls == []


def test_a_claim_is_prepared_before_anything_is_known_of_its_checkpoint() -> None:
    driver = Driver()
    driver.settler.prepare(FIVE)
    driver.queue.work()
    assert driver.said == ["claim 5 prepared"]
