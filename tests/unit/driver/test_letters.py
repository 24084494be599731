"""What a task sets aside, and when a job has too much of it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pyarrow as pa
import pytest

from onceward import DeadLetter, DeadLetters, KafkaSink, KafkaSource, Output, Pipeline, Retry, per_record, stateful
from onceward.common.errors import ConfigurationError, HaltedError, PostponedError
from onceward.connectors.letter_counts import LetterCounts, Place, letters_in
from onceward.connectors.letters import DEAD_LETTERS
from onceward.connectors.slots import OpenSlot, SlotContext, Unfit, UnfitKind
from onceward.connectors.tasks import Ballot, CheckpointTask, Postponed, Vote, check_ballots
from onceward.driver.letters import LetterCount
from onceward.executor.aside import INPUT_COLUMN, REASON_COLUMN, ByColumn, OfFunction, RowByRow, SettingAside
from onceward.executor.functions import by_name, to_one, unusable, unusable_in
from onceward.executor.letters import (
    LetterRefusedError,
    LettersTo,
    Limits,
    Reasons,
    Rules,
    TooManyLettersError,
    Why,
    Window,
)
from onceward.executor.slots import Attempt, TaskSlots
from onceward.protocol.values import CheckpointId, Document, JobName


class Stranger:
    """A sink that knows nothing of what it cannot write."""

    slot: object = object()

    def open(self, context: SlotContext) -> OpenSlot:
        return cast("OpenSlot", self.slot)


SINK = KafkaSink("localhost:9092", topic="dead")
TASK = CheckpointTask(job="orders", generation=1, checkpoint=7, splits=(), columns=(), sinks={})
SLOTS = TaskSlots({name: Stranger() for name in ("sink", "a", "b")}, Attempt(task=TASK, slot=0, number=1))
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
        self.calls = self.records = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.calls += 1
            self.records += batch.num_rows
            doubled = [b"%d" % (2 * json.loads(value)) for value in batch.column("value").to_pylist()]
            yield pa.RecordBatch.from_pydict({"value": doubled})


def rule(
    function: Callable[..., Any],
    *,
    limits: Limits = FREE,
    sinks: tuple[str, ...] = ("sink",),
    on: tuple[str, ...] = ("transform", "too_large", "schema", "refused"),
    hidden: int = 0,
    aliases: tuple[str, ...] = (),
) -> SettingAside:
    route = partial(by_name, sinks) if len(sinks) > 1 else partial(to_one, sinks[0])
    rules = Rules("orders", limits, frozenset(on), aliases)
    to = LettersTo(sink=DEAD_LETTERS, rules=rules, partitions=3)
    return SettingAside(making=OfFunction(function, route, hidden), to=to)


def run(
    given: SettingAside, *batches: pa.RecordBatch, slots: TaskSlots | None = None
) -> tuple[dict[str, list[Any]], list[dict[str, Any]]]:
    """What each sink got, and the letters."""
    made: dict[str, list[Any]] = {}
    letters: list[dict[str, Any]] = []
    for sink, batch in given.of(slots or SLOTS)(iter(batches)):
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


def test_many_bad_records_of_a_batch_cost_no_run_of_all_that_follow_each() -> None:
    function, bad = Counted(), {*range(50, 10_000, 100)}
    made, letters = run(rule(function), batch_of(range(10_000), bad=bad))
    assert (made, len(letters)) == ({"sink": doubled(range(10_000), *bad)}, 100)
    assert function.calls < 11 * len(bad), "log2(100) is 7"
    assert function.records < 9 * 10_000, "not half of it for each, which is 50 times"


def test_a_function_with_a_state_runs_once_and_fails_the_checkpoint() -> None:
    def numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen = 0
        for batch in batches:
            numbers = [b"%d" % (seen := seen + json.loads(value)) for value in batch.column("value").to_pylist()]
            yield pa.RecordBatch.from_pydict({"value": numbers})

    batches = batch_of(range(1, 4)), batch_of(range(4, 6))
    sums = [b"1", b"3", b"6", b"10", b"15"]
    assert run(rule(stateful(numbered)), *batches) == ({"sink": sums}, [])
    assert run(rule(numbered), *batches)[0] != {"sink": sums}, "what the word is for"
    with pytest.raises(json.JSONDecodeError):
        run(rule(stateful(numbered)), batch_of(range(5), bad={3}))


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


def test_a_function_does_not_get_the_columns_that_only_a_letter_keeps() -> None:
    theirs = [[{"key": "trace", "value": b"x"}]] * 3
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = batch_of(range(3), bad={1}, start=100).append_column("headers", pa.array(theirs, kind))
    given: list[list[str]] = []

    def on_records(record: dict[str, Any]) -> dict[str, Any]:
        given.append(list(record))
        return {"value": b"%d" % (2 * json.loads(record["value"]))}

    def on_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for one in batches:
            given.append(one.schema.names)
            yield from Counted()(iter([one]))

    for function in (per_record(on_records), on_batches):
        for hidden, shown in ((1, 6), (3, 4)):
            given.clear()
            made, (letter,) = run(rule(function, hidden=hidden), batch)
            assert made == {"sink": [b"0", b"4"]}
            assert {tuple(names) for names in given} == {tuple(batch.schema.names[:shown])}
            said = {one["key"]: one["value"] for one in letter["headers"]}
            assert (said["trace"], said["onceward.error.offset"]) == (b"x", b"101")


@pytest.mark.parametrize(("attempt", "after"), [(b"1", "2"), (b"41", "42"), (b"x", "1"), (b"9" * 30, "1"), (None, "1")])
def test_a_letter_of_a_record_that_came_back_counts_its_attempts(attempt: bytes | None, after: str) -> None:
    came = {"attempt": attempt, "first_seen": b"1700000000000", "class": b"KeyError", "output": b"b", "offset": b"3"}
    theirs = [{"key": "trace", "value": None}, *({"key": f"onceward.error.{k}", "value": v} for k, v in came.items())]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = batch_of(range(1), bad={0}, start=7).append_column("headers", pa.array([theirs], kind))
    (letter,) = run(rule(Counted()), batch)[1]
    names = [one["key"].removeprefix("onceward.error.") for one in letter["headers"]]
    assert sorted(names) == sorted({*names}), "none is doubled"
    said = {one["key"]: one["value"] for one in letter["headers"]}
    assert said["onceward.error.attempt"] == after.encode()
    assert said["onceward.error.first_seen"] == b"1700000000000"
    assert (said["onceward.error.class"], said["onceward.error.offset"]) == (b"JSONDecodeError", b"7")
    assert said["trace"] is None
    assert "onceward.error.output" not in said, "of the former letter"


def test_a_letter_has_the_headers_that_other_programs_know() -> None:
    (letter,) = run(rule(Counted(), aliases=("connect", "streams")), batch_of(range(3), bad={1}, start=100))[1]
    headers = {one["key"]: one["value"].decode() for one in letter["headers"]}
    ours = {name.removeprefix("onceward.error."): text for name, text in headers.items()}
    assert {name: text for name, text in headers.items() if name.startswith("__connect.errors.")} == {
        "__connect.errors.topic": "in",
        "__connect.errors.partition": "1",
        "__connect.errors.offset": "101",
        "__connect.errors.connector.name": "orders",
        "__connect.errors.exception.class.name": "JSONDecodeError",
        "__connect.errors.exception.message": ours["message"],
    }
    assert {name: text for name, text in headers.items() if name.startswith("__streams.errors.")} == {
        "__streams.errors.exception": "JSONDecodeError",
        "__streams.errors.message": ours["message"],
        "__streams.errors.topic": "in",
        "__streams.errors.partition": "1",
        "__streams.errors.offset": "101",
    }


@pytest.mark.parametrize("aliases", ["spring", ("connect", "spring"), 7, None])
def test_headers_that_are_not_known_are_refused(aliases: Any) -> None:
    with pytest.raises(ConfigurationError, match="'connect' or 'streams', or both"):
        DeadLetters(SINK, aliases=aliases).rules(JobName("orders"), of_batches=True)


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


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), "30s", True])
def test_a_retry_without_a_number_of_seconds_ends_the_job(after: Any) -> None:
    def raising(record: dict[str, Any]) -> None:
        raise Retry("away", after=after)

    with pytest.raises(ConfigurationError, match="not a number of seconds"):
        run(rule(per_record(raising)), batch_of(range(3)))


def test_a_task_that_was_asked_to_wait_postpones_its_checkpoint_by_the_longest_wait() -> None:
    ballot = Ballot({"out": Vote(slot=0, attempt=1, records=0, bytes=0)}).to_json()
    texts = [ballot, Postponed("rates are away", 30.0).to_json(), Postponed("", 0.5).to_json()]
    with pytest.raises(PostponedError, match="called again in 30 s: rates are away") as raised:
        check_ballots(texts, ["out"], 3)
    assert raised.value.after == 30


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
        reasons.add(Why(f"Error{n % 40}", "x" * 1000), Place("in", 0, n))
    both = Reasons(json.loads(json.dumps(reasons.to_json()))) + reasons
    assert sum(both.kinds.values()) == 200
    assert len(both.kinds) == 21
    assert both.newest["Error0"] == (6, [Place("in", 0, n) for n in (80, 40, 0)])
    assert len(str(reasons)) < 400
    assert "x" * 10 not in str(reasons.kinds), "logs quote no record"
    assert list(reasons.kinds.items())[:2] == [("others", 40), ("Error0", 3)]


def votes(letters: int, kind: str = "ValueError", *places: Place) -> list[Vote]:
    """A slot's, with the places of its newest letters, the newest last."""
    reasons = {kind: [letters, "bad (in 0, offset 1)", [*map(list, places)]]}
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


