"""A slice of the crash suite; with the marker ``crash``, each of its parts as a whole (tests/crash/README.md)."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from onceward.common.killpoints import KillPoint
from onceward.dev.postgres.binaries import is_offered
from onceward.dev.postgres.server import LocalPostgres
from onceward.operate.verify import CheckpointReport, Content, Fed, History, Lane, Visible
from tests.crash.blackouts import lose_leader
from tests.crash.brokers import fill_disk, roll_brokers
from tests.crash.cluster import allocate, change_executors, decommission
from tests.crash.combinations import combine
from tests.crash.disk import DISTURBANCES, disturb
from tests.crash.leaders import FAULTS, LEADER_SCENES, faulty_harness, leader_points, visit_leader
from tests.crash.points import SCENES, TABLE_POINTS, scene_of, visit, visit_tables
from tests.crash.streams import POINTS
from tests.crash.suite import PARTS, Plan, ground_of_three, harness_of_one, three_brokers
from tests.support.harness import Harness
from tests.support.job_tables import DeltaTables, IcebergTables, PostgresTables
from tests.support.repeats import unexplained
from tests.support.schedules import STAYING_POINTS, Schedule
from tests.support.toxiproxy import toxiproxy_or_skip

pytestmark = pytest.mark.long

# tests/integration/test_kill_points.py has all points, the first time through.
SLICE = [KillPoint.DRIVER_BETWEEN_END_TXN, KillPoint.TASK_AFTER_RECEIPT]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """A coordinator whose decisions can be disturbed; only the tests that request it do so."""
    with harness_of_one(tmp_path_factory.mktemp("crash"), ("-m", "tests.crash.disturbed")) as made:
        yield made


def assert_good(schedule: Schedule) -> None:
    missed = [f"{kill.process} at {kill.place}" for kill in schedule.not_reached]
    assert schedule.good, "\n".join([schedule.outcome.value, *missed, *schedule.reasons])


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_some_kill_points_the_second_time_through(harness: Harness) -> None:
    scene = scene_of(SLICE[-1])
    assert_good(visit(harness, scene, SLICE, [2], f"slice-{scene.name}"))


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", [KillPoint.DRIVER_BETWEEN_END_TXN, KillPoint.DRIVER_AFTER_REPLAY])
def test_a_kill_leaves_two_outputs_the_same_records(harness: Harness, point: KillPoint) -> None:
    scene = scene_of(point)
    several = replace(scene, setup=scene.setup.into(2))
    assert_good(visit(harness, several, [point], [1, 2], f"slice-{scene.name}-into-2", part="outputs"))


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "point", [KillPoint.DRIVER_BETWEEN_END_TXN, KillPoint.DRIVER_AFTER_REPLAY, KillPoint.ORPHAN_AFTER_COMMIT]
)
def test_a_kill_leaves_a_topic_and_a_table_the_same_records(
    harness: Harness, postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch, point: KillPoint
) -> None:
    monkeypatch.setitem(harness.tables, "postgres", PostgresTables(postgres.url))
    scene = scene_of(point)
    several = replace(scene, setup=scene.setup.into(1, tables=["postgres"]))
    assert_good(visit(harness, several, [point], [1, 2], f"slice-{scene.name}-and-a-table", part="outputs"))


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", [KillPoint.DRIVER_AFTER_DECISION, KillPoint.ORPHAN_AFTER_COMMIT])
def test_a_kill_leaves_a_topic_and_a_delta_table_the_same_records(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: KillPoint
) -> None:
    monkeypatch.setitem(harness.tables, "delta", DeltaTables(tmp_path / "table"))
    scene = scene_of(point)
    several = replace(scene, setup=scene.setup.into(1, tables=["delta"]))
    assert_good(visit(harness, several, [point], [1, 2], f"slice-{scene.name}-and-a-delta-table", part="outputs"))


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_kill_at_each_step_of_tables_leaves_all_outputs_the_same_records(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(harness.tables, "delta", DeltaTables(tmp_path / "delta"))
    monkeypatch.setitem(harness.tables, "iceberg", IcebergTables(tmp_path / "iceberg"))
    for schedule in visit_tables(harness, ["delta", "iceberg"], "slice"):
        assert_good(schedule)


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_the_coordinator_survives_being_killed_inside_the_write_of_a_decision(harness: Harness) -> None:
    schedule = disturb(harness, DISTURBANCES[0], "slice-disk", every=9)
    assert_good(schedule)
    assert schedule.kills, "the write had no system call"


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_random_schedule(harness: Harness) -> None:
    schedule = combine(harness, 7, moves=4)
    assert_good(schedule)


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not is_offered(), reason="there is no PostgreSQL to fetch for this machine")
@pytest.mark.parametrize("name", ["database-killed", "leader-cut-off-all"])
def test_leader_or_database_is_lost_when_a_decision_is_written(harness: Harness, tmp_path: Path, name: str) -> None:
    toxiproxy_or_skip()
    point = KillPoint.COORDINATOR_AFTER_DECISION
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    with faulty_harness(tmp_path, harness.kafka) as leading:
        assert_good(visit_leader(leading, fault, scene_of(point), f"slice-{name}", points=[point]))


def test_a_record_that_no_crash_explains_is_found_among_the_repeated_ones() -> None:
    lane, what = Lane("in", 0), [Content("out", "=k", f"={n}") for n in range(8)]
    fed = [Fed(lane, n, (content,)) for n, content in enumerate(what)]
    reported = [
        CheckpointReport(1, 0, 1, "checkpoint", "settled", {lane: 4}),
        CheckpointReport(2, 1, 2, "checkpoint", "settled", {lane: 8}),
    ]

    def found(repeated: list[int], deaths: list[int], per_checkpoint: int = 2) -> list[str]:
        rest = [Visible(Lane("out", 0), at, what[n]) for at, n in enumerate([*range(8), *repeated])]
        return unexplained(History(job="j", fed=fed, rest=rest, reports=reported), deaths, per_checkpoint)

    assert found([4, 5], [1]) == []
    assert found([], []) == []
    assert found([4, 4], [1, 1]) == [], "two drivers died over the same checkpoint"
    assert found([0], [0]) == [], "nothing was completed yet"
    for repeated, deaths in (([4], []), ([3], [1]), ([6], [1]), ([4, 4], [1])):
        said, *_ = found(repeated, deaths)
        assert f"in-0 offset {repeated[0]}" in said
    assert found([4, 5, 6, 7], [1, 1], 4) == []
    assert "4 records are repeated" in found([4, 5, 6, 7], [1], 4 - 1)[-1]


def run_part(part: str, directory: Path) -> None:
    for schedule in PARTS[part](Plan(directory=directory)):
        assert_good(schedule)


@pytest.mark.crash
@pytest.mark.timeout(7200)
def test_every_process_dies_at_every_kill_point_twice(tmp_path: Path) -> None:
    run_part("points", tmp_path)


@pytest.mark.crash
@pytest.mark.timeout(7200)
def test_a_decision_is_whole_or_absent_at_whatever_call_the_coordinator_dies_or_the_disk_refuses(
    tmp_path: Path,
) -> None:
    run_part("disk", tmp_path)


@pytest.mark.crash
@pytest.mark.timeout(7200)
def test_each_broker_dies_and_then_all_of_them_under_a_running_job(tmp_path: Path) -> None:
    run_part("brokers", tmp_path)


@pytest.mark.crash
@pytest.mark.timeout(7200)
def test_driver_and_all_brokers_die_together_at_every_kill_point_and_around_each_end(tmp_path: Path) -> None:
    run_part("blackouts", tmp_path)


@pytest.mark.crash
@pytest.mark.timeout(1800)
def test_driver_and_all_brokers_die_after_the_brokers_have_skipped_markers(tmp_path: Path) -> None:
    with three_brokers(tmp_path) as harness:
        assert_good(lose_leader(harness, "leader-lost"))


@pytest.mark.crash
@pytest.mark.timeout(7200)
def test_workers_executors_and_jvms_of_spark_die_under_a_running_job(tmp_path: Path) -> None:
    run_part("spark", tmp_path)


@pytest.mark.crash
@pytest.mark.timeout(1200)
def test_brokers_are_shut_down_and_started_again_one_after_the_other_under_load(tmp_path: Path) -> None:
    with ground_of_three(tmp_path) as (harness, _):
        assert_good(roll_brokers(harness, "rolling-restart"))


@pytest.mark.crash
@pytest.mark.timeout(1200)
def test_a_broker_with_a_full_disk_leaves_and_the_job_continues_without_it(tmp_path: Path) -> None:
    with ground_of_three(tmp_path) as (harness, disk):
        assert_good(fill_disk(harness, "disk-of-a-broker", disk))


@pytest.mark.crash
@pytest.mark.timeout(1800)
def test_executors_come_and_go_between_the_checkpoints_of_a_living_cluster(harness: Harness) -> None:
    assert_good(change_executors(harness, "executors-come-and-go"))


@pytest.mark.crash
@pytest.mark.timeout(1800)
def test_spark_allocates_executors_and_ends_them_under_a_living_job(harness: Harness) -> None:
    assert_good(allocate(harness, "dynamic-allocation"))


@pytest.mark.crash
@pytest.mark.timeout(1800)
def test_an_executor_that_is_decommissioned_while_it_writes_ends_its_task_and_leaves(harness: Harness) -> None:
    assert_good(decommission(harness, "decommissioned"))


@pytest.mark.crash
@pytest.mark.timeout(7200)
def test_neither_threads_nor_descriptors_gather_in_processes_that_fail_over_and_over(tmp_path: Path) -> None:
    run_part("leaks", tmp_path)


@pytest.mark.crash
@pytest.mark.timeout(7200)
def test_queries_die_around_their_batches_and_write_each_batch_once(tmp_path: Path) -> None:
    run_part("streams", tmp_path)


@pytest.mark.crash
@pytest.mark.timeout(7200)
def test_leader_standby_and_database_die_stand_still_and_are_cut_off_at_every_kill_point_of_the_leader(
    tmp_path: Path,
) -> None:
    run_part("leaders", tmp_path)


@pytest.mark.crash
@pytest.mark.timeout(7200)
def test_random_schedules_with_outages_that_transactions_do_not_outlive(tmp_path: Path) -> None:
    run_part("combinations", tmp_path)


def test_the_leader_is_disturbed_at_every_kill_point_of_a_coordinator() -> None:
    points = [point for point in KillPoint if point.startswith(("coordinator.", "orphan."))]
    assert sorted(point for scene in LEADER_SCENES for point in leader_points(scene)) == sorted(points)


def test_every_kill_point_has_a_scene_that_passes_it() -> None:
    visited = [point for scene in SCENES for point in scene.points()]
    assert sorted((*POINTS, *STAYING_POINTS, *TABLE_POINTS, *visited)) == sorted(KillPoint)
