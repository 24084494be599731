"""What a task sets aside, and when a job has too much of it."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from onceward import DeadLetter, DeadLetters, KafkaSink, KafkaSource, Output, Pipeline, Retry, per_record
from onceward.common.errors import ConfigurationError, HaltedError
from onceward.connectors.letters import DEAD_LETTERS
from onceward.connectors.tasks import CheckpointTask, Vote
from onceward.driver.letters import LetterCount
from onceward.executor.functions import by_name, to_one, unusable, unusable_in
from onceward.executor.letters import Limits, Reasons, SettingAside, TooManyLettersError, Window
from onceward.protocol.values import CheckpointId, Document

SINK = KafkaSink("localhost:9092", topic="dead")
TASK = CheckpointTask(job="orders", generation=1, checkpoint=7, splits=(), columns=(), sinks={})
FREE = Limits(rate=1.0, total=None)


def batch_of(values: range, *, bad: set[int] = frozenset(), start: int = 0) -> pa.RecordBatch:  # type: ignore[assignment]
    """One record for each value; the bad ones are no JSON."""
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"k%d" % n for n in values], pa.binary()),
            "value": pa.array([b"{" if n in bad else b"%d" % n for n in values], pa.binary()),
            "topic": ["in"] * len(values),
            "partition": pa.array([n % 5 for n in values], pa.int32()),
            "offset": pa.array([start + n for n in values], pa.int64()),
            "timestamp": pa.array([n * 1000 for n in values], pa.timestamp("us", "UTC")),
        }
    )


class Counted:
    """Doubles the numbers of a batch, all at once, and counts the calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.calls += 1
            doubled = [b"%d" % (2 * json.loads(value)) for value in batch.column("value").to_pylist()]
            yield pa.RecordBatch.from_pydict({"value": doubled})


def rule(function: Callable[..., Any], *, limits: Limits = FREE, sinks: tuple[str, ...] = ("sink",)) -> SettingAside:
    route = partial(by_name, sinks) if len(sinks) > 1 else partial(to_one, sinks[0])
    return SettingAside(function=function, route=route, sink=DEAD_LETTERS, job="orders", limits=limits, partitions=3)


def run(given: SettingAside, *batches: pa.RecordBatch) -> tuple[dict[str, list[Any]], list[dict[str, Any]]]:
    """What each sink got, and the letters."""
    made: dict[str, list[Any]] = {}
    letters: list[dict[str, Any]] = []
    for sink, batch in given.of(TASK)(iter(batches)):
        if sink == DEAD_LETTERS:
            letters += batch.to_pylist()
        else:
            made.setdefault(sink, []).extend(batch.column("value").to_pylist())
    return made, letters


def doubled(values: range, *without: int) -> list[bytes]:
    return [b"%d" % (2 * n) for n in values if n not in without]


@pytest.mark.parametrize("bad", [{0}, {999}, {500}, {3, 4, 5}, {0, 999}])
def test_all_other_records_of_a_batch_are_written_in_order(bad: set[int]) -> None:
    function = Counted()
    made, letters = run(rule(function), batch_of(range(1000), bad=bad))
    assert made == {"sink": doubled(range(1000), *bad)}
    assert [letter["key"] for letter in letters] == [b"k%d" % n for n in sorted(bad)]
    assert function.calls <= 1 + len(bad) * 12, "log2(1000) is 10"


def test_a_function_that_never_raises_is_called_once_for_each_batch() -> None:
    function = Counted()
    made, letters = run(rule(function), batch_of(range(10)), batch_of(range(10, 20)))
    assert (made, letters, function.calls) == ({"sink": doubled(range(20))}, [], 2)


def test_a_letter_is_the_record_and_says_where_it_was_and_why() -> None:
    (letter,) = run(rule(Counted()), batch_of(range(3), bad={1}, start=100))[1]
    headers = {one["key"].removeprefix("onceward.error."): one["value"].decode() for one in letter.pop("headers")}
    assert letter == {"key": b"k1", "value": b"{", "partition": 1}
    assert headers.pop("message").startswith("Expecting property name")
    assert headers == {
        "topic": "in",
        "partition": "1",
        "offset": "101",
        "timestamp": "1",
        "job": "orders",
        "checkpoint": "7",
        "stage": "transform",
        "class": "JSONDecodeError",
        "attempt": "1",
    }


