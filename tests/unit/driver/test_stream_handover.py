"""How Spark's thread and the generation's threads hand a batch over, in every order of their steps."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from onceward.common.errors import CheckpointFailedError, FencedError, HaltedError
from onceward.connectors.interfaces import ReplayRefusedError
from onceward.connectors.tasks import CheckpointTask, Vote
from onceward.driver.streaming.batches import Batch, Found, positions_before_the_first
from onceward.driver.streaming.handover import Handover, StreamEndedError, Work
from onceward.driver.streaming.source import BatchSource
from onceward.protocol.values import JobName, ParticipantName
from tests.support.waiting import wait_until

FIVE, SIX = (Batch(query="q", number=number, offsets=str(number)) for number in (5, 6))
VOTES = {
    ParticipantName("sink"): (
        Vote(slot=0, attempt=1, records=2, bytes=3, digests={"0": "2:ffffffffffffffff"}),
        Vote(slot=1, attempt=1, records=1, bytes=3, digests={"1": "1:0000000000000002"}),
    )
}


def found(batch: Batch) -> Found:
    return Found(batch=batch, after=batch.number - 1, location="file:/data/totals")


def work(batch: Batch = FIVE, *, replay: bool = False) -> Work:
    task = CheckpointTask(job="j", generation=1, checkpoint=2, splits=({"batch": 5},), columns=(), sinks={"sink": {}})
    return Work(task=task, batch=batch, replay=replay)


def always() -> bool:
    return True


def meanwhile(call: Callable[[], Any]) -> "Future[Any]":
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return future


def test_a_batch_is_run_for_the_checkpoint_and_released_when_it_is_settled() -> None:
    handover, wanted = Handover(), work()
    with handover.offering(found(FIVE)):
        assert handover.offered == found(FIVE)
        votes = meanwhile(lambda: handover.run(wanted))
        assert handover.next_work(FIVE, always) is wanted
        assert handover.answer(wanted, VOTES)
        assert votes.result(10) == VOTES
        handover.settled(FIVE, handover.digest)
        assert handover.next_work(FIVE, always) is None
        assert handover.settled_digest == "3:0000000000000001"
    assert handover.offered is None


def test_an_offered_batch_is_news_for_the_checkpoint_that_waits_until_it_is_planned() -> None:
    handover, news = Handover(), list[bool]()
    source = BatchSource(JobName("totals"), handover)
    source.wakes(lambda: news.append(source.has_news()))
    with handover.offering(found(FIVE)):
        assert news == [True]
        assert source.plan(positions_before_the_first()).records == 1
        assert not source.has_news()


def test_a_run_fails_when_the_query_stops_before_it_has_begun() -> None:
    handover = Handover()
    with handover.offering(found(FIVE)):
        votes = meanwhile(lambda: handover.run(work()))
    with pytest.raises(CheckpointFailedError, match="stopped before batch 5"):
        votes.result(10)


def test_a_replay_waits_until_spark_runs_its_batch() -> None:
    handover, wanted = Handover(), work(replay=True)
    votes = meanwhile(lambda: handover.run(wanted))
    with handover.offering(found(FIVE)):
        assert handover.next_work(FIVE, always) is wanted
        handover.answer(wanted, VOTES)
        assert votes.result(10) == VOTES


def test_a_replay_is_refused_when_spark_runs_another_batch() -> None:
    handover = Handover()
    with handover.offering(found(SIX)), pytest.raises(ReplayRefusedError, match="Spark runs batch 6"):
        handover.run(work(replay=True))


@pytest.mark.parametrize("taken", [False, True])
def test_a_cancelled_run_stops_sparks_job_only_while_one_runs(taken: bool) -> None:
    handover, wanted, stopped = Handover(), work(), list[bool]()
    handover.cancel(lambda: stopped.append(True))
    with handover.offering(found(FIVE)):
        votes = meanwhile(lambda: handover.run(wanted))
        if taken:
            assert handover.next_work(FIVE, always) is wanted

        def cancelled() -> bool:
            handover.cancel(lambda: stopped.append(True))
            return votes.done()

        wait_until(cancelled, "the run ends")
        with pytest.raises(CheckpointFailedError, match="cancelled"):
            votes.result(10)
        assert not handover.answer(wanted, VOTES), "its result comes too late"
    assert stopped == [True] * taken


@pytest.mark.parametrize("taken", [False, True])
def test_a_sink_that_is_closed_ends_the_run_of_its_batch_and_begins_none(taken: bool) -> None:
    handover, wanted, stopped = Handover(), work(), list[bool]()
    with handover.offering(found(FIVE)):
        votes = meanwhile(lambda: handover.run(wanted))
        if taken:
            assert handover.next_work(FIVE, always) is wanted
            assert handover.leave(lambda: stopped.append(True)) == 5
        else:
            handover.leave(lambda: stopped.append(True))
        with pytest.raises(CheckpointFailedError):
            votes.result(10)
        with pytest.raises(CheckpointFailedError, match="its sink was closed"):
            handover.run(work())
        assert handover.leave(lambda: stopped.append(True)) is None
    assert stopped == [True] * taken


def test_a_sink_that_is_closed_lets_lost_slots_be_written_again() -> None:
    handover, wanted = Handover(), work(replay=True)
    with handover.offering(found(FIVE)):
        votes = meanwhile(lambda: handover.run(wanted))
        assert handover.next_work(FIVE, always) is wanted
        assert handover.leave(lambda: pytest.fail("the job is stopped")) is None
        handover.answer(wanted, VOTES)
        assert votes.result(10) == VOTES


def test_spark_runs_a_batch_again_for_the_next_checkpoint_after_one_that_failed() -> None:
    handover, second = Handover(), work()
    with handover.offering(found(FIVE)):
        for wanted in (work(), second):
            votes = meanwhile(lambda wanted=wanted: handover.run(wanted))  # type: ignore[misc]
            assert handover.next_work(FIVE, always) is wanted
            assert handover.answer(wanted, VOTES)
            assert votes.result(10) == VOTES


def test_the_wait_for_a_batch_ends_with_its_query_and_with_its_job() -> None:
    handover = Handover()
    with handover.offering(found(FIVE)):
        with pytest.raises(StreamEndedError, match="query stopped"):
            handover.next_work(FIVE, lambda: False)
        handover.end(FencedError("another driver"))
        with pytest.raises(FencedError):
            handover.next_work(FIVE, always)
        with pytest.raises(FencedError):
            handover.wait_recovered()


def test_a_settled_batch_is_not_taken_for_another_one_after_a_restore() -> None:
    handover = Handover()
    handover.settled(SIX, "1:0000000000000002")
    handover.recovered(SIX)
    assert handover.next_work(SIX, always) is None
    handover.recovered(FIVE)
    with pytest.raises(StreamEndedError):
        handover.next_work(SIX, lambda: False)


def test_a_refusal_halts_the_job_and_is_raised_once_the_job_has_ended() -> None:
    handover, refusal = Handover(), HaltedError("other records")
    refused = meanwhile(lambda: handover.refuse(refusal, always))
    wait_until(lambda: handover.refusal is refusal, "the generation sees the refusal")
    assert not refused.done()
    handover.end(refusal)
    with pytest.raises(HaltedError, match="other records"):
        refused.result(10)


def test_a_refusal_ends_with_its_query() -> None:
    with pytest.raises(StreamEndedError):
        Handover().refuse(HaltedError("other records"), lambda: False)
