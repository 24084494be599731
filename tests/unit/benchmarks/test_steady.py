"""The figures of the steady workload."""

import pyarrow as pa
import pytest

from benchmarks.steady import Stamped, figures
from benchmarks.topics import Topics
from benchmarks.workloads import stamped


def test_percentiles_are_over_all_records_and_over_those_of_each_second() -> None:
    found = figures({0: [0.001] * 1099 + [0.5], 1: [0.002] * 900})
    over_time = found.pop("over_time")
    assert found == {
        "p50_ms": 1.0,
        "p90_ms": 2.0,
        "p99_ms": 2.0,
        "p99_9_ms": 2.0,
        "worst_ms": 500.0,
        "measured": 2000,
    }
    assert over_time == [
        {"second": 0, "p50_ms": 1.0, "p99_ms": 1.0, "worst_ms": 500.0},
        {"second": 1, "p50_ms": 2.0, "p99_ms": 2.0, "worst_ms": 2.0},
    ]


def test_each_number_counts_once_and_latencies_are_those_of_the_measured_time() -> None:
    reader = Stamped(Topics("127.0.0.1:1", 1), "out")
    reader.since, reader.until = 10.0, 12.0

    def take(now: float, *given: tuple[int, float]) -> None:
        reader.count(pa.array([stamped(number, at) for number, at in given], pa.binary()), now)

    take(10.25, (0, 9.5), (1, 10.0), (2, 10.125))
    take(11.75, (70_000, 11.5), (1, 10.0), (3, 12.0), (3, 12.0))
    assert (reader.seen, reader.twice) == (5, 2)
    assert {second: sorted(found) for second, found in reader.latencies.items()} == {
        0: pytest.approx([0.125, 0.25, 1.75]),
        1: pytest.approx([0.25]),
    }
