"""How runs are evaluated: alternating rounds, medians, ratios, goals; and what counts as correct output."""

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.errors import BenchmarkError, NotOfferedError, SetUpError
from benchmarks.ours.timeline import STEPS, Timeline
from benchmarks.ours.transforms import filter_batches, json_batches
from benchmarks.progress import Look, Pauses, steady_rate
from benchmarks.report import goals, ratios, steps, summary
from benchmarks.rounds import Run, planned, run_rounds, set_up
from benchmarks.systems import Command, Kind, System, Task
from benchmarks.topics import Ends, batches
from benchmarks.workloads import Content, Workload, canonical, expected, record, stamped, stamps


class Named:
    """A system with only a name and a kind; its set-up or its run raises `refuses`."""

    versions: dict[str, str] = {}  # noqa: RUF012 - of the protocol
    settings: dict[str, str] = {}  # noqa: RUF012
    steady_interval_ms = 0

    def __init__(self, name: str, kind: Kind = Kind.PEER, refuses: Exception | None = None) -> None:
        self.name, self.kind, self.refuses = name, kind, refuses

    def set_up(self) -> None:
        if isinstance(self.refuses, SetUpError):
            raise self.refuses

    def command(self, task: Task) -> Command:
        raise AssertionError("nothing is started here")


class Recorded:
    """A runner with prepared figures."""

    def run(self, system: System, workload: Workload) -> dict[str, Any]:
        assert isinstance(system, Named)
        if system.refuses:
            raise system.refuses
        return {"records_per_s": 1}


def runs(system: str, *rates: float, workload: str = "copy", figure: str = "records_per_s") -> list[Run]:
    return [
        {"workload": workload, "system": system, "round": number, "figures": {figure: rate}}
        for number, rate in enumerate(rates, start=1)
    ]


def test_systems_take_turns_within_a_workload_and_only_ours_run_small_checkpoints() -> None:
    ours, peer = Named("ours", Kind.OURS), Named("peer")
    order = [(w.value, n, s.name) for w, n, s in planned([ours, peer], [Workload.COPY, Workload.CYCLE], 2)]
    assert order == [
        ("copy", 1, "ours"), ("copy", 1, "peer"), ("copy", 2, "ours"), ("copy", 2, "peer"),
        ("cycle", 1, "ours"), ("cycle", 2, "ours"),
    ]  # fmt: skip


def test_a_missing_figure_is_in_the_result_with_its_reason() -> None:
    good, broken = Named("good"), Named("broken", refuses=BenchmarkError("wrong output"))
    without, absent = Named("without", refuses=NotOfferedError("no JSON")), Named("absent", refuses=SetUpError("no cc"))
    said: list[str] = []
    reasons = set_up([good, broken, without, absent], said.append)
    assert reasons == {"good": None, "broken": None, "without": None, "absent": "no cc"}
    found = list(run_rounds(Recorded(), [good, broken, without], [Workload.COPY], 2, said.append))
    assert [(run["system"], run["round"]) for run in found] == [
        ("good", 1), ("broken", 1), ("without", 1), ("good", 2), ("broken", 2),
    ]  # fmt: skip
    table = summary(found)["copy"]
    assert table["broken"] == {"failed": ["wrong output", "wrong output"]}
    assert table["without"] == {"not_offered": ["no JSON"]}
    assert table["good"]["records_per_s"] == {"median": 1, "min": 1, "max": 1, "rounds": 2}


def test_a_ratio_is_taken_within_each_round_against_the_best_other() -> None:
    measured = runs("ours", 100, 900, 200) + runs("flink", 100, 600, 100) + runs("streams", 10, 10, 10_000)
    best, spread = ratios(measured, "copy", "records_per_s", "ours", ("flink", "streams", "quix")) or ("", None)
    assert best == "flink", "by its median"
    assert spread is not None
    assert (spread.least, spread.median, spread.most, spread.rounds) == (1.0, 1.5, 2.0, 3)


def test_a_ratio_needs_both_sides_and_uses_the_rounds_that_both_have() -> None:
    measured = runs("ours", 30, 20)
    assert ratios(measured, "copy", "records_per_s", "ours", ("flink",)) is None
    measured += [{"workload": "copy", "system": "flink", "round": 1, "failed": "it ended"}, runs("flink", 1, 10)[1]]
    best, spread = ratios(measured, "copy", "records_per_s", "ours", ("flink",)) or ("", None)
    assert (best, spread and spread.median, spread and spread.rounds) == ("flink", 2.0, 1)