def test_a_checkpoint_stores_which_letters_it_has_and_which_all_have_and_no_message() -> None:
    count = LetterCount(FREE)
    first, second, third = (Place("in", partition, 7) for partition in range(3))
    both = [*votes(3, "ValueError", first, second), *votes(1, "KeyError", first)]
    count.count(CheckpointId(1), CheckpointId(0), read=100, votes=both)
    last = count.count(CheckpointId(4), CheckpointId(1), read=100, votes=votes(2, "ValueError", first, third))
    values, keys = LetterCounts.of(last).classes or ()
    assert (values.letters, values.here, values.checkpoint) == (5, 2, 4)
    assert values.newest == (third, first, second), "the newest first"
    assert (keys.letters, keys.here, keys.checkpoint, keys.newest) == (1, 0, 1, (first,))
    assert letters_in(last) == {"ValueError": 2}
    assert "bad" not in json.dumps(last.body)
    nothing = count.count(CheckpointId(5), CheckpointId(4), read=0)
    assert (LetterCounts.of(nothing).letters, letters_in(nothing)) == (6, {})


def test_what_a_checkpoint_stores_stays_small_however_many_classes_there_are() -> None:
    count, last = LetterCount(FREE), Document(kind="none", version=1, body={})
    for number in range(1, 200):
        places = [Place("t" * 249, 2**31, 2**53 + n) for n in range(9)]
        kind = f"{number}{'x' * 10_000}"
        last = count.count(CheckpointId(number), CheckpointId(number - 1), read=100, votes=votes(2, kind, *places))
    classes = LetterCounts.of(last).classes or ()
    assert sum(one.letters for one in classes) == LetterCounts.of(last).letters == 398
    assert (len(classes), classes[-1].kind) == (21, "others")
    assert len(json.dumps(last.body)) < 25_000


