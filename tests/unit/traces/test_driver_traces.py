"""What a collector gets of a driver, with the real core and without a broker: tasks, losses, failures."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from onceward.common.errors import CheckpointFailedError
from onceward.connectors.interfaces import ReplayRefusedError
from onceward.connectors.tasks import Vote
from onceward.driver.tracing import MAX_SLOTS, DriverTraces
from onceward.protocol.events import CloseReason
from onceward.protocol.values import CheckpointId, Generation, OnLost
from onceward.watch.traces.ids import TraceIds, ids_of
from onceward.watch.traces.spans import Spans
from tests.support.collector import Collector, Trace
from tests.support.running_job import JOB, SINK, Coordinator, Job
from tests.unit.driver.test_replaying import LOST, LossyJob

STORE = "store-a"
STEPS = {"schedule": 0.01, "read": 0.02, "transform": 0.03, "produce": 0.04, "flush": 0.05}


@pytest.fixture
def spans(collector: Collector) -> Iterator[Spans]:
    with closing(Spans("onceward-driver")) as spans:
        yield spans


def ids(checkpoint: int) -> TraceIds:
    return ids_of(STORE, JOB, CheckpointId(checkpoint))


def taken(collector: Collector, spans: Spans, checkpoint: int) -> Trace:
    """All spans of a checkpoint, after the last ones are exported."""
    spans.close()
    return collector.trace(f"{ids(checkpoint).trace:032x}")


def vote(slot: int, **steps: float) -> Vote:
    return Vote(slot=slot, attempt=slot, records=5, bytes=50, steps={**STEPS, **steps})


def test_a_checkpoint_is_drawn_from_its_plan_to_its_commit(collector: Collector, spans: Spans) -> None:
    job = Job(Coordinator(), until=3, traces=DriverTraces(spans, JOB))
    assert job.generation.run() is CloseReason.STOPPED
    trace = taken(collector, spans, 3)
    assert trace.names == ["plan", "prove", "run", "settle"]
    root, settle = f"{ids(3).root:016x}", f"{ids(3).settle:016x}"
    assert {span.name: span.parent for span in trace.spans} == {
        "plan": root,
        "run": root,
        "prove": root,
        "settle": settle,
    }
    plan, run, prove = trace.one("plan"), trace.one("run"), trace.one("prove")
    assert plan.began <= plan.ended <= run.began <= run.ended <= prove.began <= prove.ended
    assert all(
        {name: span.attributes[f"onceward.{name}"] for name in ("job", "generation", "checkpoint")}
        == {"job": JOB, "generation": 1, "checkpoint": 3}
        for span in trace.spans
    )
    assert plan.attributes["onceward.records_read"] == 10
    assert run.attributes["onceward.records_written"] == 10
    assert {span.service for span in trace.spans} == {"onceward-driver"}


def write(spans: Spans, votes: Sequence[Vote], run_s: float = 1.0) -> None:
    traces = DriverTraces(spans, JOB)
    traces.opened(STORE, Generation(7))
    traces.wrote(CheckpointId(5), votes, plan_s=0.1, run_s=run_s, prove_s=0.2, read=10, transactions=len(votes))


def test_each_slot_is_below_the_run_and_its_steps_follow_each_other(collector: Collector, spans: Spans) -> None:
    write(spans, [vote(0), vote(1, read=0.5)])
    trace = taken(collector, spans, 5)
    run = trace.one("run")
    assert trace.below(run) == ["slot", "slot", "vote"]
    for slot in trace.all("slot"):
        number = slot.attributes["onceward.slot"]
        assert slot.attributes["onceward.records_written"] == 5
        assert slot.attributes["onceward.bytes_written"] == 50
        steps = [span for span in trace.spans if span.parent == slot.id]
        assert [span.name for span in steps] == ["read", "transform", "produce", "flush"]
        assert [span.attributes["onceward.slot"] for span in steps] == [number] * 4
        took = {**STEPS, "read": 0.5 if number else STEPS["read"]}
        for before, step in zip([slot, *steps], steps, strict=False):
            begins = slot.began if before is slot else before.ended
            assert step.began == pytest.approx(begins, abs=1e-5)
            assert step.ended - step.began == pytest.approx(took[step.name], abs=1e-5)
        assert slot.began - run.began == pytest.approx(STEPS["schedule"], abs=1e-5)
    last = max(slot.ended for slot in trace.all("slot"))
    assert trace.one("vote").began == pytest.approx(last, abs=1e-5)
    assert trace.one("vote").ended == pytest.approx(run.ended, abs=1e-5)


@pytest.mark.parametrize("schedule", [-3600.0, 3600.0])
def test_a_slot_stays_within_its_run_whatever_an_executors_clock_says(
    collector: Collector, spans: Spans, schedule: float
) -> None:
    write(spans, [vote(0, schedule=schedule)])
    trace = taken(collector, spans, 5)
    run, slot = trace.one("run"), trace.one("slot")
    assert run.began - 1e-5 <= slot.began <= slot.ended <= run.ended + 1e-5


def test_a_large_checkpoint_shows_the_slots_that_took_longest(collector: Collector, spans: Spans) -> None:
    write(spans, [vote(slot, read=slot / 1000) for slot in range(MAX_SLOTS + 50)])
    trace = taken(collector, spans, 5)
    assert {span.attributes["onceward.slot"] for span in trace.all("slot")} == set(range(50, MAX_SLOTS + 50))
    assert trace.one("run").attributes["onceward.slots"] == MAX_SLOTS + 50


def test_a_step_that_an_executor_made_up_has_no_span(collector: Collector, spans: Spans) -> None:
    write(spans, [vote(0, **{"password=1\x1b[2J": 0.1})])
    assert taken(collector, spans, 5).below(taken(collector, spans, 5).one("slot")) == [
        "flush",
        "produce",
        "read",
        "transform",
    ]


def test_a_checkpoint_that_fails_is_aborted_with_its_reason(collector: Collector, spans: Spans) -> None:
    def running(checkpoint: int) -> None:
        if checkpoint == 3:
            raise CheckpointFailedError("the disk is full\x1b[2J")

    job = Job(Coordinator(), until=4, running=running, traces=DriverTraces(spans, JOB))
    assert job.generation.run() is CloseReason.STOPPED
    trace = taken(collector, spans, 3)
    assert trace.names == ["abort", "plan", "run"]
    assert {span.parent for span in trace.spans} == {f"{ids(3).root:016x}"}
    assert trace.one("run").error is not None
    assert trace.one("plan").error is None
    assert trace.one("abort").error == r"the disk is full\x1b[2J"


def lossy(spans: Spans) -> LossyJob:
    return LossyJob(Coordinator(sink=replace(SINK, on_lost=OnLost.REPLAY)), until=6, traces=DriverTraces(spans, JOB))


def test_lost_slots_are_replayed_in_the_same_trace(collector: Collector, spans: Spans) -> None:
    assert lossy(spans).generation.run() is CloseReason.STOPPED
    trace = taken(collector, spans, LOST)
    assert trace.names == ["plan", "prove", "replay", "run", "settle"]
    replay = trace.one("replay")
    assert replay.parent == f"{ids(LOST).root:016x}"
    assert replay.error is None
    assert replay.attributes["onceward.slots"] == 1
    assert replay.began >= trace.one("prove").ended


def test_a_replay_that_is_refused_says_why(collector: Collector, spans: Spans) -> None:
    job = lossy(spans)

    def refuse(*_: Any) -> None:
        raise ReplayRefusedError("the input is gone")

    job.source.check_replay = refuse
    with pytest.raises(Exception, match="the input is gone"):
        job.generation.run()
    assert taken(collector, spans, LOST).one("replay").error == "the input is gone"