def test_a_letter_keeps_its_headers_and_a_partition_that_its_topic_has() -> None:
    batch = batch_of(range(5), bad={4})
    theirs = [[{"key": "trace", "value": b"x"}]] * 5
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    (letter,) = run(rule(Counted()), batch.append_column("headers", pa.array(theirs, kind)))[1]
    assert letter["headers"][0] == {"key": "trace", "value": b"x"}
    assert letter["partition"] is None, "4 of 3"


def test_a_message_is_cut_and_stays_text() -> None:
    def refusing(record: dict[str, Any]) -> None:
        raise DeadLetter("ä" * 2000)

    (letter,) = run(rule(per_record(refusing)), batch_of(range(1)))[1]
    said = {one["key"]: one["value"] for one in letter["headers"]}
    assert said["onceward.error.class"] == b"DeadLetter"
    assert said["onceward.error.message"].decode() == "ä" * 512


def test_a_function_on_records_is_called_once_for_each() -> None:
    calls = []

    def doubling(record: dict[str, Any]) -> dict[str, Any]:
        calls.append(record["offset"])
        return {"value": b"%d" % (2 * json.loads(record["value"]))}

    made, letters = run(rule(per_record(doubling)), batch_of(range(100), bad={7, 9}))
    assert (made, len(letters)) == ({"sink": doubled(range(100), 7, 9)}, 2)
    assert calls == [*range(100)]


def test_a_function_on_records_writes_none_one_or_several_and_to_outputs_by_name() -> None:
    def routing(record: dict[str, Any]) -> Any:
        n = json.loads(record["value"])
        row = {"value": record["value"]}
        return [None, ("a", row), [("a", row), ("b", row)]][n % 3]

    made, letters = run(rule(per_record(routing), sinks=("a", "b")), batch_of(range(6), bad={3}))
    assert made == {"a": [b"1", b"2", b"4", b"5"], "b": [b"2", b"5"]}
    assert len(letters) == 1


def test_a_function_on_records_without_dead_letters_raises_what_it_raises() -> None:
    with pytest.raises(json.JSONDecodeError):
        list(per_record(lambda record: {"value": json.loads(record["value"])})(iter([batch_of(range(2), bad={1})])))