FORMER = Document(kind="dead-letters", version=1, body={"letters": 8, "window": [[600, 3], [700, 5]]})
"""As a program wrote it that did not store classes."""


def test_a_job_continues_from_a_count_without_classes() -> None:
    assert (LetterCounts.of(FORMER).letters, letters_in(FORMER)) == (8, None)
    count = LetterCount(DeadLetters(SINK, rate="1%", total=10).limits())
    count.restore(CheckpointId(7), FORMER)
    with pytest.raises(HaltedError, match="Of the last 1400 records 21"):
        count.count(CheckpointId(8), CheckpointId(7), read=100, votes=votes(13))
    with pytest.raises(HaltedError, match="total=10"):
        count.count(CheckpointId(8), CheckpointId(7), read=100, votes=votes(3))
    following = count.count(CheckpointId(8), CheckpointId(7), read=100, votes=votes(2))
    assert (LetterCounts.of(following).letters, letters_in(following)) == (10, {"ValueError": 2})


@pytest.mark.parametrize(
    ("stored", "says"),
    [
        (Document(kind="dead-letters", version=3, body={}), "version 3, and this program knows .* up to version 2"),
        (Document(kind="counts", version=1, body={}), "counts in version 1"),
        (replace(FORMER, version=2), "cannot be read"),
        (
            Document(kind="dead-letters", version=2, body={"letters": "x", "window": [], "classes": []}),
            "cannot be read",
        ),
    ],
)
def test_a_count_that_is_not_known_is_not_guessed(stored: Document, says: str) -> None:
    with pytest.raises(HaltedError, match=f"{says}.*Start a newer version"):
        LetterCount(FREE).restore(CheckpointId(1), stored)
    assert letters_in(stored) is None


