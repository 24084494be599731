"""What a task does with the splits of its checkpoint, without Spark."""

import gc
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from onceward.common.errors import ConfigurationError
from onceward.connectors.slots import OpenSlot, SlotContext
from onceward.connectors.tasks import TASK_PROPERTY, Ballot, CheckpointTask, Vote
from onceward.driver.journal import EVENTS_VARIABLE, Journal
from onceward.executor import functions as executor
from onceward.executor.functions import (
    Batches,
    by_name,
    choosing,
    digesting,
    fusing,
    onceward_by_column,
    reading,
    to_one,
    unusable_in,
    writing,
)

TASK = CheckpointTask(
    job="orders",
    generation=2,
    checkpoint=7,
    splits=({"values": ["a", "b"]}, {"values": []}, {"values": ["c"]}),
    columns=("value",),
    sinks={"out": {}},
    submitted=1.0,
)


def vote_in(ballot: str) -> Vote:
    return Ballot.from_json(ballot).votes["out"]


CONTEXT = SlotContext(task=TASK, sink="out", slot=1, attempt=30)


@pytest.fixture(autouse=True)
def spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The task of slot 1, attempt 30."""
    properties = {TASK_PROPERTY: TASK.to_json()}
    context = SimpleNamespace(getLocalProperty=properties.get, partitionId=lambda: 1, taskAttemptId=lambda: 30)
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    monkeypatch.setattr(executor, "_warm", True)
    yield
    gc.unfreeze()


def read(split: Any, columns: frozenset[str]) -> Batches:
    assert columns == {"value"}
    for value in split["values"]:
        yield pa.RecordBatch.from_pydict({"value": [value], "extra": [1]})


class Written:
    """A writer of one slot, and the slot: it keeps the values that it gets."""

    def __init__(self, context: SlotContext = CONTEXT) -> None:
        self._context = context
        self.values: list[str] = []
        self.abandoned = False

    def open(self, context: SlotContext) -> OpenSlot:
        assert context == self._context
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        self.values += batch.column("value").to_pylist()

    def finish(self) -> Vote:
        slot, attempt = self._context.slot, self._context.attempt
        return Vote(slot=slot, attempt=attempt, records=len(self.values), bytes=9, body={"id": "x"})

    def abandon(self) -> None:
        self.abandoned = True


def numbers(*splits: int) -> Batches:
    return iter([pa.RecordBatch.from_pydict({"id": [split]}) for split in splits])


def test_a_reader_yields_the_records_of_its_splits_in_order() -> None:
    made = [batch.column("value").to_pylist() for batch in reading(read)(numbers(2, 1, 0))]
    assert made == [["c"], ["a"], ["b"]]


def test_a_writer_returns_its_vote_as_the_only_row() -> None:
    written = Written()
    (ballot,) = writing({"out": written}, to_one("out"))(read(TASK.splits[0], frozenset({"value"})))
    assert written.values == ["a", "b"]
    vote = vote_in(ballot.column("ballot").to_pylist()[0])
    assert (vote.slot, vote.attempt, vote.records, vote.body) == (1, 30, 2, {"id": "x"})
    assert {"schedule", "read+transform", "produce", "flush"} == vote.steps.keys()


def hashed(*rows: tuple[str, int, int]) -> pa.RecordBatch:
    """Rows of a value, its hash and its partition."""
    values, hashes, partitions = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    arrays = [pa.array(values, pa.string()), pa.array(hashes, pa.int64()), pa.array(partitions, pa.int32())]
    return pa.RecordBatch.from_arrays(arrays, ["value", "hash", "partition"])


def test_digests_depend_on_the_records_of_each_partition_and_not_on_their_order() -> None:
    def digests_of(*batches: list[tuple[str, int, int]]) -> Mapping[str, str]:
        writer = Written()
        (ballot,) = digesting({"out": writer}, to_one("out"))(hashed(*batch) for batch in batches)
        assert writer.values == [row[0] for batch in batches for row in batch]
        return vote_in(ballot.column("ballot")[0].as_py()).digests

    most, least = 2**63 - 1, -(2**63)
    digests = digests_of([("a", most, 3), ("b", most, 3)], [("c", least, 3), ("d", 1, 12)])
    assert digests.keys() == {"3", "12"}
    assert digests == digests_of([("d", 1, 12)], [("c", least, 3)], [("b", most, 3)], [], [("a", most, 3)])
    others = [
        digests_of([("a", most, 3), ("b", most, 3), ("c", least, 12), ("d", 1, 12)]),
        digests_of([("a", most, 3), ("b", most, 3), ("d", 1, 12)]),
        digests_of([("a", most, 3), ("b", most, 3), ("c", least, 3), ("d", 2, 12)]),
        digests_of([]),
    ]
    assert digests not in others
    assert others[-1] == {}


def test_a_replay_evaluates_the_whole_batch_and_writes_only_the_partitions_of_its_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = replace(TASK, splits=({"slot": 4, "digests": {"3": "1:0000000000000001", "12": "1:0000000000000003"}},))
    properties = {TASK_PROPERTY: task.to_json()}
    context = SimpleNamespace(getLocalProperty=properties.get, partitionId=lambda: 0, taskAttemptId=lambda: 30)
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    rows = iter([hashed(("a", 1, 3), ("b", 2, 5)), hashed(("c", 2, 5)), hashed(("d", 3, 12))])
    writer = Written(SlotContext(task=task, sink="out", slot=0, attempt=30))
    (ballot,) = digesting({"out": writer}, to_one("out"))(rows)
    assert writer.values == ["a", "d"]
    assert list(rows) == []
    assert vote_in(ballot.column("ballot")[0].as_py()).digests == task.splits[0]["digests"]


def test_reader_function_and_writer_in_one_task_write_the_functions_output() -> None:
    written = Written()

    def doubling(batches: Batches) -> Batches:
        for batch in batches:
            yield batch
            yield batch

    (text,) = fusing(read, {"out": written}, to_one("out", doubling), ["value"])([0, 2])
    assert written.values == ["a", "a", "b", "b", "c", "c"]
    vote = vote_in(text)
    assert (vote.slot, vote.records) == (1, 6)
    assert {"schedule", "read", "transform", "produce", "flush"} == vote.steps.keys()


def test_all_numbers_are_taken_before_anything_is_read() -> None:
    """Spark keeps a worker process only if its task has drained its input."""
    drained: list[bool] = []

    def some() -> Iterator[int]:
        yield 0
        yield 2
        drained.append(True)

    def noticing(split: Any, columns: frozenset[str]) -> Batches:
        assert drained
        return read(split, columns)

    list(fusing(noticing, {"out": Written()}, to_one("out"), ["value"])(some()))


def test_columns_are_chosen_by_their_new_names() -> None:
    chosen = choosing({"out": {"v": "value", "again": "value"}, "other": {"value": "value"}})
    given = read({"values": ["a"]}, frozenset({"value"}))
    assert [(sink, batch.to_pydict()) for sink, batch in chosen(given)] == [
        ("out", {"v": ["a"], "again": ["a"]}),
        ("other", {"value": ["a"]}),
    ]


def test_a_column_for_each_sink_holds_its_records_and_nulls_where_there_are_none() -> None:
    kind = pa.struct([("value", pa.string()), ("n", pa.int64())])
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([{"value": "a", "n": 1}, None, {"value": None, "n": 3}], kind),
            pa.array([None, None, None], kind),
            pa.array([{"value": "d", "n": 1}, {"value": "e", "n": 2}, {"value": "f", "n": 3}], kind),
        ],
        ["some", "none", "all"],
    )
    routed = list(onceward_by_column(iter([batch, batch.slice(1, 1)])))
    assert [(sink, made.to_pydict()) for sink, made in routed] == [
        ("some", {"value": ["a", None], "n": [1, 3]}),
        ("all", {"value": ["d", "e", "f"], "n": [1, 2, 3]}),
        ("all", {"value": ["e"], "n": [2]}),
    ]


@pytest.mark.parametrize("wrong", [("other", None), ("out",), "out", None])
def test_a_function_that_yields_no_pair_of_a_known_name_and_a_batch_ends_the_job(wrong: Any) -> None:
    def routing(batches: Batches) -> Any:
        for _ in batches:
            yield wrong

    with pytest.raises(ConfigurationError, match=r"The names are more, out\."):
        list(by_name(["out", "more"], routing)(read({"values": ["a"]}, frozenset({"value"}))))


def test_a_function_that_yields_pairs_must_take_all_batches_too() -> None:
    with pytest.raises(ConfigurationError, match="before it had taken all batches"):
        list(by_name(["out"], lambda _batches: iter(()))(read({"values": ["a"]}, frozenset({"value"}))))


def first_only(batches: Batches) -> Batches:
    yield next(batches)


@pytest.mark.parametrize(
    ("transform", "names"),
    [
        (first_only, "before it had taken all batches"),
        (lambda _batches: iter(()), "before it had taken all batches"),
        (lambda _batches: None, "returned NoneType"),
    ],
    ids=["ends early", "takes nothing", "returns nothing"],
)
def test_a_function_that_would_skip_records_writes_none(transform: Any, names: str) -> None:
    writer = Written()
    with pytest.raises(ConfigurationError, match=names):
        list(fusing(read, {"out": writer}, to_one("out", transform), ["value"])([0]))
    assert writer.abandoned


def test_a_function_may_take_nothing_where_nothing_is() -> None:
    (text,) = fusing(read, {"out": Written()}, to_one("out", lambda _batches: iter(())), ["value"])([1])
    assert vote_in(text).records == 0


def test_an_unwritable_batch_is_marked_for_the_driver() -> None:
    class Refusing(Written):
        def write(self, batch: pa.RecordBatch) -> None:
            raise ConfigurationError("there is no column value")

    with pytest.raises(ConfigurationError) as refused:
        list(writing({"out": Refusing()}, to_one("out"))(read(TASK.splits[0], frozenset({"value"}))))
    found = unusable_in(f"PythonException: {refused.value}\n\tat org.apache")
    assert str(found) == "there is no column value"


@pytest.mark.parametrize("context", [None, SimpleNamespace(getLocalProperty=lambda _: None)])
def test_a_dataframe_of_a_pipeline_cannot_be_evaluated_by_anybody_else(
    monkeypatch: pytest.MonkeyPatch, context: Any
) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    with pytest.raises(RuntimeError, match="do not call actions in the transform"):
        list(reading(read)(numbers(0)))


def test_loaded_objects_are_frozen_for_the_collector_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_warm", False)
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    for _ in range(3):
        list(reading(read)(numbers(0)))
    assert frozen == [1]


def test_programs_that_watch_a_job_get_a_line_for_each_event(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, str(tmp_path / "events"))
    monkeypatch.setattr("time.time", lambda: 12.5)
    journal = Journal("orders")
    journal.log("opened")
    journal.generation = 3
    Journal("bills").log("settled", checkpoint=7, steps={"settle": 0.5})
    journal.log("closed", reason="stopped")
    lines = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert lines == [
        {"event": "opened", "job": "orders", "generation": 0, "at": 12.5},
        {"event": "settled", "job": "bills", "generation": 0, "checkpoint": 7, "steps": {"settle": 0.5}, "at": 12.5},
        {"event": "closed", "job": "orders", "generation": 3, "reason": "stopped", "at": 12.5},
    ]
