"""The sink accepts the same columns and types in Arrow batches as in DataFrames."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from onceward import KafkaCluster
from onceward.common.errors import ConfigurationError
from onceward.connectors.slots import SlotWriter
from onceward.connectors.tasks import CheckpointTask
from onceward.executor.slots import Attempt
from onceward.sinks.kafka.executor.at_least_once import AtLeastOnceWriter
from onceward.sinks.kafka.executor.batches import BatchColumns
from onceward.sinks.kafka.executor.delivery import Delivery
from onceward.sinks.kafka.executor.fitting import Fitting
from onceward.sinks.kafka.executor.slot import RecordsSlot
from onceward.sinks.kafka.executor.writer import KafkaSlotWriter
from tests.support.slots import write_slot

ATTEMPT = Attempt(
    task=CheckpointTask(job="j", generation=1, checkpoint=1, splits=(), columns=(), sinks={"out": {}}), slot=0, number=0
)
NOWHERE = KafkaCluster("127.0.0.1:9")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def batch(**columns: Any) -> pa.RecordBatch:
    arrays = [column if isinstance(column, pa.Array) else pa.array(column) for column in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def test_columns_are_found_by_name_in_any_case_and_order_and_others_are_ignored() -> None:
    given = batch(extra=[1.5, 2.5], VALUE=["a", "b"], Key=[b"k", None], topic=[1, 2])
    taken = BatchColumns(routed=False).of(given)
    assert taken.to_pydict() == {"value": ["a", "b"], "key": [b"k", None]}


def test_every_type_that_a_dataframe_may_have_is_taken_in_both_widths() -> None:
    at = datetime(2024, 1, 1, tzinfo=UTC)
    for text, binary, unit in ((pa.string(), pa.binary(), "us"), (pa.large_string(), pa.large_binary(), "ms")):
        header = pa.list_(pa.struct([("key", text), ("value", binary)]))
        given = batch(
            key=pa.array(["k"], text),
            value=pa.array([b"v"], binary),
            headers=pa.array([[{"key": "h", "value": b"1"}]], header),
            topic=pa.array(["t"], text),
            partition=pa.array([3], pa.int32()),
            timestamp=pa.array([at], pa.timestamp(unit, tz="Europe/Berlin")),
        )
        assert BatchColumns(routed=True).of(given).schema.names == given.schema.names


def test_a_column_of_nulls_without_a_type_is_taken_and_a_later_batch_may_have_values() -> None:
    columns = BatchColumns(routed=False)
    first = columns.of(batch(key=[None, None], value=[None, None], headers=[None, None], partition=[None, None]))
    assert first.schema.types == [pa.binary(), pa.binary(), HEADERS, pa.int32()]
    assert first.column("value").null_count == 2
    assert columns.of(batch(key=["k"], value=["v"])).to_pydict() == {"key": ["k"], "value": ["v"]}


def produced(*batches: pa.RecordBatch) -> list[pa.RecordBatch]:
    """What a slot hands to its client."""
    made: list[pa.RecordBatch] = []

    class Slot(RecordsSlot):
        def _begin(self, first: pa.RecordBatch) -> Delivery:
            made.append(first)
            return cast(Delivery, SimpleNamespace(produce=made.append))

    fitting = Fitting(cluster=KafkaCluster("localhost:1"), topic="out", topics=("out",), limits=())
    slot = Slot(ATTEMPT.at("out"), fitting, limit_ms=60_000)
    for each in batches:
        slot.write(each)
    slot._hand_over()
    return made


def test_small_batches_are_written_together_in_their_order_and_large_ones_as_they_are() -> None:
    numbers = [str(n) for n in range(10_000)]
    parts = [numbers[n : n + 50] for n in range(0, 5_000, 50)] + [[], numbers[5_000:9_000], numbers[9_000:]]
    made = produced(*(batch(value=pa.array(part, pa.string())) for part in parts))
    assert [each.num_rows for each in made] == [50, 2_000, 2_000, 950 + 4_000, 1_000]
    assert [value for each in made for value in each.column("value").to_pylist()] == numbers
    large = batch(value=numbers)
    _, same = produced(large, large)
    assert same.column("value").buffers()[2].address == large.column("value").buffers()[2].address


def test_small_batches_with_other_columns_or_types_are_not_joined() -> None:
    given = [
        batch(value=["first"]),
        batch(value=["a"]),
        batch(value=[b"b"]),
        batch(value=[b"c"]),
        batch(value=[b"d"], key=["k"]),
    ]
    made = [each.to_pydict() for each in produced(*given)]
    assert made == [{"value": ["first"]}, {"value": ["a"]}, {"value": [b"b", b"c"]}, {"value": [b"d"], "key": ["k"]}]


def test_no_more_waits_to_be_joined_than_one_mib_whatever_small_batches_were_cut_from() -> None:
    whole = pa.array([bytes(400_000)] * 2, pa.binary())
    made = produced(*(batch(value=whole.slice(n % 2, 1)) for n in range(11)))
    assert [each.num_rows for each in made] == [1, *[2] * 5]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"key": ["k"]}, ["value: the column is missing"]),
        ({"value": [1]}, ["value: is int64, must be string or binary"]),
        ({"value": ["v"], "Value": ["w"]}, ["value: there are 2 columns"]),
        ({"value": ["v"], "partition": [1]}, ["partition: is int64, must be int32"]),
        ({"value": ["v"], "timestamp": [datetime(2024, 1, 1)]}, ["timestamp: is timestamp[us], must be"]),  # noqa: DTZ001
        ({"value": ["v"], "headers": [[("a", b"b")]]}, ["headers: is"]),
        (
            {"key": [1.5], "partition": ["0"]},
            ["key: is double", "value: the column is missing", "partition: is string"],
        ),
    ],
)
def test_all_unwritable_columns_are_reported_at_once(columns: dict[str, Any], said: list[str]) -> None:
    made = {
        name: pa.array(values, pa.map_(pa.string(), pa.binary())) if name == "headers" else values
        for name, values in columns.items()
    }
    with pytest.raises(ConfigurationError) as raised:
        BatchColumns(routed=False).of(batch(**made))
    for words in said:
        assert words in str(raised.value)
    assert str(raised.value).count("\n  - ") == len(said)


def test_a_wrong_batch_after_right_ones_is_refused() -> None:
    columns = BatchColumns(routed=True)
    columns.of(batch(value=["v"], topic=["t"]))
    with pytest.raises(ConfigurationError, match="topic: the column is missing"):
        columns.of(batch(value=["v"]))
    with pytest.raises(ConfigurationError, match="topic: is int64"):
        columns.of(batch(value=["v"], topic=[1]))


@pytest.mark.parametrize("thing", [None, [b"v"], pa.table({"value": ["v"]}), {"value": ["v"]}])
def test_an_object_that_is_no_batch_is_refused_by_its_type(thing: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"yielded {type(thing).__name__} instead"):
        BatchColumns(routed=False).of(thing)


@pytest.mark.parametrize(
    "writer",
    [
        KafkaSlotWriter(cluster=NOWHERE, topic="out", topics=("out",), transaction_timeout_ms=1000, limit_ms=1000),
        AtLeastOnceWriter(cluster=NOWHERE, topic="out", topics=("out",), limit_ms=1000),
    ],
    ids=["exactly once", "at least once"],
)
def test_both_writers_refuse_a_batch_that_cannot_be_written_before_they_connect(writer: SlotWriter) -> None:
    with pytest.raises(ConfigurationError, match="value: is int64"):
        write_slot(writer, ATTEMPT, [batch(value=[1])])


@pytest.mark.parametrize(
    "wrong",
    [
        pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())])),
        pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),
        pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())])),
        pa.list_(pa.struct([("key", pa.int32()), ("value", pa.binary())])),
        pa.list_(pa.struct([("key", pa.string())])),
        pa.list_(pa.string()),
        pa.struct([("key", pa.string()), ("value", pa.binary())]),
    ],
    ids=str,
)
def test_headers_of_another_shape_are_refused(wrong: pa.DataType) -> None:
    with pytest.raises(ConfigurationError, match="headers: is"):
        BatchColumns(routed=False).of(batch(value=["v"], headers=pa.nulls(1, wrong)))


def test_an_unused_topic_column_hides_no_other_problem() -> None:
    with pytest.raises(ConfigurationError, match="partition: is"):
        BatchColumns(routed=False).of(batch(value=["v"], topic=[1.5], partition=["0"]))