def test_a_task_says_where_its_newest_letters_are_as_far_as_the_records_say_it() -> None:
    def places(given: SettingAside, batch: pa.RecordBatch) -> dict[str, Any]:
        aside = given.of(SLOTS)
        list(aside(iter([batch])))
        return aside.reasons.newest

    batch = batch_of(range(1000), bad={3, 4, 998, 999})
    newest = [Place("in", 4, 999), Place("in", 3, 998), Place("in", 4, 4)]
    assert places(rule(Counted()), batch) == {"JSONDecodeError": (4, newest)}
    assert places(rule(Counted()), batch.drop_columns(["offset"])) == {"JSONDecodeError": (4, [])}
    texts = batch.set_column(2, "topic", pa.array(["no topic of Kafka: a value"] * 1000))
    assert places(rule(Counted()), texts) == {"JSONDecodeError": (4, [])}

    records = [{"value": b"", "topic": "in", "partition": 1, "offset": n} for n in range(5)] + [{"value": b""}]
    by_column = SettingAside(making=ByColumn(), to=rule(Counted()).to)
    found = places(by_column, wide(**{REASON_COLUMN: ["why"] * 6, INPUT_COLUMN: records}))
    assert found == {"condition": (6, [Place("in", 1, n) for n in (4, 3, 2)])}


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


class Choosy:
    """A sink that takes no record whose value is in ``without``, and what is asked of it."""

    def __init__(self, kind: UnfitKind, *without: bytes) -> None:
        self._kind, self._without = kind, without
        self.asked = self.abandoned = 0

    def open(self, context: SlotContext) -> OpenSlot:
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        raise AssertionError("the router is run by itself")

    def unfit(self, batch: pa.RecordBatch) -> Iterator[Unfit]:
        self.asked += 1
        for row, value in enumerate(batch.column("value").to_pylist()):
            if value in self._without:
                yield Unfit(row=row, kind=self._kind, reason=f"no {value!r}")

    def finish(self) -> Vote:
        raise AssertionError("the router is run by itself")

    def abandon(self) -> None:
        self.abandoned += 1


def slots(**writers: Any) -> TaskSlots:
    return TaskSlots({"sink": Stranger(), DEAD_LETTERS: Stranger(), **writers}, Attempt(task=TASK, slot=0, number=1))


def said(letter: dict[str, Any]) -> dict[str, str]:
    return {one["key"].removeprefix("onceward.error."): one["value"].decode() for one in letter["headers"]}


@pytest.mark.parametrize("of_records", [False, True])
def test_a_record_that_an_output_refuses_is_a_letter_as_it_was_read(of_records: bool) -> None:
    def doubling(record: dict[str, Any]) -> dict[str, Any]:
        return {"value": b"%d" % (2 * json.loads(record["value"]))}

    function = per_record(doubling) if of_records else Counted()
    choosy = Choosy(UnfitKind.SCHEMA, b"14", b"198")
    made, letters = run(rule(function), batch_of(range(100), bad={3}), slots=slots(sink=choosy))
    assert made == {"sink": doubled(range(100), 3, 7, 99)}
    assert [letter["value"] for letter in letters] == [b"{", b"7", b"99"]
    found = said(letters[1])
    assert {name: found[name] for name in ("offset", "output", "stage", "class", "message")} == {
        "offset": "7",
        "output": "sink",
        "stage": "output",
        "class": "schema",
        "message": "no b'14'",
    }
    assert found.keys() - said(letters[0]).keys() == {"output"}


def test_a_record_that_one_output_refuses_goes_to_no_other() -> None:
    def both(record: dict[str, Any]) -> Any:
        return [(name, {"value": record["value"]}) for name in "aab"]

    made, letters = run(
        rule(per_record(both), sinks=("a", "b")),
        batch_of(range(4)),
        slots=slots(a=Choosy(UnfitKind.REFUSED, b"1"), b=Choosy(UnfitKind.TOO_LARGE, b"1", b"2")),
    )
    assert made == {"a": [b"0", b"0", b"3", b"3"], "b": [b"0", b"3"]}
    assert [(letter["value"], said(letter)["class"]) for letter in letters] == [(b"1", "refused"), (b"2", "too_large")]


