"""``onceward verify`` on a table: rows without an order, and rows that are replaced by key."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from onceward.common.errors import ConfigurationError
from onceward.connectors.at_rest import TableAtRest
from onceward.operate.verify import CheckpointReport, Grade, History, Lane, Property, Verification, judge
from onceward.operate.verify.external_sort import COVERED, REPEATED, Side
from onceward.operate.verify.table_output import RowForm, Table, rows_of_json
from onceward.operate.verify.verifier import sample

ORDERS = {"id": "long", "amount": "decimal", "at": "timestamp"}


class Rows(TableAtRest):
    """A table that holds what it is given."""

    def __init__(self, columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> None:
        self.name, self.columns, self._rows = "shop.orders", columns, rows

    def rows(self, columns: Sequence[str]) -> Iterator[Sequence[Any]]:
        for row in self._rows:
            yield [row.get(name) for name in columns]

    def close(self) -> None:
        pass


def order(number: int, amount: object = Decimal("1.50")) -> dict[str, Any]:
    return {"id": number, "amount": amount, "at": datetime(2026, 1, 1, tzinfo=UTC)}


def json_of(number: int, amount: str = "1.5", more: str = "") -> bytes:
    return b'{"id": %d, "amount": %s, "at": "2026-01-01T01:00:00+01:00"%s}' % (number, amount.encode(), more.encode())


def judged(
    directory: Path,
    fed: Sequence[Sequence[bytes]],
    rows: Sequence[Mapping[str, Any]],
    form: RowForm = RowForm(),  # noqa: B008 - it is frozen
    *,
    covered: int = 100,
    repeated: int = 0,
) -> tuple[Verification, int]:
    """Judge JSON values by partition. ``covered``: the offsets of each partition that a checkpoint has; ``repeated``:
    those that a restore has it read again. Returns the number of unordered keys, too."""
    table = Table(lambda: Rows(ORDERS, rows), form, rows_of_json)
    sort = table.sort(directory)
    lanes = [Lane("in", number) for number in range(len(fed))]
    for flags, start, end in ((COVERED, 0, covered), (COVERED | REPEATED, 0, repeated), (0, covered, 1000)):
        for place, values in enumerate(fed):
            for offset, value in list(enumerate(values))[start:end]:
                for record in table.expected("in", None, value):
                    sort.add(Side.EXPECTED, record, lane=place, offset=offset, flags=flags)
    outputs = table.read((), sort, lambda *_: None)
    found, rest, _ = sample(table, sort, dict(enumerate(lanes)), outputs)
    sort.close()
    first = CheckpointReport(1, 0, 1, "checkpoint", "settled", dict.fromkeys(lanes, 0))
    second = CheckpointReport(2, 1, 1, "checkpoint", "settled", dict.fromkeys(lanes, covered))
    history = History(job="job", fed=found, rest=rest, reports=[one._replace(last=True) for one in (first, second)])
    return judge(history, table.properties), sort.unordered


def failed(verdict: Verification) -> dict[Property, str]:
    return {name: " ".join(one.evidence) for name, one in verdict.results.items() if one.grade is Grade.FAIL}


def test_rows_that_equal_the_json_of_the_input_pass_in_any_order(tmp_path: Path) -> None:
    verdict, _ = judged(tmp_path, [[json_of(1), json_of(2)], [json_of(3)]], [order(3), order(1), order(2)])
    assert verdict.grade is Grade.PASS
    assert Property.ORDER not in verdict.results, "rows have none"


def test_a_lost_a_double_and_a_foreign_row_are_named(tmp_path: Path) -> None:
    fed = [[json_of(1), json_of(2), json_of(3)]]
    verdict, _ = judged(tmp_path, fed, [order(1), order(1), order(3), order(9)])
    broken = failed(verdict)
    assert broken.keys() == {Property.NOTHING_LOST, Property.NOTHING_TWICE, Property.NOTHING_FOREIGN}
    assert "in-0 offset 1 of checkpoint 2" in broken[Property.NOTHING_LOST]
    row = 'id=1, amount=1.5, at="2026-01-01 00:00:00+00:00"'
    assert broken[Property.NOTHING_TWICE] == f"shop.orders: 1 records too many, for example shop.orders: {row}"
    assert "id=9" in broken[Property.NOTHING_FOREIGN]


def test_a_row_of_no_completed_checkpoint_fails(tmp_path: Path) -> None:
    verdict, _ = judged(tmp_path, [[json_of(1), json_of(2)]], [order(1), order(2)], covered=1)
    assert failed(verdict).keys() == {Property.NOTHING_UNDECIDED}
    assert "from in-0 offset 1" in failed(verdict)[Property.NOTHING_UNDECIDED]


def test_a_long_row_is_cut_and_still_differs_from_another_one(tmp_path: Path) -> None:
    table = Table(lambda: Rows({"text": "string"}, []), RowForm(), rows_of_json)
    sort = table.sort(tmp_path)
    long = [b'{"text": "%s%d"}' % (b"x" * 1000, number) for number in range(2)]
    for number, value in enumerate(long):
        for record in table.expected("in", None, value):
            sort.add(Side.VISIBLE, record, lane=0, offset=number)
    contents = {sort.content(one).value or "" for each in sort.compare() for one in each.visible}
    rows = Table(
        lambda: Rows({"text": "string"}, [{"text": "x" * 1000 + str(number)} for number in range(2)]),
        RowForm(),
        rows_of_json,
    )
    texts = rows.texts(contents)
    assert len({*texts.values()}) == len(texts) == 2
    assert all(len(text) < 300 for text in texts.values())


def test_only_the_named_columns_are_compared(tmp_path: Path) -> None:
    rows = [order(1, Decimal(7)), order(2, None)]
    assert judged(tmp_path, [[json_of(1), json_of(2)]], rows, RowForm(by=["id"]))[0].grade is Grade.PASS
    verdict, _ = judged(tmp_path, [[json_of(1), json_of(2)]], [*rows, order(2)], RowForm(by=["id"]))
    assert failed(verdict) == {Property.NOTHING_TWICE: "shop.orders: 1 records too many, for example shop.orders: id=2"}


def test_a_column_that_the_table_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"no column order_id; it has id, amount, at"):
        Table(lambda: Rows(ORDERS, []), RowForm(by=["order_id"]), rows_of_json)


def test_a_record_without_json_needs_a_function() -> None:
    for value in (None, b"1", b"{", b"\xff"):
        with pytest.raises(ConfigurationError, match="--expected-by"):
            rows_of_json("in", None, value)


# -- rows that are replaced by key

UPSERT = RowForm(key=["id"], delete="gone")
GONE = ', "gone": true'


def test_the_last_record_of_a_key_counts(tmp_path: Path) -> None:
    fed = [[json_of(1, "1"), json_of(2, "1"), json_of(1, "2"), json_of(3), json_of(3, "9", GONE)]]
    verdict, unordered = judged(tmp_path, fed, [order(1, 2), order(2, 1)], UPSERT)
    assert (verdict.grade, unordered) == (Grade.PASS, 0)


@pytest.mark.parametrize(
    ("rows", "broken", "said"),
    [
        ([order(1, 1), order(2, 1)], Property.NOTHING_LOST, "in-0 offset 2 of checkpoint 2"),
        ([order(2, 1)], Property.NOTHING_LOST, "in-0 offset 2 of checkpoint 2"),
        ([order(1, 2), order(2, 1), order(3)], Property.NOTHING_LOST, "in-0 offset 4 of checkpoint 2"),
        ([order(1, 2), order(1, 2), order(2, 1)], Property.NOTHING_TWICE, "id=1, amount=2"),
        ([order(1, 2), order(2, 1), order(4)], Property.NOTHING_FOREIGN, "id=4"),
        ([order(1, 3), order(2, 1)], Property.NOTHING_UNDECIDED, "in-0 offset 5"),
    ],
    ids=["stale", "lost", "not-deleted", "double", "foreign", "undecided"],
)
def test_a_row_that_is_not_its_keys_last_one_fails(
    rows: Sequence[Mapping[str, Any]], broken: Property, said: str, tmp_path: Path
) -> None:
    fed = [[json_of(1, "1"), json_of(2, "1"), json_of(1, "2"), json_of(3), json_of(3, "9", GONE), json_of(1, "3")]]
    verdict, _ = judged(tmp_path, fed, rows, UPSERT, covered=5)
    found = failed(verdict)
    assert said in found.pop(broken)
    assert found.keys() <= {Property.NOTHING_LOST}, "what is not the last row stands in its place"


def test_what_a_restore_has_read_again_counts_last(tmp_path: Path) -> None:
    fed = [[json_of(1, "1"), json_of(1, "2")]]
    assert judged(tmp_path, fed, [order(1, 1)], UPSERT, repeated=1)[0].grade is Grade.PASS
    verdict, _ = judged(tmp_path, fed, [order(1, 2)], UPSERT, repeated=1)
    assert failed(verdict).keys() == {Property.NOTHING_LOST}


def test_the_last_record_of_a_key_from_two_partitions_is_the_last_one_of_either(tmp_path: Path) -> None:
    fed = [[json_of(1, "1"), json_of(1, "2"), json_of(2, "7")], [json_of(1, "3"), json_of(2, "7")]]
    for amount in (2, 3):
        verdict, unordered = judged(tmp_path, fed, [order(1, amount), order(2, 7)], UPSERT)
        assert (verdict.grade, unordered) == (Grade.PASS, 1), "verify() turns the count into UNKNOWN"
    assert failed(judged(tmp_path, fed, [order(1, 1), order(2, 7)], UPSERT)[0]).keys() == {Property.NOTHING_LOST}


# -- values


@pytest.mark.parametrize(
    ("kind", "expected", "found"),
    [
        ("long", b"1", 1),
        ("decimal", b"1.50", Decimal("1.5")),
        ("decimal", b"100", Decimal("1E+2")),
        ("decimal", b'"0.00"', Decimal("-0.0")),
        ("decimal", b"12345678901234567890123456789.123456789", Decimal("12345678901234567890123456789.1234567890")),
        ("double", b"0.1", 0.1),
        ("double", b"1", 1.0),
        ("double", b'"NaN"', float("nan")),
        ("float", b"0.1", 0.10000000149011612),
        ("float", b"0.1", 0.1),
        ("timestamp", b'"2026-01-01T00:00:00Z"', datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))),
        ("timestamp", b'"2026-01-01 00:00:00"', datetime(2026, 1, 1, tzinfo=UTC)),
        ("timestamp_ntz", b'"2026-01-01T00:00:00.5"', datetime(2026, 1, 1, microsecond=500_000)),  # noqa: DTZ001
        ("date", b'"2026-01-01"', date(2026, 1, 1)),
        ("binary", b'"AAEC"', memoryview(b"\0\1\2")),
        ("uuid", b'"00000000-0000-0000-0000-000000000001"', UUID(int=1)),
        ("boolean", b"true", True),
        ("string", b"null", None),
        ("jsonb", b'{"b": [1.0, null], "a": null}', {"b": [1, None]}),
        ("string", '"\u00e4 \\n"'.encode(), "\u00e4 \n"),
    ],
)
def test_a_value_of_json_equals_that_of_the_column(kind: str, expected: bytes, found: object) -> None:
    assert word(kind, b'{"c": %s}' % expected) == word_of(kind, found)


@pytest.mark.parametrize(
    ("kind", "expected", "found"),
    [
        ("string", b'"1"', "01"),
        ("string", b'"null"', None),
        ("string", b"1", "1"),
        ("long", b"1", True),
        ("decimal", b"1.51", Decimal("1.5")),
        ("timestamp", b'"2026-01-01T00:00:01Z"', datetime(2026, 1, 1, tzinfo=UTC)),
        ("timestamp", b'"yesterday"', datetime(2026, 1, 1, tzinfo=UTC)),
        ("binary", b'"AAEC"', b"AAEC"),
    ],
)
def test_another_value_differs(kind: str, expected: bytes, found: object) -> None:
    assert word(kind, b'{"c": %s}' % expected) != word_of(kind, found)


def word(kind: str, value: bytes) -> bytes | None:
    (record,) = Table(lambda: Rows({"c": kind}, []), RowForm(), rows_of_json).expected("in", None, value)
    return record[2]


def word_of(kind: str, value: object) -> bytes | None:
    rows = Table(lambda: Rows({"c": kind}, []), RowForm(), lambda *_: [{"c": value}])
    (record,) = rows.expected("in", None, None)
    assert re.fullmatch(rb"c=[\x20-\x7e]+", record[2] or b""), "it is shown to people"
    return record[2]