def test_goals_know_the_better_direction_and_the_unmeasured_figures() -> None:
    cpu = "cpu_s_per_million"
    measured = runs("ours", 3) + runs("streams", 2) + runs("ours", 1.0, figure=cpu) + runs("streams", 2.0, figure=cpu)
    measured += runs("flink", 4.0, figure=cpu) + runs("ours", 161, workload="steady", figure="p50_ms")
    rows = {row["goal"]: row for row in goals(measured)}
    best_peer = rows["copy, fused, against the best peer"]
    assert (best_peer["measured"]["median"], best_peer["against"], best_peer["reached"]) == (1.5, "streams", True)
    least = rows["CPU seconds per million, fused, against the best JVM peer"]
    assert (least["measured"]["median"], least["against"], least["reached"]) == (0.5, "streams", True)
    assert rows["end to end at 20k records/s, p50 ms"]["reached"] is False
    assert rows["copy, fused, against the C program"]["reached"] is None


def test_the_steady_rate_leaves_out_start_and_end() -> None:
    seen = [(0, 0), (5, 0), (6, 100), (8, 400), (9, 800), (10, 900), (20, 1_000), (30, 1_000)]
    looks = [Look(at=at, ends=Ends(appended=appended, visible=0)) for at, appended in seen]
    # from 250 records at second 7 to 900 at second 10
    assert steady_rate(looks, 1_000) == pytest.approx(650 / 3)
    assert steady_rate(looks, 100_000) == pytest.approx(65_000 / 3), "of the input, where most are dropped"


def test_markers_of_transactions_make_no_rate_higher() -> None:
    # 100 records/s, and as many markers after each hundred of them
    looks = [Look(at=float(at), ends=Ends(appended=200 * at, visible=0)) for at in range(11)]
    assert steady_rate(looks, 1_000) == pytest.approx(100)


def test_a_pause_is_distinguished_from_the_end_by_earlier_pauses() -> None:
    pauses = Pauses()
    seen = [(0, 0), (30, 0), (31, 10), (33, 10), (36, 20), (37, 30), (40, 30)]
    waited = [pauses.seen(Look(at=float(at), ends=Ends(appended=n, visible=n))) for at, n in seen]
    assert waited == [0, 30, 0, 2, 0, 0, 3]
    assert pauses.longest == 5, "the start is none"


@pytest.mark.parametrize("partitions", [1, 4, 256])
@pytest.mark.parametrize(
    ("records", "size"), [(600, 100), (20_000, 100), (60_000, 100), (999_999, 100), (300, 100_000)]
)
def test_every_partition_gets_as_many_records_as_every_other(records: int, size: int, partitions: int) -> None:
    made = list(batches(records, partitions, size))
    assert [number for some in made for number in some] == list(range(records))
    of = [sum(len(some) for some in made[partition::partitions]) for partition in range(partitions)]
    assert max(of) - min(of) <= len(made) / partitions
    assert all(len(some) <= min(10_000, 8_000_000 // size) for some in made)


@pytest.mark.parametrize("size", [100, 1_000, 100_000])
def test_copies_have_the_requested_size(size: int) -> None:
    made = [record(Workload.COPY, number, size) for number in range(3)]
    assert {len(key) + len(value) for key, value in made} == {size}
    assert Content.of(key + value for key, value in made) == expected(Workload.COPY, 3, size)


@pytest.mark.parametrize("workload", [Workload.COPY, Workload.JSON])
def test_records_are_of_100_bytes_and_all_different(workload: Workload) -> None:
    made = {record(workload, number) for number in (0, 1, 99_999, 100_000, 123_456_789)}
    assert {len(key) + len(value) for key, value in made} == {100}
    assert len({value for _, value in made}) == 5


def test_content_does_not_depend_on_order_and_notices_every_other_change() -> None:
    right = [key + value for key, value in (record(Workload.COPY, number) for number in range(300))]
    assert Content.of(reversed(right)) == expected(Workload.COPY, 300)
    for wrong in (right[1:], [*right, right[0]], [*right[1:], right[1]], [*right[1:], right[0] + b"x"]):
        assert Content.of(wrong) != expected(Workload.COPY, 300)


def test_json_counts_by_its_fields_however_it_is_written() -> None:
    what = canonical(Workload.JSON)
    outputs = []
    for number in range(100):
        key, value = record(Workload.JSON, number)
        row = json.loads(value)
        out = {"total": row["amount"] * row["quantity"], "id": row["id"], "currency": row["currency"].upper()}
        outputs.append(what(key, json.dumps(out, indent=number % 3).encode()))
    assert Content.of(outputs) == expected(Workload.JSON, 100)
    assert Content.of([*outputs[1:], outputs[0] + b"0"]) != expected(Workload.JSON, 100)


def test_a_stamped_value_carries_its_time_and_number() -> None:
    given = [(1.25, 7), (2.5, 8), (3.75, 2**40)]
    values = pa.array([stamped(number, at) for at, number in given], pa.binary())
    for start in range(len(given)):
        at, numbers = stamps(values.slice(start))
        assert list(zip(at.tolist(), numbers.tolist(), strict=True)) == given[start:]
    assert len(stamped(7, 1.25)) == len(record(Workload.COPY, 7)[1])


@pytest.mark.parametrize(("workload", "function"), [(Workload.FILTER, filter_batches), (Workload.JSON, json_batches)])
def test_transforms_on_batches_give_the_expected_records(workload: Workload, function: Any) -> None:
    made = [record(workload, number) for number in range(1_000)]
    batches = [
        pa.RecordBatch.from_pydict({"key": [k for k, _ in part], "value": [v for _, v in part]}, _SCHEMA)
        for part in (made[:700], [], made[700:])
    ]
    what = canonical(workload)
    rows = [what(row["key"], row["value"]) for batch in function(iter(batches)) for row in batch.to_pylist()]
    assert Content.of(rows) == expected(workload, 1_000)


_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary())])