@pytest.mark.parametrize("of_records", [False, True])
def test_what_on_does_not_name_fails_the_checkpoint_as_without_letters(of_records: bool) -> None:
    def reading(record: dict[str, Any]) -> dict[str, Any]:
        return {"value": b"%d" % (2 * json.loads(record["value"]))}

    function = per_record(reading) if of_records else Counted()
    choosy = Choosy(UnfitKind.SCHEMA, b"2")
    of_outputs = rule(function, on=("schema",))
    with pytest.raises(json.JSONDecodeError):
        run(of_outputs, batch_of(range(4), bad={2}), slots=slots(sink=choosy))
    assert len(run(of_outputs, batch_of(range(4)), slots=slots(sink=choosy))[1]) == 1
    others = rule(function, on=("transform", "too_large"))
    assert run(others, batch_of(range(4)), slots=slots(sink=choosy)) == ({"sink": doubled(range(4))}, [])
    asked = choosy.asked
    assert len(run(rule(function, on=("transform",)), batch_of(range(4), bad={2}), slots=slots(sink=choosy))[1]) == 1
    assert choosy.asked == asked, "nothing is asked that no one wants to know"


def test_of_a_value_that_was_too_large_a_letter_keeps_the_first_64_kib() -> None:
    batch = batch_of(range(2)).set_column(1, "value", pa.array([b"x" * 100_000, b"y" * 100_000], pa.binary()))
    copy = SettingAside(making=RowByRow(to_one("sink")), to=rule(Counted()).to)
    _, (letter,) = run(copy, batch, slots=slots(sink=Choosy(UnfitKind.TOO_LARGE, b"x" * 100_000)))
    assert (letter["key"], letter["value"], said(letter)["size"]) == (b"k0", b"x" * 65_536, "100000")
    _, (letter,) = run(copy, batch, slots=slots(sink=Choosy(UnfitKind.REFUSED, b"x" * 100_000)))
    assert (len(letter["value"]), "size" in said(letter)) == (100_000, False)


def test_letters_of_outputs_count_toward_the_limits() -> None:
    given = rule(per_record(lambda record: record), limits=Limits(rate=0.01, total=None))
    with pytest.raises(TooManyLettersError, match=r"21 became dead letters.*21 for refused, for example refused: no"):
        run(given, batch_of(range(30)), slots=slots(sink=Choosy(UnfitKind.REFUSED, *[b"%d" % n for n in range(30)])))


def test_an_output_that_is_not_written_again_is_asked_all_the_same_and_keeps_nothing() -> None:
    """One of two outputs is written again: the records that the other refuses must be missing there as before."""
    a, b = Stranger(), Choosy(UnfitKind.REFUSED, b"1")
    task = CheckpointTask(job="orders", generation=1, checkpoint=7, splits=(), columns=(), sinks={"a": {}})
    written: list[Any] = []

    class Slot:
        def write(self, batch: pa.RecordBatch) -> None:
            written.extend(batch.column("value").to_pylist())

        def finish(self) -> Vote:
            return Vote(slot=0, attempt=1, records=len(written), bytes=0)

    opened = TaskSlots({"a": a, "b": b, DEAD_LETTERS: Stranger()}, Attempt(task=task, slot=0, number=1))
    a.slot = Slot()
    both = rule(per_record(lambda record: [(name, {"value": record["value"]}) for name in "ab"]), sinks=("a", "b"))
    ballot = opened.write(both.of(opened)(iter([batch_of(range(4))])))
    assert (written, list(ballot.votes), b.abandoned) == ([b"0", b"2", b"3"], ["a"], 1)


