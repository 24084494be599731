"""What a collector gets of a coordinator: the root of each checkpoint, and what the coordinator does of it."""

import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from onceward.client.session import CoordinatorClient, connect
from onceward.common.errors import ExitCode
from onceward.common.killpoints import KillPoint
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.coordinator.service.observer import observers
from onceward.coordinator.store.store import Store
from onceward.operate.health import run_health
from onceward.protocol.durable import Durable
from onceward.protocol.facts import (
    AbortReason,
    CheckpointAmended,
    CheckpointRestored,
    CheckpointTriggered,
    CheckpointUnchanged,
    JobHalted,
)
from onceward.protocol.values import (
    NO_CHECKPOINT,
    CheckpointId,
    CheckpointKind,
    Generation,
    JobName,
    Outcome,
    Settlement,
)
from onceward.watch.traces.coordinator import CoordinatorTraces
from onceward.watch.traces.ids import TraceIds, ids_of
from onceward.watch.traces.spans import Spans
from tests.support.collector import Collector, Trace
from tests.support.places import Place
from tests.support.processes import armed_with
from tests.support.scripted import SETTINGS, SINK, CoordinatorProcess, ScriptedDriver
from tests.support.stored_jobs import AT, StoredJob
from tests.support.waiting import wait_until

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def coordinator(collector: Collector, tmp_path: Path) -> Iterator[EmbeddedCoordinator]:
    with closing(Spans("onceward-coordinator")) as spans:
        observer = observers(None, CoordinatorTraces(spans))
        with EmbeddedCoordinator(tmp_path / "state", observer=observer) as coordinator:
            yield coordinator


@pytest.fixture
def client(coordinator: EmbeddedCoordinator) -> Iterator[CoordinatorClient]:
    with connect(coordinator.address, patience="10s") as client:
        yield client


def trace_of(ids: TraceIds) -> str:
    return f"{ids.trace:032x}"


def root_of(ids: TraceIds) -> str:
    return f"{ids.root:016x}"


def assert_whole(trace: Trace, ids: TraceIds) -> None:
    """Every span is below the root, which spans all of them."""
    root = trace.one("checkpoint")
    assert (root.id, root.parent) == (root_of(ids), "")
    assert {span.parent for span in trace.spans} == {"", root.id}
    assert all(root.began <= span.began <= span.ended <= root.ended for span in trace.spans)


def test_a_settled_checkpoint_has_a_root_a_decision_and_its_settling(
    collector: Collector, client: CoordinatorClient, job: str
) -> None:
    driver = ScriptedDriver(client, JobName(job))
    driver.wait_committed(2)
    ids = ids_of(driver.session.grant.store_id, JobName(job), driver.committed[0])
    trace = collector.complete(trace_of(ids), "settle")
    driver.close()
    assert_whole(trace, ids)
    assert [name for name in trace.names if name != "decide"] == ["checkpoint", "settle", "store commit", "wait"]
    root = trace.one("checkpoint")
    assert root.error is None
    assert root.service == "onceward-coordinator"
    assert root.attributes == {
        "onceward.job": job,
        "onceward.generation": 1,
        "onceward.checkpoint": driver.committed[0],
        "onceward.result": "settled",
        "onceward.records_read": 1,
        "onceward.records_written": 2,
        "onceward.bytes_written": 0,
        "onceward.transactions": 2,
    }
    assert trace.one("settle").id == f"{ids.settle:016x}"
    assert trace.one("store commit").began < trace.one("store commit").ended
    assert trace.one("wait").ended <= trace.one("store commit").began <= trace.one("settle").ended


def test_an_aborted_checkpoint_says_why_and_no_text_of_a_peer_is_obeyed(
    collector: Collector, client: CoordinatorClient, job: str
) -> None:
    driver = ScriptedDriver(client, JobName(job))
    driver.wait_committed(1)
    while not driver.aborted:
        driver.session.decline(driver.runs[-1], SINK.name, "the disk is full\x1b[2J" + "x" * 5000)
    ids = ids_of(driver.session.grant.store_id, JobName(job), driver.aborted[0])
    trace = collector.complete(trace_of(ids))
    driver.close()
    assert_whole(trace, ids)
    assert trace.names == ["checkpoint", "store commit", "wait"]
    root = trace.one("checkpoint")
    assert root.attributes["onceward.result"] == "aborted"
    assert root.error is not None
    assert root.error.startswith(f"{AbortReason.DECLINED.value}: ")
    assert r"the disk is full\x1b[2Jxxx" in root.error
    assert len(root.error) == 1000


