"""``python -m benchmarks scale``: what it varies, and which results are not figures."""

from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.errors import BenchmarkError
from benchmarks.scale.axes import Axis, axes
from benchmarks.scale.main import more
from benchmarks.systems import Task
from benchmarks.workloads import Workload

TASK = Task(
    workload=Workload.COPY,
    servers="none:1",
    source="in",
    sink="out",
    name="it",
    partitions=4,
    threads=3,
    interval_ms=1_000,
    per_checkpoint=0,
    scratch=Path("scratch"),
)
FULL = {axis.name: axis for axis in axes(quick=False)}


@pytest.mark.parametrize(
    ("name", "varied"),
    [
        ("partitions", {"partitions"}),
        ("all-to-all", {"partitions"}),
        ("executors", {"threads"}),
        ("record-size", {"record_bytes", "records"}),
        ("slots", {"partitions", "small_records"}),
    ],
)
@pytest.mark.parametrize("quick", [False, True])
def test_one_thing_is_varied_at_a_time(name: str, varied: set[str], quick: bool) -> None:
    axis = next(axis for axis in axes(quick=quick) if axis.name == name)
    first, *others = (asdict(point.sizes) for point in axis.points)
    for other in others:
        assert {key for key in first if first[key] != other[key]} == varied


def test_the_points_are_those_that_the_page_names() -> None:
    points = {name: [point.at for point in axis.points] for name, axis in FULL.items()}
    assert points == {
        "partitions": [4, 64, 256],
        "all-to-all": [4, 64, 256],
        "executors": [1, 2, 4],
        "record-size": [100, 1_000, 100_000],
        "slots": [1, 4, 16, 64, 256],
    }


def test_executors_are_processes_and_threads_are_those_that_the_peers_have() -> None:
    executors, threads = (FULL[name].points[0].system for name in ("executors", "partitions"))
    assert "--master local-cluster[3,1,1024] " in executors.command(TASK).environment["PYSPARK_SUBMIT_ARGS"]
    assert "--master local[3,4] " in threads.command(TASK).environment["PYSPARK_SUBMIT_ARGS"]


def test_checkpoints_with_another_number_of_slots_give_no_figure() -> None:
    slots: Axis = FULL["slots"]
    point = slots.points[1]
    assert more(Workload.CYCLE, point, {"slots": 4, "cycle_ms": 100}) == {"ms_per_slot": 25}
    for measured in ({"slots": 2, "cycle_ms": 100}, {"checkpoints": 0}):
        with pytest.raises(BenchmarkError, match="not 4"):
            more(Workload.CYCLE, point, measured)


def test_megabytes_follow_from_the_size_of_a_record() -> None:
    point = FULL["record-size"].points[1]
    figures = {"records_per_s": 50_000, "cpu_s_per_million": 3.0}
    assert more(Workload.COPY, point, figures) == {"mb_per_s": 50.0, "cpu_s_per_gb": 3.0}