@pytest.mark.parametrize(
    ("made", "said"), [(7, "returned int"), (("x", 7), "returned tuple"), ([{"value": 1}, {"value": "a"}], "schema=")]
)
def test_what_a_function_on_records_may_not_return_ends_the_job(made: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        run(rule(per_record(lambda record: made)), batch_of(range(2)))


@pytest.mark.parametrize("error", [Retry("later"), ConnectionError("away"), MemoryError(), ConfigurationError("wrong")])
def test_what_says_nothing_of_the_record_fails_the_checkpoint(error: Exception) -> None:
    def raising(record: dict[str, Any]) -> None:
        raise error

    def on_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            raise error
        yield from ()

    for function in (per_record(raising), on_batches):
        with pytest.raises(type(error)):
            run(rule(function), batch_of(range(3)))


def test_a_record_that_raises_only_beside_others_is_written() -> None:
    def only_together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows > 1:
                raise ValueError("too many")
            yield batch

    made, letters = run(rule(only_together), batch_of(range(9)))
    assert (made, letters) == ({"sink": [b"%d" % n for n in range(9)]}, [])


def test_a_task_ends_the_job_before_it_has_set_aside_everything() -> None:
    limits = Limits(rate=0.01, total=None)
    bad = set(range(5000))
    with pytest.raises(TooManyLettersError) as raised:
        run(rule(Counted(), limits=limits), *(batch_of(range(n, n + 1000), bad=bad) for n in range(0, 5000, 1000)))
    said = str(raised.value)
    assert said.startswith(
        "Of the last 1000 records 21 became dead letters; rate=1.00% permits less: 21 for JSONDecode"
    )
    assert "(in 0, offset 0)" in said
    halted = unusable_in(f"Caused by: {unusable(raised.value)} at line 3")
    assert isinstance(halted, HaltedError)
    assert str(halted) == said


def test_a_task_may_set_aside_its_share_and_a_few() -> None:
    bad = {*range(0, 2000, 101)}
    made, letters = run(rule(Counted(), limits=Limits(rate=0.01, total=None)), batch_of(range(2000), bad=bad))
    assert (len(made["sink"]), len(letters)) == (1980, 20)


def test_a_window_forgets_what_is_long_past_and_stays_small() -> None:
    window = Window(Limits(rate=0.01, total=None))
    window.add(100, 20)
    for _ in range(30_000):
        window.add(1, 0)
    assert window.excess(0, 20) is None
    assert len(window.entries) < 30
    assert sum(records for records, _ in window.entries) < 11_000


def test_reasons_add_up_and_are_of_few_kinds() -> None:
    reasons = Reasons()
    for n in range(100):
        reasons.add(type(f"Error{n % 40}", (Exception,), {})("x" * 1000), f"in 0, offset {n}")
    both = (Reasons(json.loads(json.dumps(reasons.to_json()))) + reasons).to_json()
    assert sum(count for count, _ in both.values()) == 200
    assert len(both) == 21
    assert len(str(reasons)) < 400
    assert "x" * 10 not in reasons.kinds, "logs quote no record"
    assert reasons.kinds.startswith("40 others, 3 Error0, ")


def votes(letters: int) -> list[Vote]:
    reasons = {"ValueError": [letters, "bad (in 0, offset 1)"]}
    return [Vote(slot=0, attempt=0, records=letters, bytes=1, reasons=reasons)]


def test_a_job_counts_over_checkpoints_and_restarts() -> None:
    limits = DeadLetters(SINK, rate="1%").limits()
    count = LetterCount(limits)
    first = count.count(CheckpointId(1), CheckpointId(0), read=1000, votes=votes(12))
    again = LetterCount(limits)
    again.restore(CheckpointId(1), first)
    with pytest.raises(
        HaltedError, match=r"Of the last 2000 records 24 .* 12 for ValueError, for example ValueError: bad"
    ):
        again.count(CheckpointId(2), CheckpointId(1), read=1000, votes=votes(12))
    again.count(CheckpointId(3), CheckpointId(1), read=1000, votes=votes(8))


def test_a_checkpoint_that_was_aborted_does_not_count() -> None:
    count = LetterCount(DeadLetters(SINK).limits())
    for checkpoint in range(1, 10):
        count.count(CheckpointId(checkpoint), CheckpointId(0), read=1000, votes=votes(15))


def test_a_job_has_no_more_letters_than_its_total_until_that_is_raised() -> None:
    count = LetterCount(DeadLetters(SINK, rate=1.0, total=10).limits())
    stored = count.count(CheckpointId(1), CheckpointId(0), read=100, votes=votes(10))
    with pytest.raises(HaltedError, match="total=10"):
        count.count(CheckpointId(2), CheckpointId(1), read=100, votes=votes(1))
    more = LetterCount(DeadLetters(SINK, rate=1.0, total=20).limits())
    more.restore(CheckpointId(1), stored)
    more.count(CheckpointId(2), CheckpointId(1), read=100, votes=votes(1))


def test_a_count_of_a_newer_version_is_not_guessed() -> None:
    with pytest.raises(HaltedError, match="newer version"):
        LetterCount(FREE).restore(CheckpointId(1), Document(kind="dead-letters", version=2, body={}))


@pytest.mark.parametrize("rate", ["1", "0%", "101%", 0, -1, 1.5, True, "one"])
def test_a_rate_that_is_none_is_refused(rate: Any) -> None:
    with pytest.raises(ConfigurationError, match="rate="):
        DeadLetters(SINK, rate=rate).limits()


@pytest.mark.parametrize("total", [0, -1, True, "7", 1.5])
def test_a_total_that_is_none_is_refused(total: Any) -> None:
    with pytest.raises(ConfigurationError, match="total="):
        DeadLetters(SINK, total=total).limits()


@pytest.mark.parametrize(("name", "text"), [("where", 1), ("reason", None)])
def test_a_condition_that_is_no_sql_is_refused(name: str, text: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}="):
        DeadLetters(SINK, **{name: text}).limits()


def described(**options: Any) -> Pipeline:
    source = KafkaSource("localhost:9092", topics=["in"])
    return Pipeline(job="orders", source=source, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sink": SINK}, "Give where="),
        ({"sink": SINK, "transform": lambda df: df}, "Give where="),
        ({"sink": SINK, "transform_batches": Counted(), "where": "n is null"}, "Leave out where="),
        ({"sink": SINK, "transform": lambda df: df, "where": "n is null"}, "Instead of sink="),
        ({"outputs": {DEAD_LETTERS: Output(SINK)}, "transform_batches": Counted()}, "no output may be called"),
        ({"sink": SINK, "transform_batches": Counted(), "rate": 0}, "rate=0"),
    ],
)
def test_dead_letters_that_cannot_be_written_are_refused_before_the_start(options: dict[str, Any], said: str) -> None:
    letters = {name: options[name] for name in ("where", "rate") if name in options}
    with pytest.raises(ConfigurationError, match=said):
        described(
            dead_letters=DeadLetters(SINK, **letters),
            **{name: value for name, value in options.items() if name not in letters},
        )
