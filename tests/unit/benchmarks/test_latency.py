"""What ``python -m benchmarks latency`` measures."""

from benchmarks.latency import Load, loads


def test_each_rate_and_each_number_of_partitions_is_measured_once() -> None:
    assert loads((20_000, 1_000), (4, 16)) == (Load(20_000, 4), Load(1_000, 4), Load(20_000, 16))
    assert [str(load) for load in loads((1_000,), (1, 4))] == [
        "1,000 records/s, 1 partition",
        "1,000 records/s, 4 partitions",
    ]
