"""Which letters a run brings back: those that it wants, and that no run before it has brought back."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pyarrow as pa
import pytest

from onceward.common.errors import HaltedError
from onceward.connectors.letters import OUTPUTS, Letter, Run, Wanted
from onceward.protocol.values import Document
from onceward.sources.kafka.executor.columns import schema_of
from onceward.sources.kafka.executor.letters import NAMES, LetterReader
from onceward.sources.kafka.letters import LetterPositions, skip_to
from onceward.sources.kafka.positions import Cursor, KafkaPositions, TopicPosition

ALL = Wanted(job="orders", topics=("in",), attempts=3)
KEYS = Wanted(job="orders", topics=("in",), attempts=3, kind="KeyError")


def log(*cursors: tuple[int, int]) -> KafkaPositions:
    """Positions in the letters' topic, as (next, end) of each partition."""
    partitions = {number: Cursor(next=at, end=end) for number, (at, end) in enumerate(cursors)}
    return KafkaPositions(
        cluster="main", cluster_id="c", bound="latest", topics={"dead": TopicPosition(id="t", partitions=partitions)}
    )


def letter(**said: Any) -> Letter:
    return Letter(**{"job": "orders", "kind": "KeyError", "topic": "in", **said})


@pytest.mark.parametrize(
    ("wanted", "said", "written", "stays"),
    [
        (ALL, {}, 0, ""),
        (KEYS, {}, 0, ""),
        (KEYS, {"kind": "ValueError"}, 0, "not asked for"),
        (ALL, {"job": "bills"}, 0, "of another job"),
        (ALL, {"topic": "other"}, 0, "of a topic that the job does not read"),
        (ALL, {"attempt": 2}, 0, ""),
        (ALL, {"attempt": 3}, 0, "failed 3 times or more"),
        (ALL, {"cut": True}, 0, "cut, because the record was too large"),
        (Wanted(job="orders", topics=("in",), attempts=3, output="table"), {}, 0, "not asked for"),
        (Wanted(job="orders", topics=("in",), attempts=3, output="table"), {"output": "table"}, 0, ""),
        (Wanted(job="orders", topics=("in",), attempts=3, since=5), {}, 4, "not asked for"),
        (Wanted(job="orders", topics=("in",), attempts=3, since=5), {}, 5, ""),
    ],
)
def test_a_letter_stays_for_one_reason(wanted: Wanted, said: dict[str, Any], written: int, stays: str) -> None:
    assert wanted.refuses(letter(**said), written) == stays
    assert Wanted.of_json(json.loads(json.dumps(wanted.to_json()))) == wanted


def test_the_options_that_want_the_same_are_said() -> None:
    since = round(datetime(2026, 1, 2, tzinfo=UTC).timestamp() * 1000)
    wanted = Wanted(job="orders", topics=("in",), attempts=2, kind="KeyError", output="table", since=since)
    assert str(wanted) == (
        "onceward redrive orders --class KeyError --output table --since 2026-01-02T00:00:00+00:00 --attempts 2"
    )
    assert str(replace(wanted, into=OUTPUTS, topics=(), since=None)) == (
        "Pipeline.redrive(letter_class='KeyError', output='table', attempts=2)"
    )


def test_positions_are_stored_and_read() -> None:
    positions = LetterPositions(number=2, log=log((3, 5), (4, 4)), wanted=ALL, before=[Run(wanted=KEYS, ends={0: 9})])
    stored = positions.to_document()
    document = Document(kind=stored.kind, version=stored.version, body=json.loads(json.dumps(stored.body)))
    assert LetterPositions.from_document(document) == positions
    assert not positions.done
    moved, former = skip_to(document, "dead", 0, 4)
    assert (former, LetterPositions.from_document(moved).log) == (3, log((4, 5), (4, 4)))
    with pytest.raises(ValueError, match="is not after it"):
        skip_to(document, "dead", 0, 2)


@pytest.mark.parametrize(("kind", "version"), [("kafka-positions", 2), ("kafka-letters", 3)])
def test_other_positions_are_refused(kind: str, version: int) -> None:
    document = Document(kind=kind, version=version, body={})
    with pytest.raises(HaltedError, match="Nothing was read"):
        LetterPositions.from_document(document)
    with pytest.raises(ValueError, match="Nothing was read"):
        skip_to(document, "dead", 0, 2)


def test_the_next_run_knows_what_all_runs_before_it_have_brought_back() -> None:
    first = LetterPositions(number=1, log=log((5, 5), (7, 7)), wanted=KEYS, before=())
    second = first.followed(log((0, 6), (0, 9)), ALL)
    assert (second.number, second.before) == (2, (Run(wanted=KEYS, ends={0: 5, 1: 7}),))
    ended = LetterPositions(number=2, log=log((6, 6), (9, 9)), wanted=ALL, before=second.before)
    third = ended.followed(log((0, 8), (0, 9)), KEYS)
    assert third.before == (Run(wanted=KEYS, ends={0: 5, 1: 7}), Run(wanted=ALL, ends={0: 6, 1: 9}))
    ended = LetterPositions(number=3, log=log((8, 8), (9, 9)), wanted=KEYS, before=third.before)
    fourth = ended.followed(log((0, 8), (0, 9)), KEYS)
    assert fourth.before == (Run(wanted=ALL, ends={0: 6, 1: 9}), Run(wanted=KEYS, ends={0: 8, 1: 9})), "one for each"