def wide(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_a_row_of_a_dataframe_is_a_letter_with_its_record_as_far_as_it_is_known() -> None:
    by_column = SettingAside(making=ByColumn(), to=rule(Counted()).to)
    rows = [{"value": b"%d" % n} if n != 2 else None for n in range(4)]
    records = [{"key": b"k%d" % n, "value": b"in %d" % n, "topic": "in", "partition": 1, "offset": n} for n in range(4)]
    marked = [None, None, "two", "three"]
    batch = wide(**{"a": rows, "b": rows, REASON_COLUMN: marked, INPUT_COLUMN: records})
    refusing = slots(a=Choosy(UnfitKind.REFUSED, b"1", b"3"), b=Stranger())
    made, letters = run(by_column, batch, slots=refusing)
    assert made == {"a": [b"0"], "b": [b"0"]}
    assert [(letter["key"], letter["value"]) for letter in letters] == [
        (b"k%d" % n, b"in %d" % n) for n in (1, 2, 3)
    ], "each once"
    assert [(said(letter)["class"], said(letter)["offset"]) for letter in letters] == [
        ("refused", "1"),
        ("condition", "2"),
        ("refused", "3"),
    ]
    assert {name: said(letters[1])[name] for name in ("stage", "message", "checkpoint", "attempt")} == {
        "stage": "transform",
        "message": "two",
        "checkpoint": "7",
        "attempt": "1",
    }
    made, letters = run(by_column, batch, slots=slots(a=Stranger(), b=Stranger()))
    assert made == {"a": [b"0", b"1", b"3"], "b": [b"0", b"1", b"3"]}, "an output's own condition says what it gets"
    assert [letter["value"] for letter in letters] == [b"in 2", b"in 3"]

    made, letters = run(by_column, wide(a=rows, b=rows), slots=refusing)
    assert made == {"a": [b"0"], "b": [b"0"]}
    assert [(letter["key"], letter["value"]) for letter in letters] == [(None, b"1"), (None, b"3")]
    table = [{"id": n, "value": b"%d" % n} for n in range(2)]
    _, (letter,) = run(by_column, wide(a=table), slots=slots(a=Choosy(UnfitKind.SCHEMA, b"1")))
    assert json.loads(letter["value"]) == {"id": 1, "value": "b'1'"}


class Narrow(Choosy):
    """A sink of letters that takes few bytes."""

    def __init__(self, most: int, *, of_headers: bool = False) -> None:
        super().__init__(UnfitKind.TOO_LARGE)
        self._most, self._of_headers = most, of_headers

    def unfit(self, batch: pa.RecordBatch) -> Iterator[Unfit]:
        for row, letter in enumerate(batch.to_pylist()):
            if self._of_headers or len(letter["value"] or b"") > self._most:
                yield Unfit(row=row, kind=UnfitKind.TOO_LARGE, reason="it is too large")


def test_a_letter_that_its_topic_refuses_says_at_least_where_the_record_was() -> None:
    task = CheckpointTask(job="orders", generation=1, checkpoint=7, splits=(), columns=(), sinks={DEAD_LETTERS: {}})
    values = [b"{" * 5, b"{" * 50, b"1"]
    batch = batch_of(range(3)).set_column(1, "value", pa.array(values, pa.binary()))
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = batch.append_column("headers", pa.array([[{"key": "trace", "value": b"x"}]] * 3, kind))

    def letters(dead: Narrow) -> list[dict[str, Any]]:
        opened = TaskSlots({"sink": Stranger(), DEAD_LETTERS: dead}, Attempt(task=task, slot=0, number=1))
        return run(rule(Counted()), batch, slots=opened)[1]

    whole, bare = letters(Narrow(10))
    assert (whole["key"], whole["value"], "size" in said(whole)) == (b"k0", values[0], False)
    assert (bare["key"], bare["value"], bare["partition"]) == (None, None, None)
    assert (said(bare)["offset"], said(bare)["size"], "trace" in said(bare)) == ("1", "50", False)
    assert said(bare).keys() - said(whole).keys() == {"size"}
    with pytest.raises(LetterRefusedError, match=r"even without its record: it is too large.*in 0, offset 0"):
        letters(Narrow(0, of_headers=True))
    again = unusable_in(str(unusable(LetterRefusedError("no letter"))))
    assert isinstance(again, HaltedError)


@pytest.mark.parametrize("on", [(), "schema", ("schema", "late"), 7])
def test_classes_of_letters_that_are_not_known_are_refused(on: Any) -> None:
    with pytest.raises(ConfigurationError, match="Give some of 'transform', 'too_large', 'schema', 'refused'"):
        DeadLetters(SINK, on=on).rules(JobName("orders"), of_batches=True)
