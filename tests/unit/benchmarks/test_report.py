"""What becomes of runs: rounds in turn, medians, ratios, goals; and what counts as a right output."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.errors import BenchmarkError, NotOfferedError, SetUpError
from benchmarks.measuring import Look, steady_rate
from benchmarks.ours.timeline import STEPS, Timeline
from benchmarks.ours.transforms import filter_batches, json_batches
from benchmarks.report import goals, ratios, summary
from benchmarks.rounds import Run, planned, run_rounds, set_up
from benchmarks.systems import Command, Kind, System, Task
from benchmarks.topics import Ends
from benchmarks.workloads import Content, Workload, canonical, expected, record, stamp, stamped


class Named:
    """A system of which only the name and the kind count; `refuses` is what its set-up or its run raises."""

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
    """A runner with figures made up before."""

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


def test_what_gave_no_figure_is_in_the_result_with_its_reason() -> None:
    good, broken = Named("good"), Named("broken", refuses=BenchmarkError("wrong output"))
    without, absent = Named("without", refuses=NotOfferedError("no JSON")), Named("absent", refuses=SetUpError("no cc"))
    said: list[str] = []
    reasons = set_up([good, broken, without, absent], said.append)
    assert reasons == {"good": None, "broken": None, "without": None, "absent": "no cc"}
    found = run_rounds(Recorded(), [good, broken, without], [Workload.COPY], 2, said.append)
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


def test_goals_know_which_direction_is_better_and_what_was_not_measured() -> None:
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
    seen = [(0, 0), (5, 0), (6, 100), (7, 500), (8, 900), (20, 1_000), (30, 1_000)]
    looks = [Look(at=at, ends=Ends(appended=appended, visible=0)) for at, appended in seen]
    assert steady_rate(looks, 1_000, 1_000) == 400
    assert steady_rate(looks, 100_000, 1_000) == 40_000, "of the input, where most records are dropped"


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


def test_a_stamped_value_tells_when_it_was_made_and_its_number() -> None:
    assert stamp(stamped(7, 1.25)) == (1.25, 7)
    assert len(stamped(7, 1.25)) == len(record(Workload.COPY, 7)[1])


@pytest.mark.parametrize(("workload", "function"), [(Workload.FILTER, filter_batches), (Workload.JSON, json_batches)])
def test_transforms_on_batches_make_what_is_expected(workload: Workload, function: Any) -> None:
    made = [record(workload, number) for number in range(1_000)]
    batches = [
        pa.RecordBatch.from_pydict({"key": [k for k, _ in part], "value": [v for _, v in part]}, _SCHEMA)
        for part in (made[:700], [], made[700:])
    ]
    what = canonical(workload)
    rows = [what(row["key"], row["value"]) for batch in function(iter(batches)) for row in batch.to_pylist()]
    assert Content.of(rows) == expected(workload, 1_000)


_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary())])


def test_a_timeline_names_what_the_journal_does_not_tell() -> None:
    events = [
        event
        for n in range(1, 8)
        for event in (
            {"event": "pre-committed", "checkpoint": n, "at": n + 0.5, "seconds": 0.4},
            {"event": "settled", "checkpoint": n, "at": n + 0.6},
        )
    ]
    timeline = Timeline.of(events)
    assert timeline.missing == STEPS, "every step, as things are told today"
    assert timeline.cycle()["cycle_ms"] == 1000
    assert timeline.cycle()["job_ms"] == 400
    assert timeline.as_json()["median_ms"] == {
        "schedule+read+transform+produce+flush+vote": 400, "decide+settle": pytest.approx(100)
    }  # fmt: skip


def test_a_timeline_has_every_step_that_is_told() -> None:
    steps = {"schedule": 0.1, "read": 0.1, "transform": 0.0, "produce": 0.1, "flush": 0.05, "vote": 0.05}
    timeline = Timeline.of(
        [
            {"event": "planned", "checkpoint": 1, "at": 10.0, "seconds": 0.1},
            {"event": "pre-committed", "checkpoint": 1, "at": 10.4, "seconds": 0.4, "steps": steps},
            {"event": "completed", "checkpoint": 1, "at": 10.5},
            {"event": "settled", "checkpoint": 1, "at": 10.7},
        ]
    )
    assert timeline.missing == {}
    assert [span.step for span in timeline.spans] == list(STEPS)
    assert timeline.spans[0].began == 0
    assert timeline.spans[-1].ended == pytest.approx(0.8)


def test_an_empty_journal_is_an_empty_timeline(tmp_path: Path) -> None:
    (tmp_path / "events").touch()
    timeline = Timeline.read(tmp_path / "events")
    assert (timeline.spans, timeline.cycle()["checkpoints"]) == ((), 0)
