"""``python -m benchmarks coordinator`` with real processes, at sizes that say nothing about speed."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.chromium import chromium
from benchmarks.coordinator.documents import written
from benchmarks.coordinator.held import measure_held
from benchmarks.coordinator.jobs import measure_jobs, measure_participants, measure_slow_disk, measure_stores
from benchmarks.coordinator.main import main
from benchmarks.coordinator.page import measure_page, measure_readings
from benchmarks.coordinator.size import JOBS, measure_decisions, measure_size
from benchmarks.percentiles import percentile
from onceward.coordinator.store.store import Store
from onceward.protocol.values import JobName
from onceward.sinks.kafka.control.committables import KafkaCommittable

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(autouse=True)
def cores() -> Iterator[None]:
    """The measuring thread leaves a core to the server; restore the cores for later tests."""
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


def test_committables_are_such_as_the_sink_reads() -> None:
    snapshot = written(JobName("job"), 3, 7, 5)
    handles = [KafkaCommittable.of(committable) for committable in snapshot.committables]
    assert [(handle.slot, handle.checkpoint) for handle in handles] == [(slot, 7) for slot in range(5)]
    assert len({handle.transaction.id for handle in handles}) == 5


def test_results_name_the_machine_and_grow_with_the_committables(tmp_path: Path) -> None:
    main(["--quick", "--part", "committables", "--results", str(tmp_path), "--directory", str(tmp_path)])
    (file,) = tmp_path.glob("coordinator-*.json")
    results = json.loads(file.read_text())
    assert {"cores", "python", "sqlite", "grpcio", "disk_sync_median_ms"} <= results["machine"].keys()
    few, many = results["committables"]
    assert (few["committables"], many["committables"]) == (10, 100)
    assert 9 * few["bytes"] < many["bytes"]
    assert all(0 < row["acknowledged_s"] <= row["acknowledged_and_decided_s"] for row in (few, many))


def test_both_stores_are_measured_with_their_ratio(tmp_path: Path) -> None:
    file, server = measure_stores(tmp_path / "stores", (2,), 2.5, warm_up=0.5)
    assert (file["store"], server["store"]) == ("sqlite", "postgresql")
    assert server["decision_p50_ms_ratio"] == pytest.approx(
        server["decision_p50_ms"] / file["decision_p50_ms"], abs=0.01
    )


def test_the_write_of_a_decision_is_measured_on_both_stores(tmp_path: Path) -> None:
    rows = measure_decisions(tmp_path / "decisions", 3)
    assert [(row["store"], row["decisions"]) for row in rows] == [("sqlite", 3), ("postgresql", 3)]
    assert all(0 < row["write_p50_ms"] <= row["write_p99_ms"] for row in rows)


def test_jobs_of_five_participants_take_checkpoints(tmp_path: Path) -> None:
    (row,) = measure_participants(tmp_path / "participants", 2, ((1, 10),), 3.0)
    assert row["participants"] == 10
    assert row["decisions_per_s"] > 0


def test_every_simulated_job_takes_checkpoints(tmp_path: Path) -> None:
    (row,) = measure_jobs(tmp_path / "jobs", (3,), 2.5, warm_up=0.5)
    assert row["decisions_per_s"] > 0
    assert 0 < row["decision_p50_ms"] <= row["decision_p99_ms"] <= row["decision_max_ms"]
    with_store = Store.open(f"sqlite:///{tmp_path}/jobs/3/store.db")
    try:
        assert all(durable.base > 1 for durable in with_store.load_jobs())
    finally:
        with_store.close()


def test_a_disk_can_be_as_slow_as_one_likes(tmp_path: Path) -> None:
    (row,) = measure_slow_disk(tmp_path / "slow", 2, (50.0,), 2.5, warm_up=0.5)
    assert row["delay_ms"] == 50.0
    assert row["decision_p50_ms"] > 50.0
    assert row["most_checkpoints_of_a_job"] > 1


@pytest.mark.skipif(chromium() is None, reason="Chromium is missing; sh scripts/chromium.sh says how to install it")
def test_an_open_page_is_measured_beside_none(tmp_path: Path) -> None:
    rows = measure_page(tmp_path / "page", 2, (1,), 1.0, 1)
    assert [row["view"] for row in rows] == ["jobs", "one job"]
    for row in rows:
        assert row["cost"] == pytest.approx(row["share_with"] - row["share_without"], abs=1e-3)


def test_a_longer_page_is_more_bytes(tmp_path: Path) -> None:
    few, many = (measure_readings(tmp_path / str(jobs), jobs, 1)[0] for jobs in (1, 20))
    assert (few["view"], many["view"]) == ("jobs", "jobs")
    assert few["bytes"] < many["bytes"]


def test_held_jobs_are_all_back_after_a_crash_of_the_coordinator(tmp_path: Path) -> None:
    (row,) = measure_held(tmp_path / "held", (3,), 0.5, warm_up=0.5)
    assert row["jobs"] == 3
    assert 0 < row["start_s"] <= row["all_back_s"]


def test_the_store_is_measured_after_retention(tmp_path: Path) -> None:
    rows = measure_size(tmp_path / "size", 20 * JOBS)
    assert [row["checkpoints"] for row in rows] == [2 * JOBS * number for number in range(1, 11)]
    store = Store.open(f"sqlite:///{tmp_path}/size/store.db")
    try:
        kept = [record.settled_at is not None for record in store.checkpoints(JobName("job-0"), 1000)]
    finally:
        store.close()
    assert 10 <= sum(kept) <= 15, "retention removes every ten seconds, here every five checkpoints"


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([7.0], 0.99)) == (51.0, 100.0, 7.0)
