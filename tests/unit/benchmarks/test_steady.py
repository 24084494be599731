"""The figures of the steady workload."""

from benchmarks.steady import figures


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