def checkpoint(number: int, at: float, **steps: float) -> list[dict[str, Any]]:
    """Return the journal of a checkpoint whose votes are proved at ``at`` and acknowledged 0.1 s later."""
    decide, settle = steps.pop("decide"), steps.pop("settle")
    end = at + 0.1 + decide + settle
    written = {"event": "pre-committed", "checkpoint": number, "at": at, "seconds": 0.5}
    return [
        {**written, "read": 7, "transactions": 4, "steps": steps},
        {"event": "settled", "checkpoint": number, "at": end, "steps": {"decide": decide, "settle": settle}},
    ]


def test_a_timeline_has_the_steps_of_every_checkpoint_in_their_order_and_place() -> None:
    steps = {"plan": 0.01, "schedule": 0.09, "queue": 0.0, "read": 0.1, "transform": 0.0, "produce": 0.2}
    steps |= {"flush": 0.1, "vote": 0.05, "prove": 0.05, "decide": 0.02, "settle": 0.03}
    timeline = Timeline.of(event for n in range(1, 6) for event in checkpoint(n, 10.0 * n, **steps))
    assert (timeline.checkpoints, len(timeline.settled)) == (5, 2), "the first three start processes"
    of_last = [span for span in timeline.spans if span.checkpoint == 5]
    assert [span.step for span in of_last] == [step for step in STEPS if step != "read+transform"]
    assert [of_last[0].began, of_last[-1].ended] == pytest.approx([49.4, 50.15])
    assert of_last[9].began - of_last[8].ended == pytest.approx(0.1)
    for before, after in itertools.pairwise(of_last[:9]):
        assert after.began == pytest.approx(before.ended)
    assert timeline.as_json()["median_ms"] == {step: pytest.approx(took * 1000) for step, took in steps.items()}
    cycle = {"checkpoints": 5, "cycle_ms": 10_000, "cycle_ms_worst": 10_000, "job_ms": 500, "slots": 4}
    assert timeline.cycle() == cycle


def test_a_timeline_shows_how_long_a_checkpoint_overlaps_the_next() -> None:
    steps = {"plan": 0.1, "read+transform": 0.4, "decide": 0.1, "settle": 0.4}
    beside = Timeline.of(event for n in range(1, 8) for event in checkpoint(n, 0.8 * n, **steps))
    # a checkpoint begins 0.5 s before its job ends and is settled 0.6 s after: 0.3 s overlap the next one's job
    assert beside.overlaps() == [pytest.approx(0.3)] * 3
    assert beside.as_json()["median_overlap_ms"] == pytest.approx(300)
    after = Timeline.of(event for n in range(1, 8) for event in checkpoint(n, 2.0 * n, **steps))
    assert after.overlaps() == [0.0] * 3


def test_steps_are_reported_per_workload_and_system_as_medians_over_the_rounds() -> None:
    timelines = [{"checkpoints": 9, "median_ms": {"plan": plan}, "median_overlap_ms": 0.0, "median_read": 1} for plan in
                 (1, 2, 9)]  # fmt: skip
    measured: list[Run] = [
        {"workload": "copy", "system": "ours", "round": number, "figures": {"timeline": timeline}}
        for number, timeline in enumerate([*timelines, {"checkpoints": 0}], start=1)
    ]
    assert steps(measured + runs("flink", 1)) == {"copy": {"ours": {"plan": 2, "overlap": 0, "offsets": 1}}}


def test_checkpoints_that_were_not_settled_or_read_nothing_are_in_no_timeline(tmp_path: Path) -> None:
    (tmp_path / "events").touch()
    timeline = Timeline.from_file(tmp_path / "events")
    assert (timeline.spans, timeline.cycle(), timeline.as_json()["spans"]) == ((), {"checkpoints": 0}, [])
    given = checkpoint(1, 5.0, plan=1.0, decide=0.1, settle=0.1)
    assert Timeline.of(given[:1]).checkpoints == 0
    assert Timeline.of(given[1:]).checkpoints == 0
    failed = [*given, {"event": "aborted", "checkpoint": 2, "at": 9.0}]
    assert (Timeline.of(given).aborted, Timeline.of(failed).aborted) == (0, 1)