def test_a_checkpoint_that_finds_nothing_new_has_no_trace_and_leaves_nothing_in_memory(collector: Collector) -> None:
    state = Durable(job=JobName("orders"), store_id="store-a")
    with closing(Spans("onceward-coordinator")) as spans:
        traces = CoordinatorTraces(spans)
        for number in range(1, 1000):
            checkpoint = CheckpointId(number)
            triggered = CheckpointTriggered(
                checkpoint=checkpoint,
                base=NO_CHECKPOINT,
                generation=Generation(1),
                kind=CheckpointKind.CHECKPOINT,
                request=None,
                waited_s=0.0,
            )
            traces.published(state, [triggered], NOW)
            traces.published(state, [CheckpointUnchanged(checkpoint=checkpoint)], NOW)
        assert not any(traces._open.values())
    assert collector.all().spans == []


def test_a_checkpoint_that_a_person_leaves_behind_ends_with_that_reason(collector: Collector, tmp_path: Path) -> None:
    """Until then it is open: a halted job may stay so for days. Another coordinator has read it from the store."""
    view: Any = None
    with closing(Store.open(f"sqlite:///{tmp_path / 'store.db'}")) as store, closing(Spans("test")) as spans:
        job = StoredJob(store)
        job.open()
        job.checkpoints(1)
        job.trigger()
        job.complete()
        lost = [Settlement(slot=0, outcome=Outcome.LOST, evidence="timed out")]
        amended = CheckpointAmended(
            checkpoint=CheckpointId(2), participant=SINK.name, amendment=1, slots=frozenset([0]), committables=()
        )
        halted = JobHalted(
            checkpoint=CheckpointId(2), participant=SINK.name, settlements=tuple(lost), reason="it is lost"
        )
        job.write(amended, halted)
        traces = CoordinatorTraces(spans)
        traces.attached(view, {}, 2, store.unfinished())
        traces.published(job.durable, [halted], NOW)
        restored = CheckpointRestored(
            checkpoint=CheckpointId(3),
            source=CheckpointId(1),
            former=CheckpointId(2),
            generation=Generation(2),
            snapshots={},
            reason="a test wants it",
        )
        traces.published(job.durable, [restored], AT + timedelta(hours=1))
        traces.published(job.durable, [restored], AT + timedelta(hours=2))
        ids = ids_of(store.store_id, job.durable.job, CheckpointId(2))
    trace = collector.trace(trace_of(ids))
    assert_whole(trace, ids)
    root, settle = trace.one("checkpoint"), trace.one("settle")
    assert (root.began, root.ended) == (AT.timestamp(), AT.timestamp() + 3600)
    assert root.error == settle.error == "a person restored checkpoint 1 instead"
    assert root.attributes["onceward.result"] == "restored"
    assert root.attributes["onceward.amendment"] == 1


@pytest.mark.kill
@pytest.mark.parametrize("point", [KillPoint.COORDINATOR_AFTER_TRIGGER, KillPoint.COORDINATOR_AFTER_DECISION])
def test_the_next_coordinator_ends_the_trace_that_the_killed_one_began(
    collector: Collector, tmp_path: Path, place: Place, job: str, point: KillPoint
) -> None:
    """On PostgreSQL the next one stands by already; on SQLite it starts afterwards, at the same address."""
    armed = {**armed_with([f"{point.value}:3"], tmp_path / "kills"), **collector.variables}

    def started(name: str, environment: Mapping[str, str], port: int | None = None) -> CoordinatorProcess:
        process = CoordinatorProcess(
            tmp_path / name,
            port=port,
            store_url=place.url,
            environment={**environment, "OTEL_SERVICE_NAME": name},
            options=["--traces"],
        )
        stack.callback(process.end)
        return process.wait_ready()

    with ExitStack() as stack:
        first = started("first", armed)
        wait_until(lambda: run_health(first.address) == 0, "it leads")
        second = started("second", collector.variables) if place.is_postgres else None
        address = first.address if second is None else f"{first.address},{second.address}"
        settings = replace(SETTINGS, num_retained=10_000)  # checkpoint 3 is read at the end
        driver = ScriptedDriver(stack.enter_context(connect(address, patience="60s")), JobName(job), settings=settings)
        assert first.wait(60) == 128 + signal.SIGKILL
        second = second or started("second", collector.variables, first.port)
        driver.wait_committed(4)
        ids = ids_of(driver.session.grant.store_id, JobName(job), CheckpointId(3))
        trace = collector.complete(trace_of(ids), "settle")
        driver.close()
        second.terminate()
        assert second.wait() == ExitCode.FINISHED
    assert driver.errors.empty()
    assert_whole(trace, ids)
    root = trace.one("checkpoint")
    assert (root.service, root.error) == ("second", None)
    assert root.attributes["onceward.records_written"] == 2
    assert root.attributes["onceward.generation"] == 1
    with closing(place.open()) as store:
        (kept,) = [one for one in store.checkpoints(JobName(job), 100) if one.checkpoint == 3]
    assert kept.triggered_at is not None
    assert root.began == pytest.approx(kept.triggered_at.timestamp() - kept.waited.total_seconds(), abs=0.002)
    assert kept.settled_at is not None
    assert root.ended == pytest.approx(kept.settled_at.timestamp(), abs=5)
