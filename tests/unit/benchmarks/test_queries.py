"""``python -m benchmarks queries``: how the time of a batch is divided, what is compared, which outputs are right."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.queries.batches import OWNERS, WARM_UP, Batch, Jobs, batches_of, figures, jobs_of
from benchmarks.queries.full import without_short_rate
from benchmarks.queries.main import against_peers, longer, profile
from benchmarks.queries.results import Results
from benchmarks.queries.workloads import (
    LATE_MS,
    MATCH_MS,
    TIME_DIGITS,
    TRAILER,
    WINDOW_MS,
    QueryWorkload,
    event_time_ms,
    expected,
    found,
    inputs,
    last_needed,
    outputs,
    record,
    trailer,
)
from benchmarks.topics import Topics

QUERY = "a-query"
NUMBER = WARM_UP
"""The first batch that counts."""
DURATIONS = {"latestOffset": 10, "walCommit": 40, "queryPlanning": 5, "getBatch": 0, "commitOffsets": 50}
JOBS = Jobs(submitted=100.05, launched=100.06, finished=100.13, ended=100.14)
EVENTS: list[dict[str, Any]] = [
    {"event": "planned"},
    {
        "event": "pre-committed",
        "checkpoint": 7,
        "batch": NUMBER,
        "at": 100.17,
        "steps": {
            "plan": 0.0, "schedule": 0.04, "queue": 0.0, "read+transform": 0.05, "produce": 0.01, "flush": 0.02,
            "vote": 0.02, "prove": 0.02,
        },
    },
    {"event": "settled", "checkpoint": 7, "at": 100.24, "steps": {"decide": 0.02, "settle": 0.04}},
]  # fmt: skip


def progress(rows: Sequence[int]) -> list[dict[str, Any]]:
    took = {**DURATIONS, "addBatch": 280, "triggerExecution": 390}
    return [
        {"id": QUERY, "batchId": number, "numInputRows": count, "durationMs": took} for number, count in enumerate(rows)
    ]


def one_batch(events: Sequence[Mapping[str, Any]] | None) -> Batch:
    rows = [1] * NUMBER + [9]
    calls = dict.fromkeys(range(NUMBER + 1), (100.0, 100.25))
    first = [
        {**event, "batch": number, "checkpoint": number}
        for number in range(NUMBER)
        for event in EVENTS
        if "steps" in event
    ]
    jobs = {(QUERY, number): JOBS for number in range(NUMBER + 1)}
    (batch,) = batches_of(progress(rows), calls, jobs, None if events is None else [*first, *events])
    return batch


def test_parts_of_a_batch_add_up_to_its_trigger() -> None:
    for batch in (one_batch(None), one_batch(EVENTS)):
        assert batch.rows == 9
        assert sum(batch.parts.values()) == pytest.approx(batch.trigger_ms)
        assert list(batch.parts) == [part for part in OWNERS if part in batch.parts], "in their order"


def test_a_batch_into_noop_is_all_sparks() -> None:
    parts = one_batch(None).parts
    assert {OWNERS[part] for part in parts} == {"Spark", "source"}
    assert parts["call"] == pytest.approx(30)
    assert parts["plan job"] == pytest.approx(50)
    assert parts["tasks"] == pytest.approx(70)
    assert parts["collect"] == pytest.approx(110)


def test_the_sinks_own_time_is_taken_from_its_journal() -> None:
    parts = one_batch(EVENTS).parts
    wanted = {
        "identify": 10, "plan job": 40, "launch": 10, "tasks": 40, "produce": 10, "flush": 20, "end": 10, "collect": 10,
        "prove": 20, "acknowledge": 10, "decide": 20, "settle": 40, "return": 10, "call": 30, "rest": 5,
    }  # fmt: skip
    assert {part: parts[part] for part in wanted} == pytest.approx(wanted)


def test_batches_without_records_do_not_count() -> None:
    calls = dict.fromkeys(range(NUMBER + 2), (100.0, 100.25))
    jobs = {(QUERY, number): JOBS for number in range(NUMBER + 2)}
    found = batches_of(progress([1] * NUMBER + [0, 9]), calls, jobs, None)
    assert [batch.number for batch in found] == [NUMBER + 1]


def test_the_event_log_gives_the_jobs_of_each_batch() -> None:
    properties = {"sql.streaming.queryId": QUERY, "streaming.sql.batchId": "3"}
    log = [
        {"Event": "SparkListenerApplicationStart"},
        {"Event": "SparkListenerJobStart", "Job ID": 0, "Submission Time": 1_000, "Stage IDs": [0]},
        {
            "Event": "SparkListenerJobStart", "Job ID": 1, "Submission Time": 2_000, "Stage IDs": [1, 2],
            "Properties": properties,
        },
        {"Event": "SparkListenerTaskEnd", "Stage ID": 0, "Task Info": {"Launch Time": 1, "Finish Time": 9_999}},
        {"Event": "SparkListenerTaskEnd", "Stage ID": 1, "Task Info": {"Launch Time": 2_010, "Finish Time": 2_050}},
        {"Event": "SparkListenerTaskEnd", "Stage ID": 2, "Task Info": {"Launch Time": 2_060, "Finish Time": 2_090}},
        {"Event": "SparkListenerJobEnd", "Job ID": 0, "Completion Time": 9_999},
        {"Event": "SparkListenerJobEnd", "Job ID": 1, "Completion Time": 2_095},
    ]  # fmt: skip
    found = jobs_of(json.dumps(event) for event in log)
    assert found == {(QUERY, 3): Jobs(submitted=2.0, launched=2.01, finished=2.09, ended=2.095)}


def test_rare_slow_batches_are_in_no_part() -> None:
    batches = [
        Batch(number=number, rows=1, trigger_ms=took, parts={"call": took})
        for number, took in enumerate([10.0, 12.0, 14.0, 900.0])
    ]
    found = figures(batches)
    assert (found["batch_ms"], found["batch_p90_ms"]) == (14.0, 900.0)
    assert found["parts"] == {"call": 13.0}


def test_ours_is_compared_with_noop_of_the_same_round() -> None:
    took = {("noop", 1): 100, ("ours", 1): 190, ("noop", 2): 300, ("ours", 2): 410, ("noop", 3): 50}
    runs = [
        {"workload": "w", "system": system, "round": number, "figures": {"batch_ms": ms, "parts": {"call": ms}}}
        for (system, number), ms in took.items()
    ]
    assert longer(runs) == {"w": {"median": 100, "min": 90, "max": 110, "rounds": 2, "reached": True}}
    assert profile(runs) == {"w": {"noop": {"call": 100}, "ours": {"call": 300}}}
    assert longer([{"workload": "w", "system": "ours", "round": 1, "failed": "it ended"}]) == {}


def test_records_carry_their_event_time() -> None:
    key, value = record(20_010)
    assert (len(key), len(value)) == (8, 92)
    assert int(value[:13]) == event_time_ms(20_010) == 1_700_000_001_000


def test_each_peer_is_compared_by_its_own_ratio() -> None:
    rates = {"ours": 50, "flink": 100, "streams": 25}
    runs = [
        {"workload": "w", "system": system, "round": 1, "figures": {"records_per_s": rate}}
        for system, rate in rates.items()
    ]
    ratios = {peer: spread["median"] for peer, spread in against_peers(runs)["w"].items()}
    assert ratios == {"flink": 0.5, "streams": 2}


RECORDS = 210_000
"""One window and a part of the second."""


def test_every_record_is_in_one_window() -> None:
    windows = dict(outputs(QueryWorkload.WINDOW_COUNT, RECORDS))
    assert sum(map(int, windows.values())) == RECORDS
    assert {key.split(b"@")[1] for key in windows} == {b"1700000000000", b"1700000010000"}
    assert windows[b"00000007@1700000000000"] == b"20"


def test_the_trailer_ends_the_last_window() -> None:
    key, value = trailer(RECORDS)
    last = event_time_ms(RECORDS - 1) // WINDOW_MS * WINDOW_MS
    assert key == TRAILER
    assert int(value[:13]) >= last + WINDOW_MS + LATE_MS


@pytest.mark.parametrize("workload", [QueryWorkload.WINDOW_COUNT, QueryWorkload.RUNNING_COUNT])
def test_the_trailers_counts_are_not_looked_at(workload: QueryWorkload) -> None:
    right = dict(outputs(workload, RECORDS))
    with_trailer = [*right.items(), (TRAILER, b"4"), (TRAILER + b"@1700000050000", b"1")]
    assert found(workload, with_trailer) == expected(workload, RECORDS)


def test_a_running_count_may_be_updated_any_number_of_times() -> None:
    right = dict(outputs(QueryWorkload.RUNNING_COUNT, RECORDS))
    updates = [(b"00000007", b"3"), (b"00000007", b"9"), *right.items()]
    assert found(QueryWorkload.RUNNING_COUNT, updates) == expected(QueryWorkload.RUNNING_COUNT, RECORDS)
    stopped_early = [*right.items(), (b"00000007", b"9")]
    assert found(QueryWorkload.RUNNING_COUNT, stopped_early) != expected(QueryWorkload.RUNNING_COUNT, RECORDS)


def test_a_window_that_is_written_twice_is_wrong() -> None:
    right = list(outputs(QueryWorkload.WINDOW_COUNT, RECORDS))
    assert found(QueryWorkload.WINDOW_COUNT, [*right, right[0]]) != expected(QueryWorkload.WINDOW_COUNT, RECORDS)


def test_each_record_of_a_join_has_one_match() -> None:
    left, right = ([make(number) for number in range(RECORDS // 2)] for make in inputs(QueryWorkload.JOIN).values())
    times: dict[bytes, list[int]] = {}
    for key, value in right:
        times.setdefault(key, []).append(int(value[:TIME_DIGITS]))
    matches = [
        (key, b"%d-%d" % (at, other))
        for key, value in left
        for at in (int(value[:TIME_DIGITS]),)
        for other in times[key]
        if at <= other <= at + MATCH_MS
    ]
    assert len(matches) == RECORDS // 2
    assert found(QueryWorkload.JOIN, matches) == expected(QueryWorkload.JOIN, RECORDS)


def _needed(workload: QueryWorkload, *results: tuple[bytes, bytes]) -> list[int]:
    keys, values = ([row[column] for row in (*results, (TRAILER, b"1"))] for column in (0, 1))
    _, _, numbers = last_needed(workload, pa.array(keys, pa.binary()), pa.array(values, pa.binary()))
    return list(numbers.tolist())


def test_a_count_needs_its_record() -> None:
    numbers = [0, 9_999, 10_007, 30_007]
    results = [(record(number)[0], b"%d" % (number // 10_000 + 1)) for number in numbers]
    assert _needed(QueryWorkload.RUNNING_COUNT, *results) == numbers


def test_a_window_needs_the_record_after_which_none_is_too_early() -> None:
    (number,) = _needed(QueryWorkload.WINDOW_COUNT, (b"00000007@1700000010000", b"20"))
    assert event_time_ms(number) == 1_700_000_010_000 + WINDOW_MS + LATE_MS
    assert event_time_ms(number - 1) < event_time_ms(number)


def test_a_joined_pair_needs_the_later_record_of_both() -> None:
    pairs = list(outputs(QueryWorkload.JOIN, RECORDS))
    numbers = [3, 9_999, 10_000, 104_999]
    assert _needed(QueryWorkload.JOIN, *(pairs[number] for number in numbers)) == [2 * number + 1 for number in numbers]


def test_a_latency_is_counted_from_when_its_record_was_due() -> None:
    results = Results(Topics("127.0.0.1:1", 1), "out", QueryWorkload.RUNNING_COUNT, 20_000)
    results.began, results.since, results.until = 100.0, 101.0, 102.0
    keys = pa.array([record(number)[0] for number in (10_000, 20_000, 30_001, 40_000)], pa.binary())
    counts = pa.array([b"2", b"3", b"4", b"5"], pa.binary())
    results.count(keys, counts, 101.75)
    assert results.seen == 4
    assert {second: sorted(found) for second, found in results.latencies.items()} == {0: pytest.approx([0.24995, 0.75])}


def test_a_count_is_complete_when_the_last_counts_add_up_to_the_input() -> None:
    results = Results(Topics("127.0.0.1:1", 1), "out", QueryWorkload.RUNNING_COUNT, 20_000)
    keys = [record(0)[0], record(1)[0], record(0)[0], TRAILER]
    results.count(pa.array(keys, pa.binary()), pa.array([b"3", b"2", b"5", b"4"], pa.binary()), 0.0)
    assert results.complete(7, 2)
    assert not results.complete(8, 2)


def test_windows_are_complete_when_all_of_them_have_come() -> None:
    results = Results(Topics("127.0.0.1:1", 1), "out", QueryWorkload.WINDOW_COUNT, 20_000)
    windows = pa.array([key for key, _ in outputs(QueryWorkload.WINDOW_COUNT, 2)], pa.binary())
    results.count(windows, pa.array([b"1", b"1"], pa.binary()), 0.0)
    assert results.complete(2, 2)
    assert not results.complete(2, 3)


def test_a_rate_over_a_burst_is_no_figure() -> None:
    assert "records_per_s" in without_short_rate({"records": 8_000_000, "records_per_s": 400_000})
    assert without_short_rate({"records": 400_000, "records_per_s": 1_300_000}) == {"records": 400_000}