def test_a_run_that_began_late_adds_to_what_an_earlier_one_has_brought_back() -> None:
    """Retention may have removed letters; an offset is not given twice."""
    before = [Run(wanted=ALL, ends={0: 5, 1: 9})]
    ended = LetterPositions(number=2, log=log((7, 7), (3, 3)), wanted=ALL, before=before)
    assert ended.followed(log((0, 7), (0, 3)), KEYS).before == (Run(wanted=ALL, ends={0: 7, 1: 9}),)


def letters_in(*kinds: str) -> pa.RecordBatch:
    """Letters of partition 0 of a topic, each of its kind; an empty kind is a record that is no letter."""
    rows = []
    for offset, kind in enumerate(kinds):
        said = {"job": "orders", "class": kind, "topic": "in", "partition": f"{offset % 3}", "offset": "7"}
        ours = [("theirs", b"x"), *((f"onceward.error.{name}", text.encode()) for name, text in said.items())]
        made = {"key": b"k", "value": b"%d" % offset, "topic": "dead", "partition": 0, "offset": offset}
        at = datetime(2026, 1, 2, tzinfo=UTC)
        rows.append({**made, "timestamp": at, "timestampType": 0, "headers": ours if kind else None})
    return pa.RecordBatch.from_pylist(rows, schema_of(NAMES))


def brought_back(batch: pa.RecordBatch, wanted: Wanted, *before: Run) -> list[dict[str, Any]]:
    def letters(split: object, columns: frozenset[str]) -> Iterator[pa.RecordBatch]:
        assert columns >= set(NAMES)
        yield batch

    reader = LetterReader(letters=cast("Any", letters), names=NAMES, partitions={"in": 2})
    split = {"wanted": wanted.to_json(), "before": [one.to_json() for one in before]}
    return [row for made in reader(split, frozenset()) for row in made.to_pylist()]


def test_a_letter_goes_back_as_the_record_that_it_was() -> None:
    first, second, third = brought_back(letters_in("E", "", "E", "E", "E")[1:], ALL)
    assert (first["topic"], first["key"], first["value"]) == ("in", b"k", b"2")
    assert [one["partition"] for one in (first, second, third)] == [None, 0, 1], "there is no partition 2 any more"
    headers = [(one["key"], one["value"]) for one in first["headers"]]
    written = b"%d" % (datetime(2026, 1, 2, tzinfo=UTC).timestamp() * 1000)
    assert headers == [("theirs", b"x"), ("onceward.error.attempt", b"1"), ("onceward.error.first_seen", written)]


def test_a_letter_that_goes_back_again_keeps_when_it_was_first_one() -> None:
    (row,) = letters_in("E").to_pylist()
    row["headers"].append({"key": "onceward.error.first_seen", "value": b"17"})
    (back,) = brought_back(pa.RecordBatch.from_pylist([row], schema_of(NAMES)), ALL)
    assert [one["value"] for one in back["headers"] if one["key"] == "onceward.error.first_seen"] == [b"17"]


def test_a_letter_for_the_outputs_is_the_record_that_was_read() -> None:
    """Also one of a topic that is not read any more, and of a partition that is gone."""
    wanted = Wanted(job="orders", into=OUTPUTS, attempts=3)
    (row,) = letters_in("E", "E", "E")[2:].to_pylist()
    row["headers"] += [{"key": "onceward.error.timestamp", "value": b"1700000000123"}]
    (whole,) = brought_back(pa.RecordBatch.from_pylist([row], schema_of(NAMES)), wanted)
    at = datetime.fromtimestamp(1_700_000_000_123 / 1000, UTC)
    assert (whole["topic"], whole["partition"], whole["offset"], whole["timestamp"]) == ("in", 2, 7, at)
    assert [one["key"] for one in whole["headers"]] == [
        "theirs",
        "onceward.error.attempt",
        "onceward.error.first_seen",
    ]
    row["headers"] = [one for one in row["headers"] if one["key"].rpartition(".")[2] in ("job", "class")]
    (bare,) = brought_back(pa.RecordBatch.from_pylist([row], schema_of(NAMES)), wanted)
    assert [bare[name] for name in ("topic", "partition", "offset", "timestamp")] == [None] * 4


def test_positions_of_an_earlier_version_went_into_the_input() -> None:
    stored = LetterPositions(number=1, log=log((5, 5)), wanted=ALL, before=()).to_document()
    body = json.loads(json.dumps(stored.body))
    del body["runs"][0]["wanted"]["into"]
    assert LetterPositions.from_document(Document(kind=stored.kind, version=1, body=body)).wanted == ALL


def test_a_letter_that_is_back_stays() -> None:
    batch = letters_in("KeyError", "ValueError", "KeyError", "KeyError")
    values = [one["value"] for one in brought_back(batch, ALL, Run(wanted=KEYS, ends={0: 3, 1: 9}))]
    assert values == [b"1", b"3"]
    assert brought_back(batch, KEYS, Run(wanted=ALL, ends={0: 4})) == []
    dropped = replace(KEYS, drop="Ada: test data")
    assert brought_back(batch, dropped) == []
    values = [one["value"] for one in brought_back(batch, ALL, Run(wanted=dropped, ends={0: 4}))]
    assert values == [b"1"], "what was dropped stays"
    assert (
        str(dropped) == "onceward redrive orders --class KeyError --attempts 3 --drop --yes --reason 'Ada: test data'"
    )
